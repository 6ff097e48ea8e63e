"""The behaviour of `GPRegressor` before a fit, which is that of the prior."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.estimators.checks import resolve_device, resolve_dtype
from gigagp.estimators.start import has_white_term, refuse_white, start_model
from gigagp.inference.exact.prior import PriorPosterior
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.model.means import resolve_mean
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform
from gigagp.runtime.memory import resolve_budget
from gigagp.settings.fields import check_parameters
from gigagp.settings.random import RandomState
from gigagp.tables import intake
from gigagp.tables.encoding import refuse_before_fit

E = TypeVar("E")


def before_fit(estimator: E, X: Any) -> E:
    """Return a copy of an estimator with the prior at points like X as its posterior; the original does not change.

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
    NotFittedError
        With ``encode="auto"``, because a fit decides how columns are encoded.
    """
    check_parameters(estimator)
    refuse_before_fit(estimator)
    prior: Any = copy.copy(estimator)
    refuse_white(prior.kernel, resolve_likelihood(prior.likelihood))
    if prior.target_transform != "none":
        msg = (
            f"target_transform of GPRegressor is {prior.target_transform!r}, which is learned from targets: fit first. "
            'Before a fit, only "none" has predictions.'
        )
        raise InvalidInputError(msg)
    n_inputs = intake.estimator_inputs(prior, X, reset=True).shape[1]
    dtype, device = resolve_dtype(prior.dtype), resolve_device(prior.device)
    noise = prior.noise_variance
    if np.ndim(noise):
        prior.noise_variance = None  # an array belongs to rows, which are not known yet
    scaling = Scaling.fit(np.zeros((1, n_inputs)), np.zeros((1, 1)), standardize=False)
    model = start_model(prior, resolve_mean(prior.mean), 0, 1).standardized(scaling.units())
    prior.noise_variance = noise
    knows_noise = not np.ndim(noise) and (noise is not None or has_white_term(model.kernel))
    prior.posterior_ = PriorPosterior(model, dtype, device, resolve_budget(prior.memory_budget, device), knows_noise)
    prior.scaling_, prior._one_target, prior.target_transform_ = scaling, True, NoTransform()
    return cast("E", prior)


class PriorFunctions:
    """Samples of the prior of an unfitted estimator; the first points determine the number of inputs.

    Parameters
    ----------
    estimator : GPRegressor
        Unfitted estimator.
    n_samples : int
        Number of samples.
    random_state : int or generator
        Seed of the samples.
    latent : bool, default False
        Whether they are of the latent function.
    """

    def __init__(self, estimator: Any, n_samples: int, random_state: RandomState, *, latent: bool = False) -> None:
        self._estimator, self._n_samples, self._random_state = copy.copy(estimator), n_samples, random_state
        self._latent = latent
        self._functions: Callable[[Any], np.ndarray] | None = None

    def __call__(self, X: Any) -> np.ndarray:
        """Return the samples at points (m, d), shape (m, n_samples)."""
        if self._functions is None:
            prior = before_fit(self._estimator, X)
            self._functions = prior.sample_functions(self._n_samples, self._random_state, latent=self._latent)
        return self._functions(X)
