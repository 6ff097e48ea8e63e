"""Empirical variograms, and the variogram that a model has over the same pairs of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.spatial.distance import cdist

from gigagp.errors import InvalidInputError
from gigagp.kernels import Constant, Cosine, Kernel, Periodic, White
from gigagp.kernels.geometry import EARTH_RADIUS, Sphere
from gigagp.kernels.stationary import StationaryKernel, require_taken
from gigagp.settings.fields import Count, NotNegative, Positive, checks_arguments
from gigagp.settings.random import RandomState, generator_from
from gigagp.tables.intake import inputs, targets

#: Rows of a block of pairs.
_BLOCK = 512
#: Kernels that depend on differences of inputs alone, unless these are angles on the sphere.
_OF_DIFFERENCES = (StationaryKernel, Periodic, Cosine, Constant, White)


@dataclass(frozen=True)
class Variogram:
    """Half the mean squared difference of pairs of measurements, by their distance.

    Attributes
    ----------
    distance : ndarray of shape (b,)
        Mean distance of the pairs of each bin: km for longitudes and latitudes, else the unit of the coordinates. NaN
        where a bin has no pair.
    semivariance : ndarray of shape (b,)
        In squared units of the measurements.
    count : ndarray of int of shape (b,)
        Number of pairs.
    edges : ndarray of shape (b + 1,)
        Limits of the bins. A pair at a limit belongs to the bin below it, even if its distance exceeds the limit by
        rounding of the coordinates: rows on a lattice have many such pairs.
    model : ndarray of shape (b,) or None
        Mean over the same pairs of ``k(x, x) / 2 + k(z, z) / 2 - k(x, z)`` plus the noise variance: the expectation of
        Matheron's estimator under the model, for any kernel, also an anisotropic one.
    n_rows : int
        Number of rows whose pairs were taken.
    """

    distance: np.ndarray
    semivariance: np.ndarray
    count: np.ndarray
    edges: np.ndarray
    model: np.ndarray | None
    n_rows: int

    def to_dict(self) -> dict[str, list[float]]:
        """Return the columns of a table with a row for each bin, for instance for ``pandas.DataFrame``."""
        columns = {"distance": self.distance, "semivariance": self.semivariance, "count": self.count}
        if self.model is not None:
            columns["model"] = self.model
        return {name: values.tolist() for name, values in columns.items()}


@checks_arguments
def variogram(
    X: Any,
    y: Any,
    *,
    n_bins: Count = 15,
    max_distance: Positive | None = None,
    estimator: Literal["matheron", "cressie"] = "matheron",
    metric: Literal["euclidean", "haversine"] = "euclidean",
    kernel: Kernel | None = None,
    noise_variance: NotNegative = 0.0,
    max_rows: Count = 2000,
    random_state: RandomState = 0,
) -> Variogram:
    """Return the empirical variogram of measurements.

    When to use: to see before a fit over which distance measurements are correlated, and after it whether the model's
    variogram agrees with the empirical one. Values in neighbouring bins are correlated, and those beyond half of the
    extent come from few independent pairs.

    Parameters
    ----------
    X : array-like of shape (n, d)
        Places; with ``metric="haversine"`` only the first two columns count for distances.
    y : array-like of shape (n,)
        Measurements, or their residuals from a trend.
    n_bins : int
        Number of bins of equal width.
    max_distance : float, optional
        Upper limit of the last bin. None: half of the largest distance between corners of the extent of the rows.
    estimator : {"matheron", "cressie"}
        Mean of the squared differences, or the robust estimator from the fourth power of the mean root difference,
        which is hardly affected by single gross errors.
    metric : {"euclidean", "haversine"}
        ``"haversine"``: great-circle distances in km between longitudes and latitudes in degrees.
    kernel : Kernel, optional
        Kernel of a model in the units of X and y, such as ``gp.kernel_``; gives `Variogram.model`.
    noise_variance : float
        The model's noise variance, in squared units of y.
    max_rows : int
        With more rows, the pairs of this many random ones are taken.
    random_state : int or generator
        Seed of the choice of rows.

    Returns
    -------
    Variogram

    Raises
    ------
    InvalidInputError
        If an argument is invalid, or all rows are at one place.

    References
    ----------
    Matheron 1963, Principles of geostatistics, doi:10.2113/gsecongeo.58.8.1246; Cressie and Hawkins 1980, Robust
    estimation of the variogram, doi:10.1007/BF01035243.
    """
    X = inputs(X, min_rows=2)
    y = targets(y, len(X))
    if y.ndim > 1:
        raise InvalidInputError(f"y of variogram must be one measurement for each row; got shape {y.shape}.")
    if metric == "haversine":
        _require_degrees(X)
    if len(X) > max_rows:
        chosen = torch.randperm(len(X), generator=generator_from(random_state))[:max_rows].sort().values.numpy()
        X, y = X[chosen], y[chosen]
    limit = _half_extent(X, metric) if max_distance is None else float(max_distance)
    if not limit > 0:
        raise InvalidInputError("X of variogram must have rows at two or more places; all rows are at the same place.")
    edges = np.linspace(0.0, limit, int(n_bins) + 1)
    ends = edges + _rounding(X, limit, metric)
    if kernel is not None:
        kernel, points = _centred(kernel, X)
    sums = _Sums(int(n_bins))
    for first in range(0, len(X), _BLOCK):
        rows = slice(first, first + _BLOCK)
        later = np.arange(len(X))[None, :] > np.arange(len(X))[rows, None]  # each pair once
        distance = _distances(X[rows], X[first:], metric)
        taken = later[:, first:] & (distance <= ends[-1])
        place = np.clip(np.searchsorted(ends, distance[taken]) - 1, 0, int(n_bins) - 1)
        apart = np.abs(y[rows, None] - y[None, first:])[taken]
        model = None if kernel is None else _model(kernel, points[rows], points[first:], noise_variance)[taken]
        sums.add(place, distance[taken], apart, model)
    return sums.variogram(edges, estimator, len(X))


class _Sums:
    """Sums over the pairs of each bin."""

    def __init__(self, n_bins: int) -> None:
        self.count = np.zeros(n_bins, dtype=np.int64)
        self.distance, self.squares, self.roots, self.model = (np.zeros(n_bins) for _ in range(4))
        self.has_model = False

    def add(self, place: np.ndarray, distance: np.ndarray, apart: np.ndarray, model: np.ndarray | None) -> None:
        n = len(self.count)
        self.count += np.bincount(place, minlength=n)
        self.distance += np.bincount(place, distance, n)
        self.squares += np.bincount(place, apart**2, n)
        self.roots += np.bincount(place, np.sqrt(apart), n)
        if model is not None:
            self.has_model = True
            self.model += np.bincount(place, model, n)

    def variogram(self, edges: np.ndarray, estimator: str, n_rows: int) -> Variogram:
        pairs = np.where(self.count > 0, self.count, np.nan)
        if estimator == "matheron":
            semivariance = self.squares / pairs / 2
        else:  # Cressie and Hawkins 1980, eq. 12, with the correction for the number of pairs
            semivariance = (self.roots / pairs) ** 4 / (0.457 + 0.494 / pairs + 0.045 / pairs**2) / 2
        model = self.model / pairs if self.has_model else None
        return Variogram(self.distance / pairs, semivariance, self.count, edges, model, n_rows)


def _require_degrees(X: np.ndarray) -> None:
    refused = Sphere().refusal(torch.from_numpy(np.ascontiguousarray(X))) if X.shape[1] >= 2 else (0, 0, "two columns")
    if refused is not None:
        msg = f'Column {refused[1]} of X of variogram must have {refused[2]}, with metric="haversine".'
        raise InvalidInputError(msg)


def _on_the_sphere(X: np.ndarray) -> np.ndarray:
    """Return points in space in km."""
    return Sphere().coordinates(torch.from_numpy(np.ascontiguousarray(X[:, :2])), {}, 1.0).numpy()


def _distances(X: np.ndarray, Z: np.ndarray, metric: str) -> np.ndarray:
    if metric == "euclidean":
        return cdist(X, Z)
    chords = cdist(_on_the_sphere(X), _on_the_sphere(Z))
    return 2 * EARTH_RADIUS * np.arcsin(np.minimum(chords / (2 * EARTH_RADIUS), 1.0))


def _rounding(X: np.ndarray, limit: float, metric: str) -> float:
    """Return a bound of the rounding in distances: that of the coordinates, and that of the distance itself."""
    largest = EARTH_RADIUS if metric == "haversine" else float(np.abs(X).max()) * X.shape[1] ** 0.5
    return 4 * float(np.finfo(float).eps) * (largest + limit)


def _centred(kernel: Kernel, X: np.ndarray) -> tuple[Kernel, np.ndarray]:
    """Return the bound kernel and coordinates, without their mean if the kernel depends on differences alone.

    Far from zero, coordinates in lengthscales would have lost their digits.
    """
    require_taken(kernel, X)
    bound = kernel.bind(X.shape[1])
    leaves = list(bound.leaves())
    moves = all(isinstance(one, _OF_DIFFERENCES) and getattr(one, "metric", "") != "haversine" for one in leaves)
    return bound, X - X.mean(0) if moves else X


def _half_extent(X: np.ndarray, metric: str) -> float:
    points = X if metric == "euclidean" else _on_the_sphere(X)
    diagonal = float(np.linalg.norm(points.max(0) - points.min(0)))
    half_turn = np.pi * EARTH_RADIUS
    return diagonal / 2 if metric == "euclidean" else min(diagonal, half_turn) / 2


def _model(kernel: Kernel, X: np.ndarray, Z: np.ndarray, noise_variance: float) -> np.ndarray:
    """Return the semivariances of pairs under a model."""
    left, right = torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(np.ascontiguousarray(Z))
    with torch.no_grad():
        own = [(kernel.diagonal(points) + kernel.white(points)).numpy() for points in (left, right)]
        return (own[0][:, None] + own[1][None, :]) / 2 - kernel.block(left, right).numpy() + noise_variance
