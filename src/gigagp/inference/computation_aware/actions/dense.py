"""Actions without structure, and actions that select single rows."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions.base import (
    Actions,
    LearnableActions,
    check_rows,
    smooth_columns_product,
)
from gigagp.kernels import Kernel
from gigagp.operators import KernelMatrix
from gigagp.products import LowRankWeights, cross_covariance, cross_product, select

#: A column is dependent if its part outside the span of the previous ones is below this share of it (times n).
_DEPENDENT = 1e-13


class DenseActions(LearnableActions):
    """Actions given by an arbitrary matrix.

    When to use: for actions from a solver or an eigendecomposition. ``K @ S`` costs ``n^2 i`` operations.

    Parameters
    ----------
    matrix : Tensor of shape (n, i)
        S, with linearly independent columns.

    Raises
    ------
    InvalidInputError
        If the matrix has more columns than rows, is not finite, or has linearly dependent columns.
    """

    def __init__(self, matrix: Tensor) -> None:
        if matrix.ndim != 2 or not matrix.is_floating_point() or not bool(torch.isfinite(matrix).all()):
            msg = f"matrix of DenseActions must be a finite real (n, i) tensor; got shape {tuple(matrix.shape)}."
            raise InvalidInputError(msg)
        if matrix.shape[1] > matrix.shape[0]:
            raise InvalidInputError(
                f"matrix of DenseActions must not have more actions than rows; got {matrix.shape[1]} actions of "
                f"{matrix.shape[0]} rows. With as many actions as rows, inference is exact."
            )
        self.values = matrix.to(torch.float64).contiguous()
        self.n, self.count = matrix.shape
        norms = self.values.norm(dim=0)
        zero = (norms == 0).nonzero()[:, 0].tolist()
        if zero:
            raise InvalidInputError(f"actions of DenseActions must not be zero; column {zero[0]} is.")
        triangle = torch.linalg.qr(self.values / norms, mode="r").R if self.count else self.values
        dependent = (triangle.diagonal().abs() < _DEPENDENT * self.n).nonzero()[:, 0].tolist()
        if dependent:
            raise InvalidInputError(
                f"actions of DenseActions must be linearly independent; column {dependent[0]} is a combination of "
                "those before it. Leave it out: it would add nothing."
            )

    @classmethod
    def trusted(cls, matrix: Tensor) -> Self:
        """Return actions with columns known to be independent, without the check, which costs ``n i^2``."""
        actions = object.__new__(cls)
        actions.values = matrix.to(torch.float64).contiguous()  # the layout affects the last digits of products
        actions.n, actions.count = matrix.shape
        return actions

    def describe(self) -> str:
        return "dense actions"

    def dense(self) -> Tensor:
        return self.values

    def combine(self, coefficients: Tensor, rows: slice = slice(None)) -> Tensor:
        return self.values[rows] @ coefficients.to(torch.float64)

    def project(self, vectors: Tensor) -> Tensor:
        check_rows(vectors, self.n)
        return self.values.T @ vectors.to(torch.float64)

    def gram(self, weights: Tensor) -> Tensor:
        return self.values.T @ (weights.to(torch.float64)[:, None] * self.values)

    def row_quadratics(self, coefficients: Tensor) -> Tensor:
        return (self.values @ coefficients).mul_(self.values).sum(1)

    def kernel_product(self, matrix: KernelMatrix) -> Tensor:
        return self.kernel_product_at(matrix, self.values)

    def cross_product(self, kernel: Kernel, X_new: Tensor, X: Tensor, budget: int) -> Tensor:
        return cross_product(kernel, X_new, X, self.values.to(X), budget=budget)

    def kernel_gradient(self, matrix: KernelMatrix, left: Tensor) -> dict[str, Tensor]:
        weights = LowRankWeights(left.to(matrix.dtype), self.values.to(matrix.dtype))
        engine = select(matrix.kernel, matrix.device, matrix.dtype)
        return engine.gradient(matrix.kernel, matrix.X, matrix.X, weights, symmetric=False, budget=matrix.memory_budget)

    def state(self) -> dict[str, Tensor]:
        return {"matrix": self.values}

    def outer_at(self, left: Tensor, right: Tensor) -> Tensor:
        return left.to(torch.float64) @ right.to(torch.float64).T

    def combine_at(self, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
        product = self.values @ coefficients
        return product if weights is None else weights[:, None] * product

    def kernel_product_at(self, matrix: KernelMatrix, left: Tensor) -> Tensor:
        return smooth_columns_product(matrix, slice(0, self.n), left)


class RowActions(Actions):
    """Unit vectors: each action is one row, so that inference uses a subset of the data.

    The posterior is that of an exact Gaussian process on the chosen rows, but the ELBO still evaluates it on all rows.
    ``K @ S`` costs ``n i`` kernel entries.

    Parameters
    ----------
    rows : Tensor of shape (i,)
        Distinct row numbers.
    n : int
        Total number of rows.
    """

    def __init__(self, rows: Tensor, n: int) -> None:
        chosen = rows.to(torch.int64)
        if chosen.ndim != 1 or bool(((chosen < 0) | (chosen >= n)).any()) or chosen.unique().numel() < chosen.numel():
            msg = f"rows of RowActions must be different numbers from 0 to {n - 1}; got shape {tuple(rows.shape)}."
            raise InvalidInputError(msg)
        self.rows = chosen
        self.n, self.count = n, chosen.numel()
        self._position = torch.full((n,), -1, device=chosen.device)
        self._position[chosen] = torch.arange(self.count, device=chosen.device)

    def describe(self) -> str:
        return "unit vectors"

    def dense(self) -> Tensor:
        matrix = torch.zeros(self.n, self.count, dtype=torch.float64, device=self.rows.device)
        matrix[self.rows, torch.arange(self.count, device=self.rows.device)] = 1.0
        return matrix

    def combine(self, coefficients: Tensor, rows: slice = slice(None)) -> Tensor:
        position = self._position[rows]
        combined = coefficients.new_zeros(len(position), coefficients.shape[1], dtype=torch.float64)
        combined[position >= 0] = coefficients.to(torch.float64)[position[position >= 0]]
        return combined

    def project(self, vectors: Tensor) -> Tensor:
        check_rows(vectors, self.n)
        return vectors[self.rows].to(torch.float64)

    def gram(self, weights: Tensor) -> Tensor:
        return torch.diag(weights.to(torch.float64)[self.rows])

    def row_quadratics(self, coefficients: Tensor) -> Tensor:
        found = torch.zeros(self.n, dtype=torch.float64, device=self.rows.device)
        found[self.rows] = coefficients.diagonal()
        return found

    def kernel_product(self, matrix: KernelMatrix) -> Tensor:
        engine = select(matrix.kernel, matrix.device, matrix.dtype)
        return engine.dense(matrix.kernel, matrix.X, matrix.X[self.rows], budget=matrix.memory_budget)

    def cross_product(self, kernel: Kernel, X_new: Tensor, X: Tensor, budget: int) -> Tensor:
        return cross_covariance(kernel, X_new, X[self.rows], budget=budget)

    def kernel_gradient(self, matrix: KernelMatrix, left: Tensor) -> dict[str, Tensor]:
        engine = select(matrix.kernel, matrix.device, matrix.dtype)
        weights = left.to(matrix.dtype)
        return engine.gradient(
            matrix.kernel,
            matrix.X,
            matrix.X[self.rows],
            lambda rows, columns: weights[rows, columns],
            symmetric=False,
            budget=matrix.memory_budget,
        )

    def state(self) -> dict[str, Tensor]:
        return {"rows": self.rows}
