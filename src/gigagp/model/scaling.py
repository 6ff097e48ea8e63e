"""Standardization of inputs and targets, and its inverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gigagp.kernels.units import Units

#: Values beyond the range of float64 become infinite without a warning by NumPy; callers reject them.
_quiet = np.errstate(over="ignore", invalid="ignore")

#: A column is constant if its spread is below this share of its largest entry; dividing by it would amplify rounding.
_CONSTANT = 1e-12
#: Standard deviation of a normal distribution over its median absolute deviation.
_NORMAL = 1.4826
#: Share of the rows that are the bulk of an input, and the width of a normal distribution's in standard deviations.
_BULK, _BULK_WIDTH = 2 / 3, 1.9348
#: An input's standard deviation over that of its bulk from which it says nothing about most rows. Learning begins at
#: lengthscales in these units, and the shortest that it tries are a fiftieth of them.
_FAR = 50.0
#: Rows from which there is a bulk, and rows that tell it.
_FEWEST, _TOLD_BY = 20, 10_000


@dataclass(frozen=True)
class Scaling:
    """Centres and scales from the training rows; constant columns are only centred.

    Those of the inputs have shape (d,), and those of the targets (t,). Inputs of which a few rows lie far from all
    others, such as a 999999 for a missing number, are scaled by the spread of the others.
    """

    x_centre: np.ndarray
    x_scale: np.ndarray
    y_centre: np.ndarray
    y_scale: np.ndarray

    @classmethod
    def fit(
        cls,
        X: np.ndarray,
        Y: np.ndarray,
        standardize: bool,
        *,
        medians: bool = False,
        is_scaled: np.ndarray | None = None,
    ) -> Scaling:
        """Return the scaling from the statistics of a training table, or one that changes nothing.

        ``medians`` is for targets of which some may be grossly wrong. ``is_scaled``, shape (d,), excepts inputs that
        stay as they are. Standardized one-hot columns would have rare categories far from all others.
        """
        if not standardize:
            return cls(np.zeros(X.shape[1]), np.ones(X.shape[1]), np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
        centre, spread = _centre_and_spread_of_inputs(X)
        if is_scaled is not None:
            centre, spread = np.where(is_scaled, centre, 0.0), np.where(is_scaled, spread, 1.0)
        return cls(centre, spread, *centre_and_spread(Y, medians=medians))

    def of_inputs_only(self) -> Scaling:
        """Return the scaling of the inputs alone, which leaves targets unchanged."""
        return Scaling(self.x_centre, self.x_scale, np.zeros_like(self.y_centre), np.ones_like(self.y_scale))

    @property
    def typical_y_scale(self) -> float:
        """The geometric mean of the targets' scales, by which densities and errors over all targets change."""
        return float(np.exp(np.log(self.y_scale).mean()))

    def units(self) -> Units:
        """Return the size of the standardized problem's units in the data's own units.

        Several targets are scaled separately, so that a variance that they share is a share of each target's variance.
        """
        with np.errstate(over="ignore", under="ignore"):  # squares beyond float64 become infinity or zero
            variance = float(np.square(self.y_scale[0])) if self.y_scale.size == 1 else 1.0
        return Units(torch.from_numpy(self.x_centre.copy()), torch.from_numpy(self.x_scale.copy()), variance)

    @_quiet
    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Return standardized inputs; a constant column is exactly zero, regardless of its rounding errors."""
        moved = (X - self.x_centre) / self.x_scale
        rounding = np.where(self.x_scale == 1.0, 4 * _CONSTANT * np.abs(self.x_centre), 0.0)
        if not rounding.any():
            return moved
        # A linear mean would interpret them as a slope, because its basis functions are scaled to their own size.
        return np.where(np.abs(moved) <= rounding, 0.0, moved)

    def original_inputs(self, X: np.ndarray) -> np.ndarray:
        """Return standardized inputs (n, d) in their own units."""
        return X * self.x_scale + self.x_centre

    def points(self, X: torch.Tensor) -> torch.Tensor:
        """Return `inputs` of points (..., d) as a tensor, differentiable in them."""
        moved = (X - torch.from_numpy(self.x_centre).to(X)) / torch.from_numpy(self.x_scale).to(X)
        standardized = torch.from_numpy(self.inputs(X.detach().cpu().numpy())).to(X)
        return standardized + (moved - moved.detach())

    @_quiet
    def targets(self, Y: np.ndarray) -> np.ndarray:
        """Return standardized targets."""
        return (Y - self.y_centre) / self.y_scale

    @_quiet
    def spreads(self, std: np.ndarray) -> np.ndarray:
        """Return standard deviations (m,), which all targets share, as (m, t) in the targets' own units."""
        return std[:, None] * self.y_scale

    @_quiet
    def covariances(self, covariance: np.ndarray) -> np.ndarray:
        """Return a covariance (m, m), which all targets share, as (m, m, t) in the targets' own units."""
        return covariance[:, :, None] * self.y_scale**2

    @_quiet
    def original(self, mean: np.ndarray) -> np.ndarray:
        """Return a mean of shape (m, t) or samples (m, t, s) in the targets' own units."""
        shape = (1, -1) + (1,) * (mean.ndim - 2)
        return mean * self.y_scale.reshape(shape) + self.y_centre.reshape(shape)


