"""The distribution of the latent function at single points, as a mixture of normal distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

#: Halvings of the interval of a quantile; its width is then 1e-15 of the interval.
_HALVINGS = 50


@dataclass(frozen=True)
class Marginals:
    """At each point a mixture of k normal distributions; most posteriors have k = 1. In the units of the model."""

    weights: torch.Tensor  # positive, with the sum 1, (k,)
    means: torch.Tensor  # (k, m, t)
    variances: torch.Tensor  # for all targets, (k, m)

    def plus(self, noise: torch.Tensor) -> Marginals:
        """Return the distribution of observations: with noise variances, shape (k, m) or (m,), added."""
        return Marginals(self.weights, self.means, self.variances + noise)

    def log_density(self, Y: torch.Tensor) -> torch.Tensor:
        """Return the log density of values, shape (m, t), in nats and in the units of the model."""
        variances = self.variances[:, :, None]
        logs = -0.5 * ((Y - self.means).square() / variances + variances.log() + math.log(2 * math.pi))
        return (self.weights.to(logs).log()[:, None, None] + logs).logsumexp(0)

    def quantile(self, probability: float) -> torch.Tensor:
        """Return the quantile at each point, shape (m, t), by bisection between those of the components."""
        deviation = torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)).to(self.means)
        std = self.variances.sqrt()[:, :, None]
        each = self.means + deviation * std
        low, high = each.amin(0), each.amax(0)
        weights, least = self.weights.to(self.means)[:, None, None], torch.finfo(std.dtype).tiny
        for _ in range(_HALVINGS if len(self.weights) > 1 else 0):
            middle = 0.5 * (low + high)
            below = (weights * torch.special.ndtr((middle - self.means) / std.clamp_min(least))).sum(0) < probability
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return 0.5 * (low + high)
