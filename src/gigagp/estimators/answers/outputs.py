"""Answers of several outputs, each with its own model: the answers of all models, joined.

An estimator of such outputs has a fitted estimator for each of them in ``_models``. The decorators here are on
everything that answers for one model; the methods themselves know nothing of others.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.estimators.answers.joint_posterior import JointOutputs, JointPosterior
from gigagp.estimators.answers.target_posterior import TargetPosterior
from gigagp.model.estimate import Estimate
from gigagp.runtime.run import naming
from gigagp.settings.brief import output_name
from gigagp.settings.random import generator_from, spawn
from gigagp.tables import intake

P = ParamSpec("P")
R = TypeVar("R")


def by_output(axis: int = 1) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a method: for several models it is called for each of them, and the answers are joined.

    An argument ``y`` has a column for each output. A ``random_state`` becomes a generator for each, because samples of
    independent outputs with the same random numbers would move together. ``axis`` is that of the outputs in arrays.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)

        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            models = args[0]._models  # type: ignore[attr-defined]
            # The method itself is called, since one of a subclass may change what it returns, and does so once.
            if not models:
                return method(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            _, *given = bound.arguments.items()
            found = []
            for number, (one, own) in enumerate(zip(models, _split(dict(given), len(models)), strict=True)):
                with naming(output_name(number)):
                    found.append(cast("Any", method)(one, **own))
            return cast("R", joined(found, axis))

        return call

    return decorate


def each_output(getter: Callable[[Any], R]) -> Any:
    """Return a property whose value is a tuple of those of all models where there are several."""

    @wraps(getter)
    def get(self: Any) -> R | tuple[R, ...]:
        return tuple(getter(one) for one in self._models) if self._models else getter(self)

    return property(get)


def columns_of(y: Any, count: int, name: str = "y") -> list[np.ndarray]:
    """Return the columns of targets, one for each output; another number of them is refused."""
    values = intake.targets(y, name=name)
    if values.ndim != 2 or values.shape[1] != count:
        msg = f"{name} must have {count} target(s), as in the fit; got {values.size // max(len(values), 1)}."
        raise InvalidInputError(msg)
    return list(values.T)


def _split(given: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the arguments of a method for each output."""
    own = [dict(given) for _ in range(count)]
    if "y" in given:
        for one, column in zip(own, columns_of(given["y"], count), strict=True):
            one["y"] = column
    if "random_state" in given:
        generator = generator_from(given["random_state"])
        for one in own:
            one["random_state"] = spawn(generator)
    return own


def joined(found: Sequence[Any], axis: int) -> Any:
    """Return the answers of all outputs as one; functions become a function with joined values."""
    first = found[0]
    if isinstance(first, np.ndarray):
        return np.stack(found, axis)
    if isinstance(first, Estimate):  # log-likelihoods of independent outputs
        return Estimate(sum(one.value for one in found), math.hypot(*(one.standard_error for one in found)))
    if isinstance(first, JointPosterior | TargetPosterior):
        return JointOutputs(found)
    if isinstance(first, tuple):
        parts = [joined(each, axis) for each in zip(*found, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return lambda X: joined([function(X) for function in found], axis)
