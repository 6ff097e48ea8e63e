"""Likelihoods of two classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods.base import NODES, Likelihood, hermite


class _Binary(Likelihood):
    """Base of the likelihoods of two classes, coded as -1 and 1."""

    is_log_concave = True

    def check_targets(self, y: Tensor) -> None:
        """Raise an error for targets other than -1 and 1."""
        if not bool((y.abs() == 1).all()):
            msg = f"targets of the {self.name} likelihood must be -1 and 1; got {y[y.abs() != 1][:3].tolist()}."
            raise InvalidInputError(msg)

    def target_mean(self, f: Tensor) -> Tensor:
        """Return ``2 P - 1``, for the probability P of class 1."""
        return self.probability(f) - self.probability(-f)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        """Return ``4 P (1 - P)``."""
        return 4 * self.probability(f) * self.probability(-f)

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return -1 or 1."""
        centre = self.target_moments(mean, std, noise).mean
        return torch.where(0.5 - 0.5 * centre >= level, -torch.ones_like(centre), torch.ones_like(centre))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return signs."""
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
        """Return the logarithm of the logistic function of ``y f``."""
        return torch.nn.functional.logsigmoid(y * f)

    def probability(self, f: Tensor) -> Tensor:
        """Return the logistic function."""
        return torch.sigmoid(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the average by quadrature."""
        places, weights = (one.to(mean) for one in hermite(nodes))
        return torch.sigmoid(mean[..., None] + std[..., None] * places) @ weights

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return one fourth, the largest curvature."""
        return 0.25


@dataclass(frozen=True)
class Probit(_Binary):
    """``P(y = 1) = Phi(f)``, the normal distribution function: classification with lighter tails than `Logistic`."""

    name = "probit"
    signal_variance = 3.0

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the logarithm of the normal distribution function of ``y f``."""
        return torch.special.log_ndtr(y * f)

    def probability(self, f: Tensor) -> Tensor:
        """Return the normal distribution function."""
        return torch.special.ndtr(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the average in closed form."""
        return torch.special.ndtr(mean / (1 + std.square()).sqrt())

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return ``2 / pi``, the curvature at zero."""
        return 2 / math.pi
