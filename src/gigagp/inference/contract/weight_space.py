"""Gaussian processes with m features, computed in the space of their weights from sums over rows and m x m matrices.

With features ``F`` of shape (n, m) and noise ``N``, the covariance of the targets is ``F F' + N``. By the Woodbury
identity and the determinant lemma, all results follow from ``F' N^-1 F`` and a few other products, which are sums over
rows. Random features and inducing points are two choices of F.

Rasmussen and Williams 2006, section 2.1.2 and appendix A.3, http://gaussianprocess.org/gpml/
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.contract.trend import Trend
from gigagp.products.dense import cholesky, symmetric_inverse


@dataclass(frozen=True)
class RowSums:
    """Sums over rows that determine a model with features; all are float64."""

    gram: Tensor  # ``F' N^-1 F``, (m, m)
    cross: Tensor  # ``F' N^-1 [Y, mean basis]``, (m, t + p)
    products: Tensor  # ``[Y, basis]' N^-1 [Y, basis]``, (t + p, t + p)
    log_noise: Tensor  # ``log det N``, ()

    @classmethod
    def of_posterior(
        cls,
        factor: Tensor,
        weights: Tensor,
        basis_weights: Tensor,
        coefficients: Tensor,
        products: Tensor,
        log_noise: Tensor,
    ) -> RowSums:
        """Return the sums that a `WeightSpace` was fitted to, from its fields and those sums that it has not."""
        gram = factor @ factor.T
        of_basis = gram @ basis_weights
        cross = torch.cat([gram @ weights + of_basis @ coefficients, of_basis], 1)
        gram.diagonal().sub_(1)
        return cls(gram, cross, products, log_noise)

    def plus(self, other: RowSums) -> RowSums:
        """Return the sums over the rows of both."""
        return RowSums(*(own + its for own, its in zip(vars(self).values(), vars(other).values(), strict=True)))

    def zeros(self) -> RowSums:
        """Return zeros of the same shapes, for the accumulation of derivatives."""
        return RowSums(*map(torch.zeros_like, vars(self).values()))

    def take(self, columns: Tensor, factors: Tensor) -> RowSums:
        """Return the sums for a subset of the feature columns, each multiplied by a factor."""
        columns, factors = columns.to(self.gram.device), factors.to(self.gram)
        gram = self.gram[columns[:, None], columns] * factors[:, None] * factors
        return RowSums(gram, self.cross[columns] * factors[:, None], self.products, self.log_noise)

    def add_(self, weight: float, other: RowSums, columns: Tensor, factors: Tensor) -> None:
        """Add ``weight`` times a derivative with respect to the sums that `take` returned for these columns."""
        columns, factors = columns.to(self.gram.device), factors.to(self.gram)
        self.gram[columns[:, None], columns] += weight * other.gram * factors[:, None] * factors
        self.cross[columns] += weight * other.cross * factors[:, None]
        self.products.add_(other.products, alpha=weight)
        self.log_noise.add_(other.log_noise, alpha=weight)


@dataclass(frozen=True)
class WeightSpace:
    """The posterior of the feature weights, ``N(weights, (I + F' N^-1 F)^-1)``, with the log marginal likelihood."""

    factor: Tensor  # lower Cholesky factor of ``A = I + F' N^-1 F``, (m, m)
    weights: Tensor  # posterior mean, ``A^-1 F' N^-1 (Y - basis coefficients)``, (m, t)
    trend: Trend  # coefficients of the mean's basis by generalised least squares
    basis_weights: Tensor  # ``weights`` with the mean's basis functions in place of the targets, (m, p)
    data_fit: float  # ``r' H^-1 r`` summed over targets
    log_determinant: float  # ``log det H``
    value: float  # log marginal likelihood, summed over targets

    @classmethod
    def fit(cls, sums: RowSums, n_rows: int, n_targets: int) -> WeightSpace:
        """Return the posterior computed from sums over rows."""
        gram, t = sums.gram, n_targets
        matrix = gram.clone()
        matrix.diagonal().add_(1)
        factor = cholesky(matrix, "the matrix of the features")
        del matrix
        whitened = torch.linalg.solve_triangular(factor, sums.cross, upper=False)
        products = sums.products - whitened.T @ whitened  # [Y, basis]' H^-1 [Y, basis], by Woodbury
        trend = Trend.from_products(products[t:, t:], products[t:, :t])
        residual = _residual(trend.coefficients)
        solved = torch.cholesky_solve(torch.cat([sums.cross @ residual, sums.cross[:, t:]], 1), factor)
        weights, basis_weights = solved[:, :t].contiguous(), solved[:, t:].contiguous()
        data_fit = float(((products @ residual) * residual).sum())
        log_determinant = 2 * float(factor.diagonal().log().sum()) + float(sums.log_noise)
        value = -0.5 * (data_fit + t * (log_determinant + n_rows * math.log(2 * math.pi)))
        return cls(factor, weights, trend, basis_weights, data_fit, log_determinant, value)

    def slope(self) -> RowSums:
        """Return the derivative of the log marginal likelihood with respect to the sums over rows.

        The mean's coefficients maximize the likelihood, so no derivative passes through them.
        """
        t = self.weights.shape[1]
        # LAPACK refuses a matrix without rows, which occurs for a kernel of white noise alone
        inverse = symmetric_inverse(self.factor) if len(self.factor) else self.factor.clone()
        residual = _residual(self.trend.coefficients)
        gram = torch.addmm(inverse, self.weights, self.weights.T, beta=-0.5 * t, alpha=-0.5)
        return RowSums(gram, self.weights @ residual.T, -0.5 * residual @ residual.T, gram.new_tensor(-0.5 * t))


def _residual(coefficients: Tensor) -> Tensor:
    """Return R, shape (t + p, t), such that ``[Y, basis] R = Y - basis coefficients``."""
    identity = torch.eye(coefficients.shape[1], dtype=coefficients.dtype, device=coefficients.device)
    return torch.cat([identity, -coefficients])
