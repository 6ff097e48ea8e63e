"""Values for arguments: valid ones, and ones that are never valid for a kind of argument."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from dataclasses import dataclass
from typing import Any

import numpy as np

from stress.draw import Draw

#: Settings that determine the duration of a fit, for which a large number is valid but slow.
_LASTING = re.compile("restarts|steps|epochs|iterations|memory|minimum|length|maximum|base|refresh")


@dataclass(frozen=True)
class Value:
    """A value for an argument.

    Attributes
    ----------
    value : object
    never_right : bool
        Whether it must be refused in combination with any other arguments.
    """

    value: Any
    never_right: bool = False


def a_function(*arguments: object) -> int:
    """Stand for a function that was passed instead of its result."""
    return len(arguments)


def _no_numbers() -> list[Any]:
    return ["3", "", [], {}, object(), a_function, 1j, b"3", float("nan"), np.datetime64("2024-01-01"), Ellipsis, int]


@dataclass(frozen=True)
class Kind:
    """The values that a setting allows, from its annotation.

    Attributes
    ----------
    types : tuple of type
        ``int``, ``float``, ``bool`` or ``tuple``; other types are objects of the package.
    words : tuple of str
        The allowed strings.
    optional : bool
        Whether None is allowed.
    """

    types: tuple[type, ...]
    words: tuple[str, ...]
    optional: bool

    @classmethod
    def of(cls, hint: Any) -> Kind:
        """Return the kind of a resolved annotation."""
        parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        found: list[type] = []
        words: list[str] = []
        for part in parts:
            origin = typing.get_origin(part)
            if origin is typing.Literal:
                words += [word for word in typing.get_args(part) if isinstance(word, str)]
            elif origin in (typing.Union, types.UnionType):
                inner = cls.of(part)
                found, words = [*found, *inner.types], [*words, *inner.words]
            else:
                found.append(origin or part)
        return cls(tuple(one for one in found if one is not type(None)), tuple(words), type(None) in found)

    @property
    def is_plain(self) -> bool:
        """Whether this module can make values of this kind."""
        return bool(self.words) or any(one in (int, float, bool, tuple) for one in self.types)


def draw_value(draw: Draw, kind: Kind, name: str, *, hostile: bool) -> Value:
    """Return a value for a setting.

    Parameters
    ----------
    draw : Draw
    kind : Kind
    name : str
    hostile : bool
        Whether the value should be harmful; otherwise it may be valid.
    """
    if hostile and not kind.optional and draw.chance(0.08):
        return Value(None, never_right=True)
    options: list[Any] = [one for one in kind.types if one in (bool, int, float, tuple)] + (
        ["words"] if kind.words else []
    )
    chosen = draw.one_of(options) if options else None
    if chosen is bool and not hostile:
        return Value(draw.chance(0.5))
    if chosen == "words" and not hostile:
        return Value(draw.one_of(kind.words))
    if chosen is int and set(options) == {int}:
        return _whole(draw, name, kind.optional, hostile)
    if chosen is float and set(options) <= {float, "words"}:
        return _number(draw, name, kind.optional, hostile)
    if not hostile and chosen in (int, float):
        return _whole(draw, name, False, False) if chosen is int else _number(draw, name, False, False)
    if chosen is tuple and (not hostile or set(options) == {tuple}):
        return _tuple(draw, name, hostile)
    if options == [bool]:
        return Value(draw.one_of(["yes", 2, [], object(), float("nan"), -1]), True)
    return Value(draw.one_of(["nonsense", {}, object(), float("nan"), 10**400, b"auto", -7, a_function, 1j]), True)


def _whole(draw: Draw, name: str, optional: bool, hostile: bool) -> Value:
    if not hostile:
        options = [1, 2, 3, 5, 8, 20, np.int64(4), *([None] if optional and not _LASTING.search(name) else [])]
        return Value(draw.one_of(options))
    if draw.chance(0.6):
        wrong = [2.5, float("inf"), -float("inf"), -(10**400), -3, np.array([1, 2]), *_no_numbers()]
        return Value(draw.one_of(wrong), never_right=True)
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


def fields_of(kind: type) -> list[tuple[str, Kind]]:
    """Return the names and kinds of the fields that the constructor of a settings class accepts."""
    hints = typing.get_type_hints(kind)
    return [(field.name, Kind.of(hints[field.name])) for field in dataclasses.fields(kind) if field.init]
