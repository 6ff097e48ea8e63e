"""Student-t noise as Gaussian noise whose precision differs from row to row: the weights of rows, and a bound.

With ``e_i ~ N(0, s^2 / w_i)`` and ``w_i ~ Gamma(df / 2, df / 2)``, the noise ``e_i`` has a Student-t distribution with
the scale s. The posterior of the function and the precisions is approximated by independent ones, ``q(f) q(w)``. Then
q(f) is the posterior for Gaussian noise with the variances ``s^2 / w_i`` at the mean precisions

    w_i = (df + 1) / (df + E[e_i^2] / s^2),    E[e_i^2] = (y_i - m_i)^2 + v_i,

for the mean m and the variance v of q(f). With ``a = (df + 1) / 2``, ``c = df / 2`` and the Gaussian marginal
likelihood Z for these variances, the log marginal likelihood is at least

    log Z(w) + n (log Gamma(a) - log Gamma(c) - a log a + a + c log c) + c sum_i (log w_i - w_i)

for any weights. The weights above are where it is stationary (Tipping and Lawrence 2005; Jylanki, Vanhatalo and Vehtari
2011, section 4.3).

References
----------
Tipping and Lawrence 2005, Variational inference for Student-t models: robust Bayesian interpolation and generalised
component analysis, Neurocomputing 69, 123-141; Jylanki, Vanhatalo and Vehtari 2011, Robust Gaussian process regression
with a Student-t likelihood, JMLR 12, 3227-3257.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

#: Learned degrees of freedom. Near 2 the noise variance would be infinite; beyond the most a thousand rows could not
#: tell the noise from Gaussian noise by a tenth of a nat.
LEAST_DF, MOST_DF = 2.1, 100.0
#: Degrees of freedom at the start of learning, and where nothing is learned.
START_DF = 4.0
#: Rows with less weight count as outliers.
OUTLIER_WEIGHT = 0.1
#: Points of the search for the degrees of freedom in each round, and the number of rounds.
_POINTS, _ROUNDS = 25, 5
#: Rows that the degrees of freedom are searched with, at least.
_SEARCHED = 20_000
#: Numbers that are computed at once in it, which stay in a processor's cache.
_BLOCK = 2**15
#: Steps of the squared scale, each followed by a search for the degrees of freedom.
_SCALE_STEPS = 20
#: Lowest logarithm of `precision_rule`, the largest number of its nodes below the centre, and its largest step, also in
#: standard deviations of the logarithm.
_LOWEST, _MOST_NODES, _STEP, _RELATIVE_STEP = -84.0, 2048, 0.2, 0.4
#: Weights of the rule that are left out, and halvings of the interval of a quantile.
_NEGLIGIBLE, _HALVINGS = 1e-18, 100
#: Numbers of a block of `quantile`.
_BLOCK = 2**21


class StudentNoise(NamedTuple):
    """Student-t noise of new rows, where the noise variances of the training rows follow from their weights."""

    df: float  # above 2
    squared_scale: float  # in the units of the model

    @property
    def variance(self) -> float:
        """Noise variance of a new row, ``s^2 df / (df - 2)``."""
        return self.squared_scale * self.df / (self.df - 2)

    def multiplied(self, factor: float) -> StudentNoise:
        """Return the noise in units whose square is ``1 / factor`` times as large."""
        return self._replace(squared_scale=self.squared_scale * factor)

    def weights(self, noise_variance: Tensor) -> Tensor:
        """Return the weights of rows from their noise variances."""
        return self.squared_scale / noise_variance


def expected_weights(squares: Tensor, noise: StudentNoise) -> Tensor:
    """Return the weights of rows, shape (n,), for the expected squares of their errors."""
    return (noise.df + 1) / (noise.df + squares / noise.squared_scale)


def sites(weights: Tensor, df: float) -> float:
    """Return what the bound adds to the Gaussian log marginal likelihood at these weights."""
    a, c = 0.5 * (df + 1), 0.5 * df
    constant = math.lgamma(a) - math.lgamma(c) - a * math.log(a) + a + c * math.log(c)
    return len(weights) * constant + c * float((weights.log() - weights).double().sum())


def most_likely_df(squares: Tensor, squared_scale: float) -> float:
    """Return the degrees of freedom that maximise the bound for the expected squares of the errors, shape (n,).

    The function of the process stays; the weights follow.
    """
    ratio = squares.double()[:: max(1, len(squares) // _SEARCHED)] / squared_scale
    low, high = math.log(LEAST_DF), math.log(MOST_DF)
    best = low
    for _ in range(_ROUNDS):
        logs = torch.linspace(low, high, _POINTS, dtype=torch.float64, device=ratio.device)
        places, k = logs.tolist(), int(_log_densities(ratio, logs.exp()).argmax())
        low, best, high = places[max(k - 1, 0)], places[k], places[min(k + 1, _POINTS - 1)]
    return min(max(math.exp(best), LEAST_DF), MOST_DF)


def most_likely_noise(squares: Tensor, noise: StudentNoise, *, learns_df: bool) -> StudentNoise:
    """Return the scale, and the degrees of freedom if they are learned, that maximise the bound from a start."""
    for _ in range(_SCALE_STEPS):
        # a fixed point of the likelihood of the scale: the mean of weighted squares over that of the weights
        # (Kent, Tyler and Vardi 1994), which converges faster than dividing by the number of rows
        weights = expected_weights(squares, noise)
        scale = float((weights * squares).sum() / weights.sum())
        noise = StudentNoise(most_likely_df(squares, scale) if learns_df else noise.df, scale)
    return noise


def _log_densities(ratio: Tensor, df: Tensor) -> Tensor:
    """Return mean log densities, shape (m,), at squares over the squared scale (n,) for each df, up to a constant."""
    c = 0.5 * df
    a = c + 0.5
    parts = df[:, None].split(max(1, _BLOCK // len(ratio)))
    means = torch.cat([(ratio / part).log1p_().mean(1) for part in parts])
    return torch.lgamma(a) - torch.lgamma(c) - 0.5 * c.log() - a * means


@lru_cache
def precision_rule(df: float) -> tuple[Tensor, Tensor]:
    """Return nodes ``log x`` and log weights for expectations over ``x ~ Gamma(df / 2, 1)``.

    The precision of the noise is ``2 x / (df s^2)``. The trapezoidal rule converges exponentially in the logarithm. The
    nodes go down to where errors of 1e18 scales come from, unless there are very many degrees of freedom.
    """
    c = 0.5 * df
    centre, step = math.log(c), min(_STEP, _RELATIVE_STEP / math.sqrt(c + 0.5))
    above = math.log1p(750 / c + math.sqrt(1500 / c))  # the density is below e^-750 of its largest value there
    below = min((centre - _LOWEST) / step, _MOST_NODES)
    logs = centre + step * torch.arange(-math.floor(below), math.ceil(above / step) + 1, dtype=torch.float64)
    return logs, (c * (logs - centre) - c * torch.expm1(logs - centre)).log_softmax(0)


def quantile(level: float, mean: Tensor, variance: Tensor, df: float, squared_scale: Tensor) -> Tensor:
    """Return quantiles (m,) of ``f + e`` for ``f ~ N(mean, variance)`` and Student-t noise e, by bisection in float64.

    The distribution function is a mixture of normal ones over the precision of the noise.
    """
    if level > 0.5:  # the lower tail has more digits
        return mean - quantile(1 - level, torch.zeros_like(mean), variance, df, squared_scale)
    c = 0.5 * df
    logs, log_weights = precision_rule(df)
    kept = log_weights > log_weights.max() + math.log(_NEGLIGIBLE)
    weights, logs, found = log_weights[kept].softmax(0), logs[kept], []
    size = max(1, _BLOCK // len(weights))
    for part, scale in zip(variance.split(size), squared_scale.split(size), strict=True):
        spread = (part[:, None] + c * scale[:, None] * (-logs).exp()).sqrt()
        whole = part + scale * df / (df - 2)  # the start is below the quantile by Cantelli's inequality
        low, high = -(whole * (1 - level) / level).sqrt(), torch.zeros_like(part)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if bool(((middle == low) | (middle == high)).all()):
                break
            below = torch.special.ndtr(middle[:, None] / spread) @ weights < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        found.append(0.5 * (low + high))
    return mean + torch.cat(found)
