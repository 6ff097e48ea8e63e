"""CPU seconds of default forecasts by the length of the series, and of many series.

    python benchmarks/forecast_seconds.py --json benchmarks/results/forecast_seconds.json

One thread. Made series: months with a year in logarithms (200), days with a week and a year (2,000), and hours with a
day, a week and a year (100,000), each over a random walk with noise; 24 steps, with mean and quantiles. Many series are
of 200 months each, and run one after the other in this process; on several processors `gigagp.forecast` shares them
out. The first forecast of a process, which loads libraries, is of another series and is not counted.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit
from maps import cpu_seconds, write

import gigagp


def made(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return dates and values of a series of so many rows."""
    random, t = np.random.default_rng(seed), np.arange(n)

    def wave(period: float) -> np.ndarray:
        return np.sin(2 * np.pi * t / period)

    walk, noise = np.cumsum(random.normal(size=n)), random.normal(size=n)
    if n <= 500:
        dates = (np.datetime64("1990-01") + t).astype("datetime64[s]")
        return dates, 50 * np.exp(0.005 * t + 0.3 * wave(12) + 0.02 * walk + 0.05 * noise)
    if n <= 5000:
        days = np.datetime64("2015-01-01T00:00:00") + 86400 * t
        return days, 100 + 10 * wave(7) + 20 * wave(365.25) + walk + 3 * noise
    hours = np.datetime64("2010-01-01T00:00:00") + 3600 * t
    return hours, 100 + 10 * wave(24) + 5 * wave(168) + 20 * wave(8766) + 0.1 * walk + 3 * noise


def forecast(n: int, seed: int = 0) -> str:
    """Forecast a made series; return the models."""
    dates, y = made(n, seed)
    found = gigagp.forecast(y, 24, time=dates, verbose=0)
    found.quantile([0.025, 0.5, 0.975])
    return str(found)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[200, 2000, 100_000])
    parser.add_argument("--series", type=int, default=100, help="number of series of 200 rows")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    forecast(60)
    rows: list[dict[str, object]] = []
    for n in arguments.rows:
        models, seconds = cpu_seconds(lambda: forecast(n))  # noqa: B023
        rows.append({"rows": n, "series": 1, "cpu_s": seconds, "models": models, "commit": commit()})
        print(rows[-1], flush=True)
        write(arguments.json, vars(arguments), rows)
    if arguments.series:
        seconds = cpu_seconds(lambda: [forecast(200, seed) for seed in range(arguments.series)])[1]
        rows.append({"rows": 200, "series": arguments.series, "cpu_s": seconds, "commit": commit()})
        print(rows[-1], flush=True)
        write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
