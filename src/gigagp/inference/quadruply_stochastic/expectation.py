"""The expected log-likelihood at the rows, with the derivatives that Newton steps need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.model.likelihoods import Likelihood

#: Targets times quadrature nodes in a block of rows.
_ENTRIES = 2**22
#: Smallest variance: there are divisions by its root.
_LEAST = 1e-30
#: A residual below this share of the standard deviation is zero: a slope divided by it is not accurate.
_NO_RESIDUAL = 1e-6
#: Curvatures whose ratio is below this are the same.
_SAME = 1 + 1e-6
#: Halvings of a step, and those with Newton's curvature where there is another one to try.
_HALVINGS, _FIRST_HALVINGS = 8, 3


class ExpectedFit(NamedTuple):
    """The expected log-likelihood for ``f ~ N(latent, variance)`` at n rows with t targets, and its derivatives.

    Attributes
    ----------
    value : float
        The sum over rows and targets.
    slope : Tensor of shape (n, t)
        Derivatives by the latent means.
    bend : Tensor of shape (n, t)
        Minus twice the derivatives by the latent variances, ``-E (log g)''``: not negative for a log-concave g. It is
        the curvature in the latent mean.
    secant : Tensor of shape (n, t) or None
        Curvature of the parabola with the same slope and its top at the target, but no less than ``bend``. None for
        likelihoods without noise, whose targets are not values of f.
    of_noise : Tensor of shape (n,)
        Derivatives by the noise variances; zeros where the likelihood has none.
    """

    value: float
    slope: Tensor
    bend: Tensor
    secant: Tensor | None
    of_noise: Tensor

    def curvatures(self) -> Iterator[tuple[Tensor, list[float]]]:
        """Yield curvatures for a step towards the best distribution, each with the shares of the step to try.

        Newton's curvature comes first. Laplace noise has none at targets that are many standard deviations away, where
        its slope is constant: a Newton step goes much too far. The parabola of the secant is nowhere above the expected
        log density of such noise, so that its full step always raises the bound as a function of the mean, and reaches
        the target however far that is (de Leeuw and Lange 2009, "Sharp quadratic majorization in one dimension",
        https://doi.org/10.1016/j.csda.2009.01.002). A search must not end before such a step has been tried: where all
        targets are far away, Newton's curvature says nothing about the mean's coefficients.
        """
        shares = [0.5**k for k in range(_HALVINGS)]
        if self.secant is None or not bool((self.secant > _SAME * self.bend).any()):
            yield self.bend, shares
        else:
            yield self.bend, shares[:_FIRST_HALVINGS]
            yield self.secant, shares


def expected_fit(
    likelihood: Likelihood, targets: Tensor, latent: Tensor, variance: Tensor, noise: Tensor, nodes: int
) -> ExpectedFit:
    """Return the expected log-likelihood and its derivatives.

    Parameters
    ----------
    likelihood : Likelihood
    targets, latent : Tensor of shape (n, t)
    variance, noise : Tensor of shape (n,)
        The same for all targets.
    nodes : int
        Of the quadrature.
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
    slope, bend, secant = torch.cat(slopes), torch.cat(bends), None
    if likelihood.has_noise:
        residual = targets - latent
        secant = torch.where(residual.abs() > _NO_RESIDUAL * std, slope / residual, bend).maximum(bend)
    return ExpectedFit(total, slope, bend, secant, torch.cat(noises))
