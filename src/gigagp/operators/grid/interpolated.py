"""Kernel interpolation in the space of the rows, the baseline of grid inference."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics.rows_gram import transposed


class InterpolatedKernelMatrix(LinearOperator):
    """``W K_G W' + noise`` on vectors of n rows: structured kernel interpolation (SKI, KISS-GP).

    It is the baseline of `GridOperator`, which has the same spectrum and the same iterates. Every product reads all
    rows and costs O(n 4^d + m log m). See Wilson and Nickisch (2015), arXiv:1503.01057, and Yadav et al. (2021),
    Definition 1, arXiv:2101.11751.
    """

    def __init__(self, kernel: GridKernel, X: Tensor, noise: float) -> None:
        if not noise > 0:
            msg = f"noise of InterpolatedKernelMatrix must be positive; got {noise!r}."
            raise InvalidInputError(msg)
        self.kernel, self.noise = kernel, float(noise)
        self.weights = kernel.grid.matrix(X.double())
        self._transposed = transposed(self.weights)
        self.n = len(X)
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.floor = self.noise
        self.grid_products = self.weight_products = 0

    def interpolate(self, values: Tensor) -> Tensor:
        """Return ``W @ values``, shape (n, s)."""
        self.weight_products += 1
        return self.weights @ values

    def scatter(self, values: Tensor) -> Tensor:
        """Return ``W' @ values``, shape (m, s)."""
        self.weight_products += 1
        return self._transposed @ values

    def __matmul__(self, vectors: Tensor) -> Tensor:
        self.grid_products += 1
        return self.interpolate(self.kernel @ self.scatter(vectors)).add_(vectors, alpha=self.noise)
