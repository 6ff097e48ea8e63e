"""Squared Euclidean distances, differentiable and finite everywhere.

The distance of two points depends on these two alone: not on what else is in their tables, also where that is far away.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Larger squared distances are cut: every profile is zero there, and infinity times zero would be NaN.
FARTHEST = 1e30
#: Bound on the rounding error of squared distances, in units of the lengthscale, that differences of squared norms may
#: leave. It holds for the two points farthest out; a typical pair is ten times better.
ROUNDING_ERROR = {torch.float32: 1e-5, torch.float64: 1e-10}
#: An offset of the points is taken off where it is so many times their spread. Then the subtraction is exact: every
#: number is within a factor of two of what is taken off.
_OFFSET = 4.0


def squared_distances(A: Tensor, B: Tensor, *, kink: bool = False) -> Tensor:
    """Return the squared distances of all pairs of rows.

    One matrix product, ``|a|^2 + |b|^2 - 2 a'b``, where its rounding error stays below `ROUNDING_ERROR`. Where it does
    not, sums of squared differences, d passes over the result: for points far apart, and for profiles that take the
    square root of what is left at zero.

    Parameters
    ----------
    A : Tensor of shape (n, d)
    B : Tensor of shape (m, d)
        Both in units of the lengthscale.
    kink : bool
        Whether the profile has infinite slope at zero.

    Returns
    -------
    Tensor of shape (n, m)
        Never negative, at most `FARTHEST`; differentiable.
    """
    if not (len(A) and len(B)):
        return A.new_zeros(len(A), len(B))
    centre = common_offset(B)
    A, B = A - centre, B - centre
    a, b = A.square().sum(1), B.square().sum(1)
    if kink or not norms_suffice(a, b):
        return squared_differences(A, B)
    squared = torch.addmm(b[None, :], A, B.T, alpha=-2) + a[:, None]
    # cut at zero in value, not in its derivatives: a distance of zero has second derivatives
    return torch.where(squared > 0, squared, squared - squared.detach())


def squared_differences(A: Tensor, B: Tensor) -> Tensor:
    """Return the squared distances of all pairs of rows, input by input: exactly zero for equal rows."""
    total = (A[:, None, 0] - B[None, :, 0]).square()
    for k in range(1, A.shape[1]):
        total = total + (A[:, None, k] - B[None, :, k]).square()
    return total.clamp_max(FARTHEST)


def norms_suffice(a: Tensor, b: Tensor) -> bool:
    """Whether differences of these squared norms, (n,) and (m,), keep the rounding error of their own dtype."""
    try:
        largest = float(a.detach().amax() + b.detach().amax())
    except RuntimeError:  # under torch.func.vmap no number can be looked at
        return False
    return largest * torch.finfo(a.dtype).eps <= ROUNDING_ERROR[a.dtype]


def common_offset(points: Tensor) -> Tensor:
    """Return what all points (n, d) have in common, shape (d,): to be taken off before norms are squared.

    Zero in inputs whose offset is not far larger than their spread. One far point among others therefore takes no
    digits from them, as it would through the mean.
    """
    if not len(points):
        return points.new_zeros(points.shape[1])
    low, high = points.detach().aminmax(dim=0)
    middle, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low
    return torch.where(middle.abs() >= _OFFSET * half, middle, torch.zeros_like(middle))
