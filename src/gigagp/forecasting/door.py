"""`forecast`: from a series, or a table of many, to forecasts."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
#: Series from which several processes share them.
_SHARED = 4


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
    """Forecast a series, with transform, trend, seasons and noise chosen by what they foretell.

    When to use: for the future of measurements in time. Several models are learned, compared by their evidence and by
    left-out last stretches as long as the forecast, and mixed; see `gigagp.forecasting.choice`. The models of more than
    400 values are learned from some of them, and forecast from all, in linear time.

    Parameters
    ----------
    y : series, array or data frame
        Measured values, at equal steps or at the dates of the index of a pandas series. NaN are gaps. Or a data frame
        (pandas, polars, pyarrow) with columns of times, values, names of series and covariates. Rows may be in any
        order, and times may repeat.
    steps : int, optional
        Number of steps to forecast after the last measured value. The step is the usual distance of times: months of
        unequal length, working days and years are known. Default: 24, or the rows that follow the last measured value
        where there are covariates.
    time : str or array-like of shape (n,), optional
        Column with the times, or the times of ``y``: dates or numbers.
    target : str, optional
        Column with the values of a data frame.
    series : str, optional
        Column with the name of the series that a row is of. Each series has its own models.
    covariates : sequence of str
        Columns that are known for the future too, such as holidays, with a linear effect. Rows after the last measured
        value have their future, with NaN as the target.
    periods : sequence of float or "auto", default "auto"
        Lengths of seasons, in steps. ``"auto"``: those of the calendar that the values show (a day, a week, a year), or
        without dates usual ones (4, 7, 12, 24, ...).
    n_jobs : int, optional
        Number of processes for many series. Default: one for each processor, from four series on.
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
        If an argument or the values are invalid, before any work. Of many series, those that fail are named in
        ``failures`` and the others kept.

    Warns
    -----
    FitWarning
        If some of many series fail, or if times repeat and another column tells the rows of a time apart.

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
    known = None if isinstance(periods, str) else tuple(periods)
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


class _Columns:
    """The columns of a table as numbers, with NaN where nothing was measured."""

    def __init__(self, name: str, y: np.ndarray, times: np.ndarray, is_date: bool) -> None:
        self.name, self.y, self.times, self.is_date = name, y, times, is_date
        self.series: np.ndarray = np.zeros(0)
        self.covariates = np.zeros((len(y), 0))
        self.labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, y: Any, time: Any, target: str | None, series: str | None, covariates: Sequence[str]) -> _Columns:
        names = None if hasattr(y, "name") and not hasattr(y, "columns") else intake.frame_names(y)
        if names is None:
            for given, argument in ((target, "target"), (series, "series"), (covariates, "covariates")):
                if given:
                    raise InvalidInputError(f"{argument} of forecast needs a data frame as y; got {type(y).__name__}.")
            values = _numbers(y, "y")
            label = getattr(y, "name", None)
            index = getattr(y, "index", None)
            if isinstance(time, str):
                raise InvalidInputError(
                    f"time of forecast is a column only of a data frame; got {time!r} and a series."
                )
            if (
                time is None
                and hasattr(index, "dtype")
                and (hasattr(index, "tz_localize") or hasattr(index, "to_timestamp"))
            ):
                time = index
            times, is_date = (np.arange(len(values), dtype=float), False) if time is None else read_times(time, "time")
            _require_length("time", times, values)
            return cls("y" if label is None else str(label), values, times, is_date)
        _, columns = intake.table_columns(y, "y")
        by_name = dict(zip(names, columns, strict=True))

        def column(name: str | None, argument: str) -> Any:
            if name not in by_name:
                raise InvalidInputError(
                    f"{argument} of forecast must name a column, one of {', '.join(names)}; got {name!r}."
                )
            return by_name[name]

        values = _numbers(column(target, "target"), f"the column {target!r}")
        is_column = time is None or isinstance(time, str)
        times, is_date = read_times(column(time, "time") if is_column else time, "the column of times")
        _require_length("time", times, values)
        found = cls(str(target), values, times, is_date)
        if series is None:
            used = (target, *covariates, *([time] if is_column else []))
            _warn_of_several_series(times, {name: by_name[name] for name in names if name not in used})
        else:
            found.series = np.array(
                intake.table_columns(y)[1][names.index(series)] if series in names else column(series, "series"),
                dtype=object,
            )
        if covariates:
            found.labels = tuple(covariates)
            found.covariates = np.stack(
                [_numbers(column(one, "covariates"), f"the column {one!r}") for one in covariates], 1
            )
        return found

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
        if float(np.ptp(y[measured])) <= 1e-12 * float(np.abs(y[measured]).max()):
            raise InvalidInputError(
                f"{name} is {y[measured][0]:g} at all times, which does not tell by how much it may change."
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


def _numbers(column: Any, name: str) -> np.ndarray:
    """Return a column of numbers (n,), with NaN in missing cells."""
    values = column if hasattr(column, "to_numpy") else np.asarray(column)
    if getattr(values, "ndim", 1) != 1:
        raise InvalidInputError(f"{name} must be one column of numbers; got shape {values.shape}.")
    return read_cells(values, Place(name), "number").values.copy()


def _warn_of_several_series(times: np.ndarray, others: dict[str, Any]) -> None:
    """Warn where many times repeat and another column tells their rows apart, as the names of several series do."""
    n = len(times)
    if 4 * (n - len(np.unique(times))) < n:
        return
    for name, values in others.items():
        labels, codes = np.unique(np.array(values, dtype=object).astype(str), return_inverse=True)
        if 2 * len(labels) <= n and len(np.unique(np.stack([times, codes]), axis=1).T) == n:
            warn(
                f"Times repeat, and the rows of a time differ in the column {name!r}. They are taken for measurements "
                f"of one series; series={name!r} makes a forecast of each.",
                FitWarning,
            )
            return


def _require_length(name: str, times: np.ndarray, values: np.ndarray) -> None:
    if len(times) != len(values):
        raise InvalidInputError(
            f"{name} of forecast must have a time for each of {len(values):,} values; got {len(times):,}."
        )
