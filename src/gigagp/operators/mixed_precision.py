"""A kernel matrix whose products are computed in float32 and returned in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.indexing import add_rows

if TYPE_CHECKING:
    from gigagp.operators.kernel_matrix import KernelMatrix


class RoundedMatrix(SymmetricMatrix):
    """``H`` with products of its smooth part in float32 and everything else in float64.

    A solver's loop multiplies with this matrix if its residuals come from the exact one. The error of a product is
    about 1e-6 of its size, and it does not persist in a solution whose residual was computed exactly.

    Parameters
    ----------
    exact : KernelMatrix
        The matrix in float64, which supplies entries, diagonal and noise.
    smooth : KernelMatrix
        The smooth part of the same matrix (without noise) in float32.
    """

    def __init__(self, exact: KernelMatrix, smooth: KernelMatrix) -> None:
        self.exact, self.smooth = exact, smooth
        self.n, self.dtype, self.device = exact.n, exact.dtype, exact.device

    @property
    def storage(self) -> str:
        """Storage of the float32 matrix."""
        return self.smooth.storage

    @property
    def rounding(self) -> float:
        """Relative error of one operation in a product."""
        return self.smooth.rounding

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the product with ``vectors`` of shape (n, s)."""
        return (self.smooth @ vectors.float()).to(self.dtype).addcmul_(self.noise()[:, None], vectors)

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        """Return ``H[rows, :] @ vectors``."""
        product = self.smooth.rows_product(rows, vectors.float()).to(self.dtype)
        return product.addcmul_(self.noise()[rows, None], vectors[rows])

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        """Return ``H[:, columns] @ vectors``."""
        product = self.smooth.columns_product(columns, vectors.float()).to(self.dtype)
        return add_rows(product, columns, self.noise()[columns, None] * vectors)

    def diagonal(self) -> Tensor:
        """Return the exact diagonal."""
        return self.exact.diagonal()

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return exact entries."""
        return self.exact.block(rows, columns)

    def noise(self) -> Tensor:
        """Return the exact noise."""
        return self.exact.noise()

    def coordinates(self) -> Tensor | None:
        """Return the exact matrix's coordinates."""
        return self.exact.coordinates()

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the exact matrix's inner products."""
        return self.exact.inner(left, right)
