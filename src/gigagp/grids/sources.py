"""Whatever holds rows - arrays, data frames, files, folders, generators - as a stream of chunks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.grids.tables import as_columns, as_table
from gigagp.intake import frame_names, is_sparse

if TYPE_CHECKING:
    from gigagp.data.labels import Labels

#: Rows of a chunk unless something else is asked for: enough for a pass to run at full speed.
CHUNK_ROWS = 2**20


@dataclass(frozen=True)
class Rows:
    """Some rows of a stream.

    Attributes
    ----------
    part : str
        The file they come from; empty where there are no files.
    last : int
        How many rows of the part have been given once these are.
    X : Tensor of shape (n, d)
    Y : Tensor of shape (n, t)
    """

    part: str
    last: int
    X: Tensor
    Y: Tensor


def stream_rows(
    source: Any,
    inputs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    chunk_rows: int = CHUNK_ROWS,
    done: Mapping[str, int] | None = None,
    share: tuple[int, int] = (0, 1),
    header: bool | None = None,
    labels: Labels | None = None,
) -> Iterator[Rows]:
    """Yield the rows of a source, a chunk at a time.

    Parameters
    ----------
    source : path, pair of arrays, data frame, or iterable of pairs
        A Parquet or CSV file, or a folder of them; ``(X, Y)``; a pandas data frame or pyarrow table; or anything that
        yields ``(X, Y)`` for some rows at a time, such as a generator (then ``chunk_rows`` does not apply).
    inputs, targets : sequence of str, optional
        Names of columns, for files and data frames; required there.
    chunk_rows : int
        Most rows of a chunk.
    done : mapping of str to int, optional
        Rows of each file to skip.
    share : (int, int)
        Which share of how many to yield, for processes that work on one source together, with the same
        ``chunk_rows``: of a folder its files in turn, of everything else its chunks in turn.
    header : bool, optional
        For CSV files: whether the first line has the names; None: found out.
    labels : Labels, optional
        The targets are labels of classes, of any type; their codes are given.

    Raises
    ------
    InvalidInputError
        If a part cannot be read; the message names the file, and all chunks that were yielded before are good.
    """
    if chunk_rows < 1 or not 0 <= share[0] < share[1]:
        msg = f"chunk_rows must be positive and share (k, of) with 0 <= k < of; got {chunk_rows} and {share}."
        raise InvalidInputError(msg)
    if isinstance(source, (str, os.PathLike)):
        names = _names(inputs, targets)
        return _files(Path(source), *names, chunk_rows, dict(done or {}), share, header, labels)
    if isinstance(source, tuple) and len(source) == 2 and all(_is_array(part) for part in source):
        return _in_turn(_arrays(*source, chunk_rows, labels), share)
    if frame_names(source) is not None:
        return _in_turn(_frame(source, *_names(inputs, targets), chunk_rows, labels), share)
    if hasattr(source, "__iter__") and not _is_array(source):
        return _in_turn(_pairs(iter(source), labels), share)
    msg = (
        "A source of rows is a path, a pair of arrays (X, Y), a data frame with names of inputs and targets, or an "
        f"iterable of pairs (X, Y); got {type(source).__name__}."
    )
    raise InvalidInputError(msg)


def source_bounds(
    source: Any, inputs: Sequence[str] | None = None, targets: Sequence[str] | None = None, **options: Any
) -> tuple[list[float], list[float], int]:
    """Return the smallest and largest inputs of a source and its number of rows.

    Parquet files that have the ranges of their columns in their metadata are not read. A generator would be used up:
    it is refused.

    Parameters
    ----------
    source, inputs, targets, **options
        As for `stream_rows`.

    Raises
    ------
    InvalidInputError
        If the source is an iterator or cannot be read, or has no rows.
    """
    if isinstance(source, Iterator):
        msg = "The range of a generator's rows cannot be known before its end: give the grid, or lower and upper."
        raise InvalidInputError(msg)
    low = high = None
    n_rows = 0

    def include(smallest: Any, largest: Any, rows: int) -> None:
        nonlocal low, high, n_rows
        low = np.asarray(smallest) if low is None else np.minimum(low, smallest)
        high = np.asarray(largest) if high is None else np.maximum(high, largest)
        n_rows += rows

    if isinstance(source, (str, os.PathLike)):
        from gigagp.data.folders import table_files
        from gigagp.data.streaming import column_bounds

        names, others = _names(inputs, targets)
        for file in table_files(source):
            found = column_bounds(file, names)
            if found is not None:
                include(*found)
                continue
            for rows in stream_rows(file, names, others, **options):
                include(rows.X.amin(0).numpy(), rows.X.amax(0).numpy(), len(rows.X))
    else:
        for rows in stream_rows(source, inputs, targets, **options):
            include(rows.X.amin(0).numpy(), rows.X.amax(0).numpy(), len(rows.X))
    if low is None or high is None:
        msg = "The source has no rows."
        raise InvalidInputError(msg)
    return low.tolist(), high.tolist(), n_rows


def _files(
    path: Path,
    inputs: list[str],
    targets: list[str],
    chunk_rows: int,
    done: dict[str, int],
    share: tuple[int, int],
    header: bool | None,
    labels: Labels | None,
) -> Iterator[Rows]:
    # Here, because pyarrow is not loaded before a file is read.
    from gigagp.data.folders import table_files
    from gigagp.data.streaming import stream_file

    files = table_files(path)
    if path.is_dir():
        files, share = files[share[0] :: share[1]], (0, 1)

    of_columns = None if labels is None else dict.fromkeys(targets, labels)

    def rows() -> Iterator[Rows]:
        for file in files:
            columns, skipped = [*inputs, *targets], done.get(str(file), 0)
            for chunk in stream_file(file, columns, chunk_rows, skipped, header, of_columns):
                table = torch.from_numpy(chunk.table.values)
                X, Y = table[:, : len(inputs)].contiguous(), table[:, len(inputs) :].contiguous()
                yield Rows(chunk.file, chunk.first_row + len(X), X, Y)

    return rows() if share[1] == 1 else _stripes(rows(), chunk_rows, share)


def _stripes(chunks: Iterator[Rows], rows: int, share: tuple[int, int]) -> Iterator[Rows]:
    """Yield every so many stripes of ``rows`` rows of a file: by row number, wherever its chunks begin and end."""
    for chunk in chunks:
        first = chunk.last - len(chunk.X)
        while first < chunk.last:
            stripe = first // rows
            last = min(chunk.last, (stripe + 1) * rows)
            if stripe % share[1] == share[0]:
                own = slice(first - chunk.last + len(chunk.X), last - chunk.last + len(chunk.X))
                yield Rows(chunk.part, last, chunk.X[own], chunk.Y[own])
            first = last


def _arrays(X: Any, Y: Any, chunk_rows: int, labels: Labels | None = None) -> Iterator[Rows]:
    X, Y = (_cuttable(part) for part in (X, Y))
    n_rows, n_targets = (part.shape[0] if part.shape else 0 for part in (X, Y))
    if n_rows != n_targets:
        msg = f"X and Y must have the same number of rows; got {n_rows} and {n_targets}."
        raise InvalidInputError(msg)
    for start in range(0, n_rows, chunk_rows):
        rows = slice(start, start + chunk_rows)
        yield _rows(_cut(X, rows), _cut(Y, rows), start, labels)


def _cuttable(values: Any) -> Any:
    """Return sparse rows in the layout that rows can be taken from."""
    if isinstance(values, Tensor) and values.layout != torch.strided:
        return as_table(values, "X")
    return values.tocsr() if is_sparse(values) else values


def _cut(values: Any, rows: slice) -> Any:
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]


def _rows(X: Any, Y: Any, first_row: int, labels: Labels | None) -> Rows:
    """Return rows in memory as numbers, after a look at them; those of files are looked at with their names."""
    inputs = as_table(X, "X", first_row, finite=True)
    targets = as_columns(Y if labels is None else labels.of_array(Y, first_row), "y", first_row, finite=True)
    return Rows("", first_row + len(inputs), inputs, targets)


def _frame(frame: Any, inputs: list[str], targets: list[str], chunk_rows: int, labels: Labels | None) -> Iterator[Rows]:
    names = frame_names(frame) or []
    places = {name: place for place, name in enumerate(names)}
    for name in (*inputs, *targets):
        if name not in places:
            from gigagp.data import find_column  # which finds the nearest

            find_column(name, names, "the data frame")
    for start in range(0, len(frame), chunk_rows):
        X, Y = (
            _columns_of(frame, [places[name] for name in chosen], slice(start, start + chunk_rows))
            for chosen in (inputs, targets)
        )
        yield _rows(X, Y, start, labels)


def _columns_of(frame: Any, places: list[int], rows: slice) -> Any:
    if hasattr(frame, "iloc"):
        return frame.iloc[rows, places]
    part = frame.slice(rows.start, rows.stop - rows.start)
    return part[:, places] if hasattr(frame, "get_columns") else part.select(places)  # polars, pyarrow


def _pairs(pairs: Iterator[Any], labels: Labels | None) -> Iterator[Rows]:
    last = 0
    for number in count():
        try:
            pair = next(pairs)
        except StopIteration:
            return
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            msg = f"An iterable of rows must yield pairs (X, Y); item {number} is a {type(pair).__name__}."
            raise InvalidInputError(msg)
        rows = _rows(pair[0], pair[1], last, labels)
        if len(rows.X) != len(rows.Y):
            msg = f"X and Y must have the same number of rows; item {number} has {len(rows.X)} and {len(rows.Y)}."
            raise InvalidInputError(msg)
        last = rows.last
        yield rows


def _in_turn(rows: Iterator[Rows], share: tuple[int, int]) -> Iterator[Rows]:
    return (chunk for place, chunk in enumerate(rows) if place % share[1] == share[0])


def _is_array(value: Any) -> bool:
    known = isinstance(value, (Tensor, np.ndarray)) or is_sparse(value)
    return known or (hasattr(value, "__array__") and hasattr(value, "shape"))


def _names(inputs: Sequence[str] | None, targets: Sequence[str] | None) -> tuple[list[str], list[str]]:
    if not inputs or not targets or isinstance(inputs, str) or isinstance(targets, str):
        msg = (
            f"inputs and targets must be lists of column names for files and data frames; got {inputs!r}, {targets!r}."
        )
        raise InvalidInputError(msg)
    return [str(name) for name in inputs], [str(name) for name in targets]
