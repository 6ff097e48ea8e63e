"""What an encoder knows of each column: plain numbers and texts, from which the encoded columns follow."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Self, get_args

import numpy as np
import pyarrow as pa

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.settings.schema import Form, flag, listing, number, one_of, record, text, whole
from gigagp.tables.cells import Place, is_number, shown
from gigagp.tables.encoding.reading import SECONDS_A_DAY, Cells, Kind, Order, numbered_texts, read_cells, same_text

#: Most categories of a column that have a column each; more are levels of a group.
MOST_CATEGORIES = 50
#: Fewest missing cells of a column from which the noise of their rows can be learned.
FEWEST_MISSING = 10
#: Number of values that a missing cell of a column may have that had none in the fit, and the next prime, which orders
#: them differently in each column.
N_VALUES, PRIME, ROOT = 16, 17, 3
#: Mean length of a year in days.
YEAR = 365.2425
#: Dates have a season if they span at least this many days.
_SEASONAL_SPAN = 366.0
_UNTIL = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Part:
    """Encoded columns that share a lengthscale, with a label where they are not all of their column.

    One-hot columns, marks and points on circles stay as they are; other columns are standardized (``is_scaled``).
    """

    label: str
    width: int = 1
    is_scaled: bool = False


@dataclass(frozen=True)
class Column:
    """One column of a table, labelled by its name or number. A subclass is a kind, which ``word`` names in files."""

    label: str
    #: Name of the kind in files.
    word: ClassVar[str] = ""
    kind: ClassVar[Kind | None] = None

    def read(self, cells: Any, place: Place) -> Cells:
        """Return the cells of a later table, read as those of the fit were."""
        return read_cells(cells, place, self.kind)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The encoded columns, in their order."""
        return ()

    @property
    def mark(self) -> int | None:
        """Which of the encoded columns is 1 in rows whose cell is missing and 0 in others; None if hardly any are."""
        return None

    def encode(self, cells: Cells, notes: list[str], *, opens: bool = False) -> np.ndarray:
        """Return the encoded columns, shape (n, sum of the parts' widths), and add to ``notes`` what was unexpected.

        With ``opens``, missing cells are NaN where the fit had none and knows what they may be (`spread`).
        """
        return np.empty((len(cells.values), 0))

    def spread(self) -> np.ndarray:
        """Return 16 encoded cells that a missing one may be, shape (16, sum of the widths), or NaN."""
        return np.full((N_VALUES, sum(part.width for part in self.parts)), np.nan)

    def typical(self, n: int) -> pa.Array:
        """Return n cells with a typical content of the column."""
        return pa.nulls(n)

    def describe(self) -> str:
        """Return in words what happens to the column."""
        return ""

    def to_plain(self) -> dict[str, Any]:
        """Return the record as plain data, from which `from_plain` makes it again."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"column": self.word} | {k: list(one) if isinstance(one, tuple) else one for k, one in values.items()}


@dataclass(frozen=True)
class Numbers(Column):
    """A column of numbers, with the median ``fill`` in place of missing cells and a mark where the fit had some.

    ``missing`` counts the missing cells of the fit. If there were none, ``values`` has the numbers that one may be: 16
    quantiles, or nothing in older files.
    """

    fill: float = 0.0
    varies: bool = True
    missing: int = 0
    values: tuple[float, ...] = ()
    word: ClassVar[str] = "numbers"
    kind: ClassVar[Kind | None] = "number"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part("", is_scaled=True),) * self.varies + (Part("missing"),) * bool(self.missing)

    @property
    def mark(self) -> int | None:
        return int(self.varies) if self.missing >= FEWEST_MISSING else None

    def encode(self, cells: Cells, notes: list[str], *, opens: bool = False) -> np.ndarray:
        gone, opens = cells.missing, opens and bool(self.values)
        _note_missing(self, gone, notes, f"the median {self.fill:g} of the fit", opens=opens)
        fill = np.nan if opens else self.fill
        found = [np.where(gone, fill, cells.values)] * self.varies + [gone.astype(np.float64)] * bool(self.missing)
        return np.stack(found, 1)

    def spread(self) -> np.ndarray:
        return np.array(self.values)[:, None] if self.values else super().spread()

    def typical(self, n: int) -> pa.Array:
        return pa.array(np.full(n, self.fill))

    def describe(self) -> str:
        filled = f"; {_cells(self.missing)} filled with the median {self.fill:g} and marked" * bool(self.missing)
        return ("numbers" if self.varies else f"constant {self.fill:g}") + filled


@dataclass(frozen=True)
class Dates(Column):
    """A column of dates: days since the earliest one, and where they differ the season and the time of day.

    ``origin``, the earliest date, is in seconds since 1970. ``fill`` and ``values``, as for `Numbers`, are in days
    since then. If the dates span more than a year (``season``), sine and cosine of the time of the year are inputs, and
    if they have different times of day (``clock``), those of the time of day. ``order`` is that of day and month in
    texts such as 12/31/2015.
    """

    origin: float = 0.0
    fill: float = 0.0
    season: bool = False
    clock: bool = False
    missing: int = 0
    order: Order = ""
    values: tuple[float, ...] = ()
    word: ClassVar[str] = "dates"
    kind: ClassVar[Kind | None] = "date"

    def read(self, cells: Any, place: Place) -> Cells:
        """Return the cells of a later table, with day and month in the order of the fit."""
        return read_cells(cells, place, self.kind, self.order)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The days, the points on two circles and the mark."""
        found = (Part("days", is_scaled=True),) + (Part("season", 2),) * self.season
        return found + (Part("time of day", 2),) * self.clock + (Part("missing"),) * bool(self.missing)

    @property
    def mark(self) -> int | None:
        return sum(part.width for part in self.parts) - 1 if self.missing >= FEWEST_MISSING else None

    def encode(self, cells: Cells, notes: list[str], *, opens: bool = False) -> np.ndarray:
        """Return days, season, time of day and mark; see `Column.encode`."""
        gone, opens = cells.missing, opens and bool(self.values)
        _note_missing(self, gone, notes, f"the median {self._day(self.fill)} of the fit", opens=opens)
        days = (cells.values - self.origin) / SECONDS_A_DAY
        found, centre = [np.where(gone, np.nan if opens else self.fill, days)], np.nan if opens else 0.0
        for wanted, period in ((self.season, YEAR), (self.clock, 1.0)):
            if wanted:
                angle = 2 * np.pi * np.mod(cells.values / (SECONDS_A_DAY * period), 1.0)
                found += [np.where(gone, centre, np.sin(angle)), np.where(gone, centre, np.cos(angle))]
        return np.stack(found + [gone.astype(np.float64)] * bool(self.missing), 1)

    def spread(self) -> np.ndarray:
        """Return the values with their seasons and times of day."""
        if not self.values:
            return super().spread()
        return self.encode(Cells("date", self.origin + SECONDS_A_DAY * np.array(self.values)), [])

    def typical(self, n: int) -> pa.Array:
        return self.at(np.full(n, self.fill))

    def at(self, days: np.ndarray) -> pa.Array:
        """Return the dates this many days after the earliest, shape (n,)."""
        return pa.array(np.round((self.origin + days * SECONDS_A_DAY) * 1e6).astype(np.int64)).cast(pa.timestamp("us"))

    def _day(self, days: float) -> str:
        try:
            return str((_UNTIL + timedelta(seconds=self.origin + days * SECONDS_A_DAY)).date())
        except OverflowError:
            return f"{days:g} days later"

    def describe(self) -> str:
        parts = ["days"] + ["season (sine and cosine of the year)"] * self.season + ["time of day"] * self.clock
        filled = f"; {_cells(self.missing)} filled with {self._day(self.fill)} and marked" * bool(self.missing)
        read = f", read as {self.order}" * bool(self.order)
        return f"dates since {self._day(0.0)}{read}: {', '.join(parts)}{filled}"


