"""The divergence of a Gaussian distribution of the weights from their prior: by dense algebra, and in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.products.dense import cholesky

#: Functions in a block of a pass over all of them.
_WIDTH = 2**16


def square_of_mean(basis: Basis, weights: Weights) -> float:
    """Return ``mu' S mu``, summed over targets; O(m^2) with a dense prior precision S."""
    mean = weights.mean.double()
    if not basis.has_diagonal_prior:
        index = torch.arange(basis.size, device=mean.device)
        return float((mean * (basis.prior_block(index, index) @ mean)).sum())
    blocks = basis.blocks(_WIDTH, mean.device)
    return sum(float((weights.prior_diagonal(basis, index) @ mean[index].square()).sum()) for index in blocks)


def of_covariance(basis: Basis, weights: Weights) -> float:
    """Return ``[tr(S C C') - log|C C'| - log|S| - m] / 2``, for one target; O(m^3) with a dense prior precision S."""
    total = -2 * float(weights.log_scale.double().sum()) - basis.size
    if not basis.has_diagonal_prior:
        index = torch.arange(basis.size, device=weights.mean.device)
        S, root = basis.prior_block(index, index), weights.root()
        determinant = 2 * float(cholesky(S, "the prior precision").diagonal().log().sum())
        return 0.5 * (total + float((root * (S @ root)).sum()) - determinant)
    for index in basis.blocks(_WIDTH, weights.mean.device):
        precision = weights.prior_diagonal(basis, index)
        squares = weights.diagonal_scales(index).double().square()
        squares += weights.root_rows(index).double().square().sum(1)
        total += float((precision * squares).sum() - precision.log().sum())
    return 0.5 * total


def dense_divergence(S: Tensor, mean: Tensor, root: Tensor) -> Tensor:
    """Return the divergence of ``N(mu, C C')`` from ``N(0, S^-1)``, all targets, differentiable in S; O(m^3).

    S is a matrix or its diagonal.
    """
    t, m = mean.shape[1], len(S)
    if S.ndim == 1:
        determinant, spread = S.log().sum(), S @ root.square().sum(1)
    else:
        determinant = 2 * cholesky(S, "the prior precision").diagonal().log().sum()
        spread = (root * (S @ root)).sum()
    log_scales = 2 * root.diagonal().log().sum()
    return 0.5 * ((mean * times(S, mean)).sum() + t * (spread - log_scales - determinant - m))


def times(S: Tensor, v: Tensor) -> Tensor:
    """Return ``S v``, shape (m, t), for a matrix S or its diagonal."""
    return S[:, None] * v if S.ndim == 1 else S @ v
