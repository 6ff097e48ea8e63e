"""The interface through which solvers, preconditioners and gradients access a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

#: Rows or columns of an operator: a slice, or a tensor of indices.
Index = slice | torch.Tensor


class LinearOperator(ABC):
    """A square matrix, self-adjoint and positive definite in its own inner product.

    Solvers use its products and its inner product. With the plain dot product, conjugate gradients is ordinary CG; with
    ``<a, b> = a' M b`` it is CG on an operator that is self-adjoint in that inner product.
    """

    #: number of rows
    n: int
    dtype: torch.dtype
    device: torch.device
    #: Positive lower bound on the eigenvalues, or None if none is known.
    floor: float | None = None

    @property
    def dimension(self) -> int:
        """Dimension of the space; less than ``n`` if vectors are represented by redundant numbers."""
        return self.n

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return (self.n, self.n)

    @property
    def rounding(self) -> float:
        """Relative error of one operation in a product."""
        return torch.finfo(self.dtype).eps

    @property
    def numbers(self) -> tuple[torch.Tensor, ...] | None:
        """What determines the entries, for given rows and a given form of the kernel; None if that is not known."""
        return None

    @property
    def fast(self) -> LinearOperator:
        """Faster operator for loops whose errors are corrected later; this operator itself by default."""
        return self

    @abstractmethod
    def __matmul__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the product with ``vectors`` of shape (n, s)."""

    def residual(self, right_hand_sides: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``right_hand_sides - H @ vectors``, shape (n, s); subclasses may do so with less cancellation."""
        return right_hand_sides - self @ vectors

    def inner(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the inner products of the columns, shape (s,)."""
        return (left * right).sum(0)


class SymmetricMatrix(LinearOperator):
    """A symmetric positive definite matrix whose entries can be read in blocks.

    Alternating projections, stochastic gradient descent and most preconditioners need such a matrix.
    """

    @property
    def fast(self) -> SymmetricMatrix:
        return self

    @abstractmethod
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal, shape (n,)."""

    @abstractmethod
    def block(self, rows: Index, columns: Index) -> torch.Tensor:
        """Return the entries ``[rows, columns]`` as a dense tensor."""

    @abstractmethod
    def rows_product(self, rows: Index, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``H[rows, :] @ vectors``, shape (number of rows, s)."""

    @abstractmethod
    def columns_product(self, columns: Index, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``H[:, columns] @ vectors``, shape (n, s)."""

    # Every matrix here is a smooth part plus diagonal noise; preconditioners approximate the smooth part.
    @abstractmethod
    def noise(self) -> torch.Tensor:
        """Return the diagonal that is added to the smooth part, shape (n,)."""

    def coordinates(self) -> torch.Tensor | None:
        """Return points (n, d) whose distances reflect the correlation of rows, for clustering rows, or None."""
        return None