@_quiet
def far_rows(column: np.ndarray, times: float) -> np.ndarray:
    """Return the rows of a column (n,) that are far from most, where these set its standard deviation.

    That is so where it is more than a number of times the spread of the bulk. A row is far if it is more than a
    standard deviation from the bulk's centre.
    """
    _, spread, middle, _, few_are_far = _beside_bulk(column[:, None], times)
    return np.flatnonzero(few_are_far & (np.abs(column - middle[0]) > spread[0]))


@_quiet
def _centre_and_spread_of_inputs(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return those of the bulk where few rows lie far from all others, and means and standard deviations elsewhere."""
    centre, spread, middle, width, few_are_far = _beside_bulk(X, _FAR)
    return np.where(few_are_far, middle, centre), np.where(few_are_far, width, spread)


@_quiet
def distances_from_bulk(columns: np.ndarray) -> np.ndarray:
    """Return how many spreads of the bulk the entries of columns (n, t) lie from its centre; 0 where it is constant."""
    middle, width = _bulk(columns)
    return np.divide(np.abs(columns - middle), width, out=np.zeros_like(columns), where=_varies(middle, width))


def _beside_bulk(columns: np.ndarray, times: float) -> tuple[np.ndarray, ...]:
    """Return centre and spread of all rows, those of the bulk, and whether the first spread is so much larger."""
    (centre, spread), (middle, width) = centre_and_spread(columns), _bulk(columns)
    return centre, spread, middle, width, _varies(middle, width) & (spread > times * width)


def _varies(middle: np.ndarray, width: np.ndarray) -> np.ndarray:
    return width > _CONSTANT * np.abs(middle)


def _bulk(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and spread of the shortest interval that holds two thirds of the rows, for each column.

    The spread is the standard deviation of a normal distribution whose own such interval is as long; it is zero for
    very few rows.
    """
    n = len(columns)
    if n < _FEWEST:
        return np.zeros(columns.shape[1]), np.zeros(columns.shape[1])
    ordered = np.sort(columns[:: -(-n // _TOLD_BY)], axis=0)
    within = int(_BULK * len(ordered))
    lower, upper = ordered[: len(ordered) - within], ordered[within:]
    widths = upper - lower
    shortest = widths.argmin(0)[None]
    middle = (np.take_along_axis(lower, shortest, 0) / 2 + np.take_along_axis(upper, shortest, 0) / 2)[0]
    return middle, widths.min(0) / _BULK_WIDTH


def centre_and_spread(columns: np.ndarray, *, medians: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, where the deviation of a constant column is 1.

    With ``medians``, they are the median and, from the median absolute deviation, the standard deviation of a normal
    distribution, unless more than half of a column is constant.
    """
    # Divide by the largest entry: sums and squares of huge or tiny numbers would leave the range of float64.
    largest = np.abs(columns).max(0)
    largest = np.where(largest > 0, largest, 1.0)
    relative = columns / largest
    centre, spread = relative.mean(0), relative.std(0)
    if medians:
        middle = np.median(relative, 0)
        robust = _NORMAL * np.median(np.abs(relative - middle), 0)
        sound = robust > np.finfo(float).eps * np.abs(middle)
        centre, spread = np.where(sound, middle, centre), np.where(sound, robust, spread)
        return centre * largest, np.where(sound | (spread > _CONSTANT), spread * largest, 1.0)
    return centre * largest, np.where(spread > _CONSTANT, spread * largest, 1.0)
