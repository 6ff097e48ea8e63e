"""Base of the kernels of the scaled distance, including your own."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.base import Kernel
from gigagp.kernels.distances import squared_distances
from gigagp.kernels.fused import Profile
from gigagp.kernels.geometry import MetricName, geometry_of
from gigagp.kernels.group import Group
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.outputs import Outputs
from gigagp.kernels.spectral import tail_probabilities
from gigagp.kernels.units import Unit, Units
from gigagp.settings.fields import checked
from gigagp.settings.indexed_random import IndexedDraws
from gigagp.settings.random import standard_normal

#: The three forms of a profile, which a class has to write together for its closed forms to be used.
_FORMS = frozenset({"profile", "profile_", "profile_derivatives_"})
#: Methods that closed forms rely on as `StationaryKernel` has them.
_RELIED_ON = ("block", "scale", "coordinates", "active", "value", "lengths")


class StationaryKernel(Leaf):
    """``k(x, z) = variance * g(q)`` with ``q = sum_k (x_k - z_k)^2 / lengthscale_k^2`` and a profile g, g(0) = 1.

    Your own kernel needs only `profile`; products and gradients then use autograd, tile by tile::

        class Cauchy(kernels.StationaryKernel):
            def profile(self, q):
                return 1 / (1 + q)

    Further declarations make it faster or let it do more:

    - `profile_` and `profile_derivatives_`, together with `profile` in the same class: closed forms on tiles, which
      need neither autograd nor memory for it.
    - `frequencies`: random features, which pathwise samples and random-feature inference need.
    - `fused_profile`: the compiled engines.
    - ``shapes`` and ``units`` with more hyperparameters, which the constructor then takes by keyword. Closed forms
      know ``alpha`` alone.

    A class that replaces `profile` or `block` inherits none of this, because its values differ from its parent's.

    Parameters
    ----------
    lengthscale, variance, ard, columns, fixed, bounds, metric, angle
        As for `RBF`.
    **more : float or array-like
        Other hyperparameters of the class, by name.
    """

    shapes: ClassVar[dict[str, bool]] = {"lengthscale": True, "variance": False}
    units: ClassVar[dict[str, Unit]] = {"lengthscale": "input", "variance": "target"}
    has_spectrum: ClassVar[bool] = True
    #: Whether g has infinite slope at zero, so that q has to be exactly zero at coincident points.
    kink: bool = False

    lengthscale = Hyperparameter("Lengthscales, (number of active inputs,) or (1,); None if not settled.")

    variance = Hyperparameter("Variance, a single number; None if not settled.")

    def __init_subclass__(cls, **options: Any) -> None:
        """Make `fused_profile` a statement about one class, and `frequencies` one about its random features."""
        has_derivatives = "derivatives" in vars(cls)
        super().__init_subclass__(**options)
        if "fused_profile" not in vars(cls):
            cls.fused_profile = StationaryKernel.fused_profile  # type: ignore[method-assign]
        if not has_derivatives:  # the general ones ask for closed forms
            cls.derivatives = StationaryKernel.derivatives  # type: ignore[method-assign]
        if "frequencies" in vars(cls) and "has_spectrum" not in vars(cls):
            cls.has_spectrum = True

    def __init__(
        self,
        lengthscale: ParameterLike | Mapping[str, ParameterLike] = None,
        variance: ParameterLike = None,
        *,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
        metric: MetricName = "euclidean",
        **more: ParameterLike,
    ) -> None:
        owner = type(self).__name__
        taken = "angle" in self.shapes  # by something else of a class of a user's own
        angle = None if taken else more.pop("angle", None)
        self._geometry = geometry_of(checked(metric, MetricName, "metric", owner), owner, ard=ard, angle=angle)
        if self._geometry.hyperparameters:
            if taken:
                msg = f"metric of {owner} must not be {metric!r}: the class has another hyperparameter angle."
                raise InvalidInputError(msg)
            self.shapes = {**self.shapes, "angle": False}  # type: ignore[misc]
            self.units = {**self.units, "angle": "none"}  # type: ignore[misc]
            more["angle"] = angle
        unknown = sorted(set(more) - set(self.shapes))
        if unknown:
            raise TypeError(f"{owner}() got an unexpected keyword argument {unknown[0]!r}")
        values: dict[str, Any] = {
            **dict.fromkeys(self.shapes),
            "lengthscale": lengthscale,
            "variance": variance,
            **more,
        }
        if isinstance(lengthscale, Mapping) and set(lengthscale) >= set(self.shapes):
            values = dict(lengthscale)  # a subclass may pass all values by name, as it would to `Leaf`
        super().__init__(values, ard=ard, columns=columns, fixed=fixed, bounds=bounds)

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments other than hyperparameters, where they differ from the defaults.

        Arguments that a class adds in its constructor are read from the attributes of the same names.
        """
        own = {name: getattr(self, name) for name in _added_arguments(type(self)) if hasattr(self, name)}
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in own.items()}
        metric = {} if self.metric == "euclidean" else {"metric": self.metric}
        return {**plain, **super().settings(), **metric}

    # Metrics --------------------------------------------------------------------------------------------------------

    @property
    def metric(self) -> MetricName:
        """What distances between points are: ``"euclidean"``, ``"haversine"`` or ``"rotated"``."""
        return self._geometry.name

    @property
    def angle(self) -> Tensor | None:
        """Direction of the first lengthscale in degrees; None if not settled, or without the rotated metric."""
        return self._values.get("angle")

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates of a point, which are the active inputs or what the metric makes of them."""
        return self.n_active if (shared := self.shared_values()) is None else len(shared)

    def shared_values(self) -> tuple[int, ...] | None:
        """Return the number of the lengthscale that each coordinate has; None: each input has its own."""
        return self._groups if self.metric == "euclidean" else self._geometry.groups(self.n_active)

    def _n_values(self, n_active: int) -> int:
        groups = self._geometry.groups(n_active)
        if groups is None:
            return super()._n_values(n_active)
        if n_active < 2:
            raise InvalidInputError(
                f"columns of {type(self).__name__} must have at least two inputs with metric={self.metric!r}; "
                f"got {n_active}."
            )
        return max(groups) + 1

    def with_groups(self, groups: Sequence[int], columns: Sequence[int] | None = None) -> Self:
        other = super().with_groups(groups, columns)
        if self.metric != "euclidean" and other.groups is not None:
            raise InvalidInputError(
                f"columns of {type(self).__name__} must be columns of numbers with metric={self.metric!r}, and not "
                "of categories or of dates with a season."
            )
        return other

    def default(self, name: str, n_active: int) -> float | list[float]:
        found = self._geometry.default(name, n_active, standardized=self._input_weights is not None)
        return super().default(name, n_active) if found is None else found

    def coordinates(self, X: Tensor) -> Tensor:
        """Return the coordinates whose distances count: the active inputs, or what the metric makes of them.

        Rows in the data's own units have to be in the range of the metric.
        """
        if self._input_weights is None:
            self.require_taken(X)
        values = {name: self.value(name) for name in self._geometry.hyperparameters}
        return self._geometry.coordinates(self.active(X), values, self._length_unit())

    def require_taken(self, X: Tensor, names: Sequence[str] | None = None) -> None:
        """Refuse rows (n, d) in the data's own units, of inputs with these names, that the metric does not take."""
        refused = self._geometry.refusal(X.detach(), self._active_columns(X.shape[1]))
        if refused is not None:
            row, column, allowed = refused
            label = str(column) if names is None else repr(names[column])
            raise InvalidInputError(
                f"Column {label} of X must have {allowed}, for {type(self).__name__} with metric={self.metric!r}; "
                f"got {float(X[row, column]):g} in row {row}."
            )

    def _length_unit(self) -> float:
        """Return the unit of the first lengthscale in the metric's own."""
        if self._input_weights is None or self._input_origin is None:
            return 1.0
        lengths = self._geometry.lengths(self._input_weights, self._input_origin)
        return 1.0 if lengths is None else float(lengths[0])

    def unit_factors(self, units: Units) -> dict[str, Tensor]:
        found, columns = super().unit_factors(units), self._active_columns(len(units.scale))
        lengths = self._geometry.lengths(units.scale[columns], units.centre[columns])
        return found if lengths is None or not found else {**found, "lengthscale": lengths}

    def in_own_units(self, units: Units) -> Self:
        """Return this kernel in the data's own units, its angle at most 180; see `Kernel.in_own_units`."""
        other = super().in_own_units(units)
        own = [name for name in self._geometry.hyperparameters if name not in self._bounds]
        return other.replace({name: self._geometry.simplest(other.value(name)) for name in own}) if own else other

    def _weights_in(self, units: Units) -> Tensor | None:
        found = self._geometry.weights(units.scale[self._active_columns(len(units.scale))])
        return super()._weights_in(units) if found is None else found

    def _origin_in(self, units: Units) -> Tensor | None:
        return self._geometry.origin(units.centre[self._active_columns(len(units.scale))])

    def lengths(self, name: str = "lengthscale") -> Tensor:
        """Return one lengthscale for each active input; refuse a metric without lengthscales along the inputs."""
        if self.metric != "euclidean":
            raise InvalidInputError(
                f"kernel of a grid over the inputs must have lengthscales along them; got {self!r} with "
                f'metric={self.metric!r}. Use inference="auto", inference.Iterative or inference.Vecchia.'
            )
        return super().lengths(name)

    # Values ---------------------------------------------------------------------------------------------------------

    @property
    def distance_factor(self) -> float:
        """The number p / q; scaling inputs by its root saves one pass over every tile."""
        return 1.0

    def scale(self, X: Tensor) -> Tensor:
        """Return the coordinates in units of their lengthscales, shape (n, n_coordinates)."""
        return self.coordinates(X) / self.by_input("lengthscale", X)

    @abstractmethod
    def profile(self, q: Tensor) -> Tensor:
        """Return g(q); differentiable, with finite derivatives at q = 0."""

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        # float64 up to the distances, where nearly equal numbers are subtracted
        left = kernel.scale(X.to(torch.float64))
        right = left if Z is X else kernel.scale(Z.to(torch.float64))
        q = squared_distances(left, right, kink=kernel.kink).to(X.dtype)
        return kernel.profile(q) * kernel.value("variance", X)

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor] | None:
        """Return the derivatives of `block` from closed forms, for one coordinate; None for several, or without."""
        kernel = self.bind(X.shape[1])
        if not kernel.has_closed_form() or kernel.n_coordinates != 1:
            return None
        squares = (kernel.scale(X.double()) - kernel.scale(Z.double()).T).square()
        values, slopes, shapes = kernel.profile_derivatives_(squares * kernel.distance_factor)
        variance, length = kernel.value("variance", values), kernel.value("lengthscale", values)
        found = {
            "lengthscale": slopes * squares * (-2 * kernel.distance_factor * variance / length),
            "variance": values,
        }
        if shapes is not None:
            found["alpha"] = shapes * variance
        return {name: one.to(X.dtype)[None] for name, one in found.items()}

    # Closed forms and compiled engines ------------------------------------------------------------------------------

    def has_closed_form(self) -> bool:
        """Whether `profile_` and `profile_derivatives_` compute what `block` does, so that engines may use them.

        True where one class has written all three forms of the profile, and no class derived from it has replaced one
        of them or anything that they rely on. There is none for the derivative by an angle.
        """
        cls = type(self)
        last = next(base for base in cls.__mro__ if vars(base).keys() & {*_FORMS, "distance_factor"})
        return (
            vars(last).keys() >= _FORMS
            and all(getattr(cls, name) is getattr(StationaryKernel, name) for name in _RELIED_ON)
            and set(self.shapes) <= {"lengthscale", "variance", "alpha"}
        )

    def profile_(self, p: Tensor) -> Tensor:
        """Return g, overwriting ``p = distance_factor * q``; optional, see `has_closed_form`."""
        raise NotImplementedError

    def profile_derivatives_(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return g, dg/dp and dg/dalpha (at fixed q; None without alpha), overwriting p; optional."""
        raise NotImplementedError

    def profile_derivatives(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return g, dg/dq and dg/dalpha (None without alpha) by the closed form; ``q`` is left alone.

        The slope of the Matern-1/2 profile at zero is infinite. This returns 0 there, because the slope is only ever
        multiplied by squared differences.
        """
        g, slope, by_alpha = self.profile_derivatives_(q * self.distance_factor)
        return g, slope * self.distance_factor, by_alpha

    def fused_profile(self) -> Profile | None:
        """Return the compiled function of ``p = distance_factor * q`` that is this class's g; None where there is none.

        A subclass does not inherit the answer: it has to give its own. Kernels without one run on torch tiles.
        """
        return None

    def fused_alpha(self) -> float:
        """Return the alpha that the compiled profile takes."""
        return 1.0

    # Random features ------------------------------------------------------------------------------------------------

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return normal directions of the frequencies, the tail probabilities that set their length, and weights."""
        normal = standard_normal(n_frequencies, self.n_coordinates, generator=generator)
        tail, weight = tail_probabilities(n_frequencies, generator, balanced=law == "balanced")
        return {"normal": normal, "tail": tail, "weight": weight}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return the same by index, from the spectral density itself."""
        weight = torch.ones(1, 1, dtype=torch.float64, device=numbers.index.device)
        return {"normal": numbers.normal(self.n_coordinates), "tail": numbers.uniform(1), "weight": weight}

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        """Return frequencies at unit lengthscales, (number of frequencies, active inputs); random features need them.

        With the draw's weights they follow the spectral density; a small ``tail`` is a high frequency.
        """
        raise self._without_spectrum()

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        omega = self.frequencies(draw).to(dtype=X.dtype, device=X.device)
        return (self.value("variance", X) * draw["weight"].T.to(X)).sqrt(), self.scale(X) @ omega.T


def require_taken(kernel: Kernel, X: Tensor | np.ndarray, names: Sequence[str] | None = None) -> None:
    """Refuse rows (n, d) in the data's own units that a metric does not take, such as latitudes above 90."""
    if _has_ranges(kernel):
        rows = X if isinstance(X, Tensor) else torch.from_numpy(np.ascontiguousarray(X))
        for leaf in kernel.bind(rows.shape[1]).leaves():
            if isinstance(leaf, StationaryKernel):
                leaf.require_taken(rows, names)


def require_own_units(kernel: Kernel) -> None:
    """Refuse a kernel whose numbers are those of the standardized problem, where there are no degrees."""
    for leaf in kernel.leaves():
        if isinstance(leaf, Outputs | Group):
            column = "column is the number of an output" if isinstance(leaf, Outputs) else "columns are levels"
            raise InvalidInputError(
                f'hyperparameter_units of GPRegressor must be "own" with kernels.{type(leaf).__name__}, whose '
                f'{column}; got "standardized".'
            )
        if isinstance(leaf, StationaryKernel) and leaf.metric == "haversine":
            raise InvalidInputError(
                'hyperparameter_units of GPRegressor must be "own" with metric="haversine", whose inputs are degrees; '
                'got "standardized".'
            )


def rows_check(kernel: object) -> Callable[[Tensor], None] | None:
    """Return `require_taken` for the rows of a stream; None where the kernel takes all rows, or is no kernel yet."""
    return partial(require_taken, kernel) if isinstance(kernel, Kernel) and _has_ranges(kernel) else None


def _has_ranges(kernel: Kernel) -> bool:
    return any(isinstance(leaf, StationaryKernel) and leaf.metric != "euclidean" for leaf in kernel.leaves())


@cache
def _added_arguments(cls: type[StationaryKernel]) -> tuple[str, ...]:
    """Return the names of arguments that only this class's constructor has and that are no hyperparameters."""
    common = {*inspect.signature(StationaryKernel).parameters, *cls.shapes}
    found = inspect.signature(cls).parameters.values()
    return tuple(one.name for one in found if one.kind is not one.VAR_KEYWORD and one.name not in common)
