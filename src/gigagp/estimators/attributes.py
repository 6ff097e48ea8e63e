"""What a fit leaves on its estimator: the attributes of one model, or those of a model for each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gigagp.estimators.answers.correlated import Stacking
from gigagp.estimators.fitting import Fitted
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform
from gigagp.optimization import History
from gigagp.runtime.run import current_run

#: Attributes that describe one model, and are tuples where each output has its own.
_OF_EACH = (
    "inference_",
    "optimizer_",
    "plan_",
    "target_transform_",
    "kernel_choice_",
    "likelihood_note_",
    "warnings_",
    "history_",
    "posterior_",
    "scaling_",
    "kernel_",
    "noise_variance_",
    "solver_",
    "engine_",
)


def take(estimator: Any, fitted: Fitted, *, one_target: bool, stacking: Stacking | None = None) -> None:
    """Set the attributes from the result of a fit."""
    estimator._models, estimator._stacking, estimator._one_target = (), stacking, one_target
    estimator._keep_arguments(fitted.likelihood)
    plan = None if fitted.plan is None else fitted.plan.in_units(fitted.scaling.typical_y_scale)
    if plan is not None and not isinstance(fitted.transform, NoTransform):
        plan = plan.remarked("NLL and RMSE are those of the transformed target.")
    estimator.inference_, estimator.optimizer_, estimator.plan_ = fitted.inference, fitted.optimizer, plan
    estimator.target_transform_, estimator.kernel_choice_ = fitted.transform, fitted.choice
    estimator.likelihood_note_, estimator._uncertain = fitted.note, fitted.uncertain
    estimator.warnings_ = tuple(current_run().told or ())
    adopt(estimator, fitted.posterior, fitted.scaling, fitted.history)


def take_outputs(estimator: Any, models: Sequence[Any]) -> None:
    """Set the attributes from fitted estimators of one output each, in the order of the outputs."""
    estimator._models, estimator._stacking = tuple(models), None
    estimator._one_target, estimator._uncertain = False, None
    for name in _OF_EACH:
        setattr(estimator, name, tuple(getattr(one, name) for one in models))


def adopt(estimator: Any, posterior: Posterior, scaling: Scaling, history: History | None = None) -> None:
    """Set the attributes from a posterior, and from the history of the standardized problem."""
    model, own = posterior.model, estimator._arguments["hyperparameter_units"] == "own"
    if history is not None:
        estimator.history_ = history.multiplied(model.unit_factors(scaling.units())) if own else history
    estimator.posterior_, estimator.scaling_ = posterior, scaling
    read = model.in_own_units(scaling.units()) if own else model
    estimator.kernel_ = read.kernel
    if estimator._stacking is not None:
        estimator.noise_variance_ = estimator._stacking.noise_variance(posterior, scaling)
    elif read.student is not None:
        estimator.noise_variance_ = read.student.variance
    else:
        noise = read.noise_variance
        estimator.noise_variance_ = noise.cpu().numpy() if read.noise_is_known else float(noise)
    estimator.solver_, estimator.engine_ = posterior.solver_name(), posterior.engine_name()
