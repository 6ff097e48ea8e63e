"""The shapes of tiles that were quickest on a GPU, kept in a file from one process to the next."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

#: Rows, columns and warps of a tile.
Shape = tuple[int, int, int]


def default_path() -> Path:
    """Return the file of this user, ``gigagp/tiles-1.jsonl`` in the folder for caches.

    Another number in the name makes older files void, once entries mean something else.
    """
    folder = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(folder) / "gigagp" / "tiles-1.jsonl"


class TileMemory:
    """Shapes of tiles by what they were measured for.

    The file only saves measurements. Each line is one of them, and the last line of a key counts. Lines are appended,
    so that processes which write at the same time do not forget each other's. What is no such line, as where a process
    was killed, is passed over. Where nothing can be written, the next process measures again.

    Parameters
    ----------
    path : Path or None
        None: keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, key: str) -> Shape | None:
        """Return the shape of a key, or None; the caller knows which shapes there are."""
        found: Shape | None = None
        for line in self._lines():
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, list) and len(entry) == 2 and entry[0] == key and _is_shape(entry[1]):
                    found = (entry[1][0], entry[1][1], entry[1][2])
        return found

    def put(self, key: str, shape: Shape) -> None:
        """Keep the shape of a key."""
        if self._path is None:
            return
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:  # in one write, behind whatever a killed process has left
                file.write(f"\n{json.dumps([key, shape])}".encode())

    def _lines(self) -> list[bytes]:
        if self._path is None:
            return []
        with suppress(OSError):
            return self._path.read_bytes().splitlines()
        return []


def _is_shape(given: object) -> bool:
    return isinstance(given, list) and len(given) == 3 and all(type(one) is int for one in given)
