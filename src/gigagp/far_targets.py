"""Targets that lie far from all others, which spoil a fit with Gaussian noise: warnings of them, before and after it.

Before a fit, the targets alone show those that set the standard deviation of all. Fewer or nearer ones show after it,
because no row around them predicts them. The noise is then mostly theirs; or, in small tables, the function turns to
each of them, with a lengthscale that is far too short for all others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gigagp import interruption
from gigagp.arguments import Problem
from gigagp.errors import FitWarning, warn
from gigagp.inference.posterior import Posterior
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.kernels import Kernel
from gigagp.scaling import distances_from_bulk, far_rows

#: Standard deviation of the targets, over the spread of most of them, above which a fit warns in advance.
_TIMES = 5.0
#: Spreads from most targets at which one is far. At most so many are predicted, each from so many rows.
_SPREADS, _MOST_PREDICTED, _NEIGHBOURS = 6.0, 32, 30
#: A fit warns if the squared errors of far targets, divided by the number of all rows, are more than this share of the
#: noise variance, and if their root mean square is more than so many standard deviations. A normal error never is, and
#: those of a function with high peaks are not.
_SHARE, _DEVIATIONS = 0.75, 5.0
#: Bytes for each entry of a block of the kernel matrix.
_BYTES = 256


def warns_before(Y: np.ndarray) -> bool:
    """Warn if the standard deviation of targets (n, t) is due to few far ones; return whether it is."""
    for column in Y.T:
        far = far_rows(column, _TIMES)
        if len(far):
            _warn("Most targets vary by less than a fifth of their standard deviation", column, len(far), far[0])
            return True
    return False


def warn_after(problem: Problem, Y: np.ndarray, posterior: Posterior) -> None:
    """Warn if few targets are so far from what the rows around them predict that the fit is theirs.

    Parameters
    ----------
    problem : Problem
        Rows of the fit.
    Y : ndarray of shape (n, t)
        Targets in the data's own units.
    posterior : Posterior
        Posterior of the fit, with learned noise.
    """
    far = distances_from_bulk(Y) > _SPREADS
    if not far.any():
        return
    table, model = problem.table(), posterior.model
    table = replace(table, X=table.X.double(), Y=table.Y.double())
    pool, noise = pool_of(model, table), posterior.noise_at(table.X[:1].to(posterior.dtype)).double()
    values = table.Y - posterior.trend(table.X).double()
    for column in np.flatnonzero(far.any(0)):
        rows = np.flatnonzero(far[:, column])
        some = torch.from_numpy(rows[:: -(-len(rows) // _MOST_PREDICTED)]).to(table.X.device)
        near = most_alike(model.kernel, table.X[some], table.X, 1 + _NEIGHBOURS, table.budget)
        others = torch.stack([alike[alike != row][:_NEIGHBOURS] for row, alike in zip(some, near, strict=True)])
        found = pool.conditionals(some, others.int(), values, weights=False)
        assert found.residual is not None
        squares = found.residual[:, column].square()
        share = len(rows) / len(Y) * squares.mean() / noise
        if share > _SHARE and (squares / found.variance).mean() > _DEVIATIONS**2:
            why = "The rows around them do not predict few targets"
            _warn(why, Y[:, column], len(rows), int(some[squares.argmax()]))
            return


@torch.no_grad()
def most_alike(kernel: Kernel, points: Tensor, X: Tensor, count: int, budget: int) -> Tensor:
    """Return the rows of X (n, d) with the highest prior correlation with points (m, d), highest first, (m, count)."""
    found, roots = [], kernel.diagonal(X).clamp_min(torch.finfo(X.dtype).tiny).rsqrt()
    for part in points.split(max(1, budget // (_BYTES * len(X)))):
        interruption.check()
        found.append((kernel.block(part, X) * roots).topk(min(count, len(X))).indices)
    return torch.cat(found)


def _warn(why: str, column: np.ndarray, n_far: int, row: int) -> None:
    msg = (
        f"{why}: {n_far:,} of {len(column):,} lie far from the others, such as {column[row]:.3g} in row {row}. With "
        "Gaussian noise a fit follows these and is poor elsewhere. If they are errors, correct them or take "
        'likelihood="student-t"; if not, take target_transform="auto".'
    )
    warn(msg, FitWarning)
