"""BoTorch's posterior, whose mean and variance do not wait for a joint covariance."""

from __future__ import annotations

from functools import cached_property

import torch
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from torch import Tensor

from gigagp.botorch.moments import Moments


class GigaPosterior(GPyTorchPosterior):
    """The joint normal distribution at q points, from moments that are computed at their first use.

    Parameters
    ----------
    moments : Moments
        Mean, variance and covariance of the m outputs, which are independent of each other.
    """

    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        self._is_mt = moments.n_outputs > 1

    @cached_property
    def distribution(self) -> MultivariateNormal:
        """GPyTorch's distribution, for what needs the joint covariance."""
        mean, covariance = self.mean.mT, self.moments.covariance()
        if self._is_mt:
            return MultitaskMultivariateNormal.from_batch_mvn(MultivariateNormal(mean, covariance), task_dim=-1)
        return MultivariateNormal(mean[..., 0, :], covariance[..., 0, :, :])

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
