"""Named columns of float64 numbers, and their conversion from columns of any type."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
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
        cls,
        columns: pa.Table,
        names: Sequence[str] | None = None,
        source: str = "the table",
        first_row: int = 0,
        targets: Collection[str] = (),
    ) -> Table:
        """Convert the named columns to numbers, in this order (None: all of them); the others may hold anything.

        Raises `InvalidInputError` for a missing column and for the first cell that is not a finite number. The message
        names the ``source``, the column and the row, counted from 1 after the ``first_row`` rows before these. It does
        not advise to leave out a column that is among ``targets``.
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
            values[:, k] = _Reader(name, source, first_row, name in targets).numbers(columns.column(place))
        return cls(tuple(chosen), values)


def find_column(name: str, names: Sequence[str], source: str) -> str:
    """Return ``name`` if it is among ``names``; otherwise raise `InvalidInputError` with the most similar one."""
    if name in names:
        return name
    by_case = {known.casefold(): known for known in names if _are_alike_in_length(known, name)}
    near = difflib.get_close_matches(name.casefold(), list(by_case), n=1, cutoff=0.6)
    hint = f" Did you mean {by_case[near[0]]!r}?" if near else ""
    raise InvalidInputError(f"{source} has no column {name!r}.{hint} Its columns are: {listed(names)}.")


def _are_alike_in_length(one: str, other: str) -> bool:
    """Whether one name may be the other with a slip: letters of a short name are found in many a long one."""
    short, long = sorted((len(one), len(other)))
    return 3 * (long - short) <= long + 2


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


def not_a_number(source: str, name: str, row: int, cell: str, *, is_target: bool) -> InvalidInputError:
    """Return the error for a text of a column, in a row counted from 1, that is not a number."""
    if is_target:
        advice = "Correct the cell, or remove its row. GPClassifier and --likelihood logistic take classes."
    else:
        advice = (
            "Correct the cell, or leave the column out (--columns chooses the inputs). Tables that fit into memory may "
            'have text as inputs: fit with encode="auto", or the command gigagp fit without --strict.'
        )
    where = f"{source}: column {name!r}, row {row}"
    return InvalidInputError(f"{where}: {shown(cell)} is not a number.{number_hint(cell)} {advice}")


@dataclass(frozen=True)
class _Reader:
    """Reads a column as numbers, or says which cell is none; rows are counted after the first ones."""

    name: str
    source: str
    first_row: int
    is_target: bool

    @property
    def _or_the_column(self) -> str:
        return "" if self.is_target else " or the column"

    def numbers(self, column: pa.ChunkedArray) -> np.ndarray:
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
                    f"{self._at(row)}: the cell is empty or NaN ({column.null_count} such cells in this column). Fill "
                    f"in these cells, or remove their rows{self._or_the_column}."
                )
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
            column = column.cast(pa.float64()) if pa.types.is_decimal(kind) else self._from_text(column)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        # safe=False: 64-bit integers above 2**53 are rounded, as NumPy rounds them.
        values = column.cast(pa.float64(), safe=False).to_numpy()
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(np.argmax(bad)) + 1
            what = "NaN" if np.isnan(values[row - 1]) else "infinite"
            raise InvalidInputError(
                f"{self._at(row)}: the number is {what} ({int(bad.sum())} such cells in this column). Replace them, or "
                f"remove their rows{self._or_the_column}."
            )
        return values

    def _at(self, row: int) -> str:
        return f"{self.source}: column {self.name!r}, row {self.first_row + row}"

    def _from_text(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a text column as numbers, or raise for its first cell that is none; raise for every other type."""
        row = _first_text(column)
        if row is not None:
            cell = column[row - 1].as_py()
            raise not_a_number(self.source, self.name, self.first_row + row, cell, is_target=self.is_target)
        if not _is_text(column.type):
            advice = "." if self.is_target else ", or leave it out (--columns chooses the inputs)."
            raise InvalidInputError(
                f"{self.source}: column {self.name!r} holds values of type {column.type}; only numbers and booleans "
                f"can be used. Convert it to numbers{advice}"
            )
        return pa.chunked_array([pa.array([float(cell) for cell in column.to_pylist()], type=pa.float64())])


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
