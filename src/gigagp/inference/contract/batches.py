"""Covariances within batches of points: one pass over all points, and only the blocks on the diagonal.

A posterior that has ``covariance(x, z) = k(x, z) - a(x)' a(z)`` computes the vectors a for the points of many batches
together, and multiplies them within each batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gigagp.inference.contract.input_gradients import recomputed
from gigagp.kernels import Kernel
from gigagp.neighbours.batched import blocks

#: Largest number of points whose batches are computed together.
_POINTS = 1024


def prior_covariance(kernel: Kernel, X: Tensor) -> Tensor:
    """Return the kernel's covariance within batches of points, shape (..., q, d) to (..., q, q)."""
    if X.ndim == 2:
        return kernel.block(X, X)
    flat = X.reshape(-1, *X.shape[-2:])
    if len(flat) == 1:  # one large batch goes through matrix products
        return kernel.block(flat[0], flat[0]).reshape(*X.shape[:-1], X.shape[-2])
    if X.shape[-2] == 1 or not flat.numel():
        return kernel.diagonal(flat.flatten(0, 1)).reshape(X.shape[:-1])[..., None].expand(*X.shape[:-1], X.shape[-2])
    return blocks(kernel, flat).reshape(*X.shape[:-1], X.shape[-2])


def within_batches(vectors: Tensor, X: Tensor) -> Tensor:
    """Return vectors of all points, (number of points, r), by batch: (..., q, r) for points (..., q, d)."""
    return vectors.reshape(*X.shape[:-1], vectors.shape[-1])


def by_batches(function: Callable[[Tensor], Tensor], X: Tensor, points: int = _POINTS) -> Tensor:
    """Return covariances (b, q, q) of batches (b, q, d), or (q, q) of points (q, d), for a few batches at a time.

    The function takes some batches, (k, q, d), with at most ``points`` points in all unless one batch has more. Where X
    requires a gradient, the backward pass computes the function again, so that nothing is kept of what lies between the
    points and their covariances.
    """
    if X.ndim == 2:
        return by_batches(function, X[None], points)[0]
    size = max(1, min(points, _POINTS) // max(X.shape[1], 1))
    return _stacked([recomputed(function, some) for some in X.split(size)], X)


def one_by_one(function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Return covariances (b, q, q) of batches (b, q, d) from a function of the points of one batch."""
    return _stacked([function(one)[None] for one in X], X)


def _stacked(parts: list[Tensor], X: Tensor) -> Tensor:
    return torch.cat(parts) if parts else X.new_zeros(0, X.shape[1], X.shape[1])
