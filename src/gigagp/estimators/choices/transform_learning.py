"""Learn the transform of the target from the likelihood of a Gaussian process on a subset of the rows.

The density of targets y with a transform g is that of ``z = g(y)`` under the process times the Jacobian,
``log p(y) = log N(z; mean, H) + sum_i log g'(y_i)`` (Snelson, Rasmussen and Ghahramani 2003, eq. 6). A transform that
makes the targets alone normal would be another one: it is the errors that have to be normal. Steps on the
hyperparameters alternate with steps on the transform, in which the common factor of all covariances is profiled out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError, NonFiniteError, NotPositiveDefiniteError, unshown
from gigagp.estimators.estimator import Estimator
from gigagp.estimators.start import start_model
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.means import Mean
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling, centre_and_spread
from gigagp.model.target_transform import Log, NoTransform, Spline, TargetTransform, YeoJohnson
from gigagp.model.transformed_answers import mean_of
from gigagp.optimization import Auto, History
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import NoProgress, current
from gigagp.tables.encoding import scaled_inputs

#: Largest number of rows that a transform is learned from.
SUBSET_ROWS = 1000
#: Bytes for each pair of rows of the subset: matrices of a fit, and those of two fits that are compared.
_BYTES = 64
#: Knots of a spline, and their largest distance from the middle, in standard deviations of the normal scores.
_KNOTS, _REACH = 9, 2.33
#: Rows for each knot.
_ROWS_PER_KNOT = 20
#: Standard deviation of the difference of the log slopes of neighbouring pieces, a priori; and the largest log slope.
_ROUGHNESS, _STEEPEST = 1.0, 7.0
#: Steps on the transform, each followed by a step on the hyperparameters.
_ROUNDS = 2

#: A transform is taken by "auto" only if it gains this many nats on the subset, beyond half of the logarithm of the
#: number of rows for each of its parameters ...
_MARGIN = 10.0
#: ... if the leave-one-out log density gains this many standard errors ...
_STANDARD_ERRORS = 2.0
#: ... and if the leave-one-out error of the mean is at most this many times that without a transform.
_RMSE_FACTOR = 1.02
#: For "auto", at least this share of the rows must have different targets, and no target may be more frequent.
_DISTINCT, _MOST_FREQUENT = 0.1, 0.05
#: "auto" has no transform for fewer rows.
_FEWEST_ROWS = 50

_PARAMETERS = {"none": 0, "log": 0, "yeo-johnson": 1, "spline": _KNOTS - 2}


def require_transformable(
    estimator: Estimator, mean: Mean, likelihood: Likelihood, n_targets: int = 1, *, streams: bool = False
) -> None:
    """Refuse a target transform together with arguments that have no meaning after it.

    Raises
    ------
    InvalidInputError
        If rows are streamed, or there are several targets, another likelihood than the Gaussian, known variances of
        rows or a known mean.
    """
    name = estimator.target_transform
    if name == "none":
        return
    got = None
    if not isinstance(likelihood, Gaussian):
        got = f"the {likelihood.name} likelihood, whose targets are not transformed"
    elif n_targets > 1:
        got = f'{n_targets} targets that share one kernel. Use outputs="independent"'
    elif np.ndim(estimator.noise_variance):
        got = "the known noise variance of each row, which is in the units of the untransformed target"
    elif type(mean).offset is not Mean.offset:
        got = "a known mean function, which is in the units of the untransformed target"
    elif streams:
        got = "fit_table, which reads rows in chunks. Load the table and use fit, or transform its column"
    if got is not None:
        msg = f'target_transform of GPRegressor must be "none" with {got}; got {name!r}.'
        raise InvalidInputError(msg)


@dataclass(frozen=True)
class _Rows:
    """The rows of the subset, with what their fits share."""

    X: np.ndarray
    y: np.ndarray
    estimator: Estimator
    mean: Mean
    budget: int
    generator_state: torch.Tensor

    def fit(self, transform: TargetTransform, warm: Model | None) -> _Fit:
        """Return the fit with a transform; its hyperparameters start at those of another fit."""
        z = transform.forward(self.y)[:, None]
        scaling = Scaling.fit(self.X, z, self.estimator.standardize, is_scaled=scaled_inputs(self.estimator))
        model = start_model(self.estimator, self.mean, len(z), 1, noise_differs=True).standardized(scaling.units())
        X, Y = torch.from_numpy(scaling.inputs(self.X)), torch.from_numpy(scaling.targets(z))
        objective = ExactObjective(TrainingTable(X, Y, self.mean, self.budget).require_finite())
        if self.estimator.optimizer is not None:
            if warm is not None:
                model = model.replace({name: warm.parameters()[name] for name in model.learned_names()})
            generator = torch.Generator()
            generator.set_state(self.generator_state)
            with NoProgress() as silent, unshown():
                model = _OPTIMIZER.run(objective, model, Trace(History(), silent), generator)
            current().step()
        posterior = objective.posterior(model)
        # The precision of targets whose mean's coefficients are unknown, of which estimates follow by leaving one out
        precision = torch.cholesky_inverse(posterior.factor)
        if posterior.basis_solutions.shape[1]:
            solved = posterior.basis_solutions
            precision = precision - solved @ torch.linalg.pinv(objective.table.basis.T @ solved) @ solved.T
        value = posterior.log_marginal_likelihood(torch.Generator()).value  # exact: nothing is drawn
        return _Fit.of(transform, model, precision.numpy(), value, self.y, scaling)


@dataclass(frozen=True)
class _Fit:
    """A transform with the hyperparameters learned for it.

    Attributes
    ----------
    transform : TargetTransform
    model : Model
        In units of the standardized problem.
    precision : ndarray of shape (n, n)
        Inverse covariance of the standardized targets, the mean's coefficients integrated out.
    value : float
        Log density of all targets, in their own units.
    scores : ndarray of shape (n,)
        Log density of each target given all others, in its own units.
    rmse : float
        Error of the mean of each target given all others, as a share of the largest target.
    """

    transform: TargetTransform
    model: Model
    precision: np.ndarray
    value: float
    scores: np.ndarray
    rmse: float

    @classmethod
    def of(
        cls,
        transform: TargetTransform,
        model: Model,
        precision: np.ndarray,
        value: float,
        y: np.ndarray,
        scaling: Scaling,
    ) -> _Fit:
        z = transform.forward(y)
        jacobian = transform.log_derivative(y) - np.log(scaling.y_scale[0])
        standard = scaling.targets(z[:, None])[:, 0]
        # Rasmussen and Williams 2006, eqs. 5.10 to 5.12
        variance = 1 / np.maximum(np.diag(precision), np.finfo(float).tiny)
        error = (precision @ standard) * variance
        scores = -0.5 * (np.log(2 * np.pi * variance) + error**2 / variance) + jacobian
        centre = scaling.original((standard - error)[:, None])[:, 0]
        mean = centre if transform.is_identity else mean_of(transform, centre, variance * scaling.units().variance)
        unit = float(np.abs(y).max()) or 1.0  # squares of huge targets would leave the range of float64
        rmse = float(np.sqrt(np.mean(((mean - y) / unit) ** 2)))
        return cls(transform, model, precision, value + float(jacobian.sum()), scores, rmse)

    @property
    def penalised(self) -> float:
        """The log density less half of the logarithm of the number of rows for each parameter of the transform."""
        return self.value - 0.5 * _PARAMETERS[self.transform.kind] * float(np.log(len(self.scores)))


_OPTIMIZER = Auto(subset_sizes=(SUBSET_ROWS,), polish_steps=0)


def learn_transform(
    estimator: Estimator, X: np.ndarray, y: np.ndarray, mean: Mean, budget: int, generator: torch.Generator
) -> TargetTransform:
    """Return the transform that an estimator asks for, with its parameters.

    Parameters
    ----------
    estimator : Estimator
        Its kernel, mean, noise variance and ``standardize`` are used, and learned unless its optimizer is None.
    X : ndarray of shape (n, d)
        Inputs.
    y : ndarray of shape (n,)
        Targets.
    mean : Mean
    budget : int
        Memory budget in bytes.
    generator : torch.Generator
        Source of the subset.

    Raises
    ------
    InvalidInputError
        If a target is not positive and the transform is a logarithm, or the variance of the targets leaves the range of
        floating point and it is not.
    """
    name = estimator.target_transform
    if name == "none":
        return NoTransform()
    if name == "log":
        Log().check(y)
        return Log()
    with np.errstate(over="ignore", under="ignore"):
        variance = float(np.square(centre_and_spread(y[:, None])[1][0]))
    if not 0 < variance < np.inf:
        msg = (
            f"y must be in other units for target_transform={name!r}: the square of its standard deviation leaves the "
            "range of float64."
        )
        raise InvalidInputError(msg)
    if not y.min() < y.max():
        return _unlearned(name, y).noted("the targets are constant")
    most = min(SUBSET_ROWS, math.isqrt(budget // _BYTES))
    rows = torch.randperm(len(y), generator=generator)[:most].sort().values.numpy()
    subset = _Rows(X[rows], y[rows], estimator, mean, budget, generator.get_state())
    current().phase("choosing a transform of the target" if name == "auto" else "learning the transform", unit="fit")
    reason = few_values(subset.y) if name == "auto" else None
    if reason is not None:
        return NoTransform(f"auto: {reason}")
    plain = subset.fit(NoTransform(), None)
    if name != "auto":
        found = _learned(subset, plain, name)
        return found.transform.noted(_gain(found, plain))
    return _chosen(plain, list(_candidates(subset, plain, bool((y > 0).all()))))


def _unlearned(name: str, y: np.ndarray) -> TargetTransform:
    """Return the transform of a kind that leaves targets as they are."""
    centre, spread = centre_and_spread(y[:, None], medians=True)
    if name == "yeo-johnson":
        return YeoJohnson(power=1.0, centre=float(centre[0]), scale=float(spread[0]))
    ends = (float(centre[0] - spread[0]), float(centre[0] + spread[0]))
    return Spline(targets=ends, values=ends) if name == "spline" else NoTransform()


def few_values(y: np.ndarray) -> str | None:
    """Return why ``"auto"`` does not choose a distribution for targets like these; None if it does.

    A density of few values can be raised without limit, at the cost of everything else.
    """
    if len(y) < _FEWEST_ROWS:
        return f"fewer than {_FEWEST_ROWS} rows"
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < _DISTINCT * len(y):
        return f"only {len(counts)} different targets in {len(y):,} rows"
    if counts.max() > _MOST_FREQUENT * len(y):
        return f"one target in {100 * counts.max() / len(y):.0f} % of the rows"
    return None


def _candidates(rows: _Rows, plain: _Fit, positive: bool) -> Iterable[_Fit]:
    """Return the fits of all transforms, without those that leave the range of floating point."""
    for name in (*(("log",) if positive else ()), "yeo-johnson", "spline"):
        try:
            yield rows.fit(Log(), plain.model) if name == "log" else _learned(rows, plain, name)
        except (InvalidInputError, NonFiniteError, NotPositiveDefiniteError):
            continue


def _chosen(plain: _Fit, tried: list[_Fit]) -> TargetTransform:
    """Return the transform of the most likely fit that is surely better than none, with a note."""
    failings = {found.transform.kind: _failing(found, plain) for found in tried}
    sound = [found for found in tried if failings[found.transform.kind] is None]
    if sound:
        best = max(sound, key=lambda found: found.penalised)
        return best.transform.noted(f"auto: {_gain(best, plain)}")
    shown = "; ".join(f"{kind}: {failing}" for kind, failing in failings.items())
    return NoTransform(f"auto, on {len(plain.scores):,} rows; {shown or 'nothing else could be fitted'}")


def _failing(found: _Fit, plain: _Fit) -> str | None:
    """Return why a transform is not surely better than none, or None if it is."""
    gains, nats = found.scores - plain.scores, f"{found.value - plain.value:+.1f} nats"
    if found.penalised <= plain.value + _MARGIN:
        return f"{nats}, too few"
    if gains.mean() <= _STANDARD_ERRORS * gains.std() / np.sqrt(len(gains)):
        return f"{nats}, but leave-one-out densities within their error"
    if not found.rmse <= _RMSE_FACTOR * plain.rmse:
        return f"{nats}, but leave-one-out RMSE {100 * (found.rmse / plain.rmse - 1):+.1f} %"
    return None


def _gain(found: _Fit, plain: _Fit) -> str:
    return f"{found.value - plain.value:+.1f} nats over none on {len(plain.scores):,} rows"


def _learned(rows: _Rows, plain: _Fit, name: str) -> _Fit:
    """Return the fit of a transform with learned parameters, by steps on them and on the hyperparameters in turn."""
    found = plain
    family = _YeoJohnsonFamily(rows.y) if name == "yeo-johnson" else _SplineFamily(rows.y)
    best: _Fit | None = None
    for _ in range(_ROUNDS):
        found = rows.fit(family.improved(found.precision), found.model)
        if best is None or found.value > best.value:
            best = found
    assert best is not None
    return best


def _profile(y: np.ndarray, precision: np.ndarray, transform: TargetTransform) -> float:
    """Return the log density of targets up to a constant, at the best common factor of all covariances."""
    z = transform.forward(y)
    unit = np.abs(z).max()
    z = z / unit - (z / unit).mean()  # squares of huge targets would leave the range of float64
    square = float(z @ precision @ z)
    if not 0 < square < np.inf:
        return -np.inf
    return -len(y) * (0.5 * np.log(square) + np.log(unit)) + float(transform.log_derivative(y).sum())


class _YeoJohnsonFamily:
    """Yeo-Johnson transforms of given targets, about their median in units of their median absolute deviation."""

    def __init__(self, y: np.ndarray) -> None:
        self._y = y
        centre, spread = centre_and_spread(y[:, None], medians=True)
        self._at: Callable[..., YeoJohnson] = partial(YeoJohnson, centre=float(centre[0]), scale=float(spread[0]))

    def improved(self, precision: np.ndarray) -> TargetTransform:
        """Return the most likely transform for errors with this inverse covariance."""
        from scipy.optimize import minimize_scalar

        def loss(power: float) -> float:
            return -_profile(self._y, precision, self._at(power=power))

        found = minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded", options={"xatol": 1e-4})
        return self._at(power=min((0.0, 1.0, 2.0, float(found.x)), key=loss))


class _SplineFamily:
    """Monotone splines with knots at quantiles of given targets; their parameters are the logarithms of slopes."""

    def __init__(self, y: np.ndarray) -> None:
        from scipy.special import ndtr

        self._y = y
        count = int(np.clip(len(y) // _ROWS_PER_KNOT, 3, _KNOTS))
        knots = np.quantile(y, ndtr(np.linspace(-_REACH, _REACH, count)))
        least = 1e-3 * (knots[-1] - knots[0])
        kept = [knots[0]]
        for knot in knots[1:]:
            if knot > kept[-1] + least:
                kept.append(knot)
        self._knots = np.array(kept)
        self._slopes = np.zeros(len(kept) - 1)
        if len(kept) > 2:  # the start: pieces of the same length in the normal scores
            self._slopes = -np.log(np.diff(self._knots))
            self._slopes -= self._slopes.mean()

    def _at(self, slopes: np.ndarray) -> TargetTransform:
        x = self._knots
        if len(x) < 3:
            return _unlearned("spline", self._y)
        z = np.concatenate([[0.0], np.cumsum(np.exp(slopes) * np.diff(x))])
        z = x[0] + z * ((x[-1] - x[0]) / z[-1])  # the transformed target has about the target's size
        return Spline(targets=tuple(x.tolist()), values=tuple(z.tolist()))

    def improved(self, precision: np.ndarray) -> TargetTransform:
        """Return the most likely transform for errors with this inverse covariance, from the last one or none."""
        from scipy.optimize import minimize

        if len(self._knots) < 3:
            return self._at(self._slopes)

        def loss(slopes: np.ndarray) -> float:
            rough = 0.5 * float(np.square(np.diff(slopes)).sum()) / _ROUGHNESS**2
            level = 0.5 * float(slopes.mean()) ** 2  # only ratios of slopes matter
            return min(rough + level - _profile(self._y, precision, self._at(slopes)), 1e300)

        bounds = [(-_STEEPEST, _STEEPEST)] * len(self._slopes)
        starts = (np.clip(self._slopes, -_STEEPEST, _STEEPEST), np.zeros_like(self._slopes))
        found: list[Any] = [minimize(loss, start, method="L-BFGS-B", bounds=bounds) for start in starts]
        self._slopes = min(found, key=lambda one: one.fun).x
        return self._at(self._slopes)
