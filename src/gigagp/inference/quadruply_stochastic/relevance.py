"""The relevance vector machine on all rows and functions: precisions that grow until their functions leave."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.newton import Point, WeightSearch
from gigagp.inference.quadruply_stochastic.trend import OpenTrend

#: Most updates of the precisions, and the change of their logarithms that ends them.
_UPDATES, _CHANGE = 2000, 1e-3
#: Precision, in units of the threshold, beyond which a function is taken out for good, and the lowest threshold there:
#: a lower threshold drops more functions of the same optimum, and does not move the optimum.
_FAR, _THRESHOLD = 100.0, 1e4
#: Precisions stay above this, so that the posterior precision has a factor.
_LEAST = 1e-8


class RelevantWeights(NamedTuple):
    """The best weights under prior precisions that are learned.

    Attributes
    ----------
    point : Point
        Of the functions that are kept.
    kept : Tensor of shape (k,), int64
    precision : Tensor of shape (m,)
        Of all functions.
    open_trend : OpenTrend
        With a solution for every function: zero where it was left out.
    promised : float
        Gain in nats that the last Newton step promised.
    """

    point: Point
    kept: Tensor
    precision: Tensor
    open_trend: OpenTrend
    promised: float


def relevant_weights(
    search: WeightSearch, prior_variance: float, threshold: float, tolerance: float
) -> RelevantWeights:
    """Return the weights of a relevance vector machine: precisions by MacKay's update.

    ``s_i = (1 - s_i Sigma_ii) / mu_i^2`` has the fixed points of ``s_i = 1 / E w_i^2`` and gets there in a tenth of the
    steps. Precisions of functions that are not needed reach infinity in a few (Tipping 2001, eq. 16).

    Parameters
    ----------
    search : WeightSearch
        With the features of all functions; its prior precision is not used.
    prior_variance : float
        Of the function at the start.
    threshold : float
        Precision above which a weight is dropped from the model.
    tolerance : float
        Gain in nats an observation that ends each search.
    """
    Phi, m = search.Phi, search.Phi.shape[1]
    precision = Phi.new_full((m,), float(Phi.square().sum()) / len(Phi) / prior_variance)
    kept = torch.arange(m, device=Phi.device)
    far = _FAR * max(threshold, _THRESHOLD)
    start = search.start(None)

    def of_kept() -> WeightSearch:
        return replace(search, Phi=Phi[:, kept], S=precision[kept])

    for _ in range(_UPDATES):
        found, _ = of_kept().maximise(start, tolerance)
        variance = found.root.square().sum(1)
        known = (1 - precision[kept] * variance).clamp_min(1e-12)
        updated = (known / found.mean.square().mean(1).clamp_min(1e-300)).clamp_min(_LEAST)
        change = float((updated.clamp_max(far).log() - precision[kept].log()).abs().max())
        precision[kept] = updated.clamp_max(far)
        left = updated < far
        if not bool(left.any()):
            left[updated.argmin()] = True
        kept, start = kept[left], found.to_start(left)
        if change < _CHANGE and bool(left.all()):
            break
    found, promised = of_kept().maximise(start, tolerance)
    solutions = Phi.new_zeros(m, found.open_trend.solutions.shape[1])
    solutions[kept] = found.open_trend.solutions
    return RelevantWeights(found, kept, precision, replace(found.open_trend, solutions=solutions), promised)
