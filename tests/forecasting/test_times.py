"""Clocks against the calendar: months of unequal length, working days, gaps, and plain numbers."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp.errors import InvalidInputError
from gigagp.forecasting.times import Clock, Periods, read_times


def seconds(*dates):
    return np.array(dates, dtype="datetime64[s]").astype(float)


@pytest.mark.parametrize(
    ("dates", "following"),
    [
        (["2023-10-31", "2023-11-30", "2023-12-31"], ["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"]),
        (["2023-10-15", "2023-11-15", "2024-01-15"], ["2024-02-15", "2024-03-15"]),
        (["2023-01-30", "2023-04-30", "2023-07-30"], ["2023-10-30", "2024-01-30", "2024-04-30"]),
        (["2021-02-28", "2022-02-28", "2023-02-28"], ["2024-02-29", "2025-02-28"]),
        (["2024-02-26", "2024-02-27", "2024-02-29"], ["2024-03-01", "2024-03-02"]),
        (["2024-01-01T00:30", "2024-01-01T01:30", "2024-01-01T02:30"], ["2024-01-01T03:30"]),
    ],
)
def test_steps_follow_the_calendar(dates, following):
    times = seconds(*dates)
    clock = Clock.of(times, dates=True)
    found = clock.following(times[-1], len(following))
    assert np.array_equal(clock.shown(found), np.array(following, dtype="datetime64[s]"))


def test_months_and_working_days_are_whole_steps():
    ends = np.arange("2019-02", "2024-02", dtype="datetime64[M]").astype("datetime64[D]") - 1
    times = seconds(*ends)
    clock = Clock.of(times, dates=True)
    assert clock.unit == "month"
    # a month's last day has passed all but one of its 28 to 31 days
    assert np.allclose(clock.steps(times), np.arange(60), atol=0.01)
    assert Periods.of(clock, 60.0) == Periods((12.0,), sure=True)
    days = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    days = days[np.is_busday(days)]
    clock = Clock.of(seconds(*days), dates=True)
    assert (clock.unit, Periods.of(clock, 44.0).steps) == ("working day", (5.0,))
    assert np.array_equal(clock.steps(seconds(*days)), np.arange(len(days)))
    assert np.array_equal(
        clock.shown(clock.following(seconds("2024-03-01")[0], 2)).astype("datetime64[D]"),
        np.array(["2024-03-04", "2024-03-05"], dtype="datetime64[D]"),
    )


def test_cycles_of_the_calendar_are_those_that_are_seen_twice():
    hours = seconds("2024-01-01") + 3600 * np.arange(24 * 30)
    assert Periods.of(Clock.of(hours, dates=True), 720.0).steps == (24.0, 168.0)
    days = seconds("2020-01-01") + 86400 * np.arange(1000)
    assert Periods.of(Clock.of(days, dates=True), 1000.0).steps == (7.0, 365.25)
    assert Periods.of(Clock.of(np.arange(20) / 4, dates=False), 20.0) == Periods((4.0, 7.0), sure=False)


def test_times_are_read_from_texts_and_frames_alike():
    texts = ["2024-01-31", "2024-02-29"]
    found, is_date = read_times(texts, "time")
    assert is_date
    assert np.array_equal(found, seconds(*texts))
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for column in (
        pandas.DatetimeIndex(texts),
        pandas.DatetimeIndex(texts, tz="UTC"),
        pandas.Series(pandas.DatetimeIndex(texts)),
        polars.Series(np.array(texts, dtype="datetime64[ms]")),
        np.array(texts, dtype="datetime64[D]"),
    ):
        assert np.array_equal(read_times(column, "time")[0], found)
    assert np.array_equal(read_times(pandas.PeriodIndex(["2024-01"], freq="M"), "time")[0], seconds("2024-01-01"))
    assert read_times([1, 2.5], "time")[1] is False


def test_clocks_of_the_place_count():
    """A day of 23 hours is a step like the others, as it is where a table has the dates in a column."""
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2020-03-28", periods=3, tz="Europe/Berlin")
    expected = seconds("2020-03-28", "2020-03-29", "2020-03-30")
    for column in (index, index.to_series(), pandas.DataFrame({"t": index})["t"]):
        assert np.array_equal(read_times(column, "time")[0], expected)


def test_months_and_quarters_are_dates():
    for texts in (["1990-01", "1990-04", "", "1991-10"], ["1990-Q1", "1990-Q2", "", "1991-Q4"]):
        with pytest.raises(InvalidInputError, match="no time in row 3"):
            read_times(texts, "time")
        found, is_date = read_times([text for text in texts if text], "time")
        assert is_date
        assert np.array_equal(found, seconds("1990-01-01", "1990-04-01", "1991-10-01"))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["1990-12", "1990-13"], "got '1990-13'"),
        (["01/02/2020", "01/03/2020", "01/04/2020"], "all others fit day/month/year and month/day/year"),
        (["2020-01-31", "soon"], "got 'soon' in row 2"),
        (["", ""], "it has none"),
    ],
)
def test_texts_that_are_no_times_are_refused(texts, message):
    with pytest.raises(InvalidInputError, match=f"must hold dates.*{message}"):
        read_times(texts, "time")
