"""Rows that all others contradict: a warning after a fit whose error bars do not hold at every row.

Each row is predicted from all others at the learned hyperparameters, and the error is divided by its predicted
standard deviation. If the model is right these are normal, and the largest of n exceeds z with a probability of at most
``2 n Phi(-z)``, however they are correlated. That hyperparameters are learned from the same rows makes large ones
rarer: few rows that are far off raise the noise of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gigagp.errors import FitWarning, warn
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable

#: Probability of an error as large as the largest, if the model is right, below which a fit warns.
_CHANCE = 1e-5
#: Most rows that are looked at. Among many, there are always some that no normal density allows.
_MOST = 3000

#: Describes the target of a row and a column to a user.
Example = Callable[[int, int], str]


@torch.no_grad()
def warn_after(table: Callable[[], TrainingTable], n: int, posterior: Posterior, example: Example) -> None:
    """Warn if a row lies where its error bar, predicted from all other rows, excludes it.

    Parameters
    ----------
    table : callable
        Returns the rows in the posterior's units; called if the posterior can tell what they leave out.
    n : int
        Their number.
    posterior : Posterior
        Posterior of the fit, with learned Gaussian noise.
    example : callable
        Describes the target of a row and a column.
    """
    found = posterior.left_out() if n <= _MOST else None
    if found is None or len(found.mean) != n or bool(found.relative_error.any()):
        return
    sizes = (table().Y.to(found.mean) - found.mean).abs() * found.variance.rsqrt()[:, None]
    if chance_of_largest(sizes) >= _CHANCE:
        return
    row, column = divmod(int(sizes.argmax()), sizes.shape[1])
    msg = (
        f"The error bars are too small for some rows: {example(row, column)} lies {float(sizes.max()):.2g} predicted "
        "standard deviations from what all other rows predict. If such targets are errors, correct them; if they are "
        'not, Gaussian noise does not suit them: take likelihood="student-t" for heavy tails, or '
        'target_transform="auto" for skewed targets.'
    )
    warn(msg, FitWarning)


def chance_of_largest(sizes: torch.Tensor) -> float:
    """Return a bound of the probability that the largest of standard normal errors is as large as that of ``sizes``.

    Parameters
    ----------
    sizes : Tensor of any shape
        Absolute values of the errors, which may be correlated.
    """
    return min(1.0, 2 * sizes.numel() * math.exp(float(torch.special.log_ndtr(-sizes.max().double()))))
