"""Random choices of a case, which depend only on seed, area and number, so that any case can be repeated alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Draw:
    """Random choices of one case.

    Parameters
    ----------
    area : str
    seed, case : int
    """

    def __init__(self, area: str, seed: int, case: int) -> None:
        self.area, self.seed, self.case = area, seed, case
        self.rng = np.random.default_rng([seed, zlib.crc32(area.encode()), case])
        #: descriptions of the choices, printed with a failure
        self.notes: list[str] = []

    def note(self, text: object) -> None:
        """Add a line to the report of a failure."""
        self.notes.append(str(text))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.rng.random() < probability)

    def whole(self, low: int, high: int) -> int:
        """Return an int from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def real(self, low: float, high: float) -> float:
        """Return a uniform number."""
        return float(self.rng.uniform(low, high))

    def log_real(self, low: float, high: float) -> float:
        """Return a number whose logarithm is uniform."""
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of the options with equal probabilities."""
        return options[self.whole(0, len(options) - 1)]

    def weighted(self, options: Mapping[T, float]) -> T:
        """Return one of the options with probabilities proportional to the weights."""
        weights = np.array(list(options.values()), dtype=float)
        return list(options)[int(self.rng.choice(len(weights), p=weights / weights.sum()))]

    def some_bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self.rng.integers(0, 256, count, dtype=np.uint8).tobytes()
