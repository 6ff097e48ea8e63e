"""Rows that are never held, as a fit sees them: chunks of inputs and targets, however they are stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.grids.samples import RowSample
from gigagp.grids.sources import CHUNK_ROWS, Rows, stream_rows
from gigagp.intake import frame_names, is_sparse, numbers
from gigagp.means import FixedMean, Mean, ZeroMean

if TYPE_CHECKING:
    from gigagp.data.labels import Labels

#: Most rows that are read for a preview where the whole source need not be, and the stretches that they come in.
PREVIEW_ROWS, _STRETCHES = 2**20, 16
#: Rows that a preview keeps.
_PREVIEW_SAMPLE = 2**16


@dataclass(frozen=True)
class Preview:
    """What is known of a source before the pass over it.

    Attributes
    ----------
    lower, upper : list of float
        Smallest and largest inputs.
    n_rows : int or None
        None where only the pass will tell.
    sample : RowSample
        Rows from all over the source where that is cheap, otherwise from its beginning.
    """

    lower: list[float]
    upper: list[float]
    n_rows: int | None
    sample: RowSample


class RowSource:
    """A table, in files or in memory or made on the way, that is read a chunk at a time.

    Parameters
    ----------
    source : path, data frame, pair of arrays, callable or iterable
        See `gigagp.GPRegressor.fit_table`.
    target : str or sequence of str, optional
        Columns to predict, for files and data frames.
    inputs : sequence of str, optional
        Columns to predict from; None: all the others.
    header : bool, optional
        For CSV files: whether the first line has the names; None: found out.
    chunk_rows : int
    mean : Mean
        Its fixed part is taken off the targets.
    labels : Labels, optional
        The target is a column of labels of classes; rows have their signs (`Labels.signs`) in its place.

    Attributes
    ----------
    input_names, target_names : list of str or None
        None where columns have no names.
    n_inputs : int
    n_targets : int
        Of labels, as long as the classes are not known, 1.
    one_target : bool
        Whether the target was given as one column, not as a table of one.

    Raises
    ------
    InvalidInputError
        If it is nothing that holds rows, or a column is missing.
    """

    def __init__(
        self,
        source: Any,
        target: str | Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        *,
        header: bool | None = None,
        chunk_rows: int = CHUNK_ROWS,
        mean: Mean | None = None,
        labels: Labels | None = None,
    ) -> None:
        if isinstance(chunk_rows, bool) or not isinstance(chunk_rows, int | np.integer) or chunk_rows < 1:
            msg = f"chunk_rows of fit_table must be an int of at least 1; got {chunk_rows!r}."
            raise InvalidInputError(msg)
        self._source, self._header, self.chunk_rows = source, header, int(chunk_rows)
        self._mean = ZeroMean() if mean is None else mean
        self.labels = labels
        self.input_names: list[str] | None = None
        self.target_names: list[str] | None = None
        self._held: list[Rows] = []
        self._rest: Iterator[Rows] | None = None
        names = _column_names(source, header)
        if names is not None:
            where = str(source) if isinstance(source, str | os.PathLike) else "the data frame"
            self.target_names, self.input_names = _chosen(names, target, inputs, where)
            self.n_inputs, self.n_columns = len(self.input_names), len(self.target_names)
            self.one_target = isinstance(target, str)
            if labels is not None and self.n_columns > 1:
                msg = f"target of GPClassifier.fit_table must name one column; got {target!r}."
                raise InvalidInputError(msg)
            return
        if target is not None or inputs is not None:
            msg = "target and inputs of fit_table name columns of files and data frames; this source has no names."
            raise InvalidInputError(msg)
        self._look(source)

    def _look(self, source: Any) -> None:
        """Find out from the first rows how many inputs and targets there are."""
        if isinstance(source, tuple) and _is_pair(source):
            self.one_target = _is_column(source[1])
            first = next(stream_rows(source, chunk_rows=1, labels=self.labels), None)
        elif _gives_pairs(source):
            made = source() if callable(source) else source
            if not hasattr(made, "__iter__"):
                msg = (
                    "source of fit_table as a function must return an iterable of pairs (X, Y); got "
                    f"{type(made).__name__}."
                )
                raise InvalidInputError(msg)
            pairs = iter(made)
            pair = next(pairs, None)
            self.one_target = isinstance(pair, tuple | list) and len(pair) == 2 and _is_column(pair[1])
            rows = stream_rows(() if pair is None else chain([pair], pairs), labels=self.labels)
            first = next(rows, None)
            if self.reads_once and first is not None:
                self._held, self._rest = [_copied(first)], rows
        else:
            first = next(stream_rows(source), None)  # which says what a source can be
        if first is None:
            raise _no_rows()
        self.n_inputs, self.n_columns = first.X.shape[1], first.Y.shape[1]

    @property
    def n_targets(self) -> int:
        """Targets of the rows: columns, or latent functions of the classes that labels are of."""
        known = self.labels is not None and self.labels.classes is not None
        return self.labels.n_functions if self.labels is not None and known else self.n_columns

    @property
    def origin(self) -> Any:
        """What was given."""
        return self._source

    @property
    def is_sliced(self) -> bool:
        """Whether rows are in memory: arrays or a data frame."""
        return isinstance(self._source, tuple) or (self.target_names is not None and not self.has_files)

    @property
    def reads_once(self) -> bool:
        """Whether rows are gone once they have been read."""
        return isinstance(self._source, Iterator)

    @property
    def has_files(self) -> bool:
        """Whether reading can go on where it stopped."""
        return isinstance(self._source, str | os.PathLike)

    @property
    def identity(self) -> list[Any]:
        """What tells this source from another one, as plain data."""
        path = [os.fspath(self._source), os.path.abspath(self._source)] if self.has_files else None
        return [path, self.input_names, self.target_names]

    def label(self, column: int) -> str:
        """Return what to call an input in messages."""
        return repr(self.input_names[column]) if self.input_names is not None else str(column)

    # Reading ----------------------------------------------------------------------------------------------------------

    def chunks(self, done: Mapping[str, int] | None = None, share: tuple[int, int] = (0, 1)) -> Iterator[Rows]:
        """Yield all rows in chunks; ``done`` has the rows of each file to skip, ``share`` which part of how many it is.

        Raises
        ------
        InvalidInputError
            If a row cannot be used, naming the file where there is one; chunks before it are good.
        """
        return (self.prepared(rows) for rows in self.raw_chunks(done, share))

    def raw_chunks(self, done: Mapping[str, int] | None = None, share: tuple[int, int] = (0, 1)) -> Iterator[Rows]:
        """Yield the same before `prepared`; chunks without rows are left out."""
        source = self._source
        if self.reads_once:
            if self._rest is None:
                msg = "The rows of a generator can be read once, and have been. Make a new one."
                raise InvalidInputError(msg)
            rows: Iterator[Rows] = islice(chain(self._held, self._rest), share[0], None, share[1])
            self._rest, self._held = None, []
        elif self.target_names is not None:
            rows = stream_rows(
                source,
                self.input_names,
                self.target_names,
                chunk_rows=self.chunk_rows,
                done=done,
                share=share,
                header=self._header if self.has_files else None,
                labels=self.labels,
            )
        else:
            given = source() if callable(source) else source
            rows = stream_rows(given, chunk_rows=self.chunk_rows, share=share, labels=self.labels)
        return (self._of_one_width(chunk) for chunk in rows if len(chunk.X))

    def _of_one_width(self, rows: Rows) -> Rows:
        if rows.X.shape[1] != self.n_inputs or rows.Y.shape[1] != self.n_columns:
            msg = (
                f"the rows of the source after its first {rows.last - len(rows.X):,} have {rows.X.shape[1]} inputs and "
                f"{rows.Y.shape[1]} targets; those before have {self.n_inputs} and {self.n_columns}."
            )
            raise InvalidInputError(msg)
        return rows

    def prepared(self, rows: Rows) -> Rows:
        """Return rows with the signs of their classes, or without the fixed mean."""
        if self.labels is not None:
            return replace(rows, Y=torch.from_numpy(self.labels.signs(rows.Y[:, 0].numpy())))
        if not isinstance(self._mean, FixedMean):
            return rows
        return replace(rows, Y=rows.Y - torch.from_numpy(self._mean.offset(rows.X.numpy()))[:, None])

    # Before the pass --------------------------------------------------------------------------------------------------

    def preview(self, seed: int, bounds: tuple[Sequence[float], Sequence[float]] | None = None) -> Preview:
        """Return the range of the inputs and some of the rows.

        Parquet files that have the ranges of their columns in their metadata are read in a few stretches. Of everything
        else all rows are read, unless ``bounds`` are given: then the first.

        Raises
        ------
        InvalidInputError
            If there are no rows, an input is constant, or rows cannot be used; if ``bounds`` are needed or wrong.
        """
        sample = RowSample(_PREVIEW_SAMPLE, self.n_inputs, self.n_targets, seed)
        if bounds is None and self.reads_once:
            msg = "bounds of fit_table must be given for a generator: its range cannot be known before its end."
            raise InvalidInputError(msg)
        given = None if bounds is None else self._checked(bounds)
        found = self._spread(sample)
        if found is None and given is None:
            found = self._whole(sample)
        elif found is None:
            self._beginning(sample)
        if not len(sample):
            raise _no_rows()
        corners, n_rows = (given, None) if found is None else (given or found[:2], found[2])
        assert corners is not None
        low, high = (list(map(float, corner)) for corner in corners)
        for column, (a, b) in enumerate(zip(low, high, strict=True)):
            if a == b:
                msg = f"Input {self.label(column)} is constant (always {a!r}). Leave it out of the inputs."
                raise InvalidInputError(msg)
        return Preview(low, high, n_rows, sample)

    def _checked(self, bounds: Any) -> tuple[list[float], list[float]]:
        try:
            low, high = (numbers(corner, "bounds of fit_table").reshape(-1) for corner in bounds)
            sound = len(low) == len(high) == self.n_inputs and bool(np.all(low <= high))
        except (TypeError, ValueError):
            sound = False
        if not sound:
            msg = (
                "bounds of fit_table must be the smallest and the largest inputs, two sequences of "
                f"{self.n_inputs} finite numbers; got {bounds!r}."
            )
            raise InvalidInputError(msg)
        return low.tolist(), high.tolist()

    def _whole(self, sample: RowSample) -> tuple[Any, Any, int]:
        """Return bounds and number of rows, and sample all of them."""
        low = torch.full((self.n_inputs,), torch.inf, dtype=torch.float64)
        high, n_rows = -low, 0
        for rows in self.chunks():
            low, high = torch.minimum(low, rows.X.amin(0)), torch.maximum(high, rows.X.amax(0))
            n_rows += len(rows.X)
            sample.add(rows.X, rows.Y)
        return low.tolist(), high.tolist(), n_rows

    def _beginning(self, sample: RowSample) -> None:
        """Sample the first rows; they are kept where they cannot be read again."""
        if self.reads_once:
            while sum(len(rows.X) for rows in self._held) < PREVIEW_ROWS:
                following = next(self._rest, None) if self._rest is not None else None
                if following is None:
                    break
                self._held.append(_copied(following))
            looked_at: Iterable[Rows] = (self.prepared(rows) for rows in self._held)
        else:
            looked_at = islice(self.chunks(), max(1, PREVIEW_ROWS // self.chunk_rows))
        for rows in looked_at:
            sample.add(rows.X, rows.Y)

    def _spread(self, sample: RowSample) -> tuple[Any, Any, int] | None:
        """Return bounds and number of rows from the metadata of files, and sample stretches; None without metadata."""
        if not self.has_files:
            return None
        from gigagp.data.folders import table_files
        from gigagp.data.streaming import column_bounds

        assert self.input_names is not None
        files = table_files(self._source)
        known = [column_bounds(file, self.input_names) for file in files]
        if any(found is None for found in known):
            return None
        lows, highs, counts = zip(*[found for found in known if found is not None], strict=True)
        for file, first, rows in _stretches(files, counts):
            try:
                for chunk in self._stretch(file, first, rows):
                    sample.add(chunk.X, chunk.Y)
            except InvalidInputError:
                if not len(sample):
                    raise
                # The pass will meet this place too, keep what came before it, and say so.
        return np.min(lows, axis=0), np.max(highs, axis=0), sum(counts)

    def _stretch(self, file: Path, first: int, count: int) -> Iterator[Rows]:
        """Yield so many rows of a file."""
        from gigagp.data.streaming import stream_file

        assert self.input_names is not None
        assert self.target_names is not None
        columns = [*self.input_names, *self.target_names]
        left = count
        for chunk in stream_file(file, columns, min(count, CHUNK_ROWS), first):
            table = torch.from_numpy(chunk.table.values[:left])
            X, Y = (part.contiguous() for part in table.split([self.n_inputs, self.n_targets], 1))
            yield self.prepared(Rows(chunk.file, chunk.first_row + len(X), X, Y))
            left -= len(X)
            if left <= 0:
                return


def _stretches(files: Sequence[Path], counts: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
    """Yield file, first row and number of rows of stretches that lie evenly in all files together."""
    ends, total = np.cumsum(counts), sum(counts)
    n_stretches = 1 if total <= PREVIEW_ROWS else _STRETCHES
    length = min(PREVIEW_ROWS // n_stretches, total)
    for k in range(n_stretches):
        start = int((k + 0.5) / n_stretches * total - length / 2)
        for place in range(int(np.searchsorted(ends, start, side="right")), len(files)):
            begin, end = int(ends[place]) - counts[place], int(ends[place])
            if start + length <= begin:
                break
            first = max(start, begin)
            yield files[place], first - begin, min(start + length, end) - first


def _copied(rows: Rows) -> Rows:
    """Return rows in their own memory: whoever gave them may use the same memory for the next ones."""
    return replace(rows, X=rows.X.clone(), Y=rows.Y.clone())


def _no_rows() -> InvalidInputError:
    return InvalidInputError("The source of fit_table has no rows.")


def _is_pair(source: tuple[Any, ...]) -> bool:
    return len(source) == 2 and all(
        is_sparse(part) or (hasattr(part, "shape") and hasattr(part, "__getitem__")) for part in source
    )


def _is_column(values: Any) -> bool:
    """Whether targets were given as (n,)."""
    return len(values.shape) == 1 if hasattr(values, "shape") else bool(len(values)) and np.ndim(values[0]) == 0


def _gives_pairs(source: Any) -> bool:
    return callable(source) or (hasattr(source, "__iter__") and not hasattr(source, "shape"))


def _column_names(source: Any, header: bool | None) -> list[str] | None:
    """Return the names of the columns of files and data frames, None for what has none."""
    if isinstance(source, str | os.PathLike):
        from gigagp.data.streaming import column_names

        return column_names(source, header)
    return frame_names(source)


def _chosen(
    names: list[str], target: str | Sequence[str] | None, inputs: Sequence[str] | None, source: str
) -> tuple[list[str], list[str]]:
    """Return the names of targets and inputs."""
    from gigagp.data.table import find_columns

    if target is None or (not isinstance(target, str) and not len(target)):
        msg = f"target of fit_table must name the column to predict, or several; {source} has {', '.join(names)}."
        raise InvalidInputError(msg)
    if isinstance(inputs, str):
        msg = f"inputs of fit_table must be a list of column names; got {inputs!r}."
        raise InvalidInputError(msg)
    targets = [str(name) for name in ([target] if isinstance(target, str) else target)]
    found = [name for name in names if name not in targets] if inputs is None else [str(name) for name in inputs]
    find_columns([*targets, *found], names, source)
    if not found:
        msg = f"{source} has no column besides {', '.join(targets)}: at least one input is needed."
        raise InvalidInputError(msg)
    for name in targets:
        if name in found:
            msg = f"inputs of fit_table must not contain {name!r}, which is a target."
            raise InvalidInputError(msg)
    for chosen in (targets, found):
        if len(set(chosen)) < len(chosen):
            name = next(name for name in chosen if chosen.count(name) > 1)
            msg = f"target and inputs of fit_table must name a column once; {name!r} is there twice."
            raise InvalidInputError(msg)
    return targets, found
