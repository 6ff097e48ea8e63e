"""Scores of predictions: of the mean (RMSE), and of mean and standard deviation together (NLL, CRPS, coverage).

Scores of numbers take a Gaussian prediction for each row, and scores of classes take probabilities. For predictions of
*measured* targets, the standard deviation must include the noise:
``gp.predict(X, return_std=True, include_noise=True)``.

References
----------
T. Gneiting, A. E. Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 102 (2007),
https://doi.org/10.1198/016214506000001437.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import Count, Fraction, checks_arguments
from gigagp.tables.intake import numbers

#: Probabilities of the intervals that the commands report.
INTERVALS = (0.5, 0.8, 0.95)


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """Return the root mean squared error of ``mean``, in the target's units.

    Parameters
    ----------
    y : array-like of shape (n,) or (n, n_targets)
        Measured values.
    mean : array-like of the same shape
        Predicted means.

    Raises
    ------
    InvalidInputError
        If the shapes differ, there is no row, or a value is not finite.
    """
    target, centre = _checked(y=y, mean=mean)
    return float(np.sqrt(np.mean((target - centre) ** 2)))


def gaussian_nll(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Return the mean negative log density of ``y`` under ``N(mean, std**2)``, in nats per row. Lower is better.

    It is unbounded above: a single confident mistake can dominate it. See `gaussian_crps` for a milder score.

    Parameters
    ----------
    y, mean, std : array-like of the same shape, (n,) or (n, n_targets)
        Measured values, predicted means and predicted standard deviations (above zero).

    Raises
    ------
    InvalidInputError
        If the shapes differ, there is no row, a value is not finite, or a standard deviation is not above zero.
    """
    target, centre, spread = _checked(y=y, mean=mean, std=std)
    z = (target - centre) / spread
    return float(np.mean(0.5 * z**2 + np.log(spread)) + 0.5 * math.log(2 * math.pi))


def gaussian_crps(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Return the mean continuous ranked probability score of ``N(mean, std**2)``, in the target's units.

    Lower is better. It generalises the absolute error, to which it converges as ``std`` goes to zero, and grows only
    linearly with an error. The closed form for a Gaussian is Gneiting and Raftery 2007, eq. 21, with the sign reversed.

    Parameters
    ----------
    y, mean, std : array-like of the same shape, (n,) or (n, n_targets)
        As for `gaussian_nll`.

    Raises
    ------
    InvalidInputError
        As for `gaussian_nll`.
    """
    from scipy.special import ndtr  # the normal distribution function; NumPy has none

    target, centre, spread = _checked(y=y, mean=mean, std=std)
    z = (target - centre) / spread
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return float(np.mean(spread * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))))


@checks_arguments
def coverage(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: Fraction = 0.95) -> float:
    """Return the share of rows that lie inside the central interval of probability ``level``.

    A calibrated model covers ``level`` of the rows. With n independent rows the standard error of the share is
    ``sqrt(level * (1 - level) / n)``: 2 points for the 95 % interval and 100 rows.

    Parameters
    ----------
    y, mean, std : array-like of the same shape, (n,) or (n, n_targets)
        As for `gaussian_nll`.
    level : float, default 0.95
        Probability of the interval, between 0 and 1.

    Raises
    ------
    InvalidInputError
        As for `gaussian_nll`, or if ``level`` is not between 0 and 1.
    """
    target, centre, spread = _checked(y=y, mean=mean, std=std)
    half_width = NormalDist().inv_cdf(0.5 + 0.5 * level)
    return float(np.mean(np.abs(target - centre) <= half_width * spread))


@checks_arguments
def coverage_error(y: ArrayLike, mean: ArrayLike, std: ArrayLike, level: Fraction = 0.95) -> float:
    """Return the absolute difference between `coverage` and ``level`` (Wenger et al. 2024, section S2.5).

    It does not distinguish intervals that are too wide from intervals that are too narrow; see `coverage` for that.

    Parameters
    ----------
    y, mean, std, level
        As for `coverage`.
    """
    return abs(coverage(y, mean, std, level) - level)


def _checked(**arguments: ArrayLike) -> tuple[np.ndarray, ...]:
    """Return the arguments as finite float64 arrays of the same shape; `std` must be positive."""
    arrays: list[np.ndarray] = []
    for name, value in arguments.items():
        array = numbers(value, name, finite=False)
        if array.size == 0 or array.ndim not in (1, 2):
            msg = f"{name} must have shape (n,) or (n, n_targets) with n at least 1; got shape {array.shape}."
            raise InvalidInputError(msg)
        if arrays and array.shape != arrays[0].shape:
            raise InvalidInputError(f"{name} must have the shape of y, {arrays[0].shape}; got {array.shape}.")
        _refuse(name, array, ~np.isfinite(array), "finite")
        if name == "std":
            _refuse(name, array, array <= 0, "above zero (was the noise left out, or the model exact there?)")
        arrays.append(array)
    return tuple(arrays)


def _refuse(name: str, array: np.ndarray, bad: np.ndarray, rule: str) -> None:
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        msg = f"{name} must be {rule}; got {array[bad][0]} in row {row + 1} ({int(bad.sum())} such values)."
        raise InvalidInputError(msg)


def log_loss(codes: np.ndarray, probability: np.ndarray) -> float:
    """Return the mean negative log probability of the true classes, in nats per row.

    Parameters
    ----------
    codes : ndarray of shape (n,), int
        Column indices of the true classes.
    probability : ndarray of shape (n, n_classes)
        Predicted probabilities.
    """
    _check_classes(codes, probability)
    chosen = probability[np.arange(len(codes)), codes]
    return float(-np.mean(np.log(np.maximum(chosen, np.finfo(float).tiny))))


@checks_arguments
def calibration_error(codes: np.ndarray, probability: np.ndarray, n_bins: Count = 10) -> float:
    """Return the expected calibration error: the mean gap between confidence and accuracy, over bins of confidence.

    It is not zero even for perfect probabilities if there are finitely many rows: the gap of a bin with k rows has a
    standard error of up to ``0.5 / sqrt(k)``.

    Parameters
    ----------
    codes : ndarray of shape (n,), int
        Column indices of the true classes.
    probability : ndarray of shape (n, n_classes)
        Predicted probabilities.
    n_bins : int, default 10
        Number of bins of equal width, from the lowest possible confidence (one over the number of classes) to 1.

    References
    ----------
    Guo et al. 2017, https://proceedings.mlr.press/v70/guo17a.html, eq. 3.
    """
    _check_classes(codes, probability)
    confidence, right = probability.max(1), probability.argmax(1) == codes
    least = 1 / probability.shape[1]
    bins = np.clip(((confidence - least) / (1 - least) * n_bins).astype(int), 0, n_bins - 1)
    counts = np.bincount(bins, minlength=n_bins)
    gaps = np.bincount(bins, right - confidence, minlength=n_bins)
    return float(np.abs(gaps).sum() / counts.sum())


def _check_classes(codes: np.ndarray, probability: np.ndarray) -> None:
    sound = isinstance(codes, np.ndarray) and isinstance(probability, np.ndarray) and probability.ndim == 2
    sound = sound and codes.shape == probability.shape[:1] and len(codes) > 0 and codes.dtype.kind in "iu"
    sound = sound and bool(np.min(codes) >= 0 and np.max(codes) < probability.shape[1])
    if not sound:
        raise InvalidInputError(
            "codes must be column indices of classes, integers of shape (n,), and probability of shape (n, n_classes), "
            f"n at least 1; got shapes {np.shape(codes)} and {np.shape(probability)}."
        )
