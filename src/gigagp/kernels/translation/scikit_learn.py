"""Kernels of scikit-learn.

Most numbers mean the same. These differ:

- a kernel has no variance of its own, except `WhiteKernel`; it is multiplied by a `ConstantKernel`;
- `ExpSineSquared` is a function of one distance, so it equals `Periodic` only for one input;
- `DotProduct` adds the square of an offset: ``sigma_0^2 + x . z``;
- there are no active columns.

The reference is the code of ``sklearn.gaussian_process.kernels``.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Composite, Product, Sum
from gigagp.kernels.elementary import Constant, Linear, White
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.periodic import Periodic
from gigagp.kernels.radial import RBF, Matern, RationalQuadratic
from gigagp.kernels.translation.numbers import (
    Number,
    checked_kernel,
    has_unit_variance,
    imported,
    made,
    numbers_of,
    refused,
    require_plain,
    scaled,
)

#: Our class for each of theirs, and the names of its hyperparameters there.
_LEAVES: dict[str, tuple[type[Leaf], dict[str, str]]] = {
    "RBF": (RBF, {"lengthscale": "length_scale"}),
    "Matern": (Matern, {"lengthscale": "length_scale"}),
    "RationalQuadratic": (RationalQuadratic, {"lengthscale": "length_scale", "alpha": "alpha"}),
    "ExpSineSquared": (Periodic, {"lengthscale": "length_scale", "period": "periodicity"}),
    "ConstantKernel": (Constant, {"variance": "constant_value"}),
    "WhiteKernel": (White, {"variance": "noise_level"}),
}
#: scikit-learn's own bounds, which a hyperparameter without any gets.
_LOWER, _UPPER = 1e-5, 1e5


def from_sklearn(kernel: Any) -> Kernel:
    """Return the kernel of this package that equals one of scikit-learn.

    Supported are RBF, Matern, rational quadratic, exp-sine-squared (for one input), dot-product, constant and white
    kernels, sums and products. A constant factor becomes the variance of the kernel that it multiplies. Bounds are kept
    (scikit-learn's default is 1e-5 to 1e5), and ``"fixed"`` values are not learned.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel

    Returns
    -------
    Kernel
        Its numbers are in the units of the inputs and of the target that scikit-learn was given.

    Raises
    ------
    InvalidInputError
        If a part has no counterpart, or a value is outside its bounds; the message names the part.
    """
    package = imported("sklearn.gaussian_process.kernels", "scikit-learn", "scikit-learn", "from_sklearn")
    if not isinstance(kernel, package.Kernel):
        msg = f"kernel of from_sklearn must be of sklearn.gaussian_process.kernels; got {type(kernel).__name__}."
        raise InvalidInputError(msg)
    return _read(package, kernel, "kernel")


def _read(package: Any, kernel: Any, place: str) -> Kernel:
    name = type(kernel).__name__
    if type(kernel) is not getattr(package, name, None):
        name = "an unknown class"
    if name in ("Sum", "Product"):
        first, second = (_read(package, part, f"{place}.{k}") for k, part in (("k1", kernel.k1), ("k2", kernel.k2)))
        if name == "Sum":
            return Sum(first, second)
        for factor, other in ((first, second), (second, first)):
            if isinstance(factor, Constant):
                return scaled(other, numbers_of(factor.bind(1))["variance"])
        return Product(first, second)
    if name == "DotProduct":
        return _dot_product(kernel, place)
    if name not in _LEAVES:
        raise refused(f"{place}, {kernel!r},", "gigagp", "it has no equivalent")
    cls, names = _LEAVES[name]
    settings: dict[str, Any] = {}
    if "lengthscale" in names:
        settings["ard"] = np.size(kernel.length_scale) > 1
    if cls is Matern and kernel.nu == math.inf:
        cls = RBF
    elif cls is Matern:
        if kernel.nu not in (0.5, 1.5, 2.5):
            raise refused(f"{place}, {kernel!r},", "gigagp", "its nu must be 0.5, 1.5, 2.5 or infinite")
        settings["nu"] = float(kernel.nu)
    found = made(cls, {ours: _number(kernel, one) for ours, one in names.items()}, **settings)
    return found.bind(1) if cls is Periodic else found


def _number(kernel: Any, name: str) -> Number:
    """Return one of their hyperparameters."""
    value = torch.tensor(np.squeeze(getattr(kernel, name)), dtype=torch.float64)
    found = getattr(kernel, f"hyperparameter_{name}")
    if found.fixed:
        return Number(value, torch.zeros_like(value), torch.full_like(value, math.inf), is_learned=False)
    lower, upper = torch.tensor(found.bounds, dtype=torch.float64).T.reshape(2, *value.shape)
    return Number(value, lower, upper)


def _dot_product(kernel: Any, place: str) -> Kernel:
    """Return the sum of a constant and linear functions."""
    linear = Linear(1.0, ard=False, fixed=["variance"])
    if kernel.sigma_0 != 0:
        return Sum(made(Constant, {"variance": _number(kernel, "sigma_0").by(torch.square)}), linear)
    if not kernel.hyperparameter_sigma_0.fixed:
        raise refused(f"{place}, {kernel!r},", "gigagp", "its sigma_0 is 0, where its slope is zero; fix it")
    return linear


def to_sklearn(kernel: Kernel) -> Any:
    """Return the kernel of scikit-learn that equals one of this package.

    Parameters
    ----------
    kernel : Kernel
        Bound to a number of inputs, as ``kernel_`` of an estimator is. Parts must depend on all inputs. `Linear` and
        `RationalQuadratic` must have a single slope variance and lengthscale, and `Periodic` must have one input.

    Returns
    -------
    sklearn.gaussian_process.kernels.Kernel
        A hyperparameter without bounds gets those of scikit-learn, 1e-5 and 1e5, or wider ones around its value.

    Raises
    ------
    InvalidInputError
        If a part has no counterpart; the message names the part.
    """
    package = imported("sklearn.gaussian_process.kernels", "scikit-learn", "scikit-learn", "to_sklearn")
    return _write(package, checked_kernel(kernel, "to_sklearn"), "kernel")


def _write(package: Any, kernel: Kernel, place: str) -> Any:
    if isinstance(kernel, Composite):
        parts = [_write(package, part, f"part {i} of {place}") for i, part in enumerate(kernel.parts)]
        return reduce(package.Sum if isinstance(kernel, Sum) else package.Product, parts)
    place = f"{place}, {kernel!r},"
    theirs = {cls: (name, names) for name, (cls, names) in _LEAVES.items()}
    if not isinstance(kernel, Leaf) or type(kernel) not in {*theirs, Linear}:
        raise refused(place, "scikit-learn", "it has no equivalent")
    require_plain(kernel, place, "scikit-learn")
    if kernel.columns is not None and list(kernel.columns) != list(range(kernel.n_inputs or 0)):
        raise refused(place, "scikit-learn", "its kernels depend on all inputs")
    if isinstance(kernel, Periodic) and kernel.n_active > 1:
        raise refused(place, "scikit-learn", "its ExpSineSquared is the same for one input only")
    numbers = numbers_of(kernel)
    if isinstance(kernel, Linear | RationalQuadratic):
        for name in ("lengthscale", "variance"):
            if name in numbers and numbers[name].value.numel() > 1:
                raise refused(place, "scikit-learn", f"its counterpart has one {name} for all inputs")
    names: dict[str, str] = {}
    if isinstance(kernel, Linear):
        found = package.DotProduct(0.0, "fixed")
    else:
        name, names = theirs[type(kernel)]
        settings = {"nu": kernel.nu} if isinstance(kernel, Matern) else {}
        found = getattr(package, name)(**_arguments(numbers, names), **settings)
    if "variance" in names or has_unit_variance(kernel):
        return found
    constant = package.ConstantKernel(**_arguments(numbers, {"variance": "constant_value"}))
    return package.Product(constant, found)


def _arguments(numbers: dict[str, Number], names: dict[str, str]) -> dict[str, Any]:
    """Return values and bounds as scikit-learn's constructors take them."""
    found: dict[str, Any] = {}
    for ours, theirs in names.items():
        number = numbers[ours]
        value = number.value.reshape(-1)
        found[theirs] = float(value) if value.numel() == 1 else value.numpy().copy()
        if number.is_learned:
            default = torch.where(number.value > _LOWER, _LOWER, number.value * _LOWER)
            lower = torch.where(number.lower > 0, number.lower, default)
            default = torch.where(number.value < _UPPER, _UPPER, number.value * _UPPER)
            upper = torch.where(number.upper < math.inf, number.upper, default)
            pairs = torch.stack([lower.reshape(-1), upper.reshape(-1)], dim=1).numpy()
            found[f"{theirs}_bounds"] = tuple(pairs[0].tolist()) if len(pairs) == 1 else pairs
        else:
            found[f"{theirs}_bounds"] = "fixed"
    return found
