"""The best Gaussian distribution of the weights where there are fewer rows than basis functions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.trend import coefficient_root
from gigagp.inference.quadruply_stochastic.latent import (
    Sites,
    bent_solve,
    best_latent,
    newton_target,
)
from gigagp.inference.quadruply_stochastic.newton import WeightSearch
from gigagp.inference.quadruply_stochastic.trend import OpenTrend
from gigagp.products.dense import cholesky

#: Largest number that the data may multiply a prior precision by: the posterior covariance is a difference, whose
#: relative error is this number times the rounding of float64.
_MOST_INFORMATION = 1e9


class FewRowsFit(NamedTuple):
    """The best distribution of the weights; see `WeightSearch`.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    trend : Tensor of shape (p, t)
    curvature : Tensor of shape (n,)
    root : Tensor of shape (m, m)
        Lower factor of the covariance.
    open_trend : OpenTrend
    sites : Sites
        Where a search at a model nearby starts.
    value : float
        The bound.
    promised : float
        Gain in nats that another Newton step promises.
    """

    mean: Tensor
    trend: Tensor
    curvature: Tensor
    root: Tensor
    open_trend: OpenTrend
    sites: Sites
    value: float
    promised: float

    def to_start(self) -> Sites:
        """Return the point as a start."""
        return self.sites


def fit_few_rows(search: WeightSearch, start: Sites | None, tolerance: float) -> FewRowsFit | None:
    """Return the maximum of a search, found among distributions of the n latent values: O(n^3) a step, O(m^3) once.

    The bound depends on the weights through the latent values alone, whose prior covariance is ``K = Phi S^-1 Phi'``.
    The weights that represent their best distribution have the mean ``S^-1 Phi' alpha`` and the precision
    ``S + Phi' W Phi``. When to use: for a full root and a diagonal S, where n is less than m.

    Parameters
    ----------
    search : WeightSearch
    start : Sites or None
        The result at a model nearby.
    tolerance : float
        Gain in nats an observation that ends the search.

    Returns
    -------
    FewRowsFit or None
        None if the rows say so much that the covariance would lose digits.
    """
    scaled = search.Phi / search.S.sqrt()
    K = scaled @ scaled.T
    basis, rows = search.mean_basis, (search.noise, search.targets, search.likelihood, search.nodes)
    best = best_latent(K, basis, *rows, start, tolerance)
    root = best.curvature.sqrt()
    if float(1 + (best.curvature * K.diagonal()).sum()) > _MOST_INFORMATION:
        return None
    sites = best.sites(K, basis, best.fit.bend)
    target, _, _ = newton_target(K, basis, sites)
    promised = 0.5 * float(((best.fit.slope - best.alpha) * (K @ (target - best.alpha))).sum())
    half = torch.linalg.solve_triangular(best.factor, root[:, None] * scaled, upper=False)
    covariance = half.T @ half  # S^1/2 P^-1 S^1/2 = I - half' half, by the Woodbury identity
    covariance.neg_().diagonal().add_(1.0)
    prior = search.S.rsqrt()[:, None]
    weights_root = cholesky(covariance, "the posterior covariance of the weights", overwrite=True).mul_(prior)
    solved = bent_solve(best.factor, root, basis)
    open_trend = OpenTrend(coefficient_root(basis.T @ solved), prior * (scaled.T @ solved))
    mean = prior * (scaled.T @ best.alpha)
    return FewRowsFit(mean, best.coefficients, best.curvature, weights_root, open_trend, sites, best.value, promised)
