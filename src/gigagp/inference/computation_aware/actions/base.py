"""The interface of actions: linear combinations of the rows on which computation-aware inference conditions."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.operators import KernelMatrix

#: Number of float64 entries in one block of rows; a few such blocks exist at a time.
_BLOCK_ENTRIES = 2**21


class Actions(ABC):
    """The linearly independent columns of a matrix S, shape (n, i); inference conditions on ``S' y`` instead of ``y``.

    The matrix itself is not formed if its structure allows. All results are float64, except products with a kernel
    matrix, which have the dtype of the rows.

    Attributes
    ----------
    n : int
        Number of rows.
    count : int
        Number of actions i.
    """

    n: int
    count: int

    @abstractmethod
    def describe(self) -> str:
        """Return the kind of actions in words."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return S, shape (n, i)."""

    @abstractmethod
    def combine(self, coefficients: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return ``S[rows] @ coefficients``, shape (number of rows, s)."""

    @abstractmethod
    def project(self, vectors: Tensor) -> Tensor:
        """Return ``S' @ vectors``, shape (i, s)."""

    @abstractmethod
    def gram(self, weights: Tensor) -> Tensor:
        """Return ``S' diag(weights) S``, shape (i, i)."""

    @abstractmethod
    def row_quadratics(self, coefficients: Tensor) -> Tensor:
        """Return the diagonal of ``S @ coefficients @ S'``, shape (n,), for coefficients of shape (i, i)."""

    @abstractmethod
    def kernel_product(self, matrix: KernelMatrix) -> Tensor:
        """Return ``K @ S``, shape (n, i), where K is the smooth part of a matrix, without its noise and white part."""

    @abstractmethod
    def cross_product(self, kernel: Kernel, X_new: Tensor, X: Tensor, budget: int) -> Tensor:
        """Return ``K(X_new, X) @ S``, shape (m, i)."""

    @abstractmethod
    def kernel_gradient(self, matrix: KernelMatrix, left: Tensor) -> dict[str, Tensor]:
        """Return ``sum_ij (left @ S')_ij dK_ij / d parameter`` for every hyperparameter, for left of shape (n, i)."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a model file stores."""


class LearnableActions(Actions):
    """Actions whose entries, stored in `values`, can be learned by gradients of a loss.

    Methods whose names end in ``_at`` return a matrix of shape (n, i) restricted to its pattern, the entries where S
    may be nonzero, in the shape of `values`.
    """

    values: Tensor

    @abstractmethod
    def outer_at(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ``left @ right'`` on the pattern, for left (n, c) and right (i, c)."""

    @abstractmethod
    def combine_at(self, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return ``diag(weights) @ S @ coefficients`` on the pattern, for coefficients of shape (i, i)."""

    @abstractmethod
    def kernel_product_at(self, matrix: KernelMatrix, left: Tensor) -> Tensor:
        """Return ``K @ left`` on the pattern, without the noise and white part, for left of shape (n, i)."""


def smooth_columns_product(matrix: KernelMatrix, columns: slice, vectors: Tensor) -> Tensor:
    """Return ``K[:, columns] @ vectors`` without the noise and the white part."""
    vectors = vectors.to(matrix.dtype)
    product = matrix.columns_product(columns, vectors)
    product[columns] -= matrix.noise()[columns, None] * vectors
    return product


def row_blocks(n: int, width: int) -> list[slice]:
    """Return slices that split n rows, with ``width`` numbers each, into blocks of about `_BLOCK_ENTRIES` numbers."""
    size = max(1, _BLOCK_ENTRIES // max(width, 1))
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def check_rows(vectors: Tensor, n: int) -> None:
    """Raise `InvalidInputError` unless vectors have one row for each row of S."""
    if vectors.ndim != 2 or vectors.shape[0] != n:
        msg = f"vectors must have shape ({n}, s), a row for each row of the actions; got {tuple(vectors.shape)}."
        raise InvalidInputError(msg)
