"""Ctrl-C in the command line: it ends the process at once until a command begins, and raises from then on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

__all__ = ["EXIT_INTERRUPTED", "interruptible", "leaving_at_once"]

#: The exit code by which shells report a program that was stopped by Ctrl-C.
EXIT_INTERRUPTED = 130

_P = ParamSpec("_P")
_T = TypeVar("_T")


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process with one line until a command begins.

    Imports and the parsing of the arguments take a second or more and have no results to lose. An exception there could
    appear in the middle of an import, or in compiled code that prints and ignores it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        _raise_again()


def interruptible(command: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a command in which Ctrl-C raises `KeyboardInterrupt`, so that it can keep what it has."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        _raise_again()
        return command(*args, **kwargs)

    return run


def _raise_again() -> None:
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"gigagp: stopped.\n")
    os._exit(EXIT_INTERRUPTED)
