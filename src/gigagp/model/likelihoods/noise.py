"""Likelihoods of targets that are the latent function with noise added."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from gigagp.model.likelihoods.base import NODES, ExpectedSlopes, Likelihood
from gigagp.model.student_noise import START_DF, precision_rule
from gigagp.settings.fields import Fraction, Range, Remedy, Settings


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """``y = f + noise`` with Gaussian noise, for regression."""

    is_log_concave = True
    has_noise = True
    name = "gaussian"

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        return -0.5 * ((2 * math.pi * noise).log() + (y - f).square() / noise)

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        return self.log_density(y, mean, noise) - 0.5 * std.square() / noise

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return self.log_density(y, mean, noise + std.square())

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        return f + noise.sqrt() * torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)


@dataclass(frozen=True)
class Laplace(Likelihood):
    """``y = f + noise`` with noise of density ``exp(-|e| / b) / (2 b)``, for regression with outliers.

    The noise variance is ``2 b^2``, so a model's ``noise_variance`` has its usual meaning.
    """

    is_log_concave = True
    has_noise = True
    name = "laplace"

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        b = (0.5 * noise).sqrt()
        return -(2 * b).log() - (y - f).abs() / b

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation in closed form, because a quadrature is inaccurate at the kink."""
        b = (0.5 * noise).sqrt()
        return -(2 * b).log() - _mean_size(y - mean, std) / b

    def expected_slopes(
        self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES
    ) -> ExpectedSlopes:
        """Return the derivatives in closed form: searches ask for them thousands of times, for few rows each."""
        b, (size, by_gap, by_spread) = (0.5 * noise).sqrt(), _mean_size_and_slopes(y - mean, std)
        in_scales = size / b
        return ExpectedSlopes(-(2 * b).log() - in_scales, by_gap / b, -by_spread / b, 0.5 * (in_scales - 1) / noise)

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log density of the sum of normal and double-exponential errors, in closed form."""
        b = (0.5 * noise).sqrt()
        spread = std.clamp_min(torch.finfo(std.dtype).tiny ** 0.25)
        gap, share = (y - mean) / spread, spread / b
        sides = (torch.special.log_ndtr(sign * gap - share) - sign * gap * share for sign in (1.0, -1.0))
        return 0.5 * share.square() + torch.logaddexp(*sides) - (2 * b).log()

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        uniform = torch.rand(f.shape, generator=generator, dtype=torch.float64) - 0.5
        return f - (0.5 * noise).sqrt() * (uniform.sign() * torch.log1p(-2 * uniform.abs().clamp_max(0.5 - 1e-16))).to(
            f
        )

    def smooth_log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the mean log density for f with a standard deviation of ``b / 4``, which has no kink."""
        return self.expected_log_density(y, f, 0.25 * (0.5 * noise).sqrt(), noise)

    def information(self, noise: Tensor) -> Tensor:
        return 2 / noise

    def mixture_distribution(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        return Quantile().mixture_distribution(y, mean, std, noise)


@dataclass(frozen=True)
class Quantile(Settings, Likelihood):
    """The function is a quantile of the target: noise of the asymmetric Laplace distribution.

    With ``r = y - f`` and the scale s, the density is ``q (1 - q) / s exp(-max(q r, (q - 1) r) / s)``: its mode is the
    fit that quantile regression has. What a prediction returns as the mean of the target is the quantile.

    When to use: where one quantile is asked for and the distribution of the targets is not known. The error bars are
    those of this noise. `GPRegressor.predict_quantile` has all quantiles of a model of the whole distribution.

    Parameters
    ----------
    level : float, default 0.5
        Probability that a target is below the function. 0.5 is `Laplace` noise, whose function is a median.

    References
    ----------
    Yu and Moyeed 2001, Bayesian quantile regression, doi:10.1016/S0167-7152(01)00124-9.
    """

    level: Fraction = 0.5

    is_log_concave = True
    has_noise = True
    only_laplace = True
    scales_by_medians = True
    name = "quantile"

    def _scale(self, noise: Tensor) -> Tensor:
        """Return s: the noise variance is ``s^2 (1 - 2 q + 2 q^2) / (q (1 - q))^2``."""
        q = self.level
        return noise.sqrt() * (q * (1 - q) / math.sqrt(1 - 2 * q + 2 * q * q))

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        q, s, r = self.level, self._scale(noise), y - f
        return math.log(q * (1 - q)) - s.log() - ((q - 0.5) * r + 0.5 * r.abs()) / s

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation in closed form; see `Laplace`."""
        q, s, r = self.level, self._scale(noise), y - mean
        return math.log(q * (1 - q)) - s.log() - ((q - 0.5) * r + 0.5 * _mean_size(r, std)) / s

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log density of the sum of normal and asymmetric errors, in closed form."""
        q, (_, above, below) = self.level, self._sides(y, mean, std, noise)
        return torch.logaddexp(above, below) + math.log(q * (1 - q)) - self._scale(noise).log()

    def mixture_distribution(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the distribution function of the sum of normal and asymmetric errors, in closed form."""
        gap, above, below = self._sides(y, mean, std, noise)
        q = self.level
        return (torch.special.ndtr(gap) - (1 - q) * above.exp() + q * below.exp()).clamp(0, 1)

    def _sides(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gap in standard deviations, and logs of what errors above and below the function share."""
        q, p = self.level, 1 - self.level
        spread = std.clamp_min(torch.finfo(std.dtype).tiny ** 0.25)
        gap, share = (y - mean) / spread, spread / self._scale(noise)
        above = torch.special.log_ndtr(gap - q * share) - q * share * gap + 0.5 * (q * share).square()
        below = torch.special.log_ndtr(-gap - p * share) + p * share * gap + 0.5 * (p * share).square()
        return gap, above, below

    def smooth_log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the mean log density for f with a quarter of the scale as standard deviation; see `Laplace`."""
        return self.expected_log_density(y, f, 0.25 * self._scale(noise), noise)

    def information(self, noise: Tensor) -> Tensor:
        return self.level * (1 - self.level) / self._scale(noise).square()

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return the function with the difference of two exponential errors."""
        uniform = torch.rand(2, *f.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300).to(f)
        up, down = -uniform.log()
        return f + self._scale(noise) * (up / self.level - down / (1 - self.level))


def _mean_size(gap: Tensor, std: Tensor) -> Tensor:
    """Return the mean of ``|gap - e|`` for ``e ~ N(0, std^2)``."""
    return _mean_size_and_slopes(gap, std)[0]


def _mean_size_and_slopes(gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of ``|gap - e|`` for ``e ~ N(0, std^2)``, and its derivatives by gap and standard deviation."""
    spread = std.clamp_min(torch.finfo(std.dtype).tiny ** 0.25)  # avoids a division by zero
    ratio = gap / spread
    by_spread, by_gap = math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square()), torch.erf(ratio / math.sqrt(2))
    return spread * by_spread + gap * by_gap, by_gap, by_spread


#: Rows that `StudentT` integrates at once.
_ROWS = 2048
#: Logarithms at which `StudentT` integrates by the trapezoidal rule, which converges exponentially there.
_LOGARITHMS = torch.arange(-84.0, 6.0, 0.2, dtype=torch.float64)


@dataclass(frozen=True)
class StudentT(Settings, Likelihood):
    """``y = f + noise`` with Student-t noise, for regression with gross outliers.

    The noise variance is ``s^2 df / (df - 2)`` for the scale s, so a model's ``noise_variance`` has its usual meaning.

    When to use: where some targets are simply wrong. Beyond ``s df^(1/2)`` the pull of a target on the function falls
    with its distance, whereas that of `Laplace` noise stays the same. The density is not log-concave, so that a fit can
    be one of several. Inference methods that take known noise variances of rows find weights of the rows
    (`gigagp.model.student_noise`), and `gigagp.inference.Vecchia` has Laplace's approximation.

    Parameters
    ----------
    df : float or None, default None
        Degrees of freedom, above 2, because the variance is infinite otherwise. As it grows, the noise becomes
        Gaussian. None: learned, between 2.1 and 100; with `gigagp.inference.Vecchia`, which does not learn it, 4.

    References
    ----------
    Jylanki, Vanhatalo and Vehtari 2011, Robust Gaussian process regression with a Student-t likelihood, JMLR 12,
    3227-3257.
    """

    df: Annotated[
        Annotated[float, Range(above=2)] | None, Remedy("With 2 or less, the noise variance is infinite.")
    ] = None

    has_noise = True
    scales_by_medians = True
    name = "student-t"

    @property
    def is_scale_mixture(self) -> bool:  # type: ignore[override]  # a constant of other likelihoods
        """Whether this is Student's density, and not that of a derived class."""
        return type(self) is StudentT

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the densities; 4 where they are not given."""
        return START_DF if self.df is None else self.df

    def squared_scale(self, noise: Tensor) -> Tensor:
        """Return ``s^2`` for noise variances."""
        return noise * (self.degrees - 2) / self.degrees

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        squares = self._squares(noise)
        constant = math.lgamma(0.5 * (self.degrees + 1)) - math.lgamma(0.5 * self.degrees) - 0.5 * math.log(math.pi)
        return constant - 0.5 * squares.log() - 0.5 * (self.degrees + 1) * torch.log1p((y - f).square() / squares)

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation from ``log(1 + x) = int (1 - e^(-u x)) e^-u du / u``, for any noise and spread."""
        squares = self._squares(noise)
        logs = _LOGARITHMS.to(mean)
        u = logs.exp()
        scaled = 2 * u * (std.square() / squares)[..., None]
        exponent = -u * ((y - mean).square() / squares)[..., None] / (1 + scaled) - 0.5 * torch.log1p(scaled)
        integral = -torch.expm1(exponent) @ (-u).exp() * float(_LOGARITHMS[1] - _LOGARITHMS[0])
        return self.log_density(mean, mean, noise) - 0.5 * (self.degrees + 1) * integral

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the log density, as a mixture of normal ones over the precision of the noise."""
        logs, weights = (one.to(mean) for one in precision_rule(self.degrees))
        y, mean, std, squares = torch.broadcast_tensors(y, mean, std, self._squares(noise))
        found = []
        for error, spread, square in zip(
            *((one.reshape(-1).split(_ROWS)) for one in ((y - mean).square(), std.square(), squares)), strict=True
        ):
            variance = spread[:, None] + 0.5 * square[:, None] * (-logs).exp()
            normal = -0.5 * ((2 * math.pi * variance).log() + error[:, None] / variance)
            found.append(torch.logsumexp(normal + weights, -1))
        return torch.cat(found).reshape(y.shape)

    def information(self, noise: Tensor) -> Tensor:
        return (self.degrees + 1) * self.degrees / ((self.degrees + 3) * self._squares(noise))

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return the function with Student-t noise: normal noise over the root of a Gamma variable."""
        normal = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(f)
        shape = torch.full(f.shape, 0.5 * self.degrees, dtype=torch.float64)
        gamma = torch._standard_gamma(shape, generator=generator).to(f)
        return f + self.squared_scale(noise).sqrt() * normal / (gamma / (0.5 * self.degrees)).sqrt()

    def _squares(self, noise: Tensor) -> Tensor:
        """Return ``df s^2``."""
        return (self.degrees - 2) * noise