@dataclass(frozen=True)
class Categories(Column):
    """A categorical column, one-hot: one column for each, and a last one for all others.

    ``categories`` are in the order of their numbers of rows. Missing cells, of which the fit had ``missing``, are a
    category of their own. ``others`` counts the further ones of models of earlier versions.
    """

    categories: tuple[str, ...] = ()
    missing: int = 0
    others: int = 0
    word: ClassVar[str] = "categories"
    kind: ClassVar[Kind | None] = "category"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part("", len(self.categories) + bool(self.missing) + 1),)

    @property
    def mark(self) -> int | None:
        """The column of the category of missing cells."""
        return len(self.categories) if self.missing >= FEWEST_MISSING else None

    def encode(self, cells: Cells, notes: list[str], *, opens: bool = False) -> np.ndarray:
        known = numbered_texts(self.categories)
        rest = self.parts[0].width - 1
        found = [same_text(one, known) for one in cells.texts]
        places = np.array([rest if place is None else place for place in found] + [len(self.categories)])  # missing
        if not self.others:
            present = np.unique(cells.values[~cells.missing]).astype(np.int64).tolist()  # types may list more
            new = [cells.texts[k] for k in present if found[k] is None]
            if not self.missing and cells.missing.any():
                new.append("")
            if new:
                names = ", ".join(shown(one) if one else "a missing cell" for one in new[:3])
                more = f" and {len(new) - 3} more" * (len(new) > 3)
                notes.append(f"column {self.label!r} has categories that the fit has not seen: {names}{more}")
        codes = places[np.where(cells.missing, len(cells.texts), cells.values).astype(np.int64)]
        return (codes[:, None] == np.arange(rest + 1)).astype(np.float64)

    def codes(self, encoded: np.ndarray) -> np.ndarray:
        """Return the number of the category of each row."""
        found: np.ndarray = encoded.argmax(1)
        return found

    def texts_of(self, codes: np.ndarray) -> np.ndarray:
        """Return categories by number; that of missing cells is empty, and the last one stands for all others."""
        return np.array([*self.categories, *[""] * bool(self.missing), "others"], dtype=object)[codes]

    def typical(self, n: int) -> pa.Array:
        return pa.array([self.categories[0]] * n)

    def describe(self) -> str:
        more = f"; {self.others:,} rarer ones together as others" * bool(self.others)
        empty = f"; missing cells ({self.missing:,}) are a category" * bool(self.missing)
        return f"{len(self.categories)} categories ({_first(self.categories)}){more}{empty}"


