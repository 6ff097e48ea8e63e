"""Short texts of settings: a name, what differs from the defaults, and numbers with four digits."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

#: Digits of the longest number that somebody may have typed; longer ones were computed.
_TYPED = 8
#: A number with a decimal point or an exponent, which is not part of a name.
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)")


def brief(value: Any) -> str:
    """Return a setting in one short text.

    A dataclass is its name with the fields that differ from their defaults, such as
    ``ConjugateGradients(tolerance=0.0016)``. Texts stay as they are, and everything else is its repr; numbers have four
    digits.
    """
    return value if isinstance(value, str) else rounded(changed_fields(value))


def changed_fields(value: Any) -> str:
    """Return the name of a dataclass with the fields that differ from their defaults, and the `short` of all else."""
    if not is_dataclass(value) or isinstance(value, type):
        return short(value)
    changed = []
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        given = getattr(value, field.name)
        if field.repr and not _same(given, default):
            changed.append(f"{field.name}={changed_fields(given)}")
    return f"{type(value).__name__}({', '.join(changed)})"


def short(value: Any) -> str:
    """Return the repr of plain data, in which numbers that were computed have four digits.

    A number that somebody may have typed, such as 365.25, stays as it is: one of at most eight digits.
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {short(item)}' for key, item in value.items())}}}"
    if type(value) is list:
        return f"[{', '.join(map(short, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(short, value))}{',' * (len(value) == 1)})"
    text = repr(value)
    if type(value) is not float:
        return text
    digits = text.lower().split("e")[0].replace(".", "").strip("-0")
    return f"{value:.4g}" if len(digits) > _TYPED else text


def _same(given: Any, default: Any) -> bool:
    alike = type(given) is type(default) or {type(given), type(default)} == {int, float}
    return alike and bool(given == default)


def rounded(text: str) -> str:
    """Return a text with its numbers rounded to four digits."""
    return _NUMBER.sub(lambda found: f"{float(found[0]):.4g}", text)


def output_name(number: int) -> str:
    """Return what messages and descriptions call one of several outputs, by its number from 0."""
    return f"y[:, {number}]"
