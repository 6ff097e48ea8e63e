"""Named columns of float64 numbers, and their conversion from columns of any type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigagp.errors import InvalidInputError
from gigagp.tables.cells import is_number, number_hint, shown

_UNNAMED_INDEX = re.compile(r"__index_level_[0-9]+__")
#: How pandas names an index that has no name, in files whose columns must have one.
INDEX = "__index_level_0__"


@dataclass(frozen=True)
class Table:
    """Named columns of finite float64 numbers; ``values`` has the shape (n, n_columns), and all names differ."""

    names: tuple[str, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            msg = f"values of Table must have shape (n, {len(self.names)}), as it has names; got {self.values.shape}."
            raise InvalidInputError(msg)
        refuse_repeated(self.names, "Table")

    def __len__(self) -> int:
        return len(self.values)

    def column(self, name: str) -> np.ndarray:
        """Return one column, shape (n,). Raises `InvalidInputError` with the most similar name if there is none."""
        return self.values[:, self.names.index(find_column(name, self.names, "the table"))]

    def select(self, names: Sequence[str]) -> Table:
        """Return these columns in this order; raises `InvalidInputError` as `column` does."""
        places = find_columns(names, self.names, "the table")
        return Table(tuple(names), np.ascontiguousarray(self.values[:, places]))

    def take(self, rows: np.ndarray) -> Table:
        """Return these rows in this order, given by number from 0 or by a mask."""
        return Table(self.names, self.values[rows])

    def to_arrow(self) -> pa.Table:
        """Return a pyarrow table, from which estimators can read the names."""
        arrays = [pa.array(np.ascontiguousarray(self.values[:, place])) for place in range(len(self.names))]
        return pa.table(arrays, names=list(self.names))

    @classmethod
    def from_arrow(
        cls, columns: pa.Table, names: Sequence[str] | None = None, source: str = "the table", first_row: int = 0
    ) -> Table:
        """Convert the named columns to numbers, in this order (None: all of them); the others may hold anything.

        Raises `InvalidInputError` for a missing column and for the first cell that is not a finite number. The message
        names the ``source``, the column and the row, counted from 1 after the ``first_row`` rows before these.
        """
        known = list(columns.column_names)
        chosen = known if names is None else [str(name) for name in names]
        refuse_repeated(chosen, source)
        places = find_columns(chosen, known, source)
        if not chosen:
            raise InvalidInputError(f"{source}: no columns are left to use.")
        if columns.num_rows == 0:
            raise InvalidInputError(f"{source} has no rows of data.")
        values = np.empty((columns.num_rows, len(chosen)))
        for k, (place, name) in enumerate(zip(places, chosen, strict=True)):
            values[:, k] = _numbers(columns.column(place), name, source, first_row)
        return cls(tuple(chosen), values)


def find_column(name: str, names: Sequence[str], source: str) -> str:
    """Return ``name`` if it is among ``names``; otherwise raise `InvalidInputError` with the most similar one."""
    if name in names:
        return name
    by_case = {known.casefold(): known for known in names}
    near = difflib.get_close_matches(name.casefold(), list(by_case), n=1, cutoff=0.6)
    hint = f" Did you mean {by_case[near[0]]!r}?" if near else ""
    raise InvalidInputError(f"{source} has no column {name!r}.{hint} Its columns are: {listed(names)}.")


def find_columns(wanted: Sequence[str], names: Sequence[str], source: str) -> list[int]:
    """Return the positions of columns among ``names``. The time is proportional to the sum of both lengths."""
    places: dict[str, int] = {}
    repeated = {name for place, name in enumerate(names) if places.setdefault(name, place) != place}
    for name in wanted:
        if name not in places:
            find_column(name, names, source)
        if name in repeated:
            raise InvalidInputError(f"{source} has two columns named {name!r}. Rename one of them.")
    return [places[name] for name in wanted]


def without_index(names: Sequence[str]) -> list[str]:
    """Return the names of columns without those in which pandas stores an index that has no name.

    Rows that were selected from a data frame keep their numbers as such an index, which is no input. The first column
    of a CSV file has that name if it only counts the rows.
    """
    return [name for name in names if not _UNNAMED_INDEX.fullmatch(name)]


def listed(labels: Sequence[Any], most: int = 12) -> str:
    """Return labels in one line; if there are more than ``most``, only the first ones and their number."""
    first = ", ".join(map(str, labels[:most]))
    return first if len(labels) <= most else f"{first}, ... ({len(labels)} in all)"


def refuse_repeated(names: Sequence[str], source: str) -> None:
    """Raise `InvalidInputError` if two columns have the same name, or one has none."""
    seen: set[str] = set()
    for place, name in enumerate(names):
        if not name:
            msg = f"{source}: column {place + 1} has no name. Give it one, or use --no-header if there is no header."
            raise InvalidInputError(msg)
        if name in seen:
            raise InvalidInputError(f"{source} has two columns named {name!r}. Rename one of them.")
        seen.add(name)


def _numbers(column: pa.ChunkedArray, name: str, source: str, first_row: int) -> np.ndarray:
    """Return the column as finite float64 numbers, or raise for the first cell that is not one."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py() + 1
        # In a column that also holds text, name the first bad cell, whether it is empty or text.
        text = _first_text(column)
        if text is None or row < text:
            raise InvalidInputError(
                f"{source}: column {name!r}, row {first_row + row}: the cell is empty or NaN ({column.null_count} such "
                "cells in this column). Fill in these cells, or remove their rows or the column."
            )
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        column = column.cast(pa.float64()) if pa.types.is_decimal(kind) else _from_text(column, name, source, first_row)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    # safe=False: 64-bit integers above 2**53 are rounded, as NumPy rounds them.
    values = column.cast(pa.float64(), safe=False).to_numpy()
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad)) + 1
        what = "NaN" if np.isnan(values[row - 1]) else "infinite"
        raise InvalidInputError(
            f"{source}: column {name!r}, row {first_row + row}: the number is {what} ({int(bad.sum())} such cells in "
            "this column). Replace them, or remove their rows or the column."
        )
    return values


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _first_text(column: pa.ChunkedArray) -> int | None:
    """Return the first row (from 1) whose text is not a number, None if the column has no such text."""
    if not _is_text(column.type):
        return None
    for row, cell in enumerate(column.to_pylist(), start=1):
        if cell is not None and not is_number(cell):
            return row
    return None


def _from_text(column: pa.ChunkedArray, name: str, source: str, first_row: int) -> pa.ChunkedArray:
    """Return a text column as numbers, or raise for its first cell that is not a number; raise for every other type."""
    row = _first_text(column)
    if row is not None:
        cell = column[row - 1].as_py()
        raise InvalidInputError(
            f"{source}: column {name!r}, row {first_row + row}: {shown(cell)} is not a number.{number_hint(cell)} "
            "Correct the cell, or leave the column out (--columns chooses the inputs). Tables that fit into memory may "
            'have texts as inputs: fit with encode="auto", or the command gigagp fit without --strict.'
        )
    if not _is_text(column.type):
        raise InvalidInputError(
            f"{source}: column {name!r} holds values of type {column.type}; only numbers and booleans can be used. "
            "Convert it to numbers, or leave it out (--columns chooses the inputs)."
        )
    return pa.chunked_array([pa.array([float(cell) for cell in column.to_pylist()], type=pa.float64())])
