"""What the constructors of elementary kernels take, and its checks."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.geometry import MetricName
from gigagp.settings.fields import shown

#: What a constructor takes for a hyperparameter.
ParameterLike = float | Sequence[float] | np.ndarray | Tensor | None

#: What a constructor takes for bounds: by name the smallest and the largest value, None for no bound.
BoundsLike = Mapping[str, tuple[ParameterLike, ParameterLike]] | None


class LeafOptions(TypedDict, total=False):
    """Arguments that the constructors of most elementary kernels share; see `Leaf`."""

    ard: bool
    columns: Sequence[int] | None
    fixed: Sequence[str] | bool
    bounds: BoundsLike


class StationaryOptions(LeafOptions, total=False):
    """Arguments that kernels of the scaled distance take beside these; see `gigagp.kernels.StationaryKernel`."""

    metric: MetricName
    angle: ParameterLike


def checked_value(value: ParameterLike, name: str, owner: str, *, per_input: bool) -> Tensor | None:
    """Return a hyperparameter as float64 numbers, shape (number of values,) or (); None for what was not given."""
    if value is None:
        return None
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        tensor = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        msg = f"{name} of {owner} must be a number or a list of numbers; got {shown(value)}."
        raise InvalidInputError(msg) from error
    if tensor.ndim > 1 or tensor.numel() == 0 or (not per_input and tensor.numel() != 1):
        allowed = "a number, or one number for each active input" if per_input else "one number"
        raise InvalidInputError(f"{name} of {owner} must be {allowed}; got shape {tuple(tensor.shape)}.")
    if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
        msg = f"{name} of {owner} must be positive and finite; got {tensor.tolist()}. Leave it out for a default."
        raise InvalidInputError(msg)
    if isinstance(value, (Tensor, np.ndarray)) and not tensor.requires_grad:
        tensor = tensor.clone()  # the caller may change the array later, the kernel must not
    return tensor if per_input else tensor.reshape(())


def checked_columns(columns: Sequence[int] | None, owner: str) -> tuple[int, ...] | None:
    """Return the input columns of a kernel; None for all."""
    if columns is None:
        return None
    try:
        if any(isinstance(column, bool) for column in columns):
            raise TypeError
        chosen = tuple(operator.index(column) for column in columns)
    except TypeError as error:
        msg = f"columns of {owner} must be a list of integers or None for all; got {shown(columns)}."
        raise InvalidInputError(msg) from error
    if not chosen or min(chosen) < 0 or len(set(chosen)) < len(chosen):
        msg = f"columns of {owner} must be different positions, zero or above, at least one; got {columns!r}."
        raise InvalidInputError(msg)
    return chosen


def checked_groups(groups: Sequence[int], owner: str) -> tuple[int, ...]:
    """Return the numbers of the groups of inputs, which count from 0 in the order in which groups first occur."""
    known, highest = isinstance(groups, list | tuple) and len(groups) > 0, -1
    for group in groups if known else ():
        known = known and isinstance(group, int) and not isinstance(group, bool) and 0 <= group <= highest + 1
        highest = max(highest, group) if known else highest
    if not known:
        msg = f"groups of {owner} must be whole numbers, from 0 in the order of their first input; got {shown(groups)}."
        raise InvalidInputError(msg)
    return tuple(groups)


def checked_fixed(fixed: Sequence[str] | bool, shapes: Mapping[str, bool], owner: str) -> frozenset[str]:
    """Return the names of hyperparameters that are not learned."""
    if isinstance(fixed, bool):
        return frozenset(shapes if fixed else ())
    given = (fixed,) if isinstance(fixed, str) else fixed
    known = isinstance(given, tuple | list | set | frozenset) and all(isinstance(name, str) for name in given)
    if not known or not set(given) <= set(shapes):
        raise InvalidInputError(f"fixed of {owner} must be True or names among {sorted(shapes)}; got {shown(fixed)}.")
    return frozenset(given)
