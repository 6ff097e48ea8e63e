"""A warning after fits that explain their targets as noise although nearby rows have similar targets.

The likelihood has optima where the kernel's variance is zero, or its lengthscales so short that it correlates no row
with another, and all is noise. Learning that starts far from a better one can end there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.scaling import centre_and_spread
from gigagp.neighbours.correlated import most_correlated
from gigagp.neighbours.search import NeighbourTree

#: A fit is flat if the targets of most rows have less correlation with that of any other than this share of the
#: correlation that rows have with those around them.
_FLAT = 0.1
#: Correlation of targets with the mean of those of their nearest rows above which there is a function, and the number
#: of standard errors of that of independent targets that it exceeds at least.
_ALIKE, _STANDARD_ERRORS = 0.25, 4.0
#: Rows that are looked at, rows among which others are found, and how many of the nearest.
_ROWS, _AMONG, _NEAREST = 500, 5000, 3


def evenly(n: int, count: int = _AMONG) -> slice:
    """Return a slice with a constant step of at most so many of n rows; by default as many as are worth comparing."""
    return slice(None, None, -(-n // count))


def warn_after(table: TrainingTable, posterior: Posterior, *, is_sum: bool, learns_noise: bool) -> None:
    """Warn if a fit is flat and the targets are not.

    Parameters
    ----------
    table : TrainingTable
        Rows in the posterior's units: all of them, or some.
    posterior : Posterior
        Posterior of the fit.
    is_sum : bool
        Whether targets are the function plus noise, and not signs, counts or transformed.
    learns_noise : bool
        Whether that noise has a variance, which was learned. If not, only the function's own correlations are compared.
    """
    if table.n_rows <= _NEAREST + 1:
        return
    points = table.X.to(posterior.dtype)
    rows = torch.arange(table.n_rows, device=table.X.device)[evenly(table.n_rows, _ROWS)]
    fitted = _fitted_correlations(posterior, points, rows, with_noise=is_sum and learns_noise)
    if float(fitted.median()) >= _FLAT:  # an observed correlation is at most one
        return
    values, trend = table.Y.double(), posterior.trend(points).double()
    if is_sum:
        values = values - trend
    elif bool((trend != trend[0]).any()):  # the mean may explain the targets
        return
    rows = rows[fitted < _FLAT]
    observed = _observed_correlation(table.X.double(), values, rows)
    # Rows that are each other's nearest count twice, so that the correlation of noise has a variance of up to 2 / n.
    least = max(_ALIKE, _STANDARD_ERRORS * (2 / len(rows)) ** 0.5)
    if observed > least and float(fitted.median()) < _FLAT * observed:
        msg = (
            "The fit explains the targets as noise: its kernel relates most rows to no other row. "
            "But nearby rows have similar targets: their correlation with the mean of the nearest "
            f'{_NEAREST} is {observed:.2f}. Learning has ended in a poor optimum. Take optimizer="auto", or begin with '
            f"other lengthscales{' and less noise' if learns_noise else ''}."
        )
        warn(msg, FitWarning)


@torch.no_grad()
def _fitted_correlations(posterior: Posterior, X: Tensor, rows: Tensor, *, with_noise: bool) -> Tensor:
    """Return the prior correlation of some rows of X (n, d) with any other row, the highest of each.

    It is that of the function, or with noise that of the targets.
    """
    kernel, points = posterior.model.kernel, X[rows]
    found = most_correlated(kernel, points, X, 2, posterior.budget)
    # A row that has duplicates need not be the first of those that are found.
    itself = found.rows[:, 0] == rows
    others = torch.where(itself, found.rows[:, 1], found.rows[:, 0])
    correlations = torch.where(itself, found.correlations[:, 1], found.correlations[:, 0])
    if not with_noise:
        return correlations
    shares = kernel.diagonal(X) / (kernel.diagonal(X) + posterior.noise_at(X))
    return correlations * (shares[rows] * shares[others]).sqrt()


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
