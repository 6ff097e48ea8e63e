"""What follows from targets and a dense Cholesky factor of their covariance (Rasmussen and Williams 2006, Alg. 2.1)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from gigagp.inference.contract.trend import Trend, estimate_trend
from gigagp.products.dense import symmetric_inverse


class SolvedByFactor(NamedTuple):
    """Solutions with ``H``, and the likelihood."""

    solutions: torch.Tensor  # ``H^-1 (Y - mean)``, (n, t)
    basis_solutions: torch.Tensor  # ``H^-1`` times the mean's basis, (n, p)
    trend: Trend  # coefficients of the mean's basis by generalised least squares
    value: float  # log marginal likelihood, summed over targets

    @classmethod
    def of(cls, Y: torch.Tensor, basis: torch.Tensor, factor: torch.Tensor) -> SolvedByFactor:
        """Solve for targets (n, t) and the mean's basis (n, p) with the lower factor of ``H``, (n, n)."""
        n, t = Y.shape
        solutions = torch.cholesky_solve(torch.cat([Y, basis], 1), factor)
        solved_basis = solutions[:, t:]
        trend = estimate_trend(basis, Y, solved_basis)
        residuals = Y - basis @ trend.coefficients
        solved = solutions[:, :t] - solved_basis @ trend.coefficients
        # Rasmussen and Williams 2006, eq. 2.30, summed over targets
        fit = float((residuals * solved).double().sum())
        log_determinant = 2 * float(factor.diagonal().double().log().sum())
        return cls(solved, solved_basis, trend, -0.5 * (fit + t * (log_determinant + n * math.log(2 * math.pi))))

    def slope(self, factor: torch.Tensor) -> torch.Tensor:
        """Return the derivatives of the likelihood by the entries of ``H``, (n, n); see `gradients.Exact`."""
        count = self.solutions.shape[1]
        inverse = symmetric_inverse(factor)
        return torch.addmm(inverse, self.solutions, self.solutions.T, beta=-0.5 * count, alpha=0.5)
