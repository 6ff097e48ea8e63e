"""Measurements beside their predictions: of test rows, or of each row of the fit from all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from gigagp.errors import InvalidInputError
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.model.likelihoods import Gaussian
from gigagp.plots.view import View
from gigagp.tables.beside import column, known_targets

#: Probabilities at which predictive distributions that are not normal are compared with measurements.
_LEVELS = np.concatenate([[0.005], np.linspace(0.025, 0.975, 39), [0.995]])


@dataclass(frozen=True)
class Predicted:
    """Measurements beside their predictions.

    Attributes
    ----------
    y, mean : ndarray of shape (n,)
        Measurements and predicted means, in the target's units.
    std : ndarray of shape (n,)
        Standard deviations of the predictions, with the noise.
    rank : ndarray of shape (n,)
        Probability that the prediction gave to values below the measurement; evenly distributed if it is calibrated.
    log_density : ndarray of shape (n,)
        Log density of the measurements, in nats.
    source : str
        What the rows are, in words.
    outside : float
        Share of the rows with an input outside of the range of the fit.
    """

    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    rank: np.ndarray
    log_density: np.ndarray
    source: str
    outside: float = 0.0

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.y)

    def share_inside(self, level: float) -> float:
        """Return the share of the measurements inside their central intervals of a probability."""
        return float(np.mean(np.abs(2 * self.rank - 1) <= level + 1e-12))


def predicted(model: Any, X: Any = None, y: Any = None, *, target: int = 0, exposure: Any = None) -> Predicted:
    """Return measurements beside their predictions.

    Parameters
    ----------
    model : GPRegressor
        A fitted model whose noise is part of its predictions.
    X, y : array-like, optional
        Test rows. None: the training rows, each predicted from all others (`GPRegressor.leave_one_out`).
    target : int, default 0
        Number of the target, from 0.
    exposure : array-like of shape (n,), float or None, default None
        That of the test rows, as in `GPRegressor.predict`.

    Raises
    ------
    InvalidInputError
        If the rows cannot be used, the noise of new rows is not known, or the model can leave no row out.
    """
    view = View(model, target)
    if view.is_classifier:
        msg = "pictures of errors need a GPRegressor; plots.reliability and plots.confusion are for classifiers."
        raise InvalidInputError(msg)
    if X is None and y is None:
        return _left_out(view)
    rows = view.given(X, y)
    if not view.noise_is_known:
        raise InvalidInputError(
            "pictures of errors need the noise of new rows, which this model does not know: the noise of each row of "
            "the fit was given."
        )
    effort = None if exposure is None else column(exposure, len(rows.y), "exposure")
    mean, std = view.mean_and_std(rows.X, include_noise=True, exposure=effort)
    density = _log_density(view, rows.X, rows.y, effort)
    outside = np.zeros(len(rows.y), dtype=bool)
    for axis in view.axes:
        low, high = view.range_of(axis)
        slack = 1e-9 * (high - low)
        values = rows.X[:, axis.places[0]]
        outside |= (values < low - slack) | (values > high + slack)
    has_places = len(view.regressor.posterior_.places()) > 0
    share = float(outside.mean()) if has_places else 0.0
    ranks = _ranks(view, rows.X, rows.y, mean, std, effort)
    return Predicted(rows.y, mean, std, ranks, density, "test rows", share)


def _is_normal(view: View) -> bool:
    posterior, likelihood = view.plain.posterior, view.regressor.likelihood_
    is_gaussian = isinstance(likelihood, Gaussian) and posterior.model.student is None
    return is_gaussian and view.regressor.target_transform_.is_identity and not posterior.is_mixture


def _ranks(
    view: View, X: np.ndarray, y: np.ndarray, mean: np.ndarray, std: np.ndarray, exposure: np.ndarray | None
) -> np.ndarray:
    if _is_normal(view):
        return ndtr((y - mean) / std)
    quantiles = view.quantiles(X, _LEVELS.tolist(), include_noise=True, exposure=exposure)
    if not view.has_noise:
        return _ranks_of_counts(y, quantiles)
    # Linear between two quantiles, and half way to 0 or 1 beyond the last ones.
    place = (y[:, None] > quantiles).sum(1)
    inside = (place > 0) & (place < len(_LEVELS))
    rank = np.where(place == 0, 0.5 * _LEVELS[0], 0.5 * (1 + _LEVELS[-1]))
    row, k = np.flatnonzero(inside), place[inside]
    below, above = quantiles[row, k - 1], quantiles[row, k]
    step = (y[row] - below) / np.where(above > below, above - below, 1.0)
    rank[row] = _LEVELS[k - 1] + step * (_LEVELS[k] - _LEVELS[k - 1])
    return rank


def _ranks_of_counts(y: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Return ranks of counts or signs, at random between the probabilities of fewer and of no more.

    These are evenly distributed if predictions are calibrated (Czado, Gneiting and Held 2009, section 2.1).
    """
    edges = np.concatenate([[0.0], _LEVELS, [1.0]])
    middles = 0.5 * (edges[:-1] + edges[1:])
    fewer, up_to = (quantiles < y[:, None]).sum(1), (quantiles <= y[:, None]).sum(1)
    low = np.where(fewer == 0, 0.0, middles[fewer])
    high = np.where(up_to == len(_LEVELS), 1.0, middles[up_to])
    return low + np.random.default_rng(0).uniform(size=len(y)) * (high - low)


def _log_density(view: View, X: np.ndarray, y: np.ndarray, exposure: np.ndarray | None) -> np.ndarray:
    n_targets = view.regressor.posterior_.n_targets
    table = y if n_targets == 1 else np.repeat(y[:, None], n_targets, 1)  # other targets are not read
    targets = known_targets(view.plain.likelihood, table, len(X), exposure)
    return view.of_target(view.plain.predictive_log_density(X, *targets))


def _left_out(view: View) -> Predicted:
    if view.rows is None:
        raise InvalidInputError("this model does not keep its rows: pictures of errors need X and y.")
    found = view.plain.leave_one_out()  # refuses where there is none
    y, mean, std, density = view.rows.y, *(view.of_target(part) for part in found[:3])
    if _is_normal(view):
        rank = ndtr((y - mean) / std)
    else:
        posterior = view.plain.posterior
        parts: Sequence[Any] = (posterior,)
        shares = [1.0]
        if isinstance(posterior, MixturePosterior):
            parts, shares = posterior.components, posterior.weights.tolist()
        rank = np.zeros(len(y))
        for share, part in zip(shares, parts, strict=True):
            left = part.left_out()
            if part.model.student is not None or left is None:
                msg = "leaving rows out is available here for normal predictions only: pictures of errors need X and y."
                raise InvalidInputError(msg)
            z = (part.table.Y.double() - left.mean) / left.variance.sqrt()[:, None]  # of the transformed target
            rank += share * ndtr(z.cpu().numpy()[:, view.place])
    return Predicted(y, mean, std, rank, density, "training rows, each predicted from all others")
