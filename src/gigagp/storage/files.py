"""Atomic writing of files, so that no reader ever sees an incomplete one."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gigagp.errors import InvalidInputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Error codes of fsync on file systems that do not support it.
_NO_FSYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def written_file(path: str | os.PathLike[str]) -> Path:
    """Return the file that a write to ``path`` creates or replaces; symbolic links are followed.

    It is a regular file or an unused name; a link to an unused name creates that file. Anything else, such as a folder,
    a device, a pipe, a socket or a loop of links, raises an `OSError`, because replacing it would destroy what other
    programs need.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InvalidInputError(f"path must be a file name, as a string or a path; got {path!r}.")
    if "\0" in os.fspath(path):
        raise OSError(errno.EINVAL, "a file name cannot contain a NUL character")
    try:
        mode = os.stat(path).st_mode  # a loop of links raises its own OSError
    except FileNotFoundError:
        target = Path(os.path.realpath(path))
        if target.is_dir():  # the empty name
            raise IsADirectoryError(errno.EISDIR, "it is a folder; a file name is needed") from None
        return target
    if stat.S_ISREG(mode):
        return Path(os.path.realpath(path))
    kind = next((name for test, name in _KINDS if test(mode)), "not a regular file")
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, f"it is {kind}; a file name is needed")


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise `InvalidInputError` unless ``path`` can be a file in an existing, writable folder.

    A folder, a device, a pipe, a socket or a loop of links is rejected; a link to a regular file stands for that file.
    """
    try:
        folder = written_file(path).parent
    except OSError as error:
        raise InvalidInputError(f"{os.fspath(path)!r} cannot be written: {error.strerror}.") from error
    if not folder.is_dir():
        msg = f"{path}: the folder {folder} does not exist."
    elif not os.access(folder, os.W_OK):
        msg = f"{path}: the folder {folder} cannot be written to."
    else:
        return
    raise InvalidInputError(msg)


def check_apart(path: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """Raise `InvalidInputError` if a file to write is one of the files to read, which would be lost."""
    for one in inputs:
        if os.path.exists(path) and os.path.exists(one) and os.path.samefile(path, one):
            raise InvalidInputError(f"{path} is read by this command, and would be replaced. Give --out another name.")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file for writing, and replace ``path`` by it once it is complete and on disk.

    After a crash, a kill, a full disk or an exception in the block, the previous file at ``path`` is intact. A symbolic
    link is followed: its target is replaced and the link remains. A new file gets the default permissions; a replaced
    file keeps its own. An `OSError` says why the file cannot be written, as for `written_file`.

    On Linux the new file has no name until it is complete, so a kill leaves nothing behind. Elsewhere, and in the
    instant in which the file has a temporary name, a kill leaves a hidden temporary file beside ``path``; the next
    write to ``path`` removes it.
    """
    target = written_file(path)
    _sweep(target)
    descriptor, name = _new_file(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            with suppress(FileNotFoundError):
                if hasattr(os, "fchmod"):
                    os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            _flush(descriptor)
            if fcntl is not None:  # do this while the file is open and its lock prevents removal
                name = _publish(descriptor, name, target)
        if name is not None:
            os.replace(name, target)
            name = None
    finally:
        if name is not None:
            with suppress(OSError):
                name.unlink()
    with suppress(OSError):  # Windows cannot open a folder; the rename has to suffice there
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            _flush(folder)
        finally:
            os.close(folder)


def _new_file(target: Path) -> tuple[int, Path | None]:
    """Return the descriptor of a new file on the disk of ``target``, and its name, or None if it has none yet."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not all file systems support nameless files
            descriptor = os.open(target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
            if os.path.exists(f"/proc/self/fd/{descriptor}"):
                _lock(descriptor)
                return descriptor, None
            os.close(descriptor)
    while True:
        name = _temporary_name(target)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        _lock(descriptor)
        if name.exists():  # another process may have removed it before the lock
            return descriptor, name
        os.close(descriptor)


def _publish(descriptor: int, name: Path | None, target: Path) -> Path | None:
    """Move a complete file to ``target``; return a temporary name that remains to be removed, or None."""
    if name is None:
        if not target.exists():
            with suppress(FileExistsError):
                _link(descriptor, target)
                return None
        name = _temporary_name(target)  # a link cannot replace a file, but a rename can
        _link(descriptor, name)
    try:
        os.replace(name, target)
    except BaseException:
        with suppress(OSError):
            name.unlink()
        raise
    return None


def _link(descriptor: int, name: Path) -> None:
    """Give a name to a nameless file."""
    folder = os.open(name.parent, os.O_RDONLY)
    try:
        # With a folder's descriptor, Python follows the link that /proc has for an open file.
        os.link(f"/proc/self/fd/{descriptor}", name, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _temporary_name(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}")


def _prefix(target: Path) -> str:
    # File names have at most 255 bytes.
    return f".{target.name.encode()[:200].decode(errors='ignore')}.writing-"


def _lock(descriptor: int) -> None:
    """Mark a file as being written, by a lock that ends with the process."""
    if fcntl is not None:
        with suppress(OSError):  # not all file systems support locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)


def _sweep(target: Path) -> None:
    """Remove temporary files for ``target`` whose writers have ended."""
    if fcntl is None or not target.parent.is_dir():
        return
    prefix = _prefix(target)
    with suppress(OSError):
        names = [entry.path for entry in os.scandir(target.parent) if entry.name.startswith(prefix)]
        for name in names:
            with suppress(OSError):  # BlockingIOError: the writer is still running
                descriptor = os.open(name, os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name)
                finally:
                    os.close(descriptor)


def _flush(descriptor: int) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:  # some network file systems do not support it
            raise
