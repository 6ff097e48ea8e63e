"""One column of any type, read as numbers, dates or categories."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigagp.cells import Place, is_number, number_hint, shown
from gigagp.errors import CellTypeError, InvalidInputError

#: What a column holds. Truth values are categories.
Kind = Literal["number", "date", "category"]

SECONDS_A_DAY = 86400.0
_EPOCH = datetime(1970, 1, 1)
#: Dates and times as ISO 8601 writes them.
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?")
#: Dates that cannot be told apart from others with day and month exchanged.
_OTHER_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(?:[T ].*)?")
_TRUTH = {"true": ("true", "True", "TRUE"), "false": ("false", "False", "FALSE")}


@dataclass(frozen=True)
class Cells:
    """The cells of one column.

    Attributes
    ----------
    kind : {"number", "date", "category"}
    values : ndarray of shape (n,)
        Float64. Numbers; seconds since 1970 of dates; positions in ``texts`` of categories. NaN: a missing cell.
    texts : list of str
        The different categories.
    is_declared : bool
        Whether the table itself says that these are categories, by the type of the column.
    """

    kind: Kind
    values: np.ndarray
    texts: Sequence[str] = ()
    is_declared: bool = False

    @property
    def missing(self) -> np.ndarray:
        """Which cells are missing, shape (n,)."""
        return np.isnan(self.values)


def read_cells(column: Any, place: Place, wanted: Kind | None = None) -> Cells:
    """Read one column.

    Parameters
    ----------
    column : ndarray of shape (n,), or a column of a data frame
        Of any type. None, NaN, masked cells, and empty texts are missing cells.
    place : Place
        The location of the column, for messages.
    wanted : {"number", "date", "category"}, optional
        What the column was in the table of the fit. None: by its type. Texts are numbers if all of them are, dates if
        all are as ISO 8601 has them (2024-03-31, 2024-03-31 14:30), and categories otherwise.

    Raises
    ------
    InvalidInputError
        If cells of different types are mixed, a cell is not what is wanted, infinite, or of a type that has no use.
    """
    values = _as_arrow(column, place)
    kind = values.type
    if pa.types.is_null(kind):
        return Cells(wanted or "number", np.full(len(values), np.nan))
    if pa.types.is_dictionary(kind):
        if wanted in (None, "category"):
            return _categories(values, declared=True)
        values = values.cast(kind.value_type)
        kind = values.type
    if pa.types.is_boolean(kind):
        if wanted == "number":
            return Cells("number", _floats(values.cast(pa.uint8()), place))
        return _checked(_categories(values.dictionary_encode(), declared=True), place, wanted, str(kind))
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        if wanted == "category":
            return _categories(values.dictionary_encode(), declared=True)
        return _checked(Cells("number", _floats(values, place)), place, wanted, str(kind))
    if pa.types.is_duration(kind):
        days = _numpy(values.cast(pa.duration("us"), safe=False).cast(pa.int64())) / (1e6 * SECONDS_A_DAY)
        return _checked(Cells("number", days), place, wanted, str(kind))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _checked(Cells("date", _seconds(values)), place, wanted, str(kind))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _texts(values, place, wanted)
    msg = (
        f"{place.name} has values of type {kind}{place.of((0,)).partition(', row')[0]}. Columns may hold numbers, "
        "texts, truth values, dates and time spans: turn it into one of these, or leave it out."
    )
    raise CellTypeError(msg)


# Any container as an Arrow array ------------------------------------------------------------------------------------


def _as_arrow(column: Any, place: Place) -> pa.Array:
    """Return a column as one Arrow array, in which missing cells are null; NaN may remain in columns of floats."""
    if hasattr(column, "to_arrow") and hasattr(column, "to_numpy"):  # polars
        column = column.to_arrow()
    if hasattr(column, "sparse") and hasattr(column, "to_numpy") and "Sparse" in str(column.dtype):  # pandas
        column = column.to_numpy()
    if not isinstance(column, pa.ChunkedArray | pa.Array):
        column = _from_python(column, place)
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # without rows, and in older versions of pyarrow
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def _from_python(column: Any, place: Place) -> Any:
    mask = None
    if isinstance(column, np.ma.MaskedArray):
        mask, column = np.ma.getmaskarray(column), np.ma.getdata(column)
    if isinstance(column, np.ndarray):
        if column.dtype.kind == "c":
            msg = f"{place.name} must hold real numbers; got {column.dtype}{_where(place)}. Complex data not supported."
            raise InvalidInputError(msg)
        if column.dtype.kind == "f" and column.dtype.itemsize not in (4, 8):
            with np.errstate(over="ignore"):
                column = column.astype(np.float64)
        if column.dtype.kind == "T":
            column = column.astype(object)
        if column.dtype.kind in "Mm":  # months and years have no type in Arrow
            column = column.astype(f"{column.dtype.kind}8[us]")
    try:
        return pa.array(column, from_pandas=True, mask=mask)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _mixed(column, place, error) from None


def _mixed(column: Any, place: Place, error: Exception) -> InvalidInputError:
    """Return the error for a column of objects that have no common type."""
    first: dict[str, tuple[Any, int]] = {}
    for row, cell in enumerate(np.asarray(column, dtype=object).tolist()):
        if cell is not None and not (isinstance(cell, float) and cell != cell):
            first.setdefault(type(cell).__name__, (cell, row))
    if len(first) > 1 and "complex" not in first:
        found = " and ".join(f"{shown(cell)} ({name}){place.of((row,))}" for name, (cell, row) in first.items())
        msg = f"{place.name} has cells of different types in one column: {found}. Make all of them of one type."
        return InvalidInputError(msg)
    cell, row = first.get("complex") or next(iter(first.values()), (None, 0))
    if isinstance(cell, complex):
        msg = f"{place.name} must hold real numbers; got {shown(cell)}{place.of((row,))}. Complex data not supported."
        return InvalidInputError(msg)
    return CellTypeError(
        f"{place.name}: the argument must be a string or a real number, a truth value or a date in every cell; got "
        f"{shown(cell)} of type {type(cell).__name__}{place.of((row,))} ({' '.join(str(error).split())[:100]})."
    )


def _where(place: Place) -> str:
    return place.of((0,)).partition(", row")[0]


# Numbers, dates and categories --------------------------------------------------------------------------------------


def _numpy(values: pa.Array) -> np.ndarray:
    """Return numbers as float64, with NaN for missing cells."""
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)


def _floats(values: pa.Array, place: Place) -> np.ndarray:
    found = _numpy(values)
    infinite = np.isinf(found)
    if infinite.any():
        raise place.not_finite("infinity", (int(np.argmax(infinite)),), int(infinite.sum()))
    return found


def _seconds(values: pa.Array) -> np.ndarray:
    """Return seconds since 1970 by the clocks of the place, with NaN for missing cells."""
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        values = pc.local_timestamp(values)
    return _numpy(values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())) / 1e6


def _categories(values: pa.DictionaryArray, *, declared: bool = False) -> Cells:
    """Return categories by their texts. An empty text is a missing cell."""
    texts = [text_of(one) for one in values.dictionary.to_pylist()]
    known: dict[str, int] = {}
    places = np.array([known.setdefault(text, len(known)) if text else np.nan for text in texts] + [np.nan])
    indices = _numpy(values.indices)
    codes = places[np.where(np.isnan(indices), len(texts), indices).astype(np.int64)]
    return Cells("category", codes, list(known), declared)


def text_of(value: Any) -> str:
    """Return the text that stands for a category; a missing one has the empty text."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _texts(values: pa.Array, place: Place, wanted: Kind | None) -> Cells:
    """Return texts as what they stand for."""
    found = _categories(values.dictionary_encode())
    if wanted == "category" or (wanted is None and not found.texts):
        return found
    codes = np.where(found.missing, len(found.texts), found.values).astype(np.int64)
    if wanted != "date":
        sound = np.array([is_number(text) for text in found.texts], dtype=bool)
        if sound.all():
            numbers = np.array([float(text) for text in found.texts] + [np.nan])[codes]
            return Cells("number", _floats(pa.array(numbers), place))
        rows = Counter(codes[codes < len(found.texts)].tolist())
        if wanted == "number" or 2 * sum(rows[k] for k in np.flatnonzero(sound).tolist()) >= sum(rows.values()):
            raise _no_number(found, codes, sound, place, wanted)
    dates = [_date(text) for text in found.texts]
    if all(date is not None for date in dates):
        return Cells("date", np.array([*dates, np.nan], dtype=np.float64)[codes])
    if wanted == "date":
        first = next(k for k, date in enumerate(dates) if date is None)
        row = int(np.argmax(codes == first))
        msg = (
            f"{place.name} must hold a date, as 2024-03-31 or 2024-03-31 14:30, in a column of dates; got "
            f"{shown(found.texts[first])}{place.of((row,))}."
        )
        raise InvalidInputError(msg)
    return found


