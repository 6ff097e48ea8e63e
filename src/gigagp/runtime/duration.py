"""Durations as users give them."""

from __future__ import annotations

import math

from gigagp.errors import InvalidInputError
from gigagp.settings.fields import number_with_unit, shown

_SECONDS = {"": 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "hours": 3600.0}


def resolve_duration(given: float | str | None) -> float:
    """Return a duration in seconds; None is infinity.

    It is given in seconds or with a unit, such as ``"90s"``, ``"10min"`` or ``"1.5h"``.
    """
    if given is None:
        return math.inf
    seconds = number_with_unit(given, _SECONDS) if isinstance(given, str) else given
    if seconds is None:
        msg = f'time_budget must be seconds or a string like "90s", "10min" or "1.5h"; got {given!r}.'
        raise InvalidInputError(msg)
    if not 0 < seconds < math.inf:  # also rejects NaN
        raise InvalidInputError(f"time_budget must be positive and finite; got {shown(given)}.")
    return float(seconds)


def in_words(seconds: float) -> str:
    """Return a duration with its largest sensible unit, such as ``"3.2 s"``, ``"4 min"`` or ``"2.5 h"``."""
    size, unit = next(
        ((size, unit) for size, unit in ((3600.0, "h"), (60.0, "min")) if seconds >= 2 * size), (1.0, "s")
    )
    number = seconds / size
    return f"{number:.2g} {unit}" if number < 99.5 else f"{number:,.0f} {unit}"
