"""Short texts of settings: a name, what differs from the defaults, and numbers with four digits."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

#: A number with a decimal point or an exponent, which is not part of a name.
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)")


def brief(value: Any) -> str:
    """Return a setting in one short text.

    A dataclass is its name with the fields that differ from their defaults, such as
    ``ConjugateGradients(tolerance=0.0016)``. Texts stay as they are, and everything else is its repr; numbers have four
    digits.
    """
    if isinstance(value, str):
        return value
    if not is_dataclass(value) or isinstance(value, type):
        return rounded(repr(value))
    changed = []
    for field in fields(value):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        given = getattr(value, field.name)
        if field.repr and not _same(given, default):
            changed.append(f"{field.name}={given!r}" if isinstance(given, str) else f"{field.name}={brief(given)}")
    return f"{type(value).__name__}({', '.join(changed)})"


def _same(given: Any, default: Any) -> bool:
    alike = type(given) is type(default) or {type(given), type(default)} == {int, float}
    return alike and bool(given == default)


def rounded(text: str) -> str:
    """Return a text with its numbers rounded to four digits."""
    return _NUMBER.sub(lambda found: f"{float(found[0]):.4g}", text)
