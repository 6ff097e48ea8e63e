"""Exact nearest neighbours among points, limited to those that come earlier.

A k-d tree (``products/native/neighbours.cpp``) answers on the CPU; without the compiled extension, and on CUDA, torch
computes all distances in blocks. Both sum squared differences input by input and break ties by index, so that their
answers are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.products.extension import native as _native
from gigagp.runtime.run import current_run

#: Largest size of a coordinate: squares of differences stay within float64.
LARGEST = 1e150
#: Queries below which a second thread costs more than it saves.
_QUERIES_A_THREAD = 512
#: Queries from which the processes of a distributed fit share them.
_SHARED_QUERIES = 1024
#: Number of distances in a block of torch's search, by the type of the device.
_BLOCK = {"cpu": 2**22, "cuda": 2**26}


class NeighbourTree:
    """Points among which nearest neighbours are searched by Euclidean distance.

    Searches are exact in any number of inputs. They are fast where the points have few effective dimensions (up to some
    ten), and otherwise no slower than computing all distances. Points are in units in which Euclidean distance is
    meant, such as inputs over lengthscales; they are copied. Differences of less than about 1e-160 count as zero. All
    instruction sets give the same answers; "" is the processor's best one.
    """

    def __init__(self, points: Tensor, instruction_set: str = "") -> None:
        points = checked_points(points, "points of NeighbourTree")
        if not len(points):
            msg = f"points of NeighbourTree must have at least one row; got shape {tuple(points.shape)}."
            raise InvalidInputError(msg)
        self.shape = points.shape
        self._instruction_set = instruction_set
        self._points = points.clone(memory_format=torch.contiguous_format)
        self._tree: Any = None
        if _native is not None:  # on the CPU wherever the points are, so that ties have the same neighbours
            self._tree = _native.NeighbourTree(self._points.cpu().numpy(), _threads_for(len(points)))

    def query(self, queries: Tensor, n_neighbours: int, limits: Tensor | None = None) -> Tensor:
        """Return the nearest points of each query by distance and then by index, shape (q, n_neighbours) int32.

        Only points with an index below the query's limit are its neighbours, so that the earlier neighbours of rows
        ``r`` of the points are ``query(points[r], m, limits=r)``. Where there are fewer, the index is -1.
        """
        queries = checked_points(queries, "queries")
        n, d = self.shape
        if queries.shape[1] != d:
            msg = f"queries must have {d} inputs, as many as the points; got shape {tuple(queries.shape)}."
            raise InvalidInputError(msg)
        if n_neighbours < 1:
            raise InvalidInputError(f"n_neighbours must be at least 1; got {n_neighbours}.")
        if limits is None:
            limits = torch.full((len(queries),), n, device=queries.device)
        if limits.shape != (len(queries),):
            msg = f"limits must have shape ({len(queries)},), one for each query; got {tuple(limits.shape)}."
            raise InvalidInputError(msg)
        limits = limits.clamp(0, n).to(torch.int32)
        found = torch.empty(len(queries), n_neighbours, dtype=torch.int32, device=queries.device)
        processes = current_run().processes if len(queries) >= _SHARED_QUERIES else None
        if processes is None:
            return self._fill(found, queries, limits)

        def rows_of(rows: slice) -> Tensor:
            return self._fill(torch.empty_like(found[rows]), queries[rows], limits[rows])

        return processes.rows(found, rows_of, "neighbours", queries)

    def _fill(self, found: Tensor, queries: Tensor, limits: Tensor) -> Tensor:
        """Write the nearest points of checked queries into ``found``, and return it."""
        if not len(queries):
            return found
        if self._tree is None:
            block = max(1, _BLOCK.get(queries.device.type, 2**22) // self.shape[0])
            for part, below, out in zip(*(every.split(block) for every in (queries, limits, found)), strict=True):
                _search(self._points, part, below, out)
        else:
            threads = _threads_for(len(queries))
            here = found.cpu()  # itself, if it is there
            arrays = (every.cpu().contiguous().numpy() for every in (queries, limits, here))
            self._tree.query(self._instruction_set, *arrays, threads)
            found.copy_(here)
        return found


def checked_points(points: Tensor, what: str) -> Tensor:
    """Return points as float64 without a graph, or refuse them and name the first row that cannot be used."""
    points = points.detach().to(torch.float64)
    if points.ndim != 2 or not points.shape[1]:
        msg = f"{what} must have shape (rows, inputs) with at least one input; got {tuple(points.shape)}."
        raise InvalidInputError(msg)
    usable = points.abs().amax(1) <= LARGEST
    if not bool(usable.all()):
        row = int((~usable).nonzero()[0])
        msg = f"{what} must be finite and at most {LARGEST:g} in size; row {row} is {points[row].tolist()}."
        raise InvalidInputError(msg)
    return points


def _threads_for(n_rows: int) -> int:
    return max(1, min(torch.get_num_threads(), n_rows // _QUERIES_A_THREAD))


def _search(points: Tensor, queries: Tensor, limits: Tensor, out: Tensor) -> None:
    """Write neighbours from all distances into ``out``."""
    points = points[: int(limits.max())]
    m = min(out.shape[1], len(points))
    out.fill_(-1)
    if not m:
        return
    distances = points.new_zeros(len(queries), len(points))
    for column, values in zip(queries.T, points.T, strict=True):  # in this order, for the bits of the compiled search
        distances += (column[:, None] - values).square_()
    distances.masked_fill_(torch.arange(len(points), device=points.device) >= limits[:, None], torch.inf)
    # topk orders ties as it likes. So it gives only the largest distance, and ties are chosen by index.
    largest = distances.topk(m, largest=False).values[:, -1:]
    nearer, tied = distances < largest, distances == largest
    chosen = nearer | (tied & (tied.cumsum(1) <= m - nearer.sum(1, keepdim=True)))
    indices = chosen.nonzero()[:, 1].view(len(queries), m)
    found, order = distances.gather(1, indices).sort(stable=True)
    out[:, :m] = indices.gather(1, order).masked_fill_(found == torch.inf, -1)
