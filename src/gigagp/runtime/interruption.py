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
from collections.abc import Iterator
from contextlib import contextmanager

from gigagp.runtime.run import Interruption, current_run, running


class Interrupted(BaseException):
    """The exception that ends the learning of a fit, or what comes after it.

    Only `gigagp.estimators.fitting` and optimizers that go on with other rows may catch it.
    """


@contextmanager
def interruptible(deadline: float = math.inf, *, handles: bool = True) -> Iterator[Interruption]:
    """Let the first Ctrl-C only set a flag while the block runs, and the block know when it is to end.

    Without ``handles`` Ctrl-C has its usual effect.
    """
    interruption = Interruption(deadline)
    owns = handles and threading.current_thread() is threading.main_thread()
    owns = owns and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handler = interruption.handle  # keep one object: each attribute access creates a new one
    try:
        if owns:
            signal.signal(signal.SIGINT, handler)
        with running(interruption=interruption):
            yield interruption
    finally:
        if owns and signal.getsignal(signal.SIGINT) is handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def keep() -> None:
    """Record that the fit in this thread, if there is one, now has a result to keep."""
    if (interruption := current_run().interruption) is not None:
        interruption.keep()


def is_pending() -> bool:
    """Whether `check` would raise."""
    interruption = current_run().interruption
    return interruption is not None and interruption.learning and interruption.wanted


def check() -> None:
    """Raise `Interrupted` if Ctrl-C or the deadline asks for the end of the learning in this thread."""
    interruption = current_run().interruption
    if interruption is not None and interruption.learning and interruption.wanted:
        interruption.cut = True
        raise Interrupted


def was_cut() -> bool:
    """Whether the fit in this thread has left learning undone, because of Ctrl-C or the deadline."""
    interruption = current_run().interruption
    return interruption is not None and interruption.cut


def seconds_left() -> float:
    """Return the seconds until the deadline of the fit in this thread; infinity without one."""
    return current_run().seconds_left()


def reserve(seconds: float, *, at_least: bool = False) -> None:
    """Keep this many seconds before the deadline for what follows the learning; ``at_least`` keeps more."""
    if (interruption := current_run().interruption) is not None:
        interruption.reserve = max(seconds, interruption.reserve) if at_least else seconds


@contextmanager
def ending_earlier(seconds: float) -> Iterator[None]:
    """Move the deadline of the fit in this thread forward by this many seconds during a block."""
    interruption = current_run().interruption or Interruption()
    interruption.deadline -= seconds
    try:
        yield
    finally:
        interruption.deadline += seconds


@contextmanager
def asked_between_steps() -> Iterator[Interruption]:
    """Keep `check` from raising in a block that modifies numbers in place and checks ``wanted`` itself."""
    interruption = current_run().interruption or Interruption()
    before, interruption.learning = interruption.learning, False
    try:
        yield interruption
    finally:
        interruption.learning = before
