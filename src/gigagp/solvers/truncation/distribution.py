"""Laws of the random length J at which a series is cut.

The support of every law is ``minimum, minimum + step, ..., maximum``. Survival functions are closed forms in float64.
Weights are their inverses, and one minus a cumulative sum would have no correct digits where weights are large.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Self

import torch

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Range, Settings

#: Mean and standard deviation of lengths. The smallest length is 1, and lengths up to 2^53 are exact in float64.
MeanLength = Annotated[float, Range(least=1, below=2**53)]
Deviation = Annotated[float, Range(least=1e-12, below=2**53)]


class Distribution(Settings, ABC):
    """A law of the length J of a truncated series.

    Terms are counted from 1. ``minimum`` terms are always computed, and ``step`` is the distance between two lengths.
    If the law does not reach the end of the series, the estimated quantity is the sum of its first ``maximum`` terms;
    None stands for no limit, see `bounded`.
    """

    step: int
    maximum: int | None

    @property
    @abstractmethod
    def minimum(self) -> int:
        """Smallest length."""

    @abstractmethod
    def _tail(self, index: int) -> float:
        """Return P(J >= the support point of this index), for 0 < index < number of points."""

    @abstractmethod
    def _mass(self, index: int) -> float:
        """Return P(J = the support point of this index)."""

    @abstractmethod
    def _moments(self) -> tuple[float, float]:
        """Return the mean and the variance of the index."""

    @classmethod
    @abstractmethod
    def from_moments(cls, mean: MeanLength, standard_deviation: Deviation) -> Distribution:
        """Return the law of this kind with a given mean and standard deviation of J.

        Lengths are integers, so not every pair is possible; the mean takes precedence.

        Raises
        ------
        InvalidInputError
            If no law of this kind is close.
        """

    # ------------------------------------------------------------------ support

    @property
    def base(self) -> int:
        """Length one step below the smallest, which a single-sample estimate always computes."""
        return self.minimum - self.step

    @property
    def n_points(self) -> int | None:
        """Number of lengths with positive probability; None if there is no maximum."""
        return None if self.maximum is None else (self.maximum - self.minimum) // self.step + 1

    @property
    def last(self) -> int | None:
        """Largest length with positive probability, `maximum` or slightly less; None without a maximum."""
        n_points = self.n_points
        return None if n_points is None else self.minimum + (n_points - 1) * self.step

    def support(self) -> range:
        """Return every length with positive probability; a law without a maximum is refused."""
        return range(self.minimum, self.minimum + self._require_points() * self.step, self.step)

    def bounded(self, largest: int, what: str = "the length of the series") -> Self:
        """Return the law restricted to lengths of at most ``largest``, with probabilities that sum to one.

        Parameters
        ----------
        largest : int
            Length of the series, for instance the number of rows for conjugate gradients.
        what : str
            Meaning of ``largest``, for the error message.

        Raises
        ------
        InvalidInputError
            If the smallest length, or an explicit maximum, exceeds it.
        """
        name = type(self).__name__
        for label, value in (("minimum", self.minimum), ("maximum", self.maximum)):
            if value is not None and value > largest:
                raise InvalidInputError(
                    f"{label} of {name} must be at most {what}, {largest}; got {value}. Choose a smaller one, or leave "
                    "maximum None."
                )
        return self if self.maximum is not None else replace(self, maximum=largest)  # type: ignore[type-var]

    # ------------------------------------------------------------ probabilities

    def survival(self, j: int) -> float:
        """Return ``P(J >= j)``, which is 1 up to the smallest length and 0 beyond the largest."""
        index = -((self.minimum - j) // self.step)  # the next support point at or above j
        if index <= 0:
            return 1.0
        n_points = self.n_points
        return 0.0 if n_points is not None and index >= n_points else self._tail(index)

    def probability(self, j: int) -> float:
        """Return ``P(J = j)``."""
        index, remainder = divmod(j - self.minimum, self.step)
        n_points = self.n_points
        if remainder or index < 0 or (n_points is not None and index >= n_points):
            return 0.0
        return self._mass(index)

    @property
    def mean(self) -> float:
        """Expected length."""
        return self.minimum + self.step * self._moments()[0]

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the length."""
        return self.step * math.sqrt(max(self._moments()[1], 0.0))

    def expected_longest(self, draws: int = 2) -> float:
        """Return the mean of the longest of several independent lengths, the cost of a run that serves all of them."""
        return _expected_longest(self, draws)

    def sample(self, generator: torch.Generator) -> int:
        """Return a random length."""
        # 1 - U is never zero, so J is the largest length whose survival probability is at least that.
        uniform = 1.0 - float(torch.rand((), generator=generator, dtype=torch.float64))
        return self.minimum + self.step * self._index(uniform)

    def _index(self, level: float) -> int:
        """Return the largest index whose tail is at least ``level``, by bisection."""
        low, high = 0, self._require_points() - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._tail(middle) >= level else (low, middle - 1)
        return low

    # -------------------------------------------------------------------- checks

    def _require_points(self) -> int:
        n_points = self.n_points
        if n_points is None:
            msg = f"{type(self).__name__} needs a maximum before it has probabilities; give one, or call bounded()."
            raise InvalidInputError(msg)
        return n_points

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.maximum is not None and self.maximum < self.minimum:
            raise InvalidInputError(
                f"maximum of {name} must be at least its smallest length, {self.minimum}; got {self.maximum}: there is "
                "no length left."
            )


@lru_cache(maxsize=64)
def _expected_longest(law: Distribution, draws: int) -> float:
    """Return ``sum_j P(max >= j)``; the sum ends when further terms no longer change it."""
    total, j = float(law.minimum), law.minimum + law.step
    while True:
        tail = law.survival(j)
        if draws * tail * (j + law.step) < 1e-15 * total:
            return total
        total += law.step * (1 - (1 - tail) ** draws)
        j += law.step
