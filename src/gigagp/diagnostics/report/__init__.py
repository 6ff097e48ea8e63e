"""A fitted model and its predictions of test rows on one HTML page (`gigagp.report`)."""

from gigagp.diagnostics.report.making import report

__all__ = ["report"]
