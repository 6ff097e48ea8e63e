"""The arguments that a kernel was made of, and the same kernel with some of them exchanged."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import StationaryOptions
from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Composite
from gigagp.kernels.elementary import Constant, White
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.serialization import assembled

#: What the settings of a kernel say of the inputs that it sees and of how it sees them.
_FORM = ("ard", "columns", "groups", "input_weights", "input_origin", "metric")
_DEFAULTS: dict[str, Any] = {
    "ard": True,
    "columns": None,
    "fixed": (),
    "bounds": None,
    "metric": "euclidean",
    "angle": None,
}


def arguments_of(kernel: Kernel) -> dict[str, Any]:
    """Return the arguments of a kernel's constructor by name, in plain numbers and lists.

    The parts of a sum or product are named by their positions: ``"0"``, ``"1"``.
    """
    if isinstance(kernel, Composite):
        return {str(position): part for position, part in enumerate(kernel.parts)}
    described = kernel.to_dict()
    names = _constructor(type(kernel))
    return {name: described.get(name, _DEFAULTS.get(name, getattr(kernel, name, None))) for name in names}


def rebuilt(kernel: Kernel, changes: Mapping[str, Any]) -> Kernel:
    """Return a kernel made of the same arguments as another, except for changes by the names of `arguments_of`."""
    found: Kernel
    if isinstance(kernel, Composite):
        found = type(kernel)(*(changes.get(name, part) for name, part in arguments_of(kernel).items()))
    else:
        described = {name: value for name, value in kernel.to_dict().items() if name not in ("kernel", "n_inputs")}
        found = assembled(type(kernel), {**described, **changes}, kernel.n_inputs if isinstance(kernel, Leaf) else None)
    return found


def in_form_of(kernel: Leaf, other: Leaf, **changes: object) -> Leaf:
    """Return an elementary kernel with the inputs, shared lengthscales and metric of another one, which is bound.

    ``changes`` are arguments of its constructor that are to be others.
    """
    described = {name: value for name, value in kernel.to_dict().items() if name not in ("kernel", "n_inputs")}
    form = {name: value for name, value in other.settings().items() if name in _FORM}
    found: Leaf = assembled(type(kernel), {**described, **form, **changes}, other.n_inputs)
    return found


def beside_others(kernel: Kernel, n_inputs: int) -> Kernel:
    """Return a kernel of ``n_inputs`` inputs, unbound, for tables with further columns behind these."""
    if isinstance(kernel, Composite):
        return kernel.with_parts(tuple(beside_others(part, n_inputs) for part in kernel.parts))
    if not isinstance(kernel, Leaf):
        raise InvalidInputError(f"A kernel of one of several columns must be made of leaves; got {kernel!r}.")
    found = copy.copy(kernel)
    found._n_inputs = None
    if found._columns is None and not isinstance(kernel, Constant | White):
        found._columns = tuple(range(n_inputs))
    return found


@cache
def _constructor(cls: type[Kernel]) -> tuple[str, ...]:
    """Return the names of the arguments of a constructor; one with ``**options`` takes those of every `Leaf`."""
    found = inspect.signature(cls).parameters.values()
    names = [one.name for one in found if one.kind is not one.VAR_KEYWORD]
    if len(names) < len(found):
        names += [*getattr(cls, "shapes", ()), *StationaryOptions.__annotations__]
    return tuple(dict.fromkeys(names))
