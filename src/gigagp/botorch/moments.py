"""Means and covariances at points: of a fit, and of a fit conditioned on further observations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.estimators.answers.joint_posterior import JointPosterior, cholesky_of_batches


class Moments(ABC):
    """Moments of m outputs at q points, in the units of the data; like ``like`` in type and device.

    A covariance has a block for each of several independent outputs, (..., m, q, q), or is one block for ``correlated``
    ones, (..., 1, q m, q m), in which the outputs of a point are together.
    """

    like: Tensor
    n_outputs: int
    correlated = False

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the mean, shape (..., q, m)."""

    @abstractmethod
    def variance(self) -> Tensor:
        """Return the variances, shape (..., q, m)."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """Return the covariances, shape (..., m, q, q) or (..., 1, q m, q m)."""

    def blocks(self, values: Tensor) -> Tensor:
        """Return values (..., q, m) as the blocks of the covariance have them, (..., m, q) or (..., 1, q m)."""
        return values.flatten(-2)[..., None, :] if self.correlated else values.mT

    def by_point(self, blocks: Tensor) -> Tensor:
        """Return the inverse of `blocks`, shape (..., q, m)."""
        return blocks[..., 0, :].unflatten(-1, (-1, self.n_outputs)) if self.correlated else blocks.mT

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


class CorrelatedMoments(Moments):
    """Moments of a fit with correlated outputs: those of a joint posterior of all outputs at all points.

    The rows of the joint posterior are all outputs of the first point, then those of the next.
    """

    correlated = True

    def __init__(self, joint: JointPosterior, like: Tensor, centre: Tensor, unit: Tensor) -> None:
        self.joint, self.like, self.n_outputs = joint, like, len(unit)
        self._centre, self._unit = centre.to(like), unit.to(like)

    def mean(self) -> Tensor:
        return self.joint.mean.unflatten(-1, (-1, self.n_outputs)) * self._unit + self._centre

    def variance(self) -> Tensor:
        return self.joint.variance.unflatten(-1, (-1, self.n_outputs)) * self._unit.square()

    def covariance(self) -> Tensor:
        units = self._unit.repeat(self.like.shape[-2])
        return (self.joint.covariance * units * units[:, None])[..., None, :, :]

    def scale(self) -> float:
        """Return the prior variance of the output with the smallest unit."""
        return float(self.joint.prior_variance().max() * self._unit.square().min())


class SomeOutputs(Moments):
    """Moments of some of several correlated outputs."""

    correlated = True

    def __init__(self, every: Moments, outputs: list[int]) -> None:
        self.every, self.outputs, self.like, self.n_outputs = every, outputs, every.like, len(outputs)

    def mean(self) -> Tensor:
        return self.every.mean()[..., self.outputs]

    def variance(self) -> Tensor:
        return self.every.variance()[..., self.outputs]

    def covariance(self) -> Tensor:
        found = self.every.covariance()
        q = found.shape[-1] // self.every.n_outputs
        chosen = torch.arange(q)[:, None] * self.every.n_outputs + torch.tensor(self.outputs)
        rows = chosen.flatten().to(found.device)
        return found.index_select(-1, rows).index_select(-2, rows)

    def scale(self) -> float:
        return self.every.scale()


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

    def __init__(self, fitted: Moments, given: Observations, q: int) -> None:
        self.like, self.n_outputs, self.correlated = fitted.like, fitted.n_outputs, fitted.correlated
        mean, covariance = fitted.blocks(fitted.mean()).double(), fitted.covariance().double()
        q = q * fitted.n_outputs if fitted.correlated else q
        of_points, of_rows = mean[..., :q], mean[..., q:]
        cross = covariance[..., :q, q:]
        noisy = covariance[..., q:, q:] + torch.diag_embed(fitted.blocks(given.noise).to(covariance))
        self._scale = fitted.scale()
        root = cholesky_of_batches(noisy.reshape(-1, *noisy.shape[-2:]), self._scale).reshape(noisy.shape)
        apart = (fitted.blocks(given.Y).to(mean) - of_rows)[..., None]
        both = torch.cat([cross.mT, apart.expand(*cross.shape[:-2], *apart.shape[-2:])], -1)
        whitened = torch.linalg.solve_triangular(root.expand(*both.shape[:-2], *root.shape[-2:]), both, upper=False)
        explained, moved = whitened[..., :q], whitened[..., q:]
        self._mean = self.by_point(of_points + (explained.mT @ moved)[..., 0]).to(self.like)
        self._covariance = (covariance[..., :q, :q] - explained.mT @ explained).to(self.like)

    def mean(self) -> Tensor:
        return self._mean

    def variance(self) -> Tensor:
        return self.by_point(self._covariance.diagonal(dim1=-2, dim2=-1)).clamp_min(0)  # negative only by rounding

    def covariance(self) -> Tensor:
        return self._covariance

    def scale(self) -> float:
        return self._scale


class NoisyMoments(Moments):
    """Moments of measurements, with noise variances that broadcast to (..., q, m)."""

    def __init__(self, latent: Moments, noise: Tensor) -> None:
        self.latent, self.noise, self.like, self.n_outputs = latent, noise, latent.like, latent.n_outputs
        self.correlated = latent.correlated

    def mean(self) -> Tensor:
        return self.latent.mean()

    def variance(self) -> Tensor:
        return self.latent.variance() + self.noise

    def covariance(self) -> Tensor:
        found = self.latent.covariance()
        q = found.shape[-1] // (self.n_outputs if self.correlated else 1)
        diagonal = self.blocks(self.noise.expand(*self.noise.shape[:-2], q, self.n_outputs))
        return found + torch.diag_embed(diagonal.to(found))

    def scale(self) -> float:
        return self.latent.scale()
