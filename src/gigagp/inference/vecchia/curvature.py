"""What a Laplace approximation needs to know about a likelihood at given latent values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.model.likelihoods import Likelihood

#: A step takes at least this share of the expected information as its curvature, where the likelihood has one.
_LEAST_SHARE = 0.05
#: Steps to the most probable latent value of a single row, and the longest.
_ROW_STEPS, _LONGEST = 15, 3.0


class Curvature(NamedTuple):
    """Derivatives of the log density of every target, shape (n, t) each.

    Attributes
    ----------
    slope : Tensor
        First derivatives by the latent values.
    hessian : Tensor
        Minus the second derivatives, or a little more: the curvature of Newton's steps.
    curvature : Tensor
        W of the Gaussian approximation: minus the second derivatives, or the expected information.
    change : Tensor
        Derivatives of ``curvature`` by the latent values.
    value_by_noise, slope_by_noise, curvature_by_noise : Tensor
        Derivatives by the noise variances of the rows; zeros where the likelihood has none.
    """

    slope: Tensor
    hessian: Tensor
    curvature: Tensor
    change: Tensor
    value_by_noise: Tensor
    slope_by_noise: Tensor
    curvature_by_noise: Tensor

    @classmethod
    def of(cls, likelihood: Likelihood, targets: Tensor, latent: Tensor, noise: Tensor) -> Curvature:
        """Return the derivatives at latent values (n, t) with the noise variances (n,) of the rows."""
        with torch.enable_grad():
            f = latent.detach().clone().requires_grad_()
            each = noise.detach()[:, None].expand_as(f).clone().requires_grad_()
            value = likelihood.smooth_log_density(targets, f, each)
            slope, value_by_noise = _derivatives(value, f, each)
            second, slope_by_noise = _derivatives(slope, f, each)
            information = likelihood.information(each)
            curvature = -second if information is None else information.expand_as(f)
            change, curvature_by_noise = _derivatives(curvature, f, each)
        second = -second.detach()
        least = 0.0 if information is None else _LEAST_SHARE * information.detach()
        hessian = torch.maximum(second, torch.as_tensor(least).to(second))
        positive = curvature.detach() > 0  # not so by rounding, far out in a tail
        return cls(
            slope.detach(),
            hessian,
            curvature.detach().clamp_min(0),
            torch.where(positive, change, 0.0).detach(),
            value_by_noise.detach(),
            slope_by_noise.detach(),
            torch.where(positive, curvature_by_noise, 0.0).detach(),
        )


def _derivatives(values: Tensor, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of values of single rows by their latent values and their noise."""
    if not values.requires_grad:
        return torch.zeros_like(f), torch.zeros_like(f)
    found = torch.autograd.grad(values.sum(), (f, noise), create_graph=True, allow_unused=True)
    by_f, by_noise = (torch.zeros_like(f) if one is None else one for one in found)
    return by_f, by_noise


def row_modes(likelihood: Likelihood, targets: Tensor, noise: Tensor, variance: Tensor) -> Tensor:
    """Return the most probable latent value of every row by itself, (n, t), under a prior variance (n,).

    Newton's method on all rows starts there: from zero, counts in the thousands would need as many steps as they have
    digits, and each would overflow first.
    """
    f = torch.zeros_like(targets)
    for _ in range(_ROW_STEPS):
        found = Curvature.of(likelihood, targets, f, noise)
        step = (found.slope - f / variance[:, None]) / (found.hessian + 1 / variance[:, None])
        f = f + step.clamp(-_LONGEST, _LONGEST)
    return f
