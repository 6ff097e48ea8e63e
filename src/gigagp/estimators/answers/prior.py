"""The answers of the prior, before a fit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.predictor import Predictor
from gigagp.estimators.arguments import DTYPES, has_white_term, refuse_white, resolve_device, start_model
from gigagp.estimators.guard import guarded
from gigagp.inference.contract.batches import prior_covariance
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.contract.saved import Saved
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import NoTransform
from gigagp.runtime.memory import require, resolve_budget
from gigagp.settings.fields import check_parameters
from gigagp.settings.random import RandomState
from gigagp.tables import intake
from gigagp.tables.encoding import refuse_before_fit

#: Number of random features of sampled prior functions.
_N_FEATURES = 4000


class PriorPosterior(Posterior):
    """The distribution of the function before any row is observed: the kernel, with mean coefficients of 0.

    ``knows_noise`` says whether the model's noise was given.
    """

    kind = "prior"
    covariance_is_cheap = True
    n_rows = 0

    def __init__(self, model: Model, dtype: torch.dtype, device: torch.device, budget: int, knows_noise: bool) -> None:
        self.model, self.budget, self.knows_noise = model, budget, knows_noise
        places = torch.zeros(0, self.n_inputs, dtype=dtype, device=device)
        self.coefficients = places.new_zeros(model.mean.basis(places).shape[1], 1)
        self.coefficient_root = places.new_zeros(0, 0)  # left out: a flat prior on coefficients has infinite variance

    def solver_name(self) -> str:
        """Return "none", since nothing is solved."""
        return "none"

    def noise_at(self, X: torch.Tensor) -> torch.Tensor:
        """Return the noise variance of rows, shape (m,); raise `InvalidInputError` if none was given."""
        if self.knows_noise:
            return self.model.noise_at(X)
        raise InvalidInputError(
            "include_noise of GPRegressor.predict before fit needs one number as noise_variance of the estimator, or a "
            "White term in its kernel; there is neither."
        )

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return zeros, shape (m, 1); the estimator adds a fixed mean."""
        return X.new_zeros(X.shape[0], 1)

    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        """Return zeros, since there are no rows."""
        return X.new_zeros(X.shape[0], len(self.coefficients))

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(X), self.model.kernel.diagonal(X)

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        m = X.shape[-2]
        require(3 * X[..., 0].numel() * m * X.element_size(), self.budget, f"The covariance of {m:,} points", "")
        return prior_covariance(self.model.kernel, X)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        kernel = self.model.kernel
        prior = PriorSamples.new(kernel, self.n_inputs, n_samples, _N_FEATURES, generator)
        return lambda X: prior.evaluate(kernel, X, self.budget)[:, None, :]

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        return Estimate(0.0, 0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Raise `NotImplementedError`: a prior is not stored."""
        raise NotImplementedError

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> PriorPosterior:
        """Raise `NotImplementedError`: a prior is not stored."""
        raise NotImplementedError


def prior_predictor(estimator: Any, X: Any) -> tuple[Predictor, np.ndarray]:
    """Return what answers before a fit at points like X, and these points as it takes them.

    Nothing is standardized, so the kernel's hyperparameters are in the units of X and of the target. There is one
    target. The number and the names of the inputs are set on the estimator, which is a copy. With ``encode="auto"``,
    `NotFittedError` is raised, because a fit decides how columns are encoded.
    """
    check_parameters(estimator)
    refuse_before_fit(estimator)
    likelihood = resolve_likelihood(estimator.likelihood)
    likelihood = likelihood.settled(likelihood.start(torch.zeros(1, 1, dtype=torch.float64)))
    refuse_white(estimator.kernel, likelihood)
    if estimator.target_transform != "none":
        raise InvalidInputError(
            f"target_transform of GPRegressor is {estimator.target_transform!r}, which is learned from targets: fit "
            'first. Before a fit, only "none" has predictions.'
        )
    inputs = intake.estimator_inputs(estimator, X, reset=True)
    dtype, device = DTYPES[estimator.dtype], resolve_device(estimator.device)
    start, noise = copy.copy(estimator), estimator.noise_variance
    if np.ndim(noise):
        start.noise_variance = None  # an array belongs to rows, which are not known yet
    scaling = Scaling.fit(np.zeros((1, inputs.shape[1])), np.zeros((1, 1)), standardize=False)
    model = start_model(start, resolve_mean(estimator.mean), 0, 1).standardized(scaling.units())
    knows_noise = not np.ndim(noise) and (noise is not None or has_white_term(model.kernel))
    budget = resolve_budget(estimator.memory_budget, device)
    posterior = PriorPosterior(model, dtype, device, budget, knows_noise)
    names = getattr(estimator, "feature_names_in_", None)
    found = Predictor(posterior, scaling, NoTransform(), likelihood, one_target=True, names=names)
    return found, inputs


class PriorFunctions:
    """Samples of the prior of an unfitted estimator; the first points determine the number of inputs."""

    def __init__(self, estimator: Any, n_samples: int, random_state: RandomState, *, latent: bool = False) -> None:
        self._estimator, self._n_samples, self._random_state = copy.copy(estimator), n_samples, random_state
        self._latent = latent
        self._functions: Callable[[np.ndarray], np.ndarray] | None = None

    @guarded()
    def __call__(self, X: Any) -> np.ndarray:
        """Return the samples at points (m, d), shape (m, n_samples)."""
        if self._functions is None:
            predictor, inputs = prior_predictor(self._estimator, X)
            self._functions = predictor.sample_functions(self._n_samples, self._random_state, latent=self._latent)
        else:
            inputs = intake.estimator_inputs(self._estimator, X, reset=False)
        return self._functions(inputs)
