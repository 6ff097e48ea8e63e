"""The rows that a kernel correlates most with given points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.runtime import interruption

#: Bytes for each entry of a block of the kernel matrix.
_BYTES = 256


class Correlated(NamedTuple):
    """Rows, and their prior correlations with points: two tensors of shape (m, count)."""

    rows: Tensor
    correlations: Tensor


@torch.no_grad()
def most_correlated(kernel: Kernel, points: Tensor, X: Tensor, count: int, budget: int) -> Correlated:
    """Return the rows of X (n, d) with the highest prior correlation with points (m, d), highest first.

    It computes all ``m n`` correlations, in blocks within a budget in bytes. A point that is a row is among those found
    for it, though not always first: its duplicates tie with it.
    """
    rows, correlations = [], []
    scales = kernel.diagonal(X).clamp_min(torch.finfo(X.dtype).tiny).rsqrt()
    own = kernel.diagonal(points).clamp_min(torch.finfo(X.dtype).tiny).rsqrt()
    size = max(1, budget // (_BYTES * len(X)))
    for part, scale in zip(points.split(size), own.split(size), strict=True):
        interruption.check()
        found = (kernel.block(part, X) * scales).topk(min(count, len(X)))
        rows.append(found.indices)
        correlations.append(found.values * scale[:, None])
    return Correlated(torch.cat(rows), torch.cat(correlations))
