"""Predictions, samples and the likelihood of `GPRegressor`, in the data's own units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.averaged import averaged
from gigagp.encoding import fitted_encoder
from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.fields import Count, checks_arguments
from gigagp.guard import finite_prediction, guarded
from gigagp.inference.posterior import Posterior
from gigagp.joint_posterior import JointPosterior, points_of
from gigagp.kernels.stationary import require_taken
from gigagp.likelihoods import Likelihood, StudentT, resolve_likelihood
from gigagp.query_points import QueryPoints
from gigagp.random import RandomState, generator_from
from gigagp.scaling import Scaling
from gigagp.student_noise import sites
from gigagp.target_transform import TargetTransform
from gigagp.transformed_answers import covariance_of, function_values, moments
from gigagp.unfitted import PriorFunctions, before_fit

#: Hyperparameters of answers: the learned ones, or a mixture over what the rows leave open about them.
Hyperparameters = Literal["learned", "laplace"]


class UncertaintyParts(NamedTuple):
    """Standard deviations of the latent function in two parts, whose squares add up to its variance.

    Attributes
    ----------
    mathematical : ndarray of shape (m,) or (m, n_targets)
        Uncertainty due to the finite number of rows: that of the exact posterior at the same hyperparameters.
    computational : ndarray of shape (m,) or (m, n_targets)
        Additional uncertainty due to limited computation; zero for exact inference.
    """

    mathematical: np.ndarray
    computational: np.ndarray


class Answers(QueryPoints):
    """Prediction methods of an estimator; before a fit, they are those of the prior.

    Attributes
    ----------
    posterior_ : Posterior
        Posterior in the units of the standardized problem.
    scaling_ : Scaling
        Transformation between the data's own units and those of the standardized problem.
    target_transform_ : TargetTransform
        Transform of the target, before the scaling.
    """

    posterior_: Posterior
    scaling_: Scaling
    target_transform_: TargetTransform
    likelihood: Any
    _one_target: bool

    @property
    def likelihood_(self) -> Likelihood:
        """Likelihood of the fit; Student-t noise has the learned degrees of freedom, if they were learned."""
        check_is_fitted(self, "posterior_")
        student = self.posterior_.model.student
        return resolve_likelihood(self.likelihood) if student is None else StudentT(student.df)

    @property
    def noise_weights_(self) -> np.ndarray:
        """Weight of each training row, shape (n,), for Student-t noise; below 0.1 a row counts as an outlier.

        A row of weight w is as informative as one with ``1 / w`` times the squared scale of the noise for its variance.
        Rows that fit well have weights a little above 1.

        Raises
        ------
        AttributeError
            If the noise is not Student-t, or Laplace's method ran, which has no weights.
        """
        check_is_fitted(self, "posterior_")
        model = self.posterior_.model
        if model.student is None:
            msg = (
                f"noise_weights_ of {type(self).__name__} needs Student-t noise; its likelihood is {self.likelihood_}."
            )
            raise AttributeError(msg)
        return model.student.weights(model.noise_variance).double().cpu().numpy()

    def _in_units(self, values: torch.Tensor, X: np.ndarray) -> np.ndarray:
        """Return means (m, t) or samples (m, t, s) in the targets' units, without the axis of a single target."""
        array = self.scaling_.original(values.double().cpu().numpy())
        offset = self.posterior_.model.mean.offset(X)
        array = finite_prediction(array + offset.reshape((-1,) + (1,) * (array.ndim - 1)))
        return array[:, 0] if self._one_target else array

    def _moments_in_units(
        self, points: torch.Tensor, method: Literal["auto", "samples", "solve"] = "auto"
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the latent mean, its variance and the noise variance, (m,), in units of the transformed target."""
        posterior, unit = self._posterior_for(points), self.scaling_.units().variance
        mean, variance = posterior.mean_and_variance(points, method=method)
        latent, noise = (v.double().cpu().numpy() * unit for v in (variance, posterior.noise_at(points)))
        return self.scaling_.original(mean.double().cpu().numpy())[:, 0], latent, noise

    def _predict_transformed(
        self,
        points: torch.Tensor,
        return_std: bool,
        return_cov: bool,
        include_noise: bool,
        method: Literal["auto", "samples", "solve"],
    ) -> Any:
        """Return what `predict` does for a transformed target, of ``E[y | f]`` or of a new measurement."""
        transform, posterior = self.target_transform_, self._posterior_for(points)
        if return_cov:
            given = posterior.covariance(points).double().cpu().numpy() * self.scaling_.units().variance
            centre = self.scaling_.original(posterior.mean(points).double().cpu().numpy())[:, 0]
            noise = posterior.noise_at(points).double().cpu().numpy() * self.scaling_.units().variance
            mean, latent, whole = moments(transform, centre, np.diag(given), noise)
            covariance = covariance_of(transform, centre, given, noise)
            np.fill_diagonal(covariance, whole if include_noise else latent)
            return self._shaped(mean), self._shaped(covariance, 2)
        mean, latent, whole = moments(transform, *self._moments_in_units(points, method))
        if not return_std:
            return self._shaped(mean)
        return self._shaped(mean), self._shaped(np.sqrt(whole if include_noise else latent))

    def _shaped(self, values: np.ndarray, axis: int = 1) -> np.ndarray:
        """Return finite answers for a single target, with an axis for it if the fit's targets had one."""
        values = finite_prediction(values)
        return values if self._one_target else np.expand_dims(values, axis)

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
        hyperparameters: Hyperparameters = "learned",
    ) -> Any:
        """Predict the latent function.

        After a `target_transform`, the latent function f is in the target's units as ``E[y | f]``, the mean of
        measurements where f is known. All answers are of this function: the mean is the mean of a measurement, with
        or without noise.

        Before `fit` the predictions are those of the prior, for a single target: the kernel with its given values, in
        the units of X and y. A learned mean is then 0, and its uncertainty, which is infinite, is left out.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, or with ``encode="auto"`` a table like that of the fit.
        return_std : bool, default False
            Whether to return the standard deviation of the latent function as well.
        return_cov : bool, default False
            Whether to return the full covariance as well; iterative inference solves a linear system for each point.
        include_noise : bool, default False
            Whether to add the noise variance (and the kernel's white terms), to describe the spread of a new
            observation.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference: the stored posterior samples together with nearest
            neighbours, where the kernel has a compiled program (``"auto"``); the samples alone; or a solve for each
            point, which is exact to the solver's tolerance and never below the exact variance.
        return_parts : bool, default False
            Whether to return the two parts of the latent standard deviation as well,
            ``UncertaintyParts(mathematical, computational)``: the uncertainty due to finite data, and that due to
            limited computation. Their squares add up to the latent variance. It takes O(n^3) time, so the table must be
            small enough for exact inference.
        hyperparameters : {"learned", "laplace"}, default "learned"
            Whether answers are those at the learned hyperparameters, or mixed over 8 to 32 draws of what the rows leave
            open about them, by Laplace's approximation (`gigagp.inference.uncertain_hyperparameters`). The draws are
            made once for a fit, in some five to ten times its time. Error bars of a few hundred rows become wider.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_targets)
            Mean of the latent function.
        std : ndarray of the same shape
            Standard deviation, if ``return_std``.
        cov : ndarray of shape (m, m) or (m, m, n_targets)
            Covariance, if ``return_cov``.
        parts : UncertaintyParts of two ndarrays with the shape of std
            Parts of the standard deviation, if ``return_parts``.

        Raises
        ------
        NonFiniteError
            If a returned number would not be finite, or a factorisation fails or a number overflows.
        MemoryBudgetError
            If the prediction exceeds the memory of the machine.
        """
        if return_std and return_cov:
            msg = "return_std and return_cov of GPRegressor.predict cannot both be True; the covariance has both."
            raise InvalidInputError(msg)
        if hyperparameters == "laplace":
            if return_parts:
                msg = 'return_parts of GPRegressor.predict must be False with hyperparameters="laplace".'
                raise InvalidInputError(msg)
            mixed = averaged(self)
            return mixed.predict(X, return_std, return_cov, include_noise=include_noise, variance=variance)
        if not hasattr(self, "posterior_"):
            prior = before_fit(self, X)
            return prior.predict(
                X, return_std, return_cov, include_noise=include_noise, variance=variance, return_parts=return_parts
            )
        if return_parts and not self.target_transform_.is_identity:
            msg = (
                "return_parts of GPRegressor.predict must be False with a target_transform: the two parts add up "
                "in units of the transformed target only. posterior_.variance_parts has them, standardized."
            )
            raise InvalidInputError(msg)
        if return_parts:
            found = self.predict(X, return_std, return_cov, include_noise=include_noise, variance=variance)
            _, points = self._new_inputs(X)
            parts = (self._spread(part) for part in self._posterior_for(points).variance_parts(points))
            return (*(found if isinstance(found, tuple) else (found,)), UncertaintyParts(*parts))
        X, points = self._new_inputs(X)
        if not self.target_transform_.is_identity:
            return self._predict_transformed(points, return_std, return_cov, include_noise, variance)
        posterior = self._posterior_for(points)
        if not return_std and not return_cov:
            return self._in_units(posterior.mean(points), X)
        if include_noise and not resolve_likelihood(self.likelihood).has_noise:
            msg = (
                f"include_noise of GPRegressor.predict must be False: {self.likelihood} targets have no noise variance."
            )
            raise InvalidInputError(msg)
        noise = posterior.noise_at(points) if include_noise else points.new_zeros(points.shape[0])
        if return_cov:
            covariance = posterior.covariance(points) + torch.diag(noise)
            array = finite_prediction(self.scaling_.covariances(covariance.double().cpu().numpy()))
            return self._in_units(posterior.mean(points), X), array[:, :, 0] if self._one_target else array
        mean, latent = posterior.mean_and_variance(points, method=variance)
        return self._in_units(mean, X), self._spread(latent + noise)

    def _spread(self, variance: torch.Tensor) -> np.ndarray:
        """Return standard deviations in the targets' units, without the axis of a single target."""
        std = finite_prediction(self.scaling_.spreads(variance.sqrt().double().cpu().numpy()))
        return std[:, 0] if self._one_target else std

    @guarded()
    @checks_arguments
    def posterior(
        self,
        X: Any,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
    ) -> JointPosterior:
        """Return the joint distribution of the latent function at batches of points, differentiable in the points.

        When to use: where points are sought by gradients, as acquisition functions of Bayesian optimization do, or
        where many small sets of points each need a joint distribution. `predict` is for tables.

        Mean, variance, covariance and samples have the derivatives of what they return, by closed forms of the kernel;
        beyond some MiB, nothing of the size of training rows times points is kept for them. Three places have none in
        the strict sense: at the training rows, values with a Matern-1/2 kernel have a kink (the derivative returned
        there leaves out that row); predictions by `inference.Vecchia` jump a little where the nearest rows of a point
        change; and the inputs of categories (`kernels.Categorical`) are treated as the numbers that they are.

        Before `fit` it is the distribution of the prior; see `predict`.

        Parameters
        ----------
        X : Tensor or array of shape (..., q, d)
            Points in the data's own units: batches of q points, whose joint distributions are returned. Covariances
            between batches are not computed.
        include_noise : bool, default False
            Whether to return the distribution of measurements.
        variance : {"auto", "samples", "solve"}, default "auto"
            Source of the variances in iterative inference, as for `predict`. Covariances and samples take a solve for
            each point there, so that they are those of ``"solve"``.

        Returns
        -------
        JointPosterior
            Object with ``mean``, ``variance``, ``covariance``, ``rsample`` and ``log_prob``.

        Raises
        ------
        InvalidInputError
            If the points are invalid, or require a derivative that does not exist: after a `target_transform`, whose
            function is not normal in the target's units; with ``encode="auto"`` and columns that are not numbers; with
            a known function as mean (without gradients there is an answer).
        """
        if not hasattr(self, "posterior_"):
            flat = np.zeros((1, *np.shape(X)[-1:]))
            return before_fit(self, flat).posterior(X, include_noise=include_noise, variance=variance)
        if not self.target_transform_.is_identity:
            msg = (
                "posterior of GPRegressor needs target_transform='none': the function is normal in units of the "
                "transformed target only. Transform the target before the fit, or use predict and sample_functions."
            )
            raise InvalidInputError(msg)
        if fitted_encoder(self) is not None:
            msg = 'posterior of GPRegressor needs encode="strict": points are numbers, not rows of a table.'
            raise InvalidInputError(msg)
        if include_noise and not resolve_likelihood(self.likelihood).has_noise:
            msg = f"include_noise of posterior must be False: {self.likelihood} targets have no noise variance."
            raise InvalidInputError(msg)
        points, names = points_of(X, self.posterior_.n_inputs), getattr(self, "feature_names_in_", None)
        require_taken(self.posterior_.model.kernel, points.reshape(-1, points.shape[-1]), names)
        return JointPosterior(
            self.posterior_,
            self.scaling_,
            points,
            one_target=self._one_target,
            include_noise=include_noise,
            variance=variance,
            names=names,
        )

    @guarded()
    @checks_arguments
    def sample_functions(
        self, n_samples: Count = 1, random_state: RandomState = 0, *, hyperparameters: Hyperparameters = "learned"
    ) -> Callable[[Any], np.ndarray]:
        """Return posterior samples of the latent function, as a function that can be evaluated at any points.

        After a `target_transform` they are samples of ``E[y | f]``; see `predict`.

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

        Returns
        -------
        callable
            Function from points (m, d) to values (m, n_samples) or (m, n_targets, n_samples).
        """
        if hyperparameters == "laplace":
            return averaged(self).sample_functions(n_samples, random_state)
        if not hasattr(self, "posterior_"):
            return PriorFunctions(self, n_samples, random_state)
        generator = generator_from(random_state)
        functions = self.posterior_.sample_functions(n_samples, generator)

        @guarded()
        def evaluate(X: Any) -> np.ndarray:
            X, points = self._new_inputs(X)
            return self._samples_in_units(self._evaluated(functions, points, generator.clone_state()), X, points)

        return evaluate

    def _samples_in_units(self, values: torch.Tensor, X: np.ndarray, points: torch.Tensor) -> np.ndarray:
        """Return samples (m, t, s) of the latent function in the targets' units, as `_in_units` does."""
        found = self._in_units(values, X)
        if self.target_transform_.is_identity:
            return found
        noise = self._posterior_for(points).noise_at(points).double().cpu().numpy() * self.scaling_.units().variance
        return finite_prediction(
            function_values(self.target_transform_, found, noise.reshape((-1,) + (1,) * (found.ndim - 1)))
        )

    @guarded()
    @checks_arguments
    def sample_y(
        self,
        X: Any,
        n_samples: Count = 1,
        random_state: RandomState = 0,
        *,
        hyperparameters: Hyperparameters = "learned",
    ) -> np.ndarray:
        """Sample the latent function at given points; before `fit`, the samples are those of the prior.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        n_samples : int
            Number of samples.
        random_state : int or generator
            Seed of the samples.
        hyperparameters : {"learned", "laplace"}, default "learned"
            As for `sample_functions`.

        Returns
        -------
        ndarray of shape (m, n_samples) or (m, n_targets, n_samples)
            Joint samples over the points. With exact inference and up to 2,000 points, they use the full covariance.
        """
        if hyperparameters == "laplace":
            return averaged(self).sample_y(X, n_samples, random_state)
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).sample_y(X, n_samples, random_state)
        checked, points = self._new_inputs(X)
        generator = generator_from(random_state)
        if self.posterior_.covariance_is_cheap and points.shape[0] <= 2000:
            found = self._posterior_for(points).sample_at(points, n_samples, generator)
        else:
            found = self._evaluated(self.posterior_.sample_functions(n_samples, generator), points, generator)
        return self._samples_in_units(found, checked, points)

    @guarded()
    @checks_arguments
    def log_marginal_likelihood(self, random_state: RandomState = 0) -> Estimate:
        """Return the log marginal likelihood of the training targets, in the units of the standardized problem.

        After a `target_transform` these are the units of the transformed and standardized target. The density of the
        targets themselves has the Jacobian as well: add ``target_transform_.log_derivative(y).sum()`` less the number
        of rows times ``log(scaling_.y_scale[0])``.

        Returns
        -------
        Estimate
            Object with ``value`` and ``standard_error``, which is 0 for exact inference. For ComputationAware and
            SparseVariational, and for Student-t noise, the value is a lower bound of the log marginal likelihood.
        """
        check_is_fitted(self, "posterior_")
        found, model = self.posterior_.log_marginal_likelihood(generator_from(random_state)), self.posterior_.model
        if model.student is None:
            return found
        return Estimate(found.value + sites(model.student.weights(model.noise_variance), model.student.df), found[1])
