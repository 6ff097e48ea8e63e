"""Daily wind at twelve Irish stations with gaps: a panel beside fits apart, kriging day by day, and neighbours.

    python benchmarks/irish_wind.py --data ../shared/data --json benchmarks/results/irish_wind.json

Haslett and Raftery (1989): 6,574 days from 1961 to 1978, in knots. ``gaps`` is what is missing and predicted: "random"
a fifth of the cells, and a station's name its own last 500 days (or half of them), while all others go on.

- "panel" is a default fit of a long table, ``panel=("station", "day")``, with the places of the stations.
- "levels" is the same without the places: what stations have in common is learned.
- "correlated" is ``outputs="correlated"``: days as rows, stations as outputs.
- "apart" has a default fit of each station to its own days.
- "kriging" predicts each day from the other stations of that day alone, with means and covariances of the stations
  that were observed (simple kriging; pairs of stations from days on which both were observed).
- "stacked" is ``inference.Vecchia`` with one Matern kernel of place and day.

RMSE is in knots, ``coverage`` that of 95 % intervals of measurements, and ``cpu_s`` that of fit and prediction.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from checkout import commit
from earlier_run import earlier_rows

from gigagp import GPRegressor, inference, kernels, metrics

STATIONS = ("RPT", "VAL", "ROS", "KIL", "SHA", "BIR", "DUB", "CLA", "MUL", "CLO", "BEL", "MAL")
_ENDED, _SHARE, _RADIUS = 500, 0.2, 111.2  # days, missing cells, km of a degree

#: Mean and standard deviation of measurements, (days, stations), from places (stations, 2) and values with NaN.
Model = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def read(folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the stations in km, (12, 2), and the wind in knots, (6574, 12); without a folder, made."""
    if folder is None:
        draw = np.random.default_rng(0)
        wind = 10 + draw.standard_normal((600, 1)).cumsum(0) / 3 + draw.standard_normal((600, len(STATIONS)))
        return draw.uniform(0, 300, (len(STATIONS), 2)), wind
    known = pd.read_parquet(folder / "geostatistics" / "irish-wind-stations.parquet")
    known["Code"] = known["Code"].str.strip()
    known = known.set_index("Code").loc[list(STATIONS)]

    def degrees(text: str) -> float:
        numbers = [float(one) for one in re.findall(r"[\d.]+", text)]
        return sum(one / 60**k for k, one in enumerate(numbers))

    north, west = known["Latitude"].map(degrees).to_numpy(), known["Longitude"].map(degrees).to_numpy()
    places = _RADIUS * np.stack([-west * np.cos(np.radians(north.mean())), north], 1)
    wind = pd.read_parquet(folder / "geostatistics" / "irish-wind.parquet")
    return places, wind[list(STATIONS)].to_numpy(float)


def cells(places: np.ndarray, days: int) -> pd.DataFrame:
    """Return a row for each day and station, day by day."""
    found = pd.DataFrame({"station": np.tile(STATIONS, days), "day": np.repeat(np.arange(days), len(STATIONS))})
    return found.assign(east=np.tile(places[:, 0], days), north=np.tile(places[:, 1], days))


def _of_long(gp: GPRegressor, columns: list[str], places: np.ndarray, values: np.ndarray) -> tuple[Any, Any]:
    """Return the answer of a fit to the observed cells as rows."""
    table, seen = cells(places, len(values))[columns], ~np.isnan(values).ravel()
    gp.fit(table[seen], values.ravel()[seen])
    found = gp.predict(table[~seen], return_std=True, include_noise=True)
    mean, std = np.full((2, *values.shape), np.nan)
    for whole, one in zip((mean, std), found, strict=True):
        whole[np.isnan(values)] = one
    return mean, std


