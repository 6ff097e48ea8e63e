"""Means and covariances at points: of a fit, and of a fit conditioned on further observations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.estimators.answers.joint_posterior import JointPosterior, cholesky_of_batches


class Moments(ABC):
    """Moments of m independent outputs at q points, in the units of the data; like ``like`` in type and device."""

    like: Tensor
    n_outputs: int

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the mean, shape (..., q, m)."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Return the variances, shape (..., q, m)."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Return the covariances, shape (..., m, q, q)."""

    @abstractmethod
    def scale(self) -> float:
        """Return a prior variance, which says what is small in a covariance."""


class FittedMoments(Moments):
    """Moments of a fit: those of joint posteriors at the same points, one, or one for each target with its own model.

    ``outputs`` are the targets of all of them, in their order, that are outputs.
    """

    def __init__(self, joints: Sequence[JointPosterior], outputs: list[int]) -> None:
        self.joints, self.outputs, self.like, self.n_outputs = joints, outputs, joints[0].X, len(outputs)

    def _of_outputs(self, found: list[Tensor]) -> Tensor:
        return torch.cat(found, -1)[..., self.outputs]

    def mean(self) -> Tensor:
        return self._of_outputs([one.mean for one in self.joints])

    def variance(self) -> Tensor:
        return self._of_outputs([one.variance for one in self.joints])

    def covariance(self) -> Tensor:
        return self._of_outputs([one.covariance for one in self.joints]).movedim(-1, -3)

    def scale(self) -> float:
        """Return the largest prior variance at the points, of the output with the smallest one."""
        return self._of_outputs([one.prior_variance() for one in self.joints]).min().item()


class Observations(NamedTuple):
    """Observations that a fit is conditioned on: X (..., n, d), Y and noise variances (..., n, m).

    The leading shapes of all three are broadcast.
    """

    X: Tensor
    Y: Tensor
    noise: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The leading shape."""
        return torch.broadcast_shapes(self.X.shape[:-2], self.Y.shape[:-2], self.noise.shape[:-2])

    def and_then(self, other: Observations) -> Observations:
        """Return these observations followed by others."""
        joined = []
        for mine, theirs in zip(self, other, strict=True):
            shape = torch.broadcast_shapes(mine.shape[:-2], theirs.shape[:-2])
            joined.append(torch.cat([one.expand(*shape, *one.shape[-2:]) for one in (mine, theirs)], -2))
        return Observations(*joined)

    def take(self, outputs: list[int]) -> Observations:
        """Return the observations of some outputs."""
        return Observations(self.X, self.Y[..., outputs], self.noise[..., outputs])


class ConditionedMoments(Moments):
    """Moments given further observations, by the rules of the normal distribution.

    With the covariance K of a fit, between points x and observations z, they are ``m(x) + K(x, z) C^-1 (y - m(z))`` and
    ``K(x, x) - K(x, z) C^-1 K(z, x)`` for ``C = K(z, z) + noise`` (Rasmussen and Williams 2006, eq. A.6). What the fit
    has learned from its own rows is all in m and K, so that the cost does not depend on their number. ``fitted`` has
    the moments at the q points, followed by those at the observations.
    """

    def __init__(self, fitted: FittedMoments, given: Observations, q: int) -> None:
        self.like, self.n_outputs, self._q = fitted.like, fitted.n_outputs, q
        mean, covariance = fitted.mean().mT.double(), fitted.covariance().double()
        of_points, of_rows = mean[..., :q], mean[..., q:]
        cross = covariance[..., :q, q:]
        noisy = covariance[..., q:, q:] + torch.diag_embed(given.noise.mT.to(covariance))
        self._scale = fitted.scale()
        root = cholesky_of_batches(noisy.reshape(-1, *noisy.shape[-2:]), self._scale).reshape(noisy.shape)
        apart = (given.Y.mT.to(mean) - of_rows)[..., None]
        both = torch.cat([cross.mT, apart.expand(*cross.shape[:-2], *apart.shape[-2:])], -1)
        whitened = torch.linalg.solve_triangular(root.expand(*both.shape[:-2], *root.shape[-2:]), both, upper=False)
        explained, moved = whitened[..., :q], whitened[..., q:]
        self._mean = (of_points + (explained.mT @ moved)[..., 0]).mT.to(self.like)
        self._covariance = (covariance[..., :q, :q] - explained.mT @ explained).to(self.like)

    def mean(self) -> Tensor:
        return self._mean

    def variance(self) -> Tensor:
        return self._covariance.diagonal(dim1=-2, dim2=-1).mT.clamp_min(0)  # negative only by rounding

    def covariance(self) -> Tensor:
        return self._covariance

    def scale(self) -> float:
        return self._scale


class NoisyMoments(Moments):
    """Moments of measurements, with noise variances that broadcast to (..., q, m)."""

    def __init__(self, latent: Moments, noise: Tensor) -> None:
        self.latent, self.noise, self.like, self.n_outputs = latent, noise, latent.like, latent.n_outputs

    def mean(self) -> Tensor:
        return self.latent.mean()

    def variance(self) -> Tensor:
        return self.latent.variance() + self.noise

    def covariance(self) -> Tensor:
        found = self.latent.covariance()
        diagonal = self.noise.expand(*self.noise.shape[:-2], found.shape[-1], self.n_outputs).mT
        return found + torch.diag_embed(diagonal.to(found))

    def scale(self) -> float:
        return self.latent.scale()
