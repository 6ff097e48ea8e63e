"""Rows that are not in files: arrays, data frames, and pairs ``(X, Y)`` from an iterable or a function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.tables.intake import is_sparse
from gigagp.tables.rows.chunk import Chunk, as_table, chunk_of
from gigagp.tables.rows.storage import Storage

if TYPE_CHECKING:
    from gigagp.tables.files.labels import Labels


class ArrayRows(Storage):
    """Rows of two arrays, X (n, d) and Y (n,) or (n, t): NumPy, torch, sparse, or data frames used as arrays."""

    def __init__(self, X: Any, Y: Any, labels: Labels | None = None) -> None:
        self._X, self._Y, self._labels = _sliceable(X), _sliceable(Y), labels
        self.one_target = len(Y.shape) == 1
        self.n_rows, n_targets = (part.shape[0] if part.shape else 0 for part in (self._X, self._Y))
        if self.n_rows != n_targets:
            raise InvalidInputError(f"X and Y must have the same number of rows; got {self.n_rows} and {n_targets}.")

    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        for start in range(first_row, self.n_rows, chunk_rows):
            rows = slice(start, start + chunk_rows)
            yield chunk_of(rows_of(self._X, rows), rows_of(self._Y, rows), start, self._labels)

    def row_groups(self, part: str) -> list[int]:
        return [self.n_rows]

    def take(self, part: str, rows: np.ndarray, chunk_rows: int) -> Chunk:
        return chunk_of(rows_of(self._X, rows), rows_of(self._Y, rows), 0, self._labels)


@dataclass(frozen=True)
class FrameRows(Storage):
    """Rows of a data frame: pandas, polars or pyarrow."""

    is_named = True

    frame: Any
    names: list[str]
    labels: Labels | None = None
    #: Positions of the columns that are used.
    inputs: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)

    def column_names(self) -> list[str]:
        return self.names

    def select(self, inputs: Sequence[str], targets: Sequence[str]) -> FrameRows:
        """Return the same rows with these columns; raises `InvalidInputError` if one is missing."""
        from gigagp.tables.files.table import find_columns  # loads pyarrow

        places = [find_columns(names, self.names, "the data frame") for names in (inputs, targets)]
        return replace(self, inputs=places[0], targets=places[1])

    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        for start in range(first_row, len(self.frame), chunk_rows):
            yield self._chunk(slice(start, start + chunk_rows), start)

    def row_groups(self, part: str) -> list[int]:
        return [len(self.frame)]

    def take(self, part: str, rows: np.ndarray, chunk_rows: int) -> Chunk:
        return self._chunk(rows, 0)

    def _chunk(self, rows: slice | np.ndarray, first_row: int) -> Chunk:
        X, Y = (self._cut(rows, places) for places in (self.inputs, self.targets))
        return chunk_of(X, Y, first_row, self.labels)

    def _cut(self, rows: slice | np.ndarray, places: list[int]) -> Any:
        if hasattr(self.frame, "iloc"):
            return self.frame.iloc[rows, places]
        columns = self.frame[:, places] if hasattr(self.frame, "get_columns") else self.frame.select(places)
        return rows_of(columns, rows)


class PairRows(Storage):
    """Rows that come as pairs ``(X, Y)``: from an iterable, or from a function that returns one at every call.

    A generator can be read once. Rows that `peek` and `beginning` take from it are held until they are read.
    """

    def __init__(self, source: Any, labels: Labels | None = None) -> None:
        self._source, self._labels = source, labels
        self.reads_once = isinstance(source, Iterator)
        self._held: list[Chunk] = []
        self._rest: Iterator[Chunk] | None = self._converted() if self.reads_once else None

    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        if not self.reads_once:
            return self._converted()
        if self._rest is None:
            raise InvalidInputError("The rows of a generator can be read only once. Make a new generator.")
        rows = chain(self._held, self._rest)
        self._held, self._rest = [], None
        return rows

    def peek(self) -> Chunk | None:
        return next(iter(self.beginning(1, 1)), None) if self.reads_once else super().peek()

    def beginning(self, n_rows: int, chunk_rows: int) -> Iterable[Chunk]:
        """Return the first chunks; those of a generator are held. See `Storage.beginning`."""
        if not self.reads_once:
            return super().beginning(n_rows, chunk_rows)
        while sum(len(chunk.X) for chunk in self._held) < n_rows:
            chunk = next(self._rest, None) if self._rest is not None else None
            if chunk is None:
                break
            # The generator may fill the same memory with its next rows.
            self._held.append(replace(chunk, X=chunk.X.clone(), Y=chunk.Y.clone()))
        return list(self._held)

    def _shared(self, chunks: Iterator[Chunk], chunk_rows: int, share: tuple[int, int]) -> Iterator[Chunk]:
        """Yield one share of the rows: every ``share[1]``-th pair, whose sizes only the source decides."""
        return (chunk for place, chunk in enumerate(chunks) if place % share[1] == share[0])

    def _converted(self) -> Iterator[Chunk]:
        last = 0
        for number, pair in enumerate(self._pairs()):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                msg = f"An iterable of rows must yield pairs (X, Y); item {number} is a {type(pair).__name__}."
                raise InvalidInputError(msg)
            chunk = chunk_of(pair[0], pair[1], last, self._labels)
            if len(chunk.X) != len(chunk.Y):
                msg = f"X and Y must have the same number of rows; item {number} has {len(chunk.X)} and {len(chunk.Y)}."
                raise InvalidInputError(msg)
            if number == 0:
                self.one_target = _is_column(pair[1])
            last = chunk.last
            yield chunk

    def _pairs(self) -> Iterator[Any]:
        made = self._source() if callable(self._source) else self._source
        if not hasattr(made, "__iter__"):
            msg = f"A function as a source of rows must return an iterable of pairs (X, Y); got {type(made).__name__}."
            raise InvalidInputError(msg)
        return iter(made)


def is_array(value: Any) -> bool:
    """Return whether a value is an array of any kind."""
    known = isinstance(value, (Tensor, np.ndarray)) or is_sparse(value)
    return known or (hasattr(value, "__array__") and hasattr(value, "shape"))


def _sliceable(values: Any) -> Any:
    """Return sparse arrays in a layout whose rows can be taken, and others as they are."""
    if isinstance(values, Tensor) and values.layout != torch.strided:
        return as_table(values, "X")
    return values.tocsr() if is_sparse(values) else values


def rows_of(values: Any, rows: slice | np.ndarray) -> Any:
    """Return some rows of a data frame of any kind, an array or a list."""
    """Return some rows of an array or a data frame of any kind."""
    if hasattr(values, "iloc"):
        return values.iloc[rows]
    if isinstance(rows, slice):
        return values[rows]
    if isinstance(values, Tensor):
        return values[torch.from_numpy(rows)]
    if isinstance(values, list | tuple):
        return [values[row] for row in rows]
    return values.take(rows) if hasattr(values, "num_columns") else values[rows]  # pyarrow has no lookup by an array


def _is_column(values: Any) -> bool:
    """Return whether targets have shape (n,)."""
    return len(values.shape) == 1 if hasattr(values, "shape") else bool(len(values)) and np.ndim(values[0]) == 0
