"""The rows of a table from coarse to fine, and which of them are near a row or a point."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from gigagp.kernels import Group, Kernel
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.order import coarse_to_fine
from gigagp.neighbours.search import LARGEST, NeighbourTree
from gigagp.products.blocks import ranges

#: Inputs up to which few neighbours suffice, and the neighbours there.
FEW_INPUTS, FEW_NEIGHBOURS = 3, 30
#: Hyperparameters that decide who is near, and the change of their logarithms up to which a graph is kept.
_SHAPES, _MOVED = ("lengthscale", "period", "agreement"), 0.25
#: The same for an angle, in degrees.
_TURNED = 10.0

#: Coordinates up to which rows around a point are taken at several scales, the ratio of their numbers of rows, and the
#: fewest rows of a scale.
_FEW_COORDINATES, _SCALE, _SMALLEST_SCALE = 3, 16, 50

#: Rows, shape (q,), and their neighbours, shape (q, m).
Block = tuple[Tensor, Tensor]
#: Rows whose neighbours are held at a time, and whose lists are joined at a time.
_BLOCK_ROWS, _JOINED_ROWS = 2**14, 2**16
#: Rows at which two metrics are compared, and what a graph has found by then.
_COMPARED_ROWS, _FOUND = 100, ("neighbourhood", "neighbours")


class Neighbourhood:
    """Rows in an order from coarse to fine in a kernel's metric, with a tree for neighbours among earlier rows.

    An early row has distant neighbours, which carry the long range, and a late row has close ones: nearly what the
    max-min order gives (Guinness 2018, section 3), which approximates likelihoods better than an order by coordinates.
    The neighbours do not follow later changes of the kernel's hyperparameters.

    ``order`` has the rows from first to last, ``rank`` the place of every row in it, and ``by_place`` all rows so that
    those near each other come together.
    """

    def __init__(self, kernel: Kernel, X: Tensor, generator: torch.Generator, metric: Metric | None = None) -> None:
        self.metric = Metric(kernel, X) if metric is None else metric
        self._points = self.metric(X)
        self._grouped = [_Grouped(leaf, X, self._points) for leaf in self.metric.groups]
        self.order, self.by_place = coarse_to_fine(self._points, generator)
        self.rank = torch.empty_like(self.order)
        self.rank[self.order] = torch.arange(len(self.order), device=self.order.device)

    @cached_property
    def _tree(self) -> NeighbourTree:
        return NeighbourTree(self._points[self.order])

    def earlier(self, n_neighbours: int, rows: Tensor | None = None) -> Tensor:
        """Return the nearest earlier rows of some rows or of all, (q, n_neighbours) int32, the nearest first.

        There is a -1 where there are fewer earlier rows.
        """
        every = slice(None) if rows is None else rows
        queries, limits = self._points[every], self.rank[every]
        return self._numbered(self._found(queries, self._levels(every), n_neighbours, limits))

    def appended(self, added: Neighbourhood, n_neighbours: int, rows: Tensor) -> Tensor:
        """Return the nearest earlier rows of some rows that are appended to these, the nearest first.

        The appended rows are in the metric of these. Each comes after all of these, and after earlier ones of its own.
        They have numbers from the number of these on. There is a -1 where there are fewer earlier rows.
        """
        points, limits = added._points[rows], added.rank[rows]
        levels = added._levels(rows)
        old = self._lists(points, levels, n_neighbours)
        new = added._lists(points, levels, n_neighbours, limits)
        merged = []
        for before, after in zip(old, new, strict=True):
            before, after = self._numbered(before).long(), added._numbered(after).long()
            distances = squared_distances(points, self._points, before), squared_distances(points, added._points, after)
            found = torch.cat([before, torch.where(after < 0, -1, after + len(self.order))], 1)
            order = torch.cat(distances, 1).sort(dim=1, stable=True).indices[:, : before.shape[1]]
            merged.append(found.gather(1, order))
        return _joined(merged, n_neighbours).to(torch.int32)

    def _levels(self, rows: Tensor | slice) -> list[Tensor]:
        """Return the levels of some rows, for each group."""
        return [group.levels[rows] for group in self._grouped]

    def _levels_of(self, X: Tensor) -> list[Tensor]:
        """Return the levels of new points, for each group."""
        return [leaf.levels(X) for leaf in self.metric.groups]

    def _found(self, points: Tensor, levels: list[Tensor], count: int, limits: Tensor | None = None) -> Tensor:
        """Return places in the order of the rows for points: of the same levels and the nearest, (q, count)."""
        if not levels:
            return self._tree.query(points, count, limits)
        found = torch.empty(len(points), count, dtype=torch.int32, device=points.device)
        for rows in ranges(len(points), _JOINED_ROWS):  # lists are joined in int64 several times over
            own, below = [one[rows] for one in levels], None if limits is None else limits[rows]
            found[rows] = _joined(self._lists(points[rows], own, count, below), count)
        return found

    def _lists(self, points: Tensor, levels: list[Tensor], count: int, limits: Tensor | None = None) -> list[Tensor]:
        """Return the rows of the same level for each group, of which each has an equal share, and the nearest rows."""
        return [*self._same(points, levels, count, limits), self._tree.query(points, count, limits)]

    def _same(self, points: Tensor, levels: list[Tensor], count: int, limits: Tensor | None = None) -> list[Tensor]:
        share = max(1, count // (1 + len(levels)))
        pairs = zip(self._grouped, levels, strict=True)
        return [group.query(self.order, points, one, share, limits) for group, one in pairs]

    def others(self, rows: Tensor, n_neighbours: int) -> Tensor:
        """Return the nearest rows of rows except these themselves, shape (q, n_neighbours) int32.

        There have to be as many other rows.
        """
        found = self._numbered(self._found(self._points[rows], self._levels(rows), n_neighbours + 1)).long()
        own = found == rows[:, None]
        # Among many equal rows the row itself may be missing; then the last one goes.
        own[:, -1] |= ~own.any(1)
        return found[~own].reshape(len(rows), -1).to(torch.int32)

    def around(self, X: Tensor, n_neighbours: int) -> Tensor:
        """Return rows around new points at several scales, shape (q, n_neighbours) int32; -1 where there are fewer.

        Two thirds of them are the nearest rows, and the rest are the nearest among the first n/16, n/256, ... rows of
        the order, which lie ever further apart. Where rows have a gap, the nearest ones all lie on the side at hand;
        the others surround it. On a map of 733,358 rows with holes, the continuous ranked probability score inside the
        holes was 60.3 with 60 + 30 rows, 62.9 with the 120 nearest, and 60.3 with points conditioned on 60 rows or
        points each (``python benchmarks/vecchia_conditioning.py``). Beyond three coordinates the rows are the nearest
        ones: gaps are everywhere there.

        Of the rows of the same level, a third are spread over all of the level: the nearest ones tell of a curve, and
        all of them of the curve's level.
        """
        points, levels = self.metric(X), self._levels_of(X)
        share = max(1, n_neighbours // (1 + len(levels)))
        pairs = zip(self._grouped, levels, strict=True)
        own = [group.spread(self.order, points, one, share) for group, one in pairs]
        return self._numbered(_joined([*own, self._at_scales(points, n_neighbours)], n_neighbours))

    def _at_scales(self, points: Tensor, n_neighbours: int) -> Tensor:
        """Return places in the order of the rows around points at several scales, whatever their levels."""
        n = len(self.order)
        limits = [n // _SCALE**k for k in range(1, 16) if n // _SCALE**k >= _SMALLEST_SCALE]
        if points.shape[1] > _FEW_COORDINATES or n_neighbours >= n or n_neighbours < 4 or not limits:
            return self._tree.query(points, n_neighbours)
        near = n_neighbours - n_neighbours // 3
        found = self._tree.query(points, near)
        for k, limit in enumerate(limits):
            more = (n_neighbours - found.shape[1]) // (len(limits) - k)
            below = torch.full((len(points),), limit, device=points.device)
            found = _with_coarser(found, below, more, functools.partial(self._tree.query, points, limits=below))
        return found

    def _numbered(self, found: Tensor) -> Tensor:
        numbers = torch.where(found >= 0, self.order[found.clamp_min(0).long()], -1)
        return numbers.to(torch.int32)


class _Grouped:
    """Rows of one column of levels, among which rows of the same level are found, the nearest first.

    Levels are further coordinates, in which two of them are farther apart than any two rows are in the metric.
    ``levels``, shape (n, columns of levels), has those of the rows.
    """

    def __init__(self, leaf: Group, X: Tensor, points: Tensor) -> None:
        self.levels, self._points = leaf.levels(X), points
        self._low, self._high = (points.amin(0), points.amax(0)) if len(points) else (points, points)
        extent = float(torch.linalg.vector_norm((self._high - self._low) / 2)) if len(points) else 0.0
        self._apart = min(4 * extent + 1.0, LARGEST * 2.0**-44)
        self._tree: NeighbourTree | None = None

    def _placed(self, points: Tensor, levels: Tensor) -> Tensor:
        return torch.cat([points, self._apart * levels.to(points)], 1)

    def query(self, order: Tensor, points: Tensor, levels: Tensor, count: int, limits: Tensor | None = None) -> Tensor:
        """Return places in the order of the rows whose level is that of points, (q, count); -1 where there are fewer.

        A point beyond all rows is moved to the edge of their box, from where every row of its level is nearer than all
        others.
        """
        if self._tree is None:
            self._tree = NeighbourTree(self._placed(self._points, self.levels)[order])
        inside = points.maximum(self._low).minimum(self._high)
        found = self._tree.query(self._placed(inside, levels), count, limits)
        own = self.levels[order[found.clamp_min(0).long()]]
        return torch.where((found >= 0) & (own == levels[:, None]).all(-1), found, -1)

    def spread(self, order: Tensor, points: Tensor, levels: Tensor, count: int) -> Tensor:
        """Return the same, of which two thirds are the nearest rows and the others are spread over all of the level.

        These are the nearest of the first rows of the order, of so many that they have a third of ``count`` of the
        level if it is everywhere alike.
        """
        near = count - count // 3
        found = self.query(order, points, levels, near)
        size = torch.where(found[:, 0] >= 0, self._sizes[order[found[:, 0].clamp_min(0).long()]], 1)
        below = len(order) * (count - near) // size
        return _with_coarser(
            found, below, count - near, lambda more: self.query(order, points, levels, more, limits=below)
        )

    @cached_property
    def _sizes(self) -> Tensor:
        """The number of rows in the level of each row, shape (n,)."""
        levels = self.levels[:, 0] if self.levels.shape[1] == 1 else self.levels
        _, level, counts = torch.unique(levels, dim=0, return_inverse=True, return_counts=True)
        return counts[level]


def _with_coarser(found: Tensor, below: Tensor, count: int, query: Callable[[int], Tensor]) -> Tensor:
    """Return places of nearest rows (q, m) and of this many further ones, among the first rows ``below`` of an order.

    ``query`` returns the nearest of these. What has been found of them is their nearest part, so that the new ones
    follow it there.
    """
    known = ((found >= 0) & (found < below[:, None])).sum(1)
    some = query(count + int(known.max()) if len(known) else count)
    return torch.cat([found, some.gather(1, known[:, None] + torch.arange(count, device=found.device))], 1)


def _joined(lists: list[Tensor], count: int) -> Tensor:
    """Return the first ``count`` different numbers of lists (q, m) one after the other; -1 where there are fewer."""
    if len(lists) == 1:
        return lists[0]
    found = torch.cat([one.long() for one in lists], 1)
    values, order = found.sort(dim=1, stable=True)
    again = torch.zeros_like(found, dtype=torch.bool)
    again[:, 1:] = values[:, 1:] == values[:, :-1]
    dropped = torch.zeros_like(again).scatter_(1, order, again) | (found < 0)
    kept = dropped.to(torch.int8).sort(dim=1, stable=True).indices[:, :count]
    return found.masked_fill(dropped, -1).gather(1, kept).to(lists[0].dtype)


def neighbours_of_a_point(n_neighbours: int, least: int, n_rows: int) -> int:
    """Return how many rows a new point is conditioned on by default: all of them if every row is on all others."""
    return max(n_neighbours, least, n_rows if n_neighbours >= n_rows - 1 else 0)


def squared_distances(queries: Tensor, points: Tensor, found: Tensor) -> Tensor:
    """Return the squared distances of queries, shape (q, c), from points with given numbers, (q, m); infinite for -1.

    They are summed input by input, as in searches.
    """
    index, distances = found.clamp_min(0), torch.zeros_like(found, dtype=torch.float64)
    for query, values in zip(queries.T, points.T, strict=True):
        distances += (query[:, None] - values[index]).square_()
    return distances.masked_fill_(found < 0, torch.inf)


class NeighbourGraph:
    """Which earlier rows each row is conditioned on; a function of a kernel, the rows and a number alone.

    It is computed at its first use, with a fixed seed, so that a checkpoint needs no more than the kernel's numbers.
    """

    def __init__(self, kernel: Kernel, X: Tensor, n_neighbours: int) -> None:
        self.kernel, self.n_neighbours, self._X = kernel, n_neighbours, X

    def with_neighbours(self, n_neighbours: int) -> NeighbourGraph:
        """Return the graph with another number of neighbours in the same order of the rows."""
        other = NeighbourGraph(self.kernel, self._X, n_neighbours)
        if "neighbourhood" in self.__dict__:
            other.__dict__["neighbourhood"] = self.neighbourhood
        return other

    def with_amplitude_of(self, kernel: Kernel) -> NeighbourGraph:
        """Return the graph of a kernel that differs by a factor, which changes no distance unless a part is linear."""
        other = NeighbourGraph(kernel, self._X, self.n_neighbours)
        some = self._X[:: max(1, len(self._X) // _COMPARED_ROWS)]
        if torch.equal(other.metric(some), self.metric(some)):
            other.__dict__.update({name: vars(self)[name] for name in _FOUND if name in vars(self)})
        return other

    @cached_property
    def neighbourhood(self) -> Neighbourhood:
        """The order of the rows and the tree."""
        return Neighbourhood(self.kernel, self._X, torch.Generator().manual_seed(0))

    @property
    def metric(self) -> Metric:
        """The metric of the kernel, for which the order is not needed."""
        return self.neighbourhood.metric if "neighbourhood" in vars(self) else Metric(self.kernel, self._X)

    @property
    def width(self) -> int:
        """Number of neighbours of a row, where there are as many other rows."""
        return min(self.n_neighbours, max(len(self._X) - 1, 1))

    @cached_property
    def neighbours(self) -> Tensor:
        """The neighbours of all rows, shape (n, width) int32; -1 where there are fewer."""
        return self.neighbourhood.earlier(self.width)

    def earlier(self, rows: Tensor) -> Tensor:
        """Return the neighbours of some rows, shape (q, width) int32, without those of all others."""
        return self.neighbours[rows] if "neighbours" in vars(self) else self.neighbourhood.earlier(self.width, rows)

    def blocks(self) -> Iterator[Block]:
        """Iterate over all rows with their neighbours, which are held for some rows at a time, near ones together."""
        return ((rows, self.earlier(rows)) for rows in self.neighbourhood.by_place.split(_BLOCK_ROWS))

    def appended(self, X: Tensor) -> Iterator[Block]:
        """Iterate over rows (q, d) that come after all of these, with their neighbours among all rows.

        They are numbered from the number of these rows on.
        """
        n, base = len(self._X), self.neighbourhood
        added = Neighbourhood(self.kernel, X, torch.Generator().manual_seed(0), base.metric)
        width = min(self.n_neighbours, max(n + len(X) - 1, 1))
        every = torch.arange(len(X), device=X.device)
        return ((n + rows, base.appended(added, width, rows)) for rows in every.split(_BLOCK_ROWS))

    @property
    def order(self) -> Tensor:
        """The rows from first to last, shape (n,)."""
        return self.neighbourhood.order

    def serves(self, kernel: Kernel, X: Tensor, n_neighbours: int) -> bool:
        """Whether the graph is still good for a kernel of the same structure, whose numbers may have moved a little."""
        old, new = self.kernel.parameters(), kernel.parameters()
        if not self._is_on(X, n_neighbours) or _shapes(old) != _shapes(new):
            return False
        kinds = {name: name.split(".")[-1] for name in old}
        turned = (abs(float(new[k] - old[k])) for k, kind in kinds.items() if kind == "angle")
        ratios = ((new[k] / old[k]).log().abs() for k, kind in kinds.items() if kind in _SHAPES)
        return all(bool((ratio <= _MOVED).all()) for ratio in ratios) and all(one <= _TURNED for one in turned)

    def is_of(self, kernel: Kernel, X: Tensor, n_neighbours: int) -> bool:
        """Whether the graph is the one of exactly this kernel."""
        return self._is_on(X, n_neighbours) and kernel == self.kernel

    def _is_on(self, X: Tensor, n_neighbours: int) -> bool:
        return X is self._X and n_neighbours == self.n_neighbours

    def __getstate__(self) -> tuple[Kernel, int, Tensor]:
        """Return what the graph is a function of; a copy computes it again, because a tree cannot be copied."""
        return self.kernel, self.n_neighbours, self._X

    def __setstate__(self, state: tuple[Kernel, int, Tensor]) -> None:
        self.kernel, self.n_neighbours, self._X = state


def _shapes(parameters: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in parameters.items()}
