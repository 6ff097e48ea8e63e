"""Checks of the arguments of grids, and the memory that a node takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.interpolation import interpolation_named
from gigagp.settings.fields import shown

#: Largest number of inputs: a stencil has 4^d nodes, and a row of ``W'W`` 7^d entries.
MAX_INPUTS = 4


def node_bytes(n_inputs: int, interpolation: str) -> int:
    """Return the bytes per node while statistics are collected: half a stencil, the moments of a cell, a target."""
    scheme = interpolation_named(interpolation)
    half = ((2 * scheme.reach + 1) ** n_inputs + 1) // 2
    moments = scheme.n_moments ** (n_inputs - 1) * (scheme.n_moments + 1)
    return 8 * (half + moments + 4)


def checked_bounds(lower: Sequence[float], upper: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the corners of a region as lists of floats; refuse constant inputs and corners in the wrong order."""
    low, high = numbers(lower, "lower"), numbers(upper, "upper")
    if len(low) != len(high):
        raise InvalidInputError(f"lower and upper of a grid must have the same length; got {len(low)} and {len(high)}.")
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        if a == b:
            msg = f"Input {axis} is constant (always {a!r}): a grid needs inputs that vary. Leave it out."
            raise InvalidInputError(msg)
        if a > b:
            raise InvalidInputError(f"lower of a grid must be below upper; got {a!r} and {b!r} in input {axis}.")
    return low, high


def check_inputs(d: int) -> None:
    """Raise `InvalidInputError` unless a grid can have this number of inputs."""
    if not 1 <= d <= MAX_INPUTS:
        raise InvalidInputError(
            f"A grid has 1 to {MAX_INPUTS} inputs; got {d}. Its stencils grow as 4^d: choose the inputs that matter, a "
            "kernel that is a sum of terms of at most three inputs each, or another inference (Iterative, "
            "SparseVariational)."
        )


def numbers(values: Any, name: str) -> list[float]:
    """Return a sequence of finite numbers as floats, or raise `InvalidInputError`."""
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        msg = f"{name} of RegularGrid must be a sequence of numbers, one for each input; got {shown(values)}."
        raise InvalidInputError(msg) from None
    if not all(math.isfinite(value) for value in found):
        raise InvalidInputError(f"{name} of RegularGrid must be finite; got {tuple(found)}.")
    return found


def outside_error(
    X: Tensor,
    inside: Tensor,
    low: Sequence[float],
    high: Sequence[float],
    first_row: int = 0,
    names: Sequence[str] | None = None,
) -> InvalidInputError:
    """Return the error for points that are not all ``inside`` a region, naming the first.

    ``first_row`` is the row number of the first point, and ``names`` are those of the inputs.
    """
    row = int((~inside).nonzero()[0])
    labels = [f"input {k}" for k in range(X.shape[1])] if names is None else [repr(str(name)) for name in names]
    box = ", ".join(f"{name} from {a:.6g} to {b:.6g}" for name, a, b in zip(labels, low, high, strict=True))
    point = ", ".join(f"{name} = {value:.6g}" for name, value in zip(labels, X[row].tolist(), strict=True))
    msg = (
        f"{int((~inside).sum())} of {len(X)} rows lie outside of the grid's region ({box}); the first is row "
        f"{row + first_row} (counted from 0): {point}. Remove or clamp them, or make a grid that covers them."
    )
    return InvalidInputError(msg)
