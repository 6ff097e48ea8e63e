"""Writing a file so that nobody ever sees half of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to, and move it over ``path`` once it is complete and on disk.

    A crash, a full disk or an exception in the block leaves what was at ``path`` before, whole. A symbolic link is
    followed: what it points to is replaced, the link stays.

    Parameters
    ----------
    path : str or path
        The file to write. Its folder has to exist.

    Yields
    ------
    Path
        Where the block writes. It has the same suffix as ``path``.

    Raises
    ------
    OSError
        If the folder is missing or not writable, or the disk is full.
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        msg = f"{os.fspath(path)} is a folder; a file name is needed."
        raise IsADirectoryError(msg)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}-{secrets.token_hex(4)}{target.suffix}")
    try:
        temporary.touch()  # with the permissions that a new file has here; some writers would make it private
        yield temporary
        _flush(temporary)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush(target.parent)


def _flush(path: Path) -> None:
    """Wait until the file, or the entries of the folder, are on disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open a folder; there the rename itself is all one gets
        if path.is_dir():
            return
        raise
    try:
        with suppress(OSError):  # some network file systems refuse fsync
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
