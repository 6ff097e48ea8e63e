"""Prior means: a basis whose coefficients follow from the data, or a known function.

A learned mean is linear in its coefficients, and inference finds those by generalised least squares at every kernel
and noise (`gigagp.inference.trend`); a mean therefore holds no hyperparameters and never changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, cat

from gigagp.errors import InvalidInputError

#: A known mean: takes float64 inputs of shape (n, d) in their own units, returns values of shape (n,).
MeanFunction = Callable[[np.ndarray], np.ndarray]


class Mean(ABC):
    """A prior mean ``m(x) = basis(x)' coefficients + offset(x)``."""

    #: what users write for it
    name: str

    @abstractmethod
    def basis(self, X: Tensor) -> Tensor:
        """Return the functions that unknown coefficients multiply, shape (n, p), in the dtype of ``X``."""

    def offset(self, X: np.ndarray) -> np.ndarray:
        """Return the known part of the mean at inputs in their own units, shape (n,)."""
        return np.zeros(X.shape[0])

    def to_dict(self) -> dict[str, Any]:
        """Return a description in plain data; `from_dict` reads it back."""
        return {"mean": self.name}

    def __repr__(self) -> str:
        """Return the name."""
        return f"{type(self).__name__}()"


class ZeroMean(Mean):
    """The mean is zero."""

    name = "zero"

    def basis(self, X: Tensor) -> Tensor:
        """Return no column."""
        return X.new_zeros(X.shape[0], 0)


class ConstantMean(Mean):
    """One unknown constant."""

    name = "constant"

    def basis(self, X: Tensor) -> Tensor:
        """Return a column of ones."""
        return X.new_ones(X.shape[0], 1)


class LinearMean(Mean):
    """An unknown constant and an unknown slope for every input."""

    name = "linear"

    def basis(self, X: Tensor) -> Tensor:
        """Return a column of ones and the inputs."""
        return cat([X.new_ones(X.shape[0], 1), X], dim=1)


class FixedMean(ZeroMean):
    """A known function; nothing is learned.

    Parameters
    ----------
    function : callable
        Takes a float64 array of shape (n, d), returns finite values of shape (n,). It has to be deterministic. It
        cannot be saved with a model.
    """

    name = "fixed"

    def __init__(self, function: MeanFunction) -> None:
        if not callable(function):
            msg = f"function of FixedMean must be callable; got {function!r}."
            raise InvalidInputError(msg)
        self.function = function

    def offset(self, X: np.ndarray) -> np.ndarray:
        """Return the function's values.

        Raises
        ------
        InvalidInputError
            If the function returns something else than one finite number for each row.
        """
        values = np.asarray(self.function(X))
        if values.shape != (X.shape[0],) or values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            msg = (
                f"A mean function must return {X.shape[0]} finite numbers for {X.shape[0]} rows, as shape (n,); "
                f"got shape {values.shape}, {values.dtype}."
            )
            raise InvalidInputError(msg)
        return values.astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """Refuse: a function is code, and saved models hold none."""
        msg = (
            "A mean that is a function of your own cannot be saved, because saved models hold no code. "
            'Subtract it from y before the fit, or use mean="linear".'
        )
        raise InvalidInputError(msg)

    def __repr__(self) -> str:
        """Return the name with the function."""
        return f"FixedMean({self.function!r})"


_MEANS: dict[str, type[Mean]] = {item.name: item for item in (ZeroMean, ConstantMean, LinearMean)}
#: What users pass as ``mean``.
MeanLike = str | Mean | MeanFunction


def resolve_mean(mean: MeanLike) -> Mean:
    """Return the mean that ``mean`` stands for.

    Parameters
    ----------
    mean : {"zero", "constant", "linear"}, Mean or callable

    Raises
    ------
    InvalidInputError
        If it is none of these.
    """
    if isinstance(mean, Mean):
        return mean
    if isinstance(mean, str) and mean in _MEANS:
        return _MEANS[mean]()
    if callable(mean):
        return FixedMean(mean)
    msg = f"mean must be one of {list(_MEANS)}, a Mean, or a function of the inputs; got {mean!r}."
    raise InvalidInputError(msg)


def from_dict(description: Mapping[str, Any]) -> Mean:
    """Return the mean that ``mean.to_dict()`` described. No code of the description is run.

    Raises
    ------
    InvalidInputError
        If it describes no mean of this package.
    """
    if description.get("mean") not in _MEANS:
        msg = f"A mean description must name one of {list(_MEANS)}; got {description.get('mean')!r}."
        raise InvalidInputError(msg)
    return _MEANS[description["mean"]]()
