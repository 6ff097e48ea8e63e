"""Tables that are too large for memory: a chunk of rows at a time, rows by number, and what their metadata tell."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.files.delimited import block_size, dialect, warn_of_unnamed
from gigagp.tables.files.folders import DELIMITED, PARQUET, table_files
from gigagp.tables.files.labels import Labels
from gigagp.tables.files.reading import PARSER_ERRORS, from_array, numpy_errors, read_columns
from gigagp.tables.files.table import (
    Table,
    find_column,
    find_columns,
    not_a_number,
    refuse_repeated,
    without_index,
)
from gigagp.tables.rows.chunk import Chunk
from gigagp.tables.rows.storage import Bounds, Storage

#: Endings of files of which only the rows that are needed are read.
STREAMED = PARQUET | DELIMITED | {".npy"}
#: Number of bytes of a CSV file that are parsed at a time.
_CSV_BLOCK = 2**24
#: Number of bytes of a Parquet column that are read at a time, so that no whole row group is held in memory.
_COLUMN_BUFFER = 2**18
#: How pyarrow names a CSV cell that is not a number. It counts the header as a row.
_BAD_CELL = re.compile(r"In CSV column #(\d+): Row #(\d+): .*invalid value '(.*)'", re.DOTALL)


def column_names(path: str | os.PathLike[str], header: bool | None = None) -> list[str]:
    """Return the names of a table's columns, or those of a folder's first file. Rows are read only if they must be."""
    file = table_files(path)[0]
    ending = file.suffix.lower()
    try:
        if ending in PARQUET:
            names = without_index(pyarrow.parquet.read_schema(file).names)
        elif ending in DELIMITED:
            written = dialect(file, header)
            if written.is_unnamed:
                warn_of_unnamed(file, written.names[0])
            names = without_index(written.names)
        elif ending == ".npy":
            names = from_array(_mapped(file)[:0], "column", file).column_names
        else:
            names = read_columns(file, header).column_names
    except InvalidInputError:
        raise
    except PARSER_ERRORS as error:
        raise _unreadable(file, 0, error) from error
    refuse_repeated(names, str(file))
    return names


def stream_file(
    path: Path,
    columns: Sequence[str],
    chunk_rows: int,
    first_row: int = 0,
    header: bool | None = None,
    labels: Mapping[str, Labels] | None = None,
    targets: Collection[str] = (),
) -> Iterator[Table]:
    """Yield a file's rows in order, a chunk at a time. Files other than Parquet, CSV and ``.npy`` are read whole first.

    The first ``first_row`` rows are skipped; Parquet row groups among them are not read. Columns in ``labels`` hold
    class labels of any type, and the tables their codes. An error names the row; chunks before it are good. Its advice
    is other for ``targets``, which are among the columns.
    """
    labels = labels or {}
    with _named_errors(path, header, targets) as at:
        at.row = first_row
        for columns_read in _batches(path, columns, chunk_rows, first_row, header, labels):
            for start in range(0, columns_read.num_rows, chunk_rows):
                part = columns_read.slice(start, chunk_rows)
                table = numbers(part, columns, str(path), at.row, labels, targets)
                yield table
                at.row += len(table)


@dataclass
class _Place:
    """The row of a file that reading has reached."""

    row: int = 0


@contextmanager
def _named_errors(path: Path, header: bool | None, targets: Collection[str] = ()) -> Iterator[_Place]:
    """Turn errors of reading into `InvalidInputError` that names the file and the row."""
    place = _Place()
    try:
        yield place
    except InvalidInputError:
        raise
    except PARSER_ERRORS as error:
        cell = _BAD_CELL.search(str(error))
        if cell is None or path.suffix.lower() not in DELIMITED:
            raise _unreadable(path, place.row, error) from error
        written = dialect(path, header)
        name, row = written.names[int(cell[1])], int(cell[2]) - int(written.header)
        raise not_a_number(str(path), name, row, cell[3], is_target=name in targets) from error


def numbers(
    part: pa.Table,
    columns: Sequence[str],
    source: str,
    first_row: int,
    labels: Mapping[str, Labels],
    targets: Collection[str],
) -> Table:
    """Return columns as numbers, with labels as their codes; arguments and errors as for `Table.from_arrow`."""
    if not labels:
        return Table.from_arrow(part, columns, source, first_row, targets)
    values = np.empty((part.num_rows, len(columns)))
    plain = [place for place, name in enumerate(columns) if name not in labels]
    if plain:
        names = [columns[place] for place in plain]
        values[:, plain] = Table.from_arrow(part, names, source, first_row, targets).values
    typed = Path(source).suffix.lower() not in DELIMITED
    for place, name in enumerate(columns):
        if name in labels:
            column = part.column(find_column(name, part.column_names, source))
            values[:, place] = labels[name].of_column(column, name, source, first_row, typed=typed)
    return Table(tuple(columns), values)


def _unreadable(path: Path, row: int, error: Exception) -> InvalidInputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return InvalidInputError(f"{path} cannot be read as a table beyond its row {row:,}: {reason}.")


def _look_at_groups(path: Path, columns: list[str]) -> None:
    """Read the first row of every row group, which is an error if the group's metadata are damaged.

    Without this check, asking pyarrow for damaged metadata would end the process: it throws a C++ exception that its
    Python layer does not catch (seen in pyarrow 26.0).
    """
    with pyarrow.parquet.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            next(file.iter_batches(batch_size=1, row_groups=[group], columns=columns, use_threads=False), None)


def _batches(
    path: Path,
    columns: Sequence[str],
    chunk_rows: int,
    first_row: int,
    header: bool | None,
    labels: Mapping[str, Labels],
) -> Iterator[pa.Table]:
    ending = path.suffix.lower()
    if ending in PARQUET:
        return _parquet(path, columns, chunk_rows, first_row)
    if ending in DELIMITED:
        return _after(_delimited(path, columns, header, labels), first_row)
    if ending == ".npy":
        array = _mapped(path)
        starts = range(first_row, len(array), chunk_rows)
        return (from_array(array[start : start + chunk_rows], "column", path) for start in starts)
    return iter([read_columns(path, header).slice(first_row)])


def _mapped(path: Path) -> np.ndarray:
    """Return a ``.npy`` file as a memory-mapped array."""
    with numpy_errors(path, "file"):
        array = np.lib.format.open_memmap(path, mode="r")
    return array if array.ndim else array[None]


def _parquet(path: Path, columns: Sequence[str], chunk_rows: int, first_row: int) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False) as file:
        names = file.schema_arrow.names
        chosen = [names[place] for place in find_columns(columns, names, str(path))]
        skipped, groups = 0, list(range(file.num_row_groups))
        while groups and skipped + file.metadata.row_group(groups[0]).num_rows <= first_row:
            skipped += file.metadata.row_group(groups.pop(0)).num_rows
        batches = (
            pa.Table.from_batches([batch])
            for batch in file.iter_batches(batch_size=chunk_rows, row_groups=groups, columns=chosen)
        )
        yield from _after(batches, first_row - skipped)


def _batches_with(
    path: Path, columns: Sequence[str], rows: np.ndarray, chunk_rows: int
) -> Iterator[tuple[int, pa.Table]]:
    """Yield batches that together have all wanted rows, each with the number of its first row."""
    if path.suffix.lower() not in PARQUET:
        array = _mapped(path)
        while len(rows) and rows[0] < len(array):
            # A batch begins at the first row that is left.
            first = int(rows[0])
            yield first, from_array(array[first : first + chunk_rows], "column", path)
            rows = rows[np.searchsorted(rows, first + chunk_rows) :]
        return
    with pyarrow.parquet.ParquetFile(path, buffer_size=_COLUMN_BUFFER, pre_buffer=False) as file:
        names = file.schema_arrow.names
        chosen = [names[place] for place in find_columns(columns, names, str(path))]
        first = 0
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            inside = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)]
            row = first
            if len(inside):
                for batch in file.iter_batches(batch_size=chunk_rows, row_groups=[group], columns=chosen):
                    yield row, pa.Table.from_batches([batch])
                    row += batch.num_rows
                    if row > inside[-1]:
                        break
            first = last


def _delimited(
    path: Path, columns: Sequence[str], header: bool | None, labels: Mapping[str, Labels]
) -> Iterator[pa.Table]:
    written = dialect(path, header)
    chosen = [written.names[place] for place in find_columns(columns, written.names, str(path))]
    # Types are set, because pyarrow would guess them from the first block, and a column may begin with whole numbers.
    types = {name: pa.string() if name in labels else pa.float64() for name in chosen}
    convert = pyarrow.csv.ConvertOptions(include_columns=chosen, column_types=types)
    read = pyarrow.csv.ReadOptions(
        column_names=written.names,
        skip_rows=written.blank_lines + 1 if written.header else 0,
        block_size=max(_CSV_BLOCK, block_size(path, written)),
        use_threads=False,
    )
    parse = written.parsing()
    if written.header and not written.has_rows:
        return
    with pyarrow.csv.open_csv(
        written.open(path), read_options=read, parse_options=parse, convert_options=convert
    ) as file:
        for batch in file:
            yield pa.Table.from_batches([batch])


def _after(batches: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the batches without their first ``rows`` rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows)
        rows = max(0, rows - batch.num_rows)


# The rows of a file or a folder, as fits see them -------------------------------------------------------------------


@dataclass(frozen=True)
class FileRows(Storage):
    """Rows of a file or a folder of files, of columns with these names.

    With ``labels``, the target columns hold class labels, and chunks hold their codes.
    """

    is_named = in_files = True

    path: Path
    header: bool | None = None
    labels: Labels | None = None
    inputs: Sequence[str] = ()
    targets: Sequence[str] = ()

    @cached_property
    def files(self) -> dict[str, Path]:
        """The files by the names that chunks carry."""
        return {str(file): file for file in table_files(self.path)}

    @property
    def parts(self) -> list[str]:
        return list(self.files)

    @property
    def shares_whole_parts(self) -> bool:
        """Whether the table is a folder, whose files are shared out among processes."""
        return self.path.is_dir()

    def column_names(self) -> list[str]:
        """Return the names of all columns of the first file."""
        return column_names(self.path, self.header)

    def select(self, inputs: Sequence[str], targets: Sequence[str]) -> FileRows:
        """Return the same rows with these columns; whether a file has them is checked when it is read."""
        return replace(self, inputs=tuple(inputs), targets=tuple(targets))

    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        last = first_row
        for table in stream_file(
            self.files[part], self._columns, chunk_rows, first_row, self.header, self._labels_by_column, self.targets
        ):
            last += len(table)
            yield self._chunk(part, last, table.values)

    def known_bounds(self, part: str) -> Bounds | None:
        """Return the bounds in the metadata of a Parquet file; None if there are none."""
        path = self.files[part]
        if path.suffix.lower() not in PARQUET:
            return None
        with _named_errors(path, None):
            metadata = pyarrow.parquet.read_metadata(path)
            names = [metadata.schema.column(k).path for k in range(metadata.num_columns)]
            places = find_columns(self.inputs, names, str(path))
            low, high = [np.inf] * len(places), [-np.inf] * len(places)
            _look_at_groups(path, [names[place] for place in places])
            for group in range(metadata.num_row_groups):
                for k, place in enumerate(places):
                    found = metadata.row_group(group).column(place).statistics
                    if found is None or not found.has_min_max or not isinstance(found.min, (int, float)):
                        return None
                    low[k], high[k] = min(low[k], float(found.min)), max(high[k], float(found.max))
        # If one of them is infinite, reading the rows will name the row.
        known = metadata.num_rows and np.isfinite([*low, *high]).all()
        return Bounds(low, high, metadata.num_rows) if known else None

    def row_groups(self, part: str) -> list[int] | None:
        """Return the row groups of a Parquet file; a ``.npy`` file is one group."""
        path = self.files[part]
        if path.suffix.lower() in PARQUET:
            with _named_errors(path, None):
                metadata = pyarrow.parquet.read_metadata(path)
                return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        return [len(_mapped(path))] if path.suffix.lower() == ".npy" else None

    def take(self, part: str, rows: np.ndarray, chunk_rows: int) -> Chunk:
        """Return rows by number, see `Storage.take`.

        Parquet row groups without any of the rows are not read; the others are decoded ``chunk_rows`` rows at a time.
        Of a ``.npy`` file only the neighbourhood of the rows is read.
        """
        path, columns, labels = self.files[part], self._columns, self._labels_by_column
        found, taken = np.empty((len(rows), len(columns))), 0
        with _named_errors(path, None) as at:
            for first, batch in _batches_with(path, columns, rows, chunk_rows):
                at.row = first
                end = int(np.searchsorted(rows, first + batch.num_rows))
                if end == taken:
                    continue
                try:
                    table = numbers(
                        batch.take(rows[taken:end] - first), columns, str(path), first, labels, self.targets
                    )
                except InvalidInputError:
                    numbers(batch, columns, str(path), first, labels, self.targets)  # names the row in its message
                    raise
                found[taken:end], taken = table.values, end
        if taken < len(rows):
            msg = f"{path} has fewer rows than when the fit began: there is no row {rows[taken] + 1:,}."
            raise InvalidInputError(msg)
        return self._chunk(part, int(rows[-1]) + 1 if len(rows) else 0, found)

    @property
    def _columns(self) -> list[str]:
        return [*self.inputs, *self.targets]

    @property
    def _labels_by_column(self) -> dict[str, Labels]:
        return {} if self.labels is None else dict.fromkeys(self.targets, self.labels)

    def _chunk(self, part: str, last: int, values: np.ndarray) -> Chunk:
        X, Y = torch.from_numpy(values).split([len(self.inputs), len(self.targets)], 1)
        return Chunk(part, last, X.contiguous(), Y.contiguous())
