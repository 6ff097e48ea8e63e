"""Predictions, samples, quantiles and densities of a posterior, in the data's own units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.joint_posterior import JointPosterior, points_of
from gigagp.estimators.answers.left_out import LeaveOneOut, left_out_groups
from gigagp.estimators.answers.responses import Latent, Response, response_of
from gigagp.estimators.answers.target_posterior import TargetPosterior
from gigagp.estimators.guard import finite_prediction, guarded
from gigagp.inference.contract.left_out import LeftOut
from gigagp.inference.contract.open_points import OpenPosterior
from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.trend import needed_rows
from gigagp.kernels.stationary import require_taken
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Gaussian, Likelihood, StudentT
from gigagp.model.scaling import Scaling
from gigagp.model.student_noise import quantile, sites
from gigagp.model.target_transform import TargetTransform
from gigagp.runtime import threads
from gigagp.settings.random import RandomState, generator_from, standard_normal
from gigagp.tables import intake
from gigagp.tables.beside import Beside
from gigagp.tables.encoding import TableEncoder


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


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


def _answer(method: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Guard a method of a predictor, whose first argument may be points (..., d), and run small ones in one thread."""

    @wraps(method)
    def answer(*given: _Given.args, **named: _Given.kwargs) -> _Found:
        rest: Sequence[Any] = given
        n_points = math.prod(np.shape(rest[1])[:-1]) if len(rest) > 1 else 0
        with guarded(), threads.enough_for(rest[0].posterior.n_rows + n_points):
            return method(*given, **named)

    return answer


