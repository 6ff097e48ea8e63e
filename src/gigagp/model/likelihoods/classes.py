"""Likelihoods of two classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods.base import NODES, Likelihood, TargetMoments, hermite

#: Latent standard deviation from which a probability is a step beside the spread of f. Expectations are then along f
#: itself, from -120 to 120 in steps that see the step.
_WIDE, _END, _NODES = 3.0, 120.0, 801
#: Logits above the variance from which the logistic function is an exponential wherever it matters.
_EXPONENTIAL = 60.0
#: Points that are integrated at once.
_ROWS = 2048


class _Binary(Likelihood):
    """Base of the likelihoods of two classes, coded as -1 and 1."""

    is_log_concave = True

    def check_targets(self, y: Tensor) -> None:
        if not bool((y.abs() == 1).all()):
            msg = f"targets of the {self.name} likelihood must be -1 and 1; got {y[y.abs() != 1][:3].tolist()}."
            raise InvalidInputError(msg)

    def target_mean(self, f: Tensor) -> Tensor:
        """Return ``2 P - 1``, for the probability P of class 1."""
        return self.probability(f) - self.probability(-f)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        return 4 * self.probability(f) * self.probability(-f)

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        """Return the moments by quadrature, along f itself where it is very uncertain."""
        found = super().target_moments(mean, std, noise)
        mean, std, _ = torch.broadcast_tensors(mean, std, noise)
        wide = std > _WIDE
        if not bool(wide.any()):
            return found
        own, rest = (self.mean_probability(side, std[wide]) for side in (mean[wide], -mean[wide]))
        spread = 4 * self._expected(lambda f: self.probability(f) * self.probability(-f), mean[wide], std[wide])
        parts = own - rest, (4 * own * rest - spread).clamp_min(0), 4 * own * rest
        return TargetMoments(*(old.masked_scatter(wide, new) for old, new in zip(found, parts, strict=True)))

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log probability of a sign, from `mean_probability` where the function is very uncertain."""
        found = super().predictive_log_density(y, mean, std, noise)
        y, mean, std, _ = torch.broadcast_tensors(y, mean, std, noise)
        probability = self.mean_probability(y * mean, std)
        return torch.where((std > _WIDE) & (probability > 1e-280), probability.log(), found)

    @staticmethod
    def _expected(values: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor) -> Tensor:
        """Return the expectation of a function that vanishes on both sides, for means and wide deviations (m,)."""
        places = torch.linspace(-_END, _END, _NODES, dtype=mean.dtype, device=mean.device)
        weights = values(places) * (2 * _END / (_NODES - 1) / math.sqrt(2 * math.pi))
        pairs = zip(mean.split(_ROWS), std.split(_ROWS), strict=True)
        found = [torch.exp(-0.5 * ((places - m[:, None]) / s[:, None]).square()) @ weights / s for m, s in pairs]
        return torch.cat(found)

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return -1 or 1."""
        centre = self.target_moments(mean, std, noise).mean
        return torch.where(0.5 - 0.5 * centre >= level, -torch.ones_like(centre), torch.ones_like(centre))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(f.shape, generator=generator, dtype=torch.float64).to(f)
        return torch.where(uniform < self.probability(f), torch.ones_like(f), -torch.ones_like(f))

    @abstractmethod
    def probability(self, f: Tensor) -> Tensor:
        """Return the probability of class 1 at a latent value."""

    @abstractmethod
    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the probability of class 1 averaged over ``f ~ N(mean, std^2)``."""


@dataclass(frozen=True)
class Logistic(_Binary):
    """``P(y = 1) = 1 / (1 + exp(-f))``, for classification."""

    name = "logistic"
    signal_variance = 9.0  # probabilities from 0.05 to 0.95

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(y * f)

    def probability(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the average by quadrature.

        It is also the probability that a logistic variable is below f. Where f is very uncertain, the average is over
        that variable, so that what is averaged is smooth.
        """
        mean, std = torch.broadcast_tensors(mean, std)
        places, weights = (one.to(mean) for one in hermite(nodes))
        found = torch.sigmoid(mean[..., None] + std[..., None] * places) @ weights
        wide = (std > _WIDE) & (mean.abs() < std.square() + _EXPONENTIAL)
        if not bool(wide.any()):
            return found
        places = torch.linspace(-_END, _END, _NODES, dtype=mean.dtype, device=mean.device)
        density = (torch.nn.functional.logsigmoid(places) + torch.nn.functional.logsigmoid(-places)).softmax(0)
        pairs = zip(mean[wide].split(_ROWS), std[wide].split(_ROWS), strict=True)
        parts = [torch.special.ndtr((m[:, None] - places) / s[:, None]) @ density for m, s in pairs]
        return found.masked_scatter(wide, torch.cat(parts))

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return one fourth, the largest curvature."""
        return 0.25


@dataclass(frozen=True)
class Probit(_Binary):
    """``P(y = 1) = Phi(f)``, the normal distribution function: classification with lighter tails than `Logistic`."""

    name = "probit"
    signal_variance = 3.0

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return torch.special.log_ndtr(y * f)

    def probability(self, f: Tensor) -> Tensor:
        return torch.special.ndtr(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        return torch.special.ndtr(mean / (1 + std.square()).sqrt())

    def start_curvature(self, y: Tensor, noise: float) -> float:
        return 2 / math.pi
