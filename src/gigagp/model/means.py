"""Prior means: a basis whose coefficients follow from the data, or a known function.

A learned mean is linear in its coefficients, which inference determines by generalised least squares at every kernel
and noise (`gigagp.inference.contract.trend`). A mean therefore has no hyperparameters and never changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from torch import Tensor, cat

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import checked_columns
from gigagp.settings.custom import MARK, NOTHING, Custom, Item, marked, state_of
from gigagp.settings.fields import Words

#: A known mean: takes float64 inputs of shape (n, d) in their own units, and returns values of shape (n,).
MeanFunction = Callable[[np.ndarray], np.ndarray]


class Mean(ABC):
    """A prior mean ``m(x) = basis(x)' coefficients + offset(x)``."""

    #: name by which users select it
    name: str

    @abstractmethod
    def basis(self, X: Tensor) -> Tensor:
        """Return the basis functions of the unknown coefficients, shape (n, p), in the dtype of ``X``."""

    def offset(self, X: np.ndarray) -> np.ndarray:
        """Return the known part of the mean at inputs in their own units, shape (n,)."""
        return np.zeros(X.shape[0])

    def __repr__(self) -> str:
        """Return the name."""
        return f"{type(self).__name__}()"


class ZeroMean(Mean):
    """A mean of zero."""

    name = "zero"

    def basis(self, X: Tensor) -> Tensor:
        return X.new_zeros(X.shape[0], 0)


class ConstantMean(Mean):
    """A mean with one unknown constant."""

    name = "constant"

    def basis(self, X: Tensor) -> Tensor:
        return X.new_ones(X.shape[0], 1)


@dataclass(frozen=True)
class LinearMean(Mean):
    """A mean with an unknown constant and an unknown slope for every input, or for some of them.

    Parameters
    ----------
    columns : sequence of int, optional
        The inputs, numbered from 0, that have a slope. None: all.
    """

    name = "linear"
    columns: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", checked_columns(self.columns, "LinearMean"))

    def basis(self, X: Tensor) -> Tensor:
        if self.columns is not None and max(self.columns) >= X.shape[1]:
            msg = f"columns of LinearMean must be below {X.shape[1]}, the number of inputs; got {list(self.columns)}."
            raise InvalidInputError(msg)
        chosen = X if self.columns is None else X[:, list(self.columns)]
        return cat([X.new_ones(X.shape[0], 1), chosen], dim=1)


class FixedMean(ZeroMean):
    """A known function, from which nothing is learned.

    Parameters
    ----------
    function : callable
        Takes a float64 array of shape (n, d) and returns finite values of shape (n,). It must be deterministic. A model
        file contains the function's name but not its code, so the function must be passed to `gigagp.load`.
    """

    name = "fixed"

    def __init__(self, function: MeanFunction) -> None:
        if not callable(function):
            raise InvalidInputError(f"function of FixedMean must be callable; got {function!r}.")
        self.function = function

    def offset(self, X: np.ndarray) -> np.ndarray:
        """Return the values of the function.

        Raises
        ------
        InvalidInputError
            If the function does not return one finite number for each row.
        """
        values = self.function(X)
        masked = isinstance(values, np.ma.MaskedArray) and bool(np.ma.getmaskarray(values).any())
        values = np.asarray(values)
        sound = values.shape == (X.shape[0],) and values.dtype.kind in "fiub" and not masked
        if not sound or not np.isfinite(values).all():
            raise InvalidInputError(
                f"A mean function must return {X.shape[0]} finite numbers for {X.shape[0]} rows, as shape (n,); "
                f"got shape {values.shape}, {values.dtype}."
            )
        return values.astype(np.float64)

    def __repr__(self) -> str:
        return f"FixedMean({self.function!r})"


_MEANS: dict[str, type[Mean]] = {item.name: item for item in (ZeroMean, ConstantMean, LinearMean)}
#: Values that users may pass as ``mean``.
MeanLike = Annotated[
    str | Mean | MeanFunction,
    Words('"zero", "constant", "linear", a Mean or a function of the inputs'),
]


def resolve_mean(mean: MeanLike) -> Mean:
    """Return the mean for a ``mean`` argument.

    Parameters
    ----------
    mean : {"zero", "constant", "linear"}, Mean or callable
        A name, a mean, or a known function of the inputs.

    Raises
    ------
    InvalidInputError
        If the argument is none of these.
    """
    if isinstance(mean, Mean):
        return mean
    if callable(mean):
        return FixedMean(mean)
    if isinstance(mean, str) and mean in _MEANS:
        return _MEANS[mean]()
    msg = f"mean of GPRegressor must be one of {list(_MEANS)}, a Mean or a function of the inputs; got {mean!r}."
    raise InvalidInputError(msg)


def describe(mean: Mean) -> dict[str, Any]:
    """Return a description in plain data, which `from_dict` converts back.

    Raises
    ------
    InvalidInputError
        If the mean is not part of the package and cannot be recreated: a lambda, or an object that is not a dataclass.
    """
    if type(mean) is FixedMean:
        return {"mean": getattr(mean.function, "__name__", None), "fixed": True} | marked(mean.function)
    if _MEANS.get(getattr(mean, "name", "")) is type(mean):
        settings = {name: value for name, value in state_of(mean).items() if value is not None}
        return {"mean": mean.name} | ({"settings": settings} if settings else {})
    return {"mean": type(mean).__name__, "settings": state_of(mean)} | marked(type(mean))


def foreign_parts(mean: Mean) -> tuple[Item, ...]:
    """Return the function or the class of a mean that is not part of the package."""
    if type(mean) is FixedMean:
        return (mean.function,)
    return () if type(mean) in _MEANS.values() else (type(mean),)


def from_dict(description: Mapping[str, Any], custom: Custom = NOTHING) -> Mean:
    """Return the mean from the description by `describe`. The description cannot cause any code to run.

    Raises
    ------
    InvalidInputError
        If it does not describe a mean, or describes one that is neither part of this package nor in ``custom``.
    """
    name = description.get("mean") if isinstance(description, Mapping) else None
    if not isinstance(name, str):
        raise InvalidInputError(f"A mean description must name one of {list(_MEANS)}; got {str(name)[:100]!r}.")
    if description.get("fixed") is True:
        return FixedMean(custom.find(name, description, "a mean function"))
    ours = MARK not in description and name in _MEANS
    kind = _MEANS[name] if ours else custom.find(name, description, "a mean", Mean)
    try:
        mean: Mean = kind(**description.get("settings", {}))
    except TypeError as error:
        raise InvalidInputError(f"The description of {name} has arguments that it does not take: {error}.") from error
    return mean
