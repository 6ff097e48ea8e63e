"""Likelihoods of counts, amounts and times whose mean is a factor times ``exp(f)``; parameters are learned."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gigagp.model.likelihoods.base import Likelihood, TargetMoments
from gigagp.model.likelihoods.counts import COUNTS, Poisson, is_no_count
from gigagp.model.likelihoods.mixtures import log_integral
from gigagp.settings.fields import Positive, Settings

#: Largest log rate whose exponential is computed, so that derivatives stay finite.
_LARGEST = 600.0
#: Log rate below which ``log(exp(rate) - 1)`` is its series.
_SMALL = -20.0
#: Numbers from which Stirling's series has all digits.
_STIRLING = 100.0
#: Amounts and times: a curvature of 1e20 beside others of 1 has no factor in float64.
_LEAST_AMOUNT, _LARGEST_AMOUNT = 1e-15, 1e15
_AMOUNTS = "from 1e-15 to 1e15 (give them in other units)"
#: Rows that are integrated at once.
_ROWS = 2048


def _is_no_amount(y: Tensor) -> Tensor:
    return ~((y >= _LEAST_AMOUNT) & (y <= _LARGEST_AMOUNT))


def rate(f: Tensor) -> Tensor:
    """Return ``exp(f)``, which stays finite."""
    return f.clamp_max(_LARGEST).exp()


def _log_factorial(y: Tensor) -> Tensor:
    return torch.lgamma(y + 1)


def _log_rising(y: Tensor, r: Tensor) -> Tensor:
    """Return ``log(Gamma(y + r) / (Gamma(r) r^y))``, without the cancellation of large terms."""
    large = r.clamp_min(_STIRLING)
    rest = [1 / (12 * one) - 1 / (360 * one**3) + 1 / (1260 * one**5) for one in (y + large, large)]
    series = (y + large - 0.5) * torch.log1p(y / large) - y + rest[0] - rest[1]
    small = r.clamp_max(_STIRLING)
    plain = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
    return torch.where(r < _STIRLING, plain, series)


def gamma_draws(shape: Tensor, generator: torch.Generator) -> Tensor:
    """Return Gamma variables with a scale of 1."""
    drawn: Tensor = torch._standard_gamma(shape.double(), generator=generator)
    return drawn


class Rate(Settings, Likelihood):
    """Base of likelihoods with ``E[y | f] = a e^f`` and ``Var[y | f] = b e^f + c e^(2f)``, which `powers` returns.

    The exposure of a row, such as hours, area or people, multiplies ``e^f``. Predictions are in closed form, because
    ``e^f`` is log-normal; densities of a mixture are integrals around their largest values.
    """

    only_laplace = True
    exposure = "rate"
    signal_variance = 1.0

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return a, b and c."""
        raise NotImplementedError

    def target_mean(self, f: Tensor) -> Tensor:
        return self.powers(f)[0] * rate(f)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        _, b, c = self.powers(f)
        return b * rate(f) + c * rate(f).square()

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        a, b, c = self.powers(mean)
        variance = std.square()
        centre = rate(mean + 0.5 * variance)
        of_mean = (a * centre).square() * torch.expm1(variance)
        return TargetMoments(a * centre, of_mean, of_mean + b * centre + c * centre.square() * variance.exp())

    def target_covariance(self, mean: Tensor, covariance: Tensor) -> Tensor:
        centre = self.target_mean(mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1))
        return centre[..., :, None] * centre[..., None, :] * torch.expm1(covariance)

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log density of the mixture, by the trapezoidal rule around its largest integrand."""
        ends = y.shape[: int(self.has_limits)]  # a target with limits has both of them first
        shape = torch.broadcast_shapes(y.shape[len(ends) :], mean.shape, std.shape, noise.shape)
        rows = [one.expand(shape).reshape(-1).split(_ROWS) for one in (mean, std, noise)]
        found = []
        for one, m, s, e in zip(y.expand(*ends, *shape).reshape(*ends, -1).split(_ROWS, -1), *rows, strict=True):

            def at(z: Tensor, one: Tensor = one, m: Tensor = m, s: Tensor = s, e: Tensor = e) -> Tensor:
                return self.log_density(one[..., None], m[:, None] + s[:, None] * z, e[:, None])

            found.append(log_integral(at, m))
        return torch.cat(found).reshape(shape)

    def check_targets(self, y: Tensor) -> None:
        if self.values == "counts":
            self.refuse(is_no_count(y), y, COUNTS)
        else:
            self.refuse(_is_no_amount(y), y, f"positive, {_AMOUNTS}")


@dataclass(frozen=True)
class NegativeBinomial(Rate):
    """Counts that vary more than Poisson counts of the same rate: variance ``m + dispersion m^2`` for the mean m.

    When to use: for counts of things that come in clusters. `Poisson` would take the excess for a rough function.

    Parameters
    ----------
    dispersion : float or None, default None
        Overdispersion; at 0 counts would be Poisson. None: learned.
    """

    dispersion: Positive | None = None

    is_log_concave = True
    name = "negative-binomial"
    values = "counts"
    learned: ClassVar = {"dispersion": 0.5}

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        a = self.value("dispersion", f)
        # Minus the logarithms of 1 + a e^f and of 1 + e^-f / a.
        of_rest, of_own = (torch.nn.functional.logsigmoid(sign * (f + a.log())) for sign in (-1, 1))
        return _log_rising(y, 1 / a) + y * (of_own - a.log()) + of_rest / a - _log_factorial(y)

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(like)
        return one, one, self.value("dispersion", like) * one

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        from scipy.special import betainc

        a = self.value("dispersion", f)
        success = torch.sigmoid(-f - a.log())
        return torch.as_tensor(betainc(float(1 / a), (y + 1).numpy(), success.numpy()))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        a = self.value("dispersion", f)
        shape = (1 / a).double().expand(f.shape)
        return torch.poisson(rate(f) * gamma_draws(shape, generator) * a, generator=generator)


class _WithZeros(Rate):
    """Base of counts that are 0 with an extra probability, whose odds are a parameter."""

    values = "counts"

    def _share(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log odds of an extra zero, the log probability that there is none, and the extra probability."""
        odds = self.value("zero_odds", like)
        return odds.log(), -torch.log1p(odds), odds / (1 + odds)

    def start(self, y: Tensor) -> dict[str, Tensor]:
        """Begin with half of the zeros as extra ones."""
        found = super().start(y)
        if "zero_odds" in found:
            share = 0.5 * (y == 0).double().mean().clamp(0.05, 0.95)
            found["zero_odds"] = share / (1 - share)
        return found

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return 0 up to the probability of extra zeros, and a quantile of the other counts beyond."""
        extra = float(self._share(mean)[2])
        if level <= extra:
            return torch.zeros(torch.broadcast_shapes(mean.shape, std.shape), dtype=torch.float64)
        return self.others_quantile((level - extra) / (1 - extra), mean, std, noise)

    def others_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return a quantile of counts that are no extra zeros."""
        return Rate.target_quantile(self, level, mean, std, noise)

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(f.shape, generator=generator, dtype=torch.float64)
        drawn = self.draw_others(f, noise, generator)
        return torch.where(uniform < self._share(f)[2], torch.zeros_like(drawn), drawn)

    @abstractmethod
    def draw_others(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return counts that are no extra zeros."""


class _ZeroInflated(_WithZeros):
    """Base of mixtures of zeros and counts that have their own zeros; the density is not log-concave at zero."""

    @abstractmethod
    def counts(self) -> Likelihood:
        """Return the likelihood of counts that are no extra zeros."""

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        log_odds, log_none, _ = self._share(f)
        own = self.counts().log_density(y, f.clamp_max(_LARGEST), noise)
        zero = torch.logaddexp(log_odds.expand_as(own), own.clamp_min(-_LARGEST))
        return log_none + torch.where(y == 0, zero, own)

    def information_at(self, f: Tensor, noise: Tensor) -> Tensor:
        """Return that of the counts less what is lost where a zero may be an extra one.

        It is ``(1 - p) (I - s^2 q) + ((1 - p) q s)^2 / P(0)`` for the probability p of an extra zero, and for counts
        the information I and the probability q and the slope s of a zero.
        """
        _, log_none, extra = self._share(f)
        kept, f = log_none.exp(), f.clamp_max(_LARGEST)
        log_q = self.counts().log_density(torch.zeros_like(f), f, noise)
        # The mean over the variance of counts over their mean, which is I and minus s.
        log_slope = f - torch.log1p(self._dispersion(f) * f.exp())
        lost = torch.exp(2 * log_slope + log_q) * extra / (extra + kept * log_q.exp())
        return kept * (log_slope.exp() - lost)

    def _dispersion(self, like: Tensor) -> Tensor:
        return torch.zeros((), dtype=like.dtype, device=like.device)

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _, log_none, extra = self._share(like)
        kept, one = log_none.exp(), torch.ones_like(like)
        return kept * one, kept * one, kept * (self._dispersion(like) + extra) * one

    def others_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return self.counts().target_quantile(level, mean, std, noise)

    def draw_others(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        return self.counts().draw_targets(f, noise, generator)


@dataclass(frozen=True)
class ZeroInflatedPoisson(_ZeroInflated):
    """Poisson counts, of which some are zeros for another reason: a place where nothing can live, a broken counter.

    Parameters
    ----------
    zero_odds : float or None, default None
        Odds of an extra zero, ``p / (1 - p)`` for its probability p. None: learned.
    """

    zero_odds: Positive | None = None

    name = "zero-inflated-poisson"
    learned: ClassVar = {"zero_odds": 0.2}

    def counts(self) -> Likelihood:
        return Poisson()


@dataclass(frozen=True)
class ZeroInflatedNegativeBinomial(_ZeroInflated):
    """Overdispersed counts with extra zeros; see `NegativeBinomial` and `ZeroInflatedPoisson`.

    Parameters
    ----------
    zero_odds, dispersion : float or None, default None
        Odds of an extra zero, and the overdispersion of the other counts. None: learned. Few counts tell them apart.
    """

    zero_odds: Positive | None = None
    dispersion: Positive | None = None

    name = "zero-inflated-negative-binomial"
    learned: ClassVar = {"zero_odds": 0.2, "dispersion": 0.5}

    def counts(self) -> Likelihood:
        return NegativeBinomial().at({"dispersion": self.dispersion})

    def _dispersion(self, like: Tensor) -> Tensor:
        return self.value("dispersion", like)


@dataclass(frozen=True)
class HurdlePoisson(_WithZeros):
    """Zeros with one probability everywhere, and positive counts of a Poisson distribution without its zero.

    When to use: where it is decided first whether there is anything at all. Zeros then say nothing about the rate of
    the others; where they do, take `ZeroInflatedPoisson`.

    Parameters
    ----------
    zero_odds : float or None, default None
        Odds of a zero. None: learned.
    """

    zero_odds: Positive | None = None

    is_log_concave = True
    name = "hurdle-poisson"
    learned: ClassVar = {"zero_odds": 0.2}

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        log_odds, log_none, _ = self._share(f)
        positive = y * f - _log_exp_minus_one(f) - _log_factorial(y)
        return log_none + torch.where(y == 0, log_odds.expand_as(positive), positive)

    def target_mean(self, f: Tensor) -> Tensor:
        return self._share(f)[1].exp() * _positive_mean(f)

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        kept, mean = self._share(f)[1].exp(), _positive_mean(f)
        return kept * mean * (1 + rate(f)) - (kept * mean).square()

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        return Likelihood.target_moments(self, mean, std, noise)

    def target_covariance(self, mean: Tensor, covariance: Tensor) -> Tensor:
        return Likelihood.target_covariance(self, mean, covariance)

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return that of the positive counts."""
        mean = f.clamp(-500, 500).exp()
        below = torch.special.gammainc(y + 1, mean.expand(torch.broadcast_shapes(y.shape, f.shape)))
        return (1 - below / -torch.expm1(-mean)).clamp(0, 1)

    def draw_others(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return 1 and what comes after the first event, whose time is exponential and known to be early."""
        mean = rate(f).double()
        uniform = torch.rand(f.shape, generator=generator, dtype=torch.float64)
        first = -torch.log1p(uniform * torch.expm1(-mean))
        return 1 + torch.poisson((mean - first).clamp_min(0), generator=generator)


def _log_exp_minus_one(f: Tensor) -> Tensor:
    """Return ``log(exp(exp(f)) - 1)``."""
    mean = rate(f.clamp_min(_SMALL))
    return torch.where(f < _SMALL, f + 0.5 * rate(f), mean + torch.log(-torch.expm1(-mean.clamp_max(_LARGEST))))


def _log_of_event(log_hazard: Tensor) -> Tensor:
    """Return ``log(1 - exp(-h))``, the log probability of an event, for the logarithm of a cumulated hazard h."""
    hazard = log_hazard.clamp(_SMALL, math.log(_LARGEST)).exp()
    return torch.where(log_hazard < _SMALL, log_hazard - 0.5 * rate(log_hazard), torch.log(-torch.expm1(-hazard)))


def _positive_mean(f: Tensor) -> Tensor:
    """Return the mean of a positive Poisson count."""
    mean = rate(f.clamp_min(_SMALL))
    return torch.where(f < _SMALL, 1 + 0.5 * rate(f), mean / -torch.expm1(-mean.clamp_max(_LARGEST)))


@dataclass(frozen=True)
class Gamma(Rate):
    """Positive amounts whose standard deviation is a share ``shape^(-1/2)`` of their mean ``exp(f)``.

    When to use: for rain on wet days, costs and concentrations. A log-normal target is ``target_transform="log"`` with
    Gaussian noise, which needs no approximation.

    Parameters
    ----------
    shape : float or None, default None
        Shape of the distribution; at 1 it is exponential. None: learned.
    """

    shape: Positive | None = None

    is_log_concave = True
    name = "gamma"
    values = "positive"
    learned: ClassVar = {"shape": 2.0}

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        k = self.value("shape", f)
        u = y.log() - f
        return k * (u - rate(u)) + k * k.log() - torch.lgamma(k) - y.log()

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.ones_like(like)
        return one, 0 * one, one / self.value("shape", like)

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        k = self.value("shape", f)
        scaled = k * rate(y.log() - f)
        return torch.special.gammainc(k.expand(scaled.shape), scaled)

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        k = self.value("shape", f).double()
        return rate(f) * gamma_draws(k.expand(f.shape), generator) / k


@dataclass(frozen=True)
class Weibull(Rate):
    """Times to an event, of which some are known only within limits: survival with censoring.

    The hazard is ``shape / scale (t / scale)^(shape - 1)`` with the scale ``exp(f)``, so that f is a log lifetime
    (accelerated failure time). The mean of a time is ``exp(f) Gamma(1 + 1 / shape)``.

    A target is a pair, ``y`` of shape (n, 2): the limits that a time lies between. They are equal where the event was
    seen; the upper one is ``inf`` where it had not happened at the end (right-censored), and the lower one 0 where it
    had happened before the first look.

    Parameters
    ----------
    shape : float or None, default None
        Above 1 the hazard rises with time, and below it falls; 1 is the exponential distribution. None: learned.
    """

    shape: Positive | None = None

    is_log_concave = True
    has_limits = True
    name = "weibull"
    values = "positive"
    exposure = "none"
    learned: ClassVar = {"shape": 1.0}

    def check_targets(self, y: Tensor) -> None:
        lower, upper = y
        self.refuse((lower < 0) | (upper <= 0), lower, "between limits from 0 on, the upper one above 0")
        for limit in y:
            self.refuse((limit > 0) & torch.isfinite(limit) & _is_no_amount(limit), limit, f"between limits {_AMOUNTS}")

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        k = self.value("shape", f)
        lower, upper = y
        is_seen, is_open = lower == upper, torch.isinf(upper)
        first = torch.where(lower > 0, lower, 1.0)  # each branch is finite where another one is taken
        last = torch.where(is_open | is_seen, 2 * first, upper)
        u = first.log() - f
        seen = k.log() - first.log() + k * u - rate(k * u)
        alive = torch.where(lower > 0, -rate(k * u), 0.0)
        # The hazard that is cumulated between the limits.
        share = torch.where(lower > 0, torch.log(-torch.expm1(-k * (last / first).log())), 0.0)
        before = torch.where(is_open, 0.0, _log_of_event(k * (last.log() - f) + share))
        return torch.where(is_seen, seen, alive + before)

    def powers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, one = self.value("shape", like), torch.ones_like(like)
        first, second = torch.lgamma(1 + 1 / k).exp(), torch.lgamma(1 + 2 / k).exp()
        return first * one, 0 * one, (second - first.square()) * one

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return -torch.expm1(-rate(self.value("shape", f) * (y.log() - f)))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(f.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300)
        return rate(f + (-uniform.log()).log() / self.value("shape", f))
