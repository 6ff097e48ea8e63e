"""Base of the kernels of the scaled distance, and of such kernels of your own."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from gigagp.indexed_random import IndexedDraws
from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.distances import squared_distances
from gigagp.kernels.fused import Profile
from gigagp.kernels.hyperparameter import Hyperparameter
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.spectral import tail_probabilities
from gigagp.kernels.units import Unit
from gigagp.random import standard_normal

#: The three forms of a profile, which a class has to write together for its closed forms to be used.
_FORMS = frozenset({"profile", "profile_", "profile_derivatives_"})
#: Methods that closed forms rely on as `StationaryKernel` has them.
_RELIED_ON = ("block", "scale", "active", "value", "lengths")


class StationaryKernel(Leaf):
    """``k(x, z) = variance * g(q)`` with ``q = sum_k (x_k - z_k)^2 / lengthscale_k^2`` and a profile g, g(0) = 1.

    A kernel of your own needs `profile` alone; products and gradients then go through autograd, tile by tile::

        class Cauchy(kernels.StationaryKernel):
            def profile(self, q):
                return 1 / (1 + q)

    What it declares beyond that makes it faster or able to do more:

    - `profile_` and `profile_derivatives_`, together with `profile` in the same class: closed forms on tiles, which
      need neither autograd nor memory for it.
    - `frequencies`: random features, which pathwise samples and random-feature inference need.
    - `fused_profile`: the compiled engines.
    - ``shapes`` and ``units`` with more hyperparameters, which the constructor then takes by keyword. Closed forms
      know ``alpha`` alone.

    None of this is inherited by a class that replaces `profile` or `block`: it has other numbers than its parent.

    Parameters
    ----------
    lengthscale, variance, ard, columns, fixed, bounds
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
        super().__init_subclass__(**options)
        if "fused_profile" not in vars(cls):
            cls.fused_profile = StationaryKernel.fused_profile  # type: ignore[method-assign]
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
        **more: ParameterLike,
    ) -> None:
        unknown = sorted(set(more) - set(self.shapes))
        if unknown:
            msg = f"{type(self).__name__}() got an unexpected keyword argument {unknown[0]!r}"
            raise TypeError(msg)
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
        return {**plain, **super().settings()}

    # Values ---------------------------------------------------------------------------------------------------------

    @property
    def distance_factor(self) -> float:
        """The number p / q; scaling inputs by its root saves one pass over every tile."""
        return 1.0

    def scale(self, X: Tensor) -> Tensor:
        """Return the active inputs in units of their lengthscales, shape (n, number of active inputs)."""
        return self.active(X) / self.by_input("lengthscale", X)

    @abstractmethod
    def profile(self, q: Tensor) -> Tensor:
        """Return g(q); differentiable, with finite derivatives at q = 0."""

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return the dense covariance; see `Kernel.block`."""
        kernel = self.bind(X.shape[1])
        # float64 up to the distances, where nearly equal numbers are subtracted
        left = kernel.scale(X.to(torch.float64))
        right = left if Z is X else kernel.scale(Z.to(torch.float64))
        q = squared_distances(left, right, kink=kernel.kink).to(X.dtype)
        return kernel.profile(q) * kernel.value("variance", X)

    def diagonal(self, X: Tensor) -> Tensor:
        """Return the variance for every row."""
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    # Closed forms and compiled engines ------------------------------------------------------------------------------

    @classmethod
    def has_closed_form(cls) -> bool:
        """Whether `profile_` and `profile_derivatives_` compute what `block` does, so that engines may use them.

        True where one class has written all three forms of the profile, and no class derived from it has replaced one
        of them or anything that they rely on.
        """
        last = next(base for base in cls.__mro__ if vars(base).keys() & {*_FORMS, "distance_factor"})
        return (
            vars(last).keys() >= _FORMS
            and all(getattr(cls, name) is getattr(StationaryKernel, name) for name in _RELIED_ON)
            and set(cls.shapes) <= {"lengthscale", "variance", "alpha"}
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
        normal = standard_normal(n_frequencies, self.n_active, generator=generator)
        tail, weight = tail_probabilities(n_frequencies, generator, balanced=law == "balanced")
        return {"normal": normal, "tail": tail, "weight": weight}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return the same by index, from the spectral density itself."""
        weight = torch.ones(1, 1, dtype=torch.float64, device=numbers.index.device)
        return {"normal": numbers.normal(self.n_active), "tail": numbers.uniform(1), "weight": weight}

    def frequencies(self, draw: Mapping[str, Tensor]) -> Tensor:
        """Return frequencies at unit lengthscales, (number of frequencies, active inputs).

        With the draw's weights they follow the spectral density; a small ``tail`` is a high frequency.

        Raises
        ------
        InvalidInputError
            Here: a kernel with random features has to write this.
        """
        raise self._without_spectrum()

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the root of variance times weights, and inputs times frequencies."""
        omega = self.frequencies(draw).to(dtype=X.dtype, device=X.device)
        return (self.value("variance", X) * draw["weight"].T.to(X)).sqrt(), self.scale(X) @ omega.T


@cache
def _added_arguments(cls: type[StationaryKernel]) -> tuple[str, ...]:
    """Return the names of arguments that only this class's constructor has and that are no hyperparameters."""
    common = {*inspect.signature(StationaryKernel).parameters, *cls.shapes}
    found = inspect.signature(cls).parameters.values()
    return tuple(one.name for one in found if one.kind is not one.VAR_KEYWORD and one.name not in common)
