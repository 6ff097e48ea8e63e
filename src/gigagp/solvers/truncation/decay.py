"""Laws with geometric tails, for series that converge geometrically."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Count, Fraction, Positive, Remedy, checks_arguments
from gigagp.solvers.truncation.distribution import Deviation, Distribution, MeanLength
from gigagp.solvers.truncation.special import geometric_mean, geometric_variance


class _Decay(Distribution):
    """``P(J = minimum + k step) ~ exp(-a k)``."""

    @property
    @abstractmethod
    def _decay(self) -> float:
        """Return ``a``."""

    def _tail(self, index: int) -> float:
        # (e^(-ak) - e^(-aK)) / (1 - e^(-aK)), in a form without cancellation
        a, n_points = self._decay, self.n_points
        share = 1.0 if n_points is None else math.expm1(-a * (n_points - index)) / math.expm1(-a * n_points)
        return math.exp(-a * index) * share

    def _mass(self, index: int) -> float:
        a, n_points = self._decay, self.n_points
        return math.exp(-a * index) * math.expm1(-a) / (-1.0 if n_points is None else math.expm1(-a * n_points))

    def _moments(self) -> tuple[float, float]:
        a, n_points = self._decay, self.n_points
        if n_points is None:
            return geometric_mean(a) + 1 / a, geometric_variance(a) + 1 / a**2
        return (
            geometric_mean(a) - n_points * geometric_mean(a * n_points),
            geometric_variance(a) - n_points**2 * geometric_variance(a * n_points),
        )

    def _index(self, level: float) -> int:
        a, n_points = self._decay, self.n_points
        if n_points is None:
            return math.floor(-math.log(level) / a)
        # level + (1 - level) e^(-aK), in a form that does not round 1 - level
        return min(math.floor(-math.log1p((1 - level) * math.expm1(-a * n_points)) / a), n_points - 1)


def _decay_of_moments(owner: str, mean: float, standard_deviation: float) -> tuple[float, int]:
    """Return the decay and the smallest length that match a mean exactly and a standard deviation approximately."""
    # sd = 1 / (2 sinh(a / 2)) gives the distance of the mean from the smallest length, which must be an integer.
    offset = 1 / math.expm1(2 * math.asinh(0.5 / standard_deviation))
    minimum = round(mean - offset)
    if minimum >= mean:
        minimum = math.ceil(mean) - 1
    if minimum < 1:
        raise InvalidInputError(
            f"from_moments of {owner}: with a standard deviation of {standard_deviation:g} the mean is at least "
            f"{1 + offset:.4g}, the smallest length being 1; got a mean of {mean:g}. Lower standard_deviation."
        )
    return math.log1p(1 / (mean - minimum)), minimum


@dataclass(frozen=True)
class ExponentialDecay(_Decay):
    """``P(J) ~ exp(-rate * J)`` from ``minimum`` on, for series that converge geometrically.

    When to use: for conjugate gradients. Choose a rate of 0.05 to 0.1 (standard deviations of 20 to 10) and a minimum
    close to the wanted mean; a larger minimum costs iterations and reduces the variance. The variance stays moderate as
    long as the error of conjugate gradients falls by more than ``exp(-rate / 2)`` per iteration.

    Parameters
    ----------
    rate : float
        Decay per term; positive.
    minimum : int, default 1
        Smallest length.
    maximum : int, optional
        Largest length. None: the number of rows, where conjugate gradients end.
    step : int, default 1
        Distance between two lengths.

    References
    ----------
    Potapczynski et al. (2021), "Bias-free scalable Gaussian processes via randomized truncations", eq. 17 and
    Theorem 3, arXiv:2102.06695.

    Examples
    --------
    >>> from gigagp.solvers.truncation import ExponentialDecay
    >>> law = ExponentialDecay(rate=0.05, minimum=80)
    >>> round(law.mean, 2), round(law.standard_deviation, 2)
    (99.5, 20.0)
    """

    rate: Annotated[Positive, Remedy("0.05 is the paper's.")]
    minimum: Count = 1
    maximum: Count | None = None
    step: Count = 1

    @property
    def _decay(self) -> float:
        return self.rate * self.step

    @classmethod
    @checks_arguments
    def from_moments(cls, mean: MeanLength, standard_deviation: Deviation) -> ExponentialDecay:
        """Return the law with this mean and, as closely as an integer minimum allows, this standard deviation."""
        decay, minimum = _decay_of_moments("ExponentialDecay", mean, standard_deviation)
        return cls(decay, minimum)


@dataclass(frozen=True)
class Geometric(_Decay):
    """``P(J = minimum + k step) ~ ratio^k``; `ExponentialDecay` with another parameter.

    Parameters
    ----------
    ratio : float, default 0.5
        Probability of continuing after each step; between 0 and 1, both excluded.
    minimum : int, default 1
        Smallest length.
    maximum : int, optional
        Largest length. None: no bound, or the length of the series to which the law is applied.
    step : int, default 1
        Distance between two lengths.
    """

    ratio: Fraction = 0.5
    minimum: Count = 1
    maximum: Count | None = None
    step: Count = 1

    @property
    def _decay(self) -> float:
        return -math.log(self.ratio)

    @classmethod
    @checks_arguments
    def from_moments(cls, mean: MeanLength, standard_deviation: Deviation) -> Geometric:
        """Return the law with this mean and, as closely as an integer minimum allows, this standard deviation."""
        decay, minimum = _decay_of_moments("Geometric", mean, standard_deviation)
        return cls(math.exp(-decay), minimum)
