"""Other starts of a fit, for functions far rougher than the usual start supposes.

From one start, Fisher scoring takes a function with many waves for noise: the lengthscales grow, and the likelihood has
an optimum there. Random rows of a large table lie too far apart to show otherwise; a guide, which looks at near rows,
may. On 68 made and real tables of 50 to 500 rows it ended more than 2 nats below the best of eight random
starts 13 times, by up to 465 nats; with the starts of this module 4 times, by up to 6 (`benchmarks/starts.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.optimization.scoring import FisherScoring, Scored

#: Factors of lengthscales and of the noise's standard deviation at other starts.
_STARTS = ((0.25, 1.0), (0.1, 1.0), (0.1, 0.1), (0.05, 1.0), (0.05, 0.1), (0.02, 0.1))
#: Ratio of successive lengthscales that are tried on a guide, and factors of the noise's standard deviation there.
_RATIO, _NOISES = 0.25, (1.0, 0.1)
#: Share of the targets' variance from which what is left as noise may be a function.
_MUCH_NOISE = 0.1
#: Nats an observation by which a start may lie below the optimum that is known, and evaluations to reach it in.
_WITHIN_REACH, _TRIAL_STEPS = 0.3, 3


def best_of_starts(scoring: FisherScoring, start: Tensor, found: Scored, finest: float | None = None) -> Scored:
    """Return the better of an optimum and what scoring reaches from rougher starts.

    Nothing is tried where little noise is left. A start costs one likelihood. The best one gets a few steps, and is
    followed to its end if these reach the optimum that is known.

    Parameters
    ----------
    scoring : FisherScoring
    start : Tensor of shape (p,)
        The usual start.
    found : Scored
        What scoring has reached from there.
    finest : float or None, default None
        Factor of the lengthscales of ``start`` down to which all are tried, at ratios of four; None: six fixed starts.
    """
    space = scoring.space
    model = space.decode(found.vector)
    much_noise = _MUCH_NOISE * scoring.objective.target_variance
    if scoring.trace.stopped or model.noise_is_known or model.noise_level < much_noise:
        return found
    factors = _STARTS if finest is None else [(one, noise) for one in _down_to(finest) for noise in _NOISES]
    rougher = (space.rougher(start, lengths, noise=noise) for lengths, noise in factors)
    candidates = [one for one in rougher if not torch.equal(one, start)]  # a kernel may have no lengthscale to learn
    losses = [_loss(scoring, one) for one in candidates]
    if not losses or min(losses) > found.value + _WITHIN_REACH:
        return found
    tried = scoring.evaluate(candidates[losses.index(min(losses))])
    if tried is not None:
        tried = scoring.improve(tried, _TRIAL_STEPS, on_trial=True)
        if tried.value < found.value:
            return scoring.improve(tried, scoring.steps - _TRIAL_STEPS)
    return found


def _down_to(finest: float) -> list[float]:
    """Return the powers of `_RATIO` that are not below a number."""
    return [_RATIO**k for k in range(1, 1 + math.floor(math.log(finest) / math.log(_RATIO)))]


def _loss(scoring: FisherScoring, vector: Tensor) -> float:
    """Return the loss of a start in nats an observation; infinity where it is costly or the matrix has no factor."""
    try:
        value = scoring.objective.quick_value(scoring.space.decode(vector))
    except NotPositiveDefiniteError:
        return math.inf
    return math.inf if value is None else (scoring.prior.penalty(vector) - value) / scoring.objective.n_observations
