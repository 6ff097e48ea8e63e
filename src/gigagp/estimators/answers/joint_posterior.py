"""The joint distribution of the latent function at points, in the data's own units, differentiable in the points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, NonFiniteError, NotPositiveDefiniteError
from gigagp.inference.contract.input_gradients import refuse_gradient
from gigagp.inference.contract.posterior import Posterior
from gigagp.model.means import Mean
from gigagp.model.scaling import Scaling
from gigagp.settings.random import RandomState, generator_from, spawn, standard_normal

#: Shares of the prior variance that are added to the diagonal of a covariance. The first always is, so that a factor
#: moves smoothly with its points; it is far above the rounding errors of a covariance. The others follow if that fails.
_JITTERS = (1e-10, 1e-8, 1e-6, 1e-4)


class JointPosterior:
    """The normal distribution of the latent function at batches of points; `gigagp.GPRegressor.posterior` makes it.

    All values are computed at their first use, in the data's own units, as are the points X (..., q, d). Where the
    points require a gradient, so do they. The axis of the targets, of length t, is left out if the targets of the fit
    had none.

    With ``include_noise`` it is the distribution of measurements. ``variance`` is the source of `variance`; see
    `gigagp.GPRegressor.predict`. Points at which the posterior has no prediction or no derivative are refused.
    """

    def __init__(
        self,
        posterior: Posterior,
        scaling: Scaling,
        X: Tensor,
        *,
        one_target: bool,
        include_noise: bool = False,
        variance: Literal["auto", "samples", "solve"] = "auto",
        names: Sequence[str] | None = None,
    ) -> None:
        self._posterior, self._scaling, self.one_target = posterior, scaling, one_target
        self._noisy, self._method = include_noise, variance
        self.X = X
        batches = X.reshape(-1, *X.shape[-2:]).to(torch.float64)
        self._batches = scaling.points(batches).to(dtype=posterior.dtype, device=posterior.device)
        self._known: dict[tuple[str, bool], Tensor] = {}
        refusal = posterior.refusal(self._points.detach(), scaling, names)
        if refusal is not None:
            raise refusal
        self._offset = known_mean(posterior.model.mean, X, batches.flatten(0, 1))

    @property
    def mean(self) -> Tensor:
        """Mean, shape (..., q) or (..., q, t)."""
        return self._once("mean", lambda: self._in_units(self._posterior.mean(self._points).double(), self._offset))

    @property
    def variance(self) -> Tensor:
        """Variance at each point, shape (..., q) or (..., q, t)."""

        def compute() -> Tensor:
            mean, found = self._posterior.mean_and_variance(self._points, method=self._method)
            self._once("mean", lambda: self._in_units(mean.double(), self._offset))
            return self._shaped((found.double() + self._noise())[:, None] * self._unit.square())

        return self._once("variance", compute)

    @property
    def stddev(self) -> Tensor:
        """Standard deviation at each point, shape (..., q) or (..., q, t)."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Tensor:
        """Covariance of all pairs of points of a batch, shape (..., q, q) or (..., q, q, t)."""

        def compute() -> Tensor:
            found = self._covariance()[..., None] * self._unit.square()
            found = found[..., 0] if self.one_target else found
            return self._finite(found.reshape(*self.X.shape[:-1], *found.shape[2:]))

        return self._once("covariance", compute)

    @property
    def noise(self) -> Tensor:
        """Noise variance of measurements at each point, shape (..., q), in the units of the standardized problem."""
        return self._posterior.noise_at(self._points).double().reshape(self.X.shape[:-1])

    def prior_variance(self) -> Tensor:
        """Return the largest prior variance at any of the points, shape (t,)."""
        return self._prior() * self._unit.square()

    def rsample(
        self,
        sample_shape: Sequence[int] = (),
        base_samples: Tensor | None = None,
        random_state: RandomState = 0,
    ) -> Tensor:
        """Return joint samples, which move with the points at fixed random numbers.

        They are ``mean + L z`` with the Cholesky factor L of the covariance plus 1e-10 of the prior variance on its
        diagonal, or more where that does not suffice. So points may coincide.

        Parameters
        ----------
        sample_shape : sequence of int
            Leading shape of the samples.
        base_samples : Tensor of shape (*sample_shape, ..., q) or (*sample_shape, ..., q, t), optional
            The standard normal numbers z.
        random_state : int or generator
            Seed of these numbers, where they are not given. The same numbers serve every batch.

        Returns
        -------
        Tensor of shape (*sample_shape, ..., q) or (*sample_shape, ..., q, t)

        Raises
        ------
        InvalidInputError
            If the distribution is not normal, which is so for a mixture of kernels; or if a shape is invalid.
        NotPositiveDefiniteError
            If even a ten-thousandth of the prior variance does not make the covariance positive definite.
        """
        self._require_normal("rsample")
        q, t = self.X.shape[-2], self._posterior.n_targets
        leading = _checked_shape(sample_shape)
        shape = (*leading, *self.X.shape[:-1], t)
        if base_samples is None:
            drawn = standard_normal(math.prod(leading) * q, t, generator=generator_from(random_state))
            drawn = drawn.reshape(*leading, *(1 for _ in self.X.shape[:-2]), q, t)
        else:
            drawn = base_samples[..., None] if self.one_target else base_samples
            if drawn.shape != shape:
                given = shape[:-1] if self.one_target else shape
                msg = f"base_samples of rsample must have shape {given}; got {tuple(base_samples.shape)}."
                raise InvalidInputError(msg)
        root = self._root().reshape(*self.X.shape[:-1], q)
        spread = (root @ drawn.to(root)) * self._unit
        mean = self.mean[..., None] if self.one_target else self.mean
        found = mean + spread.to(mean)
        return found[..., 0] if self.one_target else found

    def log_prob(self, values: Tensor) -> Tensor:
        """Return the joint log density of values at the points of each batch, summed over the targets, shape (...).

        Parameters
        ----------
        values : Tensor of shape (..., q) or (..., q, t)
            In the data's own units, with the same batches as the points.

        Raises
        ------
        InvalidInputError, NotPositiveDefiniteError
            As for `rsample`.
        """
        self._require_normal("log_prob")
        if values.shape != self.mean.shape:
            msg = f"values of log_prob must have shape {tuple(self.mean.shape)}; got {tuple(values.shape)}."
            raise InvalidInputError(msg)
        q, t = self.X.shape[-2], self._posterior.n_targets
        root = self._root()
        apart = (values.to(root) - self.mean.to(root)).reshape(-1, q, t) / self._unit
        squares = torch.linalg.solve_triangular(root, apart, upper=False).square().sum((1, 2))
        log_root = root.diagonal(dim1=-2, dim2=-1).log().sum(1)
        units = q * (self._unit.log().sum() + 0.5 * t * math.log(2 * math.pi))
        return (-0.5 * squares - t * log_root - units).reshape(self.X.shape[:-2]).to(self.mean)

    # Internals --------------------------------------------------------------------------------------------------------

    @property
    def _points(self) -> Tensor:
        return self._batches.flatten(0, 1)

    @property
    def _unit(self) -> Tensor:
        """Scales of the targets, shape (t,)."""
        return torch.from_numpy(self._scaling.y_scale).to(self._batches.device)

    def _once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """Return a value that is computed once with a graph, and once without."""
        key = name, torch.is_grad_enabled()
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def _shaped(self, values: Tensor) -> Tensor:
        """Return values of all points, (number of points, t), by batch, without the axis of a single target."""
        values = values[:, 0] if self.one_target else values
        return self._finite(values.reshape(*self.X.shape[:-1], *values.shape[1:]))

    def _finite(self, values: Tensor) -> Tensor:
        if not bool(torch.isfinite(values.detach()).all()):
            raise NonFiniteError(
                "The posterior is not finite at some points: intermediate results leave the range of floating point. "
                "Use points nearer to the training rows."
            )
        return values.to(dtype=self.X.dtype, device=self.X.device)

    def _in_units(self, mean: Tensor, offset: Tensor | None) -> Tensor:
        found = mean * self._unit + torch.from_numpy(self._scaling.y_centre).to(mean)
        return self._shaped(found if offset is None else found + offset.to(found)[:, None])

    def _noise(self) -> Tensor | float:
        return self._posterior.noise_at(self._points).double() if self._noisy else 0.0

    def _covariance(self) -> Tensor:
        """Return the covariances of the batches in standardized units, shape (b, q, q), float64."""

        def compute() -> Tensor:
            found = self._posterior.covariance(self._batches).double()
            noise = self._noise()
            if isinstance(noise, Tensor):
                found = found + torch.diag_embed(noise.reshape(found.shape[:2]))
            return found

        return self._once("standardized covariance", compute)

    def _root(self) -> Tensor:
        """Return Cholesky factors of `_covariance`, shape (b, q, q)."""
        return self._once("root", lambda: cholesky_of_batches(self._covariance(), self._prior()))

    @torch.no_grad()
    def _prior(self) -> float:
        return float(self._posterior.prior_variance(self._points).max()) if len(self._points) else 1.0

    def _require_normal(self, method: str) -> None:
        if self._posterior.is_mixture:
            raise InvalidInputError(
                f"{method} of the posterior of several kernels or hyperparameters, which were averaged, does not "
                'exist: their mixture is not normal. Fit with one kernel and hyperparameters="learned", or use the '
                "mean and the variance, which are those of the mixture."
            )


