"""What `Search` may choose from: real inputs, integers and categories, and how the model sees them."""

from __future__ import annotations

import math
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from numbers import Integral, Real
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.kernels import Categorical, Constant, Kernel, White
from gigagp.kernels.composite import Composite
from gigagp.kernels.leaf import Leaf
from gigagp.settings.brief import short
from gigagp.tables import intake

#: Distance in widths of the box within which two points are the same.
SAME = 1e-9
#: Largest absolute value of an integer input, so that rounding in float64 returns it, and the widest range, in which
#: neighbours are farther apart than `SAME`.
_LARGEST, _WIDEST = 10**12, 10**7
#: What a user gives and gets: arrays (k, d) for bounds without names, and dictionaries for named ones.
Points = np.ndarray | list[dict[str, Any]]


class Input(ABC):
    """One input: ``width`` columns of the rows that the model sees, and ``n_values`` different values."""

    width: int = 1
    n_values: float

    @abstractmethod
    def spread(self, u: np.ndarray) -> np.ndarray:
        """Return the columns (m, width) of shares (m,) from 0 to 1, each value with its share of them."""

    @abstractmethod
    def shares(self, columns: np.ndarray) -> np.ndarray:
        """Return the shares that `spread` takes to these columns."""

    @abstractmethod
    def columns_of(self, value: Any) -> list[float]:
        """Return the columns of a value; raise `ValueError` for one that is not allowed."""

    @abstractmethod
    def value_of(self, columns: np.ndarray) -> Any:
        """Return the value with these columns, shape (width,)."""

    def others(self, columns: np.ndarray) -> np.ndarray:
        """Return columns of neighbouring values, shape (k, width); none for real inputs."""
        return np.zeros((0, self.width))

    @abstractmethod
    def to_plain(self) -> list[Any]:
        """Return the bounds as they may be given, in lists."""

    @abstractmethod
    def describe(self) -> str:
        """Return what is allowed, in words."""


@dataclass(frozen=True)
class Range(Input):
    """Real numbers from ``lower`` to ``upper``, on a log scale with ``log``."""

    lower: float
    upper: float
    log: bool = False
    n_values = math.inf

    def spread(self, u: np.ndarray) -> np.ndarray:
        return u[:, None]

    def shares(self, columns: np.ndarray) -> np.ndarray:
        return columns[:, 0]

    def columns_of(self, value: Any) -> list[float]:
        if isinstance(value, bool | np.bool_) or not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(value)
        place = self._place(float(value))
        if not -SAME <= place <= 1 + SAME:
            raise ValueError(value)
        return [min(max(place, 0.0), 1.0)]

    def value_of(self, columns: np.ndarray) -> Any:
        return min(max(self._number(float(columns[0])), self.lower), self.upper)

    def to_plain(self) -> list[Any]:
        return [self.lower, self.upper] + ["log"] * self.log

    def describe(self) -> str:
        return f"a number from {self.lower:g} to {self.upper:g}{' (log)' * self.log}"

    def _place(self, value: float) -> float:
        if self.log:
            return math.log(value / self.lower) / math.log(self.upper / self.lower) if value > 0 else -math.inf
        return (value - self.lower) / (self.upper - self.lower)

    def _number(self, place: float) -> float:
        if self.log:
            return self.lower * math.exp(place * math.log(self.upper / self.lower))
        return self.lower + place * (self.upper - self.lower)


@dataclass(frozen=True)
class Integers(Range):
    """Integers from ``lower`` to ``upper``; the model sees none between them."""

    @property
    def n_values(self) -> float:  # type: ignore[override]
        """Number of integers."""
        return self.upper - self.lower + 1

    def spread(self, u: np.ndarray) -> np.ndarray:
        low, high = self._edges()
        numbers = low + u * (high - low)
        return self._columns(np.exp(numbers) if self.log else numbers)

    def shares(self, columns: np.ndarray) -> np.ndarray:
        low, high = self._edges()
        numbers = np.array([self._number(float(place)) for place in columns[:, 0]])
        return ((np.log(numbers) if self.log else numbers) - low) / (high - low)

    def columns_of(self, value: Any) -> list[float]:
        place = super().columns_of(value)
        if value != round(value):
            raise ValueError(value)
        return place

    def value_of(self, columns: np.ndarray) -> Any:
        return round(super().value_of(columns))

    def others(self, columns: np.ndarray) -> np.ndarray:
        """Return the columns of integers at distances 1, 2, 4, ... on both sides."""
        here = self.value_of(columns)
        steps = 2.0 ** np.arange(math.ceil(math.log2(self.n_values)))
        numbers = here + np.concatenate([-steps, steps])
        return self._columns(numbers[(numbers >= self.lower) & (numbers <= self.upper)])

    def to_plain(self) -> list[Any]:
        return [int(self.lower), int(self.upper)] + ["log"] * self.log

    def describe(self) -> str:
        return f"an integer from {self.lower:.0f} to {self.upper:.0f}{' (log)' * self.log}"

    def all_columns(self) -> np.ndarray:
        """Return the columns of all integers, shape (n_values, 1)."""
        return self._columns(np.arange(self.lower, self.upper + 1))

    def _edges(self) -> tuple[float, float]:
        """Return where the first integer begins and the last one ends, half a step beyond, on the scale."""
        low, high = self.lower - 0.5, self.upper + 0.5
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def _columns(self, numbers: np.ndarray) -> np.ndarray:
        whole = numbers.round().clip(self.lower, self.upper)
        return np.array([[self._place(one)] for one in whole.tolist()]).reshape(-1, 1)


