"""Attributes of kernels that read hyperparameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self, overload

from torch import Tensor

if TYPE_CHECKING:
    from gigagp.kernels.leaf import Leaf


class Hyperparameter:
    """Attribute of a `Leaf` that reads the hyperparameter of the same name: a tensor, None while it is not settled."""

    def __init__(self, description: str) -> None:
        self.__doc__ = description

    def __set_name__(self, owner: type[Leaf], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Leaf]) -> Self: ...

    @overload
    def __get__(self, instance: Leaf, owner: type[Leaf]) -> Tensor | None: ...

    def __get__(self, instance: Leaf | None, owner: type[Leaf]) -> Self | Tensor | None:
        return self if instance is None else instance._values[self._name]

    def __set__(self, instance: Leaf, value: object) -> NoReturn:
        """Refuse: kernels do not change; `Leaf.replace` returns another."""
        msg = f"{self._name} of {type(instance).__name__} cannot be set: kernels do not change. Use replace()."
        raise AttributeError(msg)
