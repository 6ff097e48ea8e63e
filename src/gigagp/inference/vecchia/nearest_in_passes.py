"""The nearest earlier rows of some rows among all rows of a source, which are read in blocks and never held."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.streaming import HeldRows
from gigagp.inference.vecchia.minibatch import Minibatch
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.neighbourhood import squared_distances
from gigagp.neighbours.search import NeighbourTree
from gigagp.tables.rows.random_order import LAST, PlacedRows

#: Most rows whose neighbours in a block are searched together, and one over their part of the memory budget.
_TOGETHER, _SHARE = 2**12, 32


class _Nearest(NamedTuple):
    """Rows and the nearest earlier rows that were found so far.

    X and Y, shape (q, m + 1, ...), have the rows themselves first, then their neighbours, the nearest first. Empty
    places repeat the row.
    """

    X: Tensor
    Y: Tensor
    distances: Tensor  # squared, (q, m); infinite in empty places
    places: Tensor  # of the neighbours in the order, (q, m)

    @classmethod
    def none(cls, X: Tensor, Y: Tensor, n_neighbours: int) -> _Nearest:
        """Return rows without neighbours."""
        shape = len(X), n_neighbours
        X, Y = (part[:, None].repeat(1, n_neighbours + 1, 1) for part in (X, Y))
        distances = torch.full(shape, torch.inf, dtype=torch.float64)
        return cls(X, Y, distances, torch.full(shape, LAST))

    def take(self, rows: Tensor, block: _Block, found: Tensor, distances: Tensor) -> None:
        """Take neighbours of some rows in a block into account: their numbers there and squared distances, (r, m).

        Of equally distant rows those that come first are nearer, so that blocks of any size give the same neighbours.
        """
        m = found.shape[1]
        present = found >= 0
        index = found.clamp_min(0).long()
        new = torch.where(present, block.places[index], LAST)
        both = torch.cat([self.distances[rows], distances], 1), torch.cat([self.places[rows], new], 1)
        first = both[1].sort(dim=1, stable=True).indices
        order = first.gather(1, both[0].gather(1, first).sort(dim=1, stable=True).indices[:, :m])
        self.distances[rows], self.places[rows] = (part.gather(1, order) for part in both)
        for kept, more in ((self.X, block.X), (self.Y, block.Y)):
            values = torch.cat([kept[rows, 1:], torch.where(present[:, :, None], more[index], kept[rows, :1])], 1)
            kept[rows, 1:] = values.gather(1, order[:, :, None].expand(-1, -1, kept.shape[2]))


class _Block:
    """Rows of a block in their order, with a tree."""

    def __init__(self, X: Tensor, Y: Tensor, points: Tensor, places: Tensor) -> None:
        order = places.argsort(stable=True)
        self.X, self.Y, self.points, self.places = X[order], Y[order], points[order], places[order]
        self.low, self.high = points.amin(0), points.amax(0)
        self.tree = NeighbourTree(self.points)

    def add_to(self, nearest: _Nearest, points: Tensor, places: Tensor, together: int) -> None:
        """Add the neighbours of rows with given points and places, of this many at a time."""
        for rows in torch.arange(len(points)).split(together):
            outside = (self.low - points[rows]).clamp_min(0).maximum(points[rows] - self.high)
            # A little less than the distance of the box: sums round.
            rows = rows[(1 - 1e-12) * outside.square().sum(1) <= nearest.distances[rows, -1]]
            limits = torch.searchsorted(self.places, places[rows])
            found = self.tree.query(points[rows], nearest.distances.shape[1], limits)
            distances = squared_distances(points[rows], self.points, found.long())
            closer = distances[:, 0] <= nearest.distances[rows, -1]
            closer &= found[:, 0] >= 0
            nearest.take(rows[closer], self, found[closer], distances[closer])


def minibatch_of(held: HeldRows, drawn: PlacedRows, metric: Metric, n_neighbours: int) -> Minibatch:
    """Return rows of a source with their nearest earlier rows in the random order, by one pass over the source.

    The rows are given as they are stored. Raises `InvalidInputError` if a row cannot be used any more.
    """
    table = held.table

    def scaled(rows: PlacedRows) -> tuple[Tensor, Tensor]:
        X, Y = held.scaling.inputs(rows.X.numpy()), held.scaling.targets(rows.Y.numpy())
        return torch.from_numpy(X).to(table.X.dtype), torch.from_numpy(Y).to(table.Y.dtype)

    X, Y = scaled(drawn)
    points, nearest = metric(X), _Nearest.none(X, Y, n_neighbours)
    each = 8 * 2 * n_neighbours * (2 + table.n_inputs + table.n_targets)  # neighbours so far, and those in a block
    together = max(1, min(_TOGETHER, table.budget // _SHARE // each))
    for rows in held.order.blocks():
        X, Y = scaled(rows)
        _Block(X, Y, metric(X), rows.places).add_to(nearest, points, drawn.places, together)
    return _as_minibatch(held, nearest)


def _as_minibatch(held: HeldRows, nearest: _Nearest) -> Minibatch:
    q, m = nearest.distances.shape
    table, device = held.table, held.table.X.device
    rows = torch.arange(q) * (m + 1)
    neighbours = (rows[:, None] + torch.arange(1, m + 1)).masked_fill(nearest.distances == torch.inf, -1)
    X, Y = (part.flatten(0, 1).to(device) for part in (nearest.X, nearest.Y))
    return Minibatch(replace(table, X=X, Y=Y).require_finite(), rows.to(device), neighbours.to(torch.int32).to(device))
