"""Values for arguments: right ones, and those that are never right for a kind of argument."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from stress.draw import Draw

#: Settings of how long something runs: a large number there is a long run, and no error.
_LASTING = re.compile("steps|epochs|iterations|memory|minimum|length|maximum|base|refresh")


@dataclass(frozen=True)
class Value:
    """A value for an argument.

    Attributes
    ----------
    value : object
    never_right : bool
        Whether it has to be refused, whatever else is given.
    """

    value: Any
    never_right: bool = False


def a_function(*arguments: object) -> int:
    """Stand for something that was forgotten to be called."""
    return len(arguments)


def _no_numbers() -> list[Any]:
    return ["3", "", [], {}, object(), a_function, 1j, b"3", float("nan"), np.datetime64("2024-01-01"), Ellipsis, int]


def draw_value(draw: Draw, kind: str, name: str, *, hostile: bool) -> Value:
    """Return a value for a setting.

    Parameters
    ----------
    draw : Draw
    kind : str
        Its annotation.
    name : str
    hostile : bool
        Whether it is meant to do harm; otherwise it is one that could be right.
    """
    optional = "None" in kind
    if hostile and not optional and draw.chance(0.08):
        return Value(None, never_right=True)
    if "Literal" in kind or name in ("loss", "outside", "bound", "start", "transform", "interpolation"):
        return _choice(draw, kind, name, hostile)
    if kind.startswith("bool"):
        return (
            Value(draw.one_of(["yes", 2, [], object(), float("nan"), -1]), True) if hostile else Value(draw.chance(0.5))
        )
    if kind.startswith("int"):
        return _whole(draw, name, optional, hostile)
    if kind.startswith("float"):
        return _number(draw, name, optional, hostile)
    if kind.startswith("tuple"):
        return _tuple(draw, name, hostile)
    return Value(draw.one_of([5, "nonsense", object(), [], float("nan"), int, a_function]), True)


def _choice(draw: Draw, kind: str, name: str, hostile: bool) -> Value:
    if hostile:
        return Value(draw.one_of(["nonsense", "", "Auto", [], {}, object(), float("nan"), 10**400, b"auto", -7]), True)
    words = re.findall(r"['\"]([a-z_+]+)['\"]", kind)
    words += {
        "loss": ["elbo", "projected"],
        "outside": ["refuse", "clamp", "prior"],
        "bound": ["sqrt", "linear", "as_printed"],
        "start": ["kmeans++", "greedy", "random"],
        "transform": ["softplus", "log"],
        "interpolation": ["cubic", "linear"],
    }.get(name, [])
    if "int" in kind and draw.chance(0.5):
        return Value(draw.one_of([6, 8, 11]))
    return Value(draw.one_of(words) if words else True)


def _whole(draw: Draw, name: str, optional: bool, hostile: bool) -> Value:
    if not hostile:
        options = [1, 2, 3, 5, 8, 20, np.int64(4), *([None] if optional and not _LASTING.search(name) else [])]
        return Value(draw.one_of(options))
    if draw.chance(0.6):
        wrong = [2.5, float("inf"), -float("inf"), -(10**400), -3, np.array([1, 2]), *_no_numbers()]
        chosen = draw.one_of(range(len(wrong)))
        return Value(wrong[chosen], never_right=not (wrong[chosen] == -3 and name == "seed") if chosen == 4 else True)
    large = [] if _LASTING.search(name) else [2**31, 2**63, 2**64, 10**400, 10**9]
    return Value(draw.one_of([0, -1, True, 2.0, np.float64(3.0), np.int8(5), np.array(3), *large]))


def _number(draw: Draw, name: str, optional: bool, hostile: bool) -> Value:
    if not hostile:
        return Value(
            draw.one_of([1e-8, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0, np.float32(0.25), *([None] if optional else [])])
        )
    if draw.chance(0.6):
        return Value(draw.one_of([-float("inf"), -(10**400), np.array([0.1, 0.2]), *_no_numbers()]), True)
    large = [] if _LASTING.search(name) else [1e300, float("inf"), 10**400, 10**30]
    return Value(draw.one_of([-1.0, 0.0, 0, 1.0, 1.5, 5e-324, 1e-300, True, 2, np.array(0.5), *large]))


def _tuple(draw: Draw, name: str, hostile: bool) -> Value:
    if hostile:
        return Value(
            draw.one_of([5, "ab", (), (0.1,) * 7, ("a", "b"), (float("nan"),) * 2, 0.1, object(), {}, (-1, -1)]), True
        )
    return Value(draw.one_of([(5, 10), (12,)]) if "sizes" in name else draw.one_of([(0.1, 1.0), (1e-3, 1e-3)]))


def fields_of(kind: type) -> list[tuple[str, str]]:
    """Return names and annotations of the fields that the constructor of a settings class takes."""
    return [(field.name, str(field.type)) for field in dataclasses.fields(kind) if field.init]
