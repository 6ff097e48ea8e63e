"""Metrics of stationary kernels: what turns inputs into the coordinates whose Euclidean distance counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError

#: Name of a metric, as the constructors of kernels take it.
MetricName = Literal["euclidean", "haversine", "rotated"]
#: Mean radius of the Earth in km (Moritz 2000, Geodetic Reference System 1980, doi 10.1007/s001900050278).
EARTH_RADIUS = 6371.0088
#: Range of longitudes and of latitudes in degrees. Both conventions of longitude fit.
_LONGITUDES, _LATITUDES = (-180.0, 360.0), (-90.0, 90.0)
#: How far beyond it numbers may be, in degrees: rows of a fit that are read back from float32 are rounded.
_ROUNDING = 1e-4
#: Lengthscale of a kernel on the sphere that was given none and knows no rows, in km.
_DEFAULT_LENGTH = 1000.0
#: First over second lengthscale of a rotated kernel that was given none: at a ratio of one no angle is better than
#: another, and learning would not begin to turn.
_DEFAULT_RATIO = 1.5


class Geometry:
    """Coordinates of points in place of their inputs; here the inputs themselves.

    A metric turns the first two active inputs into coordinates, which may share a lengthscale. Further inputs, such as
    time, are coordinates themselves, each with its own lengthscale. Kernels of these coordinates are positive definite
    and have the spectra and nearest neighbours of kernels of as many inputs, because distances between them are
    Euclidean.

    A kernel of the standardized problem sees standardized inputs. It turns them back with `weights` and `origin`, so
    that a rotation or a sphere is the same one in any units.
    """

    name: ClassVar[MetricName] = "euclidean"
    #: Hyperparameters that the metric adds to a kernel: single numbers without a unit that depends on the data.
    hyperparameters: ClassVar[tuple[str, ...]] = ()

    def groups(self, n_active: int) -> tuple[int, ...] | None:
        """Return the number of the lengthscale of each coordinate; None for what the kernel says."""
        return None

    def weights(self, scale: Tensor) -> Tensor | None:
        """Return the factors of standardized active inputs, (n_active,), with these scales; None for the kernel's."""
        return None

    def origin(self, centre: Tensor) -> Tensor | None:
        """Return what is added after `weights`, for active inputs with these centres; None for nothing."""
        return None

    def lengths(self, scale: Tensor, centre: Tensor) -> Tensor | None:
        """Return the units of standardized lengthscales in the data's own, one for each; None for the kernel's."""
        return None

    def coordinates(self, active: Tensor, values: Mapping[str, Tensor], unit: float) -> Tensor:
        """Return the coordinates of active inputs (n, n_active) in a multiple of their own units, differentiable."""
        return active

    def default(self, name: str, n_values: int, *, standardized: bool) -> float | list[float] | None:
        """Return what a missing hyperparameter is, in the standardized problem or own units; None for the kernel's."""
        return None

    def simplest(self, value: Tensor) -> Tensor:
        """Return the simplest value of a hyperparameter of the metric that means the same."""
        return value

    def refusal(self, X: Tensor, columns: Sequence[int] = (0, 1)) -> tuple[int, int, str] | None:
        """Return row and column of a number that the metric does not take, and what it takes; None: there is none."""
        return None


