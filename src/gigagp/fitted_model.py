"""The fitted attributes of an estimator: set from a fit, described, saved and restored."""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.custom import Custom
from gigagp.description import describe
from gigagp.estimator import FittedEstimator
from gigagp.fitted_state import fitted_to_state
from gigagp.fitting import Fitted
from gigagp.inference.posterior import Posterior
from gigagp.nested_arguments import NestedArguments
from gigagp.notebook_view import NotebookView
from gigagp.optimization import History
from gigagp.persistence import save
from gigagp.predictive_distribution import PredictiveDistribution
from gigagp.restored_state import state_to_fitted
from gigagp.scaling import Scaling
from gigagp.target_transform import NoTransform


class FittedModel(NotebookView, PredictiveDistribution, NestedArguments, FittedEstimator):
    """What a fit leaves in an estimator, and what can be made of it without further rows."""

    def _take(self, fitted: Fitted, *, one_target: bool) -> None:
        """Set the attributes from the result of a fit."""
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

    def describe(self) -> str:
        """Return the methods that ran and the hyperparameters, in standardized units and in the data's own."""
        check_is_fitted(self, "posterior_")
        return describe(self)

    def plot(self, X: Any = None, y: Any = None, **options: Any) -> Any:
        """Draw the picture that suits the fitted model, by the number of its inputs.

        A curve with bands of 50 and 95 % and the forecast apart; maps of mean and uncertainty; or relevance and partial
        dependence. It needs matplotlib (``pip install "gigagp[plot]"``).

        Parameters
        ----------
        X, y : array-like, optional
            Data points to draw. None: the rows of the fit, if the model keeps them.
        **options
            Arguments of `gigagp.plots.plot`, such as ``upper`` for a forecast, ``label`` or ``path``.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed, or an argument is invalid.
        """
        check_is_fitted(self, "posterior_")
        from gigagp.plots import plot  # here, so that it costs nothing to import an estimator

        return plot(self, X, y, **options)

    # -------------------------------------------------------------- persistence

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file, atomically; `gigagp.load` reads it. See `gigagp.save`."""
        save(self, path)

    def _to_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        check_is_fitted(self, "posterior_")
        return fitted_to_state(self)

    @classmethod
    def _from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], custom: Custom) -> Self:
        return state_to_fitted(cls, tensors, header, custom)
