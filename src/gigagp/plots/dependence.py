"""How predictions depend on one input: partial dependence with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from scipy.special import ndtri

from gigagp.errors import InvalidInputError
from gigagp.plots.axes import LEVELS, OPACITIES, dress, plain
from gigagp.plots.view import Axis, View
from gigagp.settings.fields import Count, CountOrZero, Range, checks_arguments
from gigagp.storage.figures import BLUE, GUIDE, axes_or_new, style

#: Posterior samples where covariances cost a solve each; the width of a band then has a standard error of 9 %.
_SAMPLES = 64
#: Points whose joint covariance one prediction computes.
_COVARIANCE_POINTS = 500
#: Samples of probabilities, whose bands are quantiles of samples.
_PROBABILITY_SAMPLES = 400


@dataclass(frozen=True)
class PartialDependence:
    """The mean of a function over rows, as one column takes values in all of them.

    Attributes
    ----------
    name : str
        Name of the column.
    values : ndarray of shape (r,)
        Numbers; datetime64 for dates; strings for categories.
    mean : ndarray of shape (r,)
        Posterior mean of the average. Of a classifier it is the average of the probabilities of a class.
    std : ndarray of shape (r,)
        Standard deviation of the average, which is smaller than that of the function in one row.
    n_rows : int
        Number of rows in the average; 0: one row of typical cells, because no rows are known.
    bands : ndarray of shape (r, 4)
        Quantiles of 2.5, 25, 75 and 97.5 % of the average.
    """

    name: str
    values: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n_rows: int
    bands: np.ndarray


@checks_arguments
def partial_dependence_values(
    model: Any,
    column: str | int,
    X: Any = None,
    *,
    target: CountOrZero = 0,
    n_rows: Count = 50,
    resolution: Annotated[int, Range(least=2, most=1000)] = 40,
    random_state: CountOrZero = 0,
) -> PartialDependence:
    """Return the mean of the function over rows, as one column takes values in all of them.

    It is ``mean_i f(x, z_i)`` where x is the column and ``z_i`` is the rest of row i (Friedman 2001, section 8.2). The
    function is random, and so is its mean: its variance is the mean of the posterior covariance over pairs of rows. It
    comes from the covariance itself where that is cheap, and else from 64 posterior samples. Of a classifier, the
    function is the probability of a class, and standard deviations and bands come from 400 samples. Where columns
    depend on each other, some of these rows cannot occur.

    Parameters
    ----------
    model : GPRegressor or GPClassifier
        A fitted model. Of a classifier, the probability of a class is averaged.
    column : str or int
        Name of the column, or its number from 0.
    X : array-like, optional
        Rows to average over. None: the training rows, or a row of typical cells if the model does not keep them.
    target : int, default 0
        Number of the target, from 0.
    n_rows : int, default 50
        Most rows to average over; of more, some are drawn at random.
    resolution : int, default 40
        Number of values of a column of numbers, over the range of the training rows.
    random_state : int, default 0
        Seed of the draws.

    Raises
    ------
    InvalidInputError
        If the model has no such column or target, or an argument is invalid.
    """
    view = View(model, target)
    axis = find_column(view, column)
    kept = np.zeros((0, 0)) if view.rows is None else view.rows.X
    rows = kept if X is None else view.inputs(X)
    count = min(len(rows), n_rows)
    if not count:
        rows = view.points([], np.zeros((1, 0)))
    elif count < len(rows):
        rows = rows[np.random.default_rng(random_state).choice(len(rows), count, replace=False)]
    values: Any = list(axis.categories) or np.linspace(*view.range_of(axis), resolution)
    encoded = axis.encoded(values)
    tables = np.repeat(rows[None], len(encoded), 0)
    tables[:, :, list(axis.places)] = encoded[:, None, :]
    mean, std, bands = _averages(view, tables, random_state)
    shown = np.array(values) if axis.categories else axis.shown(values)
    return PartialDependence(axis.name, shown, mean, std, count, bands)


def _averages(view: View, tables: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, standard deviation and bands of the function's average over each table, (r, n, d)."""
    if not view.adds_noise:
        flat = tables.reshape(-1, tables.shape[2])
        averages = view.samples(flat, _PROBABILITY_SAMPLES, seed).reshape(*tables.shape[:2], -1).mean(1)
        mean = view.mean(flat).reshape(tables.shape[:2]).mean(1)
        return mean, averages.std(1, ddof=1), np.quantile(averages, LEVELS, axis=1).T
    mean, std = _normal_averages(view, tables, seed)
    return mean, std, mean[:, None] + std[:, None] * ndtri(LEVELS)


