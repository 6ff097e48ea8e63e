"""Predictions as functions of the points: each has the right derivative by them, or none and says so.

What a prediction is made of differs in how it gets its derivative. Kernel blocks have it by autograd and kernel
products by `gigagp.products.cross`. Here are the others: a solve for new points, which autograd could follow only in
part, features of very many functions, whose graph would not fit into memory, and what has no derivative.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gigagp.errors import InvalidInputError


def wants_gradient(X: Tensor) -> bool:
    """Whether what is computed from points now is to be differentiated by them."""
    return X.requires_grad and torch.is_grad_enabled()


def refuse_gradient(X: Tensor, method: str, reason: str) -> None:
    """Raise `InvalidInputError` if points require a gradient that a method does not have.

    Parameters
    ----------
    X : Tensor
    method : str
        Of which posterior.
    reason : str
        Why, and what to do instead; a sentence.
    """
    if wants_gradient(X):
        msg = f"{method} has no gradient by X, and X requires one. {reason} Or pass X.detach() if none is wanted."
        raise InvalidInputError(msg)


def both_sides(half: Tensor) -> Tensor:
    """Return a symmetric ``A C A'`` with its whole derivative by A, where autograd knows of the factor on the left.

    Parameters
    ----------
    half : Tensor of shape (m, m)
        ``A @ (C A').detach()``.
    """
    return half + (half - half.detach()).T if half.requires_grad else half


def recomputed(function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Return ``function(X)`` without a graph of what is inside: the way back computes it once more.

    Without a gradient to be had, nothing is recorded at all.
    """
    if not wants_gradient(X):
        with torch.no_grad():
            return function(X)
    found: Tensor = checkpoint(function, X, use_reentrant=False, preserve_rng_state=False)
    return found
