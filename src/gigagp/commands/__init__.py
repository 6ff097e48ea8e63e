"""The command line: ``gigagp fit``, ``predict``, ``evaluate``, ``plot``, ``demo``, ``diagnose``.

An error is one line on standard error with exit code 2, without a traceback. Ctrl-C exits with 130. If the reader of a
pipe closes it (``| head``), the command ends silently with 141, as shell commands do. If standard output is closed, the
command does its work and shows nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

__all__ = ["main"]

#: The exit code by which shells report a program that was stopped by Ctrl-C.
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see `gigagp.commands.app.main`."""
    with _leaving_at_once():  # the imports take a second or more, without results to lose
        from gigagp.commands import app
    app.main(arguments)


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process with one line; as an exception it would appear in the middle of an import."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"gigagp: stopped.\n")
    os._exit(EXIT_INTERRUPTED)
