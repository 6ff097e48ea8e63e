"""Minibatches of rows that are not held: passes over a source in random order.

To read a single row of a Parquet file, its whole row group has to be decoded. So a pass cuts every section (a row
group) at random into pieces of a few thousand rows, and puts the pieces into random order. A *window* of consecutive
pieces is read at once, which decodes each of its row groups once, and its rows are shuffled. Batches are cut from the
windows.

What is exact: a pass gives every row once, and each row of each batch, taken alone, is a uniformly random row of the
source, however different the sizes of the sections are. This holds because a pass begins at a uniformly random place of
its order and wraps around at the end. So the sum over every batch is unbiased.

What is not: the rows of a batch are not independent of each other. They come from one window, which holds rows of only
some of a large table's row groups. Where row groups differ from each other, so do the batches of different windows.
That adds variance, not bias.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gigagp.tables.rows.access import RowAccess

#: Default number of pieces of a window, which are as many random places of a large table.
PLACES = 16
#: Purposes of random numbers: the order of pieces, of the rows of a section, and of the rows of a window.
_ORDER, _SECTION, _WINDOW = range(3)


@dataclass(frozen=True)
class _Order:
    """The order of a pass. Shapes are (p,), one entry for each piece.

    Attributes
    ----------
    section, first : ndarray
        The piece's section, and the place in that section's random order at which the piece begins.
    ends : ndarray
        Number of rows up to the end of the piece.
    turn : int
        Place in the order at which the pass begins.
    """

    section: np.ndarray
    first: np.ndarray
    ends: np.ndarray
    turn: int


class RowPasses:
    """An endless sequence of rows in random order, pass after pass, that can be entered anywhere.

    ``window_rows`` rows, in ``places`` pieces, are held at a time; a table with no more rows than that is read once and
    held. The seed decides the order of every pass, so a position in the sequence is all that a resumed fit needs.
    """

    def __init__(self, access: RowAccess, window_rows: int, seed: int, places: int = PLACES) -> None:
        self._access, self._seed = access, seed
        self.window_rows = min(window_rows, access.n_rows)
        self._piece_rows = max(1, self.window_rows // places)
        self._order: tuple[int, _Order] | None = None
        self._window: tuple[tuple[int, int], Tensor, Tensor] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of a pass."""
        return self._access.n_rows

    def batch(self, position: int, size: int) -> tuple[Tensor, Tensor]:
        """Return X (size, d) and Y (size, t) of the sequence from ``position`` on.

        If a row cannot be used, nothing has changed, so the call can be repeated.
        """
        parts = []
        while size:
            number, offset = divmod(position, self.n_rows)
            window, start = divmod(offset, self.window_rows)
            X, Y = self._shuffled(number, window)
            count = min(size, len(X) - start)
            parts.append((X[start : start + count], Y[start : start + count]))
            position, size = position + count, size - count
        X, Y = (torch.cat(part) for part in zip(*parts, strict=True)) if len(parts) > 1 else parts[0]
        return X, Y

    def _shuffled(self, number: int, window: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a window in the order in which batches take them."""
        if self._window is not None and self._window[0] == (number, window):
            return self._window[1:]
        if self.window_rows == self.n_rows and self._window is not None:
            X, Y = self._window[1:]  # the window holds all rows
        else:
            self._window = None  # frees its memory before the next one is read
            X, Y = self._read(number, window)
        order = torch.from_numpy(self._random(_WINDOW, number, window).permutation(len(X)))
        self._window = ((number, window), X[order], Y[order])
        return self._window[1:]

    def _read(self, number: int, window: int) -> tuple[Tensor, Tensor]:
        chosen: dict[int, list[tuple[int, int]]] = {}
        for section, first, last in self._stretches(number, window):
            chosen.setdefault(section, []).append((first, last))
        parts = []
        for section in sorted(chosen):
            found = self._access.sections[section]
            order = self._random(_SECTION, number, section).permutation(found.count)
            rows = np.sort(np.concatenate([order[first:last] for first, last in chosen[section]]))
            taken = self._access.take(found, rows)
            parts.append((taken.X, taken.Y))
        X, Y = (torch.cat(part) for part in zip(*parts, strict=True))
        return X, Y

    def _stretches(self, number: int, window: int) -> list[tuple[int, int, int]]:
        """Return what a window consists of: sections, each with the first and last place in its random order."""
        order, n = self._order_of(number), self.n_rows
        first = window * self.window_rows
        count = min(self.window_rows, n - first)
        begin = (first + order.turn) % n
        found = []
        for start, end in ((begin, min(begin + count, n)), (0, max(0, begin + count - n))):
            place = int(np.searchsorted(order.ends, start, side="right"))
            while start < end:
                stop = min(end, int(order.ends[place]))
                begins = int(order.ends[place - 1]) if place else 0
                offset = int(order.first[place]) - begins
                found.append((int(order.section[place]), start + offset, stop + offset))
                start, place = stop, place + 1
        return found

    def _order_of(self, number: int) -> _Order:
        if self._order is not None and self._order[0] == number:
            return self._order[1]
        random = self._random(_ORDER, number)
        counts = np.array([section.count for section in self._access.sections])
        pieces = -(-counts // self._piece_rows)
        section = np.repeat(np.arange(len(counts)), pieces)
        place = np.arange(len(section)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        # The sizes of a section's pieces differ by at most one row.
        first, last = ((place + k) * counts[section] // pieces[section] for k in (0, 1))
        shuffled = random.permutation(len(section))
        ends = np.cumsum((last - first)[shuffled])
        found = _Order(section[shuffled], first[shuffled], ends, int(random.integers(self.n_rows)))
        self._order = number, found
        return found

    def _random(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *purpose])
