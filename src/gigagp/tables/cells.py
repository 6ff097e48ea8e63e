"""Checks of the cells of a table, which must be real finite numbers, and errors that name the invalid cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigagp.errors import CellTypeError, InvalidInputError

#: A number as tables write it. Python's `float` also accepts ``1_000`` and digits of any script.
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE)
#: Type names of empty cells (pandas has its own types), so that pandas need not be imported.
_EMPTY = {"NoneType", "NAType", "NaTType"}
_SHOWN = 40


def is_number(text: str) -> bool:
    """Whether a cell's text is a number, NaN or infinity: only digits 0 to 9, a decimal point and an exponent."""
    return _NUMBER.fullmatch(text.strip(" \t\r\n")) is not None


def number_hint(text: str) -> str:
    """Return a hint for text that resembles a number but is not one, with a leading space, or an empty string."""
    if is_number(text.replace(",", ".", 1)):
        return " A decimal point is needed, not a comma, and no separator of thousands."
    if is_number(re.sub(r"[,_' \u00a0\u2009\u202f]", "", text)):
        return " Write it without separators of thousands."
    if text.strip().isdecimal():
        return " Write it in the digits 0 to 9."
    return ""


def shown(cell: Any) -> str:
    """Return a short representation of a cell for a message."""
    text = repr(cell.item() if isinstance(cell, np.generic) else cell)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


@dataclass(frozen=True)
class Place:
    """The location of cells, for messages.

    ``columns`` has the columns' names, None for their numbers, and ``first_row`` is the number of the first row.
    ``advice`` is what to do about cells that are not finite, and ``otherwise`` what to do about those that cannot be
    turned into numbers.
    """

    name: str
    columns: Sequence[Any] | None = None
    first_row: int = 0
    advice: str = "Drop or fill these rows first."
    otherwise: str = "leave the column out"

    def of(self, index: Sequence[int]) -> str:
        """Return the location of the cell with this index."""
        if len(index) == 0:
            return ""
        row = f"row {self.first_row + int(index[0])} (counted from 0)"
        if len(index) == 1 and self.columns is None:
            return f" in {row}"
        column = 0 if len(index) == 1 else int(index[1])
        label = str(column) if self.columns is None else repr(self.columns[column])
        return f" in column {label}, {row}"

    def or_otherwise(self, index: Sequence[int]) -> str:
        """Return the end of an advice on a cell of a row or column; a number alone cannot be left out."""
        return f", or {self.otherwise}" if len(index) else ""

    def not_finite(self, what: str, index: Sequence[int], count: int) -> InvalidInputError:
        """Return the error for cells that are not finite numbers."""
        msg = f"{self.name} must be finite; got {what}{self.of(index)}"
        if len(index) == 0:
            return InvalidInputError(f"{msg}.")
        return InvalidInputError(f"{msg}, {count} such cells in all. {self.advice}")

    def not_a_number(self, what: str, index: Sequence[int], advice: str) -> InvalidInputError:
        """Return the error for a cell that is not a number."""
        return InvalidInputError(f"{self.name} must hold real numbers; got {what}{self.of(index)}. {advice}")


def refuse_masked(values: np.ndarray, place: Place) -> np.ndarray:
    """Return the numbers of an array; raise `InvalidInputError` for its first masked cell, if there is one."""
    if not isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    if values.dtype.names is None and (masked := np.ma.getmaskarray(values)).any():
        first = np.argwhere(masked)[0]
        raise place.not_finite("a masked cell", first, int(masked.sum()))
    return np.asarray(np.ma.getdata(values))


def refuse_not_finite(values: np.ndarray, place: Place) -> np.ndarray:
    """Return the numbers; raise `InvalidInputError` for the first row that contains NaN or infinity."""
    with np.errstate(all="ignore"):
        # A sum may overflow, but NaN and infinity never give a finite one; this check needs no memory.
        if bool(np.isfinite(values.sum())) or np.isfinite(values).all():
            return values
    bad = ~np.isfinite(values)
    first = np.argwhere(bad)[0]
    what = "NaN" if np.isnan(values[tuple(first)]) else "infinity"
    raise place.not_finite(what, first, int(bad.sum()))


def to_floats(values: np.ndarray, place: Place) -> np.ndarray:
    """Return cells as float64: numbers, booleans, and text that is a number; NaN and infinity pass.

    64-bit integers above 2**53 are rounded, as NumPy rounds them. Raises `InvalidInputError` for the first other cell.
    """
    values = refuse_masked(values, place)
    kind = values.dtype.kind
    if kind in "biuf":
        with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinity, which is rejected later
            return values.astype(np.float64, copy=False)
    if kind in "OU":
        return _from_objects(values, place)
    if kind == "c":
        raise InvalidInputError(f"{place.name} must hold real numbers; got {values.dtype}. Complex data not supported.")
    what = {"M": "dates", "m": "time spans", "S": "bytes", "V": "records", "T": "strings"}.get(kind, str(values.dtype))
    index = (0,) * values.ndim if values.size else ()
    raise place.not_a_number(f"{what} ({values.dtype})", index, f"Turn them into numbers{place.or_otherwise(index)}.")


def _from_objects(values: np.ndarray, place: Place) -> np.ndarray:
    if values.dtype == object and set(map(type, values.flat)) <= {float, int, bool}:
        try:
            return values.astype(np.float64)
        except OverflowError:
            pass  # one of them is too large; the loop below finds it
    found = np.empty(values.shape)
    for index, cell in np.ndenumerate(values):
        found[index] = _from_object(cell, index, place)
    return found


def _from_object(cell: Any, index: tuple[int, ...], place: Place) -> float:
    if isinstance(cell, str):
        if not cell.strip():
            raise place.not_finite("an empty text", index, 1)
        if is_number(cell):
            return float(cell)
        advice = f"Convert text to numbers{place.or_otherwise(index)}.{number_hint(cell)}"
        raise place.not_a_number(f"the text {shown(cell)}", index, advice)
    if type(cell).__name__ in _EMPTY or cell is np.ma.masked:
        raise place.not_finite(f"an empty cell ({type(cell).__name__})", index, 1)
    if isinstance(cell, list | tuple) or (isinstance(cell, np.ndarray) and cell.ndim):
        raise place.not_a_number(f"{len(cell)} cells", index, "Rows must have the same number of cells.")
    if isinstance(cell, complex | np.complexfloating):
        msg = f"{place.name} must hold real numbers; got {shown(cell)}{place.of(index)}. Complex data not supported."
        raise InvalidInputError(msg)
    try:
        if isinstance(cell, bytes | bytearray | memoryview):  # float would parse these
            raise TypeError
        return float(cell)
    except OverflowError:
        raise place.not_a_number(f"{shown(cell)} (too large for float64)", index, "Scale it down.") from None
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        raise CellTypeError(
            f"{place.name}: the argument must be a string or a real number in every cell; got {shown(cell)} of type "
            f"{type(cell).__name__}{place.of(index)}. Convert it to a number{place.or_otherwise(index)}."
        ) from None
