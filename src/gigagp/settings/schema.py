"""Schemas of saved states: forms of plain data, and shapes and rules of tensors.

A file with a correct checksum can still contain anything. Data are checked against forms and fields before anything is
built from them, so that every fault is reported by the same kind of error, and no number in a file determines how much
memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import ModelFileError

#: A form raises `ModelFileError` for data that do not have it; the string says where the data are.
Form = Callable[[Any, str], None]

# Plain data -----------------------------------------------------------------------------------------------------------


def _refuse(where: str, allowed: str, got: Any) -> ModelFileError:
    shown = repr(got) if isinstance(got, bool | float | None) else repr(str(got)[:60])
    return ModelFileError(f"{where} must be {allowed}; got {shown} ({type(got).__name__}).")


def whole(low: int = 0, high: int = 2**63 - 1) -> Form:
    """Return the form of whole numbers from ``low`` to ``high``."""

    def check(data: Any, where: str) -> None:
        if isinstance(data, bool) or not isinstance(data, int) or not low <= data <= high:
            raise _refuse(where, f"a whole number from {low} to {high}", data)

    return check


def number(*, finite: bool = False, positive: bool = False) -> Form:
    """Return the form of numbers that float64 can hold."""

    def check(data: Any, where: str) -> None:
        sound = not isinstance(data, bool) and isinstance(data, int | float) and abs(data) <= _LARGEST
        sound = sound or (isinstance(data, float) and not finite)
        if not sound or (positive and not data > 0):
            allowed = f"a {'finite ' if finite else ''}{'positive ' if positive else ''}number"
            raise _refuse(where, allowed, data)

    return check


_LARGEST = 1.7976931348623157e308


def text(data: Any, where: str) -> None:
    """Check that the data are a string."""
    if not isinstance(data, str):
        raise _refuse(where, "a text", data)


def flag(data: Any, where: str) -> None:
    """Check that the data are true or false."""
    if not isinstance(data, bool):
        raise _refuse(where, "true or false", data)


def anything(data: Any, where: str) -> None:
    """Accept any data, which are checked elsewhere."""


def either(*forms: Form) -> Form:
    """Return the form of data that have at least one of several forms; the error is that of the last form."""

    def check(data: Any, where: str) -> None:
        for form in forms[:-1]:
            try:
                return form(data, where)
            except ModelFileError:
                continue
        return forms[-1](data, where)

    return check


def optional(form: Form) -> Form:
    """Return the form of data that may be None."""

    def check(data: Any, where: str) -> None:
        if data is not None:
            form(data, where)

    return check


def one_of(*allowed: str) -> Form:
    """Return the form of strings from a fixed set."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, str) or data not in allowed:
            raise _refuse(where, f"one of {', '.join(map(repr, allowed))}", data)

    return check


def listing(form: Form, *lengths: int) -> Form:
    """Return the form of lists whose items have a form, and whose length is one of ``lengths`` if any are given."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, list) or (lengths and len(data) not in lengths):
            raise _refuse(where, f"a list of {' or '.join(map(str, lengths))} items" if lengths else "a list", data)
        for place, item in enumerate(data):
            form(item, f"{where}[{place}]")

    return check


def table(form: Form) -> Form:
    """Return the form of mappings from names to data that all have the same form."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise _refuse(where, "a table of names", data)
        for name, item in data.items():
            form(item, f"{where}.{name[:60]}")

    return check


def record(needed: Mapping[str, Form], extra: Mapping[str, Form] | None = None) -> Form:
    """Return the form of mappings with a form for each name; ``extra`` names may be absent, others are ignored."""

    def check(data: Any, where: str) -> None:
        table(anything)(data, where)
        for name, form in needed.items():
            if name not in data:
                raise ModelFileError(f"{where} has no {name!r}.")
            form(data[name], f"{where}.{name}")
        for name, form in (extra or {}).items():
            if name in data:
                form(data[name], f"{where}.{name}")

    return check


# Tensors --------------------------------------------------------------------------------------------------------------

#: A condition on the numbers of a tensor. It returns None if it holds, and otherwise a description of the condition.
Rule = Callable[[Tensor], str | None]


def positive(tensor: Tensor) -> str | None:
    """Require positive numbers."""
    return None if bool((tensor > 0).all()) else "positive"


def not_negative(tensor: Tensor) -> str | None:
    """Require numbers of at least zero."""
    return None if bool((tensor >= 0).all()) else "zero or above"


def factor(tensor: Tensor) -> str | None:
    """Require a Cholesky factor, with a positive diagonal."""
    return None if bool((tensor.diagonal() > 0).all()) else "positive on the diagonal"


def below(limit: int) -> Rule:
    """Return the rule that indices lie between 0 and ``limit - 1``."""

    def check(tensor: Tensor) -> str | None:
        return None if bool(((tensor >= 0) & (tensor < limit)).all()) else f"from 0 to {limit - 1}"

    return check


@dataclass(frozen=True)
class Field:
    """Description of a tensor of a state."""

    #: one letter for each axis; the first tensor with a letter determines its size; empty: a scalar
    shape: str = ""
    #: ``"real"``: float32 or float64, the same for all such tensors of the state; ``"float"``: either; or a torch dtype
    dtype: str = "float"
    rule: Rule | None = None
    may_be_infinite: bool = False


def check_tensors(
    tensors: Mapping[str, Tensor], fields: Mapping[str, Field], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Check the tensors of a state, and return the sizes of the letters in their shapes; some may be known before.

    All allowed tensors have a field; one whose name ends in "?" may be absent.
    """
    known, real = dict(sizes), None
    allowed = {name.removesuffix("?") for name in fields}
    for name in tensors:
        if name not in allowed:
            raise ModelFileError(f"it has a tensor {name[:60]!r} that does not belong there.")
    for entry, field in fields.items():
        name = entry.removesuffix("?")
        if name not in tensors:
            if entry == name:
                raise ModelFileError(f"it has no tensor {name!r}.")
            continue
        tensor = tensors[name]
        dtypes = {"real": ("float64", "float32"), "float": ("float64", "float32")}.get(field.dtype, (field.dtype,))
        if field.dtype == "real":
            dtypes = dtypes if real is None else (real,)
            real = str(tensor.dtype).removeprefix("torch.")
        letters = field.shape.split()
        if len(letters) == tensor.ndim:
            for letter, size in zip(letters, tensor.shape, strict=True):
                known.setdefault(letter, size)
        shape = tuple(known.get(letter) for letter in letters)
        if tuple(tensor.shape) != shape or str(tensor.dtype).removeprefix("torch.") not in dtypes:
            wanted = f"({', '.join(f'{a} = {known[a]}' if a in known else a for a in letters)})"
            raise ModelFileError(
                f"its tensor {name!r} must be {' or '.join(dtypes)} of shape {wanted}; got "
                f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}."
            )
        known_numbers = torch.isnan(tensor).logical_not() if field.may_be_infinite else torch.isfinite(tensor)
        if tensor.is_floating_point() and not bool(known_numbers.all()):
            raise ModelFileError(f"its tensor {name!r} must be finite.")
        complaint = None if field.rule is None else field.rule(tensor)
        if complaint is not None:
            raise ModelFileError(f"its tensor {name!r} must be {complaint}.")
    return known


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with a prefix, under their names without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
