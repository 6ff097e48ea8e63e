"""Laws that need a largest length, for series that converge slowly, and the law of a fixed length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Count, CountOrZero, NotNegative, checks_arguments
from gigagp.solvers.truncation.distribution import Deviation, Distribution, MeanLength
from gigagp.solvers.truncation.special import harmonic


@dataclass(frozen=True)
class OneOverJ(Distribution):
    """``P(J) ~ 1 / J`` on ``base + step, base + 2 step, ..., maximum``, for series whose error falls like ``1 / J``.

    When to use: for single-sample estimates over the number of random features.

    Parameters
    ----------
    base : int, default 1
        Length that is always computed; may be 0.
    maximum : int, optional
        Largest length. Probabilities require one, because the sum of ``1 / J`` diverges. None: the length of the series
        to which the law is applied.
    step : int, default 1
        Number of terms added at once. Larger steps have larger probabilities, and so give less variance.

    References
    ----------
    Potapczynski et al. (2021), arXiv:2102.06695, Theorem 4 and section 4.2.
    """

    base: CountOrZero = 1
    maximum: Count | None = None
    step: Count = 1

    @property
    def minimum(self) -> int:
        return self.base + self.step

    def _sum_from(self, index: int) -> float:
        """Return the sum of ``1 / j`` over the support from an index on, multiplied by the step."""
        return harmonic(self.minimum / self.step + index, self._require_points() - index)

    def _tail(self, index: int) -> float:
        return self._sum_from(index) / self._sum_from(0)

    def _mass(self, index: int) -> float:
        return 1 / ((self.minimum / self.step + index) * self._sum_from(0))

    def _moments(self) -> tuple[float, float]:
        n_points, start = self._require_points(), self.minimum / self.step
        mean = n_points / self._sum_from(0)  # of J / step
        return mean - start, mean * (2 * start + n_points - 1) / 2 - mean**2

    @classmethod
    @checks_arguments
    def from_moments(cls, mean: MeanLength, standard_deviation: Deviation, step: Count = 1) -> OneOverJ:
        """Return the law whose mean and standard deviation are closest to the given ones.

        ``E[J^2] = E[J] (first + last) / 2`` determines the sum of the two ends; the mean then selects a pair.
        """
        ends = round(2 * (mean + standard_deviation**2 / mean))
        # The mean of the law on [first, ends - first] grows with first.
        low, high = step, max(step, ends // 2)
        if cls(0, max(ends - step, step), step).mean > mean:
            raise InvalidInputError(
                f"from_moments of OneOverJ: a standard deviation of {standard_deviation:g} is too large for a mean of "
                f"{mean:g}, the smallest length being {step}. Lower standard_deviation."
            )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if cls(middle - step, ends - middle, step).mean <= mean else (low, middle)
        laws = (cls(first - step, ends - first, step) for first in {low, high})
        return min(laws, key=lambda law: abs(law.mean - mean))


@dataclass(frozen=True)
class Uniform(Distribution):
    """A law under which every length from ``minimum`` to ``maximum`` is equally likely.

    When to use: for comparisons. It spends as much work on the tail of the series as on its head.

    Parameters
    ----------
    minimum : int, default 1
        Smallest length.
    maximum : int, optional
        Largest length, required for probabilities. None: the length of the series to which the law is applied.
    step : int, default 1
        Distance between two lengths.
    """

    minimum: Count = 1
    maximum: Count | None = None
    step: Count = 1

    def _tail(self, index: int) -> float:
        n_points = self._require_points()
        return (n_points - index) / n_points

    def _mass(self, index: int) -> float:
        return 1 / self._require_points()

    def _moments(self) -> tuple[float, float]:
        n_points = self._require_points()
        return (n_points - 1) / 2, (n_points - 1) * (n_points + 1) / 12

    @classmethod
    @checks_arguments
    def from_moments(cls, mean: MeanLength, standard_deviation: Deviation) -> Uniform:
        """Return the law whose mean and standard deviation are closest to the given ones."""
        width = math.sqrt(12 * standard_deviation**2 + 1) - 1
        minimum = round(mean - width / 2)
        if minimum < 1:
            raise InvalidInputError(
                f"from_moments of Uniform: a standard deviation of {standard_deviation:g} needs a mean of at least "
                f"{0.5 + width / 2:.4g}, the smallest length being 1; got {mean:g}. Lower standard_deviation."
            )
        return cls(minimum, max(round(2 * mean) - minimum, minimum))


@dataclass(frozen=True)
class Fixed(Distribution):
    """A fixed length: no randomness and no reweighting, but the bias of stopping early.

    When to use: as the control for comparisons with random lengths.

    Parameters
    ----------
    length : int
        The length.
    """

    length: Count
    step: ClassVar[int] = 1  # type: ignore[misc]  # there is only one length

    @property
    def minimum(self) -> int:
        return self.length

    @property
    def maximum(self) -> int:  # type: ignore[override]
        """The length."""
        return self.length

    def _tail(self, index: int) -> float:
        raise AssertionError  # there is no second point

    def _mass(self, index: int) -> float:
        return 1.0

    def _moments(self) -> tuple[float, float]:
        return 0.0, 0.0

    @classmethod
    @checks_arguments
    def from_moments(cls, mean: MeanLength, standard_deviation: NotNegative = 0.0) -> Fixed:
        """Return the law of one length; the mean must be an integer and the standard deviation 0."""
        if standard_deviation != 0 or mean != round(mean):
            raise InvalidInputError(
                "from_moments of Fixed needs an integer mean and standard_deviation 0; got "
                f"{mean!r} and {standard_deviation!r}."
            )
        return cls(round(mean))
