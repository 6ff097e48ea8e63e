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

    return torch.as_tensor(gammaincinv(_plain(shape), probability.cpu().numpy())).to(probability)


def upper_gamma_quantile(probability: Tensor, shape: Tensor) -> Tensor:
    """Return x with P(gamma of rate 1 > x) = probability; as `lower_gamma_quantile`."""
    from scipy.special import gammainccinv

    return torch.as_tensor(gammainccinv(_plain(shape), probability.cpu().numpy())).to(probability)


def _plain(shape: Tensor) -> float:
    if shape.requires_grad:
        msg = "Random features of RationalQuadratic are not differentiable in alpha; pass alpha.detach()."
        raise InvalidInputError(msg)
    return float(shape)
