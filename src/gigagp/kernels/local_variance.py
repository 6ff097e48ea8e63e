"""Scales that vary with the inputs, of noise and of functions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.units import Unit, Units
from gigagp.settings.fields import shown
from gigagp.settings.indexed_random import IndexedDraws


class LocalScale(Leaf):
    """Covariance ``k(x, z) = s(x) s(z)`` of one random number times a function of the inputs, `scale`."""

    has_spectrum: ClassVar[bool] = True

    @abstractmethod
    def scale(self, X: Tensor) -> Tensor:
        """Return s of every row, shape (n, 1), positive."""

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.scale(X) * self.scale(Z).T

    def diagonal(self, X: Tensor) -> Tensor:
        return self.scale(X)[:, 0].square()

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return nothing: the amplitude of every feature is `scale`."""
        return {}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self.scale(X), None

    # Units and files: points stay in the units of the inputs, and rows return to them --------------------------------

    def _weights_in(self, units: Units) -> Tensor:
        return units.scale[self._active_columns(len(units.scale))]

    def _origin_in(self, units: Units) -> Tensor:
        return units.centre[self._active_columns(len(units.scale))]


class LocalVariance(LocalScale):
    """Covariance ``k(x, z) = sqrt(v(x) v(z))`` of one random number times a function of the inputs.

    When to use: as a factor. ``RBF() + White(fixed=True) * LocalVariance(points, width)`` has noise whose variance
    ``v(x)`` depends on the inputs (``GPRegressor(noise="varying")`` sets it up), and
    ``RBF(fixed=["variance"]) * LocalVariance(points, width)`` is a function whose variance does, such as elevation in
    mountains and in plains.

    The logarithm of the variance is a weighted average of learned log variances at points p_j, with weights that
    decrease with the distance: ``log v(x) = sum_j w_j(x) log v_j``, where ``w_j(x)`` is proportional to
    ``exp(-|(x - p_j) / width|^2 / 2)`` and the weights sum to one. Far from all points, v is that of the nearest.

    Parameters
    ----------
    points : array-like of shape (m, n_active)
        Points with their own variance, in the units of the inputs.
    width : float or array-like of shape (n_active,)
        Distance over which the variance changes, in the units of the inputs; about the distance between neighbouring
        points.
    variance : float or array-like of shape (m,), optional
        Variance at each point. Default 1.
    columns : sequence of int, optional
        The input columns that the variance depends on; None for all.
    fixed, bounds
        As for `RBF`.

    References
    ----------
    Lazaro-Gredilla and Titsias, Variational heteroscedastic Gaussian process regression, 2011, has the model in which
    the logarithm of the noise variance is itself a Gaussian process.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "target"}

    variance = Hyperparameter("Variance at each point, (m,); None if not settled.")

    def __init__(
        self,
        points: ParameterLike | Sequence[Sequence[float]],
        width: ParameterLike,
        variance: ParameterLike = None,
        *,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        self._points = _numbers(points, "points of LocalVariance")
        if self._points.ndim != 2 or not len(self._points):
            msg = f"points of LocalVariance must have shape (m, inputs), m >= 1; got {tuple(self._points.shape)}."
            raise InvalidInputError(msg)
        n_active = self._points.shape[1]
        self._width = _numbers(width, "width of LocalVariance")
        if self._width.shape not in {(), (n_active,)} or not bool((self._width > 0).all()):
            msg = f"width of LocalVariance must be a positive number, or {n_active} of them; got {shown(width)}."
            raise InvalidInputError(msg)
        super().__init__({"variance": variance}, columns=columns, fixed=fixed, bounds=bounds)
        if self._columns is not None and len(self._columns) != n_active:
            got = f"{len(self._columns)} columns and {n_active} coordinates"
            raise InvalidInputError(f"points of LocalVariance must have a coordinate for each of columns; got {got}.")

    @property
    def points(self) -> Tensor:
        """Points with their own variance, (m, n_active), in the units of the inputs."""
        return self._points

    @property
    def width(self) -> Tensor:
        """Distance over which the variance changes, () or (n_active,), in the units of the inputs."""
        return self._width

    def n_values(self, name: str, n_active: int) -> tuple[int, str]:
        if n_active != self._points.shape[1]:
            raise InvalidInputError(
                f"points of LocalVariance must have a coordinate for each of {n_active} inputs; got "
                f"{self._points.shape[1]}. Name the columns that they are of."
            )
        return len(self._points), "point"

    def weights(self, X: Tensor) -> Tensor:
        """Return the weight of each point's log variance at rows X (n, d); shape (n, m), rows sum to one."""
        scaled, points = self.active(X) / self._width.to(X), (self._points / self._width).to(X)
        return torch.softmax(-0.5 * (scaled[:, None] - points).square().sum(2), 1)

    def scale(self, X: Tensor) -> Tensor:
        """Return ``sqrt(v(x))`` of every row, shape (n, 1)."""
        kernel = self.bind(X.shape[1])
        return (0.5 * (kernel.weights(X) @ kernel.value("variance", X).log()[:, None])).exp()

    def outer_scale(self, X: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.scale(X), {"variance": 0.5 * self.weights(X)}

    def settings(self) -> dict[str, Any]:
        return {"points": self._points.tolist(), "width": self._width.tolist(), **super().settings()}


class ScaleMap(LocalScale):
    """Covariance ``k(x, z) = s(x) s(z)`` of one random number times a known function of the inputs.

    When to use: as a factor, like `LocalVariance`, if there are enough rows to resolve the scale in many places.
    ``GPRegressor(noise="scaled")`` computes it from leave-one-out errors. It has no hyperparameters, so a large number
    of knots does not slow down a fit.

    The logarithm of s is linear between knots along each input, and constant beyond them.

    Parameters
    ----------
    knots : sequence of array-like of shape (k,)
        For each active input its knots, ascending, in the units of the input.
    log_scale : array-like of shape (k_1, ..., k_n_active)
        Logarithm of s at each combination of knots.
    columns : sequence of int, optional
        The input columns that s depends on; None for all.
    """

    def __init__(
        self, knots: Sequence[ParameterLike], log_scale: ParameterLike, *, columns: Sequence[int] | None = None
    ) -> None:
        super().__init__({}, columns=columns)
        self._knots = tuple(_numbers(one, "knots of ScaleMap") for one in knots)
        if not self._knots or any(one.ndim != 1 or not len(one) or (one.diff() <= 0).any() for one in self._knots):
            raise InvalidInputError(f"knots of ScaleMap must be ascending numbers for each input; got {shown(knots)}.")
        self._log_scale = _numbers(log_scale, "log_scale of ScaleMap")
        shape = tuple(map(len, self._knots))
        if self._log_scale.shape != shape:
            msg = f"log_scale of ScaleMap must have shape {shape}, as its knots; got {tuple(self._log_scale.shape)}."
            raise InvalidInputError(msg)
        if self._columns is not None and len(self._columns) != len(shape):
            got = f"{len(self._columns)} columns and {len(shape)} lists"
            raise InvalidInputError(f"knots of ScaleMap must have a list for each of columns; got {got}.")

    @property
    def knots(self) -> tuple[Tensor, ...]:
        """The knots along each active input, ascending, in the units of the inputs."""
        return self._knots

    @property
    def log_scale(self) -> Tensor:
        """Logarithm of s at each combination of knots."""
        return self._log_scale

    def _n_values(self, n_active: int) -> int:
        if n_active != len(self._knots):
            msg = f"knots of ScaleMap must have a list for each of {n_active} inputs; got {len(self._knots)}."
            raise InvalidInputError(f"{msg} Name the columns that they are of.")
        return n_active

    def scale(self, X: Tensor) -> Tensor:
        index, weights = between(self._knots, self.active(X).double())
        logs = self._log_scale.reshape(-1).to(weights.device)
        return (weights * logs[index]).sum(1, keepdim=True).exp().to(X)

    def outer_scale(self, X: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return self.scale(X), {}

    def settings(self) -> dict[str, Any]:
        own = {"knots": [one.tolist() for one in self._knots], "log_scale": self._log_scale.tolist()}
        return {**own, **super().settings()}


def between(knots: Sequence[Tensor], X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the combinations of knots around rows X (n, d), and the weights with which a function is linear there.

    Both have the shape (n, 2^d). Combinations are numbered as in a flat table. Weights are not negative and sum to one.
    """
    index, weights = X.new_zeros(len(X), 1, dtype=torch.long), X.new_ones(len(X), 1)
    for places, x in zip(knots, X.unbind(1), strict=True):
        own = places.to(X)
        after = torch.searchsorted(own, x.detach().contiguous(), right=True).clamp(1, max(len(own) - 1, 1))
        before = (after - 1).clamp_max(len(own) - 1)
        after = after.clamp_max(len(own) - 1)
        apart = torch.where(after > before, own[after] - own[before], 1.0)
        part = ((x.clamp(own[0], own[-1]) - own[before]) / apart)[:, None]
        index = torch.cat([index * len(own) + before[:, None], index * len(own) + after[:, None]], 1)
        weights = torch.cat([weights * (1 - part), weights * part], 1)
    return index, weights


def _numbers(value: Any, name: str) -> Tensor:
    try:
        found = torch.as_tensor(value, dtype=torch.float64).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"{name} must be numbers; got {shown(value)}.") from error
    if not bool(torch.isfinite(found).all()):
        raise InvalidInputError(f"{name} must be finite; got {shown(value)}.")
    return found
