"""Squared Euclidean distances, differentiable and finite everywhere."""

from __future__ import annotations

import torch
from torch import Tensor

#: Squared distances below this many roundings of the squared norms are taken for zero.
COINCIDENT = 8.0
#: Larger squared distances are cut: every profile is zero there, and infinity times zero would be NaN.
FARTHEST = 1e30


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """Return the squared distances of all pairs of rows.

    One matrix product on centred points: ``|a|^2 + |b|^2 - 2 a'b``. The difference of squared norms loses what the
    points have in common, so pass float64 points and convert the distances. What rounding cannot tell from zero
    becomes zero: a profile with a kink there would take the square root of the rounding error.

    Parameters
    ----------
    A : Tensor of shape (n, d)
    B : Tensor of shape (m, d)

    Returns
    -------
    Tensor of shape (n, m)
        Never negative; exactly zero at coincident points, with derivatives (first and second) as if it was not cut.
    """
    centre = B.detach().mean(0)
    A, B = A - centre, B - centre
    a, b = A.square().sum(1), B.square().sum(1)
    squared = torch.addmm(b[None, :], A, B.T, alpha=-2) + a[:, None]
    floor = COINCIDENT * torch.finfo(A.dtype).eps * (a.detach().amax() + b.detach().amax())
    return torch.where(squared > floor, squared, squared - squared.detach()).clamp_max(FARTHEST)
