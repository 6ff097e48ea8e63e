"""Averages of the target over blocks of points, with the covariances that points within and across blocks have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.correlated import CorrelatedPredictor
from gigagp.estimators.answers.predictor import Predictor
from gigagp.tables.beside import column
from gigagp.tables.blocks import shares_in_blocks

#: Points whose joint covariance is computed at once, where covariances across blocks are not asked for.
_BATCH_POINTS = 1000
#: Negative variances above this times the largest entry of the covariance of the points are rounding.
_ROUNDING = 1e-8

#: What gives the mean of the target at some of the points, (m, ...), or with True also the covariance: (m, m, ...), or
#: (m, ..., m, ...) across correlated targets.
Predict = Callable[[np.ndarray, bool], Any]


def averages(
    predictor: Predictor | CorrelatedPredictor,
    points: np.ndarray,
    blocks: Any,
    weights: Any,
    exposure: Any,
    *,
    return_std: bool,
    return_cov: bool,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Return the averages of each block in ascending order, and their standard deviations or their covariance.

    The arguments are those of `GPRegressor.predict_average`, with points as the predictor takes them.

    Averages are linear, so they are ``W m`` and ``W C W'`` for the mean m and the covariance C of the points, and the
    matrix W with the share of each point in each block. Without covariances across blocks some whole blocks at a time
    are enough.
    """
    n_points = len(points)
    over = None if exposure is None else column(exposure, n_points, "exposure")

    def predict(some: np.ndarray, with_covariance: bool) -> Any:
        given = None if over is None else over[some]
        return predictor.predict(points[some], False, with_covariance, exposure=given)

    labels = np.zeros(n_points, dtype=int) if blocks is None else blocks
    names, places, shares = shares_in_blocks(labels, weights, n_points, "GPRegressor.predict_average")
    n_blocks = len(names)
    if not (return_std or return_cov):
        values = predict(np.arange(n_points), False)
        found = np.zeros((n_blocks, *values.shape[1:]))
        np.add.at(found, places, (shares * values.T).T)
        return found
    if return_cov:
        return _of_some(predict, places, shares, n_blocks, np.arange(n_points))
    each = [
        _of_some(predict, places[some] - first, shares[some], last - first, some)
        for first, last, some in _batches(places[shares > 0], np.flatnonzero(shares), n_blocks)
    ]
    mean = np.concatenate([one for one, _ in each])
    return mean, np.concatenate([_deviations(covariance, one.shape) for one, covariance in each])


def _batches(places: np.ndarray, points: np.ndarray, n_blocks: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the first and the last of blocks next to each other that have few points together, and their points."""
    points = points[np.argsort(places, kind="stable")]
    ends = np.cumsum(np.bincount(places, minlength=n_blocks))
    first = begin = 0
    while first < n_blocks:
        last = max(first + 1, int(np.searchsorted(ends, begin + _BATCH_POINTS, side="right")))
        yield first, last, points[begin : ends[last - 1]]
        first, begin = last, ends[last - 1]


def _of_some(
    predict: Predict, places: np.ndarray, shares: np.ndarray, n_blocks: int, points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return averages (b, ...) and their covariance, with axes as that of the points has."""
    weights = np.zeros((n_blocks, len(points)))
    weights[places, np.arange(len(points))] = shares
    mean, covariance = predict(points, True)
    across = np.tensordot(weights, covariance, 1)
    other = mean.ndim if covariance.ndim == 2 * mean.ndim else 1
    return np.tensordot(weights, mean, 1), np.moveaxis(np.tensordot(across, weights, (other, 1)), -1, other)


def _deviations(covariance: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the standard deviations of averages of a shape from their covariance."""
    if covariance.ndim == 2 * len(shape):  # of one target, or across correlated ones
        size = int(np.prod(shape))
        variances = covariance.reshape(size, size).diagonal().reshape(shape)
    else:
        variances = np.moveaxis(covariance.diagonal(axis1=0, axis2=1), -1, 0)
    return spreads(variances, np.abs(covariance).max(initial=0.0))


def spreads(variances: np.ndarray, largest: np.ndarray | float) -> np.ndarray:
    """Return the standard deviations of averages, of points whose covariances have these largest entries.

    Rounding may leave a variance of zero a little below zero, in units of the largest entry.
    """
    if (variances < -_ROUNDING * largest).any():
        raise InvalidInputError(f"The variance of an average must not be negative; got {variances.min():.3g}.")
    return np.sqrt(variances.clip(min=0.0))
