"""What inducing points are expected to cost and to bring, for the choice of ``inference="auto"``."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import torch

from gigagp.inference.contract.forecast import Forecast, Subject, ratio_of_gains
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective
from gigagp.inference.sparse_variational.settings import SparseSettings
from gigagp.runtime.machine import MULTIPLICATION

#: Rows of the largest trial, and the number of trials, each with half the rows of the next.
_TRIAL_ROWS, _TRIALS = 8000, 3
#: Products of all rows' features with m x m matrices in a gradient, and gradients of a fit: on some thousand rows, and
#: then on all rows of a larger table. Measured on four tables: 20 to 200, and 5 to 30.
_PRODUCTS, _FIRST, _LAST, _THINNED = 3, 80, 15, 16_000
#: Gain of exact inference over neighbours below which inducing points are not tried.
_LEAST_GAIN = 0.002


def forecast(settings: SparseSettings, subject: Subject) -> Forecast:
    """Return the cost of inducing points for all rows, and their density from trials with up to 8,000 rows.

    A trial predicts the left-out rows at the hyperparameters that neighbours have learned. Variances are then
    multiplied by what makes them right, because the noise that this method learns includes what the points leave out.
    With the same points, the gains of twice as many rows form a geometric series. The points and hyperparameters are
    not learned, so that the method itself does somewhat better.
    """
    table, m = subject.table, settings.n_inducing
    n = table.n_rows
    rows = _FIRST * n if n < _THINNED else _FIRST * _THINNED / 2 + _LAST * n
    seconds = _PRODUCTS * MULTIPLICATION * m**2 * rows
    memory = 8.0 * (12 * m**2 + 4 * m * min(n, _TRIAL_ROWS))
    if subject.gain < _LEAST_GAIN:
        return Forecast(seconds, memory)
    tested = max(min(len(subject.left_out), n // 4), 1)
    differences = trials(replace(settings, learn_inducing_points=False, start="random"), subject, tested)
    doublings = math.log2(n / min(_TRIAL_ROWS, n - tested))
    return subject.with_nll(seconds, memory, subject.nll + extrapolated(differences, doublings))


def trials(settings: SparseSettings, subject: Subject, tested: int) -> list[float]:
    """Return the mean negative log density of left-out rows given more and more of the others, less that by neighbours.

    Parameters
    ----------
    settings : SparseSettings
        Settings of the method.
    subject : Subject
        Table and model.
    tested : int
        Number of left-out rows, of which the first are taken.
    """
    table, left_out = subject.table, subject.left_out[:tested]
    drawn = torch.randperm(table.n_rows, generator=torch.Generator().manual_seed(5)).to(left_out.device)
    others = drawn[~torch.isin(drawn, left_out)][:_TRIAL_ROWS]
    local = float(subject.densities[:tested].mean())
    X, Y = table.X[left_out], table.Y[left_out].double()
    scores = []
    for halvings in reversed(range(_TRIALS)):
        taken = table.take_rows(others[: max(len(others) >> halvings, 1)].sort().values)
        objective = CollapsedObjective(settings, taken, torch.Generator().manual_seed(0))
        posterior = objective.posterior(objective.start(subject.model))
        found = posterior.marginals(X, include_noise=True)
        mean, variance = found.means[0], found.variances[0].double()[:, None]
        right = (Y - mean.double()).square().div(variance).mean() * variance
        scores.append(float(0.5 * (1 + (2 * math.pi * right).log().mean())) - local)
    return scores


def extrapolated(scores: list[float], doublings: float) -> float:
    """Return the last score after further doublings of the rows, whose gains form a geometric series."""
    gains = [one - other for one, other in pairwise(scores)]
    if gains[-1] <= 0 or doublings <= 0:
        return scores[-1]
    ratio = ratio_of_gains(gains[-2], gains[-1])
    return scores[-1] - gains[-1] * ratio * (1 - ratio**doublings) / (1 - ratio)