def panel(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer of the default fit of a panel."""
    gp = GPRegressor(panel=("station", "day"), random_state=0)
    return _of_long(gp, ["station", "day", "east", "north"], places, values)


def levels(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer of the default fit of a panel without inputs of its entities."""
    gp = GPRegressor(panel=("station", "day"), random_state=0)
    return _of_long(gp, ["station", "day"], places, values)


def stacked(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer of neighbours in place and day."""
    gp = GPRegressor(kernels.Matern(1.5), inference=inference.Vecchia(), random_state=0)
    return _of_long(gp, ["day", "east", "north"], places, values)


def correlated(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer of stations as correlated outputs."""
    days = np.arange(float(len(values)))[:, None]
    gp = GPRegressor(outputs="correlated", random_state=0).fit(days, values)
    missing = np.isnan(values).any(1)
    mean, std = np.full((2, *values.shape), np.nan)
    mean[missing], std[missing] = gp.predict(days[missing], return_std=True, include_noise=True)
    return mean, std


def apart(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the answer of one default fit for each station with gaps."""
    mean, std = np.full((2, *values.shape), np.nan)
    days = np.arange(float(len(values)))[:, None]
    for k, series in enumerate(values.T):
        missing = np.isnan(series)
        if missing.any():
            gp = GPRegressor(random_state=0).fit(days[~missing], series[~missing])
            mean[missing, k], std[missing, k] = gp.predict(days[missing], return_std=True, include_noise=True)
    return mean, std


def kriging(places: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best linear prediction from the other stations of each day."""
    table = pd.DataFrame(values)
    means, (values_of, vectors) = table.mean().to_numpy(), np.linalg.eigh(table.cov().to_numpy())
    covariance = (vectors * values_of.clip(1e-3 * values_of.max())) @ vectors.T  # pairs of few days have no covariance
    mean, std = np.full((2, *values.shape), np.nan)
    for day, row in enumerate(values):
        missing = np.isnan(row)
        if missing.any():
            seen = ~missing
            weights = np.linalg.solve(covariance[np.ix_(seen, seen)], covariance[np.ix_(seen, missing)])
            mean[day, missing] = means[missing] + (row - means)[seen] @ weights
            left = covariance[np.ix_(missing, missing)] - covariance[np.ix_(missing, seen)] @ weights
            std[day, missing] = np.sqrt(np.diag(left))
    return mean, std


MODELS: dict[str, Model] = {
    "kriging": kriging,
    "panel": panel,
    "levels": levels,
    "stacked": stacked,
    "apart": apart,
    "correlated": correlated,
}


def main() -> None:
    """Run all gaps and models, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder with geostatistics/; without it made wind")
    parser.add_argument("--gaps", nargs="+", default=["random", *STATIONS], choices=("random", *STATIONS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--days", type=int, default=None, help="the last days alone")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the JSON file, and run the others")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = commit()
    places, wind = read(options.data)
    wind = wind[-(options.days or len(wind)) :]
    records = earlier_rows(parser, options)
    for gaps in options.gaps:
        values = wind.copy()
        if gaps == "random":
            values[np.random.default_rng(0).random(wind.shape) < _SHARE] = np.nan
        else:
            values[-min(_ENDED, len(wind) // 2) :, STATIONS.index(gaps)] = np.nan
        missing = np.isnan(values)
        done = {row["model"] for row in records if row["gaps"] == gaps}
        for model in (one for one in options.models if one not in done):
            began = time.process_time()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                mean, std = (one[missing] for one in MODELS[model](places, values))
            truth = wind[missing]
            records.append(
                {"gaps": gaps, "model": model, "rmse": metrics.rmse(truth, mean)}
                | {"coverage": metrics.coverage(truth, mean, std, 0.95)}
                | {"nll": metrics.gaussian_nll(truth, mean, std), "cpu_s": time.process_time() - began}
                | {"observed": int((~missing).sum()), "missing": len(truth)}
                | {"commit": where, "warnings": sorted({str(one.message)[:200] for one in caught})}
            )
            print(records[-1], flush=True)
            if options.json is not None:
                settings = {"threads": 1, "days": len(wind)}
                text = json.dumps({"settings": settings, "rows": records}, indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
