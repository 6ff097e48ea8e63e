"""Backtests: forecasts from earlier origins, compared with simple methods and those of statsmodels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.forecasting.choice import choose, quantile_scores
from gigagp.forecasting.result import Forecast, Rows

#: Probabilities at which the continuous ranked probability score is computed, and those of the interval of 95 %.
_LEVELS = (np.arange(40) + 0.5) / 40
_ENDS = (0.025, 0.975)


class Score(NamedTuple):
    """How well a method forecast the held-out values of all origins."""

    rmse: float
    mae: float
    crps: float  # NaN for a method without intervals
    coverage: float  # share of the values in their intervals of 95 %


@dataclass(frozen=True)
class Backtest:
    """Scores of forecasts from earlier origins.

    Attributes
    ----------
    scores : dict of str to Score
        "gigagp", "naive" (the last value), "seasonal naive" (the value one season earlier), and with statsmodels
        "Holt-Winters" and "SARIMA".
    origins : ndarray
        The last known times.
    truth, mean : list of ndarray
        The values that followed, and their forecasts, for each origin.
    """

    scores: dict[str, Score]
    origins: np.ndarray
    truth: list[np.ndarray]
    mean: list[np.ndarray]

    def __str__(self) -> str:
        """Return the scores as a table."""
        lines = [f"{len(self.origins)} origins, {sum(map(len, self.truth))} values"]
        lines += [f"{'':16s}{'RMSE':>10s}{'MAE':>10s}{'CRPS':>10s}{'in 95 %':>10s}"]
        for name, one in self.scores.items():
            lines.append(f"{name:16s}{one.rmse:10.4g}{one.mae:10.4g}{one.crps:10.4g}{one.coverage:10.1%}")
        return "\n".join(lines)


class _Foretold(NamedTuple):
    mean: np.ndarray
    quantiles: np.ndarray | None = None  # at _LEVELS and then _ENDS


def backtest(forecast: Forecast, origins: int, seed: Any) -> Backtest:
    """Return the scores of forecasts from a number of origins; see `Forecast.backtest`."""
    rows = forecast.rows
    t, m = rows.X[: rows.n, 0], len(rows.future)
    horizon = float(rows.X[rows.n :, 0].max() - t[-1])
    ends = [t[-1] - horizon * k for k in range(origins, 0, -1)]
    ends = [end for end in ends if (t <= end).sum() >= max(2 * m, 10)]
    if not ends:
        raise InvalidInputError(
            f"backtest needs a horizon that leaves twice as many values before it; {rows.name} has {rows.n} values and "
            f"{m} steps. Forecast fewer steps."
        )
    lengths = forecast.chosen.periods or forecast.known.steps[: int(forecast.known.sure)]
    foretold: dict[str, list[_Foretold]] = {}
    truth, means = [], []
    for end in ends:
        past, ahead = t <= end, (t > end) & (t <= end + horizon)
        known = Rows(
            rows.name,
            rows.clock,
            rows.times[past],
            rows.y[past],
            rows.times[ahead],
            np.concatenate([rows.covariates[: rows.n][past], rows.covariates[: rows.n][ahead]]),
        )
        again = replace(forecast, rows=known, chosen=choose(known.X, known.y, forecast.known, seed))
        own = _Foretold(again.mean, again.quantile([*_LEVELS, *_ENDS]))
        for name, one in {"gigagp": own, **_peers(known, lengths)}.items():
            foretold.setdefault(name, []).append(one)
        truth.append(rows.y[ahead])
        means.append(own.mean)
    scores = {name: _score(truth, found) for name, found in foretold.items() if len(found) == len(ends)}
    return Backtest(scores, rows.clock.shown(np.array([rows.times[t <= end][-1] for end in ends])), truth, means)


def _score(truth: list[np.ndarray], foretold: list[_Foretold]) -> Score:
    y, mean = np.concatenate(truth), np.concatenate([one.mean for one in foretold])
    rmse, mae = float(np.sqrt(np.mean((y - mean) ** 2))), float(np.mean(np.abs(y - mean)))
    if foretold[0].quantiles is None:
        return Score(rmse, mae, np.nan, np.nan)
    quantiles = np.concatenate([one.quantiles for one in foretold if one.quantiles is not None])
    inside = (y >= quantiles[:, -2]) & (y <= quantiles[:, -1])
    return Score(rmse, mae, float(quantile_scores(y, quantiles[:, :-2], _LEVELS).mean()), float(inside.mean()))


def _peers(rows: Rows, periods: tuple[float, ...]) -> dict[str, _Foretold]:
    """Return what other methods foretell; those of statsmodels need rows at every step."""
    t, y = rows.X[:, 0], rows.y
    lag = max(1, round(periods[0])) if periods else 1
    past, future = t[: rows.n], t[rows.n :]
    before = future[:, None] - lag * np.ceil((future - past[-1]) / lag)[:, None]
    season_before = np.abs(past[None] - before).argmin(1)
    found = {"naive": _Foretold(np.full(len(future), y[-1])), "seasonal naive": _Foretold(y[season_before])}
    if len(y) > 2 * lag and np.allclose(np.diff(t), 1.0, atol=0.1):
        for name, method in {"Holt-Winters": _holt_winters, "SARIMA": _sarima}.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found[name] = method(y, lag, len(future))
            except (ImportError, ValueError, IndexError, np.linalg.LinAlgError):  # not installed, or not fitted
                continue
    return found


def _holt_winters(y: np.ndarray, lag: int, count: int) -> _Foretold:
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    kind = None if lag == 1 else "mul" if (y > 0).all() else "add"
    fit: Callable[..., Any] = ExponentialSmoothing
    model = fit(y, trend="add", seasonal=kind, seasonal_periods=lag if kind else None)
    return _Foretold(np.asarray(model.fit().forecast(count)))


def _sarima(y: np.ndarray, lag: int, count: int) -> _Foretold:
    """Return the forecast of the airline model, of logarithms where there are."""
    from scipy.special import ndtri
    from statsmodels.tsa.statespace.sarimax import SARIMAX

    in_logs = bool((y > 0).all())
    model = SARIMAX(
        np.log(y) if in_logs else y, order=(1, 1, 1), seasonal_order=(0, 1, 1, lag) if lag > 1 else (0,) * 4
    )
    found = model.fit(disp=False).get_forecast(count)
    mean, std = np.asarray(found.predicted_mean), np.asarray(found.se_mean)
    quantiles = mean[:, None] + std[:, None] * ndtri([*_LEVELS, *_ENDS])
    return _Foretold(np.exp(mean), np.exp(quantiles)) if in_logs else _Foretold(mean, quantiles)
