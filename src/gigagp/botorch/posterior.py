"""BoTorch's posterior, whose mean and variance do not wait for a joint covariance."""

from __future__ import annotations

from functools import cached_property

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from gigagp.botorch.moments import Moments
from gigagp.estimators.answers.joint_posterior import cholesky_of_batches


class GigaPosterior(GPyTorchPosterior):
    """The joint normal distribution at q points, from moments that are computed at their first use.

    Parameters
    ----------
    moments : Moments
        Mean, variance and covariance of the m outputs.
    """

    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        self._is_mt = moments.n_outputs > 1

    @cached_property
    def distribution(self) -> MultivariateNormal:
        """GPyTorch's distribution, for what needs the joint covariance."""
        mean, covariance = self.mean.mT, DenseLinearOperator(self.moments.covariance())
        if self.moments.correlated:
            whole = DenseLinearOperator(self.moments.covariance()[..., 0, :, :])
            if self._is_mt:
                return MultitaskMultivariateNormal(self.mean, whole)
            return MultivariateNormal(self.mean[..., 0], whole)
        if self._is_mt:
            return MultitaskMultivariateNormal.from_batch_mvn(MultivariateNormal(mean, covariance), task_dim=-1)
        return MultivariateNormal(mean[..., 0, :], covariance[..., 0, :, :])

    @cached_property
    def _root(self) -> Tensor:
        """Cholesky factors of the covariances, in their blocks."""
        covariance = self.moments.covariance()
        flat = covariance.reshape(-1, *covariance.shape[-2:]).double()
        return cholesky_of_batches(flat, self.moments.scale()).reshape(covariance.shape).to(covariance)

    @property
    def base_sample_shape(self) -> torch.Size:
        """Shape of the standard normal numbers of a sample: (..., q), or (..., q, m) for several outputs."""
        return self.mean.shape if self._is_mt else self.mean.shape[:-1]

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008 (as BoTorch has it)
        return sample_shape + self.mean.shape

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Return ``mean + L z`` for standard normal numbers z, shape ``(*sample_shape, ..., q, m)``.

        Parameters
        ----------
        sample_shape : torch.Size
        base_samples : Tensor of shape ``(*sample_shape, *base_sample_shape)``
        """
        z = base_samples if self._is_mt else base_samples[..., None]
        if z.shape[: len(sample_shape)] != sample_shape:
            msg = f"base_samples must begin with the shape {tuple(sample_shape)}; got {tuple(base_samples.shape)}."
            raise RuntimeError(msg)
        moved = self._root @ self.moments.blocks(z)[..., None].to(self._root)
        return self.mean + self.moments.by_point(moved[..., 0])

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Return samples with numbers from torch's global generator, shape ``(*sample_shape, ..., q, m)``."""
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        drawn = torch.randn(shape + self.base_sample_shape, dtype=self.dtype, device=self.device)
        return self.rsample_from_base_samples(shape, drawn)

    @property
    def mean(self) -> Tensor:
        """Mean, shape (..., q, m)."""
        return self.moments.mean()

    @property
    def variance(self) -> Tensor:
        """Variance, shape (..., q, m)."""
        return self.moments.variance()

    @property
    def device(self) -> torch.device:
        """Device of the points."""
        return self.moments.like.device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the points."""
        return self.moments.like.dtype
