"""``W'W`` of rows that are held, without forming it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.gram import Gram, half_offsets
from gigagp.settings.random import standard_normal

#: Bytes of a stored weight: the number and its column, in two orders.
_WEIGHT_BYTES = 32
#: Elements of a block of products of weights.
_BLOCK = 2**22


class RowsGram(Gram):
    """``W' D W`` without forming it: ``W'(D (W v))`` over the stored rows, with their weights D, ones by default.

    It serves grids with so many nodes that ``W'W`` would hold more numbers than ``W`` (more than n 4^d / 7^d nodes for
    cubic interpolation). Each product then costs O(n 4^d) (Yadav et al. 2021, section 3, last paragraph).
    """

    grid: RegularGrid

    def __init__(self, grid: RegularGrid, X: Tensor, weights: Tensor | None = None) -> None:
        self.grid, self.X, self.weights = grid, X.double(), weights
        self._matrix = grid.matrix(self.X)
        self._transposed = transposed(self._matrix)

    @staticmethod
    def forecast(grid: RegularGrid, n_rows: int) -> int:
        """Return the bytes of the stored weights of this many rows."""
        return _WEIGHT_BYTES * n_rows * grid.scheme.width**grid.n_inputs

    @torch.no_grad()
    def __matmul__(self, vectors: Tensor) -> Tensor:
        V = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
        if V.ndim != 2 or len(V) != self.n:
            raise InvalidInputError(f"RowsGram multiplies vectors of shape ({self.n}, s); got {tuple(vectors.shape)}.")
        return self.scatter(self._weighted(self._matrix @ V.contiguous())).reshape(vectors.shape)

    def scatter(self, values: Tensor) -> Tensor:
        """Return ``W' @ values`` for values of shape (n, s)."""
        return self._transposed @ values.contiguous()

    def _weighted(self, values: Tensor, power: float = 1.0) -> Tensor:
        return values if self.weights is None else values * self.weights[:, None] ** power

    def draw(self, n_columns: int, generator: torch.Generator) -> Tensor:
        """Return draws of ``N(0, W' D W)``, shape (m, n_columns)."""
        return self.scatter(self._weighted(standard_normal(len(self.X), n_columns, generator=generator), 0.5))

    def row_sums(self) -> Tensor:
        return self.scatter(self._weighted(torch.ones(len(self.X), 1, dtype=torch.float64)))[:, 0]

    @property
    def trace(self) -> float:
        squares = self._matrix.values().reshape(len(self.X), -1).square().sum(1, keepdim=True)
        return float(self._weighted(squares).sum())

    @property
    def offset_sums(self) -> Tensor:
        """Sum of the entries at each of `gigagp.operators.grid.statistics.gram.half_offsets`."""
        grid, reach, d = self.grid, self.grid.scheme.reach, self.grid.n_inputs
        total = torch.zeros((2 * reach + 1) ** d, dtype=torch.float64)
        for rows in torch.arange(len(self.X)).split(max(1, _BLOCK // len(total))):
            weights = grid.scheme.weights(grid.located(self.X[rows])[1])  # (n, d, width)
            padded = torch.nn.functional.pad(weights, (reach, reach))
            lags = torch.stack(
                [(weights * padded[..., k : k + weights.shape[-1]]).sum(-1) for k in range(2 * reach + 1)], -1
            )
            products = torch.ones(len(rows), 1, dtype=torch.float64)
            for axis in range(d):
                products = (products.unsqueeze(2) * lags[:, axis].unsqueeze(1)).flatten(1)
            total += (products if self.weights is None else products * self.weights[rows, None]).sum(0)
        return total[-len(half_offsets(grid)) :]  # offsets are in lexicographic order, and zero is in the middle

    def dense(self) -> Tensor:
        found = self @ torch.eye(self.n, dtype=torch.float64)
        return 0.5 * (found + found.T)

    def diagonal(self) -> Tensor:
        squares = torch.zeros(self.n, dtype=torch.float64)
        values = self._weighted(self._matrix.values().reshape(len(self.X), -1).square())
        return squares.index_add_(0, self._matrix.col_indices(), values.flatten())

    def __add__(self, other: RowsGram) -> RowsGram:
        if other.grid != self.grid or not isinstance(other, RowsGram):
            raise InvalidInputError("Only matrices of rows that are held, on the same grid, can be added.")
        weights = None
        if self.weights is not None or other.weights is not None:
            own = [torch.ones(len(one.X)) if one.weights is None else one.weights for one in (self, other)]
            weights = torch.cat([one.double() for one in own])
        return RowsGram(self.grid, torch.cat([self.X, other.X]), weights)

    def __sub__(self, other: RowsGram) -> RowsGram:
        """Raise `InvalidInputError`: rows that are held are not searched for those to take out."""
        raise InvalidInputError("Rows cannot be removed from statistics without W'W. Fit again without them.")

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return self._matrix.values().numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weights, of which products read two orders."""
        return sum(part.values().nbytes + part.col_indices().nbytes for part in (self._matrix, self._transposed))

    @property
    def state(self) -> dict[str, Tensor]:
        """The rows and their weights, for `from_state`."""
        return {"X": self.X} | ({} if self.weights is None else {"weights": self.weights})

    @classmethod
    def from_state(cls, grid: RegularGrid, state: Mapping[str, Any]) -> RowsGram:
        """Return the matrix that `state` described."""
        return cls(grid, state["X"], state.get("weights"))


def transposed(matrix: Tensor) -> Tensor:
    """Return the transpose of a sparse CSR matrix in CSR form."""
    with warnings.catch_warnings():  # "support is in beta state"
        warnings.filterwarnings("ignore", message="Sparse CSR", category=UserWarning)
        return matrix.t().to_sparse_csr()
