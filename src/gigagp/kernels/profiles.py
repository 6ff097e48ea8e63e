"""Profiles of kernels that need derivatives of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Matern(torch.autograd.Function):
    """The Matern profile of order j = nu - 1/2 as a function of p = t^2.

    Autograd through ``sqrt`` gives 0 * inf = NaN at p = 0, although every profile but the first is smooth there: its
    derivative is a multiple of the next rougher profile. With the derivative in this form, first derivatives are right
    everywhere, and so are second derivatives in the inputs.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, order: int) -> Tensor:
        t = p.sqrt()
        e = torch.exp(-t)
        if order == 0:
            return e
        return e * (1 + t) if order == 1 else e * (1 + t + p / 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        p, ctx.order = inputs
        ctx.save_for_backward(p)
        ctx.save_for_forward(p)

    @staticmethod
    def slope(p: Tensor, order: int) -> Tensor:
        if order > 0:
            return matern_profile(p, order - 1) / (2 - 4 * order)
        # Matern-1/2 has a kink. Its slope is taken as 0 at coincident points, where it is multiplied by zero.
        apart = p > 0
        t = torch.where(apart, p, torch.ones_like(p)).sqrt()
        return torch.where(apart, -0.5 * torch.exp(-t) / t, torch.zeros_like(t))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        return gradients[0] * _Matern.slope(p, ctx.order), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (p,) = ctx.saved_tensors
        return tangents[0] * _Matern.slope(p, ctx.order)


def matern_profile(p: Tensor, order: int) -> Tensor:
    """Return the Matern profile of order nu - 1/2 (0, 1 or 2) at ``p = 2 nu q``, with finite derivatives at p = 0."""
    return _Matern.apply(p, order)
