"""An estimated number with its standard error."""

from __future__ import annotations

from typing import NamedTuple


class Estimate(NamedTuple):
    """A stochastic estimate.

    Attributes
    ----------
    value : float
        The estimate.
    standard_error : float
        Standard deviation of the estimate; 0 if the value is exact, NaN if it comes from a single sample.
    """

    value: float
    standard_error: float
