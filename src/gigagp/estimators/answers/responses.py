"""How a target follows from a latent function that is in other units: answers in the target's own units.

A target whose mean is the latent function itself, with noise added, needs none of this. There are two other cases: a
transform of the target, whose latent function is that of ``g(y)``, and a likelihood whose latent function is a log rate
or a log-odds. In both, a prediction is of ``h(f) = E[y | f]``, the mean of measurements where f is known.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.joint_posterior import JointPosterior
from gigagp.estimators.answers.target_posterior import TargetPosterior
from gigagp.inference.contract.open_points import OpenPosterior
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.likelihoods import Likelihood
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform
from gigagp.model.transformed_answers import covariance_of, function_values, log_density, moments
from gigagp.settings.random import standard_normal
from gigagp.tables.beside import Beside


@dataclass(frozen=True)
class Latent:
    """The latent function at points, in the units of the model; float64 on the CPU."""

    mean: Tensor  # (m, t)
    variance: Tensor  # (m,), for all targets
    noise: Tensor  # (m,), of a measurement; 0 where the likelihood has none


class Response(ABC):
    """A target's mean as a function of the latent function, and the distribution of the target around it."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling

    @abstractmethod
    def noise(self, posterior: Posterior | OpenPosterior, X: Tensor) -> Tensor:
        """Return the noise variance of measurements at points, shape (m,), in the units of the model."""

    @abstractmethod
    def values(self, f: np.ndarray, noise: Tensor) -> np.ndarray:
        """Return h of samples of the latent function, (m, t, s), in the units of the model."""

    @abstractmethod
    def moments(self, latent: Latent) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean of a measurement, the variance of h(f) and that of a measurement, each of shape (m, t)."""

    @abstractmethod
    def covariance(self, latent: Latent, covariance: Tensor) -> np.ndarray:
        """Return the covariance (m, m, t) of h(f) from that of f, (m, m); its diagonal is that of `moments`."""

    @abstractmethod
    def quantiles(self, latent: Latent, levels: Sequence[float], *, include_noise: bool) -> np.ndarray:
        """Return quantiles of h(f), or of measurements, shape (m, t, k)."""

    @abstractmethod
    def log_density(self, y: np.ndarray, latent: Latent, limits: Tensor | None = None) -> np.ndarray:
        """Return the log density of measurements (m, t), or their log probability; ``limits`` are theirs, (m, 2)."""

    @abstractmethod
    def draws(self, f: np.ndarray, noise: Tensor, generator: torch.Generator) -> np.ndarray:
        """Return a random measurement for each latent value (m, t, s) in the units of the model."""

    def require_joint(self) -> None:  # noqa: B027  # most have it
        """Raise `InvalidInputError` if there is no `joint` distribution."""

    @abstractmethod
    def joint(self, latent: JointPosterior, *, include_noise: bool) -> TargetPosterior:
        """Return the joint distribution of h(f) at points, or of measurements."""

    @abstractmethod
    def refuse_parts(self) -> NoReturn:
        """Refuse to split a variance that is not the latent function's."""


class TransformedTarget(Response):
    """A target of which a transform is the latent function with Gaussian noise; there is one."""

    def __init__(self, scaling: Scaling, transform: TargetTransform) -> None:
        super().__init__(scaling)
        self.transform = transform

    def noise(self, posterior: Posterior | OpenPosterior, X: Tensor) -> Tensor:
        return posterior.noise_at(X).double().cpu()

    def _own(self, latent: Latent) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, variance and noise, each (m,), in units of the transformed target."""
        unit = self.scaling.units().variance
        mean = self.scaling.original(latent.mean.numpy())[:, 0]
        return mean, latent.variance.numpy() * unit, latent.noise.numpy() * unit

    def values(self, f: np.ndarray, noise: Tensor) -> np.ndarray:
        """Return ``E[g^-1(f + e)]``."""
        spread = noise.numpy()[:, None, None] * self.scaling.units().variance
        return function_values(self.transform, self.scaling.original(f), spread)

    def moments(self, latent: Latent) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mean, of_mean, whole = (one[:, None] for one in moments(self.transform, *self._own(latent)))
        return mean, of_mean, whole

    def covariance(self, latent: Latent, covariance: Tensor) -> np.ndarray:
        mean, _, noise = self._own(latent)
        found = covariance_of(self.transform, mean, covariance.numpy() * self.scaling.units().variance, noise)
        np.fill_diagonal(found, self.moments(latent)[1])
        return found[:, :, None]

    def quantiles(self, latent: Latent, levels: Sequence[float], *, include_noise: bool) -> np.ndarray:
        """Return the quantiles of ``g(y)`` in the target's units; both functions rise."""
        from scipy.special import ndtri

        normal = ndtri(np.asarray(levels))
        mean, variance, noise = (one[:, None, None] for one in self._own(latent))
        if include_noise:
            return self.transform.inverse(mean + np.sqrt(variance + noise) * normal)
        return function_values(self.transform, mean + np.sqrt(variance) * normal, noise)

    def log_density(self, y: np.ndarray, latent: Latent, limits: Tensor | None = None) -> np.ndarray:
        """Return the normal log density of ``g(y)`` with the Jacobian."""
        mean, variance, noise = self._own(latent)
        return log_density(self.transform, y[:, 0], mean, variance + noise)[:, None]

    def draws(self, f: np.ndarray, noise: Tensor, generator: torch.Generator) -> np.ndarray:
        normal = standard_normal(f.shape[0], f[0].size, generator=generator).numpy().reshape(f.shape)
        return self.transform.inverse(self.scaling.original(f + noise.sqrt().numpy()[:, None, None] * normal))

    def require_joint(self) -> None:
        """Refuse: the transforms are not differentiable functions of tensors."""
        raise InvalidInputError(
            "posterior of GPRegressor needs target_transform='none': the function is normal in units of the "
            "transformed target only. Transform the target before the fit, or use predict and sample_functions."
        )

    def joint(self, latent: JointPosterior, *, include_noise: bool) -> TargetPosterior:
        """Refuse; see `require_joint`."""
        self.require_joint()
        raise AssertionError

    def refuse_parts(self) -> NoReturn:
        raise InvalidInputError(
            "return_parts of GPRegressor.predict must be False with a target_transform: the two parts add up "
            "in units of the transformed target only. posterior_.variance_parts has them, standardized."
        )


