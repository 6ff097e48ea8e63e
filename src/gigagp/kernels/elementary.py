"""Kernels without a distance: constant, linear and white, and a base of those with a centre."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import BoundsLike, LeafOptions, ParameterLike
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.state_space import Component, Resting
from gigagp.kernels.units import Unit, Units
from gigagp.settings.indexed_random import IndexedDraws
from gigagp.settings.random import standard_normal


class Constant(Leaf):
    """Constant covariance: ``k = variance``, the prior of an unknown offset.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    fixed : sequence of str or bool
        ``("variance",)`` or True: the variance is not learned.
    bounds : mapping of str to (lower, upper), optional
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False}
    units: ClassVar[dict[str, Unit]] = {"variance": "target"}
    has_spectrum: ClassVar[bool] = True
    words: ClassVar[dict[str, dict[str, Any]]] = {"constant": {}}

    variance = Hyperparameter("Variance, a single number; None if not settled.")

    def __init__(
        self, variance: ParameterLike = None, *, fixed: Sequence[str] | bool = (), bounds: BoundsLike = None
    ) -> None:
        super().__init__({"variance": variance}, fixed=fixed, bounds=bounds)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0], Z.shape[0])

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def state_space(self) -> tuple[Component, ...]:
        return (Resting(self.value("variance")),)

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return nothing, because a constant has no frequencies."""
        return {}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return nothing, because a constant has no frequencies."""
        return {}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self.value("variance", X).sqrt(), None


class Centred(Leaf):
    """Base of kernels whose functions are zero at a ``centre``.

    It is one number for all or one for each active input. Default: the mean of the training inputs where the estimator
    standardizes them, otherwise zero.
    """

    def __init__(
        self, values: Mapping[str, ParameterLike], *, centre: ParameterLike = None, **options: Unpack[LeafOptions]
    ) -> None:
        super().__init__(values, **options)
        self._centre = checked_centre(centre, type(self).__name__)

    @property
    def centre(self) -> Tensor | None:
        """Where the functions are zero: one number for each active input, or one for all; None for zero."""
        return self._centre

    def only_centre(self) -> float:
        """Return the centre of a kernel of one input."""
        return 0.0 if self._centre is None else float(self._centre[0])

    def active(self, X: Tensor) -> Tensor:
        """Return the columns that the kernel depends on, minus the centre."""
        if self._centre is None:
            return super().active(X)
        n_active = X.shape[1] if self.columns is None else len(self.columns)
        if self._centre.numel() not in (1, n_active):
            owner, count = type(self).__name__, self._centre.numel()
            raise InvalidInputError(f"centre of {owner} must be one number or {n_active}; got {count}.")
        shift = X.new_zeros(X.shape[1], dtype=torch.float64)
        shift[list(range(X.shape[1]) if self.columns is None else self.columns)] = self._centre.to(X.device)
        return super().active((X.double() - shift).to(X))

    def standardized(self, units: Units) -> Self:
        other = super().standardized(units)
        if self._centre is not None:
            columns = self._active_columns(len(units.scale))
            centre = (self._centre - units.centre[columns]) / units.scale[columns]
            other._centre = centre if bool((centre != 0).any()) else None
        return other

    def in_own_units(self, units: Units) -> Self:
        other = super().in_own_units(units)
        columns = self._active_columns(len(units.scale))
        origin = 0.0 if self._centre is None else self._centre
        centre = units.centre[columns] + units.scale[columns] * origin
        other._centre = centre if bool((centre != 0).any()) else None
        return other

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({} if self._centre is None else {"centre": self._centre.tolist()})


class Linear(Centred):
    """Linear covariance: ``k = sum_k variance_k (x_k - centre_k) (z_k - centre_k)``, the prior of unknown slopes.

    Its functions are zero at the centre. Add a `Constant` for an unknown offset.

    Parameters
    ----------
    variance : float or array-like, optional
        Prior variance of the slopes, one for all or one for each active input. Default 1.
    centre : float or array-like, optional
        Where the functions are zero, one number for all or one for each active input. Default: the mean of the training
        inputs where the estimator standardizes them, otherwise zero.
    ard, columns, fixed, bounds
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "slope"}
    has_spectrum: ClassVar[bool] = True
    words: ClassVar[dict[str, dict[str, Any]]] = {"linear": {}}

    variance = Hyperparameter("Variances of the slopes; None if not settled.")

    def __init__(
        self,
        variance: ParameterLike = None,
        *,
        centre: ParameterLike = None,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        super().__init__({"variance": variance}, centre=centre, ard=ard, columns=columns, fixed=fixed, bounds=bounds)

    def scale(self, X: Tensor) -> Tensor:
        """Return the active inputs times the prior standard deviations of their slopes."""
        return self.active(X) * self.by_input("variance", X).sqrt()

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        return kernel.scale(X) @ kernel.scale(Z).T

    def diagonal(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).scale(X).square().sum(1)

    def state_space(self) -> tuple[Component, ...]:
        return (Resting(self.by_input("variance")[0], self.only_centre()),)

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return random slopes, for products, which have no exact features as the kernel alone has."""
        return {"normal": standard_normal(n_frequencies, self.n_active, generator=generator)}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {"normal": numbers.normal(self.n_active)}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self.scale(X) @ draw["normal"].to(dtype=X.dtype, device=X.device).T, None


def checked_centre(centre: ParameterLike, owner: str) -> Tensor | None:
    """Return where the functions of a kernel are zero, one number or one for each input; None for zero."""
    if centre is None:
        return None
    try:
        numbers = torch.as_tensor(centre, dtype=torch.float64, device="cpu").detach().clone().reshape(-1)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InvalidInputError(f"centre of {owner} must be a number or a list of numbers; got {centre!r}.") from error
    if not numbers.numel() or not bool(torch.isfinite(numbers).all()):
        raise InvalidInputError(f"centre of {owner} must be finite; got {centre!r}.")
    return numbers


class White(Leaf):
    """White noise as a kernel: ``variance`` between a row and itself, 0 between different rows, even equal ones.

    Every model has a noise variance already. Use this kernel for noise in a product, as in ``White() * Linear()``, and
    for bounds on the noise. As a separate term, as in ``RBF() + White()``, it replaces the model's noise variance,
    which is then 0 unless you give it too. Estimators refuse it for counts and labels, which have no noise variance.

    Parameters
    ----------
    variance : float, optional
        Default 1.
    fixed : sequence of str or bool
        ``("variance",)`` or True: the variance is not learned.
    bounds : mapping of str to (lower, upper), optional
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": False}
    units: ClassVar[dict[str, Unit]] = {"variance": "target"}
    has_spectrum: ClassVar[bool] = True
    words: ClassVar[dict[str, dict[str, Any]]] = {"white": {}}
    is_white: ClassVar[bool] = True

    variance = Hyperparameter("Variance, a single number; None if not settled.")

    def __init__(
        self, variance: ParameterLike = None, *, fixed: Sequence[str] | bool = (), bounds: BoundsLike = None
    ) -> None:
        super().__init__({"variance": variance}, fixed=fixed, bounds=bounds)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        """Return zeros: white noise is no function of two points."""
        return X.new_zeros(()).expand(X.shape[0], Z.shape[0])

    def diagonal(self, X: Tensor) -> Tensor:
        return X.new_zeros(()).expand(X.shape[0])

    def white(self, X: Tensor) -> Tensor:
        return self.bind(X.shape[1]).value("variance", X).expand(X.shape[0])

    def state_space(self) -> tuple[Component, ...]:
        """Return nothing: white noise is no function of time."""
        return ()
