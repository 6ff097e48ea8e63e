"""SIGTERM during a fit with a checkpoint: the file is written first, and then the process ends as usual.

Schedulers send SIGTERM some seconds before they kill a process. Checkpoints are written once a minute, so without this
module up to a minute of work would be lost. The handler sets a flag. The checkpoint is then written at the next
opportunity, after the current evaluation or chunk of rows. A second SIGTERM ends the process at once, and so does the
first one as long as there is nothing new to write.

As with `gigagp.runtime.interruption`, programs with their own handler are not affected.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gigagp.runtime.run import Termination, current_run, end, running


@contextmanager
def written_first(has_checkpoint: bool) -> Iterator[None]:
    """Let SIGTERM wait for the next write of a checkpoint while the block runs, after its first `can_wait`."""
    main = threading.current_thread() is threading.main_thread()
    if not (has_checkpoint and main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL):
        yield
        return
    state = Termination()
    handler = state.handle
    signal.signal(signal.SIGTERM, handler)
    try:
        with running(termination=state):
            yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if state.requested:  # the block failed before it could write
            end()


def can_wait() -> bool:
    """Record that a write will soon follow a SIGTERM, and return whether one has been received."""
    state = current_run().termination
    if state is None:
        return False
    state.waits = True
    return state.requested


def after_write() -> None:
    """End the process if SIGTERM has been received, since the checkpoint has been written."""
    state = current_run().termination
    if state is not None and state.requested:
        end()


def write_last(write: Callable[[], object]) -> None:
    """Write the last checkpoint of a fit; after that, SIGTERM ends the process at once.

    A SIGTERM during the write waits for it, since this may be the only write of a short fit.
    """
    write()
    state = current_run().termination
    if state is not None:
        state.waits = False
    after_write()
