"""Arguments of an estimator that an inference does not look at are refused before any work."""

from __future__ import annotations

from typing import Any

from gigagp.checks import resolve_device
from gigagp.errors import InvalidInputError
from gigagp.estimator import Estimator
from gigagp.grids.arguments import checked_bounds
from gigagp.inference import Inference
from gigagp.intake import numbers
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.means import LinearMean, resolve_mean

#: Names of both bounds of `GPRegressor.fit_table`, for messages.
_CORNERS = ("bounds of fit_table, lower corner,", "bounds of fit_table, upper corner,")


def refuse_without_effect(estimator: Estimator, inference: Inference, likelihood: Likelihood) -> None:
    """Refuse arguments of the constructor that this inference and this likelihood do not look at.

    Parameters
    ----------
    estimator : Estimator
    inference : Inference
        What will run.
    likelihood : Likelihood

    Raises
    ------
    InvalidInputError
        If there is one.
    """
    name, can = inference.label, inference.abilities
    if estimator.dtype != "mixed" and estimator.dtype not in can.dtypes:
        known = " or ".join(f'"{one}"' for one in can.dtypes)
        _refuse(
            "dtype", "GPRegressor", f"{known} with {name}, whose sums and solves are {can.dtypes[0]}", estimator.dtype
        )
    if can.devices == "cpu" and estimator.device != "auto" and resolve_device(estimator.device).type != "cpu":
        _refuse("device", "GPRegressor", f'"auto" or "cpu" with {name}, which runs there', estimator.device)
    if estimator.dtype == "mixed" and estimator.inference != "auto" and not inference.mixes_precision:
        known = " or ".join(f'"{one}"' for one in can.dtypes)
        allowed = f"{known} with {name}: only the products of iterative solvers can be mixed"
        _refuse("dtype", "GPRegressor", allowed, estimator.dtype)
    if estimator.noise_variance is not None and not likelihood.has_noise:
        allowed = f"None with the {likelihood.name} likelihood, which has no noise variance"
        _refuse("noise_variance", "GPRegressor", allowed, estimator.noise_variance)
    if isinstance(resolve_mean(estimator.mean), LinearMean) and not likelihood.has_noise:
        allowed = f'"zero" with the {likelihood.name} likelihood, whose latent mean is zero; add kernels.Linear()'
        _refuse("mean", "GPRegressor", allowed, estimator.mean)


def refuse_validation(optimizer: object, likelihood: Likelihood) -> None:
    """Refuse validation rows that no step would score, and those that a score in the targets' units is not for.

    Raises
    ------
    InvalidInputError
        If that is so.
    """
    if optimizer is None:
        msg = (
            "validation of GPRegressor.fit scores the steps of an optimizer, and optimizer is None; leave it out, and "
            "score predictions with gigagp.metrics."
        )
        raise InvalidInputError(msg)
    if not isinstance(likelihood, Gaussian):
        msg = (
            "validation of GPRegressor.fit scores targets with Gaussian noise; got the "
            f"{likelihood.name} likelihood. Leave it out, and score predictions with gigagp.metrics."
        )
        raise InvalidInputError(msg)


def resolve_bounds(bounds: tuple[Any, Any] | None, inference: Inference) -> tuple[list[float], list[float]] | None:
    """Return the corners of a grid; refuse them where there is none.

    Raises
    ------
    InvalidInputError
        If there are bounds and no grid, or they are no corners.
    """
    if bounds is None:
        return None
    if not inference.abilities.takes_bounds:
        _refuse("bounds", "GPRegressor.fit_table", f"None with {inference.label}: they are those of a grid", bounds)
    low, high = (numbers(one, name).reshape(-1).tolist() for one, name in zip(bounds, _CORNERS, strict=True))
    return checked_bounds(low, high)


def _refuse(name: str, owner: str, allowed: str, got: Any) -> None:
    msg = f"{name} of {owner} must be {allowed}; got {got!r}."
    raise InvalidInputError(msg)
