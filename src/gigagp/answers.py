"""What `GPRegressor` answers: predictions, samples and the likelihood, in the data's own units."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gigagp import intake
from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.fields import Count, checks_arguments
from gigagp.guard import finite_prediction, guarded
from gigagp.inference.posterior import Posterior, SampleFunctions
from gigagp.likelihoods import resolve_likelihood
from gigagp.random import RandomState, generator_from
from gigagp.scaling import Scaling
from gigagp.unfitted import before_fit


class UncertaintyParts(NamedTuple):
    """Standard deviations of the latent function; the squares of the two add up to its variance.

    Attributes
    ----------
    mathematical : ndarray of shape (m,) or (m, n_targets)
        What finitely many rows leave open: the exact posterior's, at the same hyperparameters.
    computational : ndarray of shape (m,) or (m, n_targets)
        What was not computed leaves open on top; zero for exact inference.
    """

    mathematical: np.ndarray
    computational: np.ndarray


class Answers:
    """The answers of a fitted estimator; before a fit, those of its prior.

    Attributes
    ----------
    posterior_ : Posterior
    scaling_ : Scaling
    """

    posterior_: Posterior
    scaling_: Scaling
    likelihood: Any
    _one_target: bool

    def _new_inputs(self, X: Any) -> tuple[np.ndarray, torch.Tensor]:
        X = intake.estimator_inputs(self, X, reset=False)
        points = torch.from_numpy(self.scaling_.inputs(X)).to(
            dtype=self.posterior_.dtype, device=self.posterior_.device
        )
        refusal = self.posterior_.refusal(points, self.scaling_, getattr(self, "feature_names_in_", None))
        if refusal is not None:
            raise refusal
        return X, points

    def _in_units(self, values: torch.Tensor, X: np.ndarray) -> np.ndarray:
        """Return means or samples, (m, t) or (m, t, s), in the targets' units, without the axis of one target."""
        array = self.scaling_.original(values.double().cpu().numpy())
        offset = self.posterior_.model.mean.offset(X)
        array = finite_prediction(array + offset.reshape((-1,) + (1,) * (array.ndim - 1)))
        return array[:, 0] if self._one_target else array

    @guarded()
    @checks_arguments
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
        return_parts: bool = False,
    ) -> Any:
        """Predict the latent function.

        Before `fit` these are predictions of the prior: the kernel at the values it was given, in the units of X and y,
        and one target. A learned mean is 0 there, and its uncertainty, which is infinite, is left out.

        Parameters
        ----------
        X : array-like of shape (m, d)
        return_std : bool, default False
            Also return the standard deviation of the latent function.
        return_cov : bool, default False
            Also return the full covariance, (m, m); one linear solve for each point.
        include_noise : bool, default False
            Add the noise (and the kernel's white part): the spread of a new observation.
        variance : {"auto", "samples", "solve"}, default "auto"
            With iterative inference: from the stored posterior samples (``"auto"``), or from a solve for each point,
            exact to the solver's tolerance and never below the exact variance.
        return_parts : bool, default False
            Also return the two parts of the latent standard deviation, ``UncertaintyParts(mathematical,
            computational)``: what the data leave open, and what computation-aware inference left uncomputed. Their
            squares add up to the latent variance. O(n^3) time: for tables that exact inference could do.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_targets)
        std : ndarray of the same shape, if ``return_std``
        cov : ndarray of shape (m, m) or (m, m, n_targets), if ``return_cov``
        parts : UncertaintyParts of two ndarrays shaped like std, if ``return_parts``

        Raises
        ------
        NonFiniteError
            If a number that would be returned is not finite, or the arithmetic breaks down on the way.
        MemoryBudgetError
            If the machine has no memory for it.
        """
        if return_std and return_cov:
            msg = "return_std and return_cov of GPRegressor.predict cannot both be True; the covariance has both."
            raise InvalidInputError(msg)
        if not hasattr(self, "posterior_"):
            prior = before_fit(self, X)
            return prior.predict(
                X, return_std, return_cov, include_noise=include_noise, variance=variance, return_parts=return_parts
            )
        X, points = self._new_inputs(X)
        if return_parts:
            found = self.predict(X, return_std, return_cov, include_noise=include_noise, variance=variance)
            parts = (self._spread(part) for part in self.posterior_.variance_parts(points))
            return (*(found if isinstance(found, tuple) else (found,)), UncertaintyParts(*parts))
        if not return_std and not return_cov:
            return self._in_units(self.posterior_.mean(points), X)
        if include_noise and not resolve_likelihood(self.likelihood).has_noise:
            msg = (
                f"include_noise of GPRegressor.predict must be False: {self.likelihood} targets have no noise variance."
            )
            raise InvalidInputError(msg)
        noise = self.posterior_.noise_at(points) if include_noise else points.new_zeros(points.shape[0])
        if return_cov:
            covariance = self.posterior_.covariance(points) + torch.diag(noise)
            array = finite_prediction(self.scaling_.covariances(covariance.double().cpu().numpy()))
            return self._in_units(self.posterior_.mean(points), X), array[:, :, 0] if self._one_target else array
        mean, latent = self.posterior_.mean_and_variance(points, method=variance)
        return self._in_units(mean, X), self._spread(latent + noise)

    def _spread(self, variance: torch.Tensor) -> np.ndarray:
        """Return standard deviations in the targets' units, without the axis of one target."""
        std = finite_prediction(self.scaling_.spreads(variance.sqrt().double().cpu().numpy()))
        return std[:, 0] if self._one_target else std

    @guarded()
    @checks_arguments
    def sample_functions(self, n_samples: Count = 1, random_state: RandomState = 0) -> Callable[[Any], np.ndarray]:
        """Return posterior samples of the latent function that can be evaluated anywhere, again and again.

        Before `fit`: samples of the prior, see `predict`.

        Parameters
        ----------
        n_samples : int
            With iterative inference `Iterative.n_samples`, shared by the targets, cost nothing; more cost a solve.
        random_state : int or generator

        Returns
        -------
        callable
            From points (m, d) to values (m, n_samples) or (m, n_targets, n_samples).
        """
        if not hasattr(self, "posterior_"):
            return _PriorFunctions(self, n_samples, random_state)
        functions: SampleFunctions = self.posterior_.sample_functions(n_samples, generator_from(random_state))

        @guarded()
        def evaluate(X: Any) -> np.ndarray:
            X, points = self._new_inputs(X)
            return self._in_units(functions(points), X)

        return evaluate

    @guarded()
    @checks_arguments
    def sample_y(self, X: Any, n_samples: Count = 1, random_state: RandomState = 0) -> np.ndarray:
        """Draw samples of the latent function at given points; before `fit`, of the prior (see `predict`).

        Parameters
        ----------
        X : array-like of shape (m, d)
        n_samples : int
        random_state : int or generator

        Returns
        -------
        ndarray of shape (m, n_samples) or (m, n_targets, n_samples)
            Joint over the points. With exact inference and up to 2,000 points they come from the full covariance.
        """
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).sample_y(X, n_samples, random_state)
        checked, points = self._new_inputs(X)
        if self.posterior_.covariance_is_cheap and points.shape[0] <= 2000:
            return self._in_units(self.posterior_.sample_at(points, n_samples, generator_from(random_state)), checked)
        return self.sample_functions(n_samples, random_state)(X)

    @guarded()
    @checks_arguments
    def log_marginal_likelihood(self, random_state: RandomState = 0) -> Estimate:
        """Return the log marginal likelihood of the training targets in the standardized problem's units.

        Returns
        -------
        Estimate
            ``value`` and ``standard_error``; exact inference has standard error 0. With inference.ComputationAware and
            SparseVariational the value is their lower bound, and the log marginal likelihood is at least that.
        """
        check_is_fitted(self, "posterior_")
        return self.posterior_.log_marginal_likelihood(generator_from(random_state))


class _PriorFunctions:
    """Samples of the prior of an estimator that is not fitted, which learns its inputs from the first points.

    Parameters
    ----------
    estimator : Answers
    n_samples : int
    random_state : int or generator
    """

    def __init__(self, estimator: Answers, n_samples: int, random_state: RandomState) -> None:
        self._estimator, self._n_samples, self._random_state = copy.copy(estimator), n_samples, random_state
        self._functions: Callable[[Any], np.ndarray] | None = None

    def __call__(self, X: Any) -> np.ndarray:
        """Return the samples at points (m, d), shape (m, n_samples)."""
        if self._functions is None:
            self._functions = before_fit(self._estimator, X).sample_functions(self._n_samples, self._random_state)
        return self._functions(X)
