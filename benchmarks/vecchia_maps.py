"""Vecchia inference on maps, with rows held out at random and in blocks of many sizes.

    python benchmarks/vecchia_maps.py elevation --data FOLDER --json benchmarks/results/vecchia_maps_elevation.json
    python benchmarks/vecchia_maps.py temperature precipitation --data FOLDER --ways vecchia grid linear
    python benchmarks/vecchia_maps.py precipitation --data FOLDER --ways exact --kernels matern

- vecchia: `inference.Vecchia`, with each of the kernels;
- exact: `inference.Iterative`, with each of the kernels;
- grid: `inference.Grid` with a memory budget, with the last of the kernels;
- linear: SciPy's piecewise linear interpolation in longitude and latitude, of each day alone where there are days, and
  the nearest row outside the rows' convex hull. It has no intervals, so that its CRPS is its mean absolute error.

One thread; CPU seconds of fit and prediction apart. Blocks are described in `maps.py`.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import FILES, KERNELS, Split, line, scores, split, write

from gigagp import GPRegressor, inference, metrics
from gigagp.errors import GigaGPWarning

INFERENCES = {"vecchia": inference.Vecchia, "exact": inference.Iterative, "grid": inference.Grid}


def fitted(data: Split, way: str, kernel: str, budget: str) -> dict[str, object]:
    """Return the scores of one fit."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GigaGPWarning)
        gp = GPRegressor(kernel=KERNELS[kernel](), inference=INFERENCES[way](), memory_budget=budget)
        gp.fit(data.X, data.y)
    middle = time.process_time()
    mean, std = gp.predict(data.X_test, return_std=True, include_noise=True)
    end = time.process_time()
    found: dict[str, object] = {"fit_cpu_s": middle - start, "predict_cpu_s": end - middle}
    found |= scores(data.y_test, mean, std, data.size)
    found |= {"fitted": f"{gp.kernel_!r}, noise {gp.noise_variance_:.4g}", "solver": gp.solver_, "engine": gp.engine_}
    found["gradients"] = len(gp.history_)
    found["warnings"] = [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)]
    return found


def linear(data: Split) -> dict[str, object]:
    """Return the scores of piecewise linear interpolation in space; of each day alone where time is an input."""
    start = time.process_time()
    mean, outside = np.full(len(data.y_test), np.nan), 0
    day, of_test = (X[:, 2] if X.shape[1] > 2 else np.zeros(len(X)) for X in (data.X, data.X_test))
    order, order_test = np.argsort(day, kind="stable"), np.argsort(of_test, kind="stable")
    for one in np.unique(of_test):
        here, there = (
            order_[np.searchsorted(days[order_], one) : np.searchsorted(days[order_], one, "right")]
            for order_, days in ((order, day), (order_test, of_test))
        )
        if not len(here):  # nobody measured on that day
            here = order[: np.searchsorted(day[order], one)][-200:]
        mean[there], missing = in_space(data.X[here, :2], data.y[here], data.X_test[there, :2])
        outside += missing
    end = time.process_time()
    found: dict[str, object] = {"fit_cpu_s": 0.0, "predict_cpu_s": end - start, "outside_hull": outside}
    found |= errors(data.y_test, mean)
    if data.size.max() > 0:
        parts = (data.size == number for number in range(data.size.max() + 1))
        found["by_size"] = [{"rows": int(part.sum()), **errors(data.y_test[part], mean[part])} for part in parts]
    return found


def in_space(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, int]:
    """Return linear interpolations, those of the nearest row outside the hull, and how many these are."""
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

    nearest = NearestNDInterpolator(X, y)(X_test)
    if len(np.unique(X, axis=0)) < 4:
        return nearest, len(nearest)
    found = LinearNDInterpolator(X, y)(X_test)
    missing = ~np.isfinite(found)
    return np.where(missing, nearest, found), int(missing.sum())


def errors(y: np.ndarray, mean: np.ndarray) -> dict[str, float]:
    """Return the scores of predictions without intervals."""
    return {"rmse": metrics.rmse(y, mean), "crps": float(np.abs(y - mean).mean())}


def main() -> None:
    """Run the requested ways on the requested maps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", nargs="+", choices=FILES)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=None, help="random rows of the map; default: all")
    parser.add_argument("--splits", nargs="+", default=["random", "blocks"], choices=("blocks", "random"))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--ways", nargs="+", default=["linear", "vecchia"], choices=(*INFERENCES, "linear"))
    parser.add_argument("--seed", type=int, default=0, help="seed of the rows that are held out")
    parser.add_argument("--budget", default="4GiB", help="memory budget of all fits")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for name in arguments.maps:
        for how in arguments.splits:
            data = split(arguments.data, name, how, arguments.rows, arguments.seed)
            print(f"{name}, {how}: {len(data.y):,} rows, {len(data.y_test):,} predicted", flush=True)
            tasks = [
                (way, kernel) for way in ("vecchia", "exact") if way in arguments.ways for kernel in arguments.kernels
            ]
            tasks += [("grid", arguments.kernels[-1])] * ("grid" in arguments.ways)
            tasks += [("linear", "")] * ("linear" in arguments.ways)
            for way, kernel in tasks:
                found = linear(data) if way == "linear" else fitted(data, way, kernel, arguments.budget)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                own = {"map": name, "split": how, "way": way, "kernel": kernel, "rows": len(data.y)}
                rows.append({**own, "predicted": len(data.y_test), **found, "peak_GiB": peak})
                text = line(found) if "nll" in found else f"RMSE {found['rmse']:8.4g}  MAE {found['crps']:8.4g}"
                print(
                    f"  {way:8s}{kernel:7s} fit {found['fit_cpu_s']:6.1f} + predict {found['predict_cpu_s']:5.1f} "
                    f"CPU s  {text}  peak {peak:.1f} GiB",
                    flush=True,
                )
                write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
