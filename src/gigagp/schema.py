"""What a saved state has to look like, said once for each part: forms of plain data, and shapes of tensors.

A file with a right checksum can still say anything. Forms and fields are looked at before anything is made of them, so
that whatever is wrong is one error, and no number in a file decides how much memory is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import ModelFileError

#: A form raises `ModelFileError` for data that are not of it; the text says where the data are.
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
    """Be a text."""
    if not isinstance(data, str):
        raise _refuse(where, "a text", data)


def flag(data: Any, where: str) -> None:
    """Be true or false."""
    if not isinstance(data, bool):
        raise _refuse(where, "true or false", data)


def anything(data: Any, where: str) -> None:
    """Be what it is: something else looks at it."""


def either(*forms: Form) -> Form:
    """Return the form of data that have one of several forms; the error is that of the last."""

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
    """Return the form of a few texts."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, str) or data not in allowed:
            raise _refuse(where, f"one of {', '.join(map(repr, allowed))}", data)

    return check


def listing(form: Form, *lengths: int) -> Form:
    """Return the form of lists, of one of these lengths where some are given."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, list) or (lengths and len(data) not in lengths):
            raise _refuse(where, f"a list of {' or '.join(map(str, lengths))} items" if lengths else "a list", data)
        for place, item in enumerate(data):
            form(item, f"{where}[{place}]")

    return check


def table(form: Form) -> Form:
    """Return the form of names with data of one form each."""

    def check(data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise _refuse(where, "a table of names", data)
        for name, item in data.items():
            form(item, f"{where}.{name[:60]}")

    return check


def record(needed: Mapping[str, Form], extra: Mapping[str, Form] | None = None) -> Form:
    """Return the form of names with a form for each; those in ``extra`` may be absent, others are not looked at."""

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

#: What holds for the numbers of a tensor: a text where it does not.
Rule = Callable[[Tensor], str | None]


def positive(tensor: Tensor) -> str | None:
    """Hold positive numbers."""
    return None if bool((tensor > 0).all()) else "positive"


def not_negative(tensor: Tensor) -> str | None:
    """Hold no negative numbers."""
    return None if bool((tensor >= 0).all()) else "zero or above"


def factor(tensor: Tensor) -> str | None:
    """Be a Cholesky factor."""
    return None if bool((tensor.diagonal() > 0).all()) else "positive on the diagonal"


def below(limit: int) -> Rule:
    """Return the rule that indices are from 0 to ``limit - 1``."""

    def check(tensor: Tensor) -> str | None:
        return None if bool(((tensor >= 0) & (tensor < limit)).all()) else f"from 0 to {limit - 1}"

    return check


@dataclass(frozen=True)
class Field:
    """A tensor of a state.

    Attributes
    ----------
    shape : str
        A letter for each axis; the first tensor that has a letter says how many it stands for. Empty: a number.
    dtype : str
        ``"real"``: float32 or float64, the same in all tensors of the state that say so. ``"float"``: either.
        Otherwise what torch calls it.
    rule : Rule, optional
    """

    shape: str = ""
    dtype: str = "float"
    rule: Rule | None = None


def check_tensors(
    tensors: Mapping[str, Tensor], fields: Mapping[str, Field], sizes: Mapping[str, int]
) -> dict[str, int]:
    """Check the tensors of a state, and return what the letters of their shapes stand for.

    Parameters
    ----------
    tensors : mapping of str to Tensor
    fields : mapping of str to Field
        All there may be; a name that ends in "?" may be absent.
    sizes : mapping of str to int
        What is known of the letters before.

    Raises
    ------
    ModelFileError
        If a tensor is missing or not expected, or has another dtype or shape, or numbers that are not finite or break
        the field's rule.
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
            msg = (
                f"its tensor {name!r} must be {' or '.join(dtypes)} of shape {wanted}; got "
                f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}."
            )
            raise ModelFileError(msg)
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"its tensor {name!r} must be finite.")
        complaint = None if field.rule is None else field.rule(tensor)
        if complaint is not None:
            raise ModelFileError(f"its tensor {name!r} must be {complaint}.")
    return known


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
