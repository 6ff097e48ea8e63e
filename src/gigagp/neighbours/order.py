"""An order of rows from coarse to fine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gigagp.neighbours.search import checked_points

#: Halvings of the table's side in each input: cells of the last level are as fine as float64.
_HALVINGS = 62
#: Bits by which rows are sorted at once.
_WORD = 32


def coarse_to_fine(points: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a random order of the rows in which every beginning is spread evenly over the table, and one by place.

    Each level takes one random row from every cell of a lattice that has none from coarser levels. Cells are cubes
    whose side is halved from level to level; beyond three inputs a level halves a third of the inputs. The rows of a
    level come in random order. So the order is close to max-min, in which each row is as far as possible from all
    earlier rows (Guinness, 2018, Technometrics 60(4)), at the cost of sorting. Rows that no level tells apart, such as
    duplicates, come last.

    The order by place is Morton's, in which rows that are near each other come together. Work that goes through all
    rows and their neighbours in this order finds most of what it reads in the processor's cache, and takes half of the
    time with millions of rows.
    """
    points = checked_points(points, "points to be ordered")
    n = len(points)
    # Two draws: the first row of a cell with many rows would otherwise also come early within its level.
    ranks, within = (torch.randperm(n, generator=generator, device=generator.device).cpu().numpy() for _ in range(2))
    if not n:
        none = torch.zeros(0, dtype=torch.int64, device=points.device)
        return none, none
    levels, by_place = _levels(points.cpu().numpy(), ranks)
    order = np.argsort(levels * n + within)
    return torch.from_numpy(order).to(points.device), torch.from_numpy(by_place).to(points.device)


def _levels(X: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the level that takes each row, int64 (n,), and the rows by place: a cell takes the row of the lowest rank.

    Cells are nested and a row stays the lowest one in all smaller cells, so at every level each cell has one row that
    was taken. Backwards, from fine to coarse, cells are joined and all but the lowest of their rows leave. The rows
    left become fewer fast, and levels that join nothing cost nothing, however far apart clumps are.
    """
    extent = np.ptp(X, axis=0)
    offsets = (X - X.min(0))[:, extent > 0].T / max(extent.max(), np.finfo(float).tiny)
    last = np.nextafter(2.0**_HALVINGS, 0.0)  # the bin of the upper edge
    bins = np.minimum(offsets * 2.0**_HALVINGS, last).astype(np.int64)
    rows, shared = by_place, _ = _sorted_by_cell(bins)
    d = len(bins)
    per_level = max(1, d if d <= 3 else (d + 2) // 3)
    levels, lowest, joined = np.zeros(len(X), dtype=np.int64), ranks[rows], shared[1:] // per_level
    for level in np.unique(joined)[::-1]:
        starts = np.flatnonzero(np.append(True, joined != level))
        winners = np.minimum.reduceat(lowest, starts)
        stay = lowest == np.repeat(winners, np.diff(np.append(starts, len(lowest))))
        levels[rows[~stay]] = level + 1
        rows, lowest, joined = rows[stay], winners, joined[starts[1:] - 1]
    return levels, by_place


def _sorted_by_cell(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows so that those of a cell are together at every level; return also the bits shared with the row before.

    The key of a row is the first bit of all its inputs, then their second bit, and so on (Morton's order). Only rows
    that are still equal to another one look at the next bits. ``bins``, shape (d, n), has the coordinates as integers
    of `_HALVINGS` bits.
    """
    d, n = bins.shape
    rows, shared = np.arange(n), np.full(n, d * _HALVINGS)
    begins = np.arange(n) == 0  # whether a row differs from the one before it
    left = np.arange(n)  # places of rows that are equal to others so far
    for first in range(0, d * _HALVINGS, _WORD):
        bits = range(first, min(first + _WORD, d * _HALVINGS))
        key, these = np.cumsum(begins[left]), bins[:, rows[left]]
        for bit in bits:
            key = key << 1 | these[bit % d] >> _HALVINGS - 1 - bit // d & 1
        order = np.argsort(key)
        rows[left], key = rows[left[order]], key[order]
        length = np.frexp((key[1:] ^ key[:-1]).astype(np.float64))[1]  # of the part that differs
        new = left[1:][(length > 0) & ~begins[left[1:]]]
        shared[new] = first + len(bits) - length[(length > 0) & ~begins[left[1:]]]
        begins[new] = True
        left = left[~(begins[left] & np.append(begins[left[1:]], True))]
        if not len(left):
            break
    return rows, shared
