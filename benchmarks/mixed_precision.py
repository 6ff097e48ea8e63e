"""Compare the same fit in float64, in mixed precision and in float32: test scores, and times as ratios.

    python benchmarks/mixed_precision.py --data ../shared/data --table pol

Each fit is `GPRegressor(inference=Iterative())` with default settings, on the training rows of a split, followed by a
prediction of all test rows; all run one after the other in one process. ``--tiles`` keeps the kernel matrix out of
memory, so that every product recomputes its entries.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import GPRegressor, __version__, inference, kernels, metrics

_TILES_BUDGET = "1GiB"


def main() -> None:
    """Fit in each precision, print scores and ratios, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="pol")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "mixed", "float32"])
    parser.add_argument(
        "--tiles", action="store_true", help=f"use a memory budget of {_TILES_BUDGET}, too small to store H"
    )
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    X, y, X_test, y_test = read_split(arguments.data, arguments.table, 0, arguments.rows)
    print(f"gigagp {__version__}, {arguments.table}, {len(y):,} rows, {arguments.threads} threads", flush=True)
    results: list[dict[str, object]] = []
    for dtype in arguments.dtypes:
        wall, cpu = time.perf_counter(), time.process_time()
        budget = _TILES_BUDGET if arguments.tiles else None
        gp = GPRegressor(
            kernels.Matern(nu=1.5), inference=inference.Iterative(), dtype=dtype, memory_budget=budget, random_state=0
        ).fit(X, y)
        mean, std = gp.predict(X_test, return_std=True, include_noise=True)
        row = {
            "dtype": dtype,
            "rmse": metrics.rmse(y_test, mean),
            "log_likelihood": -metrics.gaussian_nll(y_test, mean, std),
            "cpu_seconds": time.process_time() - cpu,
            "seconds": time.perf_counter() - wall,
            "evaluations": len(gp.history_),
            "epochs": gp.history_.epochs,
            "engine": gp.engine_,
        }
        results.append(row)
        ratio = float(results[0]["cpu_seconds"]) / float(row["cpu_seconds"])  # type: ignore[arg-type]
        print(
            f"{dtype:8s} RMSE {row['rmse']:.5f}, log-likelihood {row['log_likelihood']:.5f}, "
            f"{row['cpu_seconds']:.1f} CPU s ({ratio:.2f} times faster), {row['seconds']:.1f} wall, "
            f"{row['evaluations']} evaluations, {row['epochs']:.0f} epochs, {row['engine']}",
            flush=True,
        )
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"version": __version__, "rows": len(y), "fits": results}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
