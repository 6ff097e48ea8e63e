"""Answers at points of which some inputs are not known, such as rows with missing cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.posterior import Posterior, SampleFunctions, VarianceMethod, VarianceParts


class _Copies(NamedTuple):
    """Every point once, or with each of the values that its unknown inputs may have."""

    points: Tensor  # (e, d)
    owner: Tensor  # the point that each is a copy of, (e,)
    first: Tensor  # the first copy of each point, (m,)
    copies: Tensor  # number of copies of each point, (m,)

    def average(self, values: Tensor) -> Tensor:
        """Return the mean over the copies of each point of values whose first axis is theirs."""
        found = values.new_zeros((len(self.copies), *values.shape[1:])).index_add_(0, self.owner, values)
        return found / self.copies.to(values).reshape(-1, *[1] * (values.ndim - 1))


class OpenPosterior:
    """A posterior at points with NaN for inputs that are not known.

    An unknown input has one of several values, with equal probabilities, and independently in each point. The function
    there is that of a mixture: means and covariances follow by the law of total variance, and every sample takes one of
    the values. At all other points nothing changes. The values, shape (k, d), are in the units of the model; a point
    takes the same row for all of its unknown inputs.

    Quantiles and densities are those of a normal distribution with these moments: a few values stand for all that an
    input may be, and a mixture of narrow distributions would have next to no density between them.

    Targets of one model share one variance. It has the largest of the variances that the unknown inputs cause in them.
    Targets with their own models each have a posterior, and the variance that belongs to it.
    """

    def __init__(self, posterior: Posterior, values: Tensor) -> None:
        self._posterior, self._values = posterior, values

    def _copies(self, X: Tensor) -> _Copies:
        is_open = X.isnan()
        count = torch.where(is_open.any(1), len(self._values), 1)
        first = count.cumsum(0) - count
        owner = torch.arange(len(X), device=X.device).repeat_interleave(count)
        number = torch.arange(len(owner), device=X.device) - first[owner]
        return _Copies(torch.where(is_open[owner], self._values[number], X[owner]), owner, first, count)

    def averaged(self, function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
        """Return the mean of a function of known points over what the unknown inputs may be."""
        copies = self._copies(X)
        return copies.average(function(copies.points))

    def mean(self, X: Tensor) -> Tensor:
        """Return the mean, shape (m, t)."""
        return self.averaged(self._posterior.mean, X)

    def noise_at(self, X: Tensor) -> Tensor:
        """Return the expected noise variance of new rows, shape (m,)."""
        return self.averaged(self._posterior.noise_at, X)

    def mean_and_variance(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return the mean (m, t) and the variance (m,)."""
        copies = self._copies(X)
        means, variances = self._posterior.mean_and_variance(copies.points, method)
        mean, between = self._between(copies, means)
        return mean, copies.average(variances) + between

    def _between(self, copies: _Copies, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means (m, t) over copies, and the variance (m,) of those of the copies about them."""
        mean = copies.average(means)
        return mean, copies.average((means - mean[copies.owner]).square()).amax(1)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the covariance at all pairs of points, shape (m, m)."""
        copies = self._copies(X)
        each = self._posterior.covariance(copies.points)
        found = copies.average(copies.average(each).T)
        _, between = self._between(copies, self._posterior.mean(copies.points))
        # A point shares the value of its unknown inputs with itself alone.
        return found.diagonal_scatter(copies.average(each.diagonal()) + between)

    def sample_at(self, X: Tensor, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return joint samples at points, shape (m, t, s)."""
        copies = self._copies(X)
        drawn = self._posterior.sample_at(copies.points, n_samples, generator)
        return _one_of_each(drawn, copies, torch.rand(len(X), n_samples, generator=generator))

    def samples_of(self, functions: SampleFunctions, X: Tensor, generator: torch.Generator) -> Tensor:
        """Return samples (m, t, s) of the posterior, which are functions of known points, at points."""
        copies = self._copies(X)
        values = functions(copies.points)
        return _one_of_each(values, copies, torch.rand(len(X), values.shape[2], generator=generator))

    def variance_parts(self, X: Tensor) -> VarianceParts:
        """Return the parts of the variance; that of the unknown inputs is due to finite data."""
        copies = self._copies(X)
        parts = self._posterior.variance_parts(copies.points)
        _, between = self._between(copies, self._posterior.mean(copies.points))
        return VarianceParts(copies.average(parts.mathematical) + between, copies.average(parts.computational))


def _one_of_each(values: Tensor, copies: _Copies, uniform: Tensor) -> Tensor:
    """Return samples (m, t, s) from those at all copies (e, t, s), by uniform numbers (m, s)."""
    count = copies.copies[:, None]
    chosen = copies.first[:, None] + torch.minimum((uniform.to(values) * count).long(), count - 1)
    return values.gather(0, chosen[:, None, :].expand(-1, values.shape[1], -1))
