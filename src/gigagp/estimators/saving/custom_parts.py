"""Checks that a file can recreate the user-defined parts of a model, and that it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gigagp.errors import InvalidInputError
from gigagp.estimators.estimator import FittedEstimator
from gigagp.estimators.saving.configuration import foreign_parts, from_plain, kept_optimizer, to_plain
from gigagp.kernels import Kernel, from_dict
from gigagp.kernels.serialization import foreign_classes
from gigagp.model import means
from gigagp.model.likelihoods import is_default, resolve_likelihood
from gigagp.model.means import Mean
from gigagp.model.model import NOISE
from gigagp.model.scaling import Scaling
from gigagp.settings.custom import Custom, Item

#: Points at which kernels and means are compared: around the centre of the inputs, in standard deviations.
_PLACES = (-0.1, 0.0, 0.1)


def checked_again(estimator: FittedEstimator, header: Mapping[str, Any]) -> dict[str, Any] | None:
    """Recreate user-defined parts from their description; return values to recognise them, or None without such parts.

    Parts that differ from the original ones are refused.
    """
    model, d = estimator.posterior_.model, len(estimator.scaling_.x_centre)
    arguments = estimator._arguments
    likelihood = resolve_likelihood(arguments["likelihood"])
    apart = ("mean", NOISE, "likelihood", "optimizer")
    plain = [arguments[name] for name in estimator.get_params(deep=False) if name not in apart]
    plain += [estimator.inference_, estimator.solver_]
    plain += [kept_optimizer(one) for one in (arguments["optimizer"], estimator.optimizer_)]
    if not is_default(likelihood):
        plain.append(likelihood)
    parts: list[Item] = [*foreign_classes(model.kernel), *means.foreign_parts(model.mean)]
    parts += [one for value in plain for one in foreign_parts(value)]
    if not parts:
        return None
    custom = Custom(parts)
    names = ", ".join(dict.fromkeys(getattr(one, "__name__", repr(one)) for one in parts))
    try:
        again = json.loads(json.dumps({name: header[name] for name in ("settings", "mean", "kernel")}))
        kernel, mean = from_dict(again["kernel"], custom, d), means.from_dict(again["mean"], custom)
        same = _alike(kernel, model.kernel) and type(mean) is type(model.mean)
        same = same and all(to_plain(from_plain(to_plain(value), custom, d)) == to_plain(value) for value in plain)
        values = known_values(model.kernel, model.mean, estimator.scaling_)
        same = same and known_values(kernel, mean, estimator.scaling_) == values
        from_plain(again["settings"]["likelihood"], custom)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InvalidInputError(
            f"the model cannot be saved: {names} cannot be recreated from its description ({error}). Its constructor "
            "has to accept the values of to_dict (a kernel) or its fields (a dataclass), as numbers, strings and lists."
        ) from error
    if not same:
        raise InvalidInputError(
            f"the model cannot be saved: {names}, recreated from its description, differs from the original. "
            "All arguments of its constructor have to be in settings() (a kernel) or in fields (a dataclass)."
        )
    return values


def _alike(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels have the same classes and values in all their parts."""
    parts, others = getattr(one, "parts", ()), getattr(other, "parts", ())
    alike = type(one) is type(other) and len(parts) == len(others) and one.to_dict() == other.to_dict()
    return alike and all(_alike(mine, theirs) for mine, theirs in zip(parts, others, strict=True))


def known_values(kernel: Kernel, mean: Mean, scaling: Scaling) -> dict[str, Any]:
    """Return numbers by which a kernel and a mean can be recognised."""
    places = np.repeat(np.array(_PLACES)[:, None], len(scaling.x_centre), axis=1)
    X = torch.from_numpy(places)
    found: dict[str, Any] = {"kernel": kernel.block(X, X).tolist(), "basis": mean.basis(X).tolist(), "offset": None}
    try:
        found["offset"] = mean.offset(scaling.x_centre + places * scaling.x_scale).tolist()
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return found  # the function is not defined at these points
    return found


def are_close(found: Any, expected: Any) -> bool:
    """Whether two results of `known_values` are the same up to rounding."""
    if not isinstance(expected, dict):
        return False
    for name, values in found.items():
        theirs = expected.get(name)
        if values is None or theirs is None:
            if name != "offset":
                return False
            continue
        one, other = np.array(values, dtype=np.float64), np.array(theirs, dtype=np.float64)
        if one.shape != other.shape or not np.allclose(one, other, rtol=1e-6, atol=1e-12):
            return False
    return True
