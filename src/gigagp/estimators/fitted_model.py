"""The fitted attributes of an estimator: set from a fit, described, saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, Self

import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import ModelFileError
from gigagp.estimators.answers.predictive_distribution import PredictiveDistribution
from gigagp.estimators.description import describe
from gigagp.estimators.estimator import FittedEstimator
from gigagp.estimators.fitting import Fitted
from gigagp.estimators.nested_arguments import NestedArguments
from gigagp.estimators.notebook_view import NotebookView
from gigagp.estimators.saving.fitted_state import fitted_to_state, joined_states
from gigagp.estimators.saving.persistence import save
from gigagp.estimators.saving.restored_state import state_to_fitted, states_of
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform
from gigagp.optimization import History
from gigagp.settings.custom import Custom

#: Attributes that describe one model, and are tuples where each output has its own.
_OF_EACH = (
    "inference_",
    "optimizer_",
    "plan_",
    "target_transform_",
    "kernel_choice_",
    "likelihood_note_",
    "history_",
    "posterior_",
    "scaling_",
    "kernel_",
    "noise_variance_",
    "solver_",
    "engine_",
)


class FittedModel(NotebookView, PredictiveDistribution, NestedArguments, FittedEstimator):
    """What a fit leaves in an estimator, and what can be made of it without further rows."""

    def _take(self, fitted: Fitted, *, one_target: bool) -> None:
        """Set the attributes from the result of a fit."""
        self._models = ()
        self._one_target, self.inference_, self.optimizer_ = one_target, fitted.inference, fitted.optimizer
        plan = None if fitted.plan is None else fitted.plan.in_units(fitted.scaling.typical_y_scale)
        if plan is not None and not isinstance(fitted.transform, NoTransform):
            plan = plan.remarked("NLL and RMSE are those of the transformed target.")
        self.plan_ = plan
        self.target_transform_, self.kernel_choice_ = fitted.transform, fitted.choice
        self.likelihood_note_ = fitted.note
        self._adopt(fitted.posterior, fitted.scaling, fitted.history)

    def _adopt(self, posterior: Posterior, scaling: Scaling, history: History | None = None) -> None:
        """Set the attributes from a posterior, and from the history of the standardized problem."""
        model = posterior.model
        if history is not None:
            own = self.hyperparameter_units == "own"
            self.history_ = history.multiplied(model.unit_factors(scaling.units())) if own else history
        self.posterior_, self.scaling_ = posterior, scaling
        read = model.in_own_units(scaling.units()) if self.hyperparameter_units == "own" else model
        self.kernel_ = read.kernel
        self.noise_variance_ = read.noise_variance.cpu().numpy() if read.noise_is_known else float(read.noise_variance)
        if read.student is not None:
            self.noise_variance_ = read.student.variance
        self.solver_ = posterior.solver_name()
        self.engine_ = posterior.engine_name()

    def _take_outputs(self, models: Sequence[Self]) -> None:
        """Set the attributes from fitted estimators of one output each, in the order of the outputs."""
        self._models, self._one_target = tuple(models), False
        for name in _OF_EACH:
            setattr(self, name, tuple(getattr(one, name) for one in models))

    @property
    def estimators_(self) -> tuple[Self, ...]:
        """The fitted estimators of the outputs that have a model each; this one alone if there is one model."""
        check_is_fitted(self, "posterior_")
        return self._models or (self,)

    @property
    def outputs_(self) -> Literal["independent", "shared"]:
        """Whether each output has hyperparameters of its own, or several share them."""
        return "independent" if all(one.posterior_.n_targets == 1 for one in self.estimators_) else "shared"

    def describe(self) -> str:
        """Return the methods that ran and the hyperparameters, in standardized units and in the data's own."""
        check_is_fitted(self, "posterior_")
        return describe(self)

    # -------------------------------------------------------------- persistence

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; `gigagp.load` reads it. See `gigagp.save`."""
        save(self, path)

    def _to_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return joined_states([fitted_to_state(one) for one in self.estimators_])

    @classmethod
    def _from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], custom: Custom) -> Self:
        models = [state_to_fitted(cls, *state, custom) for state in states_of(tensors, header)]
        if len(models) == 1:
            return models[0]
        if len({one.n_features_in_ for one in models}) > 1:
            raise ModelFileError("its outputs must have the same inputs.")
        found = copy.copy(models[0])
        found._take_outputs(models)
        return found
