"""The joint distribution of rows given rows that all of them have as neighbours, such as a curve given other curves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.model.model import NOISE
from gigagp.neighbours.batched import diagonal_directions
from gigagp.neighbours.conditionals import Pool
from gigagp.products import select
from gigagp.products.dense import cholesky
from gigagp.products.engine import weights_of
from gigagp.runtime.memory import require

#: Matrices of a joint distribution and its derivatives at the peak.
_MATRICES = 6


@dataclass(frozen=True)
class Joint:
    """Some rows of a pool given others: the last rows of the Cholesky factor of the covariance of all of them.

    Each row is conditioned on those that are given and on the rows before it, so that the product of their densities is
    the joint density.

    Attributes
    ----------
    pool : Pool
        Where the rows are.
    every : Tensor of shape (m + b,)
        The m rows that are given, and then the b rows.
    m : int
        How many are given.
    factor : Tensor of shape (m + b, m + b)
        The lower Cholesky factor.
    """

    pool: Pool
    every: Tensor
    m: int
    factor: Tensor

    @classmethod
    def of(cls, pool: Pool, rows: Tensor, given: Tensor) -> Joint:
        """Return the distribution of rows (b,) given others (m,)."""
        every = torch.cat([given, rows])
        return cls(pool, every, len(given), factor_of(pool, every))

    def whitened(self, values: Tensor) -> Tensor:
        """Return the errors of the rows over their standard deviations for values of the pool (n, k), (b, k)."""
        return self._whitened(values)[self.m :]

    def _whitened(self, values: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor, values[self.every].double(), upper=False)

    @property
    def log_variance(self) -> float:
        """The sum of the logarithms of the conditional variances."""
        return 2 * float(self.factor.diagonal()[self.m :].log().sum())

    def inverse(self) -> Tensor:
        """Return W with `whitened` values ``W values[every]``: the last b rows of the inverse factor."""
        size = len(self.every)
        last = torch.eye(size, dtype=torch.float64, device=self.factor.device)[:, self.m :]
        return torch.linalg.solve_triangular(self.factor.mT, last, upper=True).mT

    def gradient(self, values: Tensor) -> dict[str, Tensor]:
        """Return the gradient of the log density of the rows, the sum over the columns of values (n, t).

        It includes the noise variance. The derivative by the covariance C of all rows is that of their joint density
        less that of the rows that are given: with ``a = C^-1 y`` for both, ``(a a' - a_0 a_0' - t W' W) / 2``.
        """
        z, t = self._whitened(values), values.shape[1]
        both = torch.cat([z, z], 1)
        both[self.m :, t:] = 0.0
        solved = torch.linalg.solve_triangular(self.factor.mT, both, upper=True)
        W = self.inverse()
        slope = solved[:, :t] @ solved[:, :t].mT - solved[:, t:] @ solved[:, t:].mT - t * (W.mT @ W)
        slope.mul_(0.5)
        kernel, X, budget = self.pool.kernel, self.pool.X[self.every].double(), self.pool.budget
        engine = select(kernel, X.device, torch.float64)
        found = engine.gradient(kernel, X, X, weights_of(slope), symmetric=True, budget=budget)
        diagonals, by_parameter = diagonal_directions(kernel, X)
        of_noise = by_parameter @ (slope.diagonal() @ diagonals)
        *of_kernel, noise = of_noise.split([*(value.numel() for value in found.values()), 1])
        gradient = {
            name: value + own.reshape(value.shape) for (name, value), own in zip(found.items(), of_kernel, strict=True)
        }
        return {**gradient, NOISE: noise[0]}


def factor_of(pool: Pool, rows: Tensor) -> Tensor:
    """Return the lower Cholesky factor of the covariance of rows of a pool, with their noise."""
    size = len(rows)
    require(8 * _MATRICES * size**2, pool.budget, f"The covariance of {size:,} rows", "Take fewer neighbours.")
    kernel, X = pool.kernel, pool.X[rows].double()
    H = select(kernel, X.device, torch.float64).dense(kernel, X, budget=pool.budget)
    H.diagonal().add_(pool.noise[rows])
    return cholesky(H, "the covariance of a curve and its neighbours", overwrite=True)
