"""Protocols of estimators, for modules that the estimators import: the arguments, and the fitted attributes."""

from __future__ import annotations

from typing import Any, Protocol

from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.inference.automatic.plan import Plan
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.kernels import Kernel
from gigagp.model.likelihoods import Likelihood
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform
from gigagp.optimization import History
from gigagp.tables.encoding import TableEncoder


class Estimator(Protocol):
    """The constructor arguments of `gigagp.GPRegressor`."""

    kernel: Any
    inference: Any
    optimizer: Any
    mean: Any
    noise_variance: Any
    standardize: bool
    dtype: Any
    device: str
    memory_budget: Any
    verbose: Any
    random_state: Any
    likelihood: Any
    hyperparameter_units: Any
    time_budget: Any
    target_transform: Any
    encode: Any
    distributed: bool
    outputs: Any
    noise: Any
    panel: Any
    hyperparameters: Any
    groups: Any

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments by name."""


class FittedEstimator(Estimator, Protocol):
    """The attributes of a fitted `gigagp.GPRegressor`, where they are documented."""

    posterior_: Posterior
    scaling_: Scaling
    target_transform_: TargetTransform
    history_: History
    kernel_: Kernel
    kernel_choice_: KernelChoice | None
    likelihood_note_: str
    warnings_: tuple[str, ...]
    inference_: Any
    optimizer_: Any
    solver_: Any
    engine_: str
    plan_: Plan | None
    n_features_in_: int
    encoder_: TableEncoder
    feature_names_in_: Any
    _one_target: bool
    _arguments: dict[str, Any]
    _likelihood: Likelihood
    _models: tuple[Any, ...]
    _stacking: Any
    _uncertain: MixturePosterior | None

    @property
    def estimators_(self) -> tuple[Any, ...]:
        """The fitted estimators of the outputs that have a model each, or this one."""

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood that ran."""

    def _keep_arguments(self, likelihood: Likelihood) -> None: ...
