"""Sources of rows: whatever a user gives - arrays, data frames, files, folders, generators, functions - in chunks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.tables.intake import frame_names
from gigagp.tables.rows.chunk import CHUNK_ROWS, Chunk
from gigagp.tables.rows.held import ArrayRows, FrameRows, PairRows, is_array
from gigagp.tables.rows.storage import Bounds, Storage

if TYPE_CHECKING:
    from gigagp.tables.files.labels import Labels


def open_storage(source: Any, *, header: bool | None = None, labels: Labels | None = None) -> Storage:
    """Return how the rows of a source are read. This is the one place that tells kinds of sources apart.

    With ``labels``, targets are class labels of any type, and chunks hold their codes. ``header`` is for CSV files.
    """
    if isinstance(source, (str, os.PathLike)):
        from gigagp.tables.files.streaming import FileRows  # loads pyarrow

        return FileRows(Path(source), header, labels)
    if isinstance(source, tuple) and len(source) == 2 and all(is_array(part) for part in source):
        return ArrayRows(*source, labels)
    names = frame_names(source)
    if names is not None:
        return FrameRows(source, names, labels)
    if callable(source) or (hasattr(source, "__iter__") and not is_array(source)):
        return PairRows(source, labels)
    raise InvalidInputError(
        "A source of rows is a path, a pair of arrays (X, Y), a data frame with names of inputs and targets, an "
        f"iterable of pairs (X, Y), or a function that returns one; got {type(source).__name__}."
    )


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
) -> Iterator[Chunk]:
    """Yield the rows of a source, a chunk of at most ``chunk_rows`` rows at a time.

    A source is a Parquet, CSV or NumPy file, or a folder of Parquet and CSV files; ``(X, Y)``; a pandas, polars or
    pyarrow table; an iterable (such as a generator) that yields ``(X, Y)`` for some rows at a time, where
    ``chunk_rows`` does not apply; or a function that returns such an iterable. Files and data frames need the names of
    inputs and targets. With ``labels``, targets are class labels of any type, and chunks hold their codes.

    ``done`` has the number of rows to skip in each file. ``share`` is ``(k, of)``: the k-th of ``of`` shares is read,
    for processes that work on one source together, all with the same ``chunk_rows``. The files of a folder are shared
    out in turn; of everything else the chunks are.

    An error names the file. All chunks that were yielded before it are good.
    """
    _check_cut(chunk_rows, share)
    return _opened(source, inputs, targets, header, labels).chunks(chunk_rows, done, share)


def source_bounds(
    source: Any,
    inputs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    chunk_rows: int = CHUNK_ROWS,
    header: bool | None = None,
    labels: Labels | None = None,
) -> Bounds:
    """Return the smallest and the largest value of each input, and the number of rows of a source; see `stream_rows`.

    A Parquet file whose metadata hold the ranges of its columns is not read. A generator is refused: to read it would
    use it up.
    """
    if isinstance(source, Iterator):
        msg = "The range of a generator's rows cannot be known before its end: give the grid, or lower and upper."
        raise InvalidInputError(msg)
    _check_cut(chunk_rows)
    storage = _opened(source, inputs, targets, header, labels)

    def of_parts() -> Iterator[Bounds]:
        for part in storage.parts:
            known = storage.known_bounds(part)
            if known is None:
                yield from (Bounds.of(chunk.X) for chunk in storage.read(part, chunk_rows) if len(chunk.X))
            else:
                yield known

    found = Bounds.union(of_parts())
    if found is None:
        raise InvalidInputError("The source has no rows.")
    return found


def no_rows() -> InvalidInputError:
    """Return the error for a source of `fit_table` without rows."""
    return InvalidInputError("The source of fit_table has no rows.")


def _check_cut(chunk_rows: int, share: tuple[int, int] = (0, 1)) -> None:
    if chunk_rows < 1 or not 0 <= share[0] < share[1]:
        msg = f"chunk_rows must be positive and share (k, of) with 0 <= k < of; got {chunk_rows} and {share}."
        raise InvalidInputError(msg)


def _opened(
    source: Any,
    inputs: Sequence[str] | None,
    targets: Sequence[str] | None,
    header: bool | None,
    labels: Labels | None,
) -> Storage:
    """Return the storage of a source. Where columns have names, those of inputs and targets are selected."""
    storage = open_storage(source, header=header, labels=labels)
    if not storage.is_named:
        return storage
    if not inputs or not targets or isinstance(inputs, str) or isinstance(targets, str):
        raise InvalidInputError(
            f"inputs and targets must be lists of column names for files and data frames; got {inputs!r}, {targets!r}."
        )
    return storage.select([str(name) for name in inputs], [str(name) for name in targets])


class RowSource:
    """The rows of a fit that never holds them all: inputs, and targets as the fit models them, in chunks.

    When to use: an inference that streams gets one with its job (`gigagp.inference.contract.streaming`). It is read in
    order by `chunks`, by number by `gigagp.tables.rows.RowAccess`.

    Source, target, inputs and header are as for `gigagp.GPRegressor.fit_table`. ``offset`` is the known part of the
    targets: from inputs, float64 of shape (n, d), to values (n,), which are subtracted from every target. ``check``
    raises `InvalidInputError` for inputs that the model cannot use. With ``labels``, the target is a column of class
    labels, and chunks hold their signs (`Labels.signs`). ``one_target`` says whether the target was given as one
    column, not as a table with one column. Names are None where columns have none.
    """

    def __init__(
        self,
        source: Any,
        target: str | Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        *,
        header: bool | None = None,
        chunk_rows: int = CHUNK_ROWS,
        offset: Callable[[np.ndarray], np.ndarray] | None = None,
        check: Callable[[torch.Tensor], None] | None = None,
        labels: Labels | None = None,
    ) -> None:
        self._source, self._offset, self._check = source, offset, check
        self.chunk_rows, self.labels = int(chunk_rows), labels
        self.input_names: list[str] | None = None
        self.target_names: list[str] | None = None
        self.storage = open_storage(source, header=header, labels=labels)
        names = self.storage.column_names()
        if names is not None:
            self.target_names, self.input_names = _chosen(names, target, inputs, self._table)
            self.n_inputs, self.n_columns = len(self.input_names), len(self.target_names)
            self.one_target = isinstance(target, str)
            if labels is not None and self.n_columns > 1:
                raise InvalidInputError(f"target of GPClassifier.fit_table must name one column; got {target!r}.")
            self.storage = self.storage.select(self.input_names, self.target_names)
            return
        if target is not None or inputs is not None:
            msg = "target and inputs of fit_table name columns of files and data frames; this source has no names."
            raise InvalidInputError(msg)
        first = self.storage.peek()
        if first is None:
            raise no_rows()
        self.n_inputs, self.n_columns = first.X.shape[1], first.Y.shape[1]
        self.one_target = self.storage.one_target

    @property
    def n_targets(self) -> int:
        """Number of targets that chunks hold: columns, or latent functions of the classes of labels."""
        known = self.labels is not None and self.labels.classes is not None
        return self.labels.n_functions if self.labels is not None and known else self.n_columns

    @property
    def reads_once(self) -> bool:
        """Whether rows are gone once they have been read."""
        return self.storage.reads_once

    @property
    def has_files(self) -> bool:
        """Whether rows are in files, so that reading can go on where it stopped."""
        return self.storage.in_files

    @property
    def identity(self) -> list[Any]:
        """What tells this source from another one, as plain data."""
        path = [os.fspath(self._source), os.path.abspath(self._source)] if self.has_files else None
        return [path, self.input_names, self.target_names]

    @property
    def name(self) -> str:
        """What to call the source in messages."""
        return str(self._source) if self.has_files else "The source of fit_table"

    @property
    def _table(self) -> str:
        return str(self._source) if self.has_files else "the data frame"

    def label(self, column: int) -> str:
        """Return what to call an input in messages."""
        return repr(self.input_names[column]) if self.input_names is not None else str(column)

    def chunks(self, done: Mapping[str, int] | None = None, share: tuple[int, int] = (0, 1)) -> Iterator[Chunk]:
        """Yield all rows in chunks; ``done`` and ``share`` as for `stream_rows`. Chunks before an error are good."""
        return (self.prepared(chunk) for chunk in self.raw_chunks(done, share))

    def raw_chunks(self, done: Mapping[str, int] | None = None, share: tuple[int, int] = (0, 1)) -> Iterator[Chunk]:
        """Yield all rows as they are stored (labels as their codes), before `prepared`; arguments as for `chunks`."""
        return (self._of_one_width(chunk) for chunk in self.storage.chunks(self.chunk_rows, done, share))

    def _of_one_width(self, chunk: Chunk) -> Chunk:
        if chunk.X.shape[1] != self.n_inputs or chunk.Y.shape[1] != self.n_columns:
            raise InvalidInputError(
                f"the rows of the source after its first {chunk.first:,} have {chunk.X.shape[1]} inputs and "
                f"{chunk.Y.shape[1]} targets; those before have {self.n_inputs} and {self.n_columns}."
            )
        return chunk

    def prepared(self, chunk: Chunk) -> Chunk:
        """Return a chunk with targets as the fit models them: signs of labels, or without their known part."""
        if self._check is not None:
            self._check(chunk.X)
        if self.labels is not None:
            return replace(chunk, Y=torch.from_numpy(self.labels.signs(chunk.Y[:, 0].numpy())))
        if self._offset is None:
            return chunk
        offset = self._offset(chunk.X.numpy())
        # Most means have no known part. A pass need not copy its targets for them.
        return replace(chunk, Y=chunk.Y - torch.from_numpy(offset)[:, None]) if offset.any() else chunk


def _chosen(
    names: list[str], target: str | Sequence[str] | None, inputs: Sequence[str] | None, table: str
) -> tuple[list[str], list[str]]:
    """Return the names of the targets and of the inputs."""
    from gigagp.tables.files.table import find_columns  # loads pyarrow

    if target is None or (not isinstance(target, str) and not len(target)):
        msg = f"target of fit_table must name the column to predict, or several; {table} has {', '.join(names)}."
        raise InvalidInputError(msg)
    if isinstance(inputs, str):
        raise InvalidInputError(f"inputs of fit_table must be a list of column names; got {inputs!r}.")
    targets = [str(name) for name in ([target] if isinstance(target, str) else target)]
    found = [name for name in names if name not in targets] if inputs is None else [str(name) for name in inputs]
    find_columns([*targets, *found], names, table)
    if not found:
        raise InvalidInputError(f"{table} has no column besides {', '.join(targets)}: at least one input is needed.")
    for name in targets:
        if name in found:
            raise InvalidInputError(f"inputs of fit_table must not contain {name!r}, which is a target.")
    for chosen in (targets, found):
        if len(set(chosen)) < len(chosen):
            name = next(name for name in chosen if chosen.count(name) > 1)
            raise InvalidInputError(f"target and inputs of fit_table must name a column once; {name!r} is named twice.")
    return targets, found
