"""``W'W`` of a sum of grids: a dense matrix, because rows couple all pairs of nodes of different grids."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.gram import Gram, StencilGram, half_offsets
from gigagp.operators.grid.statistics.grid_sum import GridSum
from gigagp.operators.grid.statistics.moments import signs


class SumGram(Gram):
    """The matrix ``W'W`` for the weights on all grids of a `GridSum`, m by m, symmetric, stored whole in float64.

    The block of grids a and b is ``W_a'W_b``. Blocks on the diagonal are stencils, the others are dense.
    """

    grid: GridSum

    def __init__(self, grid: GridSum, values: Tensor) -> None:
        if values.shape != (grid.size, grid.size) or values.dtype != torch.float64:
            msg = f"values of SumGram must be float64 of shape ({grid.size}, {grid.size}); got {tuple(values.shape)}."
            raise InvalidInputError(msg)
        self.grid, self.values = grid, values

    @property
    def nbytes(self) -> int:
        """Bytes that are stored."""
        return self.values.numel() * self.values.element_size()

    @torch.no_grad()
    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self.values @ vectors

    def row_sums(self) -> Tensor:
        # The weights of a row sum to one on each grid.
        return self.values[:, self.grid.places[0]].sum(1)

    def diagonal(self) -> Tensor:
        return self.values.diagonal()

    @property
    def trace(self) -> float:
        return float(self.values.trace())

    def dense(self) -> Tensor:
        """Return the whole matrix, shape (m, m); not a copy."""
        return self.values

    def stencil(self, k: int) -> StencilGram:
        """Return the block ``W_k'W_k`` of one grid."""
        grid, place = self.grid.grids[k], self.grid.places[k]
        block, nodes = self.values[place, place], torch.arange(grid.size)
        found = torch.zeros(len(half_offsets(grid)), grid.size, dtype=torch.float64)
        shape = torch.tensor(grid.shape)
        where = torch.stack(torch.unravel_index(nodes, grid.shape), 1)
        for row, offset in zip(found, half_offsets(grid), strict=True):
            other = where + torch.tensor(offset)
            inside = ((other >= 0) & (other < shape)).all(1)
            step = sum(o * s for o, s in zip(offset, grid.strides, strict=True))
            row[inside] = block[nodes[inside], nodes[inside] + step]
        return StencilGram(grid, found)

    def with_values(self, values: Tensor, grid: GridSum | None = None) -> SumGram:
        """Return the matrix with other values, or on grids that were moved."""
        return SumGram(grid or self.grid, values)

    def __add__(self, other: SumGram) -> SumGram:
        return SumGram(self.grid, self.values + other.values)

    def __sub__(self, other: SumGram) -> SumGram:
        return SumGram(self.grid, self.values - other.values)

    @property
    def state(self) -> dict[str, Tensor]:
        """The matrix as tensors, for `from_state`."""
        return {"values": self.values}

    @classmethod
    def from_state(cls, grid: GridSum, state: Mapping[str, Tensor]) -> SumGram:
        """Return the matrix that `state` described."""
        return cls(grid, state["values"])


class SumMoments:
    """Sums over rows on a sum of grids, with the interface of `gigagp.operators.grid.statistics.moments.Moments`.

    A row adds the products of all pairs of its weights to ``W'W``.
    """

    #: Number of rows that are added up together.
    block_rows = 2**16

    def __init__(self, grid: GridSum, n_columns: int, n_probes: int = 0, seed: int = 0) -> None:
        self.grid, self.n_columns, self.n_probes, self.seed = grid, n_columns, n_probes, seed
        self.values = torch.zeros(grid.size, grid.size, dtype=torch.float64)
        self.columns = torch.zeros(n_columns + n_probes, grid.size, dtype=torch.float64)
        self._counts = [torch.zeros(math.prod(one.cells), dtype=torch.float64) for one in grid.grids]
        self._positions = torch.zeros(2, grid.n_inputs, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the sums as tensors from which `take_over` restores every bit."""
        counts = torch.cat(self._counts)
        return {"values": self.values, "columns": self.columns, "counts": counts, "positions": self._positions}

    def take_over(self, state: Mapping[str, Tensor]) -> None:
        """Restore the sums that `state` described, on the same grids."""
        self.values.copy_(state["values"])
        self.columns.copy_(state["columns"])
        self._positions.copy_(state["positions"])
        for own, saved in zip(self._counts, state["counts"].split([len(one) for one in self._counts]), strict=True):
            own.copy_(saved)

    def add(self, X: Tensor, Y: Tensor, weights: Tensor | None = None) -> None:
        """Add rows: X (n, d) accepted by the grids, Y (n, t) and weights (n,), all float64 and finite."""
        for rows in self.grid.blocks(len(X)):
            self._add(X[rows], Y[rows], None if weights is None else weights[rows])

    def _add(self, X: Tensor, Y: Tensor, weights: Tensor | None) -> None:
        grid = self.grid
        one = torch.ones(len(X), 1, dtype=torch.float64) if weights is None else weights[:, None]
        columns = Y * one
        if self.n_probes:
            columns = torch.cat([columns, signs(X, Y, self.n_probes, self.seed) * one.sqrt()], 1)
        indices, shares = grid.stencil(X)
        self.columns += grid.scatter(X, columns).T
        # Products of pairs (i, j) with i <= j in the order of the stencil, which is that of the nodes.
        for first in range(indices.shape[1]):
            places = indices[:, first, None] * grid.size + indices[:, first:]
            products = (one[:, 0] * shares[:, first])[:, None] * shares[:, first:]
            self.values.view(-1).index_add_(0, places.flatten(), products.flatten())
        for part, own, inputs in zip(grid.grids, self._counts, grid.columns, strict=True):
            cells, _ = part.located(X[:, list(inputs)])
            own.index_add_(0, (cells * torch.tensor(part.cell_strides)).sum(1), one[:, 0])
        positions = (X - X.new_tensor(grid.lower)) / X.new_tensor(grid.spacing)
        self._positions += torch.stack([(one * positions).sum(0), (one * positions.square()).sum(0)])

    def counts(self) -> Tensor:
        """Return the sum of weights in the cells of every grid, one after the other."""
        return torch.cat(self._counts)

    def position_sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums of the rows' positions and of their squares, shape (d,) each."""
        return self._positions[0].clone(), self._positions[1].clone()

    def gram(self) -> SumGram:
        """Return ``W'W`` of all rows."""
        return SumGram(self.grid, self.values.triu() + self.values.triu(1).T)