def _no_number(
    found: Cells, codes: np.ndarray, sound: np.ndarray, place: Place, wanted: Kind | None
) -> InvalidInputError:
    first = int(np.argmin(sound))
    row, text = int(np.argmax(codes == first)), found.texts[first]
    if wanted == "number":
        return place.not_a_number(f"the text {shown(text)}", (row,), f"The fit had numbers there.{number_hint(text)}")
    return InvalidInputError(
        f"{place.name} has numbers and texts in one column: {shown(text)}{place.of((row,))} is not a "
        f"number.{number_hint(text)} Correct such cells or leave them empty; or make the column one of categories "
        "(in pandas: astype('category')), or leave it out."
    )


def _date(text: str) -> float | None:
    """Return the seconds since 1970 of a date, by its own clock; None if the text is not a date."""
    if _ISO.fullmatch(text) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is not None:  # offsets may differ between rows, so all are taken to one clock
        found = found.astimezone(UTC).replace(tzinfo=None)
    return (found - _EPOCH).total_seconds()


def looks_like_date(texts: Sequence[str]) -> bool:
    """Whether categories seem to be dates in a form that cannot be read for certain."""
    return len(texts) > 2 and all(_OTHER_DATE.fullmatch(text) is not None for text in texts)


def same_text(text: str, known: dict[str, int]) -> int | None:
    """Return the position of a category among known ones; truth values are found in any spelling."""
    for spelling in (text, *_TRUTH.get(text.lower(), ())):
        if spelling in known:
            return known[spelling]
    return None


def _checked(found: Cells, place: Place, wanted: Kind | None, kind: str) -> Cells:
    if wanted not in (None, found.kind):
        msg = (
            f"{place.name} must have {'categories' if wanted == 'category' else f'{wanted}s'}{_where(place)}, as the "
            f"table of the fit had; got {kind}."
        )
        raise InvalidInputError(msg)
    return found
