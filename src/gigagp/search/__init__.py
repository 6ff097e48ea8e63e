"""Bayesian optimization over bounds by `Search.ask` and `Search.tell`; it needs nothing beyond the default install."""

from gigagp.search.loop import Search

__all__ = ["Search"]
