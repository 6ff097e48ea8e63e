"""The shapes of tiles that were quickest on a GPU, kept in a file from one process to the next."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from gigagp.storage.files import replacing

#: Rows, columns and warps of a tile.
Shape = tuple[int, int, int]
#: Says what a file is, and what its entries mean; another number makes older files void.
_FORMAT = "gigagp tiles 1"


def default_path() -> Path:
    """Return the file of this user, ``gigagp/tiles.json`` in the folder for caches."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(folder) / "gigagp" / "tiles.json"


class TileMemory:
    """Shapes of tiles by what they were measured for.

    The file only saves measurements. One that cannot be read, or has something else in it, counts as empty, and where
    nothing can be written, the next process measures again. It is replaced as a whole, so that a killed process leaves
    the old one; of two processes that write at the same time one is forgotten.

    Parameters
    ----------
    path : Path or None
        None: keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def get(self, key: str) -> Shape | None:
        """Return the shape of a key, or None; the caller knows which shapes there are."""
        return self._read().get(key)

    def put(self, key: str, shape: Shape) -> None:
        """Keep the shape of a key."""
        if self._path is None:
            return
        known = {"format": _FORMAT, "tiles": {**self._read(), key: shape}}
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                file.write(json.dumps(known, indent=1).encode())

    def _read(self) -> dict[str, Shape]:
        if self._path is None:
            return {}
        try:
            held = json.loads(self._path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not (isinstance(held, dict) and held.get("format") == _FORMAT and isinstance(held.get("tiles"), dict)):
            return {}
        return {key: (one[0], one[1], one[2]) for key, one in held["tiles"].items() if _is_shape(one)}


def _is_shape(given: object) -> bool:
    return isinstance(given, list) and len(given) == 3 and all(type(one) is int for one in given)
