"""More noise than was learned, where the rows do not support so little of it.

The likelihood takes less noise than there is in two ways, and each has a rule:

1. A kernel with lengthscales below the distance of the nearest rows fits as well as noise of the same size, but
   predicts a row's own place as if it were known. Where rows do not tell the function of a kernel from noise, its
   variance goes to the noise (`_taken_by_noise`).
2. Rows that repeat with equal targets, because half of all targets are zero or few were measured, gain without a bound
   as the noise falls. Where many targets are equal, or left-out errors have heavy tails, learning begins again on three
   quarters of the rows, four times, and the noise gets what the left-out rows support (`most_supported`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import NonFiniteError, NotPositiveDefiniteError, unshown
from gigagp.estimators.choices.student_fit import PROMISE, tail_gain
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import NOISE, Model
from gigagp.neighbours.correlated import Correlated, most_correlated
from gigagp.optimization import Auto, History
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import NoProgress

#: Fewest rows that tell anything, and most from which learning begins again. Of more rows, so many are looked at.
_FEWEST, _MOST = 10, 500
#: Parts of the rows, each left out of one learning.
_PARTS = 4
#: Share of equal targets that are many.
_EQUAL = 0.2
#: Nats that left-out rows but the one that gains most must gain by more noise: two are the 5 % level of a test of
#: likelihoods with one parameter. And nats of all rows to warn of: as many as Student-t noise must gain to be taken.
_SUPPORTED, _DOUBTED = 2.0, 10.0
#: Rows of a place have at least this correlation, with which the function differs by less than 5 % of its standard
#: deviation. A kernel is flat if most rows have less than the second one with any row of another place.
_PLACE, _FLAT = 0.999, 0.1
#: Most similar rows of each that are looked at among more rows than that.
_SIMILAR = 8
#: The variance between places is that of a function where noise alone would have its size this rarely.
_CHANCE = 1e-3
#: Share of the variance of such a kernel that noise does not take, so that there is something to learn from more rows.
_LEFT = 0.01


@dataclass(frozen=True)
class Supported:
    """The posterior with as much noise as is supported, and why it is not the learned one.

    Attributes
    ----------
    posterior : Posterior
    note : str
        What was done to the noise, in words; empty if nothing was.
    doubt : str
        Sentence about left-out rows that lie too far from their predictions; empty if none do.
    """

    posterior: Posterior
    note: str = ""
    doubt: str = ""


def supported(
    objective: TableObjective, posterior: Posterior, start: Model, optimizer: object, generator: torch.Generator
) -> Supported:
    """Return the posterior of a fit with Gaussian noise, or one with more noise where left-out rows support that.

    Parameters
    ----------
    objective : TableObjective
        Objective of the fit.
    posterior : Posterior
        Posterior at its end.
    start : Model
        Where learning began, and begins again without some rows.
    optimizer : object
        Optimizer of the fit, whose settings are used if it is `optimization.Auto`.
    generator : torch.Generator
        Source of what a posterior draws.
    """
    model, table = posterior.model, objective.table
    learns = NOISE in model.learned_names() and objective.has_posteriors_near and not posterior.is_mixture
    if not learns or table.n_rows < _FEWEST or model.student is not None:
        return Supported(posterior)
    try:
        taken = _taken_by_noise(model, table, posterior)
        if taken is not None:
            note = "the kernel explains no more than noise does, so that its variance counts as noise"
            return Supported(objective.posterior(taken, generator), note)
        if not _is_doubtful(posterior, table):
            return Supported(posterior)
        errors, variances = _left_out(table, start, optimizer)
    except (NonFiniteError, NotPositiveDefiniteError):
        return Supported(posterior)
    more, gain, total = most_supported(errors, variances)
    doubt = ""
    if total > _DOUBTED:
        sizes = (errors.abs() * variances.rsqrt()[:, None]).amax(1)
        doubt = (
            f"Rows that were left out of the learning lie up to {float(sizes.max()):.2g} predicted standard deviations "
            f"from their predictions (row {int(sizes.argmax())}, counted from 0): error bars are too small for some "
            'rows. If few targets are wrong or tails are heavy, take likelihood="student-t"; if targets are skewed, or '
            'many are equal, take target_transform="auto".'
        )
    if gain <= _SUPPORTED:
        return Supported(posterior, "", doubt)
    raised = model.replace({NOISE: model.noise_variance + more})
    words = f"raised by {float(more / table.target_variance):.2g} of the target's variance, as left-out rows support"
    return Supported(objective.posterior(raised, generator), words, doubt)


# Left-out rows ------------------------------------------------------------------------------------------------------


def _is_doubtful(posterior: Posterior, table: TrainingTable) -> bool:
    """Whether something speaks against the noise of few rows: equal targets, or heavy tails of left-out errors."""
    if table.n_rows > _MOST or table.drawn_from is not None:
        return False
    equal = max(int(column.unique(return_counts=True)[1].max()) for column in table.Y.T)
    if equal > _EQUAL * table.n_rows:
        return True
    found = posterior.left_out()
    if found is None:
        return False
    errors = (table.Y.double() - found.mean) * found.variance.rsqrt()[:, None]
    return tail_gain(errors.flatten().cpu()) > PROMISE


def _left_out(table: TrainingTable, start: Model, optimizer: object) -> tuple[Tensor, Tensor]:
    """Return errors (n, t) and predicted variances (n,) of rows by fits to three quarters of the others.

    Rows left out at the learned hyperparameters do not tell: these have been learned from them too.
    """
    settings = optimizer if isinstance(optimizer, Auto) else Auto()
    settings = replace(settings, subset_sizes=(table.n_rows,), polish_steps=0)
    table = replace(table, X=table.X.double().cpu(), Y=table.Y.double().cpu())
    order = torch.randperm(table.n_rows, generator=torch.Generator().manual_seed(6))
    errors, variances = torch.zeros_like(table.Y), torch.zeros(table.n_rows, dtype=torch.float64)
    for part in range(_PARTS):
        tested, others = order[part::_PARTS], order[torch.arange(len(order)) % _PARTS != part].sort().values
        objective = ExactObjective(table.take_rows(others))
        with NoProgress() as silent, unshown():
            trace = Trace(History(), silent)
            found = settings.run(objective, objective.start(start), trace, torch.Generator().manual_seed(0))
        posterior = objective.learned_posterior(found, torch.Generator())
        mean, variance = posterior.mean_and_variance(table.X[tested])
        errors[tested] = table.Y[tested] - mean
        variances[tested] = variance + posterior.noise_at(table.X[tested])
    return errors, variances


def most_supported(errors: Tensor, variances: Tensor) -> tuple[float, float, float]:
    """Return the further noise variance that left-out rows support, what they gain, and what they could gain.

    It maximises the log density of all rows but the one that gains most, so that no row alone decides.

    Parameters
    ----------
    errors : Tensor of shape (n, t)
    variances : Tensor of shape (n,)
        Predicted variances of the errors.

    Returns
    -------
    more : float
        Further noise variance.
    gain : float
        Gain in nats of all rows but that one.
    total : float
        Largest gain in nats of all rows.
    """
    squares, scale = errors.square(), float(errors.square().mean())
    if not 0 < scale < math.inf:
        return 0.0, 0.0, 0.0
    further = torch.cat([torch.zeros(1), scale * torch.logspace(-10, 2, 241)]).to(variances)
    whole = variances + further[:, None]
    densities = -0.5 * (squares.sum(1) / whole + errors.shape[1] * whole.log())
    gains = densities - densities[0]
    without = gains.sum(1) - gains.clamp_min(0).amax(1)
    best = int(without.argmax())
    return float(further[best]), float(without[best]), float(gains.sum(1).max())


# A function that noise explains as well ------------------------------------------------------------------------------


@torch.no_grad()
def _taken_by_noise(model: Model, table: TrainingTable, posterior: Posterior) -> Model | None:
    """Return the model with its kernel's variance as noise, if rows do not tell one from the other; otherwise None.

    Rows of different places tell if they are correlated. Where rows repeat and the function varies more than the noise,
    one row of each place must also have a likelihood that is higher than that of noise alone by more nats than the
    kernel has hyperparameters (Akaike's criterion): repeats alone do not tell a function from noise. Rows of one place
    tell if they agree so well that noise would hardly ever show it.
    """
    X = table.X.to(posterior.dtype)
    rows = torch.arange(table.n_rows, device=X.device)[:: -(-table.n_rows // _MOST)]
    n_similar = table.n_rows if table.n_rows <= _MOST else 1 + _SIMILAR
    found = most_correlated(model.kernel, X[rows], X, n_similar, posterior.budget)
    others = found.rows != rows[:, None]
    place = _places(table.n_rows, rows, found)
    count = int(place.max()) + 1
    variance, smaller = float(model.kernel.diagonal(X).double().mean()), model.amplified(_LEFT)
    if smaller is None:
        return None
    taken = smaller.replace({NOISE: model.noise_variance + (1 - _LEFT) * variance})
    elsewhere = torch.where(others & (found.correlations < _PLACE), found.correlations, -1.0).amax(1)
    is_flat = float(torch.where(elsewhere < 0, 1.0, elsewhere).median()) < _FLAT
    repeats, is_sure = count < table.n_rows, float(model.noise_variance) < variance
    if not is_flat and not (repeats and is_sure and count <= _MOST and not _places_tell(model, taken, table, place)):
        return None
    values = (table.Y.double() - posterior.trend(X).double()).cpu().numpy()
    return None if repeats and _agree(place, values) else taken


def _places(n: int, rows: Tensor, found: Correlated) -> np.ndarray:
    """Return the number of the place of each row (n,): rows that are near its first one.

    Rows that are near one another are not chained: a smooth function of many rows would be a single place.
    """
    place = np.full(n, -1)
    near = (found.correlations >= _PLACE).cpu().numpy()
    for first, similar, is_near in zip(rows.tolist(), found.rows.cpu().numpy(), near, strict=True):
        if place[first] < 0:
            members = similar[is_near]
            place[members[place[members] < 0]] = first
            place[first] = first
    return np.unique(np.where(place < 0, np.arange(n), place), return_inverse=True)[1]


def _places_tell(model: Model, taken: Model, table: TrainingTable, place: np.ndarray) -> bool:
    """Whether one row of each place has a likelihood that noise alone would not have."""
    first = torch.from_numpy(np.unique(place, return_index=True)[1]).sort().values
    if len(first) < _FEWEST:
        return True
    objective = ExactObjective(table.take_rows(first.to(table.X.device)))
    count = sum(model.parameters()[name].numel() for name in model.learned_names() if name != NOISE)
    return objective.value(model) - objective.value(taken) > count


def _agree(place: np.ndarray, values: np.ndarray) -> bool:
    """Whether values (n, t) of rows of one place are more alike than noise leaves to chance, for some target.

    It is the F test of the variances between and within places. Equal values are as alike as the steps tell in which
    they are given.
    """
    from scipy.special import fdtrc  # here, so that it costs nothing to import an estimator

    sizes = np.bincount(place)
    between, within = max(len(sizes) - 1, 1), len(place) - len(sizes)
    for column in values.T:
        means = np.bincount(place, column) / sizes
        gaps = np.diff(np.unique(column))
        step = float(gaps.min()) if len(gaps) else 0.0
        inside = float(np.square(column - means[place]).sum()) / within + step**2 / 12
        outside = float((sizes * np.square(means - column.mean())).sum()) / between
        if fdtrc(between, within, outside / max(inside, np.finfo(float).tiny)) < _CHANCE:
            return True
    return False
