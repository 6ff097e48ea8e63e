"""Standardization of inputs and targets, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gigagp.kernels.units import Units

#: What leaves the range of float64 is infinite without a word of NumPy's: callers refuse it.
_quiet = np.errstate(over="ignore", invalid="ignore")

#: A column whose spread is below this share of its largest entry is constant: dividing by that would make noise of it.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class Scaling:
    """Centres and scales by training statistics; constant columns are only centred.

    Attributes
    ----------
    x_centre, x_scale : array of shape (d,)
    y_centre, y_scale : array of shape (t,)
        In the units of the targets.
    """

    x_centre: np.ndarray
    x_scale: np.ndarray
    y_centre: np.ndarray
    y_scale: np.ndarray

    @classmethod
    def fit(cls, X: np.ndarray, Y: np.ndarray, standardize: bool) -> Scaling:
        """Return the statistics of a training table, or no change."""
        if not standardize:
            return cls(np.zeros(X.shape[1]), np.ones(X.shape[1]), np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
        return cls(*_statistics(X), *_statistics(Y))

    def of_inputs_only(self) -> Scaling:
        """Return the same without a change of the targets."""
        return Scaling(self.x_centre, self.x_scale, np.zeros_like(self.y_centre), np.ones_like(self.y_scale))

    def units(self) -> Units:
        """Return what one unit of the standardized problem is in the data's own.

        Several targets are scaled apart, so that a variance that they share is a share of each one's own.
        """
        with np.errstate(over="ignore", under="ignore"):  # what squares cannot hold is infinity or zero
            variance = float(np.square(self.y_scale[0])) if self.y_scale.size == 1 else 1.0
        return Units(torch.from_numpy(self.x_centre.copy()), torch.from_numpy(self.x_scale.copy()), variance)

    @_quiet
    def inputs(self, X: np.ndarray) -> np.ndarray:
        """Return standardized inputs; a constant column is exactly zero, whatever its rounding errors are."""
        moved = (X - self.x_centre) / self.x_scale
        rounding = np.where(self.x_scale == 1.0, 4 * _CONSTANT * np.abs(self.x_centre), 0.0)
        if not rounding.any():
            return moved
        # A linear mean would take them for a slope. Its functions count in units of their own size.
        return np.where(np.abs(moved) <= rounding, 0.0, moved)

    @_quiet
    def targets(self, Y: np.ndarray) -> np.ndarray:
        """Return standardized targets."""
        return (Y - self.y_centre) / self.y_scale

    @_quiet
    def spreads(self, std: np.ndarray) -> np.ndarray:
        """Return standard deviations (m,), which targets share, as (m, t) in the targets' own units."""
        return std[:, None] * self.y_scale

    @_quiet
    def covariances(self, covariance: np.ndarray) -> np.ndarray:
        """Return a covariance (m, m), which targets share, as (m, m, t) in the targets' own units."""
        return covariance[:, :, None] * self.y_scale**2

    @_quiet
    def original(self, mean: np.ndarray) -> np.ndarray:
        """Return a mean of shape (m, t) or samples (m, t, s) in the targets' own units."""
        shape = (1, -1) + (1,) * (mean.ndim - 2)
        return mean * self.y_scale.reshape(shape) + self.y_centre.reshape(shape)


def _statistics(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations; 1 for the deviation of a constant column."""
    # In units of the largest entry: sums and squares of huge or tiny numbers leave the range of float64.
    largest = np.abs(columns).max(0)
    largest = np.where(largest > 0, largest, 1.0)
    relative = columns / largest
    centre, spread = relative.mean(0), relative.std(0)
    return centre * largest, np.where(spread > _CONSTANT, spread * largest, 1.0)