@dataclass(frozen=True)
class Choice(Input):
    """One of several values without an order, which the model sees as one-hot columns."""

    values: tuple[Any, ...]

    @property
    def width(self) -> int:  # type: ignore[override]
        """Number of one-hot columns."""
        return len(self.values)

    @property
    def n_values(self) -> float:  # type: ignore[override]
        """Number of categories."""
        return len(self.values)

    def spread(self, u: np.ndarray) -> np.ndarray:
        return self.all_columns()[(u * len(self.values)).astype(int).clip(0, len(self.values) - 1)]

    def shares(self, columns: np.ndarray) -> np.ndarray:
        found: np.ndarray = (columns.argmax(1) + 0.5) / len(self.values)
        return found

    def columns_of(self, value: Any) -> list[float]:
        given = _plain(value)
        found = [float(_same_value(given, one)) for one in self.values]
        if not any(found):
            raise ValueError(value)
        return found

    def value_of(self, columns: np.ndarray) -> Any:
        return self.values[int(columns.argmax())]

    def others(self, columns: np.ndarray) -> np.ndarray:
        """Return the columns of all other values."""
        return np.delete(self.all_columns(), int(columns.argmax()), 0)

    def to_plain(self) -> list[Any]:
        return [list(self.values)]

    def describe(self) -> str:
        return f"one of {short(list(self.values))}"

    def all_columns(self) -> np.ndarray:
        """Return the columns of all values, shape (n_values, n_values)."""
        return np.eye(len(self.values))


