"""Predictions, samples and the likelihood of `GPRegressor`, in the data's own units."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.averaged import averaged
from gigagp.estimators.answers.joint_posterior import JointPosterior, points_of
from gigagp.estimators.answers.outputs import by_output, each_output
from gigagp.estimators.answers.responses import Latent, Response, response_of
from gigagp.estimators.answers.target_posterior import TargetPosterior
from gigagp.estimators.answers.unfitted import before_fit
from gigagp.estimators.guard import finite_prediction, guarded
from gigagp.inference.contract.open_points import OpenPosterior
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod
from gigagp.kernels.stationary import require_taken
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood, StudentT, resolve_likelihood
from gigagp.model.scaling import Scaling
from gigagp.model.student_noise import sites
from gigagp.model.target_transform import TargetTransform
from gigagp.settings.fields import checks_arguments
from gigagp.settings.random import RandomState, generator_from
from gigagp.tables.encoding import fitted_encoder, model_inputs

# Points of predictions in the units of a posterior, and the posterior that answers where cells are missing.


class QueryPoints:
    """The part of a fitted estimator that takes points.

    Attributes
    ----------
    posterior_ : Posterior
        Posterior in the units of the standardized problem.
    scaling_ : Scaling
        Transformation between the data's own units and those of the standardized problem.
    """

    posterior_: Posterior
    scaling_: Scaling

    def _new_inputs(self, X: Any) -> tuple[np.ndarray, torch.Tensor]:
        """Return checked points in the data's units, and in the posterior's, with NaN where cells are missing."""
        X = opened = model_inputs(self, X, reset=False, opens=True)
        encoder = fitted_encoder(self)
        if encoder is not None:
            X = encoder.filled(opened)
        names = getattr(self, "feature_names_in_", None)
        require_taken(self.posterior_.model.kernel, X, names)
        points = self._points(X)
        refusal = self.posterior_.refusal(points, self.scaling_, names)
        if refusal is not None:
            raise refusal
        return X, points if opened is X else self._points(opened)

    def _points(self, X: np.ndarray) -> torch.Tensor:
        """Return inputs in the units of the posterior."""
        posterior = self.posterior_
        return torch.from_numpy(self.scaling_.inputs(X)).to(dtype=posterior.dtype, device=posterior.device)

    def _posterior_for(self, points: torch.Tensor) -> Posterior | OpenPosterior:
        """Return the posterior that answers at points, of which some inputs may be NaN."""
        encoder = fitted_encoder(self)
        if encoder is None or not bool(points.isnan().any()):
            return self.posterior_
        return OpenPosterior(self.posterior_, self._points(encoder.spread))

    def _white_at(self, points: torch.Tensor) -> torch.Tensor:
        """Return the variance of the kernel's white part at points, of which some inputs may be NaN, shape (m,)."""
        posterior, white = self._posterior_for(points), self.posterior_.model.kernel.white
        found = posterior.averaged(white, points) if isinstance(posterior, OpenPosterior) else white(points)
        return found.double().cpu()

    def _evaluated(self, functions: SampleFunctions, points: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return samples (m, t, s) at points, of which some inputs may be NaN."""
        posterior = self._posterior_for(points)
        if isinstance(posterior, OpenPosterior):
            return posterior.samples_of(functions, points, generator)
        return functions(points)


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
    target_transform_ : TargetTransform
        Transform of the target, before the scaling.
    """

    target_transform_: TargetTransform
    likelihood: Any
    _one_target: bool
    _models: tuple[Any, ...] = ()  # of outputs that have a model each

    @each_output
    def likelihood_(self) -> Likelihood:
        """Likelihood of the fit; Student-t noise has the learned degrees of freedom, if they were learned."""
        check_is_fitted(self, "posterior_")
        student = self.posterior_.model.student
        return resolve_likelihood(self.likelihood) if student is None else StudentT(student.df)

    @each_output
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

    @property
    def _response(self) -> Response | None:
        """What leads from the latent function to the target; None where both are in the same units."""
        return response_of(self.scaling_, self.target_transform_, self.likelihood_)

    def _latent(self, response: Response, points: torch.Tensor, method: VarianceMethod = "auto") -> Latent:
        """Return the latent function at points of the model, with the noise of measurements."""
        posterior = self._posterior_for(points)
        mean, variance = (part.double().cpu() for part in posterior.mean_and_variance(points, method=method))
        return Latent(mean, variance, response.noise(posterior, points))

    def _predict_by(
        self,
        response: Response,
        points: torch.Tensor,
        return_std: bool,
        return_cov: bool,
        include_noise: bool,
        method: VarianceMethod,
    ) -> Any:
        """Return what `predict` does where the target is in other units than the latent function."""
        if not return_cov:
            mean, of_mean, of_target = response.moments(self._latent(response, points, method))
            if not return_std:
                return self._without_axis(mean)
            return self._without_axis(mean), self._without_axis(np.sqrt(of_target if include_noise else of_mean))
        posterior = self._posterior_for(points)
        given, centre = posterior.covariance(points).double().cpu(), posterior.mean(points).double().cpu()
        latent = Latent(centre, given.diagonal().clamp_min(0), response.noise(posterior, points))
        mean, _, of_target = response.moments(latent)
        covariance = response.covariance(latent, given)
        if include_noise:
            each = np.arange(len(covariance))
            covariance[each, each] = of_target
        return self._without_axis(mean), self._without_axis(covariance, 2)

    def _without_axis(self, values: np.ndarray, axis: int = 1) -> np.ndarray:
        """Return finite answers without the axis of the targets, if the fit's targets had none."""
        values = finite_prediction(values)
        return np.take(values, 0, axis) if self._one_target else values

    @guarded()
    @checks_arguments
    @by_output(axis=-1)
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
        """Predict the target: its mean, and how far this mean, or a measurement, may be off.

        The function that is predicted is ``E[y | f]``, the mean of measurements where the latent function f is known.
        With noise added to f, it is f itself. After a `target_transform`, and for counts and classes, it is in the
        target's units too: for ``likelihood="poisson"`` the rate ``exp(f)``, for ``"logistic"`` and ``"probit"``, whose
        targets are -1 and 1, the probability of 1 less that of -1. `predict_latent` has f.

        Before `fit` the predictions are those of the prior, for a single target: the kernel with its given values, in
        the units of X and y. A learned mean is then 0, and its uncertainty, which is infinite, is left out.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points, or with ``encode="auto"`` a table like that of the fit.
        return_std : bool, default False
            Whether to return the standard deviation of this function as well.
        return_cov : bool, default False
            Whether to return the full covariance as well; iterative inference solves a linear system for each point.
        include_noise : bool, default False
            Whether the standard deviation is that of a new measurement: with the noise variance and the kernel's
            white terms, or with the spread of counts around their rate.
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
            Mean of the target.
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
        _require_one_of(return_std, return_cov, "predict")
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
        response = self._response
        if return_parts and response is not None:
            response.refuse_parts()
        if return_parts:
            found = self.predict(X, return_std, return_cov, include_noise=include_noise, variance=variance)
            _, points = self._new_inputs(X)
            parts = (self._spread(part) for part in self._posterior_for(points).variance_parts(points))
            return (*(found if isinstance(found, tuple) else (found,)), UncertaintyParts(*parts))
        X, points = self._new_inputs(X)
        if response is not None:
            return self._predict_by(response, points, return_std, return_cov, include_noise, variance)
        return self._function(X, points, return_std, return_cov, include_noise, variance)

    @guarded()
    @checks_arguments
    @by_output(axis=-1)
    def predict_latent(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        variance: Literal["auto", "samples", "solve"] = "auto",
        hyperparameters: Hyperparameters = "learned",
    ) -> Any:
        """Predict the latent function f, whose posterior is normal or taken to be.

        With noise added to f, as for ``likelihood="gaussian"``, ``"laplace"`` and ``"student-t"``, this is `predict`.
        For ``"poisson"`` it is the log rate, for ``"logistic"`` the log-odds, for ``"probit"`` the argument of the
        normal distribution function, and after a `target_transform` the function behind ``g(y)``, in its units.

        Parameters
        ----------
        X, return_std, return_cov, variance, hyperparameters
            As for `predict`.

        Returns
        -------
        mean, std, cov
            As for `predict`, of f.

        Raises
        ------
        InvalidInputError, NonFiniteError, MemoryBudgetError
            As for `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor, inference
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> counts = np.random.default_rng(0).poisson(np.exp(1 + np.sin(X[:, 0])))
        >>> gp = GPRegressor(inference=inference.Vecchia(), likelihood="poisson").fit(X, counts)
        >>> f, std = gp.predict_latent(X, return_std=True)
        >>> bool(np.allclose(gp.predict(X), np.exp(f + std**2 / 2)))
        True
        """
        _require_one_of(return_std, return_cov, "predict_latent")
        if hyperparameters == "laplace":
            return averaged(self).predict_latent(X, return_std, return_cov, variance=variance)
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).predict_latent(X, return_std, return_cov, variance=variance)
        X, points = self._new_inputs(X)
        return self._function(X, points, return_std, return_cov, False, variance)

    def _function(
        self,
        X: np.ndarray,
        points: torch.Tensor,
        return_std: bool,
        return_cov: bool,
        include_noise: bool,
        variance: VarianceMethod,
    ) -> Any:
        """Return what `predict` does of the latent function, or of it with noise added."""
        posterior = self._posterior_for(points)
        if not return_std and not return_cov:
            return self._in_units(posterior.mean(points), X)
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
    @by_output()
    def posterior(
        self,
        X: Any,
        *,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
    ) -> JointPosterior | TargetPosterior:
        """Return the joint distribution of the function at batches of points, differentiable in the points.

        It is that of `predict`: for counts it is the distribution of the rate, which is not normal.

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
        JointPosterior or TargetPosterior, or JointOutputs where each of several outputs has a model
            Object with ``mean``, ``variance``, ``covariance``, ``rsample`` and ``log_prob``; of counts and classes
            without the last one.

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
        response = self._response
        if response is not None:
            response.require_joint()
        if fitted_encoder(self) is not None:
            msg = 'posterior of GPRegressor needs encode="strict": points are numbers, not rows of a table.'
            raise InvalidInputError(msg)
        points, names = points_of(X, self.posterior_.n_inputs), getattr(self, "feature_names_in_", None)
        require_taken(self.posterior_.model.kernel, points.reshape(-1, points.shape[-1]), names)
        found = JointPosterior(
            self.posterior_,
            self.scaling_,
            points,
            one_target=self._one_target,
            include_noise=include_noise and response is None,
            variance=variance,
            names=names,
        )
        return found if response is None else response.joint(found, include_noise=include_noise)

    @guarded()
    @checks_arguments
    @by_output()
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


def _require_one_of(return_std: bool, return_cov: bool, method: str) -> None:
    if return_std and return_cov:
        msg = f"return_std and return_cov of GPRegressor.{method} cannot both be True; the covariance has both."
        raise InvalidInputError(msg)
