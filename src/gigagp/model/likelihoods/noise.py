"""Likelihoods of targets that are the latent function with noise added."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from gigagp.model.likelihoods.base import NODES, Likelihood
from gigagp.model.student_noise import START_DF, precision_rule
from gigagp.settings.fields import Range, Remedy, Settings


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
        gap = y - mean
        spread = std.clamp_min(torch.finfo(std.dtype).tiny ** 0.25)  # avoids a division by zero
        ratio = gap / spread
        folded = spread * math.sqrt(2 / math.pi) * torch.exp(-0.5 * ratio.square()) + gap * torch.erf(
            ratio / math.sqrt(2)
        )
        return -(2 * b).log() - folded / b

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
