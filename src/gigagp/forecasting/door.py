"""`forecast`: forecasts of a series, or of many in one table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gigagp.errors import FitWarning, GigaGPError, InvalidInputError, warn
from gigagp.estimators.guard import guarded
from gigagp.forecasting.choice import choose
from gigagp.forecasting.result import Forecast, Forecasts, Rows
from gigagp.forecasting.times import Clock, Periods, read_times
from gigagp.runtime.progress import Verbosity, meter_for
from gigagp.settings.fields import Count, Positive, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.tables import intake
from gigagp.tables.cells import Place
from gigagp.tables.encoding.reading import read_cells

#: Fewest measured values of a series.
FEWEST = 4
#: Most values with covariates, which have no pass in linear time.
_MOST_WITH_COVARIATES = 5000
#: Most steps of a forecast, whose covariance is held while samples and components are drawn.
_MOST_STEPS = 100_000
#: Series from which several processes share them.
_SHARED = 4
#: Spread and size of values whose squares, and those of their roundings, are numbers of float64.
_SMALLEST, _LARGEST = 1e-140, 1e140
#: What a column holds that has no numbers, in words.
_KINDS = {"date": "dates", "category": "strings"}
#: Shortest season in steps: what changes faster does not show.
_SHORTEST = 2.0


@checks_arguments
def forecast(
    y: Any,
    steps: Count | None = None,
    *,
    time: Any = None,
    target: str | None = None,
    series: str | None = None,
    covariates: Sequence[str] = (),
    periods: Sequence[Positive] | Literal["auto"] = "auto",
    n_jobs: Count | None = None,
    random_state: RandomState = 0,
    verbose: Verbosity = "auto",
) -> Forecast | Forecasts:
    """Forecast a series; transform, trend, seasons and noise are chosen by how well they forecast.

    When to use: to forecast a time series. Several models are learned, compared by their evidence and by forecasts of
    held-out final stretches as long as the forecast, and averaged; see `gigagp.forecasting.choice`. With more than 400
    values, the models are learned from some of them and forecast from all, in linear time.

    Parameters
    ----------
    y : series, array or data frame
        Measured values at equal steps, or at the dates in the index of a pandas series. NaN marks a gap. Or a data
        frame (pandas, polars, pyarrow) with columns of times, values, names of series and covariates; the times may be
        an index of dates. Rows may be in any order, and times may repeat.
    steps : int, optional
        Number of steps to forecast after the last measured value. The step is the usual interval between times; months
        of unequal length, working days and years are recognised. Default: 24, or with covariates the number of rows
        after the last measured value.
    time : str or array-like of shape (n,), optional
        Column with the times, or the times of ``y``: dates, months (2024-03), quarters (2024-Q1) or numbers. With a
        time zone, local time is used.
    target : str, optional
        Column with the values of a data frame.
    series : str, optional
        Column with the name of the series of each row. Each series has its own models.
    covariates : sequence of str
        Columns that are also known for the future, such as holidays, with a linear effect. Their future values are in
        the rows after the last measured value, with NaN as the target.
    periods : sequence of float or "auto", default "auto"
        Lengths of seasons, in steps. ``"auto"``: those calendar periods (a day, a week, a year) that the values show,
        or without dates common ones (4, 7, 12, 24, ...).
    n_jobs : int, optional
        Number of processes for many series. Default: one per processor, from four series on.
    random_state : int, RandomState, Generator or None, default 0
        Seed.
    verbose : {"auto", 0, 1, 2} or Meter, default "auto"
        As for `GPRegressor`.

    Returns
    -------
    Forecast, or Forecasts for a column of many series

    Raises
    ------
    InvalidInputError
        If an argument or the values are invalid, before anything is computed. With many series, those that fail are
        listed in ``failures`` and the others are kept.

    Warns
    -----
    FitWarning
        If some of many series fail, or if times repeat and another column distinguishes the rows of a time.

    Examples
    --------
    >>> import numpy as np
    >>> import gigagp
    >>> t = np.arange(60)
    >>> found = gigagp.forecast(10 + np.sin(2 * np.pi * t / 12) + 0.01 * np.cos(t**2), steps=12)
    >>> found.mean.shape
    (12,)
    >>> bool(abs(found.mean[0] - 10) < 0.1)
    True
    """
    known = None if isinstance(periods, str) else _lengths(periods)
    if steps is not None and steps > _MOST_STEPS:
        raise InvalidInputError(f"steps of forecast must be at most {_MOST_STEPS:,}; got {steps:,}.")
    covariates = [covariates] if isinstance(covariates, str) else list(covariates)
    columns = _Columns.of(y, time, target, series, covariates)
    if series is None:
        rows = columns.rows(np.arange(len(columns.y)), columns.name, steps)
        with meter_for(verbose, job="forecast"):
            return _forecast(rows, known, random_state)
    parts = {name: np.flatnonzero(columns.series == name) for name in dict.fromkeys(columns.series.tolist())}
    found, failures = {}, {}
    with meter_for(verbose, job=f"{len(parts):,} forecasts") as meter:
        meter.phase("forecasting", len(parts), unit="series", then=0.0)
        for name, one in _each(columns, parts, steps, known, random_state, n_jobs):
            meter.step()
            if isinstance(one, str):
                failures[name] = one
            else:
                found[name] = one
    if failures:
        name, why = next(iter(failures.items()))
        text = f"{len(failures):,} of {len(parts):,} series have no forecast, such as {name!r}: {why}"
        if not found:
            raise InvalidInputError(text)
        warn(f"{text} The attribute failures has all of them.", FitWarning)
    return Forecasts(found, failures)


def _each(columns: Any, parts: Any, steps: Any, known: Any, seed: Any, n_jobs: int | None) -> Any:
    """Yield the name of each series and its forecast, or why there is none."""
    count = n_jobs or (len(os.sched_getaffinity(0)) if len(parts) >= _SHARED else 1)
    jobs = ((columns, which, name, steps, known, seed) for name, which in parts.items())
    if count == 1:
        yield from zip(parts, map(_attempt, jobs), strict=True)
        return
    from joblib import Parallel, delayed

    shared = Parallel(n_jobs=count, return_as="generator")
    yield from zip(parts, shared(delayed(_attempt)(job) for job in jobs), strict=True)


def _attempt(job: tuple[Any, ...]) -> Forecast | str:
    columns, which, name, steps, known, seed = job
    try:
        return _forecast(columns.rows(which, str(name), steps), known, seed)
    except GigaGPError as error:
        return str(error)


@guarded()
def _forecast(rows: Rows, known: tuple[float, ...] | None, seed: Any) -> Forecast:
    steps = rows.X[:, 0]
    span = float(steps[rows.n - 1] - steps[0]) + 1
    periods = Periods.of(rows.clock, span) if known is None else Periods(known, sure=True)
    return Forecast(rows, choose(rows.X, rows.y, periods, seed), periods)


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a table as numbers, with NaN where nothing was measured."""

    name: str
    y: np.ndarray
    times: np.ndarray
    is_date: bool
    series: np.ndarray  # names
    covariates: np.ndarray
    labels: Sequence[str] = ()

    @classmethod
    def of(cls, y: Any, time: Any, target: str | None, series: str | None, covariates: Sequence[str]) -> _Columns:
        if (hasattr(y, "name") and not hasattr(y, "columns")) or intake.frame_names(y) is None:
            for given, argument in ((target, "target"), (series, "series"), (covariates, "covariates")):
                if given:
                    raise InvalidInputError(f"{argument} of forecast needs a data frame as y; got {type(y).__name__}.")
            return cls._of_series(y, time)
        named = [one for one in (target, series, *covariates, time if isinstance(time, str) else None) if one]
        for name in named:
            if named.count(name) > 1:
                raise InvalidInputError(
                    f"time, target, series and covariates of forecast must be different columns; got {name!r} twice."
                )
        return cls._of_frame(y, time, target, series, covariates)

    @classmethod
    def _of_series(cls, y: Any, time: Any) -> _Columns:
        if isinstance(time, str):
            raise InvalidInputError(f"time of forecast is a column only of a data frame; got {time!r} and a series.")
        values, label = _numbers(y, "y"), getattr(y, "name", None)
        time = _index(y, also_numbers=True) if time is None else time
        times, is_date = (np.arange(len(values), dtype=float), False) if time is None else read_times(time, "time")
        _require_length(times, values)
        return cls("y" if label is None else str(label), values, times, is_date, values[:0], np.zeros((len(values), 0)))

    @classmethod
    def _of_frame(cls, y: Any, time: Any, target: str | None, series: str | None, labels: Sequence[str]) -> _Columns:
        names, (_, columns) = intake.frame_names(y), intake.table_columns(y, "y")
        assert names is not None, "it is a data frame"
        by_name = dict(zip(names, columns, strict=True))

        def column(name: str | None, argument: str) -> Any:
            if name not in by_name:
                raise InvalidInputError(
                    f"{argument} of forecast must name a column, one of {', '.join(names)}; got {name!r}."
                )
            return by_name[name]

        values = _numbers(column(target, "target"), f"the column {target!r}")
        index = _index(y)
        if index is not None and time in (None, index.name) and time not in by_name:
            time = index
        is_column = time is None or isinstance(time, str)
        times, is_date = read_times(column(time, "time") if is_column else time, "the column of times")
        _require_length(times, values)
        if series is None:
            used = (target, *labels, time if is_column else None)
            _warn_of_several_series(times, {name: by_name[name] for name in names if name not in used})
            which = values[:0]
        else:
            which = np.array(column(series, "series"), dtype=object)
            nameless = [one is None or one != one for one in which.tolist()]
            if any(nameless):
                raise InvalidInputError(
                    f"the column {series!r} names no series in row {nameless.index(True) + 1}. Leave such rows out."
                )
        known = [_numbers(column(one, "covariates"), f"the column {one!r}") for one in labels]
        covariates = np.stack(known, 1) if known else np.zeros((len(values), 0))
        return cls(str(target), values, times, is_date, which, covariates, labels)

    def rows(self, which: np.ndarray, name: str, steps: int | None) -> Rows:
        """Return a series of some rows, or raise `InvalidInputError` where it has no forecast."""
        order = which[np.argsort(self.times[which], kind="stable")]
        times, y, known = self.times[order], self.y[order], self.covariates[order]
        measured = np.isfinite(y)
        count = int(measured.sum())
        if count < FEWEST:
            raise InvalidInputError(f"{name} has {count} measured values; a forecast needs at least {FEWEST}.")
        if len(np.unique(times[measured])) < FEWEST:
            raise InvalidInputError(f"{name} has fewer than {FEWEST} different times; a forecast needs that many.")
        largest, spread = float(np.abs(y[measured]).max()), float(np.ptp(y[measured]))
        if spread <= 1e-12 * largest:
            raise InvalidInputError(
                f"{name} is {y[measured][0]:g} at all times, which does not show by how much it may change."
            )
        if spread < _SMALLEST or largest > _LARGEST:
            raise InvalidInputError(
                f"{name} has values whose squares leave the range of float64: up to {largest:g}. Change its unit."
            )
        past, last = measured, times[measured][-1]
        clock = Clock.of(times[past], dates=self.is_date)
        if not self.labels:
            future = clock.following(float(last), 24 if steps is None else steps)
            return Rows(name, clock, times[past], y[past], future, np.zeros((count + len(future), 0)))
        after = times > last
        if not after.any() or (steps is not None and int(after.sum()) < steps):
            raise InvalidInputError(
                f"{name} has {int(after.sum())} rows with covariates after its last measured value, and "
                f"{'at least one is' if steps is None else f'{steps} are'} needed. Add rows with NaN as the target."
            )
        ahead = np.flatnonzero(after)[:steps]
        used = np.concatenate([np.flatnonzero(past), ahead])
        bad = ~np.isfinite(known[used])
        if bad.any():
            row, column = (int(one) for one in np.argwhere(bad)[0])
            raise InvalidInputError(
                f"{name} has no value of the covariate {self.labels[column]!r} at its row {row + 1} by time."
            )
        if count > _MOST_WITH_COVARIATES:
            raise InvalidInputError(
                f"{name} has {count:,} values, and covariates are for at most {_MOST_WITH_COVARIATES:,}. Take the "
                "latest ones."
            )
        return Rows(name, clock, times[past], y[past], times[ahead], known[used])


