"""Writing a table atomically, in the format that the file's ending names."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from gigagp.errors import InvalidInputError
from gigagp.storage.files import check_folder, replacing
from gigagp.tables.files.table import Table

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


def write_table(table: Table | pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table of numbers or of any columns as CSV, Parquet, Arrow (Feather) or NumPy, by the ending of ``path``.

    A file at ``path`` is replaced once the new file is complete. A ``.npy`` file has no names; a ``.npz`` file has one
    array for each column.
    """
    check_ending(path)
    ending = Path(path).suffix.lower()
    columns = table if isinstance(table, pa.Table) else table.to_arrow()
    with replacing(path) as file:
        if ending == ".csv":
            _write_csv(columns, file)
        elif ending == ".parquet":
            pyarrow.parquet.write_table(columns, file)
        elif ending in {".arrow", ".feather"}:
            pyarrow.feather.write_feather(columns, file, compression="uncompressed")
        else:  # NumPy would store texts as code that runs when they are read
            found = table if isinstance(table, Table) else Table.from_arrow(table, source=str(path))
            if ending == ".npy":
                np.save(file, found.values)
            else:
                arrays: dict[str, Any] = {name: found.column(name) for name in found.names}
                np.savez(file, **arrays)


def _write_csv(table: pa.Table, file: BinaryIO) -> None:
    """Write a header (Arrow would quote every name) and each number as the shortest text that reads back as it."""
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    file.write(header.getvalue().encode())
    pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=False))
