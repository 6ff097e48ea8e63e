"""How far out frequencies are drawn: tail probabilities of a spectral density, balanced over its decades.

Plain Monte Carlo puts one frequency in a thousand where a thousandth of a kernel's variance sits. With many rows and
little noise that is where all of the posterior variance is: what the data leave open are the high frequencies. A
prior function made of a few thousand plain features then has too little (seldom too much) variance between the
rows, and posterior samples made from it are overconfident. So half of the frequencies are drawn with a tail
probability that is uniform on a logarithmic scale, and all carry the weight that makes the kernel's estimate unbiased
again (importance sampling from a mixture; no weight is above two).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError

#: The smallest tail probability that is drawn on purpose: what a noise of a ten-thousandth of the signal's scale sees.
SMALLEST_TAIL = 1e-8


def tail_probabilities(n: int, generator: torch.Generator, *, balanced: bool) -> tuple[Tensor, Tensor]:
    """Return tail probabilities and importance weights, each of shape (n, 1).

    Parameters
    ----------
    n : int
    generator : torch.Generator
    balanced : bool
        False: uniform on (0, 1) with weights 1, which is drawing from the spectral density itself.
    """
    uniform = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    if not balanced:
        return uniform, torch.ones_like(uniform)
    # stratified in both halves: the j-th draw lies in the j-th of equal cells
    half = n // 2
    cells = torch.arange(n, dtype=torch.float64)[:, None]
    body = (cells[half:] - half + uniform[half:]) / (n - half)
    tail = SMALLEST_TAIL ** ((cells[:half] + uniform[:half]) / max(half, 1))
    probability = torch.cat([tail, body])
    share = half / n
    # in random order: the leaves of a product pair their draws by position and have to be independent
    probability = probability[torch.randperm(n, generator=generator)]
    log_uniform = torch.where(probability >= SMALLEST_TAIL, 1 / (probability * -math.log(SMALLEST_TAIL)), 0.0)
    return probability, 1 / ((1 - share) + share * log_uniform)


def lower_gamma_quantile(probability: Tensor, shape: Tensor) -> Tensor:
    """Return x with P(gamma of rate 1 < x) = probability; not differentiable.

    Raises
    ------
    InvalidInputError
        If ``shape`` requires a gradient, which would be lost without a word.
    """
    from scipy.special import gammaincinv

    if shape.requires_grad:
        msg = "lower_gamma_quantile is not differentiable in its shape; pass shape.detach()."
        raise InvalidInputError(msg)
    return torch.as_tensor(gammaincinv(float(shape), probability.cpu().numpy())).to(probability)


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
    """Return ``dx/da`` of the gamma quantile at fixed probability; 0 where x has left the range of its density."""
    from scipy.special import gammainc, gammaincc, gammaln

    # SciPy has no derivative in the shape. Five points in the smaller of both tails: ten digits, also far out.
    step = 1e-3 * shape
    weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    lower = sum(weight * gammainc(shape + place * step, x) for place, weight in weights.items()) / step
    upper = sum(weight * gammaincc(shape + place * step, x) for place, weight in weights.items()) / step
    by_shape = np.where(gammainc(shape, x) < 0.5, -lower, upper)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        density = np.exp((shape - 1) * np.log(x) - x - gammaln(shape))
        slope = by_shape / density
    return np.where(np.isfinite(slope), slope, 0.0)
