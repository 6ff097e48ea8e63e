"""Vecchia inference on maps, with rows held out at random and in blocks of many sizes.

    python benchmarks/vecchia_maps.py elevation --data FOLDER --json benchmarks/results/vecchia_maps_elevation.json
    python benchmarks/vecchia_maps.py temperature precipitation --data FOLDER --ways vecchia grid linear
    python benchmarks/vecchia_maps.py precipitation --data FOLDER --ways exact --kernels matern

- vecchia: `inference.Vecchia`, with each of the kernels;
- exact: `inference.Iterative`, with each of the kernels;
- grid: `inference.Grid` with a memory budget, with the last of the kernels;
- linear: SciPy's piecewise linear interpolation of at most `--linear-rows` random rows, and the nearest row outside
  their convex hull. It has no intervals, so that its CRPS is its mean absolute error.

One thread; CPU seconds of fit and prediction apart. Blocks are described in `maps.py`.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import FILES, Split, line, scores, split, write

from gigagp import GPRegressor, inference, kernels, metrics
from gigagp.errors import GigaGPWarning

KERNELS = {
    "matern": lambda: kernels.Matern(nu=1.5),
    "half": lambda: kernels.Matern(nu=0.5),
    "rough": lambda: kernels.Matern(nu=1.5) + kernels.Matern(nu=0.5),
}
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


def linear(data: Split, most: int) -> dict[str, object]:
    """Return the scores of piecewise linear interpolation of random rows, with inputs in units of their deviation."""
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import cKDTree

    start = time.process_time()
    chosen = np.random.default_rng(0).permutation(len(data.y))[:most]
    spread = data.X.std(0)
    X, y, X_test = data.X[chosen] / spread, data.y[chosen], data.X_test / spread
    interpolator = LinearNDInterpolator(X, y)
    middle = time.process_time()
    mean = interpolator(X_test)
    outside = ~np.isfinite(mean)
    tree = cKDTree(X, balanced_tree=False)  # a balanced tree overflows the stack where many coordinates are equal
    mean[outside] = y[tree.query(X_test[outside])[1]] if outside.any() else 0
    end = time.process_time()
    found: dict[str, object] = {"fit_cpu_s": middle - start, "predict_cpu_s": end - middle}
    found |= {"outside_hull": int(outside.sum()), "rows_used": len(y)}
    found |= errors(data.y_test, mean)
    if data.size.max() > 0:
        parts = (data.size == number for number in range(data.size.max() + 1))
        found["by_size"] = [{"rows": int(part.sum()), **errors(data.y_test[part], mean[part])} for part in parts]
    return found


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
    parser.add_argument("--linear-rows", type=int, default=None, help="default: all, and 30,000 of three inputs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    for name in arguments.maps:
        for how in arguments.splits:
            data = split(arguments.data, name, how, arguments.rows, arguments.seed)
            print(f"{name}, {how}: {len(data.y):,} rows, {len(data.y_test):,} predicted", flush=True)
            tasks = [(way, kernel) for way in ("vecchia", "exact") if way in arguments.ways for kernel in arguments.kernels]
            tasks += [("grid", arguments.kernels[-1])] * ("grid" in arguments.ways)
            tasks += [("linear", "")] * ("linear" in arguments.ways)
            for way, kernel in tasks:
                if way == "linear":
                    few = len(data.y) if data.X.shape[1] == 2 else 30_000
                    found = linear(data, arguments.linear_rows or few)
                else:
                    found = fitted(data, way, kernel, arguments.budget)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
                own = {"map": name, "split": how, "way": way, "kernel": kernel, "rows": len(data.y)}
                rows.append({**own, "predicted": len(data.y_test), **found, "peak_GiB": peak})
                text = line(found) if "nll" in found else f"RMSE {found['rmse']:8.4g}  MAE {found['crps']:8.4g}"
                print(
                    f"  {way:8s}{kernel:7s} fit {found['fit_cpu_s']:6.1f} + predict {found['predict_cpu_s']:5.1f} CPU s  "
                    f"{text}  peak {peak:.1f} GiB",
                    flush=True,
                )
                write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
