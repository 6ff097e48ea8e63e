"""Likelihoods, which relate a target to the latent function at its row.

A likelihood here is a density ``g(y, f)``. All except `StudentT` are log-concave in f. Variational bounds then have a
single optimum, and their estimates from sampled basis functions remain lower bounds (Evans and Nair 2020,
arXiv:2006.03015, Theorem 3). Laplace approximations also take a density that states its expected information.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.fields import Range, Remedy, Settings
from gigagp.student_noise import START_DF, precision_rule

__all__ = [
    "Gaussian",
    "Laplace",
    "Likelihood",
    "Logistic",
    "Poisson",
    "Probit",
    "StudentT",
    "check_laplace",
    "check_log_concave",
    "resolve_likelihood",
]

#: Argument for a choice between Gaussian and Student-t noise.
AUTO = "auto"
#: Number of quadrature nodes (as in the papers), which gives an accuracy of 1e-12 for the logistic likelihood.
NODES = 101


class Likelihood(ABC):
    """A density of a target given the latent function at its row.

    To define one, implement `log_density` with differentiable torch operations and set `is_log_concave`; expectations
    are then computed by quadrature. Objects are frozen and contain only settings.
    """

    #: whether ``log g`` is concave in f for every y; variational inference rejects other likelihoods
    is_log_concave: bool = False
    #: whether it has a learned noise variance; the others ignore it
    has_noise: bool = False
    #: typical variance of the latent function; None: that of the targets
    signal_variance: float | None = None
    #: whether it is Gaussian noise whose variance differs from row to row, which methods with known row noise can take
    is_scale_mixture: bool = False
    #: whether some targets may be grossly wrong, so that medians set the units of the standardized problem
    scales_by_medians: bool = False
    #: name by which users select it
    name: str

    @abstractmethod
    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return ``log g(y, f)`` with broadcasting; ``noise`` is the noise variance of each row."""

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return ``E log g(y, f)`` for ``f ~ N(mean, std^2)``, by default with Gauss-Hermite quadrature.

        Parameters
        ----------
        y, mean, std, noise : Tensor
            Of shapes that broadcast.
        nodes : int
            Number of quadrature nodes.
        """
        places, weights = (one.to(mean) for one in _hermite(nodes))
        f = mean[..., None] + std[..., None] * places
        return self.log_density(y[..., None], f, noise[..., None]) @ weights

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return ``log E g(y, f)`` for ``f ~ N(mean, std^2)``, by default with Gauss-Hermite quadrature.

        It is the log score of a prediction.

        Parameters
        ----------
        y, mean, std, noise : Tensor
            Of shapes that broadcast.
        """
        places, weights = (one.to(mean) for one in _hermite(NODES))
        f = mean[..., None] + std[..., None] * places
        return torch.logsumexp(self.log_density(y[..., None], f, noise[..., None]) + weights.log(), -1)

    def smooth_log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return a log density with three derivatives in f, for Laplace approximations; by default `log_density`."""
        return self.log_density(y, f, noise)

    def information(self, noise: Tensor) -> Tensor | None:
        """Return the expected information of a target about f, if it does not depend on f; by default None.

        Laplace approximations take it as the curvature where second derivatives of the log density say little, or are
        positive.
        """
        return None

    def check_targets(self, y: Tensor) -> None:  # noqa: B027  # most likelihoods accept any number
        """Raise `InvalidInputError` for targets that the likelihood does not allow."""

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return a typical curvature of ``-log g`` in f, which for a Gaussian is the inverse noise variance."""
        return 1.0 / noise


