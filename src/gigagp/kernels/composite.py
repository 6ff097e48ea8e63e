"""Sums and products of kernels."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from numbers import Real
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.bounds import Bounds
from gigagp.kernels.elementary import Constant
from gigagp.kernels.group import Group, apart_from_levels, groups_of
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.state_space import Component, product_of
from gigagp.kernels.units import Units

Value = TypeVar("Value")


class Composite(Kernel):
    """A kernel made of parts; those of the same kind are flattened, so that ``(a + b) + c`` has three parts.

    A number as a part stands for a fixed `Constant`.
    """

    symbol: ClassVar[str]
    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]]

    def __init__(self, *parts: Kernel | float) -> None:
        flat: list[Kernel] = []
        for part in parts:
            kernel = Constant(part, fixed=True) if isinstance(part, Real) else part
            if not isinstance(kernel, Kernel):
                raise InvalidInputError(f"A part of {type(self).__name__} must be a kernel or a number; got {part!r}.")
            flat.extend(kernel.parts if isinstance(kernel, type(self)) else (kernel,))
        if not flat:
            raise InvalidInputError(f"{type(self).__name__} needs at least one part; got none.")
        self._parts = tuple(flat)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels that are added or multiplied."""
        return self._parts

    @property
    def n_inputs(self) -> int | None:
        sizes = {part.n_inputs for part in self._parts}
        return sizes.pop() if len(sizes) == 1 else None

    def with_parts(self, parts: tuple[Kernel, ...]) -> Self:
        """Return the same composition of as many other parts."""
        other = object.__new__(type(self))
        other._parts = parts
        return other

    def bind(self, n_inputs: int) -> Self:
        if self.n_inputs == n_inputs:
            return self
        return self.with_parts(tuple(part.bind(n_inputs) for part in self._apart(n_inputs).parts))

    def _apart(self, n_inputs: int) -> Self:
        """Return this kernel whose parts without columns leave out the levels of groups beside them."""
        found = apart_from_levels(self, n_inputs)
        assert isinstance(found, type(self))
        return found

    def parameters(self) -> dict[str, Tensor]:
        return _numbered(part.parameters() for part in self._parts)

    def fixed_parameters(self) -> frozenset[str]:
        return frozenset(_numbered(dict.fromkeys(part.fixed_parameters()) for part in self._parts))

    def given_parameters(self) -> frozenset[str]:
        return frozenset(_numbered(dict.fromkeys(part.given_parameters()) for part in self._parts))

    def bounds(self) -> dict[str, Bounds]:
        return _numbered(part.bounds() for part in self._parts)

    def _units_of_parts(self, units: Units) -> Iterator[tuple[Kernel, Units]]:
        """Iterate over the parts, each with its units."""
        return zip(self._parts, itertools.repeat(units))

    def unit_factors(self, units: Units) -> dict[str, Tensor]:
        return _numbered(part.unit_factors(own) for part, own in self._units_of_parts(units))

    def standardized(self, units: Units) -> Self:
        apart = self._apart(len(units.scale))
        return apart.with_parts(tuple(part.standardized(own) for part, own in apart._units_of_parts(units)))

    def in_own_units(self, units: Units) -> Self:
        return self.with_parts(tuple(part.in_own_units(own) for part, own in self._units_of_parts(units)))

    def _by_part(self, values: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
        grouped: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            head, dot, rest = name.partition(".")
            if not dot or not head.isdecimal() or int(head) >= len(self._parts):
                raise InvalidInputError(
                    f"{name!r} is not a hyperparameter of this {type(self).__name__}; it has {list(self.parameters())}."
                )
            grouped.setdefault(int(head), {})[rest] = value
        return grouped

    def replace(self, values: Mapping[str, Tensor]) -> Self:
        grouped = self._by_part(values)
        parts = (part.replace(grouped[i]) if i in grouped else part for i, part in enumerate(self._parts))
        return self.with_parts(tuple(parts))

    def multiplied(self, factors: Mapping[str, Tensor]) -> Self:
        grouped = self._by_part(factors)
        parts = (part.multiplied(grouped[i]) if i in grouped else part for i, part in enumerate(self._parts))
        return self.with_parts(tuple(parts))

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        return reduce(type(self).combine, (part.block(X, Z) for part in self._parts))

    def diagonal(self, X: Tensor) -> Tensor:
        return reduce(type(self).combine, (part.diagonal(X) for part in self._parts))

    def leaves(self) -> Iterator[Leaf]:
        for part in self._parts:
            yield from part.leaves()

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": type(self).__name__, "parts": [part.to_dict() for part in self._parts]}

    @abstractmethod
    def _text(self, part: Kernel) -> str:
        """Return the text of a part, in brackets if it needs them."""

    def __repr__(self) -> str:
        if len(self._parts) == 1:
            return f"{type(self).__name__}({self._parts[0]!r})"
        return self.symbol.join(self._text(part) for part in self._parts)


class Sum(Composite):
    """Sum of kernels: the covariance of a sum of independent functions."""

    symbol: ClassVar[str] = " + "
    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]] = torch.add

    def white(self, X: Tensor) -> Tensor:
        return reduce(torch.add, (part.white(X) for part in self._parts))

    def terms(self) -> tuple[tuple[Leaf, ...], ...]:
        return tuple(itertools.chain.from_iterable(part.terms() for part in self._parts))

    def state_space(self) -> tuple[Component, ...]:
        return tuple(itertools.chain.from_iterable(part.state_space() for part in self._parts))

    def _text(self, part: Kernel) -> str:
        return repr(part)


