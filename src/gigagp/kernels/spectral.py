"""Draws from the tail of a spectral density, balanced over its decades.

Plain Monte Carlo puts one frequency in a thousand where a thousandth of a kernel's variance lies. With many rows and
little noise all of the posterior variance lies there, because the data determine everything but the high frequencies.
A prior function made of a few thousand plain features then has too little (seldom too much) variance between the
rows, and posterior samples made from it are overconfident. So half of the frequencies are drawn with a tail
probability that is uniform on a logarithmic scale, and all have weights that make the kernel's estimate unbiased again
(importance sampling from a mixture; no weight is above two).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError

#: The smallest tail probability on the logarithmic scale. It matters at a noise of 1e-4 of the signal's scale.
SMALLEST_TAIL = 1e-8
#: The table of quantiles: nodes for each unit of log-odds, and half of all nodes. No float64 below 1 has log-odds
#: above 38.
_NODES_A_UNIT = 256
_HALF = 38 * _NODES_A_UNIT


def tail_probabilities(n: int, generator: torch.Generator, *, balanced: bool) -> tuple[Tensor, Tensor]:
    """Return tail probabilities and importance weights, each of shape (n, 1).

    Without ``balanced`` they are uniform with weights 1, which is drawing from the spectral density itself.
    """
    uniform = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    if not balanced:
        return uniform, torch.ones_like(uniform)
    # both halves are stratified: the j-th draw lies in the j-th of equal cells
    half = n // 2
    cells = torch.arange(n, dtype=torch.float64)[:, None]
    body = (cells[half:] - half + uniform[half:]) / (n - half)
    tail = SMALLEST_TAIL ** ((cells[:half] + uniform[:half]) / max(half, 1))
    probability = torch.cat([tail, body])
    share = half / n
    # in random order, because the leaves of a product pair their draws by position and have to be independent
    probability = probability[torch.randperm(n, generator=generator)]
    log_uniform = torch.where(probability >= SMALLEST_TAIL, 1 / (probability * -math.log(SMALLEST_TAIL)), 0.0)
    return probability, 1 / ((1 - share) + share * log_uniform)


def lower_gamma_quantile(probability: Tensor, shape: Tensor) -> Tensor:
    """Return x with P(gamma of rate 1 < x) = probability, to a relative error of 1e-12; not differentiable.

    It is interpolated, because SciPy's inverse would take most of the time of a step that draws new frequencies. The
    shape is 1/2 or more.
    """
    if shape.requires_grad:
        raise InvalidInputError("lower_gamma_quantile is not differentiable in its shape; pass shape.detach().")
    values, slopes = (one.to(probability.device) for one in _log_quantiles(float(shape)))
    place = ((probability.log() - (-probability).log1p()) * _NODES_A_UNIT + _HALF).clamp(0, 2 * _HALF)
    node = place.floor().long().clamp_max(2 * _HALF - 1)
    # Hermite's cubic between two nodes, in powers of the place between them
    u, left, right = place - node, values[node], values[node + 1]
    begin, end, rise = slopes[node], slopes[node + 1], right - left
    return (left + u * (begin + u * (3 * rise - 2 * begin - end + u * (begin + end - 2 * rise)))).exp()


@lru_cache(maxsize=8)
def _log_quantiles(shape: float) -> tuple[Tensor, Tensor]:
    """Return logarithms of the quantiles at evenly spaced log-odds, and their derivatives by the node.

    As functions of log-odds both tails are smooth: log x is linear in the lower one, and x nearly so in the upper one.
    """
    from scipy.special import expit, gammainccinv, gammaincinv, gammaln

    odds = (np.arange(2 * _HALF + 1) - _HALF) / _NODES_A_UNIT
    lower, upper = expit(odds), expit(-odds)
    x = np.where(odds < 0, gammaincinv(shape, lower), gammainccinv(shape, upper))
    # d log x / d odds = (dp / d odds) / (x density)
    slope = np.exp(np.log(lower) + np.log(upper) - shape * np.log(x) + x + gammaln(shape))
    return torch.from_numpy(np.log(x)), torch.from_numpy(slope / _NODES_A_UNIT)


def upper_gamma_quantile(probability: Tensor, shape: Tensor) -> Tensor:
    """Return x with P(gamma of rate 1 > x) = probability; differentiable in the shape, a single number."""
    return _UpperGammaQuantile.apply(probability, shape)


class _UpperGammaQuantile(torch.autograd.Function):
    """The quantile with its implicit derivative in the shape: ``dx/da = (dQ/da) / density`` at a fixed Q(a, x)."""

    @staticmethod
    def forward(ctx: Any, probability: Tensor, shape: Tensor) -> Tensor:
        from scipy.special import gammainccinv

        x = torch.as_tensor(gammainccinv(float(shape), probability.detach().cpu().numpy())).to(probability)
        ctx.save_for_backward(x, shape)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        x, shape = ctx.saved_tensors
        slope = torch.as_tensor(_quantile_slope(x.cpu().numpy(), float(shape))).to(gradients[0])
        return None, (gradients[0] * slope).sum().to(shape)


def _quantile_slope(x: np.ndarray, shape: float) -> np.ndarray:
    """Return ``dx/da`` of the gamma quantile at a fixed probability; 0 where the density under- or overflows."""
    from scipy.special import gammainc, gammaincc, gammaln

    # SciPy has no derivative in the shape. Five-point differences in the smaller tail give ten digits, also far out.
    step = 1e-3 * shape
    weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    lower = sum(weight * gammainc(shape + place * step, x) for place, weight in weights.items()) / step
    upper = sum(weight * gammaincc(shape + place * step, x) for place, weight in weights.items()) / step
    by_shape = np.where(gammainc(shape, x) < 0.5, -lower, upper)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        density = np.exp((shape - 1) * np.log(x) - x - gammaln(shape))
        slope = by_shape / density
    return np.where(np.isfinite(slope), slope, 0.0)