class JointOutputs:
    """The joint distributions of independent outputs, each with its own model, at the same batches of points.

    Attributes and methods are those of `JointPosterior`, with an axis of the outputs, of length t, at the end. Counts
    and classes have no log density.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = tuple(outputs)
        self.X = self.outputs[0].X

    @property
    def mean(self) -> Tensor:
        """Means, shape (..., q, t)."""
        return torch.stack([one.mean for one in self.outputs], -1)

    @property
    def variance(self) -> Tensor:
        """Variances at each point, shape (..., q, t)."""
        return torch.stack([one.variance for one in self.outputs], -1)

    @property
    def stddev(self) -> Tensor:
        """Standard deviations at each point, shape (..., q, t)."""
        return self.variance.sqrt()

    @property
    def covariance(self) -> Tensor:
        """Covariances of all pairs of points of a batch, shape (..., q, q, t)."""
        return torch.stack([one.covariance for one in self.outputs], -1)

    def prior_variance(self) -> Tensor:
        """Return the largest prior variance at any of the points, shape (t,)."""
        return torch.cat([one.prior_variance() for one in self.outputs])

    def rsample(
        self,
        sample_shape: Sequence[int] = (),
        base_samples: Tensor | None = None,
        random_state: RandomState = 0,
    ) -> Tensor:
        """Return joint samples of shape (*sample_shape, ..., q, t); see `JointPosterior.rsample`.

        ``base_samples`` have the shape of the samples.
        """
        generator = generator_from(random_state)
        given = self._each(base_samples, "base_samples of rsample", (*_checked_shape(sample_shape), *self._shape))
        drawn = [one.rsample(sample_shape, own, spawn(generator)) for one, own in zip(self.outputs, given, strict=True)]
        return torch.stack(drawn, -1)

    def log_prob(self, values: Tensor) -> Tensor:
        """Return the joint log density of values (..., q, t) at the points of each batch, summed over the outputs."""
        given = self._each(values, "values of log_prob", self._shape)
        pairs = zip(self.outputs, given, strict=True)
        return torch.stack([one.log_prob(own) for one, own in pairs if own is not None]).sum(0)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*self.X.shape[:-1], len(self.outputs))

    def _each(self, values: Tensor | None, name: str, shape: tuple[int, ...]) -> Sequence[Tensor | None]:
        """Return the values of each output."""
        if values is None:
            return [None] * len(self.outputs)
        if values.shape != shape:
            raise InvalidInputError(f"{name} must have shape {shape}; got {tuple(values.shape)}.")
        return values.unbind(-1)


def _checked_shape(sample_shape: object) -> tuple[int, ...]:
    """Return a leading shape of samples, or refuse it."""
    if isinstance(sample_shape, Sequence) and all(isinstance(k, Integral) and int(k) >= 0 for k in sample_shape):
        return tuple(int(k) for k in sample_shape)
    raise InvalidInputError(f"sample_shape of rsample must be a tuple of counts, such as (16,); got {sample_shape!r}.")


def cholesky_of_batches(covariance: Tensor, scale: float) -> Tensor:
    """Return lower Cholesky factors of covariances (b, q, q) with 1e-10 of the prior variance added to their diagonals.

    Batches that have no factor get more of it, up to a ten-thousandth.
    """
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    added = covariance.new_full((len(covariance), 1, 1), _JITTERS[0] * scale)
    with torch.no_grad():
        for larger in (*_JITTERS[1:], None):
            root, info = torch.linalg.cholesky_ex(covariance + added * eye)
            failed = (info != 0) | ~torch.isfinite(root).all(2).all(1)
            if not bool(failed.any()):
                break
            if larger is None:
                raise NotPositiveDefiniteError(
                    f"The joint covariance of {len(eye)} points is not positive definite with {_JITTERS[-1]:g} of the "
                    "prior variance on its diagonal. Take fewer points at once, or a smaller tolerance of the solver."
                )
            added = torch.where(failed[:, None, None], larger * scale, added)
    factor: Tensor = torch.linalg.cholesky_ex(covariance + added * eye)[0]
    return factor


def known_mean(mean: Mean, X: Tensor, points: Tensor) -> Tensor | None:
    """Return the known part of the mean at points, shape (number of points,); None for zero."""
    if type(mean).offset is Mean.offset:
        return None
    refuse_gradient(X, "posterior", f"Its mean is a function of NumPy arrays, {mean!r}, whose derivative is not known.")
    return torch.from_numpy(mean.offset(points.detach().cpu().numpy()))


def points_of(X: object, n_inputs: int) -> Tensor:
    """Return points as a finite tensor of floating point numbers of shape (..., q, d), or refuse them."""
    try:
        # torch would make float32 of Python's numbers
        found = X if isinstance(X, Tensor) else torch.as_tensor(np.asarray(X))
    except (TypeError, ValueError, RuntimeError) as error:
        _refuse_points(f"a {type(X).__name__}", n_inputs, error)
    if found.is_complex() or found.ndim < 2 or found.shape[-1] != n_inputs or found.shape[-2] == 0:
        _refuse_points(f"shape {tuple(found.shape)}, {found.dtype}", n_inputs, None)
    found = found if found.is_floating_point() else found.double()
    if not bool(torch.isfinite(found.detach()).all()):
        raise InvalidInputError("X of posterior must be finite; it contains NaN or infinity.")
    return found


def _refuse_points(got: str, n_inputs: int, error: Exception | None) -> NoReturn:
    msg = f"X of posterior must be a tensor of numbers of shape (..., q, {n_inputs}), with q of at least 1; got {got}."
    raise InvalidInputError(msg) from error
