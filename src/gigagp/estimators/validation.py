"""Scores on held-out validation rows at every step of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Gaussian, Likelihood, StudentT
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform
from gigagp.model.transformed_answers import log_density, moments
from gigagp.tables import intake


def validation_scorer(
    validation: tuple[Any, Any], scaling: Scaling, table: TrainingTable, transform: TargetTransform
) -> Callable[[Any], tuple[float, float] | None]:
    """Return a function that scores the current posterior of an objective of all rows of the table on validation rows.

    It returns RMSE and mean log-likelihood in the target's units, over all targets, or None if the objective has no
    posterior available. Predictions include the noise if it is learned. Validation rows that cannot be used are
    refused.
    """
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        msg = f"validation of GPRegressor.fit must be a pair (X, y) or None; got {type(validation).__name__}."
        raise InvalidInputError(msg)
    X = intake.inputs(validation[0], "validation X")
    y = intake.targets(validation[1], len(X), "validation y")
    if X.shape[1] != table.n_inputs or y[:1].size != table.n_targets:
        msg = (
            f"validation of GPRegressor.fit must have {table.n_inputs} inputs and {table.n_targets} target(s); got "
            f"{X.shape[1]} and {y[:1].size}."
        )
        raise InvalidInputError(msg)
    transform.check(y, "validation y")
    points = torch.from_numpy(scaling.inputs(X)).to(table.X)
    targets = y.reshape(len(y), -1) - table.mean.offset(X)[:, None]

    def score(objective: Any) -> tuple[float, float] | None:
        if objective.n_rows != table.n_rows or (posterior := objective.current_posterior()) is None:
            return None
        refusal = posterior.refusal(points, scaling, None)
        if refusal is not None:
            raise refusal
        predicted, variance = posterior.mean_and_variance(points)
        if (student := posterior.model.student) is not None:
            noise, latent = posterior.noise_at(points).double().cpu(), variance.double().cpu().sqrt()
            standard = torch.from_numpy(scaling.targets(targets))
            centre = predicted.double().cpu()
            logs = StudentT(student.df).predictive_log_density(standard, centre, latent[:, None], noise[:, None])
            return rmse(targets, scaling.original(centre.numpy())), float(logs.mean()) - float(
                np.log(scaling.y_scale[0])
            )
        if not posterior.model.noise_is_known:
            variance = variance + posterior.model.noise_at(points)
        std = variance.sqrt().double().cpu().numpy()[:, None] * scaling.y_scale
        centre = scaling.original(predicted.double().cpu().numpy())
        if not transform.is_identity:
            z, whole = centre[:, 0], np.square(std[:, 0])
            middle = moments(transform, z, np.zeros_like(whole), whole)[0]
            return rmse(y.ravel(), middle), float(log_density(transform, y.ravel(), z, whole).mean())
        flat = targets.ravel(), centre.ravel(), np.broadcast_to(std, centre.shape).ravel()
        return rmse(*flat[:2]), -gaussian_nll(*flat)

    return score


def refuse_validation(optimizer: object, likelihood: Likelihood) -> None:
    """Refuse validation rows if there are no steps to score, or if the scores do not apply to the likelihood."""
    if optimizer is None:
        msg = (
            "validation of GPRegressor.fit scores the steps of an optimizer, and optimizer is None; leave it out, and "
            "score predictions with gigagp.metrics."
        )
        raise InvalidInputError(msg)
    if not isinstance(likelihood, Gaussian) and not likelihood.is_scale_mixture:
        msg = (
            "validation of GPRegressor.fit scores targets with Gaussian noise; got the "
            f"{likelihood.name} likelihood. Leave it out, and score predictions with gigagp.metrics."
        )
        raise InvalidInputError(msg)
