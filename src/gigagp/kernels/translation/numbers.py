"""Hyperparameters between packages: value, bounds, and whether it is learned."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Product
from gigagp.kernels.elementary import Constant, Linear
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.rebuilding import rebuilt

#: An increasing function of positive numbers that takes a hyperparameter to another package's convention, or back.
Convention = Callable[[Tensor], Tensor]


def same(numbers: Tensor) -> Tensor:
    """Return the numbers: both packages mean the same."""
    return numbers


@dataclass(frozen=True)
class Name:
    """What another package calls a hyperparameter, and how its number is converted to theirs and to ours."""

    theirs: str
    to_theirs: Convention = same
    to_ours: Convention = same


@dataclass(frozen=True)
class Number:
    """One hyperparameter: float64 numbers of shape () or (k,), with bounds of 0 and infinity where there are none."""

    value: Tensor
    lower: Tensor
    upper: Tensor
    is_learned: bool = True

    def by(self, convention: Convention) -> Number:
        """Return the number in another convention."""
        return replace(self, value=convention(self.value), lower=convention(self.lower), upper=convention(self.upper))

    @property
    def has_bounds(self) -> bool:
        """Whether there is a bound on some side."""
        return bool((self.lower > 0).any() or (self.upper < math.inf).any())


def numbers_of(leaf: Leaf) -> dict[str, Number]:
    """Return the hyperparameters of a bound kernel by name."""
    fixed, bounds = leaf.fixed_parameters(), leaf.bounds()
    found = {}
    for name, value in leaf.parameters().items():
        value = value.detach().double()
        none, pair = torch.zeros_like(value), bounds.get(name)
        lower = none if pair is None else pair.lower.expand(value.shape)
        upper = none + math.inf if pair is None else pair.upper.expand(value.shape)
        found[name] = Number(value, lower, upper, name not in fixed)
    return found


def made(cls: type[Leaf], numbers: Mapping[str, Number], **settings: Any) -> Leaf:
    """Return a kernel with these hyperparameters; a variance that is not among them is 1 and not learned."""
    values: dict[str, Any] = {name: number.value for name, number in numbers.items()}
    fixed = [name for name, number in numbers.items() if not number.is_learned]
    bounds = {name: (number.lower, number.upper) for name, number in numbers.items() if number.has_bounds}
    if "variance" in cls.shapes and "variance" not in numbers:
        values["variance"] = 1.0
        fixed.append("variance")
    return cls(**values, fixed=fixed, bounds=bounds, **settings)


def has_unit_variance(leaf: Leaf) -> bool:
    """Whether the variance is 1 and stays 1, so that a factor in front can take its place."""
    value = leaf._values.get("variance")
    is_single = not leaf.shapes["variance"] or not leaf.ard
    return is_single and value is not None and bool((value == 1.0).all()) and "variance" in leaf.fixed_parameters()


def scaled(kernel: Kernel, factor: Number) -> Kernel:
    """Return a kernel times a constant, which is its variance if it has none of its own."""
    if isinstance(kernel, Leaf) and has_unit_variance(kernel):
        fixed = [*(kernel.fixed_parameters() - {"variance"}), *([] if factor.is_learned else ["variance"])]
        bounds: dict[str, Any] = {name: tuple(pair.to_plain()) for name, pair in kernel.bounds().items()}
        bounds.pop("variance", None)
        if factor.has_bounds:
            bounds["variance"] = (factor.lower, factor.upper)
        return rebuilt(kernel, {"variance": factor.value, "fixed": fixed, "bounds": bounds})
    return Product(made(Constant, {"variance": factor}), kernel)


def require_plain(leaf: Leaf, place: str, package: str) -> None:
    """Refuse features that kernels of other packages do not have, naming the part."""
    reason, metric = None, getattr(leaf, "metric", "euclidean")
    if metric != "euclidean":
        reason = f"{package} has no metric={metric!r}"
    elif leaf.groups is not None:
        reason = "several of its inputs share one lengthscale"
    elif leaf._input_weights is not None:
        reason = "its inputs have different units behind one lengthscale; take it from kernel_, in the data's own units"
    elif isinstance(leaf, Linear) and leaf.centre is not None:
        reason = f"its centre is {leaf.centre.tolist()}; linear functions of {package} are zero at the origin"
    if reason is not None:
        raise refused(place, package, reason)


def refused(place: str, package: str, reason: str) -> InvalidInputError:
    """Return the error for a part that has no counterpart."""
    return InvalidInputError(f"{place} cannot be translated to a kernel of {package}: {reason}.")


def checked_kernel(kernel: Any, function: str) -> Kernel:
    """Return a bound kernel of this package, and refuse anything else."""
    if not isinstance(kernel, Kernel):
        raise InvalidInputError(f"kernel of {function} must be a kernel of gigagp; got {type(kernel).__name__}.")
    if kernel.n_inputs is None:
        msg = f"kernel of {function} must have all its values: call kernel.bind(n_inputs) first; got {kernel!r}."
        raise InvalidInputError(msg)
    return kernel


def imported(module: str, name: str, install: str, function: str) -> Any:
    """Return a module of another package, or refuse if that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInputError(f'{function} needs {name}. Install it with pip install "{install}".') from error
