"""Ctrl-C in a fit: the first one ends the learning, a second one ends the fit at once.

::

    with interruptible() as interruption:
        try:
            ...                     # learning: `keep` once there is something to keep, `check` at every large product
        except Interrupted:
            ...                     # go on with the best hyperparameters so far
        interruption.learning = False
        ...                         # the last solve, which a first Ctrl-C does not stop

The signal handler does no more than set a flag: an exception out of nowhere could leave an objective half changed. The
flag is looked at where stopping is safe, which is before every evaluation and every product with a large matrix. As
long as there is nothing to keep, Ctrl-C is what it always is.

The handler is installed in the main thread alone (Python knows no other way), and only in the place of Python's own: a
program, a notebook server or an event loop with a handler of its own keeps it, and its `KeyboardInterrupt` ends the fit
as ever. What was there before is put back at the end of the fit, and by the second Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType


class Interrupted(BaseException):
    """Ends the learning of a fit. It never leaves `gigagp.learning`; no handler of errors shall catch it before."""


class Interruption:
    """What Ctrl-C means to a fit at the moment.

    Attributes
    ----------
    requested : bool
        Whether the first Ctrl-C has come.
    cut : bool
        Whether something was left undone because of it.
    learning : bool
        Whether `check` may end what is going on.
    """

    def __init__(self) -> None:
        self.requested = self.cut = False
        self.learning = True
        self._keeps = False

    def keep(self) -> None:
        """Note that the fit has something to keep from now on."""
        self._keeps = True

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take note of a first signal; do as Python does at a second, or where there is nothing to keep."""
        if self._keeps and not self.requested:
            self.requested = True
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever happens from here on, it is back
        signal.default_int_handler(number, frame)


_current: ContextVar[Interruption | None] = ContextVar("gigagp_interruption", default=None)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let the first Ctrl-C set a flag while the block runs."""
    interruption = Interruption()
    token = _current.set(interruption)
    owns = threading.current_thread() is threading.main_thread()
    owns = owns and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handler = interruption.handle  # one object: every look at a method makes another
    try:
        if owns:
            signal.signal(signal.SIGINT, handler)
        yield interruption
    finally:
        if owns and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _current.reset(token)


def keep() -> None:
    """Note that the fit in this thread, if there is one, has something to keep from now on."""
    interruption = _current.get()
    if interruption is not None:
        interruption.keep()


def is_pending() -> bool:
    """Whether `check` would raise."""
    interruption = _current.get()
    return interruption is not None and interruption.requested and interruption.learning


def check() -> None:
    """Raise `Interrupted` where Ctrl-C has asked for the end of the learning that is going on in this thread."""
    if is_pending():
        interruption = _current.get()
        assert interruption is not None
        interruption.cut = True
        raise Interrupted


@contextmanager
def asked_between_steps() -> Iterator[Interruption]:
    """Keep `check` from raising in the block: it moves numbers in place, and looks at ``requested`` by itself."""
    interruption = _current.get() or Interruption()
    before, interruption.learning = interruption.learning, False
    try:
        yield interruption
    finally:
        interruption.learning = before
