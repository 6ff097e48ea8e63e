"""The expected log-likelihood at the rows, with the derivatives that Newton steps need."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.likelihoods import Likelihood

#: Targets times quadrature nodes in a block of rows.
_ENTRIES = 2**22
#: Smallest variance: there are divisions by its root.
_LEAST = 1e-30


def latent_derivatives(
    likelihood: Likelihood, targets: Tensor, latent: Tensor, variance: Tensor, noise: Tensor, nodes: int
) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return the expected log-likelihood for ``f ~ N(latent, variance)`` and its derivatives.

    Parameters
    ----------
    likelihood : Likelihood
    targets, latent : Tensor of shape (n, t)
    variance, noise : Tensor of shape (n,)
        The same for all targets.
    nodes : int
        Of the quadrature.

    Returns
    -------
    float
        The sum over rows and targets.
    Tensor of shape (n, t)
        Derivatives by the latent means.
    Tensor of shape (n, t)
        Minus twice the derivatives by the latent variances, ``-E (log g)''``: not negative for a log-concave g.
    Tensor of shape (n,)
        Derivatives by the noise variances; zeros where the likelihood has none.
    """
    total, slopes, bends, noises = 0.0, [], [], []
    size = max(1, _ENTRIES // (nodes * latent.shape[1]))
    std = variance.clamp_min(_LEAST).sqrt()[:, None].expand_as(latent)
    for block in zip(*(one.detach().split(size) for one in (targets, latent, std, noise)), strict=True):
        with torch.enable_grad():
            at_targets, mean, spread, at_rows = block[0], *(one.clone().requires_grad_() for one in block[1:])
            fit = likelihood.expected_log_density(at_targets, mean, spread, at_rows[:, None], nodes).sum()
            slope, by_spread, by_noise = torch.autograd.grad(fit, (mean, spread, at_rows), allow_unused=True)
        total += float(fit.detach())
        slopes.append(slope)
        bends.append((-by_spread / block[2]).clamp_min(0))
        noises.append(torch.zeros_like(block[3]) if by_noise is None else by_noise)
    return total, torch.cat(slopes), torch.cat(bends), torch.cat(noises)
