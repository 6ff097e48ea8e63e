"""The meter of the work that is going on, and what helps to report to it; `gigagp.runtime.run` has the interface."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from gigagp.runtime.run import Meter, current_run


class Nested(Meter):
    """The meter of work inside of other work: its phases are parts of a step of that work."""

    def __init__(self, outer: Meter) -> None:
        self._outer = outer
        self._level = outer.inside()

    def start(self, total: int | None, title: str) -> None:
        self._outer.start(total, title)

    def phase(self, title: str, total: int | None = None, **details: Any) -> None:
        self._outer.phase(title, total, **details)

    def step(self, **fields: object) -> None:
        self._outer.step(**fields)

    def reached(self, done: int, **fields: object) -> None:
        self._outer.reached(done, **fields)

    def within(self, share: float) -> None:
        self._outer.within(share)

    def towards(self, share: float) -> None:
        self._outer.towards(share)

    def inside(self) -> AbstractContextManager[None]:
        return self._outer.inside()

    def close(self) -> None:
        """Do nothing: the outer work goes on."""

    def __enter__(self) -> Self:
        self._level.__enter__()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._level.__exit__(None, None, None)


def current() -> Meter:
    """Return the meter of the work that goes on in this thread; one that shows nothing if there is none."""
    return current_run().meter


class Approach:
    """How far a falling number is on its way to a goal, if it falls by about the same factor in every step."""

    def __init__(self, goal: float = 1.0) -> None:
        self._goal, self._first, self._share = goal, math.nan, 0.0

    def share(self, value: float, goal: float | None = None) -> float:
        """Return the largest share of the way so far, from 0 to 1; the first number is the beginning of the way."""
        goal = self._goal if goal is None else goal
        if not (0 < value < math.inf and 0 < goal < math.inf):
            return self._share
        if math.isnan(self._first):
            self._first = value
        if value <= goal:
            self._share = 1.0
        elif self._first > value:
            self._share = max(self._share, math.log(self._first / value) / math.log(self._first / goal))
        return self._share
