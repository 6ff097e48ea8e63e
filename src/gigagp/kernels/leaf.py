"""An elementary kernel: its hyperparameters, its input columns, and what is held fixed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, overload

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import (
    BoundsLike,
    ParameterLike,
    checked_columns,
    checked_fixed,
    checked_groups,
    checked_value,
)
from gigagp.kernels.base import Kernel
from gigagp.kernels.bounds import Bounds, checked_bounds
from gigagp.kernels.state_space import Component
from gigagp.kernels.units import Unit, Units
from gigagp.settings.brief import short
from gigagp.settings.fields import checked
from gigagp.settings.indexed_random import IndexedDraws

#: What a class computes its covariances with, and what has to agree with them for random features.
_COVARIANCE = frozenset({"block", "profile"})
_FEATURES = frozenset({"has_spectrum", "draw_frequencies", "draw_at", "frequencies", "amplitude_and_phase"})


class Leaf(Kernel):
    """Base of the elementary kernels, and of your own kernels.

    A subclass names its hyperparameters in `shapes`, passes their values to ``__init__`` and writes `block` and
    `diagonal`. It reads values with `value` and inputs with `active`. `Hyperparameter` turns names into attributes.
    A subclass that replaces `block` has no random features unless it writes those too.

    Parameters
    ----------
    values : mapping of str to float, array-like or None
        One entry for each name in `shapes`; None waits for `bind`.
    ard : bool
        Whether hyperparameters that belong to inputs have one value each, or one for all.
    columns : sequence of int, optional
        The input columns that the kernel depends on; None for all.
    fixed : sequence of str or bool
        Names that are not learned; True for all of them.
    bounds : mapping of str to (lower, upper), optional
        Smallest and largest value that learning may reach, in the units of the value: one number or one for each active
        input, None where there is no bound.
    """

    #: Hyperparameters by name: True for one value for each input, False for a single number.
    shapes: ClassVar[dict[str, bool]] = {}
    #: The unit of each hyperparameter. A kernel that names all of them is given, and read, in the data's own units; one
    #: that leaves a name out sees standardized inputs.
    units: ClassVar[dict[str, Unit]] = {}
    #: Whether random features are known.
    has_spectrum: ClassVar[bool] = False
    #: Whether the kernel is noise between a row and itself.
    is_white: ClassVar[bool] = False
    #: How often functions can be differentiated in mean square, plus 1/2, as ``nu`` of `Matern`; None if not declared.
    #: Grids take their number of nodes for each lengthscale from it.
    smoothness: float | None = None
    #: Words of the command line for this class, each with the constructor's arguments that it stands for.
    words: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Drop what belongs to the parent's covariance if a class replaces it and does not define its own."""
        super().__init_subclass__(**options)
        own = vars(cls).keys()
        if own & _COVARIANCE and not own & _FEATURES:
            cls.has_spectrum = False
        if own & _COVARIANCE and "state_space" not in own:
            cls.state_space = Leaf.state_space  # type: ignore[method-assign]
        if own & _COVARIANCE and "derivatives" not in own:
            cls.derivatives = Leaf.derivatives  # type: ignore[method-assign]

    def __init__(
        self,
        values: Mapping[str, ParameterLike],
        *,
        ard: bool = True,
        columns: Sequence[int] | None = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        owner = type(self).__name__
        self._values = {
            name: checked_value(values[name], name, owner, per_input=per_input)
            for name, per_input in self.shapes.items()
        }
        self._ard = checked(ard, bool, "ard", owner)
        self._columns = checked_columns(columns, owner)
        self._fixed = checked_fixed(fixed, self.shapes, owner)
        self._bounds = checked_bounds(bounds, self.shapes, owner)
        for name in self._bounds:
            self._require_within(name, self._values[name])
        self._n_inputs: int | None = None
        #: Number of the value that each active input has, where several inputs share one; None: one each.
        self._groups: tuple[int, ...] | None = None
        #: Factors of the inputs where one lengthscale serves all of them and standardizing gave them different units,
        #: and what is added after the factors; None: nothing.
        self._input_weights: Tensor | None = None
        self._input_origin: Tensor | None = None

    # Construction ---------------------------------------------------------------------------------------------------

    def bind(self, n_inputs: int) -> Self:
        if self._n_inputs == n_inputs:
            return self
        owner = type(self).__name__
        if self._n_inputs is not None:
            raise InvalidInputError(
                f"This {owner} is bound to data with {self._n_inputs} columns; got {n_inputs}. "
                "Build a new kernel for other data."
            )
        if self._columns is not None and max(self._columns) >= n_inputs:
            msg = f"columns of {owner} must be below {n_inputs}, the number of inputs; got {list(self._columns)}."
            raise InvalidInputError(msg)
        n_active = n_inputs if self._columns is None else len(self._columns)
        if n_active < 1:
            raise InvalidInputError(f"{owner} needs data with at least one column; got {n_inputs}.")
        if self._groups is not None and len(self._groups) != n_active:
            msg = f"groups of {owner} must have one number for each of {n_active} active inputs; got {self._groups}."
            raise InvalidInputError(msg)
        n_active = self._n_values(n_active)
        bound = copy.copy(self)
        bound._n_inputs = n_inputs
        bound._bounds = {
            name: Bounds(
                self._for_inputs(f"lower bound of {name}", name, pair.lower, n_active),
                self._for_inputs(f"upper bound of {name}", name, pair.upper, n_active),
            )
            for name, pair in self._bounds.items()
        }
        bound._values = {}
        for name in self.shapes:
            given = self._values[name]
            value = torch.tensor(self.default(name, n_active), dtype=torch.float64) if given is None else given
            value = self._for_inputs(name, name, value, n_active)
            if given is None and name in bound._bounds:
                value = bound._bounds[name].clip(value)  # the default may lie outside
            bound._values[name] = value
        for name in bound._bounds:
            bound._require_within(name, bound._values[name])
        return bound

    def _n_values(self, n_active: int) -> int:
        """Return how many values a hyperparameter of this many active inputs has; each group of inputs has one."""
        return n_active if self._groups is None else max(self._groups) + 1

    def n_values(self, name: str, n_active: int) -> tuple[int, str]:
        """Return how many values a hyperparameter with several has at ``n_active`` inputs, and what each is of."""
        if not self._ard:
            return 1, "kernel, because ard=False"
        return n_active, "active input" if self._groups is None else "group of inputs"

    def _for_inputs(self, label: str, name: str, value: Tensor, n_active: int) -> Tensor:
        """Return numbers for a hyperparameter: one for each active input where its shape says so."""
        if not self.shapes[name]:
            return value
        length, of = self.n_values(name, n_active)
        if value.numel() not in {1, length}:
            raise InvalidInputError(
                f"{label} of {type(self).__name__} must be one number or {length} (one for each {of}); got "
                f"{value.numel()}."
            )
        return value.expand(length).clone() if value.numel() != length or value.ndim == 0 else value

    def _require_within(self, name: str, value: Tensor | None) -> None:
        """Refuse a value outside of its bounds; numbers that do not broadcast are left for `bind` to refuse."""
        pair = self._bounds[name]
        if value is None or len({value.numel(), pair.lower.numel(), pair.upper.numel()} - {1}) > 1:
            return
        if not torch.equal(pair.clip(value), value.expand(np.broadcast_shapes(value.shape, pair.shape))):
            bounds, owner = tuple(pair.to_plain()), type(self).__name__
            raise InvalidInputError(f"{name} of {owner} must lie within its bounds {bounds}; got {value.tolist()}.")

    def default(self, name: str, n_active: int) -> float | list[float]:
        """Return the value, or one for each of ``n_active``, that ``name`` takes when nothing was given."""
        return float(n_active) ** 0.5 if name == "lengthscale" else 1.0

    # Reading --------------------------------------------------------------------------------------------------------

    @property
    def n_inputs(self) -> int | None:
        return self._n_inputs

    def parameters(self) -> dict[str, Tensor]:
        return {name: self.value(name) for name in self.shapes}

    def fixed_parameters(self) -> frozenset[str]:
        return self._fixed

    def given_parameters(self) -> frozenset[str]:
        return frozenset(name for name, value in self._values.items() if value is not None)

    def bounds(self) -> dict[str, Bounds]:
        return dict(self._bounds)

    def value(self, name: str, like: Tensor | None = None) -> Tensor:
        """Return one hyperparameter, with the dtype and device of ``like`` when it is given."""
        value = self._values[name]
        if value is None or self._n_inputs is None:
            owner = type(self).__name__
            msg = f"{owner} is not bound to data yet, so its {name} is not settled; call bind(n_inputs) first."
            raise InvalidInputError(msg)
        return value if like is None else value.to(like)

    def replace(self, values: Mapping[str, Tensor]) -> Self:
        owner = type(self).__name__
        unknown = set(values) - set(self.shapes)
        if unknown:
            raise InvalidInputError(f"{owner} has the hyperparameters {sorted(self.shapes)}; got {sorted(unknown)}.")
        for name, value in values.items():
            if value.shape != self.value(name).shape:
                raise InvalidInputError(
                    f"{name} of this {owner} has shape {tuple(self.value(name).shape)}; "
                    f"got a tensor of shape {tuple(value.shape)}."
                )
        other = copy.copy(self)
        other._values = {**self._values, **values}
        return other

    def multiplied(self, factors: Mapping[str, Tensor]) -> Self:
        other = self.replace({name: self.value(name) * factor for name, factor in factors.items()})
        other._bounds = {
            name: pair.multiplied(factors[name]) if name in factors else pair for name, pair in self._bounds.items()
        }
        return other

    @property
    def says_units(self) -> bool:
        """Whether every hyperparameter has a unit."""
        return set(self.units) == set(self.shapes)

    def unit_factors(self, units: Units) -> dict[str, Tensor]:
        if not self.says_units:
            return {}
        columns = self._active_columns(len(units.scale))
        if self._groups is not None and self._ard:  # the inputs of a group have the same unit
            columns = [columns[self._groups.index(group)] for group in range(max(self._groups) + 1)]
        return {name: units.factor(unit, columns, ard=self._ard) for name, unit in self.units.items()}

    def standardized(self, units: Units) -> Self:
        bound = self.bind(len(units.scale))
        if not self.says_units:
            return bound
        # Values and bounds are multiplied by the same factors, so that rounding takes no value beyond its bound.
        factors = {name: 1 / factor for name, factor in self.unit_factors(units).items()}
        other = copy.copy(self)
        other._n_inputs = None
        other._values = {
            name: None if given is None else bound.value(name) * factors[name] for name, given in self._values.items()
        }
        other._bounds = {name: pair.multiplied(factors[name]) for name, pair in bound._bounds.items()}
        other._input_weights, other._input_origin = self._weights_in(units), self._origin_in(units)
        return other.bind(len(units.scale))

    def _weights_in(self, units: Units) -> Tensor | None:
        """Return the factors of standardized inputs with which one lengthscale serves all of them."""
        lengths = units.scale[self._active_columns(len(units.scale))]
        if self._ard or not any(self.shapes.values()) or bool((lengths == lengths[0]).all()):
            return None
        return lengths / lengths.log().mean().exp()

    def _origin_in(self, units: Units) -> Tensor | None:
        """Return what is added to the weighted inputs; most kernels depend on differences and need nothing."""
        return None

    def with_input_weights(self, weights: Sequence[float], origin: Sequence[float] | None = None) -> Self:
        """Return this kernel with factors of its active inputs, and what is added to them; for kernels from files."""
        numbers = torch.as_tensor(weights, dtype=torch.float64)
        if numbers.shape != (self.n_active,) or not bool((torch.isfinite(numbers) & (numbers > 0)).all()):
            msg = f"input_weights of {type(self).__name__} must be {self.n_active} positive numbers; got {weights!r}."
            raise InvalidInputError(msg)
        other = copy.copy(self)
        other._input_weights = numbers
        if origin is not None:
            places = torch.as_tensor(origin, dtype=torch.float64)
            if places.shape != numbers.shape or not bool(torch.isfinite(places).all()):
                msg = f"input_origin of {type(self).__name__} must be {self.n_active} finite numbers; got {origin!r}."
                raise InvalidInputError(msg)
            other._input_origin = places
        return other

    def in_own_units(self, units: Units) -> Self:
        if not self.says_units:
            return self
        other = self.multiplied(self.unit_factors(units))
        other._input_weights = other._input_origin = None
        return other

    def white(self, X: Tensor) -> Tensor:
        """Return zeros: most kernels have no white part."""
        return X.new_zeros(X.shape[0])

    def terms(self) -> tuple[tuple[Leaf, ...], ...]:
        return ((self,),)

    def state_space(self) -> tuple[Component, ...]:
        """Refuse: most kernels have no state of finitely many numbers."""
        raise InvalidInputError(f"{type(self).__name__} has no state-space form.")

    def derivatives(self, X: Tensor, Z: Tensor) -> dict[str, Tensor] | None:
        """Return the derivatives of `block` by the values of every hyperparameter, each (n_values, n, m).

        None: there is no closed form, and autograd finds them in more time and memory.
        """
        return None

    def outer_scale(self, X: Tensor) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Return s and its derivatives, where the kernel is ``s(x) s(z)`` for s that depends on the input; else None.

        s is that of rows X (n, d), shape (n, 1). The derivatives, (n, number of values) for each hyperparameter, are
        those of the logarithm of s by the logarithm of each value. A product needs no matrix for such a factor.
        """
        return None

    def leaves(self) -> Iterator[Leaf]:
        yield self

    # Inputs ---------------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[int, ...] | None:
        """The input columns that the kernel depends on; None for all."""
        return self._columns

    @property
    def active_columns(self) -> list[int]:
        """The input columns that this bound kernel depends on."""
        assert self._n_inputs is not None, "the kernel is bound"
        return self._active_columns(self._n_inputs)

    def _active_columns(self, n_inputs: int) -> list[int]:
        return list(range(n_inputs) if self._columns is None else self._columns)

    @property
    def n_active(self) -> int:
        """Number of inputs that the kernel depends on, which an unbound kernel knows from its ``columns`` alone."""
        if self._columns is not None:
            return len(self._columns)
        if self._n_inputs is None:
            raise InvalidInputError(f"{type(self).__name__} is not bound to data yet; call bind(n_inputs) first.")
        return self._n_inputs

    @property
    def ard(self) -> bool:
        """Whether hyperparameters that belong to inputs have one value each."""
        return self._ard

    @property
    def groups(self) -> tuple[int, ...] | None:
        """Number of the value that each active input has; None: one value for each input."""
        return self._groups

    def active(self, X: Tensor) -> Tensor:
        """Return the columns that the kernel depends on, shape (n, number of active inputs)."""
        chosen = X if self._columns is None else X[:, list(self._columns)]
        if self._input_weights is None:
            return chosen
        weighted = chosen * self._input_weights.to(chosen)
        return weighted if self._input_origin is None else weighted + self._input_origin.to(chosen)

    def admitted(self, X: Tensor) -> Tensor:
        """Return the rows themselves: most kernels take any number; see `Kernel.admitted`."""
        return X

    def shared_values(self) -> tuple[int, ...] | None:
        """Return the number of the value that each coordinate of a point has; None: each input has its own."""
        return self._groups

    def by_input(self, name: str, like: Tensor | None = None) -> Tensor:
        """Return the values of a hyperparameter of inputs, one for each active input, shape (n_active,).

        With its own metric a kernel has coordinates in place of active inputs, here and in `by_value`.
        """
        value, shared = self.value(name, like), self.shared_values()
        if shared is not None and self._ard:
            return value[list(shared)]
        return value.expand(self.n_active)

    def lengths(self, name: str = "lengthscale") -> Tensor:
        """Return one lengthscale or period for each active input, in the units that the kernel sees, (n_active,)."""
        value = self.by_input(name)
        return value if self._input_weights is None else value / self._input_weights

    def by_value(self, by_input: Tensor) -> Tensor:
        """Return numbers of the active inputs, shape (n_active, ...), summed over the inputs that share a value."""
        if not self._ard:
            return by_input.sum(0, keepdim=True)
        shared = self.shared_values()
        if shared is None:
            return by_input
        members = torch.tensor(shared, device=by_input.device)
        return torch.stack([by_input[members == group].sum(0) for group in range(max(shared) + 1)])

    def with_groups(self, groups: Sequence[int], columns: Sequence[int] | None = None) -> Self:
        """Return this unbound kernel with one value of its hyperparameters of inputs for each group of inputs.

        ``groups`` has the number of the group of each active input, from 0, in the order in which groups first occur.
        The inputs of a group must have the same unit. ``columns`` replaces the active columns.
        """
        other = copy.copy(self)
        other._groups = checked_groups(groups, type(self).__name__)
        if max(other._groups) + 1 == len(other._groups):  # one input each
            other._groups = None
        other._columns = self._columns if columns is None else tuple(columns)
        return other

    def on_columns(self, columns: Sequence[int]) -> Self:
        """Return this bound kernel for tables with only these columns, which include all that it depends on."""
        other = copy.copy(self)
        other._n_inputs = len(columns)
        if self._columns is not None:
            other._columns = tuple(columns.index(column) for column in self._columns)
        return other

    # Random features: amplitude(x) amplitude(z) cos(phase(x) - phase(z)) has the expectation k(x, z) ----------------

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return the base randomness of ``n_frequencies`` frequencies, which does not depend on hyperparameters.

        A kernel with a spectrum (``has_spectrum = True``) has to write this and `amplitude_and_phase`.
        """
        raise self._without_spectrum()

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        """Return the base randomness of some frequencies by their index, drawn from the spectral density itself.

        This is what `draw_frequencies` returns with ``law="joint"``, for a few of very many frequencies. A kernel with
        a spectrum has to write it for inference that stores no frequencies.
        """
        raise self._without_spectrum()

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return amplitude and phase of every row and frequency; broadcastable to (n, m), phase None for zero."""
        raise self._without_spectrum()

    def _without_spectrum(self) -> InvalidInputError:
        owner = type(self).__name__
        return InvalidInputError(f"{owner} has no random features. Use exact inference, or another kernel.")

    # Writing --------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the constructor's arguments other than hyperparameters, where they differ from the defaults."""
        found: dict[str, Any] = {}
        if not self._ard:
            found["ard"] = False
        if self._columns is not None:
            found["columns"] = list(self._columns)
        if self._fixed:
            found["fixed"] = sorted(self._fixed)
        if self._groups is not None:
            found["groups"] = list(self._groups)
        if self._input_weights is not None:
            found["input_weights"] = self._input_weights.tolist()
        if self._input_origin is not None:
            found["input_origin"] = self._input_origin.tolist()
        if self._bounds:
            found["bounds"] = {name: pair.to_plain() for name, pair in self._bounds.items()}
        return found

    def to_dict(self) -> dict[str, Any]:
        values = {name: value.tolist() for name, value in self._values.items() if value is not None}
        return {"kernel": type(self).__name__, "n_inputs": self._n_inputs, **self.settings(), **values}

    def __repr__(self) -> str:
        """Return the constructor call; numbers of more than eight digits have four, and `to_dict` has all of them."""
        arguments = {key: value for key, value in self.to_dict().items() if key not in {"kernel", "n_inputs"}}
        first = [key for key in arguments if key not in {"ard", "columns", "fixed", "bounds"}]
        ordered = first + [key for key in arguments if key not in first]
        return f"{type(self).__name__}({', '.join(f'{key}={short(arguments[key])}' for key in ordered)})"

    def __copy__(self) -> Self:
        """Return a kernel that shares the values, with their autograd history."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with values as arrays. Pickled tensors hold addresses, so equal kernels would differ.

        Joblib hashes pickles, and scikit-learn hashes estimators' arguments to check that a fit leaves them alone.
        """
        plain = {k: v.numpy() if isinstance(v, Tensor) and not v.requires_grad else v for k, v in self._values.items()}
        return {**self.__dict__, "_values": plain, "_bounds": {k: pair.to_plain() for k, pair in self._bounds.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        values = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in state["_values"].items()}
        bounds = checked_bounds(state["_bounds"], self.shapes, type(self).__name__)
        shapes = {k: v.shape for k, v in values.items() if v is not None and state["_n_inputs"] is not None}
        bounds = {k: pair.expand(shapes[k]) if k in shapes else pair for k, pair in bounds.items()}
        self.__dict__.update({"_values": values, "_bounds": bounds})


class Hyperparameter:
    """Attribute of a `Leaf` that reads the hyperparameter of the same name: a tensor, None while it is not settled."""

    def __init__(self, description: str) -> None:
        self.__doc__ = description

    def __set_name__(self, owner: type[Leaf], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Leaf]) -> Self: ...

    @overload
    def __get__(self, instance: Leaf, owner: type[Leaf]) -> Tensor | None: ...

    def __get__(self, instance: Leaf | None, owner: type[Leaf]) -> Self | Tensor | None:
        return self if instance is None else instance._values[self._name]

    def __set__(self, instance: Leaf, value: object) -> NoReturn:
        """Refuse: kernels do not change; `Leaf.replace` returns another."""
        msg = f"{self._name} of {type(instance).__name__} cannot be set: kernels do not change. Use replace()."
        raise AttributeError(msg)
