"""Descriptions of kernels in model files, and kernels from descriptions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.catalogue import own_classes
from gigagp.kernels.composite import Composite, Product
from gigagp.settings.custom import MARK, NOTHING, Custom, marked

#: Most terms that a description may multiply out to: a short description can name more than a machine can hold.
_MOST_TERMS = 10_000


def describe(kernel: Kernel) -> dict[str, Any]:
    """Return ``kernel.to_dict()`` with marks on classes that are not the package's, also where they derive from it."""
    if isinstance(kernel, Composite):
        description = {"kernel": type(kernel).__name__, "parts": [describe(part) for part in kernel.parts]}
    else:
        description = kernel.to_dict()
    if _is_own(type(kernel)):
        return description
    return {**description, "kernel": type(kernel).__name__} | marked(type(kernel))


def foreign_classes(kernel: Kernel) -> Iterator[type]:
    """Iterate over the classes in a kernel that are not the package's."""
    if not _is_own(type(kernel)):
        yield type(kernel)
    if isinstance(kernel, Composite):
        for part in kernel.parts:
            yield from foreign_classes(part)


def _is_own(cls: type) -> bool:
    return own_classes().get(cls.__name__) is cls


def from_dict(description: Mapping[str, Any], custom: Custom = NOTHING, n_inputs: int | None = None) -> Kernel:
    """Return the kernel that ``kernel.to_dict()`` or `describe` has described. No code from the description is run.

    Parameters
    ----------
    description : mapping
    custom : Custom
        Classes that are not the package's.
    n_inputs : int, optional
        The only number of inputs that a part may be bound to.

    Raises
    ------
    InvalidInputError
        If this describes no kernel, names a class that is neither this package's nor in ``custom``, or has values that
        are not allowed.
    """
    if not isinstance(description, Mapping):
        raise InvalidInputError(f"A kernel description must be a table of names; got {str(description)[:100]!r}.")
    values = dict(description)
    name, mark = values.pop("kernel", None), values.pop(MARK, None)
    if not isinstance(name, str):
        msg = f"A kernel description must name one of {sorted(own_classes())}; got {str(name)[:100]!r}."
        raise InvalidInputError(msg)
    cls: Any = own_classes().get(name) if mark is None else None
    if cls is None:
        cls = custom.find(name, description, "a kernel", Kernel)
    bound_to = values.pop("n_inputs", None)
    if bound_to is not None and (
        isinstance(bound_to, bool) or not isinstance(bound_to, int) or (n_inputs is not None and bound_to != n_inputs)
    ):
        allowed = "a whole number" if n_inputs is None else f"{n_inputs}, the inputs that there are,"
        msg = f"n_inputs in the description of {name} must be {allowed} or nothing; got {str(bound_to)[:100]}."
        raise InvalidInputError(msg)
    try:
        if issubclass(cls, Composite):
            parts = [from_dict(part, custom, n_inputs) for part in values.pop("parts", ())]
            _check_terms(parts, multiplied=issubclass(cls, Product))
            kernel: Kernel = cls(*parts, **values)
        else:
            kernel = assembled(cls, values, bound_to)
    except TypeError as error:
        raise InvalidInputError(f"The description of {name} has arguments that it does not take: {error}.") from error
    return kernel if bound_to is None else kernel.bind(bound_to)


def assembled(cls: Any, described: Mapping[str, Any], n_inputs: int | None) -> Any:
    """Return an elementary kernel from arguments of its constructor and what the data have added to them."""
    arguments = dict(described)
    groups, weights, origin = (arguments.pop(name, None) for name in ("groups", "input_weights", "input_origin"))
    leaf = cls(**arguments)
    leaf = leaf if groups is None else leaf.with_groups(groups)
    leaf = leaf if n_inputs is None else leaf.bind(n_inputs)
    return leaf if weights is None else leaf.with_input_weights(weights, origin)


def _check_terms(parts: list[Kernel], *, multiplied: bool) -> None:
    """Refuse a tree with too many terms before anything multiplies it out."""
    counts = [_count_terms(part) for part in parts]
    total = math.prod(counts) if multiplied else sum(counts)
    if total > _MOST_TERMS:
        msg = f"A kernel description must multiply out to {_MOST_TERMS:,} terms at most; got {total:,}."
        raise InvalidInputError(msg)


def _count_terms(kernel: Kernel) -> int:
    if not isinstance(kernel, Composite):
        return 1
    counts = [_count_terms(part) for part in kernel.parts]
    return math.prod(counts) if isinstance(kernel, Product) else sum(counts)
