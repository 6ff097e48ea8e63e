"""What every kind of storage offers: rows in chunks, and where it can, rows by number and bounds without reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from gigagp.tables.rows.chunk import Chunk


class Bounds(NamedTuple):
    """The smallest and the largest value of each input over some rows, and the number of these rows."""

    lower: list[float]
    upper: list[float]
    n_rows: int

    @classmethod
    def of(cls, X: Tensor) -> Bounds:
        """Return the bounds of the rows of ``X``, shape (n, d) with at least one row."""
        return cls(X.amin(0).tolist(), X.amax(0).tolist(), len(X))

    @classmethod
    def union(cls, found: Iterable[Bounds]) -> Bounds | None:
        """Return the bounds of all rows together; None for no rows."""
        every = [bounds for bounds in found if bounds.n_rows]
        if not every:
            return None
        lower, upper, counts = zip(*every, strict=True)
        return cls(np.min(lower, axis=0).tolist(), np.max(upper, axis=0).tolist(), sum(counts))


class Storage(ABC):
    """Rows where they are kept: in files, in memory, or in whatever a generator or function yields.

    A subclass says how one part (a file) is read from a given row on. Everything that reads rows goes through here.
    """

    #: Whether the rows are gone once they have been read.
    reads_once = False
    #: Whether columns have names, by which `select` chooses inputs and targets.
    is_named = False
    #: Whether the rows are in files. Then a later run can go on reading where this one stopped.
    in_files = False
    #: Whether the targets were given with shape (n,). Storage without column names knows it after `peek`.
    one_target = False

    @property
    def row_count(self) -> int | None:
        """Number of rows; None where they have to be read to be counted."""
        groups = [self.row_groups(part) for part in self.parts]
        return sum(sum(one or []) for one in groups) if all(one is not None for one in groups) else None

    @property
    def parts(self) -> Sequence[str]:
        """The files' paths, in the order in which they are read; one empty string where there are no files."""
        return [""]

    def column_names(self) -> list[str] | None:
        """Return the names of all columns; None if columns have no names."""
        return None

    def select(self, inputs: Sequence[str], targets: Sequence[str]) -> Self:
        """Return the same rows with the named columns as inputs and targets, where columns have names."""
        return self

    @abstractmethod
    def read(self, part: str, chunk_rows: int, first_row: int = 0) -> Iterator[Chunk]:
        """Yield the rows of one of the `parts` in order; those before an error are good.

        Chunks have at most ``chunk_rows`` rows; rows that come in pairs ``(X, Y)`` keep the pairs' sizes. Only files
        and arrays can skip rows (``first_row``).
        """

    def chunks(
        self, chunk_rows: int, done: Mapping[str, int] | None = None, share: tuple[int, int] = (0, 1)
    ) -> Iterator[Chunk]:
        """Yield the rows of all parts; chunks without rows are left out. See `gigagp.tables.rows.stream_rows`."""
        parts = self.parts
        if self.shares_whole_parts:
            parts, share = parts[share[0] :: share[1]], (0, 1)
        for part in parts:
            chunks = self.read(part, chunk_rows, (done or {}).get(part, 0))
            own = chunks if share[1] == 1 else self._shared(chunks, chunk_rows, share)
            yield from (chunk for chunk in own if len(chunk.X))

    @property
    def shares_whole_parts(self) -> bool:
        """Whether processes that share the work read different parts, rather than stripes of every part."""
        return False

    def _shared(self, chunks: Iterator[Chunk], chunk_rows: int, share: tuple[int, int]) -> Iterator[Chunk]:
        """Yield one share of a part's rows: every ``share[1]``-th stripe of ``chunk_rows`` rows.

        Stripes are counted by row number. They do not depend on where chunks begin and end, so a pass that was
        interrupted can go on anywhere.
        """
        for chunk in chunks:
            start = chunk.first
            while start < chunk.last:
                stripe = start // chunk_rows
                stop = min(chunk.last, (stripe + 1) * chunk_rows)
                if stripe % share[1] == share[0]:
                    rows = slice(start - chunk.first, stop - chunk.first)
                    yield Chunk(chunk.part, stop, chunk.X[rows], chunk.Y[rows])
                start = stop

    def peek(self) -> Chunk | None:
        """Return rows from the beginning, one at least, that will be read again; None if there are none."""
        return next(self.read(self.parts[0], 1), None)

    def beginning(self, n_rows: int, chunk_rows: int) -> Iterable[Chunk]:
        """Return the first chunks, about ``n_rows`` rows, that will be read again."""
        return islice(self.chunks(chunk_rows), max(1, n_rows // chunk_rows))

    def known_bounds(self, part: str) -> Bounds | None:
        """Return the bounds of a part's inputs if they are known without reading its rows."""
        return None

    def row_groups(self, part: str) -> list[int] | None:
        """Return the sizes of the groups of rows that are decoded together; None if rows can only be read in order."""
        return None

    def take(self, part: str, rows: np.ndarray, chunk_rows: int) -> Chunk:
        """Return rows by sorted number from 0 in a part, where `row_groups` is not None.

        At most ``chunk_rows`` rows are decoded at a time. An error names the file and the row.
        """
        raise NotImplementedError
