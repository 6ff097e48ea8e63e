"""Products between new and known points that are differentiable in the new ones: what predictions are made of.

Engines record no autograd graph, and compiled loops cannot. This module adds the derivative in the new points for all
engines. It is computed tile by tile, so that nothing of the size of the kernel matrix is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.products.engine import Engine, LowRankWeights, weights_of
from gigagp.products.selection import select
from gigagp.products.torch_tiles import TorchTiles


class _Cross(torch.autograd.Function):
    """``K(X, Z) @ V`` (without V: ``K(X, Z)``) as a function of X."""

    @staticmethod
    def forward(X: Tensor, Z: Tensor, V: Tensor | None, engine: Engine, kernel: Kernel, budget: int) -> Tensor:
        if V is None:
            return engine.dense(kernel, X, Z, budget=budget)
        return engine.product(kernel, X, Z, V, budget=budget)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        X, Z, V, _, ctx.kernel, ctx.budget = inputs
        ctx.save_for_backward(X, Z, V)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = upstream
        X, Z, V = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives record a graph of the whole block

            def dense(points: Tensor) -> Tensor:
                block = ctx.kernel.block(points, Z)
                return block if V is None else block @ V

            (again,) = torch.func.vjp(dense, X)[1](slope)
            return again, None, None, None, None, None
        weights = weights_of(slope) if V is None else LowRankWeights(slope, V)
        found = TorchTiles().points_gradient(ctx.kernel, X, Z, weights, budget=ctx.budget)
        return found.to(X), None, None, None, None, None


def cross_product(kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
    """Return ``K(X, Z) @ V`` by the engine that `select` chooses, differentiable in ``X``; K is not stored.

    X has new points and Z known ones. Derivatives at points that coincide are finite. Second derivatives need memory
    for all of K. The hyperparameters of the bound kernel are constants here, and so must be Z and V.
    """
    _check_constants(Z=Z, V=V)
    found: Tensor = _Cross.apply(X, Z, V, select(kernel, X.device, X.dtype, rows=Z), kernel, budget)
    return found


def cross_covariance(kernel: Kernel, X: Tensor, Z: Tensor, *, budget: int) -> Tensor:
    """Return ``K(X, Z)``, shape (n, m), by the engine that `select` chooses, differentiable in ``X``."""
    _check_constants(Z=Z)
    found: Tensor = _Cross.apply(X, Z, None, select(kernel, X.device, X.dtype, rows=Z), kernel, budget)
    return found


def _check_constants(**tensors: Tensor) -> None:
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor.requires_grad:
            raise InvalidInputError(
                f"{name} of a product with new points must not require a gradient: only that with respect to X "
                "is available. Detach it, and pass points of your own (X.clone()) rather than those of the model."
            )
