"""Samples of functions and of measurements, in the data's own units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gigagp.estimators.answers.answers import Answers, Hyperparameters
from gigagp.estimators.answers.averaged import averaged
from gigagp.estimators.answers.outputs import by_output
from gigagp.estimators.answers.unfitted import PriorFunctions, before_fit
from gigagp.estimators.guard import guarded
from gigagp.settings.fields import Count, checks_arguments
from gigagp.settings.random import RandomState, generator_from, standard_normal


class SampledAnswers(Answers):
    """Samples of the posterior; before a fit, of the prior."""

    @guarded()
    @checks_arguments
    @by_output()
    def sample_functions(
        self,
        n_samples: Count = 1,
        random_state: RandomState = 0,
        *,
        hyperparameters: Hyperparameters = "learned",
        latent: bool = False,
    ) -> Callable[[Any], np.ndarray]:
        """Return posterior samples of the function, as a function that can be evaluated at any points.

        It is that of `predict`: after a `target_transform`, and for counts and classes, ``E[y | f]``.

        Before `fit` the samples are those of the prior; see `predict`.

        Parameters
        ----------
        n_samples : int
            Number of samples. With iterative inference, `Iterative.n_samples` samples, shared by the targets, are
            stored; more need a solve.
        random_state : int or generator
            Seed of the samples.
        hyperparameters : {"learned", "laplace"}, default "learned"
            As for `predict`; each sample is then at one draw of the hyperparameters.
        latent : bool, default False
            Whether the samples are of the latent function; see `predict_latent`.

        Returns
        -------
        callable
            Function from points (m, d) to values (m, n_samples) or (m, n_targets, n_samples).
        """
        if hyperparameters == "laplace":
            return averaged(self).sample_functions(n_samples, random_state, latent=latent)
        if not hasattr(self, "posterior_"):
            return PriorFunctions(self, n_samples, random_state, latent=latent)
        generator = generator_from(random_state)
        functions = self.posterior_.sample_functions(n_samples, generator)

        @guarded()
        def evaluate(X: Any) -> np.ndarray:
            X, points = self._new_inputs(X)
            found = self._evaluated(functions, points, generator.clone_state())
            return self._in_units(found, X) if latent else self._samples_in_units(found, X, points)

        return evaluate

    def _samples_in_units(self, values: torch.Tensor, X: np.ndarray, points: torch.Tensor) -> np.ndarray:
        """Return samples (m, t, s) of the function in the targets' units, as `_in_units` does."""
        response = self._response
        if response is None:
            return self._in_units(values, X)
        found = values.double().cpu().numpy()
        return self._without_axis(response.values(found, response.noise(self._posterior_for(points), points)))

    def _measured(
        self, values: torch.Tensor, X: np.ndarray, points: torch.Tensor, generator: torch.Generator
    ) -> np.ndarray:
        """Return a random measurement for each sample (m, t, s) of the latent function."""
        response, f, posterior = self._response, values.double().cpu(), self._posterior_for(points)
        if response is not None:
            return self._without_axis(response.draws(f.numpy(), response.noise(posterior, points), generator))
        white = self._white_at(points)[:, None, None]
        rest = posterior.noise_at(points).double().cpu()[:, None, None] - white
        f = f + white.sqrt() * standard_normal(len(f), f[0].numel(), generator=generator).reshape(f.shape)
        return self._in_units(self.likelihood_.draw_targets(f, rest.clamp_min(0), generator), X)

    @guarded()
    @checks_arguments
    @by_output()
    def sample_y(
        self,
        X: Any,
        n_samples: Count = 1,
        random_state: RandomState = 0,
        *,
        include_noise: bool = False,
        hyperparameters: Hyperparameters = "learned",
    ) -> np.ndarray:
        """Sample the function of `predict` at given points; before `fit`, the samples are those of the prior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        n_samples : int
            Number of samples.
        random_state : int or generator
            Seed of the samples.
        include_noise : bool, default False
            Whether to draw a measurement at each value of the function: with noise, or a count.
        hyperparameters : {"learned", "laplace"}, default "learned"
            As for `sample_functions`.

        Returns
        -------
        ndarray of shape (m, n_samples) or (m, n_targets, n_samples)
            Joint samples over the points. With exact inference and up to 2,000 points, they use the full covariance.
        """
        if hyperparameters == "laplace":
            return averaged(self).sample_y(X, n_samples, random_state, include_noise=include_noise)
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).sample_y(X, n_samples, random_state, include_noise=include_noise)
        checked, points = self._new_inputs(X)
        generator = generator_from(random_state)
        if self.posterior_.covariance_is_cheap and points.shape[0] <= 2000:
            found = self._posterior_for(points).sample_at(points, n_samples, generator)
        else:
            found = self._evaluated(self.posterior_.sample_functions(n_samples, generator), points, generator)
        if include_noise:
            return self._measured(found, checked, points, generator)
        return self._samples_in_units(found, checked, points)
