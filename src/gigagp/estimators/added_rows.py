"""Rows that are added to a fit, at its hyperparameters, scaling and transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.checks import known_noise
from gigagp.estimators.guard import finite_means
from gigagp.inference.contract.posterior import GrowingPosterior, Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.registry import adding_names
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform
from gigagp.tables import intake

#: Number of new rows at which the means are checked.
_CHECKED_ROWS = 256


def add_rows(
    posterior: Posterior,
    scaling: Scaling,
    transform: TargetTransform,
    X: np.ndarray,
    y: Any,
    noise_variance: Any = None,
    names: Any = None,
    method: str = "condition_on",
) -> GrowingPosterior:
    """Return the posterior given additional rows, at its hyperparameters; see `GPRegressor.condition_on`.

    Parameters
    ----------
    posterior : Posterior
        Posterior of the fit.
    scaling : Scaling
        Scaling of the fit.
    transform : TargetTransform
        Transform of the target of the fit.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : array-like of shape (n,) or (n, n_targets)
        Targets in the data's own units.
    noise_variance : array-like of shape (n,), float or None
        Known noise variance of the rows in the data's own units, if the fit has known ones.
    names : sequence of str or None
        Names of the inputs, for messages.
    method : str
        Name of the public method, for messages.

    Raises
    ------
    InvalidInputError
        If a row is invalid, or no rows can be added to this posterior.
    """
    if posterior.model.student is not None:
        msg = (
            f"{method} of GPRegressor cannot add rows to a fit with Student-t noise, whose weights depend on all "
            "rows. Fit all rows again."
        )
        raise InvalidInputError(msg)
    if not isinstance(posterior, GrowingPosterior):
        raise InvalidInputError(f"{cannot_add(method, posterior)} Fit all rows again.")
    y = intake.targets(y, len(X))
    targets = y if y.ndim == 2 else y[:, None]
    if targets.shape[1] != posterior.n_targets:
        msg = f"y of {method} must have {posterior.n_targets} target(s), as in the fit; got {targets.shape[1]}."
        raise InvalidInputError(msg)
    noise = _noise_of_added_rows(posterior.model, noise_variance, len(X), method)
    points = torch.from_numpy(scaling.inputs(X))
    refusal = posterior.row_refusal(points, scaling, names)
    if refusal is not None:
        raise refusal
    transform.check(targets, f"y of {method}")
    targets = transform.forward(targets) - posterior.model.mean.offset(X)[:, None]
    noise = None if noise is None else noise / scaling.units().variance
    values = torch.from_numpy(scaling.targets(targets))
    device = posterior.device
    grown = posterior.with_rows(points.to(device), values.to(device), noise)
    assert isinstance(grown, GrowingPosterior)
    finite_means(grown.mean(points[:_CHECKED_ROWS].to(device=device, dtype=grown.dtype)))
    return grown


def cannot_add(method: str, posterior: Posterior) -> str:
    """Return why no rows can be added to a posterior, for messages."""
    what = "the average of several kernels" if posterior.is_mixture else f"a {posterior.kind} posterior"
    return f"{method} of GPRegressor can add rows only to a fit with {adding_names()}; this one is {what}."


def rows_of(
    posterior: Posterior, scaling: Scaling, transform: TargetTransform, *, one_target: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a fit in the data's own units.

    Raises
    ------
    InvalidInputError
        If the posterior does not keep all of them.
    """
    if not isinstance(posterior, RowsPosterior) or posterior.table.drawn_from is not None:
        msg = (
            f"refit must be False, because a {posterior.kind} posterior does not keep all rows of its fit. Call fit "
            "with all rows."
        )
        raise InvalidInputError(msg)
    table = posterior.table
    X = table.X.double().cpu().numpy() * scaling.x_scale + scaling.x_centre
    Y = scaling.original(table.Y.double().cpu().numpy()) + table.mean.offset(X)[:, None]
    Y = transform.inverse(Y)
    return X, Y[:, 0] if one_target else Y


def _noise_of_added_rows(model: Model, given: Any, n_rows: int, method: str) -> torch.Tensor | None:
    """Return the known noise variances of added rows, shape (n_rows,), in the data's own units."""
    if not model.noise_is_known:
        if given is None:
            return None
        msg = (
            f"noise_variance of {method} must be None, because that of the fit is one number for all rows; got "
            f"{type(given).__name__}."
        )
        raise InvalidInputError(msg)
    found = known_noise(given, n_rows, f"noise_variance of {method}")
    if found is None:
        msg = f"noise_variance of {method} must be given, because the fit has known variances of its rows; got None."
        raise InvalidInputError(msg)
    return found.expand(n_rows)
