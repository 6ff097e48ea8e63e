"""Squared Euclidean distances, differentiable and finite everywhere.

The distance of two points depends on these two alone, and not on other rows of their tables, however far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Larger squared distances are clipped: every profile is zero there, and infinity times zero would be NaN.
FARTHEST = 1e30
#: Largest rounding error of squared distances from norms, in units of the lengthscale. It holds for the two points
#: farthest out; a typical pair is ten times better.
ROUNDING_ERROR = {torch.float32: 1e-5, torch.float64: 1e-10}
#: The points' offset is subtracted where it is at least this many times their spread. The subtraction is then exact,
#: because every number is within a factor of two of the offset.
_OFFSET = 4.0


def squared_distances(A: Tensor, B: Tensor, *, kink: bool = False) -> Tensor:
    """Return the squared distances of all pairs of rows, in units of the lengthscale; differentiable.

    This is one matrix product, ``|a|^2 + |b|^2 - 2 a'b``, where its rounding error stays below `ROUNDING_ERROR`. For
    points far apart it is a sum of squared differences, with d passes over the result. So it is for profiles with a
    ``kink``, an infinite slope at zero, which would take the root of a rounding error there. Distances are never
    negative and at most `FARTHEST`.
    """
    if not (len(A) and len(B)):
        return A.new_zeros(len(A), len(B))
    centre = common_offset(B)
    A, B = A - centre, B - centre
    a, b = A.square().sum(1), B.square().sum(1)
    if kink or not norms_suffice(a, b):
        return squared_differences(A, B)
    squared = torch.addmm(b[None, :], A, B.T, alpha=-2) + a[:, None]
    # clip the value at zero but not its derivatives: a distance of zero has second derivatives
    return torch.where(squared > 0, squared, squared - squared.detach())


def squared_differences(A: Tensor, B: Tensor) -> Tensor:
    """Return the squared distances of all pairs of rows, input by input: exactly zero for equal rows."""
    total = (A[:, None, 0] - B[None, :, 0]).square()
    for k in range(1, A.shape[1]):
        total = total + (A[:, None, k] - B[None, :, k]).square()
    return total.clamp_max(FARTHEST)


def norms_suffice(a: Tensor, b: Tensor) -> bool:
    """Whether distances from these squared norms, (n,) and (m,), stay below the `ROUNDING_ERROR` of their dtype."""
    try:
        largest = float(a.detach().amax() + b.detach().amax())
    except RuntimeError:  # torch.func.vmap does not allow reading a number
        return False
    return largest * torch.finfo(a.dtype).eps <= ROUNDING_ERROR[a.dtype]


def common_offset(points: Tensor) -> Tensor:
    """Return the common offset of points (n, d), shape (d,), which is subtracted before norms are squared.

    It is zero in inputs whose offset is not far larger than their spread. So one far point costs the others no digits,
    as it would through the mean.
    """
    if not len(points):
        return points.new_zeros(points.shape[1])
    low, high = (0.5 * end for end in points.detach().aminmax(dim=0))
    middle = low + high
    return torch.where(middle.abs() >= _OFFSET * (high - low), middle, 0.0)
