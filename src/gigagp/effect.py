"""Settings that one inference has and another has not: what would have no effect is refused before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gigagp.checks import resolve_device
from gigagp.errors import InvalidInputError
from gigagp.grids.arguments import checked_bounds
from gigagp.inference import Grid, Iterative, RandomFeatures
from gigagp.intake import numbers
from gigagp.likelihoods import Gaussian, Likelihood
from gigagp.means import LinearMean, resolve_mean
from gigagp.model import Model
from gigagp.solvers import Cholesky

if TYPE_CHECKING:
    from gigagp.regression import GPRegressor

#: Names of both bounds of `GPRegressor.fit_table`, for messages.
_CORNERS = ("bounds of fit_table, lower corner,", "bounds of fit_table, upper corner,")


def refuse_without_effect(estimator: GPRegressor, inference: object, likelihood: Likelihood) -> None:
    """Refuse arguments of the constructor that this inference and this likelihood do not look at.

    Parameters
    ----------
    estimator : GPRegressor
    inference : one of `gigagp.inference`
        What will run.
    likelihood : Likelihood

    Raises
    ------
    InvalidInputError
        If there is one.
    """
    name = f"inference.{type(inference).__name__}"
    if isinstance(inference, Grid):
        if estimator.dtype != "float64":
            _refuse(
                "dtype", "GPRegressor", f'"float64" with {name}, whose sums and solves are float64', estimator.dtype
            )
        if estimator.device != "auto" and resolve_device(estimator.device).type != "cpu":
            _refuse("device", "GPRegressor", f'"auto" or "cpu" with {name}, which runs there', estimator.device)
    if estimator.dtype == "mixed" and estimator.inference != "auto" and not _solves_iteratively(inference):
        allowed = f'"float64" or "float32" with {name}: only the products of iterative solvers can be mixed'
        _refuse("dtype", "GPRegressor", allowed, estimator.dtype)
    if estimator.noise_variance is not None and not likelihood.has_noise:
        allowed = f"None with the {likelihood.name} likelihood, which has no noise variance"
        _refuse("noise_variance", "GPRegressor", allowed, estimator.noise_variance)
    if isinstance(resolve_mean(estimator.mean), LinearMean) and not likelihood.has_noise:
        allowed = f'"zero" with the {likelihood.name} likelihood, whose latent mean is zero; add kernels.Linear()'
        _refuse("mean", "GPRegressor", allowed, estimator.mean)


def refuse_for_fit(inference: object) -> None:
    """Refuse what is for rows that are not held.

    Raises
    ------
    InvalidInputError
        If several processes are to share rows that each of them has been given.
    """
    if isinstance(inference, Grid) and inference.distributed:
        _refuse(
            "distributed", "inference.Grid", "False for GPRegressor.fit; processes share the rows of fit_table", True
        )


def refuse_model(inference: object, model: Model) -> None:
    """Refuse a kernel, mean or noise that an inference cannot use.

    Raises
    ------
    InvalidInputError
        If random features or a grid need what the model has not.
    """
    if isinstance(inference, Iterative | RandomFeatures) and not model.kernel.has_features():
        msg = (
            f"kernel of GPRegressor must have random features for inference.{type(inference).__name__}; got "
            f"{model.kernel!r}. Use inference.Exact(), or give the kernel a spectrum."
        )
        raise InvalidInputError(msg)
    if isinstance(inference, Grid):
        inference.check_model(model)


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


def resolve_bounds(bounds: tuple[Any, Any] | None, inference: object) -> tuple[list[float], list[float]] | None:
    """Return the corners of a grid; refuse them where there is none.

    Raises
    ------
    InvalidInputError
        If there are bounds and no grid, or they are no corners.
    """
    if bounds is None:
        return None
    if not isinstance(inference, Grid):
        allowed = f"None with inference.{type(inference).__name__}: they are those of a grid"
        _refuse("bounds", "GPRegressor.fit_table", allowed, bounds)
    low, high = (numbers(one, name).reshape(-1).tolist() for one, name in zip(bounds, _CORNERS, strict=True))
    return checked_bounds(low, high)


def _solves_iteratively(inference: object) -> bool:
    if isinstance(inference, RandomFeatures):
        return _solves_iteratively(inference.predictor())
    if not isinstance(inference, Iterative) or isinstance(inference.solver, Cholesky):
        return False
    return not inference.computational_uncertainty  # what is recorded for it are float64 products


def _refuse(name: str, owner: str, allowed: str, got: Any) -> None:
    msg = f"{name} of {owner} must be {allowed}; got {got!r}."
    raise InvalidInputError(msg)
