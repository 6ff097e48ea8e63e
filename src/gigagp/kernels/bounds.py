"""Bounds of hyperparameters, which learning respects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError


@dataclass(frozen=True)
class Bounds:
    """Smallest and largest value of one hyperparameter, in its units; 0 and infinity where there is no bound.

    Both sides have the shape () or that of the hyperparameter.
    """

    lower: Tensor
    upper: Tensor

    @property
    def shape(self) -> torch.Size:
        """Shape of both sides, broadcast."""
        return torch.Size(np.broadcast_shapes(self.lower.shape, self.upper.shape))

    def clip(self, value: Tensor) -> Tensor:
        """Return the nearest value within the bounds."""
        return torch.minimum(torch.maximum(value, self.lower), self.upper)

    def multiplied(self, factor: Tensor) -> Bounds:
        """Return the bounds in other units. A value within them, multiplied by the same factor, stays within them."""
        return Bounds(self.lower * factor, self.upper * factor)

    def expand(self, shape: torch.Size) -> Bounds:
        """Return the bounds with one pair for each value."""
        return Bounds(self.lower.expand(shape).clone(), self.upper.expand(shape).clone())

    def to_plain(self) -> list[Any]:
        """Return the lower and the upper side as numbers, or as lists where inputs differ; None for no bound."""
        return [_to_plain(self.lower), _to_plain(self.upper)]


def _to_plain(side: Tensor) -> Any:
    numbers = [number if 0 < number < math.inf else None for number in side.reshape(-1).tolist()]
    return numbers[0] if side.ndim == 0 or len(set(numbers)) == 1 else numbers


def checked_bounds(given: object, shapes: Mapping[str, bool], owner: str) -> dict[str, Bounds]:
    """Return the bounds that a kernel's constructor was given, as a mapping of names to pairs, or None.

    ``shapes`` is `Leaf.shapes`: whether a hyperparameter has one value for each input. Errors name the kernel
    ``owner``.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(shapes):
        raise InvalidInputError(
            f"bounds of {owner} must be a mapping from names among {sorted(shapes)} to pairs (lower, upper); got "
            f"{given!r}. To keep a hyperparameter from being learned, name it in fixed."
        )
    return {name: _checked_pair(name, pair, shapes[name], owner) for name, pair in given.items()}


def _checked_pair(name: str, pair: object, per_input: bool, owner: str) -> Bounds:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        raise InvalidInputError(f"bounds of {owner} must have a pair (lower, upper) for {name}; got {pair!r}.")
    lower, upper = (_side(side, default) for side, default in zip(pair, (0.0, math.inf), strict=True))
    sound = lower is not None and upper is not None and len({lower.numel(), upper.numel()} - {1}) <= 1
    if lower is None or upper is None or not sound or not bool(((lower >= 0) & (lower < upper)).all()):
        raise InvalidInputError(
            f"bounds of {owner} must have a lower number that is not negative and a larger upper one for {name}, or "
            f"None for no bound; got {pair!r}. To keep a hyperparameter from being learned, name it in fixed."
        )
    if not per_input and lower.numel() * upper.numel() > 1:
        raise InvalidInputError(f"bounds of {owner} must have one lower and one upper number for {name}; got {pair!r}.")
    if bool(torch.isinf(lower).any()) or bool((upper <= 0).any()):
        raise InvalidInputError(f"bounds of {owner} must leave finite positive values for {name}; got {pair!r}.")
    return Bounds(lower, upper) if per_input else Bounds(lower.reshape(()), upper.reshape(()))


def _side(value: object, default: float) -> Tensor | None:
    """Return one side as float64 numbers; None if it cannot be converted."""
    if value is None:
        value = default
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = [default if number is None else number for number in value]
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach().clone()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return numbers if numbers.ndim <= 1 and numbers.numel() > 0 else None
