"""Likelihoods of targets that are known to lie in an interval of a normal variable: limits, and ordered levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.model.likelihoods.base import Likelihood
from gigagp.settings.fields import Settings

#: Where the normal distribution function is 1: derivatives of its logarithm are quotients that overflow beyond.
_CERTAIN = 12.0
#: Fewest and most levels.
_FEWEST, _MOST = 3, 100


def _log_ndtr(x: Tensor) -> Tensor:
    return torch.special.log_ndtr(x.clamp_max(_CERTAIN))


def log_probability_between(lower: Tensor, upper: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the log of the probability that a normal variable is in an interval, one end of which is finite.

    In the upper tail it is that of the mirrored interval.
    """
    has_lower, has_upper = torch.isfinite(lower), torch.isfinite(upper)
    # Infinite ends are replaced before anything is computed with them: 0 times their derivative is no number.
    a = (torch.where(has_lower, lower, torch.where(has_upper, upper, mean) - std) - mean) / std
    b = (torch.where(has_upper, upper, torch.where(has_lower, lower, mean) + std) - mean) / std
    mirrored = torch.where(has_lower & has_upper, a + b > 0, has_lower)
    low, high = torch.where(mirrored, -b, a), torch.where(mirrored, -a, b)
    is_tail = ~(has_lower & has_upper)
    top = _log_ndtr(high)
    rest = (_log_ndtr(low) - top).clamp_max(-1e-300)
    return top + torch.where(is_tail, 0.0, torch.log(-torch.expm1(rest)))


@dataclass(frozen=True)
class Censored(Likelihood):
    """``y = f + noise`` with Gaussian noise, where some targets are known only within limits: detection limits.

    A target is a pair, ``y`` of shape (n, 2): the limits that it lies between. They are equal where it was measured.
    The lower one is ``-inf`` where the target was below a detection limit, and the upper one ``inf`` where it was above
    the range of the instrument. Predictions are of the target itself, beyond its limits.
    """

    is_log_concave = True
    has_noise = True
    only_laplace = True
    has_limits = True
    name = "censored"

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        lower, upper = y
        is_measured = lower == upper
        value = torch.where(is_measured, lower, 0.0)
        measured = -0.5 * ((2 * math.pi * noise).log() + (value - f).square() / noise)
        ends = torch.where(is_measured, -torch.inf, lower), torch.where(is_measured, f, upper)
        return torch.where(is_measured, measured, log_probability_between(*ends, f, noise.sqrt()))

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return self.log_density(y, mean, noise + std.square())

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        normal = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
        return mean + (std.square() + noise).sqrt() * normal

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        return f + noise.sqrt() * torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)


@dataclass(frozen=True)
class Ordinal(Settings, Likelihood):
    """Ordered levels 0, 1, ..., K - 1, such as grades and stages: the level that ``f + e`` with normal e lies in.

    The first threshold is 0, because the mean of f is learned; the others follow at gaps that are learned. The mean of
    a target is that of its level as a number; ``predictive_log_density`` has the probability of each level.

    Parameters
    ----------
    gaps : tuple of float or None, default None
        Distances between thresholds, K - 2 of them. None: learned, and there are as many levels as the rows show.
    """

    gaps: tuple[float, ...] | None = None

    is_log_concave = True
    only_laplace = True
    signal_variance = 1.0
    name = "ordinal"
    learned: ClassVar = {"gaps": 1.0}

    def start(self, y: Tensor) -> dict[str, Tensor]:
        """Begin with the thresholds of a normal variable that has the levels' shares."""
        if self.gaps is not None:
            return {}
        n_levels = int(y.max()) + 1
        if not _FEWEST <= n_levels <= _MOST:
            raise InvalidInputError(
                f"targets of the ordinal likelihood must have {_FEWEST} to {_MOST} levels, numbered from 0; got "
                f"{n_levels}. For two classes use GPClassifier."
            )
        shares = torch.bincount(y.reshape(-1).long(), minlength=n_levels).double() + 0.5
        ends = torch.special.ndtri((shares.cumsum(0) / shares.sum())[:-1])
        return {"gaps": math.sqrt(2) * ends.diff()}

    def _thresholds(self, like: Tensor) -> Tensor:
        if self.gaps is None:
            raise InvalidInputError(
                "the ordinal likelihood learns its levels in a fit; before one, give likelihoods.Ordinal(gaps=...)."
            )
        return torch.cat([like.new_zeros(1), self.value("gaps", like).cumsum(0)])

    def check_targets(self, y: Tensor) -> None:
        most = math.inf if self.gaps is None else len(self.gaps) + 1
        what = "levels: whole numbers, 0 or above" if self.gaps is None else f"whole numbers from 0 to {most}"
        self.refuse(~((y >= 0) & (y == y.round()) & (y <= most)), y, what)

    def check_rows(self, y: Tensor) -> None:
        missing = (torch.bincount(y.reshape(-1).long()) == 0).nonzero()
        if self.gaps is None and len(missing):
            raise InvalidInputError(
                f"targets of the ordinal likelihood must have all levels from 0 to {int(y.max())}, because the gaps "
                f"between them are learned; no row has {int(missing[0])}. Number the levels without gaps, or give "
                "likelihoods.Ordinal(gaps=...)."
            )

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return self._log_probability(y, f, torch.ones((), dtype=f.dtype, device=f.device))

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return self._log_probability(y, mean, (1 + std.square()).sqrt())

    def _log_probability(self, y: Tensor, f: Tensor, spread: Tensor) -> Tensor:
        ends, infinite = self._thresholds(f), f.new_full((1,), math.inf)
        level = y.long()
        lower, upper = torch.cat([-infinite, ends])[level], torch.cat([ends, infinite])[level]
        return log_probability_between(lower, upper, f, spread)

    def target_mean(self, f: Tensor) -> Tensor:
        """Return the mean level, the sum of the probabilities of all thresholds to be exceeded."""
        return torch.special.ndtr(f[..., None] - self._thresholds(f)).sum(-1)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        above = torch.special.ndtr(f[..., None] - self._thresholds(f))
        odd = 2 * torch.arange(above.shape[-1], dtype=f.dtype, device=f.device) + 1
        return ((odd * above).sum(-1) - above.sum(-1).square()).clamp_min(0)

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the least level that is not exceeded with a probability."""
        mean, std = torch.broadcast_tensors(mean, std)
        spread = (1 + std.square()).sqrt()[..., None]
        below = torch.special.ndtr((self._thresholds(mean) - mean[..., None]) / spread)
        return (below < level).sum(-1).double()

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        noisy = f + torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)
        return (noisy[..., None] > self._thresholds(f)).sum(-1).double()
