"""Likelihood of counts, and the mixture of Poisson distributions that a prediction is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.model.likelihoods.base import NODES, Likelihood, TargetMoments

#: Nats below the largest integrand at which integrals over rates end.
_NATS = 40.0
#: Nodes of the trapezoidal rule for a density and for a distribution function, and its ends in standard deviations.
_DENSITY_NODES, _NODES, _END = 256, 128, 9.0
#: Rows that are integrated at once.
_ROWS = 2048
#: Newton steps, from above, to the most likely rate; halvings of the ends of an integral; counts that a search tries.
_NEWTON_STEPS, _HALVINGS, _TRIED = 60, 30, 400
#: Counts from which Stirling's series has all digits.
_STIRLING = 100.0
#: What counts must be. Beyond 2^53 neighbouring whole numbers are the same in float64.
COUNTS = "whole numbers from 0 to 2^53 (9e15)"


def is_no_count(y: Tensor) -> Tensor:
    """Return which numbers are no counts."""
    return ~((y >= 0) & (y == y.round()) & (y <= 2.0**53))


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with rate ``exp(f)``.

    A prediction is a mixture of Poisson distributions whose rates are log-normal: its mean is that of the rate, and
    its variance that of the rate plus the mean.
    """

    is_log_concave = True
    name = "poisson"
    exposure = "rate"
    values = "counts"
    signal_variance = 1.0

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return y * f - f.exp() - torch.lgamma(y + 1)

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation in closed form; the rate is log-normal."""
        return y * mean - (mean + 0.5 * std.square()).exp() - torch.lgamma(y + 1)

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log probability of the mixture, by the trapezoidal rule around the most likely rate."""
        y, mean, std = torch.broadcast_tensors(y, mean, std)
        parts = zip(*(one.reshape(-1).split(_ROWS) for one in (y, mean, std)), strict=True)
        found = [_log_probability(*part) for part in parts]
        return torch.cat(found).reshape(y.shape)

    def check_targets(self, y: Tensor) -> None:
        self.refuse(is_no_count(y), y, COUNTS)

    def peak(self, y: Tensor, std: Tensor) -> Tensor:
        return y.log() - 0.5 * std.square()

    def on_latent_scale(self, y: Tensor) -> Tensor:
        """Return logarithms, of zero counts as of half a count."""
        return y.clamp_min(0.5).log()

    def start_curvature(self, y: Tensor, noise: float) -> float:
        return max(float(y.double().mean()), 0.1)

    def target_mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        return f.exp()

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        variance = std.square()
        centre = (mean + 0.5 * variance).exp()
        of_mean = centre.square() * torch.expm1(variance)
        return TargetMoments(centre, of_mean, of_mean + centre)

    def target_covariance(self, mean: Tensor, covariance: Tensor) -> Tensor:
        centre = (mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1)).exp()
        return centre[..., :, None] * centre[..., None, :] * torch.expm1(covariance)

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the least count whose probability, with all smaller counts, reaches a level."""
        mean, std = torch.broadcast_tensors(mean.double(), std.double())
        parts = zip(mean.reshape(-1).split(_ROWS), std.reshape(-1).split(_ROWS), strict=True)
        found = [_quantile(level, *part) for part in parts]
        return torch.cat(found).reshape(mean.shape)

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        return torch.poisson(f.exp(), generator=generator)


def _log_probability(y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``log E Poisson(y | e^f)`` for ``f ~ N(mean, std^2)``, each of shape (m,).

    With u the log rate where the integrand is largest, and ``f = u + std t``, the integrand over t is
    ``exp(-e^u (e^(std t) - 1 - std t) - t^2 / 2)`` times its largest value.
    """
    u = _most_likely_log_rate(y, mean, std.square())
    rate = u.exp()
    # Both are the same at u; this one has more digits.
    z = torch.where(std.square() * y < 1, std * (y - rate), (u - mean) / torch.where(std > 0, std, 1.0))

    def drop(t: Tensor) -> Tensor:
        """Return the nats below the largest value, for t of shape (m, k)."""
        moved = std[:, None] * t
        return rate.clamp_min(1e-300)[:, None] * (torch.expm1(moved) - moved) + 0.5 * t.square()

    left, right = (_reach(drop, side, mean) for side in (-1.0, 1.0))
    shares = torch.linspace(0, 1, _DENSITY_NODES, dtype=mean.dtype, device=mean.device)
    t = (left + right) * shares - left
    step = (left + right)[:, 0] / (_DENSITY_NODES - 1)
    integral = torch.exp(-drop(t)).sum(1) * step / math.sqrt(2 * math.pi)
    return _log_poisson(y, u, rate) - 0.5 * z.square() + integral.log()