class Query(NamedTuple):
    """Points, and the posterior that answers there."""

    X: np.ndarray  # (m, d) in the data's own units, with typical values in missing cells
    points: Tensor  # (m, d) in the units of the posterior, with NaN where cells are missing
    posterior: Posterior | OpenPosterior
    beside: Beside = Beside()  # exposure of the points

    def moments(self, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return the mean (m, t) and the variance (m,) of the latent function, float64 on the CPU."""
        mean, variance = self.posterior.mean_and_variance(self.points, method=method)
        return mean.double().cpu(), variance.double().cpu()

    def noise(self) -> Tensor:
        """Return the noise variance of measurements, shape (m,), float64 on the CPU."""
        return self.posterior.noise_at(self.points).double().cpu()

    def white(self, kernel: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the variance of the kernel's white part, shape (m,), float64 on the CPU."""
        if isinstance(self.posterior, OpenPosterior):
            return self.posterior.averaged(kernel, self.points).double().cpu()
        return kernel(self.points).double().cpu()

    def samples_of(self, functions: SampleFunctions, generator: torch.Generator) -> Tensor:
        """Return samples (m, t, s)."""
        if isinstance(self.posterior, OpenPosterior):
            return self.posterior.samples_of(functions, self.points, generator)
        return functions(self.points)


@dataclass(frozen=True, eq=False)
class Predictor:
    """All that is needed to answer questions about a target: the posterior, and the way to and from its units.

    The answers of a fit, those of the prior and those of a mixture over the hyperparameters (`predictors`) differ in
    the posterior alone. Points are inputs of the model in the data's own units, float64 of shape (m, d): an estimator
    has checked and encoded them. The methods are those of `gigagp.GPRegressor`, which documents them.
    """

    posterior: Posterior
    scaling: Scaling
    transform: TargetTransform  # before the scaling
    likelihood: Likelihood  # with its learned parameters
    one_target: bool  # whether answers have no axis of the targets
    encoder: TableEncoder | None = None  # without one, no cell is missing
    names: Sequence[str] | None = None  # of the inputs, for messages

    @_answer
    def predict(
        self,
        X: np.ndarray,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        include_noise: bool = False,
        variance: VarianceMethod = "auto",
        return_parts: bool = False,
        exposure: Any = None,
    ) -> Any:
        """Return the mean of the target, with its standard deviation, its covariance, or parts of the deviation."""
        response = self._response
        if return_parts and response is not None:
            response.refuse_parts()
        at = self._at(X, exposure)
        if response is None:
            found = self._function(at, return_std, return_cov, include_noise, variance)
        else:
            found = self._target(at, response, return_std, return_cov, include_noise, variance)
        if not return_parts:
            return found
        parts = UncertaintyParts(*(self._spread(part) for part in at.posterior.variance_parts(at.points)))
        return (*(found if isinstance(found, tuple) else (found,)), parts)

    @_answer
    def predict_latent(
        self,
        X: np.ndarray,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        variance: VarianceMethod = "auto",
    ) -> Any:
        """Return the mean of the latent function, with its standard deviation or its covariance."""
        return self._function(self._at(X), return_std, return_cov, False, variance)

    @_answer
    def joint(
        self, X: Any, *, include_noise: bool = False, variance: VarianceMethod = "auto"
    ) -> JointPosterior | TargetPosterior:
        """Return the joint distribution at batches of points (..., q, d), differentiable in the points."""
        response = self._response
        if response is not None:
            response.require_joint()
        if self.encoder is not None:
            msg = (
                'posterior of GPRegressor needs encode="strict" and no panel: points are numbers, not rows of a table.'
            )
            raise InvalidInputError(msg)
        points = points_of(X, self.posterior.n_inputs)
        require_taken(self.posterior.model.kernel, points.reshape(-1, points.shape[-1]), self.names)
        found = JointPosterior(
            self.posterior,
            self.scaling,
            points,
            one_target=self.one_target,
            include_noise=include_noise and response is None,
            variance=variance,
            names=self.names,
        )
        return found if response is None else response.joint(found, include_noise=include_noise)

    @_answer
    def sample_functions(
        self, n_samples: int, random_state: RandomState = 0, *, latent: bool = False
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return samples of the function, or of the latent one, as a function of points."""
        generator = generator_from(random_state)
        functions = self.posterior.sample_functions(n_samples, generator)

        @guarded()
        def evaluate(X: np.ndarray) -> np.ndarray:
            at = self._at(X)
            found = at.samples_of(functions, generator.clone_state())
            return self._in_units(found, at.X) if latent else self._samples_in_units(found, at)

        return evaluate

    @_answer
    def sample_y(
        self,
        X: np.ndarray,
        n_samples: int = 1,
        random_state: RandomState = 0,
        *,
        include_noise: bool = False,
        exposure: Any = None,
    ) -> np.ndarray:
        """Return joint samples of the function at points, or measurements."""
        at = self._at(X, exposure)
        generator = generator_from(random_state)
        if self.posterior.covariance_is_cheap and len(at.points) <= 2000:
            found = at.posterior.sample_at(at.points, n_samples, generator)
        else:
            found = at.samples_of(self.posterior.sample_functions(n_samples, generator), generator)
        return self._measured(found, at, generator) if include_noise else self._samples_in_units(found, at)

    @_answer
    def predict_quantile(
        self, X: np.ndarray, levels: np.ndarray, *, include_noise: bool = True, exposure: Any = None
    ) -> np.ndarray:
        """Return quantiles of a measurement or of the function, with a last axis for several probabilities."""
        from scipy.special import ndtri

        likelihood, response = self.likelihood, self._response
        is_normal = isinstance(likelihood, Gaussian) or not include_noise
        at = self._at(X, exposure)
        each: list[float] = levels.reshape(-1).tolist()
        if response is not None:
            found = response.quantiles(self._latent(at, response), each, include_noise=include_noise)
            found = self._without_axis(found)
        elif not isinstance(at.posterior, OpenPosterior) and at.posterior.is_mixture:
            marginals = at.posterior.marginals(at.points, include_noise=include_noise)
            found = self._levels_in_units([marginals.quantile(level) for level in each], at)
        elif include_noise and isinstance(likelihood, StudentT):  # of the class itself, as checked above
            mean, normal, noise = self._student_parts(at)
            none, scale = torch.zeros_like(normal), likelihood.squared_scale(noise)
            moved = [quantile(level, none, normal, likelihood.degrees, scale)[:, None] for level in each]
            found = self._levels_in_units([mean + one for one in moved], at)
        elif not is_normal:
            (mean, variance), noise = at.moments(), at.noise()
            parts = mean, variance.sqrt()[:, None], noise[:, None]
            found = self._levels_in_units([likelihood.target_quantile(level, *parts) for level in each], at)
        else:
            mean, variance = at.posterior.mean_and_variance(at.points)
            variance = variance + at.posterior.noise_at(at.points) if include_noise else variance
            found = self._in_units(mean, at.X)[..., None] + self._spread(variance)[..., None] * ndtri(np.array(each))
        return finite_prediction(found if levels.ndim else found[..., 0])

    @_answer
    def predictive_log_density(self, X: np.ndarray, y: Any, beside: Beside | None = None) -> np.ndarray:
        """Return the log density of measurements at points, in nats; ``beside`` is what else is known of them."""
        at = self._at(X)
        beside = at.beside if beside is None else beside
        at = at._replace(beside=beside)
        y = intake.targets(y, len(at.X))
        given = y if y.ndim == 2 else y[:, None]
        if given.shape[1] != self.posterior.n_targets:
            msg = f"y must have {self.posterior.n_targets} target(s), as in the fit; got {given.shape[1]}."
            raise InvalidInputError(msg)
        response = self._response
        self.transform.check(given)
        if response is not None:
            found = response.log_density(given, self._latent(at, response), beside.limits)
            return finite_prediction(found).reshape(y.shape)
        offset = self.posterior.model.mean.offset(at.X)[:, None]
        targets = torch.from_numpy(self.scaling.targets(given - offset))
        if beside.limits is not None:
            limits = torch.from_numpy(self.scaling.targets(beside.limits.numpy() - offset))
            targets = replace(beside, limits=limits).given(self.likelihood, targets)
        self.likelihood.check_targets(targets)
        if not isinstance(at.posterior, OpenPosterior) and at.posterior.is_mixture:
            marginals = at.posterior.marginals(at.points, include_noise=True)
            logs = marginals.log_density(targets.to(at.points)).double().cpu()
        else:
            is_mixed = isinstance(self.likelihood, StudentT) and self.likelihood.is_scale_mixture
            mean, variance, noise = self._student_parts(at) if is_mixed else (*at.moments(), at.noise())
            logs = self.likelihood.predictive_log_density(targets, mean, variance.sqrt()[:, None], noise[:, None])
        return finite_prediction((logs.numpy() - self._log_units(beside)).reshape(y.shape))

    @_answer
    def log_marginal_likelihood(self, random_state: RandomState = 0, *, standardized: bool = False) -> Estimate:
        """Return the log density of the targets of the fit, in nats."""
        posterior, model = self.posterior, self.posterior.model
        found = posterior.log_marginal_likelihood(generator_from(random_state))
        value = found.value
        if model.student is not None:
            value += sites(model.student.weights(model.noise_variance), model.student.df)
        if standardized:
            return Estimate(value, found.standard_error)
        jacobian = self.transform.log_jacobian
        if jacobian is None:
            raise InvalidInputError(
                "standardized of log_marginal_likelihood must be True for this model: its file is of a version that "
                "did not keep the Jacobian of the target_transform. Or fit again."
            )
        n_densities = posterior.n_rows
        if isinstance(posterior, RowsPosterior) and (limits := posterior.table.beside.limits) is not None:
            n_densities = int((limits[:, 0] == limits[:, 1]).sum())  # others have probabilities, which have no units
        units = n_densities * float(np.log(self.scaling.y_scale).sum())
        return Estimate(value + jacobian - units, found.standard_error)

    @_answer
    def leave_one_out(self, groups: np.ndarray | None = None) -> LeaveOneOut:
        """Return the training rows as they are predicted from all others, or from all others but those of a group.

        ``groups`` has the number of the group of each row, shape (n,).
        """
        posterior = self.posterior
        if groups is not None:
            return self._in_units_of_rows(left_out_groups(posterior, groups))
        found, moments = posterior.left_out(), posterior.left_out_latent(self.likelihood)
        if (found is None and moments is None) or not isinstance(posterior, RowsPosterior):
            raise InvalidInputError(
                "leave_one_out of GPRegressor needs inference.Exact, Iterative or Vecchia, and all training rows; "
                "for targets that are not Gaussian, Vecchia and at most 1,000 rows. This is a "
                f"{posterior.kind} posterior of {posterior.n_rows:,} rows."
            )
        alone = needed_rows(posterior.table.basis)
        if len(alone):
            raise InvalidInputError(
                "leave_one_out of GPRegressor needs coefficients of the mean that all other rows determine. "
                f"Without row {int(alone[0])} (counted from 0) one of them is unknown; there are {len(alone)} such "
                "row(s). An input may be zero everywhere else. Fit with mean='constant', or without these rows."
            )
        if found is None:
            assert moments is not None
            return self._left_out_of(posterior, *(one.cpu() for one in moments))
        return self._in_units_of_rows(found)

    def _in_units_of_rows(self, found: LeftOut) -> LeaveOneOut:
        """Return left-out rows in the units of the target."""
        posterior, scaling, response = self.posterior, self.scaling, self._response
        assert isinstance(posterior, RowsPosterior)
        found = found.of_student(posterior.table.Y, posterior.model)
        X = scaling.original_inputs(posterior.X.double().cpu().numpy())
        if response is None:
            mean, std = self._in_units(found.mean, X), self._spread(found.variance)
            density = found.log_density.cpu().numpy() - np.log(scaling.y_scale)
        else:
            latent = Latent(found.mean.double().cpu(), found.variance.double().cpu(), torch.zeros(len(X)).double())
            mean, _, whole = response.moments(latent)
            y = scaling.original(posterior.table.Y.double().cpu().numpy())
            density = response.log_density(self.transform.inverse(y), latent)
            mean, std = self._without_axis(mean), self._without_axis(np.sqrt(whole))
        relative_error = 0.5 * found.relative_error.cpu().numpy()
        error = std * relative_error.reshape((-1,) + (1,) * (std.ndim - 1))
        return LeaveOneOut(mean, std, self._without_axis(density), error)

    def _left_out_of(self, posterior: RowsPosterior, mean: Tensor, variance: Tensor) -> LeaveOneOut:
        """Return the rows of targets that are not Gaussian, from the latent function given all others."""
        scaling, beside, response = self.scaling, posterior.table.beside, self._response
        X = scaling.original_inputs(posterior.X.double().cpu().numpy())
        at = Query(X, posterior.X, posterior, beside)
        Y = posterior.table.Y.double().cpu()
        if response is None:
            noise = posterior.model.noise_of_rows(slice(None), posterior.X).double().cpu()
            whole, given = variance + noise, beside.given(self.likelihood, Y)
            logs = self.likelihood.predictive_log_density(given, mean, variance.sqrt()[:, None], noise[:, None])
            centre, std, density = self._in_units(mean, X), self._spread(whole), logs.numpy() - self._log_units(beside)
        else:
            latent = Latent(mean + beside.offset_of(mean), variance, self._noise_of(at, response))
            middle, _, of_target = response.moments(latent)
            density = response.log_density(scaling.original(Y.numpy()), latent, beside.limits)
            centre, std = self._without_axis(middle), self._without_axis(np.sqrt(of_target))
        return LeaveOneOut(centre, std, self._without_axis(density), np.zeros_like(std))

    # Points, and the way back to the data's units ---------------------------------------------------------------------

    def _at(self, X: np.ndarray, exposure: Any = None) -> Query:
        """Return points, with NaN where cells are missing, what answers there, and what is known beside."""
        beside = Beside.of(self.likelihood, len(X), exposure)
        return self._points_of(X)._replace(beside=beside)

    def _points_of(self, X: np.ndarray) -> Query:
        known = X if self.encoder is None else self.encoder.filled(X)
        require_taken(self.posterior.model.kernel, known, self.names)
        points = self._points(known)
        refusal = self.posterior.refusal(points, self.scaling, self.names)
        if refusal is not None:
            raise refusal
        if self.encoder is None or known is X:
            return Query(known, points, self.posterior)
        return Query(known, self._points(X), OpenPosterior(self.posterior, self._points(self.encoder.spread)))

    def _points(self, X: np.ndarray) -> Tensor:
        """Return inputs in the units of the posterior."""
        return torch.from_numpy(self.scaling.inputs(X)).to(dtype=self.posterior.dtype, device=self.posterior.device)

    @cached_property
    def _response(self) -> Response | None:
        """What leads from the latent function to the target; None where both are in the same units."""
        return response_of(self.scaling, self.transform, self.likelihood)

    def _latent(self, at: Query, response: Response, method: VarianceMethod = "auto") -> Latent:
        """Return the latent function at points, with the noise of measurements."""
        mean, variance = at.moments(method)
        return Latent(mean + at.beside.offset_of(mean), variance, self._noise_of(at, response))

    def _noise_of(self, at: Query, response: Response) -> Tensor:
        """Return the noise of measurements, or their numbers of trials, shape (m,)."""
        return response.noise(at.posterior, at.points) if at.beside.trials is None else at.beside.trials

    def _function(
        self, at: Query, return_std: bool, return_cov: bool, include_noise: bool, variance: VarianceMethod
    ) -> Any:
        """Return what `predict` does of the latent function, or of it with noise added."""
        posterior, points = at.posterior, at.points
        if not return_std and not return_cov:
            return self._in_units(posterior.mean(points), at.X)
        noise = posterior.noise_at(points) if include_noise else points.new_zeros(points.shape[0])
        if return_cov:
            covariance = posterior.covariance(points) + torch.diag(noise)
            array = self._without_axis(self.scaling.covariances(covariance.double().cpu().numpy()), 2)
            return self._in_units(posterior.mean(points), at.X), array
        mean, latent = posterior.mean_and_variance(points, method=variance)
        return self._in_units(mean, at.X), self._spread(latent + noise)

    def _target(
        self,
        at: Query,
        response: Response,
        return_std: bool,
        return_cov: bool,
        include_noise: bool,
        variance: VarianceMethod,
    ) -> Any:
        """Return what `predict` does where the target is in other units than the latent function."""
        if not return_cov:
            mean, of_mean, of_target = response.moments(self._latent(at, response, variance))
            if not return_std:
                return self._without_axis(mean)
            return self._without_axis(mean), self._without_axis(np.sqrt(of_target if include_noise else of_mean))
        given, centre = (one(at.points).double().cpu() for one in (at.posterior.covariance, at.posterior.mean))
        centre = centre + at.beside.offset_of(centre)
        latent = Latent(centre, given.diagonal().clamp_min(0), self._noise_of(at, response))
        mean, _, of_target = response.moments(latent)
        covariance = response.covariance(latent, given)
        if include_noise:
            each = np.arange(len(covariance))
            covariance[each, each] = of_target
        return self._without_axis(mean), self._without_axis(covariance, 2)

    def _levels_in_units(self, values: list[Tensor], at: Query) -> np.ndarray:
        """Return quantiles (m, t) at several levels in the targets' units, with a last axis for the levels."""
        none = torch.empty(len(at.X), self.posterior.n_targets, 0)
        return self._in_units(torch.stack(values, -1) if values else none, at.X)

    def _samples_in_units(self, values: Tensor, at: Query) -> np.ndarray:
        """Return samples (m, t, s) of the function in the targets' units, as `_in_units` does."""
        if self._response is None:
            return self._in_units(values, at.X)
        f = self._with_offset(values, at).numpy()
        return self._without_axis(self._response.values(f, self._noise_of(at, self._response)))

    def _with_offset(self, values: Tensor, at: Query) -> Tensor:
        """Return samples (m, t, s) of the latent function as the likelihood has them, float64 on the CPU."""
        f = values.double().cpu()
        return f + at.beside.offset_of(f[:, :, 0])[:, :, None] if f.shape[2] else f

    def _measured(self, values: Tensor, at: Query, generator: torch.Generator) -> np.ndarray:
        """Return a random measurement for each sample (m, t, s) of the latent function."""
        response, f = self._response, self._with_offset(values, at)
        if response is not None:
            return self._without_axis(response.draws(f.numpy(), self._noise_of(at, response), generator))
        white = at.white(self.posterior.model.kernel.white)[:, None, None]
        rest = at.noise()[:, None, None] - white
        f = f + white.sqrt() * standard_normal(len(f), f[0].numel(), generator=generator).reshape(f.shape)
        return self._in_units(self.likelihood.draw_targets(f, rest.clamp_min(0), generator), at.X)

    def _student_parts(self, at: Query) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean (m, t), the variance of all that is Gaussian, (m,), and that of Student-t noise, (m,)."""
        white, (mean, variance) = at.white(self.posterior.model.kernel.white), at.moments()
        return mean, variance + white, at.noise() - white

    def _in_units(self, values: Tensor, X: np.ndarray) -> np.ndarray:
        """Return means (m, t) or samples (m, t, s) in the targets' units, without the axis of a single target."""
        array = self.scaling.original(values.double().cpu().numpy())
        offset = self.posterior.model.mean.offset(X)
        return self._without_axis(array + offset.reshape((-1,) + (1,) * (array.ndim - 1)))

    def _log_units(self, beside: Beside) -> np.ndarray:
        """Return the logarithms of the units of densities, (t,) or (m, t)."""
        units = np.log(self.scaling.y_scale)
        if beside.limits is None:
            return units
        # Between limits that differ it is a probability, which has no unit.
        return units * (beside.limits[:, :1] == beside.limits[:, 1:]).cpu().numpy()

    def _spread(self, variance: Tensor) -> np.ndarray:
        """Return standard deviations in the targets' units, without the axis of a single target."""
        return self._without_axis(self.scaling.spreads(variance.sqrt().double().cpu().numpy()))

    def _without_axis(self, values: np.ndarray, axis: int = 1) -> np.ndarray:
        """Return finite answers without the axis of the targets, if the fit's targets had none."""
        values = finite_prediction(values)
        return np.moveaxis(values, axis, 0)[0] if self.one_target else values


def probabilities(q: Any) -> np.ndarray:
    """Return the probabilities of quantiles, shape () or (k,)."""
    levels = intake.numbers(q, "q")
    if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        msg = f"q of GPRegressor.predict_quantile must be one or several numbers between 0 and 1; got {q!r}."
        raise InvalidInputError(msg)
    return levels