def _lengths(periods: Sequence[Any]) -> tuple[float, ...]:
    """Return the lengths of seasons."""
    try:
        found = np.asarray(periods, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.ndim != 1 or not (np.isfinite(found) & (found >= _SHORTEST)).all() or len(found) != len(periods):
        msg = f'periods of forecast must be "auto" or numbers of steps, each at least {_SHORTEST:g}; got {periods}.'
        raise InvalidInputError(msg)
    return tuple(float(one) for one in found)


def _numbers(column: Any, name: str) -> np.ndarray:
    """Return a column of numbers (n,), with NaN in missing cells."""
    values = column if hasattr(column, "to_numpy") else np.asarray(column)
    if getattr(values, "ndim", 1) != 1:
        raise InvalidInputError(f"{name} must be one column of numbers; got shape {values.shape}.")
    found = read_cells(values, Place(name))
    if found.kind == "date" or (found.kind == "category" and not set(found.texts) <= {"true", "false"}):
        got = f", such as {found.texts[0]!r}" if found.texts else ""
        raise InvalidInputError(f"{name} must be a column of numbers; got one of {_KINDS[found.kind]}{got}.")
    return read_cells(values, Place(name), "number").values.copy()


def _index(values: Any, *, also_numbers: bool = False) -> Any:
    """Return the index of a pandas object if it has dates, or where asked for numbers in equal steps; else None."""
    index: Any = getattr(values, "index", None)
    if hasattr(index, "tz_localize") or hasattr(index, "to_timestamp"):
        return index
    if also_numbers and hasattr(index, "dtype") and getattr(index.dtype, "kind", "") in "iuf":
        steps = np.diff(index.to_numpy())
        return index if len(steps) and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6, atol=0) else None
    return None


def _warn_of_several_series(times: np.ndarray, others: dict[str, Any]) -> None:
    """Warn where many times repeat and another column tells their rows apart, as the names of several series do."""
    n = len(times)
    if 4 * (n - len(np.unique(times))) < n:
        return
    for name, values in others.items():
        labels, codes = np.unique(np.array(values, dtype=object).astype(str), return_inverse=True)
        if 2 * len(labels) <= n and len(np.unique(np.stack([times, codes]), axis=1).T) == n:
            warn(
                f"Times repeat, and the rows of a time differ in the column {name!r}. They are treated as measurements "
                f"of one series; series={name!r} makes a forecast of each.",
                FitWarning,
            )
            return


def _require_length(times: np.ndarray, values: np.ndarray) -> None:
    if len(times) != len(values):
        raise InvalidInputError(
            f"time of forecast must have a time for each of {len(values):,} values; got {len(times):,}."
        )
