"""More noise than was learned, where the rows do not support so little of it.

The likelihood can find less noise than there is in three ways, and each has a rule:

1. A few rows repeat, with targets that are nearly equal by chance. These rows alone then determine the noise, and the
   function follows all others. Rows of one place show the noise by their spread; if they are few, the noise is learned
   again from one row of each place. Even without repeats, a kernel that correlates no place with another fits as well
   as noise of the same size, and the noise takes its variance (`_from_places`).
2. Half of all targets are equal, a few are very large, or many rows repeat: what a few rows gain from little noise
   hides what the others lose. Learning begins again on three quarters of the rows, four times, and the noise gets what
   the left-out rows support (`most_supported`).
3. Where rows repeat with equal targets, a rough part of a chosen kernel takes the place of the noise. The noise is then
   that which the choice has learned with the default kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import UNUSABLE
from gigagp.estimators.choices.noise_choice import PROMISE, tail_gain
from gigagp.estimators.choices.trials import held_exactly, learned
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import NOISE, Model
from gigagp.neighbours.correlated import most_correlated

#: Fewest rows that tell anything, and most from which learning begins again or that are looked at.
_FEWEST, _MOST = 10, 500
#: Most rows among which those that repeat are looked for: among more, few do not decide on the noise.
_LOOKED_AT = 20_000
#: Parts of the rows, each left out of one learning.
_PARTS = 4
#: Share of equal targets, and of rows that repeat, that is large.
_MANY = 0.2
#: Nats that left-out rows but the one that gains most must gain by more noise: three are odds of twenty.
_SUPPORTED = 3.0
#: A kernel is flat if most of some rows have less than this correlation with any row of another place.
_FLAT, _FLAT_ROWS = 0.1, 100
#: Share of the default kernel's noise below which that of a chosen kernel is lost.
_LOST = 0.1
#: Places contradict the learned noise if they tell more than this many times as much.
_CONTRADICTS = 2.0
#: Share of the variance of a flat kernel that noise does not take, so that there is something to learn from more rows.
_LEFT = 0.01


def supported(
    objective: TableObjective,
    posterior: Posterior,
    start: Model,
    optimizer: object,
    generator: torch.Generator,
    least_noise: float = 0.0,
    *,
    looks_at_tails: bool = True,
) -> tuple[Posterior, str]:
    """Return the posterior of a fit with Gaussian noise, or one with more noise where the rows support that.

    The text says what was done to the noise; it is empty if nothing was. ``start`` is where learning began, and begins
    again without some rows, with the settings of the optimizer if it is `optimization.Auto`. The noise of a chosen
    kernel is not far below ``least_noise`` where rows repeat. ``looks_at_tails`` says whether heavy tails of left-out
    errors alone are a reason to learn again.
    """
    found, table = posterior.model, objective.table
    learns = NOISE in found.learned_names() and not posterior.is_mixture and found.student is None
    if not learns or table.n_rows < _FEWEST:
        return posterior, ""
    loses = float(found.noise_variance) < _LOST * least_noise
    looks = objective.has_posteriors_near and table.n_rows <= _LOOKED_AT
    if not (looks or loses):
        return posterior, ""
    held = held_exactly(table)
    try:
        places = _Places.of(held.X)
        if loses and len(places.first) < table.n_rows:
            model = found.replace({NOISE: torch.full_like(found.noise_variance, least_noise)})
            return objective.posterior(model, generator), "that of the default kernel, because repeated rows leave none"
        if not looks:
            return posterior, ""
        model, note = _from_places(posterior, held, places, start, optimizer)
        if _is_doubtful(posterior, held, places, looks_at_tails=looks_at_tails):
            errors, variances = _left_out(held, start, optimizer)
            more, gain = most_supported(errors, variances)
            raised = found.noise_variance + more
            if gain > _SUPPORTED and float(raised) > float(model.noise_variance):
                share = f"{float(more / table.target_variance):.2g} of the target's variance"
                model, note = model.replace({NOISE: raised}), f"raised by {share}, as held-out rows support"
        if model is not found:
            posterior = objective.posterior(model, generator)
    except UNUSABLE:
        return posterior, ""
    return posterior, note


def _learned(table: TrainingTable, start: Model, optimizer: object) -> ExactPosterior:
    """Return the posterior of learning from the rows of a small table alone."""
    objective = ExactObjective(table)
    found = learned(objective, objective.start(start), optimizer, torch.Generator().manual_seed(0))
    return objective.learned_posterior(found, torch.Generator())


# Left-out rows ------------------------------------------------------------------------------------------------------


def _is_doubtful(posterior: Posterior, table: TrainingTable, places: _Places, *, looks_at_tails: bool) -> bool:
    """Whether something speaks against the noise: many equal targets, many repeats, heavy tails of left-out errors."""
    if table.n_rows > _MOST or table.drawn_from is not None:
        return False
    equal = max(int(column.unique(return_counts=True)[1].max()) for column in table.Y.T)
    if max(equal, table.n_rows - len(places.first)) > _MANY * table.n_rows:
        return True
    found = posterior.left_out() if looks_at_tails else None
    if found is None:
        return False
    errors = (table.Y - found.mean.cpu()) * found.variance.cpu().rsqrt()[:, None]
    return tail_gain(errors.flatten()) > PROMISE


def _left_out(table: TrainingTable, start: Model, optimizer: object) -> tuple[Tensor, Tensor]:
    """Return errors (n, t) and predicted variances (n,) of rows by fits to three quarters of the others.

    Rows left out at the learned hyperparameters do not tell: these have been learned from them too.
    """
    order = torch.randperm(table.n_rows, generator=torch.Generator().manual_seed(6))
    errors, variances = torch.zeros_like(table.Y), torch.zeros(table.n_rows, dtype=torch.float64)
    for part in range(_PARTS):
        tested, others = order[part::_PARTS], order[torch.arange(len(order)) % _PARTS != part].sort().values
        posterior = _learned(table.take_rows(others), start, optimizer)
        mean, variance = posterior.mean_and_variance(table.X[tested])
        errors[tested] = table.Y[tested] - mean
        variances[tested] = variance + posterior.noise_at(table.X[tested])
    return errors, variances


def most_supported(errors: Tensor, variances: Tensor) -> tuple[float, float]:
    """Return the further noise variance that left-out rows support, and what they gain, in nats.

    The rows have errors (n, t) of predicted variances (n,). The variance maximises the log density of all rows but the
    one that gains most, so that no row alone decides. The gain is that of all rows but that one.
    """
    squares, scale = errors.square(), float(errors.square().mean())
    if not 0 < scale < math.inf:
        return 0.0, 0.0
    further = torch.cat([torch.zeros(1), scale * torch.logspace(-10, 2, 241)]).to(variances)
    whole = variances + further[:, None]
    densities = -0.5 * (squares.sum(1) / whole + errors.shape[1] * whole.log())
    gains = densities - densities[0]
    without = gains.sum(1) - gains.clamp_min(0).amax(1)
    best = int(without.argmax())
    return float(further[best]), float(without[best])


# Rows that repeat, and kernels that correlate nothing ----------------------------------------------------------------


def _from_places(
    posterior: Posterior, table: TrainingTable, places: _Places, start: Model, optimizer: object
) -> tuple[Model, str]:
    """Return the learned model, or one with the noise that places tell if it is far more, and what was done."""
    model, X = posterior.model, table.X
    noise, variance = _levels(model, X)
    within = places.noise(table.Y - posterior.trend(X.to(posterior.dtype)).double().cpu())
    if within <= _CONTRADICTS * noise:
        return model, ""
    other, words = model, "learned from one row of each place, because too few rows repeat to determine the noise"
    if _FEWEST <= len(places.first) <= min(_MOST, len(X) - 1) and noise < variance:
        other = _learned(table.take_rows(places.first), start, optimizer).model
    if _is_flat(other, X[places.first], posterior.budget):
        smaller = other.amplified(_LEFT)
        if smaller is None:
            return model, ""
        moved = (1 - _LEFT) * (sum(_levels(other, X)) - other.noise_variance)
        other = smaller.replace({NOISE: other.noise_variance + moved})
        words = "the kernel explains no more than noise does, so its variance counts as noise"
    told = _levels(other, X)[0]
    if within < told:
        other, told = model.replace({NOISE: model.noise_variance + within - noise}), within
        words = "raised to the variance within rows of one place"
    return (other, words) if told > _CONTRADICTS * noise else (model, "")


@torch.no_grad()
def _levels(model: Model, X: Tensor) -> tuple[float, float]:
    """Return the variances of noise and function, the means over rows X (n, d)."""
    white = float(model.kernel.white(X).mean())
    return float(model.noise_variance) + white, float(model.kernel.diagonal(X).mean()) - white


@torch.no_grad()
def _is_flat(model: Model, X: Tensor, budget: int) -> bool:
    """Whether the kernel correlates most of different rows X (n, d) with no other."""
    some = X[:: -(-len(X) // _FLAT_ROWS)]
    return float(most_correlated(model.kernel, some, X, 2, budget).correlations[:, -1].median()) < _FLAT


class _Places(NamedTuple):
    """Rows by their places: the number of the place of each row (n,), and one row of each place (k,)."""

    number: Tensor
    first: Tensor

    @classmethod
    def of(cls, X: Tensor) -> _Places:
        """Return the places of rows X (n, d): those of one place are equal."""
        _, first, number = np.unique(X.numpy(), axis=0, return_index=True, return_inverse=True)
        return cls(torch.from_numpy(number.reshape(-1)), torch.from_numpy(np.sort(first)))

    def noise(self, values: Tensor) -> float:
        """Return the noise variance that values (n, t) of rows of one place tell; infinity if they are too few.

        It is the variance of a new error given m independent ones with the sum of squares S, ``S / (m - 2)``.
        """
        t = values.shape[1]
        sizes = self.number.bincount()[:, None].double()
        means = torch.zeros(len(sizes), t, dtype=torch.float64).index_add_(0, self.number, values) / sizes
        count = t * (len(values) - len(sizes)) - 2
        return float((values - means[self.number]).square().sum()) / count if count > 0 else math.inf
