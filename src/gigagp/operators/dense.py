"""A symmetric matrix stored in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.indexing import add_matching, add_rows, as_noise, check_vectors, take
from gigagp.products.dense import tall_product
from gigagp.products.stored import stored_product


class DenseMatrix(SymmetricMatrix):
    """A symmetric positive definite matrix stored in memory, plus noise on its diagonal.

    When to use: for tests, for matrices that are not kernel matrices, and to apply a solver to your own matrix.

    Parameters
    ----------
    matrix : Tensor of shape (n, n)
        The smooth part. It is not copied. Symmetry is checked, but definiteness is not.
    noise : float or Tensor of shape () or (n,)
        Added to the diagonal; must not be negative.

    Raises
    ------
    InvalidInputError
        If the matrix is not square, symmetric and finite, or the noise does not match it.
    """

    def __init__(self, matrix: Tensor, noise: float | Tensor = 0.0) -> None:
        square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] > 0
        if not square or not matrix.is_floating_point():
            msg = f"matrix of DenseMatrix must be square and real; got shape {tuple(matrix.shape)}, {matrix.dtype}."
            raise InvalidInputError(msg)
        asymmetry = float((matrix - matrix.T).abs().amax())
        # The comparison is negated so that NaN is rejected too.
        if not asymmetry <= 1e3 * torch.finfo(matrix.dtype).eps * float(matrix.abs().amax()):
            msg = "matrix of DenseMatrix must be symmetric and finite; pass (matrix + matrix.T) / 2 if it nearly is."
            raise InvalidInputError(msg)
        self.matrix = matrix
        self.n = matrix.shape[0]
        self.dtype = matrix.dtype
        self.device = matrix.device
        self._noise = as_noise(noise, matrix[:, 0], "noise of DenseMatrix")

    def __matmul__(self, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        noise = self._noise if vectors.ndim == 1 else self._noise[:, None]
        return stored_product(self.matrix, vectors) + noise * vectors

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal() + self._noise

    def block(self, rows: Index, columns: Index) -> Tensor:
        return add_matching(take(self.matrix, rows, columns), rows, columns, self._noise)

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        return stored_product(self.matrix[rows], vectors) + self._noise[rows, None] * vectors[rows]

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self._noise[columns].shape[0])
        product = tall_product(self.matrix[:, columns], vectors)
        return add_rows(product, columns, self._noise[columns, None] * vectors)

    def noise(self) -> Tensor:
        return self._noise

    def to_dense(self) -> Tensor:
        """Return the whole matrix with the noise."""
        return self.matrix + torch.diag(self._noise)