class Space:
    """The inputs of a search: between the users' points and rows (m, width), which the model sees.

    A real number or an integer is a column, its place between its bounds from 0 to 1, and a category has a column for
    each value.

    Parameters
    ----------
    bounds : array-like of shape (d, 2), or mapping of str to tuple or list
        As given to `Search`.
    feasible : callable or None
        Whether a point, as users have it, may be asked for.

    Raises
    ------
    InvalidInputError
        If they are no bounds.
    """

    def __init__(self, bounds: Any, feasible: Callable[[Any], Any] | None = None) -> None:
        if feasible is not None and not callable(feasible):
            msg = "feasible of Search must be a function of a point that returns True or False"
            raise InvalidInputError(f"{msg}; got {short(feasible)}.")
        self._feasible = feasible
        self.names: tuple[str, ...] | None = None
        if isinstance(bounds, Mapping):
            self.inputs = tuple(_named_input(name, one) for name, one in bounds.items())
            self.names = tuple(bounds)
            if not self.inputs:
                raise InvalidInputError("bounds of Search must have at least one input; got an empty dictionary.")
        else:
            self.inputs = _unnamed_inputs(bounds)
        self.width = sum(one.width for one in self.inputs)
        ends = np.cumsum([one.width for one in self.inputs]).tolist()
        self._parts = [(one, slice(end - one.width, end)) for one, end in zip(self.inputs, ends, strict=True)]
        self.is_real = np.concatenate([np.full(one.width, one.n_values == math.inf) for one in self.inputs])
        self.n_points = math.prod(one.n_values for one in self.inputs)

    def spread(self, U: np.ndarray) -> np.ndarray:
        """Return rows of shares (m, d) from 0 to 1; equally spread shares give each value equally often."""
        return np.concatenate([one.spread(U[:, k]) for k, one in enumerate(self.inputs)], 1)

    def shares(self, rows: np.ndarray) -> np.ndarray:
        """Return the shares (m, d) of rows, so that `spread` returns the rows."""
        return np.stack([one.shares(rows[:, part]) for one, part in self._parts], 1)

    def neighbours(self, row: np.ndarray) -> np.ndarray:
        """Return the rows that differ from a row in one integer or category, shape (k, width)."""
        found = [np.zeros((0, self.width))]
        for one, part in self._parts:
            others = one.others(row[part])
            rows = np.repeat(row[None], len(others), 0)
            rows[:, part] = others
            found.append(rows)
        return np.concatenate(found)

    @property
    def no_rows(self) -> np.ndarray:
        """No row, shape (0, width)."""
        return np.zeros((0, self.width))

    @cached_property
    def all_rows(self) -> np.ndarray:
        """The rows of all points of a space without real inputs, shape (n_points, width)."""
        parts = [one.all_columns() for one in self.inputs if isinstance(one, Integers | Choice)]
        return np.array([np.concatenate(row) for row in product(*parts)])

    @property
    def constrained(self) -> bool:
        """Whether some points must not be asked for."""
        return self._feasible is not None

    def allows(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each row may be asked for, shape (m,)."""
        if self._feasible is None:
            return np.ones(len(rows), dtype=bool)
        found = np.zeros(len(rows), dtype=bool)
        for k, point in enumerate(self.points(rows)):
            answer = self._feasible(point)
            if not isinstance(answer, bool | np.bool_):
                msg = f"feasible of Search must return True or False; got {short(answer)} for {point!r}."
                raise InvalidInputError(msg)
            found[k] = answer
        return found

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return a kernel of the rows: the given one for the numbers, times one for each category.

        ``columns`` of the given kernel are numbers of inputs.
        """
        factors = [
            Categorical(columns=list(range(part.start, part.stop)), fixed=["variance"])
            for one, part in self._parts
            if isinstance(one, Choice)
        ]
        if not factors:
            return kernel
        if len(factors) == len(self.inputs):  # the first one has the variance of all
            first = Categorical(columns=factors[0].columns)
            return reduce(operator.mul, factors[1:], first)
        return reduce(operator.mul, factors, self._of_numbers(kernel))

    def _of_numbers(self, kernel: Kernel) -> Kernel:
        if isinstance(kernel, Composite):
            return kernel.with_parts(tuple(self._of_numbers(part) for part in kernel.parts))
        if not isinstance(kernel, Leaf) or isinstance(kernel, Constant | White):
            return kernel
        numbers = [k for k, one in enumerate(self.inputs) if not isinstance(one, Choice)]
        chosen = numbers if kernel.columns is None else kernel.columns
        if not set(chosen) <= set(numbers):
            owner = type(kernel).__name__
            msg = f"columns of {owner} of the regressor of Search must be inputs that are not categorical, {numbers}"
            raise InvalidInputError(f"{msg}; got {list(chosen)}.")
        return kernel.with_groups(list(range(len(chosen))), [self._parts[k][1].start for k in chosen])

    # Points as users have them ----------------------------------------------------------------------------------------

    def points(self, rows: np.ndarray) -> Points:
        """Return rows as users have them: an array (m, d), or dictionaries."""
        if self.names is None:
            lower, upper = self._box
            found: np.ndarray = (lower + rows * (upper - lower)).clip(lower, upper)  # not beyond them by rounding
            return found
        values = [[one.value_of(row[part]) for one, part in self._parts] for row in rows]
        return [dict(zip(self.names, row, strict=True)) for row in values]

    def rows(self, x: Any, name: str) -> np.ndarray:
        """Return points as rows, shape (m, width); a single point is one row."""
        if self.names is None:
            return self._rows_of_arrays(x, name)
        points = self._values_of_dictionaries(x, name)
        found = np.empty((len(points), self.width))
        for row, point in zip(found, points, strict=True):
            for label, value, (one, part) in zip(self.names, point, self._parts, strict=True):
                try:
                    row[part] = one.columns_of(value)
                except (ValueError, OverflowError):
                    msg = f"{name} must have {one.describe()} for {label!r}; got {short(value)}."
                    raise InvalidInputError(msg) from None
        return found

    @property
    def _box(self) -> np.ndarray:
        return np.array([[one.lower, one.upper] for one in self.inputs if isinstance(one, Range)]).T

    def _rows_of_arrays(self, x: Any, name: str) -> np.ndarray:
        points = intake.numbers(x, name)
        points = points[None] if points.ndim == 1 else points
        d = len(self.inputs)
        if points.ndim != 2 or points.shape[1] != d:
            raise InvalidInputError(f"{name} must have shape ({d},) or (k, {d}); got {np.shape(x)}.")
        lower, upper = self._box
        unit = (points - lower) / (upper - lower)
        outside = ~((unit >= -SAME) & (unit <= 1 + SAME)).all(1)
        if outside.any():
            raise InvalidInputError(f"{name} must lie within the bounds; got {points[outside][0].tolist()}.")
        return unit.clip(0.0, 1.0)

    def _values_of_dictionaries(self, x: Any, name: str) -> list[list[Any]]:
        assert self.names is not None
        found = []
        for point in [x] if isinstance(x, Mapping) else x if isinstance(x, list | tuple) else [x]:
            if not isinstance(point, Mapping):
                msg = f"{name} must be a dictionary, or a list of them, as ask returns; got {short(point)}."
                raise InvalidInputError(msg)
            for key in [*point, *self.names]:
                if key not in self.names or key not in point:
                    what = "is no input of this search" if key in point else "is missing"
                    names = ", ".join(map(repr, self.names))
                    raise InvalidInputError(f"{name} must have the inputs {names}, and no others; {key!r} {what}.")
            found.append([point[key] for key in self.names])
        return found

    # Words and files --------------------------------------------------------------------------------------------------

    def to_plain(self) -> Any:
        """Return the bounds as plain lists, which are equal for equal spaces."""
        plain = [one.to_plain() for one in self.inputs]
        return plain if self.names is None else dict(zip(self.names, plain, strict=True))

    def describe(self) -> list[str]:
        """Return for each input what it may be."""
        names = self.names or [f"input {k}" for k in range(len(self.inputs))]
        return [f"{name}: {one.describe()}" for name, one in zip(names, self.inputs, strict=True)]


def _unnamed_inputs(bounds: Any) -> tuple[Range, ...]:
    found = intake.numbers(bounds, "bounds of Search")
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        msg = f"bounds of Search must be pairs (lower, upper), one for each input; got shape {found.shape}. "
        raise InvalidInputError(f"{msg}For integers and categories give a dictionary.")
    for k, (lower, upper) in enumerate(found.tolist()):
        if not lower < upper or not math.isfinite(upper - lower):
            msg = f"bounds of Search must have lower < upper; got {[lower, upper]} for input {k}."
            raise InvalidInputError(msg)
    return tuple(Range(*pair) for pair in found.tolist())


def _named_input(name: Any, given: Any) -> Input:
    if not isinstance(name, str):
        raise InvalidInputError(f"bounds of Search must have strings as names; got {name!r}.")
    where = f"bounds of Search for {name!r} must"
    if isinstance(given, list):
        return _choice(given, where)
    ends = given[:2] if isinstance(given, tuple) else ()
    numeric = [isinstance(one, Real) and not isinstance(one, bool | np.bool_) for one in ends]
    if numeric != [True, True] or given[2:] not in ((), ("log",)):
        allowed = '(lower, upper), (lower, upper, "log") or a list of categories'
        raise InvalidInputError(f"{where} be {allowed}; got {short(given)}.")
    lower, upper = ends
    whole = all(isinstance(one, Integral) for one in ends)
    if whole and (max(abs(lower), abs(upper)) > _LARGEST or abs(upper - lower) > _WIDEST):
        msg = f"{where} be integers up to 10^12, and at most 10^7 apart; got {short(given)}"
        raise InvalidInputError(f"{msg}. Give floats for a real input.")
    if not lower < upper or not max(abs(lower), abs(upper)) <= sys.float_info.max / 2:
        raise InvalidInputError(f"{where} have finite lower < upper; got {short(given)}.")
    log = len(given) == 3
    if log and lower <= 0:
        raise InvalidInputError(f'{where} be positive with "log"; got {short(given)}.')
    return (Integers if whole else Range)(float(lower), float(upper), log)


def _choice(given: list[Any], where: str) -> Choice:
    values = tuple(_plain(one) for one in given)
    odd = [one for one in values if not (one is None or isinstance(one, str | bool | int | float)) or one != one]
    if odd:
        raise InvalidInputError(f"{where} have categories of strings, numbers, booleans or None; got {short(odd)}.")
    if len(values) < 2 or any(_same_value(one, two) for k, one in enumerate(values) for two in values[:k]):
        raise InvalidInputError(f"{where} have at least two categories, all different; got {short(given)}.")
    return Choice(values)


def _plain(value: Any) -> Any:
    """Return a value as Python's own, not NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _same_value(one: Any, other: Any) -> bool:
    """Whether two categories are the same; True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and type(one == other) is bool and one == other
