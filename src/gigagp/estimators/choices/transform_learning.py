"""Learn the transform of the target from the likelihood of a Gaussian process on a subset of the rows.

The density of targets y with a transform g is that of ``z = g(y)`` under the process times the Jacobian,
``log p(y) = log N(z; mean, H) + sum_i log g'(y_i)`` (Snelson, Rasmussen and Ghahramani 2003, eq. 6). A transform that
makes the targets alone normal would be another one: it is the errors that have to be normal. Steps on the
hyperparameters alternate with steps on the transform, in which the common factor of all covariances is profiled out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from gigagp.errors import UNUSABLE, InvalidInputError
from gigagp.estimators.arguments import Arguments, Problem
from gigagp.estimators.choices.trials import Trial, decide, few_values, learned, n_learned
from gigagp.inference.contract.objective import ExactObjective
from gigagp.model.model import Model
from gigagp.model.scaling import Scaling, centre_and_spread
from gigagp.model.target_transform import Log, NoTransform, Spline, TargetTransform, YeoJohnson
from gigagp.model.transformed_answers import mean_of
from gigagp.runtime.progress import current

#: Knots of a spline, and their largest distance from the middle, in standard deviations of the normal scores.
_KNOTS, _REACH = 9, 2.33
#: Rows for each knot.
_ROWS_PER_KNOT = 20
#: Standard deviation of the difference of the log slopes of neighbouring pieces, a priori; and the largest log slope.
_ROUGHNESS, _STEEPEST = 1.0, 7.0
#: Steps on the transform, each followed by a step on the hyperparameters.
_ROUNDS = 2

#: A transform is taken by "auto" only if the leave-one-out error of the mean is at most this many times that without.
_RMSE_FACTOR = 1.02
_PARAMETERS = {"none": 0, "log": 0, "yeo-johnson": 1, "spline": _KNOTS - 2}


@dataclass(frozen=True)
class _Rows:
    """The rows of the subset, with what their fits share."""

    X: np.ndarray
    y: np.ndarray
    arguments: Arguments
    generator_state: torch.Tensor

    def fit(self, transform: TargetTransform, warm: Model | None) -> _Fit:
        """Return the fit with a transform; its hyperparameters start at those of another fit."""
        problem = Problem.of(self.arguments, self.X, transform.forward(self.y))
        objective, model = ExactObjective(problem.table()), problem.model
        if self.arguments.optimizer is not None:
            if warm is not None:
                model = model.replace({name: warm.parameters()[name] for name in model.learned_names()})
            generator = torch.Generator()
            generator.set_state(self.generator_state)
            model = learned(objective, model, None, generator)
            current().step()
        posterior = objective.posterior(model)
        # The precision of targets whose mean's coefficients are unknown, of which estimates follow by leaving one out
        precision = torch.cholesky_inverse(posterior.factor)
        if posterior.basis_solutions.shape[1]:
            solved = posterior.basis_solutions
            precision = precision - solved @ torch.linalg.pinv(objective.table.basis.T @ solved) @ solved.T
        value = posterior.log_marginal_likelihood(torch.Generator()).value  # exact: nothing is drawn
        return _Fit.of(transform, model, precision.numpy(), value, self.y, problem.scaling)


@dataclass(frozen=True)
class _Fit(Trial):
    """A transform with the hyperparameters learned for it; value and densities are in the target's own units."""

    transform: TargetTransform
    model: Model  # in units of the standardized problem
    precision: np.ndarray  # inverse covariance of the standardized targets, the mean's coefficients integrated out
    rmse: float  # of the mean of each target given all others, as a share of the largest target

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
        return cls(value + float(jacobian.sum()), torch.from_numpy(scores), transform, model, precision, rmse)


def learn_transform(arguments: Arguments, X: np.ndarray, y: np.ndarray, generator: torch.Generator) -> TargetTransform:
    """Return the transform that an estimator asks for, with its parameters.

    Hyperparameters are learned unless the optimizer is None. Refuses targets that a logarithm does not allow, and those
    whose variance leaves the range of floating point.
    """
    name = arguments.estimator.target_transform
    if name == "log":
        Log().check(y)
        return Log()
    with np.errstate(over="ignore", under="ignore"):
        variance = float(np.square(centre_and_spread(y[:, None])[1][0]))
    if not 0 < variance < np.inf:
        raise InvalidInputError(
            f"y must be in other units for target_transform={name!r}: the square of its standard deviation leaves the "
            "range of float64."
        )
    if not y.min() < y.max():
        return _unlearned(name, y).noted("the targets are constant")
    rows = torch.randperm(len(y), generator=generator)[: n_learned(len(y), arguments.budget)].sort().values.numpy()
    exact = replace(arguments, dtype=torch.float64, device=torch.device("cpu"))
    subset = _Rows(X[rows], y[rows], exact, generator.get_state())
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


def _candidates(rows: _Rows, plain: _Fit, positive: bool) -> Iterable[_Fit]:
    """Return the fits of all transforms, without those that leave the range of floating point."""
    for name in (*(("log",) if positive else ()), "yeo-johnson", "spline"):
        try:
            yield rows.fit(Log(), plain.model) if name == "log" else _learned(rows, plain, name)
        except (InvalidInputError, *UNUSABLE):
            continue


def _chosen(plain: _Fit, tried: list[_Fit]) -> TargetTransform:
    """Return the transform of the most likely fit that is clearly better than none, with a note."""
    failings = {found.transform.kind: _failing(found, plain) for found in tried}
    best = decide(
        plain, tried, lambda found: failings[found.transform.kind], lambda found: found.value - _penalty(found)
    )
    if best is not plain:
        return best.transform.noted(f"auto: {_gain(best, plain)}")
    shown = "; ".join(f"{kind}: {failing}" for kind, failing in failings.items())
    return NoTransform(f"auto, on {len(plain.densities):,} rows; {shown or 'nothing else could be fitted'}")


def _failing(found: _Fit, plain: _Fit) -> str | None:
    """Return why a transform is not clearly better than none, or None if it is."""
    doubt = found.doubt(plain, _penalty(found))
    if doubt is None and not found.rmse <= _RMSE_FACTOR * plain.rmse:
        doubt = f"but the leave-one-out RMSE changes by {100 * (found.rmse / plain.rmse - 1):+.1f} %"
    return None if doubt is None else f"{found.value - plain.value:+.1f} nats, {doubt}"


def _penalty(found: _Fit) -> float:
    """Return half of the logarithm of the number of rows for each parameter of a transform, in nats."""
    return 0.5 * _PARAMETERS[found.transform.kind] * math.log(len(found.densities))


def _gain(found: _Fit, plain: _Fit) -> str:
    return f"{found.value - plain.value:+.1f} nats over none on {len(plain.densities):,} rows"


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
