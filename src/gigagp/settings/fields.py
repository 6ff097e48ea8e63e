"""Declarative checks of settings: the type of a field determines its check and its error message.

::

    @dataclass(frozen=True)
    class Descent(Settings):
        steps: Count = 100                                  # an int of at least 1
        learning_rate: Positive | Literal["auto"] = "auto"
        share: Annotated[float, Range(above=0, most=1), Remedy("1 keeps the rate.")] = 1.0

        def __post_init__(self) -> None:                    # only if fields depend on each other
            super().__post_init__()

An ``int`` is any integer that a tensor can store, including NumPy integers, but never a bool. A ``float`` is any finite
real number. Both are converted to Python's types, and a list to a tuple. `checks_arguments` checks the arguments of a
function in the same way, and `check_parameters` those of an estimator.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.settings.brief import changed_fields

P = ParamSpec("P")
R = TypeVar("R")

_REFUSED = object()
#: Largest number of bits of an integer, which has to fit into a tensor.
_INT_BITS = 63
#: Largest number of characters of a value in an error message.
_SHOWN = 200


@dataclass(frozen=True)
class Range:
    """Bounds of a number: ``least`` and ``most`` are inclusive, ``above`` and ``below`` exclusive; None: no bound."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def allows(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def describe(self, noun: str) -> str:
        """Return the allowed values in words: "an int of at least 1", "a number above 0 and at most 1"."""
        if self == Range(above=0) and noun == "a number":
            return "a positive number"
        if self.least is not None and self.most is not None:
            return f"{noun} from {self.least:g} to {self.most:g}"
        if self.least is not None and self.below is not None:
            return f"{noun} from {self.least:g} to below {self.below:g}"
        if self.above is not None and self.below is not None:
            return f"{noun} between {self.above:g} and {self.below:g}"
        words = {"of at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return f"{noun} " + " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)


@dataclass(frozen=True)
class Even:
    """An even number."""

    def allows(self, value: int) -> bool:
        """Whether a number is even."""
        return value % 2 == 0

    def describe(self, noun: str) -> str:
        """Return the allowed values in words."""
        return noun.replace("an int", "an even int", 1)


@dataclass(frozen=True)
class Length:
    """The least number of items of a tuple."""

    least: int

    def allows(self, value: Sequence[object]) -> bool:
        """Whether there are enough items."""
        return len(value) >= self.least

    def describe(self, noun: str) -> str:
        """Return the allowed values in words."""
        return f"{noun}, {'one item' if self.least == 1 else f'{self.least} items'} at least"


class OneOf:
    """A choice of numbers, because ``Literal`` does not allow floats."""

    def __init__(self, *choices: float) -> None:
        self.choices = choices

    def allows(self, value: float) -> bool:
        """Whether a number is one of the choices."""
        return value in self.choices

    def describe(self, noun: str) -> str:
        """Return the choices."""
        return f"one of {', '.join(map(repr, self.choices))}"


@dataclass(frozen=True)
class _Text:
    """A text for error messages, which allows every value."""

    text: str

    def allows(self, value: object) -> bool:
        """Return True."""
        return True

    def describe(self, noun: str) -> str:
        """Return the allowed values in words."""
        return noun


class Words(_Text):
    """A description that replaces the one derived from the type in error messages."""

    def describe(self, noun: str) -> str:
        return self.text


class Remedy(_Text):
    """Advice that follows the value in error messages."""


#: Numbers of items.
Count = Annotated[int, Range(least=1)]
CountOrZero = Annotated[int, Range(least=0)]
#: An even number of columns, for pairs of sine and cosine.
Pairs = Annotated[int, Range(least=2), Even()]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
#: Numbers in (0, 1), (0, 1], [0, 1] and [0, 1).
Fraction = Annotated[float, Range(above=0, below=1)]
PositiveShare = Annotated[float, Range(above=0, most=1)]
Share = Annotated[float, Range(least=0, most=1)]
ShareBelowOne = Annotated[float, Range(least=0, below=1)]


class Settings:
    """Base of settings dataclasses, whose fields are checked against their types.

    A class whose fields depend on each other defines ``__post_init__`` and calls this one first.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """Give each class the short repr, which a dataclass would replace by one of all its fields."""
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:
            cls.__repr__ = Settings.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Return the constructor call with the arguments that differ from their defaults."""
        return changed_fields(self)

    def __post_init__(self) -> None:
        for name, hint in field_hints(type(self)).items():  # type: ignore[arg-type]  # types are hashable
            given = getattr(self, name)
            found = checked(given, hint, name, type(self).__name__)
            if found is not given:
                object.__setattr__(self, name, found)


@cache
def field_hints(cls: type[Any]) -> Mapping[str, Any]:
    """Return the annotated types of the fields of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


@cache
def _parameter_hints(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any]]:
    """Return a function's signature, and the types of those of its parameters that are settings instead of data."""
    signature, hints = inspect.signature(function), {}
    names = inspect.unwrap(function).__globals__
    for name, parameter in signature.parameters.items():
        hint = parameter.annotation
        try:
            hint = eval(hint, names) if isinstance(hint, str) else hint
        except NameError:  # imported only for type checking: the class of an object
            continue
        if _is_plain(hint):
            hints[name] = hint
    return signature, hints


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a public function against the types of its parameters.

    Only parameters whose types consist of numbers, strings, choices, paths and callables are checked; the function
    checks the others itself.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        signature, hints = _parameter_hints(function)
        bound = signature.bind(*args, **kwargs)
        owner = function.__qualname__.split(".<locals>.")[-1]
        if "." in owner:  # a method of an object or of a class
            me = next(iter(bound.arguments.values()))
            owner = (me if isinstance(me, type) else type(me)).__name__
            owner = owner if function.__name__ == "__init__" else f"{owner}.{function.__name__}"
        for name, hint in hints.items():
            if name in bound.arguments:
                bound.arguments[name] = checked(bound.arguments[name], hint, name, owner)
        return function(*bound.args, **bound.kwargs)

    return call


