"""The files of a table: one file, or all tables in a folder. A part that cannot be reached is an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gigagp.errors import InvalidInputError

#: Endings of Parquet files.
PARQUET = {".parquet", ".pq"}
#: Endings of delimited text in folders, and of its compression.
DELIMITED, COMPRESSED = {".csv", ".tsv"}, {".gz", ".bz2", ".zst", ".lz4"}


def table_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the files of a table: the file itself, or a folder's Parquet and CSV files at any depth, sorted by name.

    Links are followed. Hidden files, and those whose names begin with ``_``, are left out. A part that cannot be
    reached is an `InvalidInputError`, because the remaining files alone would be a different table.
    """
    path = checked_path(path)
    if not path.is_dir():
        return [path]
    found = sorted(file for file in _walk(path, ()) if is_part(file))
    for file in found:
        if not file.is_file():
            what = "is a broken link" if file.is_symlink() and not file.exists() else "is not a regular file"
            msg = f"{file} {what}. Repair or remove it: the rest of {path} would be a different table."
            raise InvalidInputError(msg)
    if not found:
        raise InvalidInputError(f"{path} is a folder without Parquet or CSV files (.parquet, .csv).")
    return found


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return the path if it is an existing file or folder; otherwise raise `InvalidInputError`."""
    path = Path(path)
    try:
        path.stat()
    except FileNotFoundError:
        msg = f"{path} does not exist."
        if path.is_symlink():
            msg = f"{path} is a broken link."
    except (OSError, ValueError) as error:  # too long a name, a loop of links, a NUL in the name
        msg = f"{str(path)!r} cannot be read: {error}."
    else:
        if path.is_dir() or path.is_file():
            return path
        msg = f"{path} is not a regular file."  # reading a pipe might never end
    raise InvalidInputError(msg)


def is_part(file: Path) -> bool:
    """Return whether a file in a folder is part of the folder's table, by its name."""
    ending = file.suffix.lower()
    inner = Path(file.stem).suffix.lower() if ending in COMPRESSED else ending
    return (ending in PARQUET or inner in DELIMITED) and not file.name.startswith((".", "_"))


def _walk(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Yield everything that is not a folder, at any depth; raise for a folder that cannot be listed."""
    try:
        known = folder.stat()
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InvalidInputError(f"{folder} cannot be opened: {error.strerror}.") from None
    identity = (known.st_dev, known.st_ino)
    if identity in above:
        msg = f"{folder} is a link to a folder that holds it: its files would be counted again and again."
        raise InvalidInputError(msg)
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            yield from _walk(entry, (*above, identity))
        elif entry.is_symlink() and not entry.exists() and not entry.suffix:
            raise InvalidInputError(f"{entry} is a broken link, perhaps a folder of the table. Repair or remove it.")
        else:
            yield entry
