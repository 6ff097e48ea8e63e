"""Quantiles and log densities of predictions, in the data's own units."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.answers import Hyperparameters
from gigagp.estimators.answers.averaged import averaged
from gigagp.estimators.answers.outputs import by_output
from gigagp.estimators.answers.responses import Latent
from gigagp.estimators.answers.sampled_answers import SampledAnswers
from gigagp.estimators.answers.unfitted import before_fit
from gigagp.estimators.guard import finite_prediction, guarded
from gigagp.inference.contract.open_points import OpenPosterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.trend import needed_rows
from gigagp.model.likelihoods import Gaussian, StudentT
from gigagp.model.student_noise import quantile
from gigagp.settings.fields import checks_arguments
from gigagp.tables import intake


class LeaveOneOut(NamedTuple):
    """The rows of a fit as they are predicted from all other rows, in the target's units.

    Attributes
    ----------
    mean : ndarray of shape (n,) or (n, n_targets)
        Mean of each measurement given all others.
    std : ndarray of the same shape
        Its standard deviation, with the noise.
    log_density : ndarray of the same shape
        Log density of the measurement in nats; minus its mean is the leave-one-out log score.
    standard_error : ndarray of the same shape
        Standard error of ``std``, which is 0 where nothing is estimated.
    """

    mean: np.ndarray
    std: np.ndarray
    log_density: np.ndarray
    standard_error: np.ndarray


class PredictiveDistribution(SampledAnswers):
    """Answers about the whole distribution of a measurement; before a fit, of the prior."""

    @guarded()
    @by_output()
    def leave_one_out(self) -> LeaveOneOut:
        """Predict each row of the fit from all others, to see how good predictions and their error bars are.

        Nothing is fitted again: the hyperparameters are those of all rows, and the coefficients of the mean are those
        of the other rows (Rasmussen and Williams 2006, section 5.4.2). Scores of a few rows are therefore a little too
        good. A measurement that repeats another one's inputs is predicted from that one.

        Exact inference takes the diagonal from its factor, and `inference.Vecchia` from its sparse factor.
        `inference.Iterative` estimates it from posterior samples and nearest neighbours; its means have the error of
        the solve too.

        Returns
        -------
        LeaveOneOut
            Means, standard deviations, log densities, and the standard errors of the deviations, in the order of the
            rows.

        Raises
        ------
        InvalidInputError
            If the inference method or the likelihood has no such answer, rows were left out of the fit, or a
            coefficient of the mean is not determined without some row.
        MemoryBudgetError, NonFiniteError
            As for `predict`.

        Examples
        --------
        >>> import numpy as np
        >>> from gigagp import GPRegressor
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> y = np.sin(X[:, 0])
        >>> y[20] += 1.0
        >>> left_out = GPRegressor().fit(X, y).leave_one_out()
        >>> int(np.argmax(np.abs(y - left_out.mean)))
        20
        """
        check_is_fitted(self, "posterior_")
        posterior, scaling, response = self.posterior_, self.scaling_, self._response
        found = posterior.left_out()
        if found is None or not isinstance(posterior, RowsPosterior):
            msg = (
                "leave_one_out of GPRegressor needs inference.Exact, Iterative or Vecchia with Gaussian noise, and all "
                f"rows of the fit; this is a {posterior.kind} posterior of {posterior.n_rows:,} rows."
            )
            raise InvalidInputError(msg)
        alone = needed_rows(posterior.table.basis)
        if len(alone):
            msg = (
                "leave_one_out of GPRegressor needs coefficients of the mean that every other row determines too; "
                f"row {int(alone[0])} (counted from 0) alone determines one of them, and there are {len(alone)} such "
                "row(s). An input may be zero everywhere else. Fit with mean='constant', or without these rows."
            )
            raise InvalidInputError(msg)
        found = found.of_student(posterior.table.Y, posterior.model)
        X = posterior.X.double().cpu().numpy() * scaling.x_scale + scaling.x_centre
        relative_error = 0.5 * found.relative_error.cpu().numpy()[:, None]
        if response is None:
            mean, std = self._in_units(found.mean, X), self._spread(found.variance)
            density = found.log_density.cpu().numpy() - np.log(scaling.y_scale)
            error = std * (relative_error[:, 0] if std.ndim == 1 else relative_error)
            return LeaveOneOut(mean, std, self._without_axis(density), error)
        latent = Latent(found.mean.double().cpu(), found.variance.double().cpu(), torch.zeros(len(X)).double())
        mean, _, whole = response.moments(latent)
        y = scaling.original(posterior.table.Y.double().cpu().numpy())
        density = response.log_density(self.target_transform_.inverse(y), latent)
        std = self._without_axis(np.sqrt(whole))
        error = std * relative_error[:, 0].reshape((-1,) + (1,) * (std.ndim - 1))
        return LeaveOneOut(self._without_axis(mean), std, self._without_axis(density), error)

    @guarded()
    @checks_arguments
    @by_output()
    def predict_quantile(
        self, X: Any, q: Any, *, include_noise: bool = True, hyperparameters: Hyperparameters = "learned"
    ) -> np.ndarray:
        """Return quantiles of the predictive distribution; 0.5 is the median.

        They are exact after a `target_transform` too, because it is increasing.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        q : float or array-like of shape (k,)
            Probabilities, between 0 and 1.
        include_noise : bool, default True
            Whether the quantiles are those of a new measurement, or else those of the function (see `predict`). Of
            counts they are whole numbers: the least count that is not exceeded with this probability.
        hyperparameters : {"learned", "laplace"}, default "learned"
            As for `predict`; ``"laplace"`` has the quantiles of the mixture, whose tails are heavier than normal ones.

        Returns
        -------
        ndarray of shape (m,) or (m, n_targets), or with a last axis of size k for several probabilities
            Quantiles in the target's units.

        Raises
        ------
        InvalidInputError
            If a probability is not between 0 and 1; or, with ``include_noise``, for Laplace noise, and where the noise
            variance of new rows is not known.
        NonFiniteError, MemoryBudgetError
            As for `predict`.
        """
        from scipy.special import ndtri

        levels = intake.numbers(q, "q")
        if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
            msg = f"q of GPRegressor.predict_quantile must be one or several numbers between 0 and 1; got {q!r}."
            raise InvalidInputError(msg)
        if hyperparameters == "laplace":
            return averaged(self).predict_quantile(X, q, include_noise=include_noise)
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).predict_quantile(X, q, include_noise=include_noise)
        likelihood, response = self.likelihood_, self._response
        has_quantiles = isinstance(likelihood, Gaussian) or likelihood.is_scale_mixture
        if response is None and include_noise and not has_quantiles:
            msg = (
                "include_noise of GPRegressor.predict_quantile must be False with the "
                f"{likelihood.name} likelihood: only quantiles of the latent function are available."
            )
            raise InvalidInputError(msg)
        checked, points = self._new_inputs(X)
        each: list[float] = levels.reshape(-1).tolist()
        posterior = self._posterior_for(points)
        if response is not None:
            found = response.quantiles(self._latent(response, points), each, include_noise=include_noise)
            found = self._without_axis(found)
        elif not isinstance(posterior, OpenPosterior) and posterior.is_mixture:
            marginals = posterior.marginals(points, include_noise=include_noise)
            values = [self._in_units(marginals.quantile(level), checked) for level in each]
            found = np.stack(values, -1)
        elif include_noise and isinstance(likelihood, StudentT):  # of the class itself, as checked above
            found = self._student_quantiles(points, checked, likelihood, each)
        else:
            mean, variance = posterior.mean_and_variance(points)
            noise = posterior.noise_at(points) if include_noise else torch.zeros_like(variance)
            centre, std = self._in_units(mean, checked), self._spread(variance + noise)
            found = centre[..., None] + std[..., None] * ndtri(np.array(each))
        return finite_prediction(found if levels.ndim else found[..., 0])

    def _student_quantiles(
        self, points: torch.Tensor, X: np.ndarray, likelihood: StudentT, levels: list[float]
    ) -> np.ndarray:
        """Return quantiles of measurements with Student-t noise in the targets' units, with a last axis for levels."""
        mean, variance, noise = self._student_parts(points)
        scale, zero = likelihood.squared_scale(noise), torch.zeros_like(variance)
        centre = self._in_units(mean, X)
        found = np.empty((*centre.shape, len(levels)))
        for k, level in enumerate(levels):
            moved = mean + quantile(level, zero, variance, likelihood.degrees, scale)[:, None]
            found[..., k] = self._in_units(moved, X)
        return found

    def _student_parts(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the mean (m, t), the variance of all that is Gaussian, (m,), and that of Student-t noise, (m,)."""
        posterior, white = self._posterior_for(points), self._white_at(points)
        mean, variance = (part.double().cpu() for part in posterior.mean_and_variance(points))
        return mean, variance + white, posterior.noise_at(points).double().cpu() - white

    @guarded()
    @checks_arguments
    @by_output()
    def predictive_log_density(self, X: Any, y: Any, *, hyperparameters: Hyperparameters = "learned") -> np.ndarray:
        """Return the log density of measurements at given points, in nats; its mean is the log score.

        It is a density in the target's own units: the Jacobian of a `target_transform` is included. For counts it is
        a log probability.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Points.
        y : array-like of shape (m,) or (m, n_targets)
            Measurements.
        hyperparameters : {"learned", "laplace"}, default "learned"
            As for `predict_quantile`.

        Returns
        -------
        ndarray of the shape of y

        Raises
        ------
        InvalidInputError
            If a measurement is not possible under the likelihood or the transform, or the noise of new rows is not
            known.
        NonFiniteError, MemoryBudgetError
            As for `predict`.
        """
        if hyperparameters == "laplace":
            return averaged(self).predictive_log_density(X, y)
        if not hasattr(self, "posterior_"):
            return before_fit(self, X).predictive_log_density(X, y)
        X, points = self._new_inputs(X)
        y = intake.targets(y, len(X))
        given = y if y.ndim == 2 else y[:, None]
        if given.shape[1] != self.posterior_.n_targets:
            msg = f"y must have {self.posterior_.n_targets} target(s), as in the fit; got {given.shape[1]}."
            raise InvalidInputError(msg)
        likelihood, response = self.likelihood_, self._response
        self.target_transform_.check(given)
        if response is not None:
            return finite_prediction(response.log_density(given, self._latent(response, points))).reshape(y.shape)
        offset = self.posterior_.model.mean.offset(X)[:, None]
        targets = torch.from_numpy(self.scaling_.targets(given - offset))
        likelihood.check_targets(targets)
        posterior = self._posterior_for(points)
        if not isinstance(posterior, OpenPosterior) and posterior.is_mixture:
            logs = posterior.marginals(points, include_noise=True).log_density(targets.to(points))
            return finite_prediction((logs.double().cpu().numpy() - np.log(self.scaling_.y_scale)).reshape(y.shape))
        if isinstance(likelihood, StudentT) and likelihood.is_scale_mixture:
            mean, variance, noise = self._student_parts(points)
            found = likelihood.predictive_log_density(targets, mean, variance.sqrt()[:, None], noise[:, None])
            return finite_prediction((found.numpy() - np.log(self.scaling_.y_scale)).reshape(y.shape))
        mean, variance = (part.double().cpu() for part in posterior.mean_and_variance(points))
        noise = posterior.noise_at(points).double().cpu()
        found = likelihood.predictive_log_density(targets, mean, variance.sqrt()[:, None], noise[:, None])
        return finite_prediction((found.numpy() - np.log(self.scaling_.y_scale)).reshape(y.shape))
