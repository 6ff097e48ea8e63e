"""Reading whole tables: what kind of table a file is, and all kinds other than CSV."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet

from gigagp.errors import InvalidInputError
from gigagp.tables.files.delimited import PLAIN, CsvStyle, read_delimited
from gigagp.tables.files.folders import COMPRESSED, PARQUET, checked_path, table_files
from gigagp.tables.files.table import Table, find_columns, refuse_repeated, without_index

#: Endings that can be read, for messages and help.
FORMATS = ".csv, .tsv (also .gz, .bz2, .zst), .parquet (a file or a folder of them), .arrow, .feather, .npy, .npz"
_DELIMITED = {".csv", ".tsv", ".txt", ".dat", ".data"}


#: What pyarrow raises on damaged bytes: its own errors, and those of its Python layer.
PARSER_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError)


def read_table(path: str | os.PathLike[str], columns: Sequence[str] | None = None, header: bool | None = None) -> Table:
    """Read columns of finite numbers from a file of a kind in `FORMATS`.

    ``columns`` are read in this order, None for all; the others may hold anything.
    """
    return Table.from_arrow(read_columns(path, header), columns, source=str(path))


def read_columns(path: str | os.PathLike[str], header: bool | None = None, style: CsvStyle = PLAIN) -> pa.Table:
    """Read all columns of a table of a kind in `FORMATS`, whatever their types.

    ``header`` says whether the first line of a CSV file holds the names (None: detected), and ``style`` has its decimal
    mark and comments.
    """
    path = checked_path(path)
    ending = path.suffix.lower()
    inner = Path(path.stem).suffix.lower() if ending in COMPRESSED else ending
    try:
        if path.is_dir():
            table = _read_folder(path, header, style)
        elif path.stat().st_size == 0:
            raise InvalidInputError(f"{path} is empty.")
        elif inner in _DELIMITED:
            table = read_delimited(path, header, style)
        elif ending in PARQUET:
            table = pyarrow.parquet.read_table(path)
        elif ending in {".arrow", ".feather", ".ipc"}:
            table = _read_arrow(path)
        elif ending == ".npy":
            table = from_array(_load_array(path), "column", path)
        elif ending == ".npz":
            table = _read_archive(path)
        else:
            msg = f"{path}: the ending {ending or '(none)'!r} is not one of the formats that can be read: {FORMATS}."
            raise InvalidInputError(msg)
        refuse_repeated(table.column_names, str(path))
    except InvalidInputError:
        raise
    except PARSER_ERRORS as error:
        msg = f"{path} cannot be read as a table: {str(error).splitlines()[0].rstrip('.')}."
        raise InvalidInputError(msg) from error
    return table.select(without_index(table.column_names))


def _read_folder(path: Path, header: bool | None, style: CsvStyle) -> pa.Table:
    """Read the files of a folder in the order of their names; the first one decides which columns there are."""
    files = table_files(path)
    if all(file.suffix.lower() in PARQUET for file in files):
        return pyarrow.parquet.read_table([str(file) for file in files])  # adds the columns of a Hive layout
    parts = [read_columns(file, header, style) for file in files]
    names = parts[0].column_names
    chosen = [
        part.select(find_columns(names, part.column_names, str(file))) for part, file in zip(parts, files, strict=True)
    ]
    return pa.concat_tables(chosen, promote_options="permissive")


def _read_arrow(path: Path) -> pa.Table:
    """Read an Arrow file, in the file format (which Feather uses too) or in the stream format."""
    try:
        return pyarrow.feather.read_table(path)
    except pa.ArrowInvalid:
        with pa.OSFile(str(path)) as file:
            return pyarrow.ipc.open_stream(file).read_all()


@contextmanager
def numpy_errors(path: Path, kind: str) -> Iterator[None]:
    """Refuse a NumPy file or archive that cannot be read, whatever the parsers raise on damaged bytes."""
    try:
        yield
    except (InvalidInputError, OSError):
        raise
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise InvalidInputError(f"{path} is not a NumPy {kind} of numbers, or it is damaged ({why}).") from None


def _load_array(path: Path) -> np.ndarray:
    """Read a ``.npy`` file; raise `InvalidInputError` for anything else."""
    with numpy_errors(path, "file"), path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_archive(path: Path) -> pa.Table:
    """Read a ``.npz``: a 1-D array is one column of that name, a 2-D array ``X`` gives columns ``X1``, ``X2``, ..."""
    names: list[str] = []
    columns: list[pa.ChunkedArray] = []
    lengths: dict[str, int] = {}
    with numpy_errors(path, "archive"), zipfile.ZipFile(path) as archive:
        for entry in archive.namelist():
            with archive.open(entry) as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
            name = entry.removesuffix(".npy")
            part = from_array(array, name, path)
            lengths[name] = part.num_rows
            names += part.column_names
            columns += part.columns
    if not names:
        raise InvalidInputError(f"{path} holds no arrays.")
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"{path}: the arrays must have the same number of rows; got {lengths}.")
    # The columns of X are X1, X2, ...; another array may have one of these names.
    refuse_repeated(names, str(path))
    return pa.table(columns, names=names)


def from_array(array: np.ndarray, name: str, path: Path) -> pa.Table:
    """Return an array as columns.

    A structured array gives its fields, a 2-D array name1, name2, ..., and a 1-D array one column of the name.
    """
    if array.dtype.names is not None and array.ndim == 1:
        columns = {field: np.ascontiguousarray(array[field]) for field in array.dtype.names}
    elif array.ndim == 1:
        columns = {name if name != "column" else "column1": array}
    elif array.ndim == 2:
        columns = {f"{name}{place + 1}": np.ascontiguousarray(array[:, place]) for place in range(array.shape[1])}
    else:
        msg = f"{path}: an array must have one or two dimensions to be a table; {name!r} has shape {array.shape}."
        raise InvalidInputError(msg)
    for field, values in columns.items():
        if values.dtype.kind not in "biuf":
            msg = f"{path}: column {field!r} holds {values.dtype}; only real numbers and booleans can be used."
            raise InvalidInputError(msg)
    # Arrow has no longdouble, and no byte order other than the machine's.
    return pa.table([pa.array(_native(values)) for values in columns.values()], names=list(columns))


def _native(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:
        return values.astype(np.float64)
    return values.astype(values.dtype.newbyteorder("="), copy=False)
