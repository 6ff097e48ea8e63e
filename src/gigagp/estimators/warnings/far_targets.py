"""Targets that lie far from all others, which spoil a fit with Gaussian noise: warnings of them, before and after it.

Before a fit, the targets alone show those that set the standard deviation of all. Fewer or nearer ones show after it,
because no row around them predicts them. The noise is then mostly theirs; or, in small tables, the function turns to
each of them, with a lengthscale that is far too short for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model.scaling import distances_from_bulk, far_rows
from gigagp.neighbours.correlated import most_correlated

#: Standard deviation of the targets, over the spread of most of them, above which a fit warns in advance.
_TIMES = 5.0
#: Spreads from most targets at which one is far. At most so many are predicted, each from so many rows.
_SPREADS, _MOST_PREDICTED, _NEIGHBOURS = 6.0, 32, 30
#: A fit warns if the squared errors of far targets, divided by the number of all rows, are more than this share of the
#: noise variance, and if their root mean square is more than so many standard deviations. A normal error never is, and
#: those of a function with high peaks are not.
_SHARE, _DEVIATIONS = 0.75, 5.0

#: Describes the target of a row and a column to a user.
Example = Callable[[int, int], str]


def warns_before(Y: np.ndarray, example: Example) -> bool:
    """Warn if the standard deviation of targets (n, t) is due to few far ones; return whether it is."""
    for k, column in enumerate(Y.T):
        far = far_rows(column, _TIMES)
        if len(far):
            why = "Most targets vary by less than a fifth of their standard deviation"
            _warn(why, len(far), len(Y), example(int(far[0]), k))
            return True
    return False


def warn_after(table: Callable[[], TrainingTable], Y: np.ndarray, posterior: Posterior, example: Example) -> bool:
    """Warn if few targets are so far from what the rows around them predict that the fit is theirs; return whether.

    Parameters
    ----------
    table : callable
        Returns the rows in the posterior's units; called if targets are far.
    Y : ndarray of shape (n, t)
        Their targets in any units.
    posterior : Posterior
        Posterior of the fit, with learned noise.
    example : callable
        Describes the target of a row and a column.
    """
    far = distances_from_bulk(Y) > _SPREADS
    if not far.any():
        return False
    rounded, model = table(), posterior.model
    held = replace(rounded, X=rounded.X.double(), Y=rounded.Y.double())
    pool, noise = pool_of(model, held), posterior.noise_at(held.X[:1].to(posterior.dtype)).double()
    values = held.Y - posterior.trend(held.X).double()
    for column in np.flatnonzero(far.any(0)):
        rows = np.flatnonzero(far[:, column])
        some = torch.from_numpy(rows[:: -(-len(rows) // _MOST_PREDICTED)]).to(held.X.device)
        near = most_correlated(model.kernel, held.X[some], held.X, 1 + _NEIGHBOURS, held.budget).rows
        others = torch.stack([alike[alike != row][:_NEIGHBOURS] for row, alike in zip(some, near, strict=True)])
        found = pool.conditionals(some, others.int(), values, weights=False)
        assert found.residual is not None
        squares = found.residual[:, column].square()
        share = len(rows) / len(Y) * squares.mean() / noise
        if share > _SHARE and (squares / found.variance).mean() > _DEVIATIONS**2:
            why = "The rows around them do not predict few targets"
            _warn(why, len(rows), len(Y), example(int(some[squares.argmax()]), int(column)))
            return True
    return False


def _warn(why: str, n_far: int, n: int, example: str) -> None:
    msg = (
        f"{why}: {n_far:,} of {n:,} lie far from the others, such as {example}. With Gaussian noise a fit follows "
        'these and is poor elsewhere. If they are errors, correct them or take likelihood="student-t"; if not, take '
        'target_transform="auto".'
    )
    warn(msg, FitWarning)
