"""The encoder of a table: made at a fit, applied to every table after it, and saved with the model."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from gigagp.errors import EncodingWarning, InvalidInputError, ModelFileError, warn
from gigagp.kernels import Constant, Group, Kernel, Linear, Outputs, White
from gigagp.kernels.composite import Composite
from gigagp.kernels.leaf import Leaf
from gigagp.runtime.memory import require, resolve_budget
from gigagp.settings.schema import anything, listing
from gigagp.tables import intake
from gigagp.tables.cells import Place
from gigagp.tables.encoding.columns import (
    PRIME,
    ROOT,
    Column,
    Dates,
    Entities,
    LeftOut,
    Levels,
    Numbered,
    Numbers,
    column_of,
    from_plain,
)
from gigagp.tables.encoding.reading import read_cells

#: The columns of a table that name the entity and the time of each row, by name or number.
Panel = tuple[str | int, str | int]
#: Whether a table must be of numbers, or is encoded.
Encode = Literal["strict", "auto"]
_SHOWN_NOTES = 8


@dataclass(frozen=True)
class TableEncoder:
    """Numbers from a table with text, categories, booleans, dates and missing cells.

    What happens to a column depends on its values in the training table.

    - **Numbers**, also those stored as text, stay as they are. Missing cells get the median, and a column marks
      them.
    - **Dates** become days since the earliest one. If they span more than a year, sine and cosine of the time of the
      year follow, and if they have different times of day, sine and cosine of these. Text is read as dates if all
      cells are written as 2024-03-31 or 2024-03-31 14:30, or as 12/31/2015 where one order of day and month fits all.
    - **Numbers beside text** in one column are read as text, with a warning.
    - **Text, categories and booleans** become one-hot columns. A missing cell is its own category.
    - **More than 50 categories** become their numbers, the levels of a `kernels.Group`, which fits add to their kernel:
      each has its own effect, and other parts of the kernel do not depend on the column.
    - **Columns without information** are left out: constant ones, and text that differs in every row, such as
      names and row numbers.

    All encoded columns of a category have one lengthscale, and so have the two of a season. One-hot columns are not
    standardized, so that a rare category is as far from the others as a frequent one. A category that the fit has not
    seen is as far from every known one as they are from each other, so that its predictions have the uncertainty of a
    new category.

    scikit-learn's encoders do the same (`OneHotEncoder` and `SimpleImputer` with an indicator), but their state is
    arrays of objects, which a file cannot hold without running code when it is read.
    """

    columns: tuple[Column, ...]

    @classmethod
    def fit(
        cls, X: Any, name: str = "X", memory_budget: float | str | None = None, panel: Panel | None = None
    ) -> TableEncoder:
        """Return the encoder of a table, with one `EncodingWarning` for columns left out and mixed types.

        Of a ``panel``, the column of the entities is no category, but has a number for each entity. Raises
        `InvalidInputError` if a column mixes numbers with other types than texts, or no column is left.
        """
        names, found = intake.table_columns(X, name, memory_budget=memory_budget)
        labels = _labels(names, len(found))
        entity = None if panel is None else panel_places(panel, labels)[0]
        notes: list[str] = []
        columns: list[Column] = []
        for label, column in zip(labels, found, strict=True):
            place = Place(name, [_shown_name(label, names)])
            if entity == len(columns):
                columns.append(Entities.of(label, column, place))
            else:
                columns.append(column_of(label, read_cells(column, place), notes))
        out = [column for column in columns if isinstance(column, LeftOut)]
        notes = [f"column {column.label!r} is left out: {column.reason}" for column in out] + notes
        if len(out) == len(columns):
            raise InvalidInputError(f"{name} has no column to learn from: {'; '.join(notes[:_SHOWN_NOTES])}.")
        _warn(notes, name)
        return cls(tuple(columns))

    def transform(
        self, X: Any, name: str = "X", memory_budget: float | str | None = None, *, opens: bool = False
    ) -> np.ndarray:
        """Return a table as numbers, float64 of shape (n, n_encoded).

        With ``opens``, missing cells of numbers and dates are NaN in columns that had none in the fit; `filled` puts
        typical cells there, and `spread` has what they may be. An `EncodingWarning` names new categories and missing
        cells where the fit had none. Another number of columns, or a cell of another kind than the fit had, is an
        `InvalidInputError`.
        """
        names, found = intake.table_columns(X, name, memory_budget=memory_budget)
        if len(found) != len(self.columns):
            msg = f"{name} must have {len(self.columns)} columns, as the table of the fit has; got {len(found)}."
            raise InvalidInputError(msg)
        needed, n_rows = 16 * len(found[0]) * self.n_encoded, len(found[0])
        what = f"{name} of {n_rows:,} rows, encoded as {self.n_encoded} columns,"
        require(needed, resolve_budget(memory_budget), what, "Leave out columns with many categories.")
        notes: list[str] = []
        parts = [np.empty((n_rows, 0))]
        for column, cells in zip(self.columns, found, strict=True):
            if not isinstance(column, LeftOut):
                place = Place(name, [_shown_name(column.label, names)])
                parts.append(column.encode(column.read(cells, place), notes, opens=opens))
        _warn(notes, name)
        return np.concatenate(parts, 1)

    def grown(self, X: Any, name: str = "X") -> TableEncoder:
        """Return the encoder that knows the new levels, or entities of a panel, in another table by their numbers."""
        if not any(isinstance(column, Numbered) for column in self.columns):
            return self
        columns = zip(self.columns, intake.table_columns(X, name)[1], strict=True)
        return TableEncoder(
            tuple(
                column.grown(column.read(cells, Place(name, [column.label])))
                if isinstance(column, Numbered)
                else column
                for column, cells in columns
            )
        )

    def filled(self, encoded: np.ndarray) -> np.ndarray:
        """Return encoded cells with typical ones in place of NaN."""
        if not np.isnan(encoded).any():
            return encoded
        typical = [column.encode(column.read(column.typical(1), Place("X")), []) for column in self.columns]
        return np.where(np.isnan(encoded), np.concatenate(typical, 1), encoded)

    @cached_property
    def spread(self) -> np.ndarray:
        """What missing cells may be in columns that had none in the fit, shape (16, n_encoded); NaN in others.

        Each column has its values in another order, so that they are nearly independent.
        """
        orders = [np.arange(1, PRIME) * pow(ROOT, place, PRIME) % PRIME - 1 for place in range(len(self.columns))]
        return np.concatenate([column.spread()[order] for column, order in zip(self.columns, orders, strict=True)], 1)

    # What a fit needs to know ---------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The numbers of the encoded columns, for each part of each column."""
        found, start = [], 0
        for column in self.columns:
            parts = []
            for part in column.parts:
                parts.append(tuple(range(start, start + part.width)))
                start += part.width
            found.append(tuple(parts))
        return tuple(found)

    @property
    def n_encoded(self) -> int:
        """Number of encoded columns."""
        return sum(part.width for column in self.columns for part in column.parts)

    @property
    def labels(self) -> list[str]:
        """A name for each part, in their order."""
        return [f"{column.label} {part.label}".rstrip() for column in self.columns for part in column.parts]

    @property
    def is_scaled(self) -> np.ndarray:
        """Whether each encoded column is standardized, shape (n_encoded,)."""
        parts = [part for column in self.columns for part in column.parts]
        return np.repeat([part.is_scaled for part in parts], [part.width for part in parts])

    @cached_property
    def level_columns(self) -> list[int]:
        """The columns of the table whose cells are levels of a group."""
        return [place for place, column in enumerate(self.columns) if isinstance(column, Levels)]

    @property
    def axes(self) -> list[int]:
        """The columns along which a map may run: numbers and dates, whose first part is their encoded column."""
        return [
            k
            for k, column in enumerate(self.columns)
            if isinstance(column, Dates) or (isinstance(column, Numbers) and column.varies)
        ]

    def table(self, points: np.ndarray, names: Sequence[str] | None) -> Any:
        """Return a table with given numbers, and days of dates, (m, len(axes)), and typical cells in its other columns.

        Without names of the columns it is an array of objects.
        """
        cells = [column.typical(len(points)) for column in self.columns]
        for place, k in enumerate(self.axes):
            column = self.columns[k]
            cells[k] = column.at(points[:, place]) if isinstance(column, Dates) else pa.array(points[:, place])
        if names is not None:
            return pa.table(cells, names=list(names))
        found = np.empty((len(points), len(cells)), dtype=object)
        for k, column_cells in enumerate(cells):
            found[:, k] = column_cells.to_pylist()
        return found

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return a kernel of the table's columns as one of the encoded columns.

        ``columns`` of its parts are columns of the table. A part with one value for each input has one for each part of
        its columns. A kernel that is bound to the encoded columns, such as ``kernel_`` of an earlier fit, stays as it
        is.
        """
        if kernel.n_inputs == self.n_encoded and not isinstance(kernel, Constant | White):
            return kernel
        if isinstance(kernel, Composite):
            return kernel.with_parts(tuple(self.kernel(part) for part in kernel.parts))
        if isinstance(kernel, Group):
            return self._group(kernel)
        if not isinstance(kernel, Leaf) or isinstance(kernel, Constant | White) or kernel.groups is not None:
            return kernel
        name = type(kernel).__name__
        if kernel.columns is not None and max(kernel.columns) >= len(self.columns):
            msg = f"columns of {name} must be below {len(self.columns)}, the number of columns; got {kernel.columns}."
            raise InvalidInputError(msg)
        numbers = [place for place in range(len(self.columns)) if place not in self.level_columns]
        chosen = numbers if kernel.columns is None else list(kernel.columns)
        if levels := [] if isinstance(kernel, Outputs) else sorted(set(chosen) - set(numbers)):
            label, what = self.columns[levels[0]].label, self.columns[levels[0]].describe()
            msg = f"columns of {name} must not include {label!r}, which has {what}. Take kernels.Group({levels[0]})."
            raise InvalidInputError(msg)
        parts = [part for column in chosen for part in self.inputs[column]]
        if not parts:
            labels = [self.columns[column].label for column in chosen]
            msg = f"columns of {name} must include one that is not left out; got {', '.join(map(repr, labels))}."
            raise InvalidInputError(msg)
        members = [place for part in parts for place in part]
        groups = [number for number, part in enumerate(parts) for _ in part]
        is_of_all = kernel.columns is None and not self.level_columns
        return kernel.with_groups(groups, None if is_of_all else members)

    def _group(self, group: Group) -> Group:
        """Return a group of the encoded columns: rows that agree in all columns of a category are of one level."""
        levels = [column for column in group.level_columns if isinstance(column, int)]
        slopes = [column for column in group.slope_columns if isinstance(column, int)]
        if any(column >= len(self.columns) for column in levels + slopes):
            msg = f"columns of Group must be below {len(self.columns)}, the number of columns; got {levels + slopes}."
            raise InvalidInputError(msg)
        unusable = [self.columns[column].describe() for column in levels + slopes if not self.inputs[column]]
        if unusable:
            raise InvalidInputError(f"columns of Group must tell rows apart; a column of it is {unusable[0]}.")
        places = [place for column in levels for part in self.inputs[column] for place in part]
        return group.on(places, [self.inputs[column][0][0] for column in slopes])

    @property
    def marks(self) -> list[tuple[str, int]]:
        """The label of each column with many missing cells, and the encoded column that marks them."""
        pairs = zip(self.columns, self.inputs, strict=True)
        return [(column.label, parts[0][0] + column.mark) for column, parts in pairs if column.mark is not None]

    def noise(self) -> Kernel | None:
        """Return the further noise of rows with missing cells, one variance for each column with at least ten of them.

        A row without an input that matters is predicted worse than the others. One noise variance for all rows would be
        too large for complete rows and too small for these. None: no column has so many missing cells.
        """
        terms = [White() * Linear(1.0, columns=[mark], fixed=["variance"]) for _, mark in self.marks]
        return functools.reduce(operator.add, terms) if terms else None

    # Words and files ------------------------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """Return a line for each column: its name and what happens to it."""
        width = min(max((len(column.label) for column in self.columns), default=0), 24)
        return [f"  {column.label:{width}s}  {column.describe()}" for column in self.columns]

    def to_plain(self) -> list[dict[str, Any]]:
        """Return the encoder as plain data."""
        return [column.to_plain() for column in self.columns]

    @classmethod
    def from_plain(cls, data: Any, n_encoded: int) -> TableEncoder:
        """Return the encoder that `to_plain` has described, which must have ``n_encoded`` encoded columns."""
        listing(anything)(data, "the header.encoder")
        found = cls(tuple(from_plain(one, f"the header.encoder[{k}]") for k, one in enumerate(data)))
        if found.n_encoded != n_encoded:
            raise ModelFileError(f"the header.encoder must have {n_encoded} encoded columns; got {found.n_encoded}.")
        return found


def panel_places(panel: Panel, labels: Sequence[str]) -> tuple[int, int]:
    """Return the places of the columns with the entity and the time of a panel, or refuse others."""
    found = []
    for role, given in zip(("entity", "time"), panel, strict=True):
        if isinstance(given, str) and given in labels:
            found.append(labels.index(given))
        elif isinstance(given, int) and not isinstance(given, bool) and -len(labels) <= given < len(labels):
            found.append(given % len(labels))
        else:
            shown = ", ".join(map(repr, labels[:_SHOWN_NOTES])) + ", ..." * (len(labels) > _SHOWN_NOTES)
            raise InvalidInputError(
                f"panel of GPRegressor must name the {role} by a column of X, {shown}; got {given!r}."
            )
    if found[0] == found[1]:
        raise InvalidInputError(
            f"panel of GPRegressor must name two columns of X, entity and time; got {panel!r} twice."
        )
    return found[0], found[1]


def _labels(names: Sequence[Any] | None, n_columns: int) -> list[str]:
    return [str(number) for number in range(n_columns)] if names is None else [str(name) for name in names]


def _shown_name(label: str, names: Sequence[Any] | None) -> Any:
    """Return a column's name as messages show it: numbers without quotes."""
    return int(label) if names is None and label.isdecimal() else label


def _warn(notes: list[str], name: str) -> None:
    if notes:
        more = f"; {len(notes) - _SHOWN_NOTES} more" * (len(notes) > _SHOWN_NOTES)
        warn(f"{name}: {'; '.join(note.rstrip('.') for note in notes[:_SHOWN_NOTES])}{more}.", EncodingWarning)
