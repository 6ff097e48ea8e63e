"""Means of the latent function over cells and polygons, from the joint posterior within each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.averages import spreads
from gigagp.geo.places import needed
from gigagp.regression import GPRegressor

#: What gives the inputs of a model, (..., d), at places (..., 2).
Inputs = Callable[[np.ndarray], np.ndarray]
#: Numbers that the covariances of a batch of cells, with each other and with the training rows, hold, about.
_BATCH_NUMBERS = 4_000_000
#: Most points along a side of the bounds of a polygon in which no point was found.
_MOST_POINTS = 256


def means_of_cells(
    gp: GPRegressor, inputs: Inputs, low: np.ndarray, high: np.ndarray, n_points: int, *, is_geographic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, (b,), of the latent function's means over rectangles with corners (b, 2).

    The mean over a cell is a weighted sum of the function at the nodes of a Gauss-Legendre rule, ``n_points`` along
    each side, so that its distribution follows from the joint posterior there: ``w' m`` and ``w' C w``. On the sphere
    the rule is one in the sine of the latitude, in which equal steps are equal areas.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n_points)
    nodes, weights = (nodes + 1) / 2, weights / 2
    across, down = (part.ravel() for part in np.meshgrid(nodes, nodes))
    weight = np.outer(weights, weights).ravel()
    batch = max(1, _BATCH_NUMBERS // (n_points**2 * max(n_points**2, gp.posterior_.n_rows)))
    found = []
    for first in range(0, len(low), batch):
        cells = slice(first, first + batch)
        begin, size = low[cells], high[cells] - low[cells]
        x = begin[:, :1] + size[:, :1] * across
        if is_geographic:
            south, north = np.sin(np.radians(begin[:, 1:])), np.sin(np.radians(high[cells, 1:]))
            y = np.degrees(np.arcsin(np.clip(south + (north - south) * down, -1.0, 1.0)))
        else:
            y = begin[:, 1:] + size[:, 1:] * down
        found.append(_weighted(gp, inputs(np.stack([x, y], 2)), np.broadcast_to(weight, x.shape)))
    mean, std = zip(*found, strict=True)
    return np.concatenate(mean), np.concatenate(std)


def means_of_polygons(
    gp: GPRegressor, inputs: Inputs, polygons: Any, n_points: int, *, is_geographic: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the mean of the latent function over polygons, one each.

    The polygons, a GeoSeries, are in the reference system of the places. Of ``n_points`` points along each side of the
    bounds of a polygon, those within it count.
    """
    shapely = needed("shapely", "Means over polygons")
    found = []
    for row, polygon in enumerate(polygons):
        if polygon is None or not polygon.area > 0:
            msg = f"The cells of Kriging must be polygons with an area; got {polygon!r} in row {row}."
            raise InvalidInputError(msg)
        points = _within(shapely, polygon, n_points)
        weights = np.cos(np.radians(points[:, 1])) if is_geographic else np.ones(len(points))
        found.append(_weighted(gp, inputs(points)[None], (weights / weights.sum())[None]))
    mean, std = zip(*found, strict=True)
    return np.concatenate(mean), np.concatenate(std)


def _within(shapely: Any, polygon: Any, n_points: int) -> np.ndarray:
    """Return the points of a lattice over the bounds that are within a polygon; a finer one where there are none."""
    low, high = np.reshape(polygon.bounds, (2, 2))
    while True:
        steps = (np.arange(n_points) + 0.5) / n_points
        x, y = (part.ravel() for part in np.meshgrid(*(low[k] + (high[k] - low[k]) * steps for k in (0, 1))))
        inside = shapely.contains_xy(polygon, x, y)
        if inside.any():
            return np.stack([x, y], 1)[inside]
        n_points *= 2
        if n_points > _MOST_POINTS:  # a sliver
            place = polygon.representative_point()
            return np.array([[place.x, place.y]])


def _weighted(gp: GPRegressor, points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of weighted sums, (b,), of the function at points (b, q, 2)."""
    with torch.no_grad():
        joint = gp.posterior(torch.from_numpy(points))
        mean, covariance = joint.mean.numpy(), joint.covariance.numpy()
    variance = np.einsum("bi,bij,bj->b", weights, covariance, weights)
    return (weights * mean).sum(1), spreads(variance, np.abs(covariance).max((1, 2)))