@dataclass(frozen=True)
class Numbered(Column):
    """A text column, as the numbers of its texts among ``levels``; another text has the next free number."""

    levels: tuple[str, ...] = ()
    kind: ClassVar[Kind | None] = "category"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part(""),)

    def encode(self, cells: Cells, notes: list[str], *, opens: bool = False) -> np.ndarray:
        """Return the number of the level of each row, shape (n, 1)."""
        known = self.grown(cells)._known
        places = np.array([same_text(text, known) for text in cells.texts] + [0], dtype=np.float64)  # the last: missing
        return places[np.where(cells.missing, len(cells.texts), cells.values).astype(np.int64)][:, None]

    def grown(self, cells: Cells) -> Self:
        """Return the record with the levels among cells that are new behind the others."""
        new = [text for text in cells.texts if same_text(text, self._known) is None]
        return replace(self, levels=(*self.levels, *new)) if new else self

    def codes(self, encoded: np.ndarray) -> np.ndarray:
        """Return the number of the level of each row."""
        return encoded[:, 0].astype(np.int64)

    def texts_of(self, codes: np.ndarray) -> np.ndarray:
        """Return levels by number."""
        return np.array(self.levels, dtype=object)[codes]

    @cached_property
    def _known(self) -> dict[str, int]:
        return numbered_texts(self.levels)

    def typical(self, n: int) -> pa.Array:
        return pa.array([next(filter(None, self.levels))] * n)


@dataclass(frozen=True)
class Levels(Numbered):
    """A column of very many categories, each of which has its own effect.

    The first level, an empty text, is that of missing cells, of which the fit had ``missing``. The others are in the
    order of their numbers of rows.
    """

    missing: int = 0
    word: ClassVar[str] = "levels"

    def describe(self) -> str:
        empty = f"; missing cells ({self.missing:,}) are a level" * bool(self.missing)
        return f"{len(self.levels) - 1:,} categories ({_first(self.levels[1:])}), each with an effect{empty}"


@dataclass(frozen=True)
class Entities(Numbered):
    """A column that names the entity of each row of a panel. Its ``levels`` are sorted, and every row needs one."""

    word: ClassVar[str] = "entities"

    @classmethod
    def of(cls, label: str, cells: Any, place: Place) -> Entities:
        """Return the record of a column of the table of a fit."""
        found = cls(label)
        return replace(found, levels=tuple(sorted(found.read(cells, place).texts, key=_by_number)))

    def read(self, cells: Any, place: Place) -> Cells:
        """Return the cells of a table, or refuse a row without an entity."""
        found = super().read(cells, place)
        if found.missing.any():
            row = int(np.argmax(found.missing))
            msg = f"{place.name} must name the entity of every row; it is missing{place.of((row, 0))}."
            raise InvalidInputError(msg)
        present = np.unique(found.values).astype(np.int64)  # types may list more
        return replace(found, values=np.searchsorted(present, found.values), texts=[found.texts[k] for k in present])

    def describe(self) -> str:
        return f"{len(self.levels):,} entities ({_first(self.levels)})"


def _first(texts: tuple[str, ...]) -> str:
    """Return the first four of some texts in words."""
    return ", ".join(texts[:4]) + ", ..." * (len(texts) > 4)


def _by_number(text: str) -> tuple[float, str]:
    """Return what sorts numbers by their size, before other texts."""
    return (float(text) if is_number(text) else math.inf), text


@dataclass(frozen=True)
class LeftOut(Column):
    """A column from which nothing can be learned, and the reason in words."""

    reason: str = ""
    word: ClassVar[str] = "left out"

    def describe(self) -> str:
        return f"left out: {self.reason}"


