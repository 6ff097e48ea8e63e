"""The interface that work reports to, and the meter of the work that is going on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Self

#: Meters whose blocks are open in this thread, the innermost last. A new thread begins without any.
_open: ContextVar[tuple[Meter, ...]] = ContextVar("gigagp_progress", default=())


class Meter(ABC):
    """Interface for reports of long work. A context manager, and inside of its block the meter that `current` returns.

    A class of your own needs `start`, `step` and `close`; the other methods lead to these or do nothing.
    """

    @abstractmethod
    def start(self, total: int | None, title: str) -> None:
        """Begin a phase of ``total`` steps (None: unknown) with the name ``title``."""

    @abstractmethod
    def step(self, **fields: object) -> None:
        """Report one completed step; ``fields`` are its quantities, such as ``objective`` or ``residual``."""

    @abstractmethod
    def close(self) -> None:
        """End the work."""

    def phase(
        self,
        title: str,
        total: int | None = None,
        *,
        unit: str = "step",
        most: int | None = None,
        then: float | None = None,
    ) -> None:
        """Begin a phase; the phase before it has ended.

        Parameters
        ----------
        title : str
            What is done, in a user's words.
        total : int or None
            Number of steps; None: unknown.
        unit : str
            What a step is, in the singular.
        most : int or None
            Largest number of steps, if their number is unknown.
        then : float or None
            What follows the phase until the end of the work, in steps of this phase; None: unknown.
        """
        self.start(total, title)

    def reached(self, done: int, **fields: object) -> None:
        """Report that this many steps are done; for steps of unequal size, such as chunks of rows."""
        self.step(done=f"{done:,}", **fields)

    def within(self, share: float) -> None:
        """Report the share of the present step that is done."""
        return

    def towards(self, share: float) -> None:
        """Report the share of the phase that is done, where its number of steps is unknown (`Approach`)."""
        return

    def expect(self, seconds: float) -> None:
        """Report a forecast of the seconds until the end of the work."""
        return

    def remark(self, words: str) -> None:
        """Add something to what is said at the end of the work."""
        return

    def inside(self) -> AbstractContextManager[None]:
        """Take phases that begin in the block for parts of the present step."""
        return nullcontext()

    def __enter__(self) -> Self:
        _open.set((*_open.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.set(_open.get()[:-1])
        self.close()


class NoProgress(Meter):
    """A meter that shows nothing."""

    def start(self, total: int | None, title: str) -> None:
        """Do nothing."""

    def step(self, **fields: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Nested(Meter):
    """The meter of work inside of other work: its phases are parts of a step of that work.

    Parameters
    ----------
    outer : Meter
        Meter of the other work.
    """

    def __init__(self, outer: Meter) -> None:
        self._outer = outer
        self._level = outer.inside()

    def start(self, total: int | None, title: str) -> None:
        self._outer.start(total, title)

    def phase(
        self,
        title: str,
        total: int | None = None,
        *,
        unit: str = "step",
        most: int | None = None,
        then: float | None = None,
    ) -> None:
        self._outer.phase(title, total, unit=unit, most=most, then=then)

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


_NOTHING = NoProgress()


def current() -> Meter:
    """Return the meter of the work that goes on in this thread; one that shows nothing if there is none."""
    opened = _open.get()
    return opened[-1] if opened else _NOTHING


def is_inside() -> bool:
    """Whether there is a meter of work that goes on in this thread."""
    return bool(_open.get())


class Approach:
    """How far a falling number is on its way to a goal, if it falls by about the same factor in every step.

    Parameters
    ----------
    goal : float
        The number at which the work ends.
    """

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