def _most_likely_log_rate(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return the root u of ``u + variance e^u = mean + variance y``, by Newton's method.

    The left side is convex and rises, and all starts are above the root, so that no step goes too far.
    """
    c = mean + variance * y
    inside = torch.minimum(c, torch.log(c.clamp_min(1e-300)) - torch.log(variance.clamp_min(1e-300)))
    u = torch.where(c <= 0, c, torch.where(c <= variance, torch.zeros_like(c), inside))
    for _ in range(_NEWTON_STEPS):
        weighted = variance * u.exp()
        u = u - (u + weighted - c) / (1 + weighted)
    return u


def _reach(drop: Callable[[Tensor], Tensor], side: float, like: Tensor) -> Tensor:
    """Return how far one has to go to one side for the integrand to vanish, shape (m, 1)."""
    low, high = torch.zeros_like(like)[:, None], torch.full_like(like, _END)[:, None]
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        within = drop(side * middle) < _NATS
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    return high


def _log_poisson(y: Tensor, u: Tensor, rate: Tensor) -> Tensor:
    """Return the log probability of counts for log rates u, without the cancellation of large terms."""
    large = y.clamp_min(_STIRLING)
    apart = u - large.log()
    series = 1 / (12 * large) - 1 / (360 * large**3) + 1 / (1260 * large**5)
    by_series = -large * (torch.expm1(apart) - apart) - 0.5 * torch.log(2 * math.pi * large) - series
    return torch.where(y < _STIRLING, y * u - rate - torch.lgamma(y + 1), by_series)


def _distribution(count: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return the probability of at most these counts, each of shape (m,).

    It is the probability that the logarithm of a Gamma variable with the shape ``count + 1`` exceeds f. The integral is
    over the narrower of the two, so that the distribution function of the other one is smooth beside its density.
    """
    shape = (count + 1)[:, None]
    found = torch.empty_like(mean)
    narrow = std.square() * shape[:, 0] <= 1
    if bool(narrow.any()):
        places = torch.linspace(-_END, _END, _NODES // 2 + 1, dtype=mean.dtype)
        f = mean[narrow, None] + std[narrow, None] * places
        below = torch.special.gammaincc(shape[narrow].expand_as(f), f.exp())
        found[narrow] = below @ (-0.5 * places.square()).softmax(0)
    wide = ~narrow
    if bool(wide.any()):
        share = _NATS / shape[wide]
        right = (2 * share).sqrt()  # the density has fallen by as many nats there, and to the left beyond this
        left = right + share
        t = (left + right) * torch.linspace(0, 1, _NODES, dtype=mean.dtype) - left
        weights = (-shape[wide] * (torch.expm1(t) - t)).softmax(1)
        apart = (shape[wide].log() + t - mean[wide, None]) / std[wide, None]
        found[wide] = (torch.special.ndtr(apart) * weights).sum(1)
    return found


def _quantile(level: float, mean: Tensor, std: Tensor) -> Tensor:
    """Return quantiles of counts, shape (m,): a bracketed search along a scale on which counts are almost normal."""
    z = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
    bend = std.clamp_min(1e-3)

    def scaled(count: Tensor, bend: Tensor) -> Tensor:
        return 2 * torch.asinh(bend * (count + 0.375).sqrt()) / bend

    def unscaled(value: Tensor, bend: Tensor) -> Tensor:
        return (torch.sinh(0.5 * bend * value.clamp_min(0)) / bend).square() - 0.375

    low, high = torch.full_like(mean, -1.0), torch.full_like(mean, torch.inf)  # of the bracket: below, and not below
    count = unscaled(scaled(mean.exp(), bend) + z, bend).round().clamp(0, 1e300)
    for step in range(_TRIED):
        open_ = torch.nonzero(high - low > (4 * torch.finfo(mean.dtype).eps * high.clamp_max(1e300)).clamp_min(1.0))[
            :, 0
        ]
        if not len(open_):
            break
        k = count[open_]
        reached = _distribution(k, mean[open_], std[open_])
        below = reached < level
        low[open_], high[open_] = torch.where(below, k, low[open_]), torch.where(below, high[open_], k)
        bottom, top = low[open_], high[open_]
        near = unscaled(scaled(k, bend[open_]) + z - torch.special.ndtri(reached.clamp(1e-300, 1 - 1e-16)), bend[open_])
        half = torch.where(torch.isinf(top), 2 * bottom + 1, (0.5 * (bottom + top)).floor())
        tried = half if step % 4 == 3 else near.round()
        count[open_] = torch.minimum(torch.maximum(tried, bottom + 1), top - 1)
    return high
