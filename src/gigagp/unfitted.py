"""The behaviour of `GPRegressor` before a fit, which is that of the prior."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigagp import intake
from gigagp.checks import resolve_device, resolve_dtype
from gigagp.fields import check_parameters
from gigagp.inference.prior import PriorPosterior
from gigagp.means import resolve_mean
from gigagp.memory import resolve_budget
from gigagp.noise import has_white_term
from gigagp.random import RandomState
from gigagp.scaling import Scaling

if TYPE_CHECKING:
    from gigagp.regression import GPRegressor


def before_fit(estimator: GPRegressor, X: Any) -> GPRegressor:
    """Return a copy of an estimator whose posterior is the prior at points like X; the estimator does not change.

    Nothing is standardized, so the kernel's hyperparameters are in the units of X and of the target. There is one
    target.

    Parameters
    ----------
    estimator : GPRegressor
        An estimator that is not fitted.
    X : array-like of shape (m, d)
        Points, which determine the number and names of the inputs.

    Raises
    ------
    InvalidInputError
        If an argument is invalid.
    """
    check_parameters(estimator)
    prior = copy.copy(estimator)
    n_inputs = intake.estimator_inputs(prior, X, reset=True).shape[1]
    dtype, device = resolve_dtype(prior.dtype), resolve_device(prior.device)
    noise = prior.noise_variance
    if np.ndim(noise):
        prior.noise_variance = None  # it belongs to rows that are not known
    scaling = Scaling.fit(np.zeros((1, n_inputs)), np.zeros((1, 1)), standardize=False)
    model = prior._start_model(resolve_mean(prior.mean), 0, 1).standardized(scaling.units())
    prior.noise_variance = noise
    knows_noise = not np.ndim(noise) and (noise is not None or has_white_term(model.kernel))
    empty = torch.zeros(0, n_inputs, dtype=dtype, device=device)
    prior.posterior_ = PriorPosterior(model, empty, resolve_budget(prior.memory_budget, device), knows_noise)
    prior.scaling_, prior._one_target = scaling, True
    return prior


class PriorFunctions:
    """Prior samples of an estimator that is not fitted; the first points determine its inputs.

    Parameters
    ----------
    estimator : GPRegressor
    n_samples : int
        Number of samples.
    random_state : int or generator
        Seed of the samples.
    """

    def __init__(self, estimator: GPRegressor, n_samples: int, random_state: RandomState) -> None:
        self._estimator, self._n_samples, self._random_state = copy.copy(estimator), n_samples, random_state
        self._functions: Callable[[Any], np.ndarray] | None = None

    def __call__(self, X: Any) -> np.ndarray:
        """Return the samples at points of shape (m, d), shape (m, n_samples)."""
        if self._functions is None:
            self._functions = before_fit(self._estimator, X).sample_functions(self._n_samples, self._random_state)
        return self._functions(X)
