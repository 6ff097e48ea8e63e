"""A random order of the rows of a source that nothing has to hold: a row's place in it is a hash of the row's number.

The rows before any place are a uniformly random part of the table, however the table is sorted, and equal rows are
drawn as often as they are there. Which rows come before which does not depend on how they are cut into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.runtime import interruption
from gigagp.runtime.progress import Meter
from gigagp.settings.indexed_random import random_bits
from gigagp.tables.rows.access import RowAccess

#: Largest place of a row; places are from 0.
LAST = 2**63 - 1
#: Places that are computed at a time where they alone are needed.
_COUNTED = 2**20


class PlacedRows(NamedTuple):
    """Some rows of a source, X (q, d) and Y (q, t), with their places in the random order, int64 of shape (q,).

    ``draws`` are their places in the order that they were drawn by.
    """

    X: Tensor
    Y: Tensor
    places: Tensor
    draws: Tensor


def row_places(first: int, count: int, draw: int = 0) -> Tensor:
    """Return the places of consecutive rows, int64 from 0 to `LAST`, in one of many independent orders."""
    return random_bits(draw, torch.arange(first, first + count)) & LAST


class RandomOrder:
    """A random order of the rows of a source, with passes over all of them.

    A pass holds at most ``block_rows`` rows at a time, and shows the rows on the meter as steps of a phase.
    """

    def __init__(self, access: RowAccess, block_rows: int, meter: Meter) -> None:
        self._access, self._block_rows, self._meter = access, block_rows, meter

    @property
    def n_rows(self) -> int:
        """Number of rows of the source."""
        return self._access.n_rows

    def blocks(self, draw: int = 0) -> Iterator[PlacedRows]:
        """Yield all rows as they are stored, some at a time; ``draw`` is the order of `PlacedRows.draws`."""
        done = 0
        for section in self._access.sections:
            for start in range(0, section.count, self._block_rows):
                interruption.check()
                rows = self._access.take(section, np.arange(start, min(start + self._block_rows, section.count)))
                count = len(rows.X)
                places = row_places(done, count)
                yield PlacedRows(rows.X, rows.Y, places, row_places(done, count, draw) if draw else places)
                done += count
                self._meter.reached(done)

    def drawn(self, share: float, draw: int = 0) -> PlacedRows:
        """Return a random share of the rows, from one pass over all of them.

        Every row is drawn with probability ``share``, by itself. A larger share of the same ``draw`` has all rows of a
        smaller one. Those of ``draw`` 0 come before all others in the order.
        """
        n, last = self.n_rows, last_of(share)
        starts = range(0, n, _COUNTED)
        count = sum(int((row_places(k, min(_COUNTED, n - k), draw) <= last).sum()) for k in starts) if share < 1 else n
        found: PlacedRows | None = None
        done = 0
        for block in self.blocks(draw):
            chosen = block if share >= 1 else PlacedRows(*(part[block.draws <= last] for part in block))
            if found is None:
                found = PlacedRows(*(part.new_empty(count, *part.shape[1:]) for part in block))
            for whole, part in zip(found, chosen, strict=True):
                whole[done : done + len(part)] = part
            done += len(chosen.X)
        assert found is not None, "a source without rows is refused before"
        return found


def last_of(share: float) -> int:
    """Return the last place of a share of the rows; all rows have one at most as large where the share is 1."""
    return LAST if share >= 1 else int(share * LAST)
