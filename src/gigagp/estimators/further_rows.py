"""Further rows for a fit: what is behind `condition_on` and `partial_fit` of `GPRegressor`."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import require_apart
from gigagp.estimators.answers.outputs import columns_of
from gigagp.estimators.arguments import Arguments, known_noise
from gigagp.estimators.attributes import adopt, take, take_outputs
from gigagp.estimators.fitting import fit_rows
from gigagp.estimators.guard import finite_means, warn_of_interruption
from gigagp.inference import Inference
from gigagp.inference.contract.areas import AreaTable
from gigagp.inference.contract.posterior import GrowingPosterior, Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.registry import adding_names
from gigagp.kernels.stationary import require_taken
from gigagp.model.likelihoods import Gaussian, resolve_likelihood
from gigagp.model.model import Model
from gigagp.model.target_transform import TargetTransform
from gigagp.runtime.run import naming
from gigagp.settings.brief import output_name
from gigagp.tables import intake
from gigagp.tables.encoding import fitted_encoder, model_inputs

#: Number of new rows at which the means are checked.
_CHECKED_ROWS = 256


def adds_rows(estimator: Any) -> bool:
    """Whether rows can be added to a fit; scikit-learn asks this before it offers `partial_fit`."""
    if hasattr(estimator, "posterior_"):
        for one in estimator.estimators_:
            if not isinstance(one.posterior_, GrowingPosterior):
                raise AttributeError(f"{_cannot_add('partial_fit', one.posterior_)} Fit all rows again.")
        return True
    used = estimator.inference
    if isinstance(used, Inference) and used.abilities.adds_rows:
        return True
    if isinstance(used, str) and used == "auto" and isinstance(resolve_likelihood(estimator.likelihood), Gaussian):
        return True
    raise AttributeError(
        f"partial_fit of GPRegressor can add rows only to a fit with {adding_names()}; the inference of this one is "
        f"{used!r}. Fit all rows again."
    )


def grow(estimator: Any, X: Any, y: Any, noise_variance: Any, refit: bool, method: str) -> None:
    """Add rows to a fitted estimator, in the name of a public method; see `GPRegressor.condition_on`."""
    if estimator._models:
        columns = columns_of(y, len(estimator._models), f"y of {method}")
        grown = [copy.copy(one) for one in estimator._models]
        for number, (one, column) in enumerate(zip(grown, columns, strict=True)):
            with naming(output_name(number)):
                grow(one, X, column, noise_variance, refit, method)
        take_outputs(estimator, grown)
        return
    if refit:
        _check_refit(estimator, method)
    X = model_inputs(estimator, X, reset=False, grows=True)
    if estimator._stacking is not None:
        estimator._stacking, X, y = estimator._stacking.further(X, y, f"y of {method}")
    (posterior, *uncertain), transform = _with_rows(estimator, X, y, noise_variance, method)
    estimator.target_transform_, estimator._uncertain = transform, next(iter(uncertain), None)
    adopt(estimator, posterior, estimator.scaling_)
    if refit:
        start = copy.copy(estimator)
        if not estimator.posterior_.is_mixture:  # which begins with the rule for its kernels again
            start.kernel, start.noise_variance = estimator.kernel_, estimator.noise_variance_
        start.outputs = estimator.outputs_
        fitted = fit_rows(Arguments.of(start), *_rows_of(estimator))
        fitted = fitted._replace(choice=fitted.choice or estimator.kernel_choice_)
        take(estimator, fitted, one_target=estimator._one_target)
        warn_of_interruption(estimator.history_, None)


def _check_refit(estimator: Any, method: str) -> None:
    """Refuse to learn again where nothing would be learned, or from other columns."""
    require_apart(estimator, f"refit of {method}")
    if estimator.optimizer is None:
        msg = f"refit of {method} must be False for an estimator with optimizer=None, which learns nothing."
        raise InvalidInputError(msg)
    if fitted_encoder(estimator) is not None:
        raise InvalidInputError(
            f'refit of {method} must be False with encode="auto" or a panel, whose table is not kept. Call fit with '
            "all rows."
        )
    _rows_of(estimator)


def _with_rows(
    estimator: Any, X: np.ndarray, y: Any, noise_variance: Any, method: str
) -> tuple[list[Any], TargetTransform]:
    """Return the posteriors given additional rows, at the hyperparameters, scaling and transform of the fit.

    They are that at the learned hyperparameters and, where there is one, the mixture over them. The transform has the
    Jacobian of all targets. The rows are in the data's own units. ``noise_variance`` are their known variances, if the
    fit has known ones; ``method`` is the name of the public method, for messages.
    """
    posterior, scaling, transform = estimator.posterior_, estimator.scaling_, estimator.target_transform_
    names = getattr(estimator, "feature_names_in_", None)
    require_taken(posterior.model.kernel, X, names)
    if posterior.model.student is not None:
        raise InvalidInputError(
            f"{method} of GPRegressor cannot add rows to a fit with Student-t noise, whose weights depend on all "
            "rows. Fit all rows again."
        )
    if not isinstance(posterior, GrowingPosterior):
        raise InvalidInputError(f"{_cannot_add(method, posterior)} Fit all rows again.")
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
    transform, targets = transform.of_targets(targets, further=True), transform.forward(targets)
    targets = targets - posterior.model.mean.offset(X)[:, None]
    noise = None if noise is None else noise / scaling.units().variance
    values = torch.from_numpy(scaling.targets(targets))
    device = posterior.device
    grown: list[Any] = []
    for one in (posterior, estimator._uncertain):
        if isinstance(one, GrowingPosterior):
            grown.append(found := one.with_rows(points.to(device), values.to(device), noise))
            finite_means(found.mean(points[:_CHECKED_ROWS].to(device=device, dtype=found.dtype)))
    return grown, transform


def _cannot_add(method: str, posterior: Posterior) -> str:
    """Return why no rows can be added to a posterior, for messages."""
    what = "the average of several kernels" if posterior.is_mixture else f"a {posterior.kind} posterior"
    return f"{method} of GPRegressor can add rows only to a fit with {adding_names()}; this one is {what}."


def _rows_of(estimator: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a fit with one model in the data's own units; a posterior without all of them is refused."""
    posterior, scaling = estimator.posterior_, estimator.scaling_
    if not isinstance(posterior, RowsPosterior) or posterior.table.drawn_from is not None:
        raise InvalidInputError(
            f"refit must be False, because a {posterior.kind} posterior does not keep all rows of its fit. Call fit "
            "with all rows."
        )
    table = posterior.table
    if isinstance(table, AreaTable):
        raise InvalidInputError("refit must be False after a fit with blocks. Call fit with all areas.")
    X = scaling.original_inputs(table.X.double().cpu().numpy())
    Y = scaling.original(table.Y.double().cpu().numpy()) + table.mean.offset(X)[:, None]
    Y = estimator.target_transform_.inverse(Y)
    return X, Y[:, 0] if estimator._one_target else Y


def _noise_of_added_rows(model: Model, given: Any, n_rows: int, method: str) -> torch.Tensor | None:
    """Return the known noise variances of added rows, shape (n_rows,), in the data's own units."""
    if not model.noise_is_known:
        if given is None:
            return None
        raise InvalidInputError(
            f"noise_variance of {method} must be None, because that of the fit is one number for all rows; got "
            f"{type(given).__name__}."
        )
    found = known_noise(given, n_rows, f"noise_variance of {method}")
    if found is None:
        msg = f"noise_variance of {method} must be given, because the fit has known variances of its rows; got None."
        raise InvalidInputError(msg)
    return found.expand(n_rows)
