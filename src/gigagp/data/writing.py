"""Writing a table atomically, in the format that the file's ending names."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from gigagp.data.table import Table
from gigagp.errors import InvalidInputError
from gigagp.files import check_folder, replacing

_ENDINGS = (".csv", ".parquet", ".arrow", ".feather", ".npy", ".npz")


def check_ending(path: str | os.PathLike[str]) -> None:
    """Raise `InvalidInputError` unless `write_table` can write this kind of file into an existing folder.

    Call it before long work, so that its result is not lost for want of a place.
    """
    path = Path(path)
    if path.suffix.lower() not in _ENDINGS:
        msg = f"{path}: a table can be written as {', '.join(_ENDINGS)}; got the ending {path.suffix or '(none)'!r}."
        raise InvalidInputError(msg)
    check_folder(path)


def write_table(table: Table, path: str | os.PathLike[str]) -> None:
    """Write a table as CSV, Parquet, Arrow (Feather) or NumPy, by the ending of ``path``.

    A file at ``path`` is replaced once the new file is complete. A ``.npy`` file has no names; a ``.npz`` file has one
    array for each column.

    Raises
    ------
    InvalidInputError
        If the ending is unknown, the folder does not exist, or ``path`` is something other than a regular file.
    OSError
        If the disk is full.
    """
    check_ending(path)
    ending = Path(path).suffix.lower()
    with replacing(path) as file:
        if ending == ".csv":
            _write_csv(table, file)
        elif ending == ".parquet":
            pyarrow.parquet.write_table(table.to_arrow(), file)
        elif ending in {".arrow", ".feather"}:
            pyarrow.feather.write_feather(table.to_arrow(), file, compression="uncompressed")
        elif ending == ".npy":
            np.save(file, table.values)
        else:
            arrays: dict[str, Any] = {name: table.column(name) for name in table.names}
            np.savez(file, **arrays)


def _write_csv(table: Table, file: BinaryIO) -> None:
    """Write a header (Arrow would quote every name) and each number as the shortest text that reads back as it."""
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.names)
    file.write(header.getvalue().encode())
    pyarrow.csv.write_csv(table.to_arrow(), file, pyarrow.csv.WriteOptions(include_header=False))
