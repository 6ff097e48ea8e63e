"""Textbook formulas of sparse variational inference: dense float64, slow, differentiable."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from helpers import reference_block


class Reference(NamedTuple):
    """What Titsias (2009, eqs. 6, 9 and 10) gives; the bound sums over targets."""

    bound: Tensor
    likelihood_of_q: Tensor  # the bound without its trace term: no bound at all
    mean: Tensor
    covariance: Tensor
    coefficients: Tensor


def collapsed(kernel, X, Y, Z, noise, X_new=None, basis=None, jitter=0.0) -> Reference:
    """Return bound and posterior; ``noise`` (n,) or a number, without the kernel's white part."""
    n, t = Y.shape
    X_new = X[:0] if X_new is None else X_new
    Kzz = reference_block(kernel, Z, Z) + jitter * kernel.diagonal(Z).mean() * torch.eye(len(Z)).double()
    Kxz, Knz = reference_block(kernel, X, Z), reference_block(kernel, X_new, Z)
    variances = torch.as_tensor(noise).double().expand(n) + kernel.white(X)
    Q = Kxz @ torch.linalg.solve(Kzz, Kxz.T)
    S = Q + torch.diag(variances)
    Phi, Phi_new = ((X.new_zeros(len(A), 0) if basis is None else basis(A)) for A in (X, X_new))
    gram = Phi.T @ torch.linalg.solve(S, Phi)
    coefficients = torch.linalg.solve(gram, Phi.T @ torch.linalg.solve(S, Y))
    R = Y - Phi @ coefficients
    fit = (R * torch.linalg.solve(S, R)).sum()
    likelihood = -0.5 * fit - 0.5 * t * (torch.linalg.slogdet(S).logabsdet + n * math.log(2 * math.pi))
    trace = ((kernel.diagonal(X) - Q.diagonal()) / variances).sum()
    weighted = Kxz.T / variances
    Sigma = Kzz + weighted @ Kxz
    covariance = reference_block(kernel, X_new, X_new) - Knz @ torch.linalg.solve(Kzz, Knz.T)
    return Reference(
        likelihood - 0.5 * t * trace,
        likelihood,
        Phi_new @ coefficients + Knz @ torch.linalg.solve(Sigma, weighted @ R),
        covariance + Knz @ torch.linalg.solve(Sigma, Knz.T),
        coefficients,
    )
