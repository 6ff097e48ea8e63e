"""Conversion of settings to plain JSON and back, with a closed list of classes so that loading runs no foreign code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from gigagp import inference, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.inference import gradients
from gigagp.inference.computation_aware import actions
from gigagp.kernels import Chosen, Kernel, from_dict
from gigagp.kernels.serialization import describe, foreign_classes
from gigagp.model import likelihoods
from gigagp.model.likelihoods import Likelihood
from gigagp.settings.custom import MARK, NOTHING, Custom, marked, state_of
from gigagp.solvers import truncation

_ROOMS = (inference, solvers, gradients, optimization, truncation, likelihoods)


def _settings() -> dict[str, type]:
    """Return the classes of all settings by their names in files.

    A name of two classes gets that of the room: ``Exact`` is an inference method and a gradient, ``Vecchia`` an
    inference method and a preconditioner.
    """
    found: dict[str, dict[str, type]] = {}
    for room in _ROOMS:
        for name in room.__all__:
            item = getattr(room, name)
            if isinstance(item, type) and is_dataclass(item):
                found.setdefault(name, {})[f"{room.__name__.rpartition('.')[2]}.{name}"] = item
    return {
        short if len(classes) == 1 else long: item for short, classes in found.items() for long, item in classes.items()
    }


_CLASSES = _settings()
_CLASSES.pop("Abilities")  # a declaration, not a setting
_CLASSES["Chosen"] = Chosen
_CLASSES.update(  # one of them has the same name as a solver
    {
        f"actions.{name}": item
        for name in actions.__all__
        if isinstance(item := getattr(actions, name), type) and is_dataclass(item)
    }
)
_NAMES = {item: name for name, item in _CLASSES.items()}
#: Settings that the classes no longer have, by class, with the value at which a file may name them: they do nothing.
_DROPPED: dict[str, dict[str, Any]] = {
    "QuadruplyStochastic": {"order": "given"},
    "RelevanceVectorMachine": {"order": "given"},
}


def to_plain(value: Any) -> Any:
    """Return a setting as data that JSON can represent.

    It may be plain data, one of the package's settings, or a user-defined dataclass or likelihood.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"tuple": [to_plain(item) for item in value]}
    if isinstance(value, Kernel):
        return {"kernel": describe(value)}
    if type(value) in _NAMES:
        settings = {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
        return {"class": _NAMES[type(value)], "settings": settings}
    if (is_dataclass(value) and not isinstance(value, type)) or isinstance(value, Likelihood):
        settings = {name: to_plain(item) for name, item in state_of(value).items()}
        return {"class": type(value).__name__, "settings": settings} | marked(type(value))
    raise InvalidInputError(
        f"a setting of type {type(value).__name__} cannot be saved: {str(value)[:200]!r}. Use the settings of gigagp, "
        "or a frozen dataclass."
    )


def kept_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that a file stores: the given one, or if it is only code, a placeholder with its repr."""
    try:
        to_plain(optimizer)
    except InvalidInputError:
        return optimization.Unsaved(repr(optimizer))
    return optimizer


def foreign_parts(value: Any) -> Iterator[type]:
    """Iterate over the classes in a setting that are not part of the package."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from foreign_parts(item)
    elif isinstance(value, Kernel):
        yield from foreign_classes(value)
    elif (is_dataclass(value) and not isinstance(value, type)) or isinstance(value, Likelihood):
        if type(value) not in _NAMES:
            yield type(value)
        for item in state_of(value).values():
            yield from foreign_parts(item)


def from_plain(data: Any, custom: Custom = NOTHING, n_inputs: int | None = None) -> Any:
    """Return the setting from its description by `to_plain`, with kernels bound to ``n_inputs``, if that is given.

    A class that is neither part of the package nor in ``custom`` is refused, and so are invalid values.
    """
    if isinstance(data, list):
        raise InvalidInputError(f"a list is not a setting; got {str(data)[:100]}.")
    if not isinstance(data, dict):
        return data
    if isinstance(data.get("tuple"), list):
        return tuple(from_plain(item, custom, n_inputs) for item in data["tuple"])
    if "kernel" in data:
        return from_dict(data["kernel"], custom, n_inputs)
    name, settings = data.get("class"), data.get("settings")
    if not isinstance(name, str) or not isinstance(settings, dict):
        raise InvalidInputError(f"a setting must be plain or have a class and settings; got {str(data)[:100]}.")
    cls = _CLASSES.get(name) if MARK not in data else None
    if cls is None:
        cls = _registered(data.get(MARK)) or custom.find(name, data, "a setting")
    elif name in _DROPPED:
        settings = _without_dropped(name, settings)
    try:
        return cls(**{key: from_plain(item, custom, n_inputs) for key, item in settings.items()})
    except TypeError as error:
        raise InvalidInputError(f"the description of {name} has arguments that it does not take: {error}.") from error


def _without_dropped(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings without those that their class no longer has, or refuse them where they changed something."""
    dropped = _DROPPED[name]
    for key, idle in dropped.items():
        if settings.get(key, idle) != idle:
            msg = f"{key} of {name} must be {idle!r}, the only choice that this version has; got {settings[key]!r}."
            raise InvalidInputError(f"{msg} Fit the model again without it.")
    return {key: item for key, item in settings.items() if key not in dropped}


def _registered(path: Any) -> type | None:
    """Return the user-defined inference method that is registered under an import path."""
    found = (kind for kind in inference.registered().values() if kind not in _NAMES and marked(kind)[MARK] == path)
    return next(found, None)
