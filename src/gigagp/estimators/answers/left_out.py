"""The rows of a fit as they are predicted from others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.left_out import LeftOut
from gigagp.inference.contract.posterior import Posterior
from gigagp.neighbours.folds import Fold


class LeaveOneOut(NamedTuple):
    """The rows of a fit as they are predicted from all other rows, in the target's units.

    Attributes
    ----------
    mean : ndarray of shape (n,) or (n, n_targets)
        Mean of each measurement given all others.
    std : ndarray of the same shape
        Its standard deviation, with the noise.
    log_density : ndarray of the same shape
        Log density of the measurement in nats; minus its mean is the leave-one-out log score.
    standard_error : ndarray of the same shape
        Standard error of ``std``, which is 0 where nothing is estimated.
    """

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray
    standard_error: np.ndarray


def left_out_groups(posterior: Posterior, groups: np.ndarray) -> LeftOut:
    """Return the rows of a fit in their order, each given all rows of other groups."""
    numbers = torch.from_numpy(np.unique(groups, return_inverse=True)[1].reshape(-1))
    order = torch.argsort(numbers, stable=True)
    folds = [Fold(rows, len(rows)) for rows in order.split(torch.bincount(numbers).tolist())]
    found = posterior.left_out_folds(folds) if len(folds) > 1 else None
    if found is None:
        raise InvalidInputError(
            "groups of leave_one_out of GPRegressor needs two groups or more, inference.Exact, which keeps the inverse "
            f"of a matrix of all rows, and Gaussian or Student-t noise. This is a {posterior.kind} posterior of "
            f"{posterior.n_rows:,} rows in {len(folds):,} group(s)."
        )
    if not bool(torch.isfinite(found.variance).all()):
        row = int(order[~torch.isfinite(found.variance)][0])
        raise InvalidInputError(
            "leave_one_out of GPRegressor needs coefficients of the mean that all other groups determine. Without the "
            f"group of row {row} (counted from 0) one of them is unknown. Fit with mean='constant'."
        )
    return LeftOut(*(part[torch.argsort(order).to(part.device)] for part in found))
