"""Variances from posterior samples, checked against the prior variance, and combined with those of neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, warn

#: Number of standard errors beyond which an estimate cannot be explained by chance, even over thousands of points.
_CHANCE = 8.0


def variance_from_samples(deviations: Tensor, prior: Tensor) -> Tensor:
    """Return the mean squared deviation of posterior samples from the mean, (m, s) to (m,), at most the prior variance.

    Observed rows never increase the variance. An estimate from s samples has a relative standard error of
    ``sqrt(2 / s)`` and can exceed the prior variance by chance. A larger excess means that the samples are wrong, and
    causes a `GigaGPWarning`.
    """
    return _checked(deviations.square().mean(1), prior.to(deviations), deviations.shape[1])[0]


def _checked(estimate: Tensor, prior: Tensor, n_samples: int) -> tuple[Tensor, Tensor]:
    """Return estimates, at most the prior variance, and where they exceed it by more than chance; warn there."""
    wrong = ~(estimate <= prior * (1 + _CHANCE * math.sqrt(2 / max(n_samples, 1))))
    if bool(wrong.any()):
        worst = float((estimate / prior).detach()[wrong].max())
        msg = (
            f"Posterior samples have up to {worst:.3g} times the prior's variance, at "
            f"{int(wrong.sum())} of {len(prior)} points; rows can only lower it. The solves behind the samples have "
            "failed: standard deviations at these points are the prior's, and samples there are of no use. A larger "
            'noise variance, a tighter tolerance or predict(variance="solve") avoids this.'
        )
        warn(msg, GigaGPWarning)
    return torch.minimum(estimate, prior), wrong


def variance_from_samples_and_neighbours(
    deviations: Tensor, differences: Tensor, bound: Tensor, prior: Tensor
) -> Tensor:
    """Return the posterior variance from samples with the help of predictions from nearest neighbours.

    A point's prediction from a few rows has an error with the variance D (``bound``), which is known exactly. For a
    sample j of the prior with noisy values at the rows, that error is ``e_j + d_j``: the error ``e_j`` of the exact
    prediction (``deviations``, shape (m, s)) plus the difference ``d_j`` of the two predictions (``differences``). As
    the exact prediction is best among all linear ones, both are independent, so that ``v = D - E[d^2]`` for the exact
    variance ``v = E[e^2]``. These are two independent estimates:

    - ``S = mean_j e_j^2``, with the variance ``2 v^2 / s``;
    - ``D - T`` for ``T = mean_j d_j^2``, with the variance ``2 (D - v)^2 / s``.

    Returned is their average with the weights that have the least variance, at the ratio ``S / (S + T)`` for ``v / D``.
    At a ratio of nine tenths, 16 samples determine the variance to 4 % (alone: 35 %), and at a half to 25 %. It is
    never much less certain than `variance_from_samples`, which warns here too: where samples are wrong, the prior
    variance is returned.
    """
    estimate = deviations.square().mean(1)
    alone, wrong = _checked(estimate, prior.to(deviations), deviations.shape[1])
    ours, theirs = estimate / bound, differences.square().mean(1) / bound
    squares = ours.square() + theirs.square()
    # Weights proportional to the inverse variances, T^2 for S and S^2 for D - T.
    share = (theirs.square() * ours + ours.square() * (1 - theirs)) / squares.clamp_min(1e-300)
    combined = bound * torch.where(squares > 0, share, torch.ones_like(share)).clamp(0, 1)
    return torch.where(wrong, alone, combined)


def error_with_neighbours(deviations: Tensor, differences: Tensor) -> Tensor:
    """Return the relative standard errors of variances from samples and neighbours, shape (m,).

    For the arguments of `variance_from_samples_and_neighbours`, and at the ratio that they show, the error is
    ``sqrt(2 / s) (1 - r) / sqrt(r^2 + (1 - r)^2)`` for ``r = v / D``.
    """
    ours, theirs = deviations.square().mean(1), differences.square().mean(1)
    share = theirs / (ours.square() + theirs.square()).sqrt().clamp_min(1e-300)
    return math.sqrt(2 / deviations.shape[1]) * share
