"""One column of any type, read as numbers, dates or categories."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gigagp.errors import CellTypeError, InvalidInputError
from gigagp.tables.cells import Place, is_number, number_hint, shown

#: What a column holds. Truth values are categories.
Kind = Literal["number", "date", "category"]
#: Order of day and month in texts such as 12/1/2015; empty where no text needs one.
Order = Literal["", "day/month/year", "month/day/year"]
_ORDERS: tuple[Order, Order] = ("day/month/year", "month/day/year")

SECONDS_A_DAY = 86400.0
_EPOCH = datetime(1970, 1, 1)
#: Dates and times as ISO 8601 writes them.
_ISO = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?")
#: Dates of other forms, with a time or without: a year of four digits before or after month and day.
_OTHER_DATE = re.compile(
    r"(?:(?P<year>\d{4})(?P<a>[./-])(?P<month>\d{1,2})(?P=a)(?P<day>\d{1,2})"
    r"|(?P<one>\d{1,2})(?P<b>[./-])(?P<other>\d{1,2})(?P=b)(?P<last>\d{4}))"
    r"(?:[T ](?P<hours>\d{1,2}):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?)?",
    re.ASCII,
)
#: Texts that people read as dates, of which some have no one meaning.
_LIKE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(?:[T ].*)?", re.ASCII)
_TRUTH = {"true": ("true", "True", "TRUE"), "false": ("false", "False", "FALSE")}


@dataclass(frozen=True)
class Cells:
    """The cells of one column.

    ``values`` (n,) are numbers, seconds since 1970 of dates, or places of categories in ``texts``; NaN is a missing
    cell. ``note`` has what the owner of the table should know of the reading, in words.
    """

    kind: Kind
    values: np.ndarray
    texts: Sequence[str] = ()
    order: Order = ""
    note: str = ""

    @property
    def missing(self) -> np.ndarray:
        """Which cells are missing, shape (n,)."""
        return np.isnan(self.values)


def read_cells(column: Any, place: Place, wanted: Kind | None = None, order: Order = "") -> Cells:
    """Read one column of any type; None, NaN, masked cells and empty strings are missing cells.

    ``wanted`` and ``order`` (of day and month) are what the column had in the table of the fit. Without them texts are
    numbers if all of them are, dates if all are as ISO 8601 has them (2024-03-31, 2024-03-31 14:30) or one order of day
    and month fits all of them (12/31/2015), and categories otherwise. Raises `InvalidInputError` for a mixture of
    types, infinity, and cells that are not what is wanted.
    """
    try:
        values = _as_arrow(column, place)
    except InvalidInputError:
        if wanted not in (None, "category") or not _mixes_numbers_and_texts(column):
            raise
        return _texts(pa.array([text_of(cell) for cell in column.tolist()]), place, wanted, order)
    kind = values.type
    if pa.types.is_null(kind):
        return Cells(wanted or "number", np.full(len(values), np.nan))
    if pa.types.is_dictionary(kind):
        if wanted in (None, "category"):
            return _categories(values)
        values = values.cast(kind.value_type)
        kind = values.type
    if pa.types.is_boolean(kind):
        if wanted == "number":
            return Cells("number", _floats(values.cast(pa.uint8()), place))
        return _checked(_categories(values.dictionary_encode()), place, wanted, str(kind))
    if pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        if wanted == "category":
            return _categories(values.dictionary_encode())
        return _checked(Cells("number", _floats(values, place)), place, wanted, str(kind))
    if pa.types.is_duration(kind):
        days = _numpy(values.cast(pa.duration("us"), safe=False).cast(pa.int64())) / (1e6 * SECONDS_A_DAY)
        return _checked(Cells("number", days), place, wanted, str(kind))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _checked(Cells("date", _seconds(values)), place, wanted, str(kind))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _texts(values, place, wanted, order)
    raise CellTypeError(
        f"{place.name} has values of type {kind}{place.of((0,)).partition(', row')[0]}. Columns may hold numbers, "
        "text, booleans, dates and time spans: convert it to one of these, or leave it out."
    )


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
        msg = f"{place.name} has cells of different types in one column: {found}. Give all of them one type."
        return InvalidInputError(msg)
    cell, row = first.get("complex") or next(iter(first.values()), (None, 0))
    if isinstance(cell, complex):
        msg = f"{place.name} must hold real numbers; got {shown(cell)}{place.of((row,))}. Complex data not supported."
        return InvalidInputError(msg)
    return CellTypeError(
        f"{place.name}: the argument must be a string or a real number, a boolean or a date in every cell; got "
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


def _categories(values: pa.DictionaryArray) -> Cells:
    """Return categories by their texts. An empty text is a missing cell."""
    texts = [text_of(one) for one in values.dictionary.to_pylist()]
    known: dict[str, int] = {}
    places = np.array([known.setdefault(text, len(known)) if text else np.nan for text in texts] + [np.nan])
    indices = _numpy(values.indices)
    codes = places[np.where(np.isnan(indices), len(texts), indices).astype(np.int64)]
    return Cells("category", codes, list(known))


def text_of(value: Any) -> str:
    """Return the text that stands for a category; a missing one has the empty text."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _texts(values: pa.Array, place: Place, wanted: Kind | None, order: Order) -> Cells:
    found = _categories(values.dictionary_encode())
    if wanted == "category" or (wanted is None and not found.texts):
        return found
    codes = np.where(found.missing, len(found.texts), found.values).astype(np.int64)
    note = ""
    if wanted != "date":
        sound = np.array([is_number(text) for text in found.texts], dtype=bool)
        if sound.all():
            numbers = np.array([float(text) for text in found.texts] + [np.nan])[codes]
            return Cells("number", _floats(pa.array(numbers), place))
        first = int(np.argmin(sound))
        row, text = int(np.argmax(codes == first)), found.texts[first]
        if wanted == "number":
            what = f"The fit had numbers there.{number_hint(text)}"
            raise place.not_a_number(f"the text {shown(text)}", (row,), what)
        present = codes[codes < len(found.texts)]
        n_texts = int((~sound)[present].sum())
        if 2 * n_texts <= len(present):
            note = (
                f"has numbers and text, such as {shown(text)} in row {place.first_row + row} (counted from 0), and is "
                f"read as text.{number_hint(text)} To keep the numbers, correct the {n_texts:,} "
                f"cell{'s' * (n_texts != 1)} with text or leave them empty"
            )
    orders = (order,) if wanted == "date" else _ORDERS
    readings = {one: [_date(text, one) for text in found.texts] for one in orders}
    complete = [one for one, dates in readings.items() if None not in dates]
    if len(complete) == 1 or (complete and readings[complete[0]] == readings[complete[1]]):
        dates, one = readings[complete[0]], complete[0]
        needed: Order = one if any(_date(text, "") is None for text in found.texts) else ""
        return Cells("date", np.array([*dates, np.nan], dtype=np.float64)[codes], order=needed)
    if wanted == "date":
        first = readings[order].index(None)
        row = int(np.argmax(codes == first))
        form = f"or {order} as in the fit, " * bool(order)
        raise InvalidInputError(
            f"{place.name} must hold a date, as 2024-03-31 or 2024-03-31 14:30, {form}in a column of dates; got "
            f"{shown(found.texts[first])}{place.of((row,))}."
        )
    if len(found.texts) > 2 and all(_LIKE_DATE.fullmatch(text) is not None for text in found.texts):
        note = _why_no_dates(found.texts, readings)
    return Cells(found.kind, found.values, found.texts, note=note)


