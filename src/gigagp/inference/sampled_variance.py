"""Variances from posterior samples, checked against the prior variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, warn

#: Number of standard errors beyond which an estimate cannot be explained by chance, even over thousands of points.
_CHANCE = 8.0


def variance_from_samples(deviations: Tensor, prior: Tensor) -> Tensor:
    """Return the mean squared deviation of posterior samples from the mean, at most the prior variance.

    Observed rows never increase the variance. An estimate from s samples has a relative standard error of
    ``sqrt(2 / s)`` and can exceed the prior variance by chance; a larger excess means that the samples are wrong.

    Parameters
    ----------
    deviations : Tensor of shape (m, s)
        Posterior samples minus the posterior mean.
    prior : Tensor of shape (m,)
        Prior variance.

    Returns
    -------
    Tensor of shape (m,)
        Variance.

    Warns
    -----
    GigaGPWarning
        If an estimate exceeds the prior variance by more than chance explains.
    """
    estimate, prior = deviations.square().mean(1), prior.to(deviations)
    likely = prior * (1 + _CHANCE * math.sqrt(2 / max(deviations.shape[1], 1)))
    wrong = ~(estimate <= likely)
    if bool(wrong.any()):
        worst = float((estimate / prior).detach()[wrong].max())
        msg = (
            f"Posterior samples have up to {worst:.3g} times the prior's variance, at "
            f"{int(wrong.sum())} of {len(prior)} points; rows can only lower it. The solves behind the samples have "
            "failed: standard deviations at these points are the prior's, and samples there are of no use. A larger "
            'noise variance, a tighter tolerance or predict(variance="solve") avoids this.'
        )
        warn(msg, GigaGPWarning)
    return torch.minimum(estimate, prior)
