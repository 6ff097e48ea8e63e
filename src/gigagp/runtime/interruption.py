"""The early end of a fit, by Ctrl-C or at the end of its time budget.

The first Ctrl-C ends the learning, and a second one ends the fit at once. A time budget ends the learning when what is
left of it is needed for the last solve.

::

    with interruptible() as interruption:
        try:
            ...                     # learning: `keep` once there is a result, `check` at every large product
        except Interrupted:
            ...                     # continue with the best hyperparameters so far
        interruption.learning = False
        ...                         # the last solve, which a first Ctrl-C does not stop, but the end of the budget does

The signal handler only sets a flag, because an exception at an arbitrary point could leave an objective in an
inconsistent state. The flag is checked where stopping is safe: before every evaluation and every product with a large
matrix. As long as there is no result to keep, Ctrl-C has its usual effect.

The handler is installed only in the main thread, as Python requires, and only if it replaces Python's own handler. A
program, a notebook server or an event loop keeps its own handler, whose `KeyboardInterrupt` ends the fit as usual. The
previous handler is restored at the end of the fit and by the second Ctrl-C.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Interrupted(BaseException):
    """The exception that ends the learning of a fit, or what comes after it.

    Only `gigagp.estimators.fitting`, `gigagp.estimators.fitting` and optimizers that go on with other rows may catch
    it.
    """


class Interruption:
    """The present effect of Ctrl-C and of a time budget on a fit.

    Parameters
    ----------
    deadline : float, default infinity
        Value of ``time.monotonic()`` at which the fit is to end.

    Attributes
    ----------
    requested : bool
        Whether Ctrl-C has been pressed once.
    cut : bool
        Whether work was left undone because of it, or because of the deadline.
    learning : bool
        Whether `check` may end the current work.
    reserve : float
        Seconds that what follows the learning is expected to take.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.requested = self.cut = False
        self.learning = True
        self.deadline, self.reserve = deadline, 0.0
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


_current: ContextVar[Interruption | None] = ContextVar("gigagp_interruption", default=None)


@contextmanager
def interruptible(deadline: float = math.inf, *, handles: bool = True) -> Iterator[Interruption]:
    """Let the first Ctrl-C only set a flag while the block runs, and the block know when it is to end.

    Without ``handles`` Ctrl-C has its usual effect.
    """
    interruption = Interruption(deadline)
    token = _current.set(interruption)
    owns = handles and threading.current_thread() is threading.main_thread()
    owns = owns and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handler = interruption.handle  # keep one object: each attribute access creates a new one
    try:
        if owns:
            signal.signal(signal.SIGINT, handler)
        yield interruption
    finally:
        if owns and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _current.reset(token)


def keep() -> None:
    """Record that the fit in this thread, if there is one, now has a result to keep."""
    interruption = _current.get()
    if interruption is not None:
        interruption.keep()


def is_pending() -> bool:
    """Whether `check` would raise."""
    interruption = _current.get()
    return interruption is not None and interruption.learning and interruption.wanted


def check() -> None:
    """Raise `Interrupted` if Ctrl-C or the deadline asks for the end of the learning in this thread."""
    if is_pending():
        interruption = _current.get()
        assert interruption is not None
        interruption.cut = True
        raise Interrupted


def was_cut() -> bool:
    """Whether the fit in this thread has left learning undone, because of Ctrl-C or the deadline."""
    interruption = _current.get()
    return interruption is not None and interruption.cut


def seconds_left() -> float:
    """Return the seconds until the deadline of the fit in this thread; infinity without one."""
    interruption = _current.get()
    return math.inf if interruption is None else interruption.deadline - time.monotonic()


def reserve(seconds: float, *, at_least: bool = False) -> None:
    """Keep this many seconds before the deadline for what follows the learning; ``at_least`` keeps more."""
    interruption = _current.get()
    if interruption is not None:
        interruption.reserve = max(seconds, interruption.reserve) if at_least else seconds


@contextmanager
def ending_earlier(seconds: float) -> Iterator[None]:
    """Move the deadline of the fit in this thread forward by this many seconds during a block."""
    interruption = _current.get() or Interruption()
    interruption.deadline -= seconds
    try:
        yield
    finally:
        interruption.deadline += seconds


@contextmanager
def asked_between_steps() -> Iterator[Interruption]:
    """Keep `check` from raising in a block that modifies numbers in place and checks ``wanted`` itself."""
    interruption = _current.get() or Interruption()
    before, interruption.learning = interruption.learning, False
    try:
        yield interruption
    finally:
        interruption.learning = before