def _why_no_dates(texts: Sequence[str], readings: dict[Order, list[float | None]]) -> str:
    """Return in words why texts that look like dates are not read as such."""
    if all(None not in dates for dates in readings.values()):
        why = f"{shown(texts[0])} and all others fit day/month/year and month/day/year"
    else:
        misfits = {one: shown(texts[dates.index(None)]) for one, dates in readings.items()}
        why = " and ".join(f"{text} does not fit {one}" for one, text in misfits.items())
    return f"is read as text, although these look like dates: {why}. Write dates as 2024-03-31"


def _mixes_numbers_and_texts(column: Any) -> bool:
    """Whether the cells of a column of objects are texts and numbers, or missing."""
    if not hasattr(column, "tolist") or isinstance(column, np.ma.MaskedArray):
        return False
    cells = column.tolist()
    return all(
        isinstance(cell, str | bool | int | float) or cell is None or type(cell).__name__ in ("NAType", "NaTType")
        for cell in cells
    )


def _date(text: str, order: Order) -> float | None:
    """Return the seconds since 1970 of a date, by its own clock; None if the text is not a date.

    Without an order, texts that need one are not dates.
    """
    try:
        if _ISO.fullmatch(text) is not None:
            found = datetime.fromisoformat(text)
        elif (match := _OTHER_DATE.fullmatch(text)) is not None and (match["year"] or order):
            one, other = match["one"], match["other"]
            day, month = (one, other) if order == "day/month/year" else (other, one)
            parts = (match["year"], match["month"], match["day"]) if match["year"] else (match["last"], month, day)
            clock = (match["hours"], match["minutes"], match["seconds"])
            found = datetime(*(int(part or 0) for part in (*parts, *clock)))  # type: ignore[arg-type]
        else:
            return None
    except ValueError:
        return None
    if found.tzinfo is not None:  # offsets may differ between rows, so all are taken to one clock
        found = found.astimezone(UTC).replace(tzinfo=None)
    return (found - _EPOCH).total_seconds()


def numbered_texts(texts: Sequence[str]) -> dict[str, int]:
    """Return the position of each of different texts, also by the usual spelling of a number, for `same_text`."""
    known = {text: place for place, text in enumerate(texts)}
    for place, text in enumerate(texts):
        if is_number(text):
            known.setdefault(repr(float(text)), place)
    return known


def same_text(text: str, known: dict[str, int]) -> int | None:
    """Return the position of a text among known ones; booleans and numbers are found in any spelling."""
    number = (repr(float(text)),) if is_number(text) else ()
    return next((known[one] for one in (text, *_TRUTH.get(text.lower(), ()), *number) if one in known), None)


def _checked(found: Cells, place: Place, wanted: Kind | None, kind: str) -> Cells:
    if wanted not in (None, found.kind):
        raise InvalidInputError(
            f"{place.name} must have {'categories' if wanted == 'category' else f'{wanted}s'}{_where(place)}, as the "
            f"table of the fit had; got {kind}."
        )
    return found
