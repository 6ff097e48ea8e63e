"""Ctrl-C during a fit: the first one ends the learning, and a second one ends the fit at once.

::

    with interruptible() as interruption:
        try:
            ...                     # learning: `keep` once there is a result, `check` at every large product
        except Interrupted:
            ...                     # continue with the best hyperparameters so far
        interruption.learning = False
        ...                         # the last solve, which a first Ctrl-C does not stop

The signal handler only sets a flag, because an exception at an arbitrary point could leave an objective in an
inconsistent state. The flag is checked where stopping is safe: before every evaluation and every product with a large
matrix. As long as there is no result to keep, Ctrl-C has its usual effect.

The handler is installed only in the main thread, as Python requires, and only if it replaces Python's own handler. A
program, a notebook server or an event loop keeps its own handler, whose `KeyboardInterrupt` ends the fit as usual. The
previous handler is restored at the end of the fit and by the second Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Interrupted(BaseException):
    """The exception that ends the learning of a fit. Only `gigagp.fitting` may catch it."""


class Interruption:
    """The present effect of Ctrl-C on a fit.

    Attributes
    ----------
    requested : bool
        Whether Ctrl-C has been pressed once.
    cut : bool
        Whether work was left undone because of it.
    learning : bool
        Whether `check` may end the current work.
    """

    def __init__(self) -> None:
        self.requested = self.cut = False
        self.learning = True
        self._keeps = False

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
def interruptible() -> Iterator[Interruption]:
    """Let the first Ctrl-C only set a flag while the block runs."""
    interruption = Interruption()
    token = _current.set(interruption)
    owns = threading.current_thread() is threading.main_thread()
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
    return interruption is not None and interruption.requested and interruption.learning


def check() -> None:
    """Raise `Interrupted` if Ctrl-C has requested the end of the learning in this thread."""
    if is_pending():
        interruption = _current.get()
        assert interruption is not None
        interruption.cut = True
        raise Interrupted


@contextmanager
def asked_between_steps() -> Iterator[Interruption]:
    """Keep `check` from raising in a block that modifies numbers in place and checks ``requested`` itself."""
    interruption = _current.get() or Interruption()
    before, interruption.learning = interruption.learning, False
    try:
        yield interruption
    finally:
        interruption.learning = before
