"""Counts that are far from all others and that the rows around them do not predict: a warning after the fit.

The rate of a Poisson count is known to ``1 / sqrt(y)`` of itself, so that the function has to pass through the
logarithm of every large count. If one count is a thousand times those around it, the most likely hyperparameters are
those of a function that is rough and varies much everywhere, and predictions of all other rows are far too uncertain.
Overdispersed counts do not help: the dispersion is the same at all rows.

The rule is that of Gaussian noise (`poor_fits.warn_of_far_targets`) for the logarithms of counts, whose noise has the
variance ``1 / y``. That noise is known, so there is no share of it that far counts explain. But the function's own
variance has grown with them, which leaves them fewer predicted standard deviations away.
"""

from __future__ import annotations

import numpy as np
import torch

from gigagp.errors import FitWarning, warn
from gigagp.estimators.fit_checks.poor_fits import Rows, predicted_by_others
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Likelihood
from gigagp.neighbours.conditionals import Pool

#: Distance from the median at which the logarithm of a count is far, in robust standard deviations of all, of which one
#: is at least the typical one of the function; and predicted standard deviations at which other rows do not predict it.
_SPREADS, _DEVIATIONS = 6.0, 3.0
#: Standard deviations of a normal distribution in its median absolute deviation.
_NORMAL = 1.4826
#: What stands for a count of zero.
_ZERO = 0.5


def warn_of_far_counts(rows: Rows, table: TrainingTable, posterior: Posterior, likelihood: Likelihood) -> bool:
    """Warn if a few counts that the rows around them do not predict spoil a fit; return whether they do."""
    has_rate = likelihood.values == "counts" and likelihood.exposure == "rate"
    if not has_rate or table.n_rows != rows.n_rows:
        return False
    counts = table.Y.double().clamp_min(_ZERO)
    rates = counts.log() - table.beside.offset_of(table.Y)
    apart = (rates - rates.median(0).values).abs()
    far = apart > _SPREADS * (_NORMAL * apart.median(0).values).clamp_min((likelihood.signal_variance or 1.0) ** 0.5)
    values = rates - posterior.trend(table.X).double()
    for column in np.flatnonzero(far.any(0).cpu().numpy()):
        pool = Pool(posterior.model.kernel, table.X.double(), 1 / counts[:, column], budget=table.budget // 4)
        those = torch.nonzero(far[:, column])[:, 0]
        some, squares, variance = predicted_by_others(pool, those, values[:, [column]])
        sizes = (squares[:, 0] / variance).sqrt()
        if float(sizes.max()) > _DEVIATIONS:
            example = rows.example(int(some[sizes.argmax()]), int(column))
            msg = (
                f"A few counts are not predicted by the rows around them: {len(those):,} of {rows.n_rows:,} lie far "
                f"from the others, such as {example}. The function passes through them, and is too rough and uncertain "
                'everywhere else. If they are errors, correct them or leave them out; if not, likelihood="student-t" '
                "follows the other rows."
            )
            warn(msg, FitWarning)
            return True
    return False
