"""The checked arguments of an estimator, and the standardized problem that they make of rows."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.checks import resolve_device, resolve_dtype
from gigagp.estimators.choices import kernel_rules
from gigagp.estimators.estimator import Estimator
from gigagp.estimators.start import start_model
from gigagp.inference import Inference
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels.stationary import require_taken
from gigagp.model.likelihoods import Gaussian, Likelihood, resolve_likelihood
from gigagp.model.means import LinearMean, Mean, resolve_mean
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling
from gigagp.optimization import Auto
from gigagp.optimization.optimizer import check_optimizer
from gigagp.runtime import processes
from gigagp.runtime.duration import resolve_duration
from gigagp.runtime.memory import resolve_budget
from gigagp.settings.fields import check_parameters
from gigagp.tables.encoding import scaled_inputs


@dataclass(frozen=True)
class Arguments:
    """The checked arguments of an estimator, with every ``"auto"`` resolved that does not depend on rows.

    Attributes
    ----------
    estimator : Estimator
        Estimator whose arguments these are.
    dtype : torch.dtype
        Data type of the training table.
    device : torch.device
        Device of the training table.
    budget : int
        Memory budget in bytes.
    mean : Mean
        Mean function.
    likelihood : Likelihood
        Likelihood of the targets.
    optimizer : object or None
        Optimizer of the hyperparameters.
    deadline : float
        Value of ``time.monotonic()`` at which the fit is to end; infinity without a time budget.
    job : str
        What the fit is of, for its progress; empty for all targets.
    keeps_checkpoint : bool
        Whether the checkpoint stays after the fit, because it is a part of a larger one.
    """

    estimator: Estimator
    dtype: torch.dtype
    device: torch.device
    budget: int
    mean: Mean
    likelihood: Likelihood
    optimizer: Any
    deadline: float
    job: str = ""
    keeps_checkpoint: bool = False

    @classmethod
    def of(cls, estimator: Estimator) -> Arguments:
        """Check the arguments of an estimator.

        Raises
        ------
        InvalidInputError
            If an argument is invalid.
        """
        check_parameters(estimator)
        if processes.current() is not None:
            _check_distributed(estimator)
        device = resolve_device(estimator.device)
        optimizer = estimator.optimizer
        if isinstance(optimizer, str) and optimizer == "auto":
            optimizer = Auto()
        check_optimizer(optimizer)
        return cls(
            estimator,
            resolve_dtype(estimator.dtype),
            device,
            resolve_budget(estimator.memory_budget, device),
            resolve_mean(estimator.mean),
            resolve_likelihood(estimator.likelihood),
            optimizer,
            time.monotonic() + resolve_duration(estimator.time_budget),
        )

    def check_plan(self) -> None:
        """Refuse arguments for which nothing can be foreseen.

        Raises
        ------
        InvalidInputError
            If there is such an argument.
        """
        if self.estimator.inference != "auto":
            msg = f'plan of GPRegressor chooses an inference, which must be "auto"; got {self.estimator.inference!r}.'
            raise InvalidInputError(msg)
        if not isinstance(self.likelihood, Gaussian):
            msg = f'plan of GPRegressor needs likelihood="gaussian"; got {self.estimator.likelihood!r}.'
            raise InvalidInputError(msg)
        if self.estimator.target_transform != "none":
            msg = (
                "plan of GPRegressor is of targets as they are: target_transform must be "
                f'"none"; got {self.estimator.target_transform!r}.'
            )
            raise InvalidInputError(msg)

    def check_for(self, inference: Inference, *, streams: bool = False) -> None:
        """Refuse arguments that this inference method or the likelihood does not use.

        Raises
        ------
        InvalidInputError
            If there is such an argument.
        """
        estimator, likelihood = self.estimator, self.likelihood
        inference.check_precision(estimator.dtype, asked=estimator.inference != "auto")
        inference.check_device(self.device, asked=estimator.device != "auto")
        kernel_rules.check(estimator.kernel, inference, likelihood, self.optimizer, streams=streams)
        if not likelihood.adds_noise and type(self.mean).offset is not Mean.offset:
            msg = (
                f"mean of GPRegressor must not be a function with the {likelihood.name} likelihood: its values would "
                f"be subtracted from targets that are not in the units of the latent function; got {estimator.mean!r}. "
                "Add kernels.Constant() or kernels.Linear() to the kernel."
            )
            raise InvalidInputError(msg)
        if likelihood.has_noise:
            return
        if estimator.noise_variance is not None:
            msg = (
                f"noise_variance of GPRegressor must be None with the {likelihood.name} likelihood, which has no noise "
                f"variance; got {estimator.noise_variance!r}."
            )
            raise InvalidInputError(msg)
        if isinstance(self.mean, LinearMean):
            msg = (
                f'mean of GPRegressor must be "zero" with the {likelihood.name} likelihood, whose latent mean is zero; '
                f"add kernels.Linear(); got {estimator.mean!r}."
            )
            raise InvalidInputError(msg)


def _check_distributed(estimator: Estimator) -> None:
    """Refuse arguments that a distributed fit cannot have, or that are not the same in all processes."""
    if not isinstance(estimator.random_state, int | np.integer):
        msg = (
            "random_state of GPRegressor must be an int for a distributed fit, whose processes draw the same numbers; "
            f"got {estimator.random_state!r}."
        )
        raise InvalidInputError(msg)
    if estimator.time_budget is not None:
        msg = (
            "time_budget of GPRegressor must be None for a distributed fit, whose processes have separate clocks; "
            f"got {estimator.time_budget!r}."
        )
        raise InvalidInputError(msg)
    settings = {name: value for name, value in estimator.get_params(deep=False).items() if name != "verbose"}
    # Functions are shown with their place in memory, which differs.
    processes.require_same({name: re.sub(r"0x[0-9a-f]+", "", repr(value)) for name, value in settings.items()})


def require_same_rows(X: np.ndarray, y: np.ndarray, noise_variance: torch.Tensor) -> None:
    """Raise `InvalidInputError` in all processes of a distributed fit unless they have the same rows."""
    if processes.current() is not None:
        found: dict[str, object] = {"shape of X": X.shape}
        for name, rows in (("X", X), ("y", y), ("noise_variance", noise_variance.numpy())):
            found[name] = sha256(np.ascontiguousarray(rows).data).hexdigest()[:16]
        processes.require_same(found)


@dataclass(frozen=True)
class Problem:
    """Rows that are held, their scaling, and the start of learning in the units of the standardized problem."""

    arguments: Arguments
    X: np.ndarray
    targets: np.ndarray
    scaling: Scaling
    model: Model

    @classmethod
    def of(cls, arguments: Arguments, X: np.ndarray, y: np.ndarray) -> Problem:
        """Return the problem of inputs (n, d) and targets (n,) or (n, n_targets) in the data's own units."""
        estimator, mean, likelihood = arguments.estimator, arguments.mean, arguments.likelihood
        targets = _without_offset(mean, X, y)
        medians, is_scaled = likelihood.scales_by_medians, scaled_inputs(estimator)
        scaling = Scaling.fit(X, targets, estimator.standardize, medians=medians, is_scaled=is_scaled)
        if not likelihood.has_noise:  # counts and signs have no scale
            scaling = scaling.of_inputs_only()
        noise_differs = isinstance(likelihood, Gaussian)
        start = start_model(estimator, mean, len(X), targets.shape[1], noise_differs=noise_differs)
        require_taken(start.kernel, X, getattr(estimator, "feature_names_in_", None))
        return cls(arguments, X, targets, scaling, start.standardized(scaling.units()))

    def table(self) -> TrainingTable:
        """Return the standardized rows.

        Raises
        ------
        InvalidInputError
            If they are beyond the range of the data type.
        """
        return self._standardized(self.X, self.targets)

    def table_of(self, X: np.ndarray, y: np.ndarray) -> TrainingTable:
        """Return other rows, or some of these, on the same scale; see `of` and `table`."""
        return self._standardized(X, _without_offset(self.arguments.mean, X, y))

    def _standardized(self, X: np.ndarray, targets: np.ndarray) -> TrainingTable:
        arguments = self.arguments
        dtype, device = arguments.dtype, arguments.device
        return TrainingTable(
            torch.from_numpy(self.scaling.inputs(X)).to(dtype=dtype, device=device),
            torch.from_numpy(self.scaling.targets(targets)).to(dtype=dtype, device=device),
            arguments.mean,
            arguments.budget,
            mixed=arguments.estimator.dtype == "mixed",
        ).require_finite()


def _without_offset(mean: Mean, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return targets (n, n_targets) minus the known part of the mean."""
    return (y if y.ndim == 2 else y[:, None]) - mean.offset(X)[:, None]