def _normal_averages(view: View, tables: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r, n, d = tables.shape
    predictor = view.plain
    if predictor.posterior.covariance_is_cheap:
        means, variances = [], []
        # A prediction has its own cost, for each draw of a mixture, so one answers for several tables.
        for some in np.array_split(tables, -(-r * n // _COVARIANCE_POINTS)):
            mean, covariance = predictor.predict(some.reshape(-1, d), return_cov=True)
            covariance = covariance if covariance.ndim == 2 else covariance[:, :, view.place]
            means.append(view.of_target(mean).reshape(-1, n).mean(1))
            blocks = covariance.reshape(len(some), n, len(some), n).mean((1, 3))
            variances.append(blocks.diagonal())
        # Rounding can leave the mean of a covariance below zero where the function is known.
        return np.concatenate(means), np.sqrt(np.concatenate(variances).clip(min=0.0))
    flat = tables.reshape(r * n, d)
    mean = view.mean(flat).reshape(r, n).mean(1)
    samples = view.samples(flat, _SAMPLES, seed)
    return mean, samples.reshape(r, n, _SAMPLES).mean(1).std(1, ddof=1)


def find_column(view: View, column: str | int) -> Axis:
    """Return a column by its name, or its number from 0."""
    for axis in view.columns:
        if column in (axis.name, axis.number) and not isinstance(column, bool):
            return axis
    names = ", ".join(axis.name for axis in view.columns[:12])
    raise InvalidInputError(f"column of a picture must be one of {names}, or its number from 0; got {column!r}.")


def partial_dependence(
    model: Any,
    column: str | int,
    X: Any = None,
    *,
    ax: Any = None,
    label: str | None = None,
    **options: Any,
) -> Any:
    """Draw how the function depends on one column on average, with bands of 50 and 95 %.

    Parameters
    ----------
    model, column, X
        As for `partial_dependence_values`.
    ax : matplotlib axes, optional
        Where to draw. None: a new figure.
    label : str, optional
        Name of the target, with its unit.
    **options
        Further arguments of `partial_dependence_values`.

    Returns
    -------
    matplotlib axes

    Raises
    ------
    InvalidInputError
        If matplotlib is missing, or for an error of `partial_dependence_values`.
    """
    found = partial_dependence_values(model, column, X, **options)
    view = View(model, options.get("target", 0))
    with style():
        ax = axes_or_new(ax)
        draw_dependence(ax, view, find_column(view, column), found, label)
    return ax


def draw_dependence(ax: Any, view: View, axis: Axis, found: PartialDependence, label: str | None = None) -> None:
    """Draw values that have been computed; categories as points with error bars."""
    if axis.categories:
        places = np.arange(len(found.values))
        for k, thickness in enumerate((1.2, 4.0)):
            ax.vlines(places, found.bands[:, k], found.bands[:, 3 - k], color=BLUE, linewidth=thickness)
        ax.plot(places, found.mean, "o", color=BLUE, markersize=4)
        names = [plain(text if len(text) <= 14 else f"{text[:13]}…") for text in axis.categories]
        crowded = len(names) > 4 or max(map(len, names)) > 8
        ax.set_xticks(
            places, names, rotation=45 if crowded else 0, ha="right" if crowded else "center", fontsize="small"
        )
        ax.set_xlim(-0.5, len(names) - 0.5)
        ax.set_xlabel(plain(axis.name))
    else:
        for k, opacity in enumerate(OPACITIES):
            low, high = found.bands[:, k], found.bands[:, 3 - k]
            ax.fill_between(found.values, low, high, color=BLUE, alpha=opacity, linewidth=0)
        ax.plot(found.values, found.mean, color=BLUE, linewidth=1.4)
        dress(ax.xaxis, axis)
        _rug(ax, view, axis)
    ax.set_ylabel(plain(view.label(label)))
    if view.is_classifier:
        ax.set_ylim(-0.03, 1.03)


def _rug(ax: Any, view: View, axis: Axis) -> None:
    """Mark where the rows are, because a dependence is least certain where there are few."""
    if view.rows is None:
        return
    x = view.rows.X[:, axis.places[0]]
    chosen = np.quantile(x, np.linspace(0, 1, 60)) if len(x) > 60 else x
    kwargs = {"transform": ax.get_xaxis_transform(), "color": GUIDE, "linewidth": 0.6}
    ax.vlines(axis.shown(chosen), 0, 0.025, **kwargs)
