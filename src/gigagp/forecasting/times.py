"""Times of a series as numbers of steps: dates of any step, months of unequal length, working days, plain numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.tables.cells import Place, is_number
from gigagp.tables.encoding.reading import Cells, read_cells

_DAY = 86400.0
#: Texts that name a month or a quarter.
_MONTH_TEXT = re.compile(r"(\d{4})(?:-(0[1-9]|1[0-2])|-?Q([1-4]))", re.ASCII)
#: Seconds of a step from which dates are counted in months, because months and years are of unequal length.
_MONTH = 27.5 * _DAY
#: Lengths of calendar cycles in seconds: hour, day, week, and year.
_CYCLES = (3600.0, _DAY, 7 * _DAY, 365.25 * _DAY)
#: Steps in usual cycles of series without dates: quarters, weekdays, months, hours, weeks, half hours, hours of a week
#: and days of a year.
_USUAL = (4.0, 7.0, 12.0, 24.0, 52.18, 48.0, 168.0, 365.25)


@dataclass(frozen=True)
class Clock:
    """The way from dates, in seconds since 1970, or from numbers to steps, and back.

    ``unit`` says what is counted: plain numbers, seconds, working days or months; ``size`` is how many of these are
    one step, and the steps are counted from ``origin``.
    """

    unit: Literal["number", "second", "working day", "month"]
    size: float
    origin: float

    @classmethod
    def of(cls, times: np.ndarray, *, dates: bool) -> Clock:
        """Return the clock of sorted times (n,), at least two of which differ."""
        step = _usual_step(times)
        if not dates:
            return cls("number", step, float(times[0]))
        if step >= _MONTH:
            return cls("month", float(max(round(_usual_step(_months(times))), 1)), float(_months(times[:1])[0]))
        days = _as_days(times)
        whole = bool((np.mod(times, _DAY) == times[0] % _DAY).all())
        if whole and step == _DAY and len(np.unique(times)) > 8 and bool(np.is_busday(days).all()):
            return cls("working day", 1.0, float(times[0]))
        return cls("second", step, float(times[0]))

    def steps(self, times: np.ndarray) -> np.ndarray:
        """Return times (n,) as numbers of steps since the origin."""
        if self.unit == "month":
            return (_months(times) - self.origin) / self.size
        if self.unit == "working day":
            return np.busday_count(_as_days(np.array([self.origin]))[0], _as_days(times)).astype(float)
        return (times - self.origin) / self.size

    def following(self, last: float, count: int) -> np.ndarray:
        """Return the times of the steps after a time, (count,); the ends of months follow the ends of months."""
        ahead = np.arange(1, count + 1)
        if self.unit == "month":
            return _months_later(last, ahead * round(self.size))
        if self.unit == "working day":
            day = _as_days(np.array([last]))[0]
            later = np.busday_offset(day, ahead, roll="backward").astype("datetime64[s]").astype(float)
            return later + last % _DAY
        return last + self.size * ahead

    def shown(self, times: np.ndarray) -> np.ndarray:
        """Return times as numbers, or as dates (datetime64[s])."""
        return times if self.unit == "number" else np.round(times).astype("int64").astype("datetime64[s]")


@dataclass(frozen=True)
class Periods:
    """Lengths of seasons in steps. Those that are ``sure`` are tried whether or not the values show them."""

    steps: tuple[float, ...]
    sure: bool

    @classmethod
    def of(cls, clock: Clock, n_steps: float) -> Periods:
        """Return the cycles of the calendar, or without dates usual ones: those that are passed at least twice."""
        if clock.unit == "month":
            found: tuple[float, ...] = (12 / clock.size,)
        elif clock.unit == "working day":
            found = (5.0, 260.9)
        else:
            found = _USUAL if clock.unit == "number" else tuple(cycle / clock.size for cycle in _CYCLES)
        return cls(tuple(one for one in found if 1.9 < one <= n_steps / 2), sure=clock.unit != "number")


def read_times(column: Any, name: str) -> tuple[np.ndarray, bool]:
    """Return times (n,) as numbers, or dates in seconds since 1970, and whether they are dates."""
    if hasattr(column, "iloc"):
        column = column.array if "period" in str(column.dtype) else column.to_numpy()
    if "period" in str(getattr(column, "dtype", "")):  # of pandas
        column = column.to_timestamp()
    if hasattr(column, "tz_localize"):
        column = column.tz_localize(None).to_numpy()
    cells = read_cells(column, Place(name))
    if cells.kind == "category":
        days = [_first_day(text) for text in cells.texts]
        if not days or None in days:
            why = f" It {cells.note}." if cells.note else ""
            got = "it has none"
            if days:
                row = _first_odd(cells)
                got = f"got {cells.texts[int(cells.values[row])]!r} in row {row + 1}"
            raise InvalidInputError(
                f"{name} must hold dates, such as 2024-03-31, or numbers; {got}.{why} Correct it, or leave the row out."
            )
        known = np.append(read_cells(days, Place(name)).values, np.nan)
        cells = Cells("date", known[np.where(cells.missing, -1, cells.values).astype(np.int64)])
    if cells.missing.any():
        row = int(np.argmax(cells.missing))
        raise InvalidInputError(f"{name} has no time in row {row + 1}. Leave such rows out.")
    return cells.values, cells.kind == "date"


def _first_day(text: str) -> str | None:
    """Return the first day of a month such as 2024-03 or a quarter such as 2024-Q1; None for other texts."""
    found = _MONTH_TEXT.fullmatch(text)
    if found is None:
        return None
    year, month, quarter = found.groups()
    return f"{year}-{int(month or 3 * int(quarter) - 2):02d}-01"


def _first_odd(cells: Cells) -> int:
    """Return the first row whose text is no time while others are; the first with a text if none is."""
    sound = [
        is_number(one) or _first_day(one) is not None or read_cells(np.array([one]), Place("text")).kind == "date"
        for one in cells.texts
    ]
    odd = np.flatnonzero(~np.array(sound)[np.where(cells.missing, 0, cells.values).astype(int)] & ~cells.missing)
    return int(odd[0]) if len(odd) else int(np.argmin(cells.missing))


def _usual_step(times: np.ndarray) -> float:
    """Return the median distance of different times, the lower one of two."""
    return float(np.quantile(np.diff(np.unique(times)), 0.5, method="lower"))


def _as_days(times: np.ndarray) -> np.ndarray:
    return np.floor(times / _DAY).astype("int64").astype("datetime64[D]")


def _months(times: np.ndarray) -> np.ndarray:
    """Return the months since 1970, with the part of the month that has passed."""
    seconds = np.floor(times).astype("int64").astype("datetime64[s]")
    months = seconds.astype("datetime64[M]")
    first, next_first = (one.astype("datetime64[s]").astype(float) for one in (months, months + 1))
    return months.astype(float) + (times - first) / (next_first - first)


def _months_later(last: float, months: np.ndarray) -> np.ndarray:
    """Return a time some months later; the last day of a month leads to last days, as the 31st does."""
    day = _as_days(np.array([last]))[0]
    month = day.astype("datetime64[M]")
    number = int((day - month.astype("datetime64[D]")).astype(int))
    later = month + months
    lengths = ((later + 1).astype("datetime64[D]") - later.astype("datetime64[D]")).astype(int)
    is_last = (day + 1).astype("datetime64[M]") != month
    days = lengths - 1 if is_last else np.minimum(number, lengths - 1)
    return (later.astype("datetime64[D]") + days).astype("datetime64[s]").astype(float) + last % _DAY
