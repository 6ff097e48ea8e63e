"""What a computation runs in: what it reports to, when it has to end, who shares it, and where its state is kept.

`current_run` returns it for the work in this thread, and `running` changes it within a block. It is the only ambient
variable of the package. Loops of solvers get it as an argument (`Solver.prepare`). The modules `interruption`,
`termination`, `processes` and `progress` say what its parts are for.
"""

from __future__ import annotations

import math
import os
import signal
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

from torch import Tensor

from gigagp import errors
from gigagp.errors import GigaGPError, GigaGPWarning
from gigagp.runtime.group import Processes


class Meter(ABC):
    """Interface for reports of long work. A context manager, and inside of its block the meter that `current` returns.

    Your own class needs `start`, `step` and `close`; the other methods lead to these or do nothing.
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
        run = _run.get()
        _run.set(replace(run, meters=(*run.meters, self)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = _run.get()
        _run.set(replace(run, meters=run.meters[:-1]))
        self.close()


class NoProgress(Meter):
    """A meter that shows nothing."""

    def start(self, total: int | None, title: str) -> None: ...

    def step(self, **fields: object) -> None: ...

    def close(self) -> None: ...


class Interruption:
    """The present effect of Ctrl-C and of a time budget on a fit."""

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline  # value of ``time.monotonic()``
        self.requested = False  # whether Ctrl-C has been pressed once
        self.cut = False  # whether work was left undone because of it, or because of the deadline
        self.learning = True  # whether `check` may end the current work
        self.reserve = 0.0  # seconds that what follows the learning is expected to take
        self._keeps = False

    @property
    def wanted(self) -> bool:
        """Whether learning is to end, because of Ctrl-C or for lack of time."""
        return self.requested or (self._keeps and time.monotonic() + self.reserve >= self.deadline)

    def keep(self) -> None:
        """Record that the fit now has a result to keep."""
        self._keeps = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a first signal; act like Python on a second one, or if there is no result to keep."""
        if self._keeps and not self.requested:
            self.requested = True
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)  # restored for any later signal
        signal.default_int_handler(number, frame)


class Termination:
    """Whether SIGTERM has been received, and whether it can wait for a write."""

    def __init__(self) -> None:
        self.requested = self.waits = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record a first signal if it can wait; end the process otherwise."""
        if self.waits and not self.requested:
            self.requested = True
        else:
            end()


def end() -> None:
    """End this process in the same way as SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


class SolveStates(Protocol):
    """Where the state of a long solve is kept; see `gigagp.storage.kept_solves.SolveFile`."""

    def key(self, tensors: list[Tensor], settings: str) -> str:
        """Return what a solve is known by."""

    def state_of(self, key: str) -> dict[str, Tensor] | None:
        """Return the state of a solve, if there is one."""

    def keep(self, key: str, state: Callable[[], dict[str, Tensor]]) -> None:
        """Write the state of a solve now and then."""


@dataclass(frozen=True)
class Run:
    """What the work at hand runs in."""

    meters: tuple[Meter, ...] = ()  # whose blocks are open, the innermost last
    interruption: Interruption | None = None  # the effect of Ctrl-C and of a time budget
    termination: Termination | None = None  # the effect of SIGTERM, where there is something to write first
    processes: Processes | None = None  # that share the work
    solves: SolveStates | None = None  # where long solves keep their state
    subject: str = ""  # what the work is about, for messages; empty if that goes without saying
    told: list[str] | None = None  # warnings of the fit at hand

    @property
    def meter(self) -> Meter:
        """The meter to report to."""
        return self.meters[-1] if self.meters else _NOTHING

    def seconds_left(self) -> float:
        """Return the seconds until the deadline; infinity without one."""
        return math.inf if self.interruption is None else self.interruption.deadline - time.monotonic()


_NOTHING = NoProgress()
#: A new thread begins with nothing.
_run: ContextVar[Run] = ContextVar("gigagp_run", default=Run())  # noqa: B039  (it is frozen)


def current_run() -> Run:
    """Return what the work in this thread runs in."""
    return _run.get()


@contextmanager
def running(**changes: Any) -> Iterator[None]:
    """Change some attributes of the `Run` within a block."""
    token = _run.set(replace(_run.get(), **changes))
    try:
        yield
    finally:
        _run.reset(token)


@contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begin messages of errors and warnings in the block with what they are about, such as one of several outputs."""
    try:
        with running(subject=subject):
            yield
    except GigaGPError as error:
        if error.args:
            error.args = (f"{subject}: {error.args[0]}", *error.args[1:])
        raise


@contextmanager
def unshown() -> Iterator[None]:
    """Issue no warning of this package within the block, which tries a candidate that may not be chosen."""
    with warnings.catch_warnings(), running(told=None):
        warnings.simplefilter("ignore", GigaGPWarning)
        yield


def _note(message: str) -> None:
    told = _run.get().told
    if told is not None and message not in told:
        told.append(message)


errors.subject, errors.note = lambda: _run.get().subject, _note
