"""What a solver needs to know of a matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

#: Rows or columns of an operator: a slice, or a tensor of indices.
Index = slice | torch.Tensor


class LinearOperator(ABC):
    """A square matrix, self-adjoint and positive definite in its own inner product.

    A solver multiplies with it, and asks it for its inner product: with the plain dot product conjugate
    gradients is ordinary CG, with ``<a, b> = a' M b`` it is CG on an operator that is self-adjoint there.
    """

    #: number of rows
    n: int
    dtype: torch.dtype
    device: torch.device
    #: a positive number that no eigenvalue is below, where one is known
    floor: float | None = None

    @property
    def dimension(self) -> int:
        """Dimension of the space; less than ``n`` where vectors are held with more numbers than they have freedoms."""
        return self.n

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return (self.n, self.n)

    @property
    def rounding(self) -> float:
        """Relative error of one operation in a product."""
        return torch.finfo(self.dtype).eps

    @property
    def fast(self) -> LinearOperator:
        """The operator that a solver's loop may multiply with where errors do not remain; the same one by default."""
        return self

    @abstractmethod
    def __matmul__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the product with ``vectors`` of shape (n, s)."""

    def residual(self, right_hand_sides: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return right-hand sides less products, both (n, s); an operator may know a way with less cancellation."""
        return right_hand_sides - self @ vectors

    def inner(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the inner products of the columns, shape (s,)."""
        return (left * right).sum(0)


class SymmetricMatrix(LinearOperator):
    """A symmetric positive definite matrix whose entries can be read in blocks.

    Alternating projections, stochastic gradient descent and the preconditioners work on these.
    """

    @property
    def fast(self) -> SymmetricMatrix:
        """The matrix that a solver's loop may multiply with where errors do not remain; the same one by default."""
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

    # Every matrix here is "smooth part + diagonal noise"; preconditioners approximate the smooth part.
    @abstractmethod
    def noise(self) -> torch.Tensor:
        """Return the diagonal that is added to the smooth part, shape (n,)."""

    def coordinates(self) -> torch.Tensor | None:
        """Return points (n, d) whose distances mirror the correlation of rows, or None; used to cluster rows."""
        return None
