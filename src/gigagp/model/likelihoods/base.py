"""What every likelihood states, and the expectations that follow from its density by quadrature."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, RowError
from gigagp.model.likelihoods.mixtures import Values, mean_distribution, quantile_of

#: Number of quadrature nodes (as in the papers), which gives an accuracy of 1e-12 for the logistic likelihood.
NODES = 101
#: Nodes of the trapezoidal rule for predictions of targets, and its ends in standard deviations. Where the latent
#: function is very uncertain, a probability is a step beside its spread, for which Gauss's nodes lie too far apart.
_EVEN_NODES, _END = 321, 12.0
#: Points that are predicted at once.
_ROWS = 2048


class TargetMoments(NamedTuple):
    """Moments of targets where the latent function is uncertain; all of the same shape.

    Attributes
    ----------
    mean : Tensor
        Mean of a target.
    of_mean : Tensor
        Variance of ``E[y | f]``, which more rows would reduce.
    of_target : Tensor
        Variance of a target.
    """

    mean: Tensor
    of_mean: Tensor
    of_target: Tensor


class ExpectedSlopes(NamedTuple):
    """An expected log density and its derivatives; all of the same shape."""

    value: Tensor
    by_mean: Tensor
    by_std: Tensor
    #: zeros where the likelihood has no noise
    by_noise: Tensor


class Likelihood(ABC):
    """A density of a target given the latent function at its row.

    To define one, implement `log_density` with differentiable torch operations and set `is_log_concave`; expectations
    are then computed by quadrature. Objects are frozen and contain only settings.

    A field that is named in `learned` is a parameter of the density. Where it is None, it is learned with the
    hyperparameters, from the start that `start` returns, and methods find its present value in its place (`at`).
    Read it with `value`.
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
    #: positive parameters that are learned where their fields are None, and where learning of each starts
    learned: ClassVar[Mapping[str, float]] = {}
    #: whether only Laplace approximations take it, because it has parameters or a mean to learn, limits, or trials
    only_laplace: bool = False
    #: what the exposure of a row is: a factor of the rate ``exp(f)``, a number of trials; or there is none
    exposure: Literal["rate", "trials", "none"] = "none"
    #: whether a target is known by a lower and an upper limit; ``y`` then has a first axis with both
    has_limits: bool = False
    #: values of targets, as far as `target_quantile` searches among them
    values: Values = "real"
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
        places, weights = (one.to(mean) for one in hermite(nodes))
        f = mean[..., None] + std[..., None] * places
        return self.log_density(y[..., None], f, noise[..., None]) @ weights

    def expected_slopes(
        self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor, nodes: int = NODES
    ) -> ExpectedSlopes:
        """Return `expected_log_density` with its derivatives, by default from autograd.

        Parameters
        ----------
        y, mean, std, noise : Tensor
            All of the same shape.
        nodes : int
            Number of quadrature nodes.
        """
        with torch.enable_grad():
            mean, std, noise = (one.detach().clone().requires_grad_() for one in (mean, std, noise))
            value = self.expected_log_density(y.detach(), mean, std, noise, nodes)
            slopes = torch.autograd.grad(value.sum(), (mean, std, noise), allow_unused=True)
        return ExpectedSlopes(value.detach(), *(torch.zeros_like(y) if one is None else one for one in slopes))

    def predictive_log_density(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return ``log E g(y, f)`` for ``f ~ N(mean, std^2)``, by default with the trapezoidal rule.

        It is the log score of a prediction.

        Parameters
        ----------
        y, mean, std, noise : Tensor
            Of shapes that broadcast.
        """
        y, mean, std, noise = torch.broadcast_tensors(y, mean, std, noise)
        places, weights = _even_rule(mean)
        found = []
        for one, m, s, e in zip(*(part.reshape(-1).split(_ROWS) for part in (y, mean, std, noise)), strict=True):
            logs = self.log_density(one[:, None], m[:, None] + s[:, None] * places, e[:, None])
            found.append(torch.logsumexp(logs + weights.log(), -1))
        return torch.cat(found).reshape(mean.shape)

    # Parameters of the density ---------------------------------------------------------------------------------------

    @property
    def has_trend(self) -> bool:
        """Whether the coefficients of the mean are learned: of the latent function where it is in other units."""
        return self.has_noise or self.only_laplace

    def value(self, name: str, like: Tensor) -> Tensor:
        """Return a parameter as a tensor: as it was given, or as it is being learned."""
        return torch.as_tensor(getattr(self, name), dtype=like.dtype, device=like.device)

    def start(self, y: Tensor) -> dict[str, Tensor]:
        """Return where learning starts, for the parameters that are learned; by default as `learned` says.

        Parameters
        ----------
        y : Tensor of shape (n, t)
            Targets, each between its limits.
        """
        return {
            name: torch.tensor(value, dtype=torch.float64)
            for name, value in self.learned.items()
            if getattr(self, name) is None
        }

    def at(self, values: Mapping[str, Any]) -> Self:
        """Return the likelihood with these values of its parameters, numbers or tensors that may require a gradient."""
        found = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(found, name, value)
        return found

    def settled(self, values: Mapping[str, Tensor]) -> Self:
        """Return the likelihood with learned values of its parameters as plain numbers."""
        return self.at({name: tuple(one.tolist()) if one.ndim else float(one) for name, one in values.items()})

    def refuse(self, bad: Tensor, y: Tensor, what: str) -> None:
        """Raise `RowError` for the first target that is bad, if there is one; ``what`` is allowed."""
        if bool(bad.any()):
            place = tuple(int(one) for one in bad.nonzero()[0])
            got = f"{float(y[place]):.6g}" + (f" (column {place[1]})" if bad.ndim > 1 and bad.shape[1] > 1 else "")
            raise RowError(f"targets of the {self.name} likelihood must be {what}", got, place[0])

    def smooth_log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return a log density with three derivatives in f, for Laplace approximations; by default `log_density`."""
        return self.log_density(y, f, noise)

    def information(self, noise: Tensor) -> Tensor | None:
        """Return the expected information of a target about f, if it does not depend on f; by default None.

        Laplace approximations take it as the curvature where second derivatives of the log density say little, or are
        positive.
        """
        return None

    def information_at(self, f: Tensor, noise: Tensor) -> Tensor | None:
        """Return the expected information where it depends on f; by default `information`."""
        return self.information(noise)

    def check_targets(self, y: Tensor) -> None:  # noqa: B027  # most likelihoods accept any number
        """Raise `InvalidInputError` for targets that the likelihood does not allow."""

    def check_rows(self, y: Tensor) -> None:  # noqa: B027  # most likelihoods learn from any rows
        """Raise `InvalidInputError` if all rows of a fit together do not tell what is to be learned."""

    def start_curvature(self, y: Tensor, noise: float) -> float:
        """Return a typical curvature of ``-log g`` in f, which for a Gaussian is the inverse noise variance."""
        return 1.0 / noise

    def peak(self, y: Tensor, std: Tensor) -> Tensor | None:
        """Return the mean of f at which `expected_log_density` is largest; None if it rises or falls without end.

        By default it is the target where there is noise, as for densities that are symmetric about f.
        """
        return y if self.has_noise else None

    def on_latent_scale(self, y: Tensor) -> Tensor:
        """Return values of f that targets are typical of, as Gaussian noise needs them; by default the targets."""
        return y

    # Targets, from the latent function ------------------------------------------------------------------------------

    @property
    def adds_noise(self) -> bool:
        """Whether a target is the latent function with noise added, so that both are in the same units."""
        return self.has_noise and type(self).target_mean is Likelihood.target_mean

    def target_mean(self, f: Tensor) -> Tensor:
        """Return ``E[y | f]``, the mean of a target where the latent function is f; by default f, if there is noise.

        It must not fall where f rises.

        Raises
        ------
        InvalidInputError
            If there is no noise, and the class does not define the mean.
        """
        if not self.has_noise:
            raise self._undefined("target_mean", "Predictions of the target")
        return f

    def target_variance(self, f: Tensor, noise: Tensor) -> Tensor:
        """Return ``Var[y | f]``, of a shape that broadcasts with f; by default the noise variance.

        Raises
        ------
        InvalidInputError
            As for `target_mean`.
        """
        if not self.has_noise:
            raise self._undefined("target_variance", "The spread of measurements")
        return noise

    def target_moments(self, mean: Tensor, std: Tensor, noise: Tensor) -> TargetMoments:
        """Return mean and variances of targets for ``f ~ N(mean, std^2)``, by default with the trapezoidal rule.

        Parameters
        ----------
        mean, std, noise : Tensor
            Of shapes that broadcast.
        """
        mean, std, noise = torch.broadcast_tensors(mean, std, noise)
        places, weights = _even_rule(mean)
        found = []
        for m, s, e in zip(*(one.reshape(-1).split(_ROWS) for one in (mean, std, noise)), strict=True):
            f = m[:, None] + s[:, None] * places
            middle = self.target_mean(m)[:, None]  # so that a small variance does not vanish beside a large mean
            apart = self.target_mean(f) - middle
            shift = (apart @ weights)[:, None]
            of_mean = (apart - shift).square() @ weights
            rest = self.target_variance(f, e[:, None]).expand_as(f) @ weights
            found.append(torch.stack([(middle + shift)[:, 0], of_mean, of_mean + rest]))
        return TargetMoments(*torch.cat(found, 1).reshape(3, *mean.shape).unbind())

    def target_covariance(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Return the covariance of ``E[y | f]`` at points; its diagonal is the variance from `target_moments`.

        By Mehler's formula, two functions of normal variables with correlation r have the covariance
        ``sum_k a_k b_k r^k`` for their coefficients in normalised Hermite polynomials.

        Parameters
        ----------
        mean : Tensor of shape (..., q)
        covariance : Tensor of shape (..., q, q)
            Of the latent function.
        """
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        std = variance.clamp_min(0).sqrt()
        places, weights = (one.to(mean) for one in hermite(NODES))
        values = self.target_mean(mean[..., None] + std[..., None] * places)
        coefficients = (values - values.mean(-1, keepdim=True)) @ (hermite_polynomials(NODES).to(mean) * weights).mT
        scale = torch.where(std > 0, std, torch.ones_like(std))
        correlation = (covariance / scale[..., :, None] / scale[..., None, :]).clamp(-1, 1)
        power, found = torch.ones_like(correlation), torch.zeros_like(correlation)
        for one in coefficients.unbind(-1):
            power = power * correlation
            found = found + one[..., :, None] * one[..., None, :] * power
        of_mean = self.target_moments(mean, std, torch.zeros_like(std)).of_mean
        return found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1) - of_mean)

    def target_quantile(self, level: float, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return a quantile of targets for ``f ~ N(mean, std^2)``, in float64.

        Parameters
        ----------
        level : float
            Probability, between 0 and 1.
        mean, std, noise : Tensor
            Of shapes that broadcast.

        Raises
        ------
        InvalidInputError
            If the class defines neither this nor `distribution`.
        """
        return quantile_of(self.mixture_distribution, self.values, level, mean, std, noise)

    def mixture_distribution(self, y: Tensor, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        """Return the probability of at most y for ``f ~ N(mean, std^2)``, each of shape (m,); from `distribution`."""
        return mean_distribution(self.distribution, y, mean, std, noise)

    def distribution(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Return the probability of at most y where the latent function is f; it must not rise where f rises.

        Of counts it is a continuous function of y, whose values between whole numbers have no meaning. It is given
        float64 tensors of shapes that broadcast, and needs no gradient.

        Raises
        ------
        InvalidInputError
            If the class does not define it.
        """
        raise self._undefined("target_quantile (or distribution)", "Quantiles of measurements")

    def draw_targets(self, f: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random target for each latent value.

        Raises
        ------
        InvalidInputError
            If the class does not define it.
        """
        raise self._undefined("draw_targets", "Samples of measurements")

    def _undefined(self, method: str, what: str) -> InvalidInputError:
        return InvalidInputError(
            f"{what} of the {self.name} likelihood need {type(self).__name__}.{method}, which the class does not "
            "define (gigagp.likelihoods.Likelihood). GPRegressor.predict_latent has the latent function."
        )


@lru_cache
def hermite(nodes: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for expectations under a standard normal distribution."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return torch.from_numpy(places), torch.from_numpy(weights / weights.sum())


def _even_rule(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of the trapezoidal rule for expectations under a standard normal distribution."""
    places = torch.linspace(-_END, _END, _EVEN_NODES, dtype=like.dtype, device=like.device)
    return places, (-0.5 * places.square()).softmax(0)


@lru_cache
def hermite_polynomials(nodes: int) -> Tensor:
    """Return normalised Hermite polynomials 1, ..., nodes - 1 at the nodes, shape (nodes - 1, nodes).

    Gauss's rule keeps them orthonormal, so that the squares of coefficients add up to the variance.
    """
    places = hermite(nodes)[0]
    found = [torch.zeros_like(places), torch.ones_like(places)]
    for k in range(nodes - 1):
        found.append((places * found[-1] - math.sqrt(k) * found[-2]) / math.sqrt(k + 1))
    return torch.stack(found[2:])
