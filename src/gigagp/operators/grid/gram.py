"""The matrix ``W'W``, which represents the rows in grid inference, stored or computed from the rows."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.grids import GridSum, RegularGrid


class Gram(Protocol):
    """Interface of the matrix ``W'W`` of interpolation weights that the grid operators require."""

    @property
    def grid(self) -> RegularGrid | GridSum:
        """The grid, or the grids."""
        ...

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the product with ``vectors`` of shape (m, s)."""
        ...

    def row_sums(self) -> Tensor:
        """Return ``W'1``, shape (m,), which is ``W'W 1`` on one grid."""
        ...


class RowsGram:
    """``W'W`` without forming it: ``W'(W v)`` over the stored rows.

    When to use: if the grid has so many nodes that ``W'W`` would hold more numbers than ``W`` (more than n 4^d / 7^d
    nodes for cubic interpolation). Each product then costs O(n 4^d) (Yadav et al. 2021, section 3, last paragraph).

    Parameters
    ----------
    grid : RegularGrid
    X : Tensor of shape (n, d)
        Inputs; the grid must accept every row.
    """

    def __init__(self, grid: RegularGrid, X: Tensor) -> None:
        self.grid = grid
        self.X = X.double()
        self._weights = grid.matrix(self.X)
        self._transposed = transposed(self._weights)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the product with ``vectors`` of shape (m, s), float64."""
        if vectors.ndim != 2 or len(vectors) != self.grid.size:
            msg = f"RowsGram multiplies vectors of shape ({self.grid.size}, s); got {tuple(vectors.shape)}."
            raise InvalidInputError(msg)
        return self._transposed @ (self._weights @ vectors)

    def row_sums(self) -> Tensor:
        """Return ``W'1``, shape (m,), which equals ``W'W 1`` because the rows of W sum to one."""
        return (self._transposed @ torch.ones(len(self.X), 1, dtype=torch.float64))[:, 0]

    @property
    def nnz(self) -> int:
        """Number of stored weights."""
        return self._weights.values().numel()

    @property
    def nbytes(self) -> int:
        """Bytes of the stored weights, of which products read two orders."""
        return sum(part.values().nbytes + part.col_indices().nbytes for part in (self._weights, self._transposed))


def transposed(matrix: Tensor) -> Tensor:
    """Return the transpose of a sparse CSR matrix in CSR form."""
    import warnings

    with warnings.catch_warnings():  # "support is in beta state"
        warnings.filterwarnings("ignore", message="Sparse CSR", category=UserWarning)
        return matrix.t().to_sparse_csr()