def column_of(label: str, cells: Cells, notes: list[str]) -> Column:
    """Return the record of a column of the table of a fit, and add to ``notes`` what its owner should know."""
    gone = int(cells.missing.sum())
    present = cells.values[~cells.missing]
    if cells.note:
        notes.append(f"column {label!r} {cells.note}")
    if not len(present):
        return LeftOut(label, "all cells are missing")
    low, high = float(present.min()), float(present.max())
    if low == high and not gone:
        return LeftOut(label, "all cells are the same")
    if cells.kind == "number":
        return Numbers(label, float(np.median(present)), low < high, gone, _values(present, gone))
    if cells.kind == "date":
        days = (present - low) / SECONDS_A_DAY
        if low == high:
            return LeftOut(label, "all dates are the same")
        seasonal, timed = high - low >= _SEASONAL_SPAN * SECONDS_A_DAY, len(np.unique(np.mod(days, 1.0))) > 1
        return Dates(
            label, low, float(np.median(days)), bool(seasonal), bool(timed), gone, cells.order, _values(days, gone)
        )
    return _categories_of(label, cells, gone)


def _categories_of(label: str, cells: Cells, gone: int) -> Column:
    counts = np.bincount(cells.values[~cells.missing].astype(np.int64), minlength=len(cells.texts))
    ranked = sorted(np.flatnonzero(counts).tolist(), key=lambda k: (-counts[k], cells.texts[k]))
    if len(ranked) > 2 and counts.max() == 1:
        return LeftOut(label, "every cell has a different text, so nothing can be learned from it")
    found = tuple(cells.texts[k] for k in ranked)
    return Categories(label, found, gone) if len(found) <= MOST_CATEGORIES else Levels(label, ("", *found), gone)


def _values(present: np.ndarray, gone: int) -> tuple[float, ...]:
    """Return numbers that a missing cell of a column without missing ones may be: quantiles that are among them."""
    if gone:
        return ()
    levels = (np.arange(N_VALUES) + 0.5) / N_VALUES
    return tuple(np.quantile(present, levels, method="inverted_cdf").tolist())


def _note_missing(column: Numbers | Dates, gone: np.ndarray, notes: list[str], filled: str, *, opens: bool) -> None:
    if not column.missing and gone.any():
        what = "predictions are averages over its values in the fit" if opens else f"{filled} is used there"
        notes.append(f"column {column.label!r} has {_cells(int(gone.sum()))}, but had none in the fit: {what}")


def _cells(count: int) -> str:
    return f"{count:,} missing cell{'s' * (count != 1)}"


# Files --------------------------------------------------------------------------------------------------------------

_COUNT, _NUMBER = whole(), number(finite=True)
_VALUES = listing(_NUMBER, 0, N_VALUES)
_FORMS: dict[type[Column], Form] = {
    Numbers: record({"label": text, "fill": _NUMBER, "varies": flag, "missing": _COUNT}, {"values": _VALUES}),
    Dates: record(
        {"label": text, "origin": _NUMBER, "fill": _NUMBER, "season": flag, "clock": flag, "missing": _COUNT},
        {"order": one_of(*get_args(Order)), "values": _VALUES},
    ),
    Categories: record({"label": text, "categories": listing(text), "missing": _COUNT, "others": _COUNT}),
    Levels: record({"label": text, "levels": listing(text), "missing": _COUNT}),
    Entities: record({"label": text, "levels": listing(text)}),
    LeftOut: record({"label": text, "reason": text}),
}
_WORDS: dict[str, type[Column]] = {kind.word: kind for kind in (Numbers, Dates, Categories, Levels, Entities, LeftOut)}


def from_plain(data: Any, where: str) -> Column:
    """Return the record that `Column.to_plain` has described; refuse what no fit could have given."""
    record({"column": text})(data, where)
    kind = _WORDS.get(data["column"])
    if kind is None:
        raise ModelFileError(
            f"{where}.column must be one of {', '.join(map(repr, _WORDS))}; got {data['column'][:60]!r}."
        )
    _FORMS[kind](data, where)
    values = {one.name: data[one.name] for one in fields(kind) if one.name in data}  # older files have less
    values |= {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
    if kind is Numbers and not (values["varies"] or values["missing"]):
        raise ModelFileError(f"{where} must vary, or have missing cells.")
    if values.get("values") and (values["missing"] or not values.get("varies", True)):
        raise ModelFileError(f"{where}.values must be empty for a column with missing cells.")
    if kind is Categories:
        categories = values["categories"]
        if not 0 < len(categories) <= MOST_CATEGORIES or len(set(categories)) < len(categories) or "" in categories:
            raise ModelFileError(f"{where}.categories must be 1 to {MOST_CATEGORIES} different strings.")
    if kind in (Levels, Entities):
        levels = values["levels"] if kind is Entities else values["levels"][1:]
        if not levels or len(set(levels)) < len(levels) or "" in levels:
            raise ModelFileError(f"{where}.levels must be one or more different strings.")
        if kind is Levels and values["levels"][0]:
            raise ModelFileError(f"{where}.levels must begin with the empty text of missing cells.")
    return kind(**values)
