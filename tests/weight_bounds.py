"""The quantities that the estimators of quadruply stochastic inference estimate, by dense algebra.

All in float64, O(n m^2 + m^3). Symbols of Evans and Nair 2020: ``y ~ N(Phi w, noise I)``, ``w ~ N(0, S^-1)``,
variational posterior ``N(mu, C C')`` with a lower triangular root C.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.newton import chevron_of
from gigagp.products.dense import cholesky


class BoundTerms(NamedTuple):
    """The three terms of eq. 2; the bound is minus half of their sum."""

    mean: float
    covariance: float
    constant: float

    @property
    def bound(self) -> float:
        """The evidence lower bound."""
        return -0.5 * (self.mean + self.covariance + self.constant)


def bound_terms(Phi: Tensor, S: Tensor, y: Tensor, noise: float, mean: Tensor, root: Tensor) -> BoundTerms:
    """Return the terms of the bound.

    Parameters
    ----------
    Phi : Tensor of shape (n, m)
    S : Tensor of shape (m, m)
    y : Tensor of shape (n,)
    noise : float
    mean : Tensor of shape (m,)
    root : Tensor of shape (m, m)
    """
    n, m = Phi.shape
    fit = Phi @ mean
    mean_part = float((fit.square() - 2 * y * fit).sum() / noise + mean @ S @ mean)
    spread = float((Phi @ root).square().sum() / noise + (root * (S @ root)).sum())
    covariance = spread - 2 * float(root.diagonal().log().sum())
    constant = -2 * float(cholesky(S).diagonal().log().sum()) - m
    constant += n * math.log(2 * math.pi * noise) + float(y @ y) / noise
    return BoundTerms(mean_part, covariance, constant)


def exact_weights(Phi: Tensor, S: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return mean ``P^-1 Phi' y`` and root of ``noise P^-1``, the exact posterior's; ``P = Phi' Phi + noise S``."""
    precision = cholesky(Phi.T @ Phi / noise + S)
    mean = torch.cholesky_solve((Phi.T @ y / noise)[:, None], precision)[:, 0]
    return mean, cholesky(torch.cholesky_inverse(precision))


def log_evidence(Phi: Tensor, S: Tensor, y: Tensor, noise: float) -> float:
    """Return ``log N(y; 0, Phi S^-1 Phi' + noise I)``."""
    half = torch.linalg.solve_triangular(cholesky(S), Phi.T, upper=False)
    factor = cholesky(half.T @ half + noise * torch.eye(len(y), dtype=Phi.dtype))
    whitened = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
    return (
        -0.5 * float(whitened.square().sum())
        - float(factor.diagonal().log().sum())
        - 0.5 * len(y) * math.log(2 * math.pi)
    )


def best_scale(gram_diagonal: Tensor, prior_diagonal: Tensor, noise: float | Tensor) -> Tensor:
    """Return the best entry of a column that has only one (Proposition 1): ``sqrt(noise / (phi' phi + noise s))``."""
    return (noise / (gram_diagonal + noise * prior_diagonal)).sqrt()


def best_chevron(Phi: Tensor, S: Tensor, noise: float, n_columns: int) -> Tensor:
    """Return the best root whose first columns are dense and whose others are diagonal, for a Gaussian likelihood."""
    return chevron_of(Phi.T @ Phi / noise + S, n_columns)
