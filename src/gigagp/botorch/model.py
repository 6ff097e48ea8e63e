"""`GigaModel`, a model of BoTorch over a fitted regressor."""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin, Model
from torch import Tensor

from gigagp.botorch.moments import (
    ConditionedMoments,
    CorrelatedMoments,
    FittedMoments,
    Moments,
    NoisyMoments,
    Observations,
    SomeOutputs,
)
from gigagp.botorch.posterior import GigaPosterior
from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.joint_posterior import JointPosterior, points_of
from gigagp.model.likelihoods import Gaussian
from gigagp.regression import GPRegressor


class GigaModel(Model, FantasizeMixin):
    """A fitted `gigagp.GPRegressor` as a model of BoTorch.

    When to use: for Bayesian optimization with BoTorch, on more observations than its own exact models can hold. The
    fit stays as it is, and points and values are in the data's own units; for counts and signs, values are those of the
    latent function (`gigagp.GPRegressor.predict_latent`), whose distribution is normal. Targets are outputs,
    independent of each other unless the fit has ``outputs="correlated"``. BoTorch maximizes: to minimize, fit ``-y``.

    Observations that `condition_on_observations` and `fantasize` add are conditioned on exactly, through the joint
    covariance that the fit gives to points and observations. Their cost does not depend on the number of rows of the
    fit, but each prediction has them as further points; after some dozens it is time for another fit.

    Parameters
    ----------
    regressor : GPRegressor
        Fitted, with any inference.
    variance : {"auto", "samples", "solve"}, default "auto"
        Source of variances at single points in iterative inference; see `gigagp.GPRegressor.predict`. Joint
        covariances, which several points and further observations need, take a solve for each point.

    Raises
    ------
    InvalidInputError
        If the regressor is not fitted, or if its function is not normal in the data's own units: after a
        `target_transform`, or with several kernels that were averaged; or if ``encode="auto"`` has made its inputs.

    Examples
    --------
    >>> import torch
    >>> from gigagp import GPRegressor
    >>> from gigagp.botorch import GigaModel
    >>> X = torch.linspace(0, 6, 60, dtype=torch.float64)[:, None]
    >>> model = GigaModel(GPRegressor().fit(X, X[:, 0].sin()))
    >>> model.posterior(X[:4].view(2, 2, 1)).mean.shape
    torch.Size([2, 2, 1])
    """

    #: BoTorch looks here for a likelihood with given noise.
    likelihood = None

    def __init__(self, regressor: GPRegressor, variance: Literal["auto", "samples", "solve"] = "auto") -> None:
        super().__init__()
        if not isinstance(regressor, GPRegressor) or not hasattr(regressor, "posterior_"):
            raise InvalidInputError(f"regressor of GigaModel must be a fitted GPRegressor; got {regressor!r}.")
        if any(one.posterior_.is_mixture for one in regressor.estimators_):
            raise InvalidInputError(
                "regressor of GigaModel must have one kernel: a mixture of several is not normal, which acquisition "
                "functions assume. Give a kernel, for instance the heaviest of this fit, regressor.kernel_."
            )
        self.stacking = regressor._stacking
        if self.stacking is None:
            regressor.posterior(regressor.estimators_[0].scaling_.x_centre[None])  # refuses transforms and tables
        self.regressor, self.variance = regressor, variance
        self.n_fitted = sum(one.posterior_.n_targets for one in regressor.estimators_)
        self.n_fitted = self.n_fitted if self.stacking is None else self.stacking.n_outputs
        self.outputs = list(range(self.n_fitted))
        self.given: Observations | None = None

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self.outputs)

    @property
    def batch_shape(self) -> torch.Size:
        """Leading shape of the observations that were added; empty before any."""
        return torch.Size() if self.given is None else self.given.batch_shape

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        """Return the joint distribution at points.

        Parameters
        ----------
        X : Tensor of shape (..., q, d)
            Points; their leading shape is broadcast with `batch_shape`.
        output_indices : list of int, optional
            Outputs; None for all.
        observation_noise : bool or Tensor of shape (..., q, m), default False
            Whether to add the noise variance; or noise variances to add.
        posterior_transform : PosteriorTransform, optional
            Applied to the result.

        Returns
        -------
        GigaPosterior, or what the transform returns

        Raises
        ------
        InvalidInputError
            If the points or noise variances are invalid, or the noise of measurements is not known.
        """
        if output_indices is not None:
            return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)
        moments = self._moments(X)
        if isinstance(observation_noise, Tensor):
            shape = X.shape[-2], self.num_outputs
            moments = NoisyMoments(moments, _checked(observation_noise, "observation_noise of posterior", shape))
        elif observation_noise:
            moments = NoisyMoments(moments, self._noise(X))
        found = GigaPosterior(moments)
        return found if posterior_transform is None else posterior_transform(found)

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model of some outputs."""
        places = [range(self.num_outputs)[place] for place in idcs]
        found = copy.copy(self)
        found.outputs = [self.outputs[place] for place in places]
        if self.given is not None and self.stacking is None:  # observations of correlated outputs tell of others
            found.given = self.given.take(places)
        return found

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **_: Any) -> Self:
        """Return the model given further observations, at the hyperparameters of the fit.

        Parameters
        ----------
        X : Tensor of shape (..., n, d)
        Y : Tensor of shape (..., n, m)
            Its leading shape may have further axes in front, as that of fantasies.
        noise : Tensor of shape (..., n, m), optional
            Noise variances. None: the learned one.

        Raises
        ------
        InvalidInputError
            If shapes do not agree, or a number is not finite; if the likelihood is not Gaussian, where observations do
            not combine linearly; or if the noise is neither known nor given.
        """
        posteriors = [one.posterior_ for one in self.regressor.estimators_]
        other = [one.likelihood_ for one in self.regressor.estimators_ if not isinstance(one.likelihood_, Gaussian)]
        if other or any(getattr(one, "augment", False) for one in posteriors):
            what = f"likelihood={other[0].name!r}" if other else "augment=True"
            msg = f"condition_on_observations of GigaModel does not support {what}: fit again with the observations."
            raise InvalidInputError(msg)
        if self.stacking is not None and self.num_outputs < self.n_fitted:
            raise InvalidInputError(
                f"condition_on_observations of GigaModel needs observations of all {self.n_fitted} correlated outputs: "
                "condition before subset_output."
            )
        X = points_of(X, self.regressor.n_features_in_)
        if Y.ndim < 2 or Y.shape[-2:] != (X.shape[-2], self.num_outputs):
            raise InvalidInputError(
                f"Y of condition_on_observations must have shape (..., {X.shape[-2]}, {self.num_outputs}); "
                f"got {tuple(Y.shape)}."
            )
        if not bool(torch.isfinite(Y.detach()).all()):
            msg = "Y of condition_on_observations must be finite; it contains NaN or infinity. Leave these rows out."
            raise InvalidInputError(msg)
        shape = X.shape[-2], self.num_outputs
        noise = self._noise(X) if noise is None else _checked(noise, "noise of condition_on_observations", shape)
        added = Observations(X, Y, noise.expand(*noise.shape[:-2], *shape))
        found = copy.copy(self)
        found.given = added if self.given is None else self.given.and_then(added)
        return found

    def _moments(self, X: Tensor) -> Moments:
        found = self._of_all(X)
        is_whole = self.stacking is None or self.num_outputs == self.n_fitted
        return found if is_whole else SomeOutputs(found, self.outputs)

    def _of_all(self, X: Tensor) -> Moments:
        """Return the moments given all observations; of correlated outputs those of all of them."""
        if self.given is None:
            return self._fitted(X)
        q, shape = X.shape[-2], torch.broadcast_shapes(X.shape[:-2], self.given.batch_shape)
        parts = (one.expand(*shape, *one.shape[-2:]) for one in (X, self.given.X.to(X)))
        return ConditionedMoments(self._fitted(torch.cat([*parts], -2)), self.given, q)

    def _fitted(self, X: Tensor) -> Moments:
        if self.stacking is not None:
            fit, points = self.regressor, points_of(X, self.regressor.n_features_in_)
            at = self.stacking.points_of(points)
            joint = JointPosterior(fit.posterior_, fit.scaling_, at, one_target=True, variance=self.variance)
            return CorrelatedMoments(joint, points, *self.stacking.units())
        joints = [
            JointPosterior(
                fit.posterior_,
                fit.scaling_,
                points_of(X, fit.posterior_.n_inputs),
                one_target=False,
                variance=self.variance,
                names=getattr(fit, "feature_names_in_", None),
            )
            for fit in self.regressor.estimators_
        ]
        return FittedMoments(joints, self.outputs)

    def _noise(self, X: Tensor) -> Tensor:
        """Return the noise variances of measurements at points, shape (..., q, m)."""
        if self.stacking is not None:
            fit, at = self.regressor, self.stacking.points_of(X.detach().double())
            flat = fit.scaling_.points(at.reshape(-1, at.shape[-1])).to(fit.posterior_.coefficients)
            noise = fit.posterior_.noise_at(flat).double().reshape(*X.shape[:-1], self.n_fitted)
            units = self.stacking.units()[1].to(noise) * float(fit.scaling_.y_scale[0])
            return (noise * units.square())[..., self.outputs].to(X)
        found = []
        for fit in self.regressor.estimators_:
            if not fit.likelihood_.has_noise:
                kind = fit.likelihood_.name
                msg = f"observation_noise of GigaModel must be False: {kind} targets have no noise variance."
                raise InvalidInputError(msg)
            flat = fit.scaling_.points(X.detach().double().reshape(-1, X.shape[-1]))
            noise = fit.posterior_.noise_at(flat.to(fit.posterior_.coefficients)).double().reshape(X.shape[:-1])
            found.append(noise[..., None] * torch.from_numpy(fit.scaling_.y_scale).to(noise).square())
        return torch.cat(found, -1)[..., self.outputs].to(X)


def _checked(noise: Tensor, argument: str, shape: tuple[int, int]) -> Tensor:
    """Return noise variances at q points of m outputs, for ``shape`` (q, m), or refuse them."""
    if any(size not in (1, full) for size, full in zip(reversed(noise.shape), reversed(shape), strict=False)):
        raise InvalidInputError(f"{argument} must have shape (..., {shape[0]}, {shape[1]}); got {tuple(noise.shape)}.")
    values = noise.detach()
    wrong = ~((values >= 0) & torch.isfinite(values))
    if bool(wrong.any()):
        msg = f"{argument} must have finite variances that are not negative; got {float(values[wrong][0])}."
        raise InvalidInputError(msg)
    return noise
