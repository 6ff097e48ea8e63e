"""Targets whose latent function is uncertain: integrals and quantiles of a mixture over ``f ~ N(mean, std^2)``."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

#: Values that targets have.
Values = Literal["real", "positive", "unit", "counts"]

#: Nodes of the trapezoidal rule for a density, and its first ends in standard deviations.
_NODES, _END = 257, 12.0
#: Nats below the largest integrand at which an integral ends, and the share of the nodes that must be above.
_NATS, _SHARE = 40.0, 0.1
#: Most times that an integral moves or narrows its ends.
_MOVES = 60
#: Nodes of Gauss's rule for a distribution function, its ends, and the halvings that find where it is 1 and 0.
_GAUSS, _FAR, _HALVINGS, _ROUNDING = 64, 9.0, 22, 1e-14
#: Points that are integrated at once, doublings of a bracket, steps of a search.
_ROWS, _DOUBLINGS, _STEPS = 2048, 60, 100
#: How close a search comes to a place and to a level, and the least share of a bracket that a step leaves out.
_CLOSE, _EXACT, _INSIDE = 1e-12, 1e-12, 1e-3

_Function = Callable[[Tensor, Tensor, Tensor], Tensor]
_Mixture = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def log_integral(log_density: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Return the log of the mean of a density over standard normal z, shape (m,) as ``like``.

    ``log_density`` takes z (m, k). The trapezoidal rule begins with 12 standard deviations to either side. Its ends
    move outwards where the integrand is largest at one of them, and inwards where it vanishes at most nodes: a density
    of many counts, or one far from all that was expected, may be narrow beside the spread of f.
    """
    low, high = torch.full_like(like, -_END), torch.full_like(like, _END)
    shares = torch.linspace(0, 1, _NODES, dtype=like.dtype, device=like.device)
    for _ in range(_MOVES):
        width = high - low
        z = low[:, None] + width[:, None] * shares
        logs = log_density(z) - 0.5 * z.square()
        top, place = logs.max(1)
        large = logs > top[:, None] - _NATS
        first = large.int().argmax(1)
        last = _NODES - 1 - large.flip(1).int().argmax(1)
        at_left, at_right = (place == 0) & (low > -1e8), (place == _NODES - 1) & (high < 1e8)
        narrow = ~at_left & ~at_right & (last - first < _SHARE * _NODES) & torch.isfinite(top) & (width > 1e-12)
        if not bool((at_left | at_right | narrow).any()):
            break
        step = width / (_NODES - 1)
        inner = low + step * (first - 1).clamp_min(0), low + step * (last + 1).clamp_max(_NODES - 1)
        low = torch.where(at_left, low - width, torch.where(narrow, inner[0], low))
        high = torch.where(at_right, high + width, torch.where(narrow, inner[1], high))
    step = (high - low) / (_NODES - 1)
    ends = torch.ones(_NODES, dtype=like.dtype, device=like.device)
    ends[[0, -1]] = 0.5
    return torch.logsumexp(logs + ends.log(), 1) + step.log() - 0.5 * math.log(2 * math.pi)


def mean_distribution(distribution: _Function, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """Return the mean of a distribution function that falls in f, each of shape (m,).

    Gauss's rule is between the places where it is 1 and where it is 0, so that a steep one is a smooth integrand too.
    """

    def at(z: Tensor) -> Tensor:
        return distribution(y[:, None], mean[:, None] + std[:, None] * z, noise[:, None])

    # The known place of each side, and the nearest one to it where the function may have another value.
    known = torch.tensor([-_FAR, _FAR], dtype=mean.dtype, device=mean.device).expand(len(mean), 2)
    open_ = -known
    for _ in range(_HALVINGS):
        middle = 0.5 * (known + open_)
        reached = at(middle)
        beyond = torch.stack([reached[:, 0] >= 1 - _ROUNDING, reached[:, 1] <= _ROUNDING], 1)
        known, open_ = torch.where(beyond, middle, known), torch.where(beyond, open_, middle)
    left, right = known[:, :1], torch.maximum(known[:, :1], known[:, 1:])
    nodes, weights = (one.to(mean) for one in _gauss())
    half = 0.5 * (right - left)
    z = left + half * (1 + nodes)
    inside = (at(z) * torch.exp(-0.5 * z.square())) @ weights * half[:, 0] / math.sqrt(2 * math.pi)
    return torch.special.ndtr(left[:, 0]) + inside


@lru_cache
def _gauss() -> tuple[Tensor, Tensor]:
    places, weights = np.polynomial.legendre.leggauss(_GAUSS)
    return torch.from_numpy(places), torch.from_numpy(weights)


def quantile_of(mixture: _Mixture, values: Values, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """Return a quantile, float64 of the common shape; of counts the least that reaches the level.

    ``mixture`` is the distribution function at targets, for means, standard deviations and noise of shape (m,).
    """
    mean, std, noise = torch.broadcast_tensors(mean.double(), std.double(), noise.double())
    parts = zip(*(one.reshape(-1).split(_ROWS) for one in (mean, std, noise)), strict=True)
    found = [_quantile(mixture, values, level, *part) for part in parts]
    return torch.cat(found).reshape(mean.shape)


def _quantile(mixture: _Mixture, values: Values, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """Return quantiles of shape (m,): the Illinois method on a scale without bounds."""
    wanted = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))

    def target(t: Tensor) -> Tensor:
        if values == "counts":
            return torch.expm1(t.clamp(0, 690))
        return t if values == "real" else torch.sigmoid(t) if values == "unit" else t.clamp(-700, 700).exp()

    def excess(t: Tensor, rows: Tensor) -> Tensor:
        reached = mixture(target(t), mean[rows], std[rows], noise[rows])
        return torch.special.ndtri(reached.clamp(1e-300, 1 - 1e-16)) - wanted

    every = torch.arange(len(mean), device=mean.device)
    centre = mean.clamp_min(0) if values == "counts" else mean
    width = 3 * (1 + std.square() + (noise if values == "real" else 0)).sqrt()
    ends = []
    for sign in (-1.0, 1.0):
        least = 0.0 if values == "counts" else -torch.inf
        reach = width.clone()
        t = (centre + sign * reach).clamp_min(least)
        value = excess(t, every)
        for _ in range(_DOUBLINGS):
            outside = torch.nonzero((sign * value < 0) & (t > least))[:, 0]
            if not len(outside):
                break
            reach[outside] *= 2
            t[outside] = (centre + sign * reach)[outside].clamp_min(least)
            value[outside] = excess(t[outside], outside)
        ends.append((t, value))
    (low, below), (high, above) = ends
    high = torch.where(below >= 0, low, high)  # of counts: zero reaches the level
    for _ in range(_STEPS):
        rows = torch.nonzero((high - low > _CLOSE * (1 + high.abs())) & (above.abs() > _EXACT))[:, 0]
        if not len(rows):
            break
        a, b, at_a, at_b = low[rows], high[rows], below[rows], above[rows]
        share = (at_a / (at_a - at_b)).nan_to_num(0.5).clamp(_INSIDE, 1 - _INSIDE)
        t = a + share * (b - a)
        value = excess(t, rows)
        short = value < 0
        # The end that stays counts for half, so that the next step comes to its side.
        low[rows], below[rows] = torch.where(short, t, a), torch.where(short, value, 0.5 * at_a)
        high[rows], above[rows] = torch.where(short, b, t), torch.where(short, 0.5 * at_b, value)
    found = target(high)
    return (found - 1e-9 * (1 + found)).ceil() if values == "counts" else found
