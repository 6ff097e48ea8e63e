"""Settings objects as plain JSON and back, from a closed list of classes: loading never runs foreign code."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from gigagp import actions, gradients, inference, optimization, solvers, truncation
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.kernels import Kernel, from_dict

_ROOMS = (inference, solvers, gradients, optimization, truncation)
_CLASSES: dict[str, type] = {
    name: item
    for room in _ROOMS
    for name in room.__all__
    if isinstance(item := getattr(room, name), type) and is_dataclass(item)
}
# ``Exact`` is an inference and a gradient; the file names both apart.
_CLASSES.pop("Exact")
_CLASSES.update(  # one of them has the name of a solver
    {
        f"actions.{name}": item
        for name in actions.__all__
        if isinstance(item := getattr(actions, name), type) and is_dataclass(item)
    }
)
_CLASSES.update({"inference.Exact": inference.Exact, "gradients.Exact": gradients.Exact})
_NAMES = {item: name for name, item in _CLASSES.items()}


def to_plain(value: Any) -> Any:
    """Return a setting as JSON-able data.

    Raises
    ------
    InvalidInputError
        If it is neither plain data nor one of the package's settings objects.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return {"tuple": [to_plain(item) for item in value]}
    if isinstance(value, Kernel):
        return {"kernel": value.to_dict()}
    if type(value) in _NAMES:
        settings = {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
        return {"class": _NAMES[type(value)], "settings": settings}
    msg = f"a setting of type {type(value).__name__} cannot be saved: {value!r}."
    raise InvalidInputError(msg)


def from_plain(data: Any) -> Any:
    """Return the setting that `to_plain` described."""
    if not isinstance(data, dict):
        return data
    if "tuple" in data:
        return tuple(from_plain(item) for item in data["tuple"])
    if "kernel" in data:
        return from_dict(data["kernel"])
    if data.get("class") not in _CLASSES:
        msg = f"the model file names a setting that this version does not know: {data.get('class')!r}."
        raise ModelFileError(msg)
    return _CLASSES[data["class"]](**{name: from_plain(item) for name, item in data["settings"].items()})
