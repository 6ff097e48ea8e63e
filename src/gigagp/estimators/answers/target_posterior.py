"""The joint distribution of targets at points whose latent function is in other units, differentiable in the points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, NonFiniteError
from gigagp.estimators.answers.joint_posterior import JointPosterior
from gigagp.model.likelihoods import Likelihood
from gigagp.model.likelihoods.base import TargetMoments
from gigagp.model.scaling import Scaling
from gigagp.settings.random import RandomState


class TargetPosterior:
    """The distribution of ``E[y | f]``, such as the rate of counts, at batches of points; it is not normal.

    `gigagp.GPRegressor.posterior` makes it. All values are in the target's own units. Where the points require a
    gradient, so do they. The axis of the targets, of length t, is left out if the targets of the fit had none. With
    ``include_noise``, variances and covariances are those of measurements.
    """

    def __init__(
        self, latent: JointPosterior, likelihood: Likelihood, scaling: Scaling, *, include_noise: bool = False
    ) -> None:
        self.latent, self._likelihood, self._noisy = latent, likelihood, include_noise
        self._centre, self._unit = (torch.from_numpy(one) for one in (scaling.y_centre, scaling.y_scale))

    @property
    def X(self) -> Tensor:
        """The points, shape (..., q, d), in the data's own units."""
        return self.latent.X

    @property
    def mean(self) -> Tensor:
        """Mean, shape (..., q) or (..., q, t)."""
        return self._in_units(self._moments().mean)

    @property
    def variance(self) -> Tensor:
        """Variance at each point, shape (..., q) or (..., q, t)."""
        found = self._moments()
        each = found.of_target if self._noisy else found.of_mean
        return self._shaped(each * self._unit.to(each).square())

    @property
    def stddev(self) -> Tensor:
        """Standard deviation at each point, shape (..., q) or (..., q, t)."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Tensor:
        """Covariance of all pairs of points of a batch, shape (..., q, q) or (..., q, q, t)."""
        unit = self._unit.to(self.X.device)
        mean = self._standardized(self._with_axis(self.latent.mean)).mT
        given = self.latent.covariance.double()
        given = self._with_axis(given)
        found = self._likelihood.target_covariance(mean, (given / unit.square()).movedim(-1, -3))
        if self._noisy:
            moments = self._moments()
            found = found + torch.diag_embed((moments.of_target - moments.of_mean).mT)
        return self._shaped(found.movedim(-3, -1) * unit.square())

    def rsample(
        self,
        sample_shape: Sequence[int] = (),
        base_samples: Tensor | None = None,
        random_state: RandomState = 0,
    ) -> Tensor:
        """Return joint samples, which move with the points at fixed random numbers; see `JointPosterior.rsample`.

        Raises
        ------
        InvalidInputError
            With ``include_noise``: measurements are drawn by `gigagp.GPRegressor.sample_y`.
        """
        if self._noisy:
            raise InvalidInputError(
                f"rsample of posterior needs include_noise=False with the {self._likelihood.name} likelihood, whose "
                "measurements do not move with the points. sample_y draws them."
            )
        found = self.latent.rsample(sample_shape, base_samples, random_state)
        return self._in_units(self._likelihood.target_mean(self._standardized(self._with_axis(found))))

    def log_prob(self, values: Tensor) -> NoReturn:
        """Refuse: the distribution is not normal."""
        raise InvalidInputError(
            f"log_prob of posterior does not exist for the {self._likelihood.name} likelihood: the distribution is not "
            "normal. predictive_log_density has the log probability of a measurement."
        )

    # Internals --------------------------------------------------------------------------------------------------------

    def _with_axis(self, values: Tensor) -> Tensor:
        return values[..., None] if self.latent.one_target else values

    def _standardized(self, values: Tensor) -> Tensor:
        return (values.double() - self._centre.to(values.device)) / self._unit.to(values.device)

    def _moments(self) -> TargetMoments:
        """Return the moments in standardized units, each of shape (..., q, t)."""
        # The variance first, because it has the mean.
        variance = self._with_axis(self.latent.variance).double() / self._unit.to(self.X.device).square()
        mean = self._standardized(self._with_axis(self.latent.mean))
        noise = torch.full_like(variance, float(self._likelihood.exposure == "trials"))  # one trial
        if self._noisy and self._likelihood.has_noise:
            noise = noise + self.latent.noise[..., None]
        return self._likelihood.target_moments(mean, variance.clamp_min(0).sqrt(), noise)

    def _in_units(self, values: Tensor) -> Tensor:
        return self._shaped(values * self._unit.to(values) + self._centre.to(values))

    def _shaped(self, values: Tensor) -> Tensor:
        """Return finite values without the axis of a single target."""
        values = values[..., 0] if self.latent.one_target else values
        if not bool(torch.isfinite(values.detach()).all()):
            msg = f"The mean of {self._likelihood.name} targets leaves the range of floating point at some points."
            raise NonFiniteError(msg)
        return values.to(dtype=self.X.dtype, device=self.X.device)