def summands(kernel: Kernel) -> tuple[Kernel, ...]:
    """Return the parts of a sum, or the kernel alone."""
    return kernel.parts if isinstance(kernel, Sum) else (kernel,)


def group_terms(kernel: Kernel) -> dict[int, Group]:
    """Return the groups that are terms of a sum, by their places: an effect of each level, independent of the rest."""
    return {place: part for place, part in enumerate(summands(kernel)) if isinstance(part, Group)}


def own_groups(kernel: Kernel) -> dict[int, Group]:
    """Return `group_terms`, unless a product has the same columns of levels.

    In a panel, where each level has its own function as well, rows of the same level tell of both, so that fewer
    rows tell of the hyperparameters.
    """
    in_products = {
        group.level_columns for part in summands(kernel) if not isinstance(part, Group) for group in groups_of(part)
    }
    return {place: part for place, part in group_terms(kernel).items() if part.level_columns not in in_products}


class Product(Composite):
    """Product of kernels, for instance a `Periodic` that decays: ``Periodic() * RBF()``.

    The variances of the parts multiply, so only their product can be learned. Fix all but one:
    ``Periodic() * RBF(fixed=("variance",))``. The first learned variance (or the first one, if none is learned) is in
    squared units of the target; the others are plain numbers.
    """

    symbol: ClassVar[str] = " * "
    combine: ClassVar[Callable[[Tensor, Tensor], Tensor]] = torch.mul

    def white(self, X: Tensor) -> Tensor:
        """Return the product of the whole diagonals minus the product of the continuous ones."""
        if not self.has_white:
            return X.new_zeros(X.shape[0])
        whole = math.prod((part.diagonal(X) + part.white(X) for part in self._parts), start=X.new_ones(()))
        return whole - self.diagonal(X)

    def terms(self) -> tuple[tuple[Leaf, ...], ...]:
        choices = itertools.product(*(part.terms() for part in self._parts))
        return tuple(tuple(itertools.chain.from_iterable(choice)) for choice in choices)

    def state_space(self) -> tuple[Component, ...]:
        if not self.correlated_terms():  # noise is no function of time, whatever multiplies it
            return ()
        return product_of([part.state_space() for part in self._parts])

    def _units_of_parts(self, units: Units) -> Iterator[tuple[Kernel, Units]]:
        scaled = [position for position, part in enumerate(self._parts) if _has_variance(part)]
        learned = [position for position in scaled if _has_variance(self._parts[position], learned=True)]
        carrier = (learned or scaled or [0])[0]
        for position, part in enumerate(self._parts):
            yield part, units if position == carrier else units.of_factors

    def _text(self, part: Kernel) -> str:
        return f"({part!r})" if isinstance(part, Sum) and len(part.parts) > 1 else repr(part)


def _numbered(found: Iterable[Mapping[str, Value]]) -> dict[str, Value]:
    """Return what each part has by name, with the part's position in front of the name."""
    return {f"{position}.{name}": value for position, part in enumerate(found) for name, value in part.items()}


def _has_variance(kernel: Kernel, *, learned: bool = False) -> bool:
    """Whether some hyperparameter scales with the target, and with ``learned`` is also learned."""
    return any(
        unit in ("target", "slope", "bend") and not (learned and name in leaf.fixed_parameters())
        for leaf in kernel.leaves()
        for name, unit in leaf.units.items()
    )
