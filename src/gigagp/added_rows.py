"""Rows that are added to a fit, at its hyperparameters, scaling and transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gigagp import intake
from gigagp.checks import known_noise
from gigagp.errors import InvalidInputError
from gigagp.inference.posterior import GrowingPosterior, Posterior
from gigagp.model import Model
from gigagp.scaling import Scaling
from gigagp.target_transform import TargetTransform


def add_rows(
    posterior: Posterior,
    scaling: Scaling,
    transform: TargetTransform,
    X: np.ndarray,
    y: Any,
    noise_variance: Any = None,
    names: Any = None,
) -> Posterior:
    """Return the posterior given additional rows, at its hyperparameters; see `GPRegressor.partial_fit`.

    Parameters
    ----------
    posterior : Posterior
        Posterior of an inference method with ``abilities.adds_rows``.
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

    Raises
    ------
    InvalidInputError
        If a row is invalid.
    """
    assert isinstance(posterior, GrowingPosterior), "its inference says that it adds rows"
    if posterior.model.student is not None:
        msg = (
            "partial_fit of GPRegressor cannot add rows to a fit with Student-t noise, whose weights depend on all "
            "rows. Fit all rows again."
        )
        raise InvalidInputError(msg)
    y = intake.targets(y, len(X))
    targets = y if y.ndim == 2 else y[:, None]
    if targets.shape[1] != posterior.n_targets:
        msg = f"y of partial_fit must have {posterior.n_targets} target(s), as the fit had; got {targets.shape[1]}."
        raise InvalidInputError(msg)
    noise = _noise_of_added_rows(posterior.model, noise_variance, len(X))
    points = torch.from_numpy(scaling.inputs(X))
    refusal = posterior.row_refusal(points, scaling, names)
    if refusal is not None:
        raise refusal
    transform.check(targets, "y of partial_fit")
    targets = transform.forward(targets) - posterior.model.mean.offset(X)[:, None]
    noise = None if noise is None else noise / scaling.units().variance
    return posterior.with_rows(points, torch.from_numpy(scaling.targets(targets)), noise)


def _noise_of_added_rows(model: Model, given: Any, n_rows: int) -> torch.Tensor | None:
    """Return the known noise variances of added rows, shape (n_rows,), in the data's own units."""
    if not model.noise_is_known:
        if given is None:
            return None
        msg = (
            "noise_variance of partial_fit must be None, because that of the fit is one number for all rows; got "
            f"{type(given).__name__}."
        )
        raise InvalidInputError(msg)
    found = known_noise(given, n_rows, "noise_variance of partial_fit")
    if found is None:
        msg = "noise_variance of partial_fit must be given, because the fit has known variances of its rows; got None."
        raise InvalidInputError(msg)
    return found.expand(n_rows)
