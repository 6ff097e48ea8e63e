"""Likelihoods of proportions, whose mean is the logistic function of f: successes in trials, and shares."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from gigagp.model.likelihoods.base import Likelihood, TargetMoments
from gigagp.model.likelihoods.classes import Logistic
from gigagp.model.likelihoods.mixtures import mean_distribution, quantile_of
from gigagp.model.likelihoods.rates import Rate, gamma_draws
from gigagp.settings.fields import Positive, Settings

#: Largest log-odds whose probability is computed, so that derivatives stay finite.
_LARGEST = 100.0


class _Proportion(Settings, Likelihood):
    """Base of likelihoods with ``E[y | f] = p`` and ``Var[y | f] = s p (1 - p)``, where `share` returns s."""

    only_laplace = True
    signal_variance = 3.0

    @abstractmethod
    def share(self, noise: Tensor) -> Tensor:
        """Return s, at most 1."""

    def target_mean(self, f: Tensor) -> Tensor:
        return torch.sigmoid(f)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        return self.share(noise) * torch.sigmoid(f) * torch.sigmoid(-f)

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        """Return the moments, from those of a sign with the same probability."""
        sign = Logistic().target_moments(mean, std, noise)
        of_mean, within = sign.of_mean / 4, (sign.of_target - sign.of_mean) / 4
        return TargetMoments(0.5 + 0.5 * sign.mean, of_mean, of_mean + self.share(noise) * within)

    predictive_log_density = Rate.predictive_log_density


@dataclass(frozen=True)
class Binomial(_Proportion):
    """Successes in trials: their probability has the log-odds f.

    The exposure of a row is its number of trials, in a fit as ``exposure`` of `GPRegressor.fit` and in predictions as
    ``exposure`` of `GPRegressor.predict`, where 1 trial is the default and the mean is then the probability.
    """

    is_log_concave = True
    exposure = "trials"
    name = "binomial"
    # The target of all methods is the proportion of successes, and ``noise`` is the number of trials.

    def share(self, noise: Tensor) -> Tensor:
        return 1 / noise

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        successes, failures = y * noise, (1 - y) * noise
        ways = torch.lgamma(noise + 1) - torch.lgamma(successes + 1) - torch.lgamma(failures + 1)
        logsigmoid = torch.nn.functional.logsigmoid
        return ways + successes * logsigmoid(f) + failures * logsigmoid(-f)

    def check_targets(self, y: Tensor) -> None:
        self.refuse(~((y >= 0) & (y <= 1)), y, "proportions from 0 to 1")

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return quantile_of(partial(mean_distribution, self._of_successes), "counts", level, mean, std, noise) / noise

    def _of_successes(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        from scipy.special import betainc

        rest = (noise - y).clamp_min(1e-9).expand(torch.broadcast_shapes(y.shape, f.shape))
        found = torch.as_tensor(betainc(rest.numpy(), (y + 1).numpy(), torch.sigmoid(-f).numpy()))
        return torch.where(rest <= 1e-9, 1.0, found)

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        trials = noise.double().expand(f.shape).contiguous()
        return torch.binomial(trials, torch.sigmoid(f).double(), generator=generator) / trials


@dataclass(frozen=True)
class Beta(_Proportion):
    """Shares strictly between 0 and 1 whose mean has the log-odds f: cover, moisture, market shares.

    Parameters
    ----------
    precision : float or None, default None
        The variance of a share is ``m (1 - m) / (1 + precision)`` for its mean m. None: learned.
    """

    precision: Positive | None = None

    name = "beta"
    values = "unit"
    learned: ClassVar = {"precision": 5.0}

    def share(self, noise: Tensor) -> Tensor:
        return 1 / (1 + self.value("precision", noise))

    def _shapes(self, f: Tensor) -> tuple[Tensor, Tensor]:
        precision, f = self.value("precision", f), f.clamp(-_LARGEST, _LARGEST)
        return precision * torch.sigmoid(f), precision * torch.sigmoid(-f)

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        a, b = self._shapes(f)
        whole = torch.lgamma(self.value("precision", f)) - torch.lgamma(a) - torch.lgamma(b)
        return whole + (a - 1) * y.log() + (b - 1) * torch.log1p(-y)

    def information_at(self, f: Tensor, noise: Tensor) -> Tensor:
        a, b = self._shapes(f)
        slope = a * b / self.value("precision", f)
        return slope.square() * (torch.polygamma(1, a) + torch.polygamma(1, b))

    def check_targets(self, y: Tensor) -> None:
        self.refuse(~((y > 0) & (y < 1)), y, "above 0 and below 1")

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        from scipy.special import betainc

        a, b = self._shapes(f)
        return torch.as_tensor(betainc(a.numpy(), b.numpy(), y.expand(a.shape).numpy()))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        one, other = (gamma_draws(shape, generator).clamp_min(1e-300) for shape in self._shapes(f))
        return one / (one + other)