class TargetOfLikelihood(Response):
    """A target whose likelihood says what its mean is; counts and signs have the units of the model.

    Of successes in trials a likelihood has the proportion, and ``noise`` is the number of trials.
    """

    def __init__(self, scaling: Scaling, likelihood: Likelihood) -> None:
        super().__init__(scaling)
        self.likelihood = likelihood

    def noise(self, posterior: Posterior | OpenPosterior, X: Tensor) -> Tensor:
        if self.likelihood.has_noise:
            return posterior.noise_at(X).double().cpu()
        return torch.full((len(X),), float(self._has_trials), dtype=torch.float64)

    @property
    def _has_trials(self) -> bool:
        return self.likelihood.exposure == "trials"

    def _original(self, values: np.ndarray, noise: Tensor) -> np.ndarray:
        """Return what a likelihood says of targets in their own units, (m, t) or (m, t, s)."""
        if self._has_trials:
            return values * noise.numpy().reshape((-1,) + (1,) * (values.ndim - 1))
        return self.scaling.original(values)

    def _parts(self, latent: Latent) -> tuple[Tensor, Tensor, Tensor]:
        return latent.mean, latent.variance.sqrt()[:, None], latent.noise[:, None]

    def values(self, f: np.ndarray, noise: Tensor) -> np.ndarray:
        return self._original(self.likelihood.target_mean(torch.from_numpy(f)).numpy(), noise)

    def moments(self, latent: Latent) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = self.likelihood.target_moments(*self._parts(latent))
        unit = np.square(latent.noise.numpy()[:, None] if self._has_trials else self.scaling.y_scale)
        mean = self._original(found.mean.numpy(), latent.noise)
        return mean, found.of_mean.numpy() * unit, found.of_target.numpy() * unit

    def covariance(self, latent: Latent, covariance: Tensor) -> np.ndarray:
        found = self.likelihood.target_covariance(latent.mean.mT, covariance).movedim(0, -1).numpy()
        if self._has_trials:
            return found * np.multiply.outer(latent.noise.numpy(), latent.noise.numpy())[:, :, None]
        return found * np.square(self.scaling.y_scale)

    def quantiles(self, latent: Latent, levels: Sequence[float], *, include_noise: bool) -> np.ndarray:
        """Return h at the quantiles of f, because it rises; or the quantiles that the likelihood states."""
        mean, std, noise = self._parts(latent)
        if not include_noise:
            _require_rising(self.likelihood)
        found = []
        for level in levels:
            if include_noise:
                values = self.likelihood.target_quantile(level, mean, std, noise)
            else:
                normal = torch.special.ndtri(torch.tensor(level, dtype=torch.float64))
                values = self.likelihood.target_mean(mean + std * normal)
            found.append(self._original(values.numpy(), latent.noise))
        return np.stack(found, -1) if found else np.empty((*mean.shape, 0))

    def log_density(self, y: np.ndarray, latent: Latent, limits: Tensor | None = None) -> np.ndarray:
        targets = torch.from_numpy(self.scaling.targets(y))
        targets = Beside(None, latent.noise if self._has_trials else None, limits).given(self.likelihood, targets)
        self.likelihood.check_targets(targets)
        found = self.likelihood.predictive_log_density(targets, *self._parts(latent))
        return found.numpy() - np.log(self.scaling.y_scale)

    def draws(self, f: np.ndarray, noise: Tensor, generator: torch.Generator) -> np.ndarray:
        found = self.likelihood.draw_targets(torch.from_numpy(f), noise[:, None, None], generator)
        return self._original(found.numpy(), noise)

    def joint(self, latent: JointPosterior, *, include_noise: bool) -> TargetPosterior:
        return TargetPosterior(latent, self.likelihood, self.scaling, include_noise=include_noise)

    def refuse_parts(self) -> NoReturn:
        raise InvalidInputError(
            f"return_parts of GPRegressor.predict must be False with the {self.likelihood.name} likelihood: the two "
            "parts add up for the latent function only. posterior_.variance_parts has them where there are any."
        )


def _require_rising(likelihood: Likelihood) -> None:
    """Refuse a mean that falls somewhere where the latent function rises: its quantiles are not those of f."""
    values = likelihood.target_mean(torch.linspace(-30, 30, 241, dtype=torch.float64))
    if bool((values.diff() < 0).any()):
        raise InvalidInputError(
            f"quantiles of the mean of {likelihood.name} targets need a mean that rises with the latent function: "
            f"{type(likelihood).__name__}.target_mean must not fall."
        )


def response_of(scaling: Scaling, transform: TargetTransform, likelihood: Likelihood) -> Response | None:
    """Return what leads from the latent function to the target; None where both are in the same units."""
    if not transform.is_identity:
        return TransformedTarget(scaling, transform)
    return None if likelihood.adds_noise else TargetOfLikelihood(scaling, likelihood)
