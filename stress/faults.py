"""Artificial faults: the k-th write fails, the k-th large allocation fails, or a disk is full."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import pathlib
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

#: Smallest number of bytes of an allocation that counts; tables here are tiny.
_LARGE = 256


class Fault:
    """Counts calls and decides which of them fail.

    Parameters
    ----------
    first : int
        Number of the first call that fails, from 1; 0: no call fails.
    stays : bool
        Whether all later calls fail too (a full disk), or only the first.
    """

    def __init__(self, first: int, *, stays: bool) -> None:
        self.first, self.stays, self.calls = first, stays, 0

    @property
    def struck(self) -> bool:
        """Whether a call has failed."""
        return 0 < self.first <= self.calls

    def strikes(self) -> bool:
        """Count a call; return whether it fails."""
        self.calls += 1
        return self.calls == self.first or (self.stays and 0 < self.first < self.calls)


@contextmanager
def failing_writes(fault: Fault, code: int = errno.ENOSPC) -> Iterator[None]:
    """Make file-system writes fail: opening for writing, creating, flushing, renaming, and those of safetensors."""
    import safetensors.torch

    def guarded(
        original: Callable[..., Any], is_write: Callable[..., bool] = lambda *_, **__: True
    ) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if is_write(*arguments, **named) and fault.strikes():
                raise OSError(code, os.strerror(code), *([str(arguments[0])] if arguments else []))
            return original(*arguments, **named)

        return call

    def opens_to_write(path: Any, mode: Any = "r", *arguments: Any, **named: Any) -> bool:
        return isinstance(mode, str) and any(letter in mode for letter in "wax+")

    def flags_to_write(path: Any, flags: int = 0, *arguments: Any, **named: Any) -> bool:
        return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    patches: list[tuple[Any, str, Callable[..., Any]]] = [
        (os, "open", guarded(os.open, flags_to_write)),
        (os, "replace", guarded(os.replace)),
        (os, "rename", guarded(os.rename)),
        (os, "fsync", guarded(os.fsync)),
        (os, "write", guarded(os.write)),
        (io, "open", guarded(io.open, opens_to_write)),
        (__import__("builtins"), "open", guarded(open, opens_to_write)),
        (pathlib.Path, "touch", guarded(pathlib.Path.touch)),
        (safetensors.torch, "save_file", guarded(safetensors.torch.save_file)),
    ]
    with _patched(patches):
        yield


@contextmanager
def _patched(patches: list[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class FailingAllocations(TorchDispatchMode):
    """Makes operations whose result needs new memory fail in the way torch does if there is none.

    Parameters
    ----------
    fault : Fault
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        """Run one operation, or raise the error."""
        found = function(*arguments, **(named or {}))
        for tensor in found if isinstance(found, list | tuple) else (found,):
            size = getattr(tensor, "nbytes", 0) if hasattr(tensor, "untyped_storage") else 0
            if size >= _LARGE and not function._schema.name.endswith("_") and self.fault.strikes():
                msg = (
                    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                    f"tried to allocate {size} bytes. Error code 12 (Cannot allocate memory)"
                )
                raise RuntimeError(msg)
        return found


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Limit the size of this process's files in bytes; a write beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a file system of ``size`` bytes at a folder; yields False if this user may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()) == 0
    try:
        yield mounted
    finally:
        if mounted:
            with contextlib.suppress(OSError):
                libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH
