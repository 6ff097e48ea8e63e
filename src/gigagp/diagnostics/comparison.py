"""Comparison of models on a held-out part of a table, in equal times, beside simple methods."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from gigagp.errors import GigaGPError, InvalidInputError
from gigagp.estimators.metrics import coverage, gaussian_nll, rmse
from gigagp.inference import Grid, SparseVariational, Vecchia
from gigagp.model.likelihoods import resolve_likelihood
from gigagp.regression import GPRegressor
from gigagp.runtime.duration import in_words, resolve_duration
from gigagp.runtime.progress import Verbosity, meter_for
from gigagp.settings.fields import Fraction, Positive, checks_arguments
from gigagp.settings.random import RandomState, generator_from
from gigagp.storage.figures import check_plot, new_figure, save_figure
from gigagp.tables import intake
from gigagp.tables.beside import column, known_targets
from gigagp.tables.encoding import Encode, TableEncoder
from gigagp.tables.rows.held import rows_of

#: Inputs up to which grids and linear interpolation are compared, and rows up to which the latter is.
_FEW_INPUTS, _INTERPOLATED_ROWS = 3, 200_000
#: Largest number of held-out rows.
_MOST_HELD_OUT = 10_000
_NEIGHBORS = 10

#: From standardized training inputs and targets to a function that predicts.
_Learn = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


@dataclass(frozen=True)
class Compared:
    """One model's scores on the held-out rows, in the target's units.

    Attributes
    ----------
    name : str
    seconds : float
        Time of learning.
    rmse : float or None
        Root mean square error; None where the model failed.
    nll : float or None
        Mean negative log density in nats; None without a predicted standard deviation.
    coverage_95 : float or None
        Share of targets within the predicted intervals of 95 %.
    note : str
        What ran, or the error.
    """

    name: str
    seconds: float
    rmse: float | None = None
    nll: float | None = None
    coverage_95: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """The scores of all models.

    Attributes
    ----------
    models : tuple of Compared
        In the order in which they ran.
    best : str
        Name of the Gaussian process with the lowest negative log density.
    model : GPRegressor
        The best one, as fitted to the training part.
    n_rows, n_held_out : int
        Rows that were learned from, and rows that were predicted.
    y, mean, std : ndarray
        Held-out targets, and the best model's predictions of them.
    """

    models: tuple[Compared, ...]
    best: str
    model: GPRegressor
    n_rows: int
    n_held_out: int
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray

    def __str__(self) -> str:
        lines = [f"{self.n_rows:,} rows learned from, {self.n_held_out:,} held out; scores in the target's units"]
        lines.append(f"{'':24s}{'RMSE':>12s}{'NLL':>10s}{'in 95 %':>9s}{'time':>9s}")
        for one in self.models:
            scores = (_number(one.rmse, ".4g"), _number(one.nll, ".3f"), _number(one.coverage_95, ".3f"))
            mark = "-> " if one.name == self.best else "   "
            line = f"{mark}{one.name:21s}{scores[0]:>12s}{scores[1]:>10s}{scores[2]:>9s}{in_words(one.seconds):>9s}"
            lines.append(f"{line}  {one.note}".rstrip())
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot the models' errors, and the best model's predictions with their intervals against the targets.

        Parameters
        ----------
        path : str or path
            File of the plot: .png, .pdf or .svg.

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed or the extension is unknown.
        """
        check_plot(path)
        figure = new_figure(10, 4.2)
        errors, against = figure.subplots(1, 2)
        shown = sorted((one for one in self.models if one.rmse is not None), key=lambda one: one.rmse or 0.0)
        colours = ["tab:blue" if one.name == self.best else "0.7" for one in shown]
        errors.barh([one.name for one in shown], [one.rmse or 0.0 for one in shown], color=colours)
        errors.invert_yaxis()
        errors.set_xlabel("root mean square error of held-out rows")
        some = np.linspace(0, len(self.y) - 1, min(len(self.y), 400)).astype(int)
        against.errorbar(
            self.mean[some], self.y[some], xerr=1.96 * self.std[some], fmt=".", ms=3, lw=0.5, color="tab:blue"
        )
        ends = [float(self.y[some].min()), float(self.y[some].max())]
        against.plot(ends, ends, color="0.3", lw=1)
        against.set_xlabel(f"predicted by {self.best}, with 95 % intervals")
        against.set_ylabel("held-out target")
        save_figure(figure, path)


@checks_arguments
def compare(
    X: Any,
    y: Any,
    models: Mapping[str, GPRegressor] | None = None,
    *,
    time_budget: Positive | str = "1min",
    held_out: Fraction = 0.2,
    encode: Encode = "strict",
    random_state: RandomState = 0,
    verbose: Verbosity = "auto",
    exposure: Any = None,
) -> Comparison:
    """Fit several models in equal times, and score them on random held-out rows beside simple methods.

    When to use: to see what a Gaussian process brings on a table, and which inference brings most. The simple methods
    are the mean, linear regression, ten nearest neighbours, linear interpolation (up to three inputs) and
    scikit-learn's `HistGradientBoostingRegressor`. They run with their defaults, whatever time they take.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Inputs.
    y : array-like of shape (n,)
        Targets.
    models : mapping of str to GPRegressor, optional
        Models by name; they are not changed. Each is given the time budget. None: ``inference="auto"``, neighbours,
        inducing points and, up to three inputs, a grid; with an exposure, ``likelihood="auto"``.
    time_budget : float or str, default "1min"
        Time of each model, as in `GPRegressor`.
    held_out : float, default 0.2
        Share of the rows that is held out, at most 10,000 rows.
    encode : {"strict", "auto"}, default "strict"
        As in `GPRegressor`, for the default models. The simple methods take the same encoded columns.
    random_state : int, RandomState, Generator or None, default 0
        Seed of the held-out rows.
    verbose : {"auto", 0, 1, 2} or Meter, default "auto"
        As in `GPRegressor`, for one bar of all models.
    exposure : array-like of shape (n,), float or None, default None
        As in `GPRegressor.fit`, for models whose likelihoods take one. The simple methods learn targets over exposure.

    Returns
    -------
    Comparison
        Printed, it is a table; `Comparison.plot` draws it.

    Raises
    ------
    InvalidInputError
        If an argument or the data are invalid, or if no model could be fitted.
    """
    seconds = resolve_duration(time_budget)
    encoder = TableEncoder.fit(X) if encode == "auto" else None
    inputs = intake.inputs(X) if encoder is None else encoder.transform(X)
    targets = intake.targets(y, len(inputs))
    if targets.ndim != 1 or len(targets) < 10:
        raise InvalidInputError(f"compare needs at least 10 rows and one target; got y of shape {targets.shape}.")
    effort = None if exposure is None else column(exposure, len(targets), "exposure")
    order = np.random.default_rng(generator_from(random_state).initial_seed() % 2**63).permutation(len(targets))
    n_test = max(2, min(int(held_out * len(targets)), _MOST_HELD_OUT))
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    found: list[Compared] = []
    best: tuple[float, GPRegressor, np.ndarray, np.ndarray] | None = None
    best_name, truth = "", targets[test]
    chosen = _default_models(inputs.shape[1], encode, effort is not None) if models is None else models
    with meter_for(verbose, job=f"comparison of {len(chosen)} models") as meter:
        meter.phase("comparing", len(chosen), unit="model", then=0.0)
        for name, model in chosen.items():
            fitted = clone(model).set_params(time_budget=seconds)
            known, new = ({} if effort is None else {"exposure": effort[part]} for part in (train, test))
            learned = rows_of(X, train), targets[train], known
            excluded = _excluded(name, fitted, targets, effort)
            scored, mean, std = excluded or _fit(name, fitted, *learned, rows_of(X, test), truth, new)
            found.append(scored)
            if scored.nll is not None and (best is None or scored.nll < best[0]):
                best, best_name = (scored.nll, fitted, mean, std), name
            meter.step(model=name, seconds=scored.seconds)
    if best is None:
        msg = f"compare could fit none of its models: {'; '.join(f'{one.name}: {one.note}' for one in found)}"
        raise InvalidInputError(msg)
    effort = np.ones(len(targets)) if effort is None else effort
    for name, learn in _simple_methods(inputs.shape[1], len(train)).items():
        rates = targets[train] / effort[train]
        found.append(_run(name, learn, inputs[train], rates, inputs[test], truth, effort[test]))
    return Comparison(tuple(found), best_name, best[1], len(train), len(test), truth, best[2], best[3])


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _default_models(n_inputs: int, encode: Encode, has_exposure: bool) -> dict[str, GPRegressor]:
    if has_exposure:
        return {"auto": GPRegressor(likelihood="auto", encode=encode)}
    few = n_inputs <= _FEW_INPUTS
    found = {
        "auto": GPRegressor(encode=encode),
        "neighbors": GPRegressor(inference=Vecchia(30 if few else 60), encode=encode),
        "inducing points": GPRegressor(inference=SparseVariational(), encode=encode),
    }
    return found | ({"grid": GPRegressor(inference=Grid(), encode=encode)} if few else {})


