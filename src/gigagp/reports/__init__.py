"""A fitted model and its predictions of test rows on one HTML page (`gigagp.report`)."""

from gigagp.reports.making import report

__all__ = ["report"]