@lru_cache
def _hermite(nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for expectations under a standard normal distribution."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(places), torch.from_numpy(weights / weights.sum())


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """``y = f + noise`` with Gaussian noise, for regression."""

    is_log_concave = True
    has_noise = True
    name = "gaussian"

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the normal log density."""
        return -0.5 * ((2 * math.pi * noise).log() + (y - f).square() / noise)

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation in closed form."""
        return self.log_density(y, mean, noise) - 0.5 * std.square() / noise

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the normal log density with both variances."""
        return self.log_density(y, mean, noise + std.square())


@dataclass(frozen=True)
class Laplace(Likelihood):
    """``y = f + noise`` with noise of density ``exp(-|e| / b) / (2 b)``, for regression with outliers.

    The noise variance is ``2 b^2``, so a model's ``noise_variance`` has its usual meaning.
    """

    is_log_concave = True
    has_noise = True
    name = "laplace"

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the double-exponential log density."""
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

    def smooth_log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the mean log density for f with a standard deviation of ``b / 4``, which has no kink."""
        return self.expected_log_density(y, f, 0.25 * (0.5 * noise).sqrt(), noise)

    def information(self, noise: Tensor) -> Tensor:
        """Return ``1 / b^2``."""
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
    (`gigagp.student_noise`), and `gigagp.inference.Vecchia` has Laplace's approximation.

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
        """Return Student's log density."""
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
        """Return ``(df + 1) / ((df + 3) s^2)``."""
        return (self.degrees + 1) * self.degrees / ((self.degrees + 3) * self._squares(noise))

    def _squares(self, noise: Tensor) -> Tensor:
        """Return ``df s^2``."""
        return (self.degrees - 2) * noise


class _Binary(Likelihood):
    """Base of the likelihoods of two classes, coded as -1 and 1."""

    is_log_concave = True

    def check_targets(self, y: Tensor) -> None:
        """Raise an error for targets other than -1 and 1."""
        if not bool((y.abs() == 1).all()):
            msg = f"targets of the {self.name} likelihood must be -1 and 1; got {y[y.abs() != 1][:3].tolist()}."
            raise InvalidInputError(msg)

    @abstractmethod
    def probability(self, f: Tensor) -> Tensor:
        """Return the probability of class 1 at a latent value."""

    @abstractmethod
    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the probability of class 1 averaged over ``f ~ N(mean, std^2)``."""


@dataclass(frozen=True)
class Logistic(_Binary):
    """``P(y = 1) = 1 / (1 + exp(-f))``, for classification."""

    name = "logistic"
    signal_variance = 9.0  # probabilities from 0.05 to 0.95

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the logarithm of the logistic function of ``y f``."""
        return torch.nn.functional.logsigmoid(y * f)

    def probability(self, f: Tensor) -> Tensor:
        """Return the logistic function."""
        return torch.sigmoid(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the average by quadrature."""
        places, weights = (one.to(mean) for one in _hermite(nodes))
        return torch.sigmoid(mean[..., None] + std[..., None] * places) @ weights

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return one fourth, the largest curvature."""
        return 0.25


@dataclass(frozen=True)
class Probit(_Binary):
    """``P(y = 1) = Phi(f)``, the normal distribution function: classification with lighter tails than `Logistic`."""

    name = "probit"
    signal_variance = 3.0

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the logarithm of the normal distribution function of ``y f``."""
        return torch.special.log_ndtr(y * f)

    def probability(self, f: Tensor) -> Tensor:
        """Return the normal distribution function."""
        return torch.special.ndtr(f)

    def mean_probability(self, mean: Tensor, std: Tensor, nodes: int = NODES) -> Tensor:
        """Return the average in closed form."""
        return torch.special.ndtr(mean / (1 + std.square()).sqrt())

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return ``2 / pi``, the curvature at zero."""
        return 2 / math.pi


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with rate ``exp(f)``."""

    is_log_concave = True
    name = "poisson"
    signal_variance = 1.0

    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the logarithm of the Poisson probability."""
        return y * f - f.exp() - torch.lgamma(y + 1)

    def expected_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES) -> Tensor:
        """Return the expectation in closed form; the rate is log-normal."""
        return y * mean - (mean + 0.5 * std.square()).exp() - torch.lgamma(y + 1)

    def check_targets(self, y: Tensor) -> None:
        """Raise an error for targets that are not counts."""
        bad = (y < 0) | (y != y.round())
        if bool(bad.any()):
            msg = f"targets of the poisson likelihood must be whole numbers, 0 or above; got {y[bad][:3].tolist()}."
            raise InvalidInputError(msg)

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return the mean count."""
        return max(float(y.double().mean()), 0.1)


_BY_NAME: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Gaussian, Laplace, StudentT, Logistic, Probit, Poisson)
}


def check_log_concave(likelihood: Likelihood, y: Tensor, noise: float = 1.0) -> None:
    """Raise `InvalidInputError` for a likelihood that is not declared log-concave, or is found not to be.

    Parameters
    ----------
    likelihood : Likelihood
    y : Tensor
        Targets, a few of which are checked.
    noise : float, default 1.0
        Noise variance of the check.
    """
    reason = "does not declare it (is_log_concave)"
    if likelihood.is_log_concave:
        distinct = torch.unique(y.double().reshape(-1))
        tried = distinct[torch.linspace(0, len(distinct) - 1, min(len(distinct), 9)).round().long()]
        grid = tried[:, None] + torch.linspace(-6, 6, 241, dtype=torch.float64)
        values = likelihood.log_density(tried[:, None], grid, torch.tensor(noise, dtype=torch.float64))
        bend = values[:, 2:] - 2 * values[:, 1:-1] + values[:, :-2]
        bad = bend > 1e-9 * (1 + values[:, 1:-1].abs())
        if not bool(bad.any()):
            return
        row, place = (int(one) for one in bad.nonzero()[0])
        reason = f"is convex near f = {float(grid[row, place + 1]):.3g} for y = {float(tried[row]):.3g}"
    msg = (
        f"likelihood must be log-concave in the latent function; {type(likelihood).__name__} {reason}. "
        f"Use one of {', '.join(name for name, kind in _BY_NAME.items() if kind.is_log_concave)}."
    )
    raise InvalidInputError(msg)


def check_laplace(likelihood: Likelihood, y: Tensor) -> None:
    """Raise `InvalidInputError` for a likelihood that Laplace approximations cannot take.

    They need a curvature that is never negative: that of a log-concave density, or the expected information.

    Parameters
    ----------
    likelihood : Likelihood
    y : Tensor
        Targets.
    """
    if likelihood.information(torch.ones((), dtype=torch.float64)) is None:
        check_log_concave(likelihood, y)


def is_default(likelihood: Likelihood) -> bool:
    """Whether the name of a likelihood suffices to recreate it."""
    return type(likelihood) is _BY_NAME.get(likelihood.name) and likelihood == type(likelihood)()


def resolve_likelihood(likelihood: str | Likelihood) -> Likelihood:
    """Return the likelihood with a given name, or a likelihood unchanged.

    ``"auto"`` is Gaussian until a fit has chosen (`gigagp.student_fit.choose`).

    Raises
    ------
    InvalidInputError
        If the argument is neither.
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, str) and likelihood == AUTO:
        return Gaussian()
    if isinstance(likelihood, str) and likelihood in _BY_NAME:
        return _BY_NAME[likelihood]()
    names = ", ".join(map(repr, (*_BY_NAME, AUTO)))
    msg = f"likelihood must be one of {names} or of gigagp.likelihoods; got {likelihood!r}."
    raise InvalidInputError(msg)
