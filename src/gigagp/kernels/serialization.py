"""Kernels from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Composite, Product, Sum
from gigagp.kernels.elementary import Constant, Linear, White
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.periodic import Cosine, Periodic
from gigagp.kernels.stationary import RBF, Matern, RationalQuadratic

_COMPOSITES: dict[str, type[Composite]] = {"Sum": Sum, "Product": Product}
_LEAVES: dict[str, type[Leaf]] = {
    cls.__name__: cls for cls in (RBF, Matern, RationalQuadratic, Periodic, Cosine, Linear, Constant, White)
}


def from_dict(description: Mapping[str, Any]) -> Kernel:
    """Return the kernel that ``kernel.to_dict()`` described. No code of the description is run.

    Raises
    ------
    InvalidInputError
        If the description is of no kernel in this package, or its values are not allowed.
    """
    values = dict(description)
    name = values.pop("kernel", None)
    if name in _COMPOSITES:
        return _COMPOSITES[name](*(from_dict(part) for part in values.get("parts", ())))
    if name not in _LEAVES:
        msg = f"A kernel description must name one of {sorted((*_COMPOSITES, *_LEAVES))}; got {name!r}."
        raise InvalidInputError(msg)
    n_inputs, weights = values.pop("n_inputs", None), values.pop("input_weights", None)
    try:
        kernel = _LEAVES[name](**values)
    except TypeError as error:
        msg = f"The description of {name} has arguments that it does not take: {error}."
        raise InvalidInputError(msg) from error
    bound = kernel if n_inputs is None else kernel.bind(n_inputs)
    return bound if weights is None else bound.with_input_weights(weights)
