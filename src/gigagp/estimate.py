"""A number that was estimated, with how well it is known."""

from __future__ import annotations

from typing import NamedTuple


class Estimate(NamedTuple):
    """A stochastic estimate.

    Attributes
    ----------
    value : float
    standard_error : float
        One standard deviation of the estimate; 0 where the value is exact, NaN where one sample cannot tell.
    """

    value: float
    standard_error: float
