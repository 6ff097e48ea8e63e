"""Fits that far targets, rows outside their error bars or a poor optimum spoil: warnings before and after the fit.

Targets that lie far from all others spoil a fit with Gaussian noise. Some are so far that they determine the standard
deviation of all targets, which shows before the fit. Others show after it, because the rows around them do not predict
them. The noise variance is then mostly due to them; or, in small tables, the function passes through each of them, with
a lengthscale that is far too short for the other rows.

Rows that all others contradict lie outside their error bars. Each row is predicted from all others at the learned
hyperparameters, and the error is divided by its predicted standard deviation. If the model is right these are normal,
and the largest of n exceeds z with a probability of at most ``2 n Phi(-z)``, however they are correlated. The
hyperparameters are learned from the same rows, which makes large errors rarer: a few rows that are far off raise the
noise of all.

A flat fit explains its targets as noise although nearby rows have similar targets. The likelihood has optima where the
kernel's variance is zero, or where its lengthscales are so short that it correlates no row with another. Learning that
starts far from a better optimum can end there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model.scaling import centre_and_spread, distances_from_bulk, far_rows
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.correlated import most_correlated
from gigagp.neighbours.search import NeighbourTree

#: Standard deviation of the targets, over the spread of most of them, above which a fit warns in advance.
_TIMES = 5.0
#: Distance from most targets, in their spread, at which one is far; most of these that are predicted, and from what
#: number of rows each.
_SPREADS, _MOST_PREDICTED, _AROUND = 6.0, 32, 30
#: A fit warns if the squared errors of far targets, divided by the number of all rows, are more than this share of the
#: noise variance, and if their root mean square in standard deviations is more than the second number. A normal error
#: never is, and those of a function with high peaks are not.
_SHARE, _DEVIATIONS = 0.75, 5.0

#: Probability of an error as large as the largest, if the model is right, below which a fit warns.
_CHANCE = 1e-5
#: Most rows that are looked at. Among many, there are always some that no normal density allows.
_MOST_LEFT_OUT = 3000

#: A fit is flat if the targets of most rows have less correlation with that of any other than this share of the
#: correlation that rows have with those around them.
_FLAT = 0.1
#: Correlation of targets with the mean of those of their nearest rows above which there is a function, and the number
#: of standard errors of that of independent targets that it exceeds at least.
_ALIKE, _STANDARD_ERRORS = 0.25, 4.0
#: Rows that are looked at, rows among which others are found, and how many of the nearest.
_ROWS, _AMONG, _NEAREST = 500, 5000, 3


class Rows(NamedTuple):
    """Rows of a fit that checks look at."""

    n_rows: int
    targets: Callable[[], np.ndarray]  # (n, t) in any units
    example: Callable[[int, int], str]  # describes the target of a row and a column to a user
    table: Callable[[slice], TrainingTable]  # in the posterior's units
    has_others: bool = True  # whether other likelihoods and transforms of the target can be taken


def warn_of_extreme_targets(rows: Rows) -> bool:
    """Before a fit, warn if a few targets determine the standard deviation of all; return whether they do."""
    Y = rows.targets()
    for k, column in enumerate(Y.T):
        far = far_rows(column, _TIMES)
        if len(far):
            why = "Most targets vary by less than a fifth of their standard deviation"
            _warn_of_far(rows, why, len(far), int(far[0]), k)
            return True
    return False


def warn_of_far_targets(rows: Rows, posterior: Posterior) -> bool:
    """After a fit, warn if a few targets that the rows around them do not predict spoil it; return whether they do."""
    Y = rows.targets()
    far = distances_from_bulk(Y) > _SPREADS
    if not far.any():
        return False
    rounded, model = rows.table(slice(None)), posterior.model
    if not rounded.has_points:  # averages have no rows around them; `warn_of_rows_outside_bars` looks at all others
        return False
    held = replace(rounded, X=rounded.X.double(), Y=rounded.Y.double())
    pool, noise = pool_of(model, held), posterior.noise_at(held.X[:1].to(posterior.dtype)).double()
    values = held.Y - posterior.trend(held.X).double()
    for column in np.flatnonzero(far.any(0)):
        those = torch.from_numpy(np.flatnonzero(far[:, column])).to(held.X.device)
        some, squares, variance = predicted_by_others(pool, those, values[:, [column]])
        squares = squares[:, 0]
        share = len(those) / len(Y) * squares.mean() / noise
        if share > _SHARE and (squares / variance).mean() > _DEVIATIONS**2:
            why = "A few targets are not predicted by the rows around them"
            _warn_of_far(rows, why, len(those), int(some[squares.argmax()]), int(column))
            return True
    return False


def predicted_by_others(pool: Pool, those: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return some of those rows of a pool, and squared errors (m, t) and variances (m,) given the rows around them.

    ``values`` of all rows, (n, t), are the function with the pool's noise.
    """
    some = those[:: -(-len(those) // _MOST_PREDICTED)]
    near = most_correlated(pool.kernel, pool.X[some], pool.X, 1 + _AROUND, pool.budget).rows
    others = torch.stack([alike[alike != row][:_AROUND] for row, alike in zip(some, near, strict=True)])
    found = pool.conditionals(some, others.int(), values, weights=False)
    assert found.residual is not None
    return some, found.residual.square(), found.variance


def _warn_of_far(rows: Rows, why: str, n_far: int, row: int, column: int) -> None:
    remedy = (
        'correct them or use likelihood="student-t"; if not, use target_transform="auto".'
        if rows.has_others
        else "correct them or leave them out."
    )
    msg = (
        f"{why}: {n_far:,} of {rows.n_rows:,} lie far from the others, such as {rows.example(row, column)}. With "
        f"Gaussian noise a fit follows these and is poor elsewhere. If they are errors, {remedy}"
    )
    warn(msg, FitWarning)


# Rows outside their error bars ----------------------------------------------------------------------------------------


@torch.no_grad()
def warn_of_rows_outside_bars(rows: Rows, posterior: Posterior) -> None:
    """Warn if a row of a fit that learned Gaussian noise lies where its prediction from all other rows excludes it."""
    found = posterior.left_out() if rows.n_rows <= _MOST_LEFT_OUT else None
    if found is None or len(found.mean) != rows.n_rows or bool(found.relative_error.any()):
        return
    sizes = (rows.table(slice(None)).Y.to(found.mean) - found.mean).abs() * found.variance.rsqrt()[:, None]
    if chance_of_largest(sizes) >= _CHANCE:
        return
    row, column = divmod(int(sizes.argmax()), sizes.shape[1])
    remedy = (
        'use likelihood="student-t" for heavy tails, or target_transform="auto" for skewed targets.'
        if rows.has_others
        else "give these targets more noise (noise_variance), or leave them out."
    )
    msg = (
        f"The error bars are too small for some rows: {rows.example(row, column)} lies {float(sizes.max()):.2g} "
        "predicted standard deviations from what all other rows predict. If such targets are errors, correct them; if "
        f"they are not, Gaussian noise does not suit them: {remedy}"
    )
    warn(msg, FitWarning)


def chance_of_largest(sizes: torch.Tensor) -> float:
    """Return a bound of the probability that the largest of standard normal errors, correlated or not, is as large.

    ``sizes`` are the absolute values of the errors.
    """
    return min(1.0, 2 * sizes.numel() * math.exp(float(torch.special.log_ndtr(-sizes.max().double()))))


# Flat fits ------------------------------------------------------------------------------------------------------------


def _evenly(n: int, count: int) -> slice:
    """Return a slice with a constant step of at most ``count`` of n rows."""
    return slice(None, None, -(-n // count))


def warn_of_flat_fit(looked_at: Rows, posterior: Posterior, *, is_sum: bool, learns_noise: bool) -> bool:
    """Warn if a fit is flat and the targets are not; return whether that is so.

    ``is_sum`` says whether targets are the function plus noise, and not signs, counts or transformed; ``learns_noise``,
    whether that noise has a variance, which was learned. If not, only the function's own correlations are compared.
    """
    if looked_at.n_rows <= _NEAREST + 1:
        return False
    table = looked_at.table(_evenly(looked_at.n_rows, _AMONG))
    points = table.points.to(posterior.dtype)
    rows = torch.arange(table.n_rows, device=table.X.device)[_evenly(table.n_rows, _ROWS)]
    correlations = _fitted_correlations if table.has_points else _correlations_of_averages
    fitted = correlations(posterior, table, rows, with_noise=is_sum and learns_noise)
    if float(fitted.median()) >= _FLAT:  # an observed correlation is at most one
        return False
    values, trend = table.Y.double(), table.average(posterior.trend(points).double())
    if is_sum:
        values = values - trend
    elif bool((trend != trend[0]).any()):  # the mean may explain the targets
        return False
    rows = rows[fitted < _FLAT]
    observed = _observed_correlation(table.X.double(), values, rows)
    # Rows that are each other's nearest count twice, so that the correlation of noise has a variance of up to 2 / n.
    least = max(_ALIKE, _STANDARD_ERRORS * (2 / len(rows)) ** 0.5)
    is_flat = observed > least and float(fitted.median()) < _FLAT * observed
    if is_flat:
        msg = (
            "The fit explains the targets as noise: its kernel relates most rows to no other row. "
            "But nearby rows have similar targets: their correlation with the mean of the nearest "
            f'{_NEAREST} is {observed:.2f}. Learning has ended in a poor optimum. Use optimizer="auto", or start from '
            f"other lengthscales{' and less noise' if learns_noise else ''}."
        )
        warn(msg, FitWarning)
    return is_flat


@torch.no_grad()
def _fitted_correlations(posterior: Posterior, table: TrainingTable, rows: Tensor, *, with_noise: bool) -> Tensor:
    """Return the prior correlation of some rows of a table with any other row, the highest of each.

    It is that of the function, or with noise that of the targets.
    """
    kernel, X = posterior.model.kernel, table.X.to(posterior.dtype)
    points = X[rows]
    found = most_correlated(kernel, points, X, 2, posterior.budget)
    # A row that has duplicates need not be the first of those that are found.
    itself = found.rows[:, 0] == rows
    others = torch.where(itself, found.rows[:, 1], found.rows[:, 0])
    correlations = torch.where(itself, found.correlations[:, 1], found.correlations[:, 0])
    if with_noise:
        shares = kernel.diagonal(X) / (kernel.diagonal(X) + posterior.noise_at(X))
        correlations = correlations * (shares[rows] * shares[others]).sqrt()
    return correlations.nan_to_num(0.0)  # a variance of zero, as float32 has for constant targets


@torch.no_grad()
def _correlations_of_averages(posterior: Posterior, table: TrainingTable, rows: Tensor, *, with_noise: bool) -> Tensor:
    """Return `_fitted_correlations` of a table of averages."""
    matrix = table.matrix(posterior.model.kernel, posterior.noise_at(table.X[:1])[0] if with_noise else 0.0)
    every = torch.arange(table.n_rows, device=rows.device)
    scale = matrix.diagonal().clamp_min(torch.finfo(table.X.dtype).tiny).rsqrt()
    found = matrix.block(rows, every) * scale[rows, None] * scale
    return found.masked_fill(rows[:, None] == every, -math.inf).max(1).values


@torch.no_grad()
def _observed_correlation(X: Tensor, values: Tensor, rows: Tensor) -> float:
    """Return the largest, over columns, of the correlation of values (n, t) of some rows with those of the nearest.

    Each input counts by its standard deviation.
    """
    centre, spread = centre_and_spread(X.cpu().numpy())
    X = (X - torch.from_numpy(centre).to(X)) / torch.from_numpy(spread).to(X)
    found = NeighbourTree(X).query(X[rows], 1 + _NEAREST)
    others = torch.stack([near[near != row][:_NEAREST] for row, near in zip(rows, found, strict=True)])
    nearest = values[others].mean(1)
    own = values[rows] - values.mean(0)
    nearest = nearest - values.mean(0)
    scale = own.norm(dim=0) * nearest.norm(dim=0)
    return float(((own * nearest).sum(0) / scale.clamp_min(torch.finfo(scale.dtype).tiny)).max())
