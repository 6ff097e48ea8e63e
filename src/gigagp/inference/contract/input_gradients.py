"""Derivatives by autograd: of numbers with respect to hyperparameters, and of predictions with respect to the points.

Predictions are differentiated correctly, or refused with an error.

Kernel blocks are differentiated by autograd, and kernel products by `gigagp.products.cross`. This module handles the
rest: solves for new points, which autograd could follow only in part; sums over very many features, whose graph would
not fit into memory; and methods without a derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gigagp.errors import InvalidInputError


def derivatives(function: Callable[[dict[str, Tensor]], Tensor], at: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the derivatives of a number, a function of named values, by those values that it depends on."""
    values = {name: value.detach().clone().requires_grad_() for name, value in at.items()}
    with torch.enable_grad():
        number = function(values)
        if not number.requires_grad:
            return {}
        found = torch.autograd.grad(number, list(values.values()), allow_unused=True)
    return {name: one for name, one in zip(values, found, strict=True) if one is not None}


def wants_gradient(X: Tensor) -> bool:
    """Whether the result of a computation on these points is to be differentiated with respect to them."""
    return X.requires_grad and torch.is_grad_enabled()


def refuse_gradient(X: Tensor, method: str, reason: str) -> None:
    """Raise `InvalidInputError` if points require a gradient that a method does not provide.

    ``reason`` is a sentence that says why there is none, or what to do instead.
    """
    if wants_gradient(X):
        msg = f"{method} has no gradient with respect to X, which requires one. {reason} Or pass X.detach()."
        raise InvalidInputError(msg)


def both_sides(half: Tensor) -> Tensor:
    """Return a symmetric ``A C A'`` with its full derivative with respect to A.

    ``half`` is ``A @ (C A').detach()``, shape (m, m), of which autograd differentiates the left factor only.
    """
    return half + (half - half.detach()).T if half.requires_grad else half


def recomputed(function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Return ``function(X)`` without storing its graph; the backward pass computes it again.

    If no gradient is wanted, nothing is recorded at all.
    """
    if not wants_gradient(X):
        with torch.no_grad():
            return function(X)
    found: Tensor = checkpoint(function, X, use_reentrant=False, preserve_rng_state=False)
    return found
