"""Whether the error of ``GPRegressor()`` falls with the number of rows, on the made functions of `model_choice`.

    python benchmarks/more_rows.py --json benchmarks/results/more_rows.json
    python benchmarks/more_rows.py --functions "two scales" --rows 500 5000

The rows of a small fit are the first ones of a large fit, and all predict the same 2,000 others. ``function_rmse`` is
the error of the function. It may rise by chance: a fit is marked as ``worse`` if the squared errors at those points are
larger than those of the best fit to fewer rows by more than two standard errors of their difference, and the RMSE by
5 %. Results are added to those in the JSON file, and replace equal cases.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from model_choice import MADE

#: Numbers of rows, points that are predicted, and the noise's standard deviation.
ROWS, _POINTS, _NOISE = (500, 1000, 2000, 5000, 10_000, 30_000), 2000, 0.1
#: Standard errors and share of the RMSE by which an error must be larger than with fewer rows.
_ERRORS, _SHARE = 2.0, 0.05


def rows_of(function: str, seed: int) -> tuple[np.ndarray, ...]:
    """Return X, y of the largest fit, and the points and the values of the function there."""
    d, made = MADE[function]
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(_POINTS + max(ROWS), d))
    f = made(X)
    y = f + _NOISE * rng.normal(size=len(f))
    return X[_POINTS:], y[_POINTS:], X[:_POINTS], f[:_POINTS]


def fits(function: str, rows: list[int], seed: int) -> list[dict[str, Any]]:
    """Return the scores of the fits to more and more rows."""
    from gigagp import GPRegressor, metrics

    X, y, X_test, f = rows_of(function, seed)
    found: list[dict[str, Any]] = []
    best: np.ndarray | None = None
    for n in sorted(rows):
        began = time.process_time()
        gp = GPRegressor(verbose=0).fit(X[:n], y[:n])
        seconds = time.process_time() - began
        mean, std = gp.predict(X_test, return_std=True)
        squares = np.square(mean - f)
        rmse = float(np.sqrt(squares.mean()))
        row: dict[str, Any] = {
            "function": function,
            "rows": n,
            "seed": seed,
            "function_rmse": rmse,
            "function_coverage": metrics.coverage(f, mean, std),
            "cpu_seconds": seconds,
            "inference": type(gp.inference_).__name__,
            "kernels": [one.name for one in gp.kernel_choice_.tried if one.weight] if gp.kernel_choice_ else [],
            "worse": False,
        }
        if best is not None:
            rise = squares - best
            row["worse"] = bool(
                rise.mean() > _ERRORS * rise.std() / np.sqrt(len(rise))
                and rmse > (1 + _SHARE) * float(np.sqrt(best.mean()))
            )
        best = squares if best is None or squares.mean() < best.mean() else best
        found.append(row)
        print(json.dumps(row), flush=True)
    return found


def main() -> None:
    """Fit every function, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", nargs="+", default=list(MADE), choices=MADE)
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    at, file = commit(), options.json
    kept = json.loads(file.read_text(encoding="utf-8"))["fits"] if file is not None and file.exists() else []
    for function in options.functions:
        new = [{**one, "commit": at} for one in fits(function, options.rows, options.seed)]
        cases = {(one["function"], one["rows"], one["seed"]) for one in new}
        kept = [one for one in kept if (one["function"], one["rows"], one["seed"]) not in cases] + new
        if file is not None:
            worse = [f"{one['function']}, {one['rows']:,} rows" for one in kept if one["worse"]]
            file.write_text(json.dumps({"worse": worse, "fits": kept}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