def check_parameters(estimator: Any) -> None:
    """Check the constructor arguments of a scikit-learn estimator against the types of the constructor's parameters.

    The values are not converted, because scikit-learn's `clone` requires them unchanged.
    """
    hints = get_type_hints(type(estimator).__init__, include_extras=True)
    for name, value in estimator.get_params(deep=False).items():
        checked(value, hints[name], name, type(estimator).__name__)


def number_with_unit(text: str, units: Mapping[str, float]) -> float | None:
    """Return the size of a text such as ``"2 GiB"``; None if it is not a number with one of the units, or alone.

    The units have their sizes by names in lower case; "" is that of a number alone.
    """
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


def checked(value: Any, hint: Any, name: str, owner: str) -> Any:
    """Return a value converted to its type, or refuse it: ``name of owner must be ...; got ...``."""
    found = _converted(value, hint)
    if found is not _REFUSED:
        return found
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    remedy = " ".join(["", *(mark.text for mark in marks if isinstance(mark, Remedy))])
    raise InvalidInputError(f"{name} of {owner} must be {describe(hint)}; got {shown(value)}.{remedy}")


def _converted(value: Any, hint: Any) -> Any:
    """Return a value converted to a type, or `_REFUSED` if it does not have that type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        found = _converted(value, arguments[0])
        return found if found is not _REFUSED and all(mark.allows(found) for mark in arguments[1:]) else _REFUSED
    if origin in (Union, types.UnionType):
        return next((found for arm in arguments if (found := _converted(value, arm)) is not _REFUSED), _REFUSED)
    if origin is Literal:  # distinguishes 1 from True
        same = (choice for choice in arguments if isinstance(value, type(choice)) and value == choice)
        return next((choice for choice in same if isinstance(choice, bool) == isinstance(value, bool)), _REFUSED)
    if origin in (tuple, Sequence):
        return _converted_items(value, arguments)
    if hint in _SCALARS:
        return _SCALARS[hint](value)
    if origin is Callable or hint is Callable:
        return value if callable(value) else _REFUSED
    return value if isinstance(value, origin or hint) else _REFUSED


def _converted_items(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, tuple | list):
        return _REFUSED
    if len(kinds) == 1 or kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return _REFUSED
    found = tuple(_converted(item, kind) for item, kind in zip(value, kinds, strict=True))
    if any(item is _REFUSED for item in found):
        return _REFUSED
    unchanged = isinstance(value, tuple) and all(new is old for new, old in zip(found, value, strict=True))
    return value if unchanged else found


def _none(value: Any) -> Any:
    return value if value is None else _REFUSED


def _bool(value: Any) -> Any:
    return bool(value) if isinstance(value, bool | np.bool_) else _REFUSED


def _int(value: Any) -> Any:
    if not isinstance(value, Integral) or isinstance(value, bool):
        return _REFUSED
    number = int(value)
    return number if number.bit_length() <= _INT_BITS else _REFUSED


def _float(value: Any) -> Any:
    if not isinstance(value, Real) or isinstance(value, bool):
        return _REFUSED
    try:
        number = float(value)
    except OverflowError:
        return _REFUSED
    return number if math.isfinite(number) else _REFUSED


def _str(value: Any) -> Any:
    return str(value) if isinstance(value, str) else _REFUSED


_SCALARS: dict[Any, Callable[[Any], Any]] = {type(None): _none, bool: _bool, int: _int, float: _float, str: _str}
_NOUNS = {type(None): "None", bool: "True or False", int: "an int", float: "a number", str: "a text"}


def _is_plain(hint: Any) -> bool:
    """Whether a type consists only of numbers, strings, choices, paths and callables."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is_plain(arguments[0]) or any(isinstance(mark, Words) for mark in arguments[1:])
    if origin in (Union, types.UnionType, tuple):  # a sequence may be an array
        return all(_is_plain(part) for part in arguments if part is not Ellipsis)
    return hint in _SCALARS or origin in (Literal, os.PathLike, Callable)


def describe(hint: Any) -> str:
    """Return the values that a type allows, in words."""
    parts = list(dict.fromkeys(_alternatives(hint)))
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _alternatives(hint: Any) -> list[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [text for arm in arguments for text in _alternatives(arm)]
    if origin is Literal:
        return [f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in arguments]
    if origin is Annotated:
        if all(isinstance(mark, Remedy) for mark in arguments[1:]):
            return _alternatives(arguments[0])
        text = describe(arguments[0])
        for mark in arguments[1:]:
            text = mark.describe(text)
        return [text]
    if origin in (tuple, Sequence):
        if len(arguments) == 1 or arguments[-1] is Ellipsis:
            return [f"a tuple, each item {describe(arguments[0])}"]
        return [f"{len(arguments)} items ({', '.join(describe(part) for part in arguments)})"]
    if hint in _NOUNS:
        return [_NOUNS[hint]]
    if origin is os.PathLike:
        return ["a path"]
    if origin is Callable or hint is Callable:
        return ["a function"]
    if inspect.isabstract(hint):
        return [f"one of {'.'.join(hint.__module__.split('.')[:2])}"]
    return [(origin or hint).__name__]


def shown(value: object) -> str:
    """Return a value as error messages show it: on one line and shortened."""
    if isinstance(value, int) and value.bit_length() > _INT_BITS:
        return f"an int of {value.bit_length():,} bits, more than the {_INT_BITS} that are supported"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its repr may raise anything
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
