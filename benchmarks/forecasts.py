r"""Hold the forecasts and the choice of ``inference="auto"`` against what happens within the same time budgets.

    python benchmarks/forecasts.py --resume --json benchmarks/results/forecasts_twelve.json
    python benchmarks/forecasts.py --judge --json benchmarks/results/forecasts_twelve.json --picture \
        docs/figures/forecasts.png > benchmarks/results/forecasts_twelve_judged.json
    python benchmarks/forecasts.py --tables million --rows 1000000 --budgets 600 --methods auto trees

Every method has the same budget, in seconds of wall time, and runs in a process of its own. "auto" forecasts its time,
the root mean square error and the negative log density of new rows; the others show what could have been chosen: those
that can serve so many rows and inputs, unless methods are named. An inference that ended by itself in half of a smaller
budget is not run again in a larger one. "trees" is scikit-learn's `HistGradientBoostingRegressor` with its defaults,
which knows no budget. "million" is a made function of eight inputs. Scores are in standard deviations of the training
targets, on at most 10,000 held-out rows. More rows than a table has are all of its rows. Every result has the commit
that it was found at.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from checkout import commit
from earlier_run import earlier_rows
from grid_problems import rows_of
from large_tables import scores
from maps import FILES, read_map, write
from splits import read_split

from gigagp import GPRegressor, inference, kernels
from gigagp.estimators.metrics import rmse

METHODS = {
    "auto": "auto",
    "iterative": inference.Iterative(),
    "neighbours": inference.Vecchia(60),
    "sparse": inference.SparseVariational(n_inducing=512),
    "exact": inference.Exact(),
    "grid": inference.Grid(),
    "computation-aware": inference.ComputationAware(),
    "quadruply": inference.QuadruplyStochastic(),
    "random-features": inference.RandomFeatures(),
}
UCI = ("kin40k", "protein", "pol", "elevators", "bike", "keggdirected", "parkinsons")
TABLES = (*UCI, "sound", "elevation", "temperature", "precipitation", "radar")
#: Most rows that exact inference is compared at, and fewest rows and most inputs for sparse methods and grids.
_EXACT_ROWS, _SPARSE_ROWS, _GRID_ROWS, _GRID_INPUTS = 5000, 4000, 4000, 2
_TEST_ROWS = 10_000


def read(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test with at most so many random training rows; targets are z-scored."""
    random = np.random.default_rng(1)
    if name not in UCI:
        X, y = (
            made(rows + _TEST_ROWS)
            if name == "million"
            else read_map(folder, name)
            if name in FILES
            else rows_of(name, folder)
        )
        order = random.permutation(len(y))
        held_out = min(_TEST_ROWS, len(y) // 10)
        test, train = order[:held_out], order[held_out:][:rows]
        X, y, X_test, y_test = X[train], y[train], X[test], y[test]
    else:
        X, y, X_test, y_test = read_split(folder, name, rows=rows)
        some = random.permutation(len(y_test))[:_TEST_ROWS]
        X_test, y_test = X_test[some], y_test[some]
    centre, spread = y.mean(), y.std()
    return X, (y - centre) / spread, X_test, (y_test - centre) / spread


def made(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform inputs and a function with waves of several lengths, an interaction and noise."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(rows, 8))
    f = np.sin(6 * X[:, 0]) + np.sin(20 * X[:, 1]) * X[:, 2] + 2 * X[:, 3] * X[:, 4] + np.abs(X[:, 5] - 0.5)
    return X, f + 0.3 * random.normal(size=rows)


def run(folder: Path, name: str, rows: int, budget: float, method: str) -> dict[str, object]:
    """Return what a method does within a budget."""
    X, y, X_test, y_test = read(folder, name, rows)
    result: dict[str, object] = {"table": name, "rows": len(y), "inputs": X.shape[1], "budget_s": budget}
    result["method"] = method
    started, cpu = time.perf_counter(), time.process_time()
    if method == "trees":
        from sklearn.ensemble import HistGradientBoostingRegressor

        trees = HistGradientBoostingRegressor(random_state=0).fit(X, y)
        result |= {"fit_s": time.perf_counter() - started, "rmse": rmse(y_test, trees.predict(X_test))}
        return result
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=METHODS[method], time_budget=budget).fit(X, y)
    result |= {"fit_s": time.perf_counter() - started, "fit_cpu_s": time.process_time() - cpu}
    result |= {"ended": repr(gp.inference_), "interrupted": gp.history_.interrupted}
    result["warnings"] = sorted({type(one.message).__name__ for one in caught})
    if gp.plan_ is not None:
        chosen = gp.plan_.chosen
        result |= {"expected_s": chosen.seconds, "expected_nll": chosen.nll, "expected_rmse": chosen.rmse}
        result |= {"expected_nll_error": chosen.nll_error, "used_rows": chosen.n_rows, "plan": str(gp.plan_)}
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    result |= {"fit_and_predict_s": time.perf_counter() - started, **scores(y_test, mean, std)}
    result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result


def compared(n: int, d: int) -> list[str]:
    """Return the methods that are compared on so many rows and inputs."""
    found = ["auto", "iterative", "neighbours"]
    found += ["exact"] if n <= _EXACT_ROWS else []
    found += ["sparse"] if n >= _SPARSE_ROWS else []
    found += ["grid"] if n >= _GRID_ROWS and d <= _GRID_INPUTS else []
    return [*found, "trees"]


def cell(arguments: argparse.Namespace, name: str, rows: int, budget: float, method: str) -> dict[str, object]:
    """Return what one process finds."""
    command = [sys.executable, __file__, "--one", "--data", str(arguments.data), "--tables", name]
    command += ["--rows", str(rows), "--budgets", str(budget), "--methods", method]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failed = {"table": name, "budget_s": budget, "method": method, "error": done.stderr[-300:]}
    return {
        "commit": commit(),
        "asked_rows": rows,
        **(failed if done.returncode else json.loads(done.stdout.splitlines()[-1])),
    }


def independent_of_budget(results: list[dict[str, Any]], key: dict[str, object]) -> dict[str, Any] | None:
    """Return the result of a smaller budget where it would be the same again."""
    for one in results:
        same = all(one[name] == key[name] for name in ("table", "asked_rows", "method"))
        smaller = one["budget_s"] < key["budget_s"]
        unhindered = not one.get("interrupted") and one.get("fit_s", np.inf) < 0.5 * one["budget_s"]
        if same and smaller and key["method"] != "auto" and (unhindered or key["method"] == "trees"):
            return {
                **one,
                "budget_s": key["budget_s"],
                "result_of_budget_s": one.get("result_of_budget_s", one["budget_s"]),
            }
    return None


def judge(results: list[dict[str, Any]], picture: Path | None) -> dict[str, Any]:
    """Return how forecasts and choices held, and draw them.

    Time is judged where the plan was carried out: not where "auto" went on learning because time was left.
    """
    autos = [one for one in results if one["method"] == "auto" and "nll" in one]
    with_plan = [one for one in autos if "expected_nll" in one]
    within = {"small": (lambda one: one["rows"] <= 10_000, 1.5), "large": (lambda one: one["rows"] > 10_000, 2.0)}
    found: dict[str, Any] = {"cells": len(autos), "with_forecast": len(with_plan)}
    for name, (holds, factor) in within.items():
        ratios = [one["fit_s"] / one["expected_s"] for one in with_plan if holds(one)]
        found[f"time_{name}"] = {
            "cells": len(ratios),
            "factor": factor,
            "within": float(np.mean([1 / factor <= one <= factor for one in ratios])) if ratios else None,
        }
    found["nll_within_0.15"] = float(np.mean([abs(one["nll"] - one["expected_nll"]) <= 0.15 for one in with_plan]))
    found["budget_kept_within_20_percent"] = float(np.mean([one["fit_s"] <= 1.2 * one["budget_s"] for one in autos]))
    regrets = []
    for one in autos:
        rivals = [
            other["nll"]
            for other in results
            if "nll" in other
            and all(other[name] == one[name] for name in ("table", "asked_rows", "budget_s"))
            and other["fit_s"] <= 1.2 * other["budget_s"]
        ]
        if len(rivals) > 1:
            regrets.append({"table": one["table"], "rows": one["rows"], "budget_s": one["budget_s"]})
            regrets[-1]["regret"] = one["nll"] - min(rivals)
    found["regret"] = {
        "cells": len(regrets),
        "within_0.05": float(np.mean([one["regret"] <= 0.05 for one in regrets])),
        "above": [one for one in regrets if one["regret"] > 0.05],
    }
    found["beside_trees"] = [beside_trees(results, budget) for budget in sorted({one["budget_s"] for one in autos})]
    if picture is not None:
        draw(with_plan, regrets, picture)
    return found


def beside_trees(results: list[dict[str, Any]], budget: float) -> dict[str, Any]:
    """Return on how many whole tables "auto" has a lower RMSE than boosted trees, and the median of the ratios."""
    whole = max(one["asked_rows"] for one in results)
    rmse: dict[str, dict[str, float]] = {"auto": {}, "trees": {}}
    for one in results:
        if one["budget_s"] == budget and one["asked_rows"] == whole and one["method"] in rmse:
            rmse[one["method"]][one["table"]] = one["rmse"]
    ratios = [rmse["auto"][table] / trees for table, trees in rmse["trees"].items()]
    lower = sum(ratio < 1 for ratio in ratios)
    return {"budget_s": budget, "tables": len(ratios), "lower": lower, "median_ratio": float(np.median(ratios))}


def draw(autos: list[dict[str, Any]], regrets: list[dict[str, Any]], picture: Path) -> None:
    """Draw expected against real times and densities, and the regrets of the choices."""
    import matplotlib.pyplot as plt

    figure, (times, densities, losses) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    colours = {10.0: "#0072B2", 60.0: "#E69F00", 600.0: "#009E73"}
    for budget in sorted({one["budget_s"] for one in autos}):
        chosen = [one for one in autos if one["budget_s"] == budget]
        style = {"s": 16, "color": colours.get(budget, "black"), "label": f"budget {budget:g} s"}
        times.scatter([one["expected_s"] for one in chosen], [one["fit_s"] for one in chosen], **style)
        expected, off = zip(*((one["expected_nll"], one["nll"] - one["expected_nll"]) for one in chosen), strict=True)
        densities.scatter(expected, off, **style)
        values = sorted(one["regret"] for one in regrets if one["budget_s"] == budget)
        losses.step(values, np.arange(1, len(values) + 1) / max(len(values), 1), where="post", color=style["color"])
    line = np.array([0.5, 900])
    times.plot(line, line, color="0.5", lw=1)
    times.fill_between(line, line / 2, 2 * line, color="0.9", zorder=0)
    times.set(xscale="log", yscale="log", xlim=line, ylim=line, xlabel="expected seconds", ylabel="real seconds")
    densities.axhline(0, color="0.5", lw=1)
    densities.axhspan(-0.15, 0.15, color="0.9", zorder=0)
    densities.set(xlabel="expected NLL of new rows", ylabel="real less expected NLL")
    losses.axvline(0.05, color="0.5", lw=1)
    losses.set(xlabel="NLL lost against the best system", ylabel="share of tables", ylim=(0, 1.02))
    times.legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Run all sizes, budgets, tables and methods, the quickest first; or judge what has run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--rows", nargs="+", type=int, default=[500, 4000, 10_000_000])
    parser.add_argument("--budgets", nargs="+", type=float, default=[10.0, 60.0, 600.0])
    parser.add_argument("--methods", nargs="+", default=None)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--resume", action="store_true", help="keep what the JSON file holds and go on")
    parser.add_argument("--judge", action="store_true", help="judge the JSON file instead of running anything")
    parser.add_argument("--picture", type=Path, default=None, help="with --judge: draw it")
    parser.add_argument("--one", action="store_true", help="run one cell in this process and print it as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        key = arguments.tables[0], arguments.rows[0], arguments.budgets[0], arguments.methods[0]
        print(json.dumps(run(arguments.data, *key)))
        return
    results = earlier_rows(parser, arguments)
    if arguments.judge:
        print(json.dumps({"commit": commit(), **judge(results, arguments.picture)}, indent=1))
        return
    for budget, rows in sorted(itertools.product(arguments.budgets, arguments.rows), key=lambda one: one[0] * one[1]):
        for name in arguments.tables:
            X = read(arguments.data, name, rows)[0]
            for method in arguments.methods or compared(*X.shape):
                key = {"table": name, "asked_rows": rows, "budget_s": budget, "method": method}
                if any(all(one[part] == key[part] for part in key) for one in results):
                    continue
                known = independent_of_budget(results, key)
                results.append(cell(arguments, name, rows, budget, method) if known is None else known)
                shown = ("table", "rows", "budget_s", "method", "fit_s", "expected_s", "expected_nll", "nll", "rmse")
                print({part: results[-1].get(part) for part in (*shown, "error")}, flush=True)
                write(arguments.json, vars(arguments), results)


if __name__ == "__main__":
    main()
