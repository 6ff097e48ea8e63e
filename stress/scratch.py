"""Temporary folders of cases, in memory if the machine has a file system for that."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stress.outcome import Lost

_MEMORY = "/dev/shm"


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield an empty folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="stress-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as name:
        yield Path(name)


def check_nothing_left(folder: Path, expected: set[str], what: str) -> None:
    """Raise `Lost` if a folder contains unexpected files."""
    found = {path.name for path in folder.iterdir()}
    if found - expected:
        raise Lost(f"files left behind {what}: {sorted(found - expected)}")
