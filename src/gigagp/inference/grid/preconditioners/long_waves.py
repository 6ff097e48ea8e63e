"""A preconditioner for grid inference with kernels whose lengthscales exceed the grid."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor

from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.grid.factorised import GridOperator
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics.gram import Gram
from gigagp.operators.grid.sum_kernel import SumKernel
from gigagp.solvers.preconditioners import pivoting
from gigagp.solvers.preconditioners.base import Preconditioner, factor_with_jitter

#: Largest number of columns, and the divisor of the number of nodes that also bounds it.
MOST_COLUMNS, _SHARE_OF_NODES = 1000, 4
#: Largest number of bytes for the columns and their products with W'W.
_MOST_BYTES = 2**30


class LongWavesPreconditioner(Preconditioner):
    """``P = W L L' W' + noise`` for the factorised system, ``L L'`` a partial Cholesky factor of ``K_G``.

    By the Woodbury identity ``P^-1 z = (z - W L (noise + L'W'W L)^-1 L'W' z) / noise``. For vectors in the layout of
    `GridOperator` this takes two products with tall matrices of m rows. Pivots are drawn where there are rows: with
    probabilities proportional to the density of rows times the remaining variance, until the remaining weighted trace
    is less than the noise per column.

    When to use: if a lengthscale exceeds the grid, so that `gigagp.operators.grid.WhitenedOperator` has no root of the
    kernel on a torus of reasonable size. Such a kernel is smooth on the grid, and a few hundred columns contain
    everything that exceeds the noise (16 x 16 x 16 nodes, 20,000 rows, Matern-3/2 of lengthscales 0.3, 0.3 and 5 times
    the domain, a noise of a hundredth of the variance: 11 steps to 1e-3, where 1,000 without it are not enough).
    """

    epochs = 0.0
    is_lower_bound = True

    def __init__(self, operator: GridOperator, generator: torch.Generator, rank: int = MOST_COLUMNS) -> None:
        self.n, self._m, self.noise = operator.n, operator.m, operator.noise
        self._dimension = operator.n_rows
        self._starts, self._has_sources = operator.starts, operator.has_sources
        rank = max(1, min(rank, self._m // _SHARE_OF_NODES, _MOST_BYTES // (16 * self._m)))
        weights = operator.gram.row_sums().clamp_min(0)
        # A node that only the tails of interpolation weights reach carries no information of its own.
        weights = torch.where(weights > 0.05, weights, 0.0)
        factor = pivoting.random(
            SmoothMatrix(operator.kernel, operator.kernel.between),
            rank,
            generator,
            weights=weights,
            enough=operator.noise,
        )
        self._columns, self.pivots = factor.columns, factor.pivots
        self._triangle = factor.columns[factor.pivots]
        self._gram_columns = operator.gram @ self._columns
        capacitance = self._columns.T @ self._gram_columns
        capacitance = 0.5 * (capacitance + capacitance.T)
        capacitance.diagonal().add_(self.noise)
        (self._factor,), self.jitter = factor_with_jitter(capacitance.unsqueeze(0))

    def on(self, operator: GridOperator) -> LongWavesPreconditioner:
        """Return this preconditioner for an operator with the same kernel, rows and noise but other starts."""
        other = copy.copy(self)
        other.n, other._starts, other._dimension = operator.n, operator.starts, operator.n_rows
        other._has_sources = operator.has_sources
        return other

    @property
    def rank(self) -> int:
        return self._columns.shape[1]

    def apply(self, vectors: Tensor) -> Tensor:
        """Return ``P^-1`` times vectors in the layout of `GridOperator`, shape (n, s)."""
        m = self._m
        weights = torch.cholesky_solve(self._columns.T @ vectors[m : 2 * m], self._factor)
        result = vectors.clone()
        result[:m].addmm_(self._columns, weights, alpha=-1)
        result[m : 2 * m].addmm_(self._gram_columns, weights, alpha=-1)
        if self._has_sources:
            result[2 * m : 3 * m] -= self._sources(weights)
        return result.div_(self.noise)

    def posterior_sources(self, cross: Tensor) -> Tensor:
        """Return q with ``K_G q`` the posterior mean given ``cross = W'z`` if the kernel were ``L L'``."""
        return self._sources(torch.cholesky_solve(self._columns.T @ cross, self._factor))

    @property
    def degrees_of_freedom(self) -> float:
        """Effective number of column weights that the data determine; at most the rank."""
        return self.rank - self.noise * float(torch.cholesky_inverse(self._factor).diagonal().sum())

    def _sources(self, weights: Tensor) -> Tensor:
        """Return q with ``K_G q = L weights``, shape (m, s), which is zero except at the pivots.

        L is ``K_G[:, p] C^-T``, where C is the triangle formed by the rows of L at the pivots p.
        """
        result = weights.new_zeros(self._m, weights.shape[1])
        result[self.pivots] = torch.linalg.solve_triangular(self._triangle.T, weights, upper=True)
        return result

    def transform_normal(self, normal: Tensor) -> Tensor:
        """Return ``W L g + noise^1/2 z_0``, a sample of N(0, P) if the operator's starts z_0 are samples of N(0, I).

        g consists of the first ``rank`` numbers of each column. An operator without starts is refused
        (`NotImplementedError`).
        """
        if self._starts is None:
            msg = "LongWavesPreconditioner can be sampled if its operator has starts, one for each sample."
            raise NotImplementedError(msg)
        drawn = normal[: self.rank].to(torch.float64)
        root = self.noise**0.5
        adjoint = self._gram_columns @ drawn + root * self._starts.cross
        return torch.cat([self._columns @ drawn, adjoint, root * adjoint.new_ones(1, adjoint.shape[1])])

    def log_determinant(self) -> float:
        assert self._dimension is not None, "log-determinants require an operator with n_rows"
        own = 2 * float(self._factor.diagonal().log().sum())
        return own + (self._dimension - self.rank) * math.log(self.noise)

    def describe(self) -> str:
        return f"{self.rank} columns of the kernel between nodes plus noise"


class SmoothMatrix(SymmetricMatrix):
    """A matrix without noise on the nodes, ``K_G`` or ``W'W``, of which a function returns blocks."""

    dtype, device = torch.float64, torch.device("cpu")

    def __init__(self, matrix: GridKernel | SumKernel | Gram, block: Callable[[Index, Index], Tensor]) -> None:
        self._matrix, self._block, self.n = matrix, block, matrix.n

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self._matrix @ vectors

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        return (self @ vectors)[rows]

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        return self.block(slice(None), columns) @ vectors

    def noise(self) -> Tensor:
        return torch.zeros(self.n, dtype=torch.float64)

    def diagonal(self) -> Tensor:
        return self._matrix.diagonal()

    def block(self, rows: Index, columns: Index) -> Tensor:
        return self._block(rows, columns)
