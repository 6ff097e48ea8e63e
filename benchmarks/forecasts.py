"""Hold the forecasts and the choice of ``inference="auto"`` against what happens within the same time budgets.

    python benchmarks/forecasts.py --tables kin40k protein elevation --rows 4000 20000 --budgets 10 60
    python benchmarks/forecasts.py --tables million --rows 1000000 --budgets 600 --methods auto trees

Every method has the same budget, in seconds of wall time, and runs in a process of its own. "auto" forecasts its time,
the root mean square error and the negative log density of new rows; the others show what could have been chosen.
"trees" is scikit-learn's `HistGradientBoostingRegressor` with its defaults, which knows no budget. "million" is a made
function of eight inputs. Scores are in standard deviations of the training targets, on at most 10,000 held-out rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from large_tables import scores
from maps import FILES, read_map, write
from tables import read_split

from gigagp import GPRegressor, inference
from gigagp.metrics import rmse

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
#: Methods that are compared unless others are asked for.
_COMPARED = ("auto", "iterative", "neighbours", "sparse", "trees")
TABLES = ("kin40k", "protein", "pol", "elevators", "bike", "keggdirected", "elevation", "temperature", "precipitation")
_TEST_ROWS = 10_000


def read(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test with at most so many random training rows; targets are z-scored."""
    random = np.random.default_rng(1)
    if name in FILES or name == "million":
        X, y = made(rows + _TEST_ROWS) if name == "million" else read_map(folder, name, None)
        order = random.permutation(len(y))
        test, train = order[:_TEST_ROWS], order[_TEST_ROWS:][:rows]
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
        gp = GPRegressor(inference=METHODS[method], time_budget=budget).fit(X, y)
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


def main() -> None:
    """Run all tables, sizes, budgets and methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--rows", nargs="+", type=int, default=[4000, 20_000])
    parser.add_argument("--budgets", nargs="+", type=float, default=[10.0, 60.0])
    parser.add_argument("--methods", nargs="+", default=list(_COMPARED))
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--one", action="store_true", help="run one cell in this process and print it as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        cell = arguments.tables[0], arguments.rows[0], arguments.budgets[0], arguments.methods[0]
        print(json.dumps(run(arguments.data, *cell)))
        return
    results: list[dict[str, object]] = []
    for name in arguments.tables:
        for rows in arguments.rows:
            for budget in arguments.budgets:
                for method in arguments.methods:
                    command = [sys.executable, __file__, "--one", "--data", str(arguments.data), "--tables", name]
                    command += ["--rows", str(rows), "--budgets", str(budget), "--methods", method]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    failed = {"table": name, "rows": rows, "budget_s": budget, "method": method}
                    failed["error"] = done.stderr[-300:]
                    results.append(failed if done.returncode else json.loads(done.stdout.splitlines()[-1]))
                    shown = (
                        "table",
                        "rows",
                        "budget_s",
                        "method",
                        "fit_s",
                        "expected_s",
                        "expected_nll",
                        "nll",
                        "rmse",
                    )
                    print({key: results[-1].get(key) for key in (*shown, "error")}, flush=True)
                    write(arguments.json, vars(arguments), results)


if __name__ == "__main__":
    main()
