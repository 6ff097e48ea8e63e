"""Kernels of GPyTorch (and of BoTorch, which uses them).

Most numbers mean the same. These differ, as of GPyTorch 1.15:

- a kernel has no variance of its own, except `LinearKernel`; `ScaleKernel` multiplies by one;
- the lengthscale of `PeriodicKernel` is the square of ours;
- the period of `CosineKernel` is half of ours, and it is a function of one distance, so the two agree only for one
  input.

The reference is the code of ``gpytorch.kernels``, https://docs.gpytorch.ai/en/stable/kernels.html.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.kernels.base import Kernel
from gigagp.kernels.composite import Composite, Product, Sum
from gigagp.kernels.elementary import Constant, Linear
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.periodic import Cosine, Periodic
from gigagp.kernels.radial import RBF, Matern, RationalQuadratic
from gigagp.kernels.translation.numbers import (
    Name,
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

_LENGTHSCALE = Name("lengthscale")
#: Our class for each of theirs, and the names of its hyperparameters there.
_LEAVES: dict[str, tuple[type[Leaf], dict[str, Name]]] = {
    "RBFKernel": (RBF, {"lengthscale": _LENGTHSCALE}),
    "MaternKernel": (Matern, {"lengthscale": _LENGTHSCALE}),
    "RQKernel": (RationalQuadratic, {"lengthscale": _LENGTHSCALE, "alpha": Name("alpha")}),
    "PeriodicKernel": (
        Periodic,
        {"lengthscale": Name("lengthscale", torch.square, torch.sqrt), "period": Name("period_length")},
    ),
    "CosineKernel": (Cosine, {"period": Name("period_length", lambda period: period / 2, lambda half: 2 * half)}),
    "LinearKernel": (Linear, {"variance": Name("variance")}),
    "ConstantKernel": (Constant, {"variance": Name("constant")}),
}
_COMPOSED = ("ScaleKernel", "AdditiveKernel", "ProductKernel")
#: A raw number at which both transforms, sigmoid and softplus, are at their lower or upper end in float64.
_END = 700.0
#: Corrections of a raw number. One is enough, except where softplus of torch switches to the identity.
_CORRECTIONS = 3


def from_gpytorch(kernel: Any) -> Kernel:
    """Return the kernel of this package that equals one of GPyTorch.

    Supported are RBF, Matern, rational quadratic, periodic, linear, constant and (for one input) cosine kernels,
    scales, sums and products, with ``ard_num_dims`` and ``active_dims``. A scale becomes the variance of the kernel
    that it scales. Constraints become bounds, and parameters without ``requires_grad`` are fixed.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        Without batches. Values are copied exactly, also if the kernel is float32.

    Returns
    -------
    Kernel
        Its numbers are in the units of the inputs that the other kernel saw. A BoTorch model may have transformed them:
        compare on transformed inputs, or with ``standardize=False``.

    Raises
    ------
    InvalidInputError
        If GPyTorch is not installed, or a part has no counterpart; the message names the part.

    Warns
    -----
    GigaGPWarning
        If the kernel has priors, which are dropped.
    """
    package = imported("gpytorch.kernels", "GPyTorch", "gpytorch", "from_gpytorch")
    if not isinstance(kernel, package.Kernel):
        msg = f"kernel of from_gpytorch must be a gpytorch.kernels.Kernel; got {type(kernel).__name__}."
        raise InvalidInputError(msg)
    found = _Reader(package).read(kernel, None, type(kernel).__name__)
    priors = [name for name, *_ in kernel.named_priors()]
    if priors:
        msg = f"Kernels of gigagp have no priors: {', '.join(priors)} of the GPyTorch kernel is left out."
        warn(msg, GigaGPWarning)
    return found


class _Reader:
    """Kernels of GPyTorch, whose ``package`` is ``gpytorch.kernels``, read from the outside in."""

    def __init__(self, package: Any) -> None:
        self.package = package
        self.places: dict[int, str] = {}  # where each parameter has been met

    def read(self, kernel: Any, columns: list[int] | None, place: str, *, selects: bool = True) -> Kernel:
        """Return our kernel for a part of theirs that is given some columns of the data; None stands for all.

        ``place`` tells in messages how to reach the part. What is inside a `ScaleKernel` selects no columns by its
        ``active_dims``: the scale has.
        """
        if len(kernel.batch_shape):
            raise self.refuse(place, f"it is a batch of kernels, of shape {tuple(kernel.batch_shape)}")
        if selects and kernel.active_dims is not None:
            chosen = kernel.active_dims.tolist()
            columns = chosen if columns is None else [columns[one] for one in chosen]
        name = type(kernel).__name__
        if name not in {*_LEAVES, *_COMPOSED} or type(kernel) is not getattr(self.package, name):
            raise self.refuse(place, f"{name} is none of {', '.join([*_LEAVES, *_COMPOSED])}")
        if name == "ScaleKernel":
            base = self.read(kernel.base_kernel, columns, f"{place}.base_kernel", selects=False)
            return scaled(base, self.number(kernel, "outputscale", place))
        if name in _LEAVES:
            return self.leaf(kernel, columns, place)
        kind = Sum if name == "AdditiveKernel" else Product
        return kind(*(self.read(one, columns, f"{place}.kernels[{i}]") for i, one in enumerate(kernel.kernels)))

    def leaf(self, kernel: Any, columns: list[int] | None, place: str) -> Leaf:
        """Return our elementary kernel for one of theirs."""
        cls, names = _LEAVES[type(kernel).__name__]
        numbers = {ours: self.number(kernel, name.theirs, place).by(name.to_ours) for ours, name in names.items()}
        if cls is Constant:
            return made(cls, numbers)
        settings: dict[str, Any] = {"nu": float(kernel.nu)} if cls is Matern else {}
        ard = kernel.ard_num_dims is not None
        found = made(cls, numbers, ard=ard, columns=columns, **settings)
        if columns is not None and cls is Cosine and len(columns) > 1:
            raise self.refuse(place, "with several inputs it is another function of them; give it one of active_dims")
        # One value for each of one input: with more inputs, GPyTorch would refuse, and so must this kernel.
        return found.bind(1) if columns is None and (cls is Cosine or kernel.ard_num_dims == 1) else found

    def number(self, kernel: Any, name: str, place: str) -> Number:
        """Return one of their hyperparameters."""
        raw, constraint = getattr(kernel, f"raw_{name}"), getattr(kernel, f"raw_{name}_constraint")
        earlier = self.places.setdefault(id(raw), place)
        if earlier != place and raw.requires_grad:
            raise self.refuse(place, f"it shares {name} with {earlier}; give each its own")
        value = constraint.transform(raw.detach())
        lower, upper = (side.detach().double().to(value.device) for side in constraint)
        rounding = 4 * torch.finfo(value.dtype).eps  # the transform may end a rounding error beyond a bound
        value = value.double()
        inside = torch.minimum(torch.maximum(value, lower), upper)
        value = torch.where(((value - inside).abs() <= rounding * inside.abs()), inside, value)
        lower, upper = (_side(bound.expand(value.shape)).cpu() for bound in (lower.clamp_min(0.0), upper))
        return Number(value.reshape(-1).cpu(), lower, upper, bool(raw.requires_grad))

    def refuse(self, place: str, reason: str) -> InvalidInputError:
        """Return the error for a part that has no counterpart."""
        return refused(place, "gigagp", reason)


def to_gpytorch(kernel: Kernel) -> Any:
    """Return the kernel of GPyTorch that equals one of this package.

    Parameters
    ----------
    kernel : Kernel
        Bound to a number of inputs, as ``kernel_`` of an estimator is. `White` and `Categorical` have no counterpart;
        GPyTorch's likelihoods have the noise.

    Returns
    -------
    gpytorch.kernels.Kernel
        In float64, whatever torch's default is. Bounds become constraints. A value at its bound stays there in training
        with GPyTorch, because the slope of its transforms is zero at their ends.

    Raises
    ------
    InvalidInputError
        If GPyTorch is not installed, or a part has no counterpart; the message names the part.
    """
    package = imported("gpytorch", "GPyTorch", "gpytorch", "to_gpytorch")
    return _write(package, checked_kernel(kernel, "to_gpytorch"), "kernel")


def _write(package: Any, kernel: Kernel, place: str) -> Any:
    if isinstance(kernel, Composite):
        parts = [_write(package, part, f"part {i} of {place}") for i, part in enumerate(kernel.parts)]
        kind = package.kernels.AdditiveKernel if isinstance(kernel, Sum) else package.kernels.ProductKernel
        return parts[0] if len(parts) == 1 else kind(*parts)
    place = f"{place}, {kernel!r},"
    theirs = {cls: (name, names) for name, (cls, names) in _LEAVES.items()}
    if not isinstance(kernel, Leaf) or type(kernel) not in theirs:
        white = isinstance(kernel, Leaf) and kernel.is_white
        raise refused(place, "GPyTorch", "its likelihoods have the noise" if white else "it has no equivalent")
    require_plain(kernel, place, "GPyTorch")
    if isinstance(kernel, Cosine) and kernel.n_active > 1:
        raise refused(place, "GPyTorch", "its CosineKernel is one of one input; multiply one for each")
    name, names = theirs[type(kernel)]
    settings: dict[str, Any] = {} if kernel.columns is None else {"active_dims": kernel.columns}
    if any(kernel.shapes.values()) and kernel.ard:
        settings["ard_num_dims"] = kernel.n_active
    if isinstance(kernel, Matern):
        settings["nu"] = kernel.nu
    numbers = numbers_of(kernel)
    found = getattr(package.kernels, name)(**settings).double()
    for ours, one in names.items():
        _set(package, found, one.theirs, numbers[ours].by(one.to_theirs), place)
    if "variance" in names or has_unit_variance(kernel):
        return found
    found = package.kernels.ScaleKernel(found).double()
    _set(package, found, "outputscale", numbers["variance"], place)
    return found


def _set(package: Any, kernel: Any, name: str, number: Number, place: str) -> None:
    """Set one of their hyperparameters, with its constraint."""
    raw = getattr(kernel, f"raw_{name}")
    value, lower, upper = (side.reshape(raw.shape) for side in (number.value, number.lower, number.upper))
    if number.has_bounds:
        if bool((upper == math.inf).all()):
            constraint = package.constraints.GreaterThan(0.0)
        elif bool((upper < math.inf).all()):
            constraint = package.constraints.Interval(0.0, 1.0)
        else:
            raise refused(place, "GPyTorch", f"only some values of its {name} have an upper bound")
        # Constraints are made in torch's default precision, in which two bounds may be the same.
        constraint.lower_bound, constraint.upper_bound = _side(lower), _side(upper)
        kernel.register_constraint(f"raw_{name}", constraint)
    constraint = getattr(kernel, f"raw_{name}_constraint")
    with torch.no_grad():
        raw.copy_(_raw(constraint, value))
    raw.requires_grad_(number.is_learned)


def _side(bound: Tensor) -> Tensor:
    """Return a bound, which has one number for each value, as a single number where all are the same."""
    first = bound.reshape(-1)[0]
    return first.clone() if bool((bound == first).all()) else bound.reshape(-1).clone()


def _raw(constraint: Any, value: Tensor) -> Tensor:
    """Return what a constraint transforms to a value.

    GPyTorch's own inverse loses digits where softplus of torch becomes the identity, at 20.
    """
    best = constraint.inverse_transform(value).nan_to_num(neginf=-_END, posinf=_END)
    for _ in range(_CORRECTIONS):
        point = best.clone().requires_grad_()
        with torch.enable_grad():
            reached = constraint.transform(point)
            (slope,) = torch.autograd.grad(reached.sum(), point)
        error = value - reached.detach()
        moved = torch.where(slope > 0, best + error / slope.clamp_min(1e-300), best)
        closer = (value - constraint.transform(moved)).abs() < error.abs()
        best = torch.where(closer, moved, best)
    return best
