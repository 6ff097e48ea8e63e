"""Fits whose predicted variances are too small: a warning after the fit.

An approximation can be too certain in two ways. Its errors at training rows are larger than predicted; or its latent
function differs from that of the exact posterior at the same hyperparameters by more than it predicts, which noise
hides at the rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel
from gigagp.neighbours.correlated import most_correlated

#: Largest number of training rows at which errors are looked at, in time and after a deadline.
_ROWS, _LATE_ROWS = 256, 32
#: A fit warns if the mean squared error at training rows, in predicted variances, is more than the first number plus
#: the second one times the standard error of the mean of independent ones.
_TOO_CERTAIN, _STANDARD_ERRORS = 2.0, 4.0
#: A fit warns if latent variances are less than expected squared errors by more than this factor.
_LATENT = 4.0
#: Places that are compared with the exact posterior, rows around each that it is given, rows in its middle, and points
#: between these in all places. Tables of no more rows than one is given are one place.
_PLACES, _GIVEN, _CORE, _POINTS = 2, 1000, 100, 64
#: Where half of the rows leave a variance at most this many times as large, rows farther away matter little; and the
#: fewest points of this kind that are looked at.
_LOCAL, _FEWEST_LOCAL = 1.1, 8
#: Least predicted variance: a share of the prior one, and of the mean square of the targets, near their rounding.
_LEAST_SHARE, _ROUNDING = 1e-6, 1e-12


@torch.no_grad()
def warn_of_small_variances(objective: TableObjective, posterior: Posterior, *, ended_early: bool, late: bool) -> None:
    """Warn if the errors at training rows, or those of the latent function between them, are larger than predicted.

    The noise that a fit learns includes what an approximation leaves out. Noise that is given does not, nor does that
    of a fit that ended early: learning begins at hyperparameters of the exact likelihood of a subset. Predicted
    variances can then be much too small. Those of the latent function can be so in any fit. Where it is ``late``, few
    rows are looked at.
    """
    table = objective.table
    most = _LATE_ROWS if late else _ROWS
    if not objective.includes_its_error and _warns_at_rows(table, posterior, most, ended_early=ended_early):
        return
    if posterior.n_rows != table.n_rows or not (posterior.replaces_kernel or posterior.learns_prior):
        return  # rows that are not held matter too
    ratio = latent_errors(table, posterior)
    if ratio > _LATENT:
        msg = (
            f"Squared errors of the latent function between the rows are expected to be {ratio:.2g} times the "
            "predicted variances, by the exact posterior at the same hyperparameters: its standard deviations are too "
            'small. Use more basis functions, inducing points or nodes of the grid, or inference="auto".'
        )
        warn(msg, FitWarning)


def _warns_at_rows(table: TrainingTable, posterior: Posterior, most: int, *, ended_early: bool) -> bool:
    """Warn if squared errors at some rows are larger than predicted, beyond chance, and return whether they are."""
    rows = torch.arange(table.n_rows, device=table.X.device)[:: -(-table.n_rows // most)]
    X, Y = table.X[rows].to(posterior.dtype), table.Y[rows].double()
    mean, variance = posterior.mean_and_variance(X)
    predicted = variance.double() + posterior.model.noise_of_rows(rows, X).double()
    ratio = float(((Y - mean.double()).square() / predicted[:, None]).mean(0).max())
    if not ratio > _TOO_CERTAIN + _STANDARD_ERRORS * math.sqrt(2 / len(rows)):  # nan: no error and no variance
        return False
    if ended_early:
        msg = (
            f"Learning was ended early: squared errors at training rows are {ratio:.2g} times the predicted variances, "
            'so that error bars are too small. Let it learn longer (time_budget), or take inference="auto".'
        )
    else:
        msg = (
            f"Squared errors at training rows are {ratio:.2g} times the predicted variances, so error bars are "
            "too small: the noise variance is less than what the approximation, or the kernel, leaves out. Let the fit "
            "learn noise_variance, with more steps if it did; or take more basis functions or inducing points, another "
            'kernel, or inference="auto".'
        )
    warn(msg, FitWarning)
    return True


@torch.no_grad()
def latent_errors(table: TrainingTable, posterior: Posterior) -> float:
    """Return expected squared errors of the latent function in predicted variances, the mean over points between rows.

    The exact posterior at the same hyperparameters expects a squared error of ``(m - m')^2 + v'``, where m' and v' are
    its mean and variance, and m is the mean that is judged. In large tables it is given the nearest rows alone, and
    points count where rows farther away matter little. The result is zero where there are too few of those, and where
    a matrix has no factor in float64.
    """
    n = table.n_rows
    everything = torch.arange(n, device=table.X.device)
    if n <= _GIVEN:
        places = [(everything, everything)]
    else:
        centres = everything[:: -(-n // _PLACES)] + n // (2 * _PLACES)
        near = most_correlated(posterior.model.kernel, table.X[centres], table.X, _GIVEN, table.budget).rows
        places = [(rows, rows[:_CORE]) for rows in near]
    generator = torch.Generator().manual_seed(0)
    found = []
    for given, core in places:
        points = _points_between(posterior.model.kernel, table.X[core], _POINTS // len(places), generator)
        ratios = _ratios(table, posterior, given, points)
        if ratios is None:
            return 0.0
        found.append(ratios)
    ratios = torch.cat(found)
    return float(ratios.mean(0).max()) if len(ratios) >= _FEWEST_LOCAL else 0.0


def _points_between(kernel: Kernel, X: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return points halfway between two rows of X (n, d): any two, and a row and the one that it correlates most with.

    Rows may lie close together in groups, such as those of one person: predictions are wanted within groups, and any
    two rows are mostly of two of them.
    """
    one, other = torch.randint(len(X), (2, count), generator=generator).to(X.device)
    some = one[: count // 2]
    correlations = kernel.block(X[some], X) * kernel.diagonal(X).clamp_min(torch.finfo(X.dtype).tiny).rsqrt()
    same = (X[some][:, None] == X).all(2)
    other[: count // 2] = correlations.masked_fill(same, -math.inf).argmax(1)
    return kernel.admitted((X[one] + X[other]) / 2)


def _ratios(table: TrainingTable, posterior: Posterior, given: Tensor, points: Tensor) -> Tensor | None:
    """Return expected squared errors in predicted variances at points, by the exact posterior given some rows, (m, t).

    Points at which farther rows matter are left out. None: the matrix of the rows has no factor.
    """
    kernel, X = posterior.model.kernel, table.X[given]
    noise = posterior.model.noise_of_rows(given, X).double()
    X, points = X.double(), points.double()
    factor, failed = torch.linalg.cholesky_ex(kernel.block(X, X) + noise.diag())
    if int(failed):
        return None
    residual = table.Y[given].double() - posterior.trend(X.to(posterior.dtype)).double()
    whitened = torch.linalg.solve_triangular(factor, torch.cat([kernel.block(X, points), residual], 1), upper=False)
    of_points, of_targets = whitened[:, : len(points)], whitened[:, len(points) :]
    prior = kernel.diagonal(points)
    variance = (prior - of_points.square().sum(0)).clamp_min(0)
    mean, predicted = posterior.mean_and_variance_given_trend(points.to(posterior.dtype))
    latent = mean.double() - posterior.trend(points.to(posterior.dtype)).double()
    least = _LEAST_SHARE * prior + _ROUNDING * table.Y[given].double().square().mean()
    if posterior.learns_prior:  # it is not the kernel's, and its noise has what it leaves out
        least = least + noise.mean()
    errors = (latent - of_points.T @ of_targets).square() + (variance + least)[:, None]
    ratios = errors / (predicted.double() + least)[:, None]
    if len(given) == table.n_rows:
        return ratios
    of_half = prior - of_points[: len(given) // 2].square().sum(0)  # rows are in the order of their correlations
    return ratios[of_half < _LOCAL * variance + least]