def _excluded(
    name: str, model: GPRegressor, y: np.ndarray, effort: np.ndarray | None
) -> tuple[Compared, np.ndarray, np.ndarray] | None:
    """Return why a model is not fitted, where its likelihood excludes a row, before rows are left out; or None."""
    try:
        if model.likelihood != "auto":
            known_targets(resolve_likelihood(model.likelihood), y, len(y), effort)
    except InvalidInputError as error:
        return Compared(name, 0.0, note=str(error)), np.empty(0), np.empty(0)
    return None


def _fit(
    name: str,
    model: GPRegressor,
    X: Any,
    y: np.ndarray,
    known: dict[str, Any],
    X_test: Any,
    truth: np.ndarray,
    new: dict[str, Any],
) -> tuple[Compared, np.ndarray, np.ndarray]:
    """Return the scores of a Gaussian process and its predictions."""
    nothing = np.empty(0)
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, y, **known)
            seconds = time.perf_counter() - started
            mean, std = model.predict(X_test, return_std=True, include_noise=True, **new)
            if model.likelihood_.adds_noise:
                scores = gaussian_nll(truth, mean, std), coverage(truth, mean, std, 0.95)
            else:
                low, high = model.predict_quantile(X_test, [0.025, 0.975], **new).T
                inside = (low <= truth) & (truth <= high)
                scores = -float(model.predictive_log_density(X_test, truth, **new).mean()), float(inside.mean())
        except GigaGPError as error:
            return Compared(name, time.perf_counter() - started, note=str(error)), nothing, nothing
    ended = [model.likelihood_.name] if model.likelihood == "auto" else []
    ended += [model.inference_.label] if model.inference == "auto" else []
    ended += ["learning ended for lack of time"] if model.history_.interrupted == "time budget" else []
    ended += sorted({type(one.message).__name__ for one in caught})
    return Compared(name, seconds, rmse(truth, mean), *scores, note=", ".join(ended)), mean, std


def _run(
    name: str,
    learn: _Learn,
    X: np.ndarray,
    rates: np.ndarray,
    X_test: np.ndarray,
    truth: np.ndarray,
    effort: np.ndarray,
) -> Compared:
    """Return the scores of a simple method on standardized inputs, whose predictions are of one unit of effort."""
    centre, spread = X.mean(0), X.std(0)
    spread[spread == 0] = 1.0
    started = time.perf_counter()
    predict = learn((X - centre) / spread, rates)
    seconds = time.perf_counter() - started
    return Compared(name, seconds, rmse(truth, effort * predict((X_test - centre) / spread)))


def _simple_methods(n_inputs: int, n_rows: int) -> dict[str, _Learn]:
    """Return the simple methods by name."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.neighbors import KNeighborsRegressor

    def mean(X: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        return lambda points: np.full(len(points), y.mean())

    def of(make: Callable[[], Any]) -> _Learn:
        return lambda X, y: make().fit(X, y).predict

    found: dict[str, _Learn] = {
        "mean": mean,
        "linear regression": of(LinearRegression),
        "nearest neighbours": of(lambda: KNeighborsRegressor(min(_NEIGHBORS, n_rows), weights="distance")),
        "boosted trees": of(lambda: HistGradientBoostingRegressor(random_state=0)),
    }
    if n_inputs <= _FEW_INPUTS and n_rows <= _INTERPOLATED_ROWS:
        found["linear interpolation"] = _interpolate
    return found


def _interpolate(X: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return linear interpolation between rows, with the nearest row's target beyond them."""
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
    from scipy.spatial import QhullError

    places, inverse = np.unique(X, axis=0, return_inverse=True)
    counts = np.bincount(inverse.reshape(-1))
    means = np.bincount(inverse.reshape(-1), weights=y) / counts  # of rows at the same place
    if X.shape[1] == 1:
        return lambda points: np.interp(points[:, 0], places[:, 0], means)
    nearest = NearestNDInterpolator(places, means)
    try:
        linear = LinearNDInterpolator(places, means)
    except (QhullError, ValueError):  # all rows on a line
        return lambda points: np.asarray(nearest(points))

    def predict(points: np.ndarray) -> np.ndarray:
        values = np.asarray(linear(points))
        return np.where(np.isnan(values), nearest(points), values)

    return predict