class Sphere(Geometry):
    """Points on the Earth: the coordinates of a longitude and a latitude in degrees are a point in space, in km."""

    name = "haversine"

    def groups(self, n_active: int) -> tuple[int, ...]:
        """Return one lengthscale for the three coordinates in space, and one for each further input."""
        return (0, 0, 0, *range(1, n_active - 1))

    def weights(self, scale: Tensor) -> Tensor:
        return torch.cat([scale[:2], torch.ones_like(scale[2:])])

    def origin(self, centre: Tensor) -> Tensor:
        """Return the centres of longitude and latitude."""
        return torch.cat([centre[:2], torch.zeros_like(centre[2:])])

    def lengths(self, scale: Tensor, centre: Tensor) -> Tensor:
        """Return the spread of the rows in km, at most the Earth's radius, and the scales of further inputs."""
        degrees = torch.stack([scale[0] * torch.cos(torch.deg2rad(centre[1])), scale[1]])
        spread = EARTH_RADIUS * torch.deg2rad(degrees.square().mean().sqrt()).clamp(max=1.0)
        return torch.cat([spread[None], scale[2:]])

    def coordinates(self, active: Tensor, values: Mapping[str, Tensor], unit: float) -> Tensor:
        """Return points in space in units of ``unit`` km, and the further inputs."""
        longitude, latitude = torch.deg2rad(active[:, 0]), torch.deg2rad(active[:, 1])
        equator = torch.cos(latitude)
        place = [equator * torch.cos(longitude), equator * torch.sin(longitude), torch.sin(latitude)]
        return torch.cat([torch.stack(place, 1) * (EARTH_RADIUS / unit), active[:, 2:]], 1)

    def default(self, name: str, n_values: int, *, standardized: bool) -> list[float] | None:
        """Return 1000 km in own units, which say nothing about the rows."""
        if standardized or name != "lengthscale":
            return None
        return [_DEFAULT_LENGTH, *[float(n_values) ** 0.5] * (n_values - 1)]

    def refusal(self, X: Tensor, columns: Sequence[int] = (0, 1)) -> tuple[int, int, str] | None:
        """Return the place of the first number that is no longitude or latitude."""
        ranges = ("longitudes", _LONGITUDES), ("latitudes", _LATITUDES)
        for column, (name, (low, high)) in zip(columns, ranges, strict=False):
            outside = (X[:, column] < low - _ROUNDING) | (X[:, column] > high + _ROUNDING)
            if bool(outside.any()):
                allowed = f"{name} in degrees, from {low:g} to {high:g} (longitude comes first, then latitude)"
                return int(outside.nonzero()[0]), column, allowed
        return None


class Rotation(Geometry):
    """Axes that are turned: the first lengthscale is along the angle, the second one across it."""

    name = "rotated"
    hyperparameters = ("angle",)

    def groups(self, n_active: int) -> tuple[int, ...]:
        """Return one lengthscale for each coordinate."""
        return tuple(range(n_active))

    def weights(self, scale: Tensor) -> Tensor:
        """Return factors that give the two inputs the same unit again."""
        return torch.cat([scale[:2] / scale[:2].log().mean().exp(), torch.ones_like(scale[2:])])

    def lengths(self, scale: Tensor, centre: Tensor) -> Tensor:
        """Return the geometric mean of the two scales for both axes, and the scales of further inputs."""
        return torch.cat([scale[:2].log().mean().exp().expand(2), scale[2:]])

    def coordinates(self, active: Tensor, values: Mapping[str, Tensor], unit: float) -> Tensor:
        """Return the inputs along and across the angle, and the further ones."""
        angle = torch.deg2rad(values["angle"]).to(active)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        along = cosine * active[:, 0] + sine * active[:, 1]
        across = cosine * active[:, 1] - sine * active[:, 0]
        return torch.cat([along[:, None], across[:, None], active[:, 2:]], 1)

    def default(self, name: str, n_values: int, *, standardized: bool) -> float | list[float] | None:
        """Return a longer lengthscale along the angle than across it."""
        if name != "lengthscale":
            return 180.0 if name == "angle" else None  # the same as 0, and positive
        others, root = [float(n_values) ** 0.5] * n_values, _DEFAULT_RATIO**0.5
        return [others[0] * root, others[1] / root, *others[2:]]

    def simplest(self, value: Tensor) -> Tensor:
        """Return an angle of at most 180 degrees."""
        turned = torch.remainder(value, 180.0)
        return torch.where(turned > 0, turned, turned + 180.0)

    @staticmethod
    def slope(lengths: Tensor) -> float:
        """Return what the product of the differences along and across, in lengthscales, is multiplied with.

        The derivative of the squared distance ``q = a^2 + b^2`` by the angle in degrees is this factor times ``a b``.
        """
        ratio = float(lengths[1] / lengths[0])
        return math.radians(2.0) * (ratio - 1 / ratio)


_GEOMETRIES: dict[str, Geometry] = {one.name: one for one in (Geometry(), Sphere(), Rotation())}


def geometry_of(metric: str, owner: str, *, ard: bool, angle: Any) -> Geometry:
    """Return the geometry of a metric, or refuse it for these arguments of the constructor of the kernel ``owner``."""
    if angle is not None and metric != "rotated":
        raise InvalidInputError(f'angle of {owner} needs metric="rotated"; got angle={angle!r} with metric={metric!r}.')
    if metric != "euclidean" and not ard:
        msg = f"ard of {owner} must be True with metric={metric!r}, whose coordinates have lengthscales of their own."
        raise InvalidInputError(msg)
    return _GEOMETRIES[metric]
