"""What grid operators need of the matrix ``W'W``, which represents the rows."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gigagp.operators.grid.statistics import GridSum, RegularGrid


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
