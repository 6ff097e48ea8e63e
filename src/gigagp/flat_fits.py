"""Fits that explain their targets as noise although rows that are alike have targets alike: a warning after the fit.

The likelihood has an optimum where the kernel's variance is zero and the noise is everything. Learning that starts far
from a better one, such as at lengthscales that are much too short, can end there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gigagp.arguments import Problem
from gigagp.errors import FitWarning, warn
from gigagp.inference.posterior import Posterior
from gigagp.neighbours.search import NeighbourTree
from gigagp.scaling import centre_and_spread

#: A function is flat if its prior variance is less than this share of the noise variance.
_FLAT = 0.01
#: Correlation of targets with the mean of those of their nearest rows above which there is a function, and the number
#: of standard errors of that of independent targets that it exceeds at least.
_ALIKE, _STANDARD_ERRORS = 0.25, 4.0
#: Rows that are looked at, rows among which the nearest are found, and how many of these.
_ROWS, _AMONG, _NEAREST = 500, 5000, 3


def warn_after(problem: Problem, X: np.ndarray, y: np.ndarray, posterior: Posterior) -> None:
    """Warn if a fit is flat and the targets are not.

    Parameters
    ----------
    problem : Problem
        The standardized problem.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : ndarray of shape (n,) or (n, n_targets)
        Targets in the data's own units.
    posterior : Posterior
        Posterior of the fit, with learned noise.
    """
    if len(X) <= _NEAREST + 1:
        return
    some = slice(None, None, -(-len(X) // _AMONG))
    table = problem.table_of(X[some], y[some])
    points = table.X.to(posterior.dtype)
    with torch.no_grad():
        variance, noise = posterior.model.kernel.diagonal(points).mean(), posterior.noise_at(points).mean()
        if float(variance) > _FLAT * float(noise):
            return
        values = table.Y.double() - posterior.trend(points).double()
    correlation, n = _correlation_with_nearest(table.X.double(), values)
    # Rows that are each other's nearest count twice, so that the correlation of noise has a variance of up to 2 / n.
    if correlation > max(_ALIKE, _STANDARD_ERRORS * (2 / n) ** 0.5):
        msg = (
            "The fit explains the targets as noise and is flat, but rows that are close have targets alike: their "
            f"correlation with the mean of the nearest {_NEAREST} is {correlation:.2f}. Learning has ended in a poor "
            'optimum. Take optimizer="auto", or begin with other lengthscales and less noise.'
        )
        warn(msg, FitWarning)


@torch.no_grad()
def _correlation_with_nearest(X: Tensor, values: Tensor) -> tuple[float, int]:
    """Return the largest, over columns, of the correlation of rows' values (n, t) with those of their nearest rows.

    Each input counts by its standard deviation. Also returns the number of rows that were looked at.
    """
    centre, spread = centre_and_spread(X.cpu().numpy())
    X = (X - torch.from_numpy(centre).to(X)) / torch.from_numpy(spread).to(X)
    rows = torch.arange(0, len(X), -(-len(X) // _ROWS), device=X.device)
    found = NeighbourTree(X).query(X[rows], 1 + _NEAREST)
    others = torch.stack([near[near != row][:_NEAREST] for row, near in zip(rows, found, strict=True)])
    nearest = values[others].mean(1)
    own = values[rows] - values.mean(0)
    nearest = nearest - values.mean(0)
    scale = own.norm(dim=0) * nearest.norm(dim=0)
    return float(((own * nearest).sum(0) / scale.clamp_min(torch.finfo(scale.dtype).tiny)).max()), len(rows)
