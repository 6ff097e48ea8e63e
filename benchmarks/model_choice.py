"""Compare ``kernel="auto"`` with the plain kernel, with each of its candidates, and with gradient boosting.

    python benchmarks/model_choice.py --data ../shared/data --rows 300 --json benchmarks/results/model_choice.json
    python benchmarks/model_choice.py --rows 5000 --tables "two scales" noise "one scale" --models plain auto
    python benchmarks/model_choice.py --part simulations --json benchmarks/results/model_choice_simulations.json
    python benchmarks/model_choice.py --part friedman --rows 200 500 --json benchmarks/results/friedman.json

Tables are random rows of real ones (`kernel_choice.read`), blocks of a map, and made functions with a tenth of noise.
Scores are those of other rows; of made functions also the share of the function's values within its 95 % intervals.
The regret is the NLL less that of the candidate that turns out to be best. Results are added to those in the JSON file,
and replace equal cases.

``--part simulations`` has a hundred small tables for which the plain kernel is enough: noise alone, and sums of random
waves of one scale. It counts those where single kernels have most of the weight, or the mean differs from that of the
plain kernel by less than a tenth of the noise (root mean square at new points). ``--part friedman`` has the RMSE from
the function, of Friedman's functions and others, beside scikit-learn's Gaussian process (anisotropic Matern-3/2),
gradient boosting and forests with their defaults.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kernel_choice
import maps
import numpy as np
import torch
from checkout import commit

#: Functions of inputs (n, d), and the number of inputs.
MADE: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "one scale": (2, lambda X: np.sin(1.5 * X[:, 0]) * np.cos(X[:, 1])),
    "two scales": (
        6,
        lambda X: (
            np.sin(2 * X[:, 0]) + X[:, 1] ** 2 / 2 * (X[:, 0] > 0) + 0.3 * np.cos(3 * X.sum(1) / np.sqrt(X.shape[1]))
        ),
    ),
    "additive": (5, lambda X: np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + np.abs(X[:, 2])),
    "step": (3, lambda X: 1.0 * (X[:, 0] > 0.2) + 0.5 * X[:, 1]),
    "period": (1, lambda X: np.sin(8 * X[:, 0]) + 0.3 * X[:, 0]),
    "interaction": (4, lambda X: X[:, 0] * X[:, 1] + np.sin(X[:, 2] * X[:, 3])),
    "noise": (4, lambda X: 0 * X[:, 0]),
    "linear": (5, lambda X: X @ np.array([1.0, -0.5, 0.25, 0.0, 0.0])),
}
REAL = (*kernel_choice.TABLES, "elevation blocks")
_NOISE, _TEST_ROWS = 0.1, 2000
#: Tables beside other methods, with three tenths of noise.
FRIEDMAN = ("friedman1", "friedman2", "friedman3", "additive", "interaction", "step", "two scales")
_SIMULATIONS, _SIMULATED_ROWS, _SIMULATED_NOISE = 100, 200, 0.3


def split(data: Path, table: str, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return X, y, X_test, y_test and, of a made function, its values at X_test; None of a table with fewer rows."""
    rng = np.random.default_rng(seed)
    if table in MADE:
        d, function = MADE[table]
        X = rng.normal(size=(rows + _TEST_ROWS, d))
        f = function(X)
        y = f + _NOISE * rng.normal(size=len(f))
        return X[:rows], y[:rows], X[rows:], y[rows:], f[rows:]
    if table == "elevation blocks":
        found = maps.split(data, "elevation", "blocks", rows, seed)
        some = rng.permutation(len(found.y_test))[:_TEST_ROWS]
        return found.X, found.y, found.X_test[some], found.y_test[some]
    return kernel_choice.split(*kernel_choice.read(data, table), table, rows, seed)


def candidates() -> dict[str, Any]:
    """Return the kernels that every table can have, by name; "plain" is what the default was."""
    from gigagp import kernels

    rough, smooth = kernels.Matern(nu=0.5, lengthscale=0.5, variance=0.3), kernels.RBF(2.0, 0.7)
    return {
        "plain": kernels.Matern(nu=1.5),
        "matern12": kernels.Matern(nu=0.5),
        "matern52": kernels.Matern(nu=2.5),
        "rq": kernels.RationalQuadratic(),
        "matern32+matern12": kernels.Matern(nu=1.5, lengthscale=2.0, variance=0.7) + rough,
        "rbf+matern32": smooth + kernels.Matern(nu=1.5, lengthscale=0.5, variance=0.3),
        "matern32+rbf": kernels.Matern(nu=1.5, lengthscale=2.0, variance=0.7) + kernels.RBF(0.5, 0.3),
    }


def fit(model: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, *f: np.ndarray) -> Any:
    """Return the scores of a fit and its CPU seconds."""
    from gigagp import GPRegressor, metrics

    began = time.process_time()
    if model == "boosting":
        from sklearn.ensemble import HistGradientBoostingRegressor

        mean = HistGradientBoostingRegressor(random_state=0).fit(X, y).predict(X_test)
        return {"rmse": metrics.rmse(y_test, mean), "cpu_seconds": time.process_time() - began}
    gp = GPRegressor(candidates().get(model, model), hyperparameter_units="standardized").fit(X, y)
    seconds = time.process_time() - began
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    found: dict[str, Any] = {
        "nll": -float(np.mean(gp.predictive_log_density(X_test, y_test))),
        "rmse": metrics.rmse(y_test, mean),
        "crps": metrics.gaussian_crps(y_test, mean, std),
        "coverage": metrics.coverage(y_test, mean, std),
        "cpu_seconds": seconds,
    }
    if f:
        found["function_rmse"] = metrics.rmse(f[0], mean)
        found["function_coverage"] = metrics.coverage(f[0], *gp.predict(X_test, return_std=True))
    if gp.kernel_choice_ is not None:
        found["weights"] = {one.name: one.weight for one in gp.kernel_choice_.tried if one.weight}
    return found


def summary(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how "auto" compares with the plain kernel and with the best candidate, by number of rows."""
    found = []
    for rows in sorted({one["rows"] for one in fits}):
        cases = [one for one in fits if one["rows"] == rows]
        gains = [one["plain"]["nll"] - one["auto"]["nll"] for one in cases]
        ratios = [one["auto"]["cpu_seconds"] / one["plain"]["cpu_seconds"] for one in cases]
        row: dict[str, Any] = {
            "rows": rows,
            "tables": len(cases),
            "better": sum(gain > 0.01 for gain in gains),
            "worse": sum(gain < -0.01 for gain in gains),
            "mean_gain": statistics.fmean(gains),
            "worst_gain": min(gains),
            "cpu_ratio": statistics.median(ratios),
            "most_further_seconds": max(one["auto"]["cpu_seconds"] - one["plain"]["cpu_seconds"] for one in cases),
        }
        compared = [one for one in cases if "rq" in one]
        if compared:
            singles = [name for name in candidates() if name in compared[0]]
            regrets = [one["auto"]["nll"] - min(one[name]["nll"] for name in singles) for one in compared]
            ahead = [one["auto"]["rmse"] < one["boosting"]["rmse"] for one in compared if "boosting" in one]
            row |= {
                "compared": len(compared),
                "small_regrets": sum(regret <= 0.02 for regret in regrets),
                "worst_regret": max(regrets),
                "ahead_of_boosting": sum(ahead),
            }
        found.append(row)
    return found


def simulated(number: int) -> tuple[np.ndarray, ...]:
    """Return X, y and new points; even numbers are noise alone, and odd ones are waves of one scale beside noise."""
    rng = np.random.default_rng([51, number])
    d = 1 + number // 2 % 3
    X = rng.normal(size=(_SIMULATED_ROWS + 500, d))
    waves = X @ (rng.normal(size=(d, 60)) / np.sqrt(d)) + rng.uniform(0, 2 * np.pi, 60)
    f = (number % 2) * np.cos(waves) @ rng.normal(size=60) * np.sqrt(2 / 60)
    y = f + _SIMULATED_NOISE * rng.normal(size=len(f))
    return X[:_SIMULATED_ROWS], y[:_SIMULATED_ROWS], X[_SIMULATED_ROWS:]


def simulations() -> dict[str, Any]:
    """Return how often the choice leaves the plain kernel where that is enough."""
    from gigagp import GPRegressor, kernels

    found = []
    for number in range(_SIMULATIONS):
        X, y, X_new = simulated(number)
        plain = GPRegressor(kernels.Matern(nu=1.5), hyperparameters="learned", verbose=0).fit(X, y)
        chosen = GPRegressor(hyperparameters="learned", verbose=0).fit(X, y)
        tried = [] if chosen.kernel_choice_ is None else chosen.kernel_choice_.tried
        weights = {one.name: one.weight for one in tried if one.weight}
        single = sum(weight for name, weight in weights.items() if "+" not in name) if weights else 1.0
        moved = float(np.sqrt(np.square(chosen.predict(X_new) - plain.predict(X_new)).mean())) / _SIMULATED_NOISE
        row = {"kind": ("noise", "one scale")[number % 2], "inputs": X.shape[1], "weights": weights, "moved": moved}
        found.append({**row, "kept": single >= 0.5 or moved < 0.1})
    counts = {kind: sum(one["kept"] for one in found if one["kind"] == kind) for kind in ("noise", "one scale")}
    return {"kept": sum(counts.values()), **counts, "most_moved": max(one["moved"] for one in found), "each": found}


def friedman(table: str, rows: int, seed: int) -> dict[str, Any]:
    """Return the RMSE from the function at new points, and CPU seconds, of the default and of three other methods."""
    from sklearn import datasets
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from gigagp import GPRegressor

    rng = np.random.default_rng([rows, seed])
    if table in MADE:
        d, function = MADE[table]
        X = rng.normal(size=(rows + _TEST_ROWS, d))
        f = function(X)
    else:
        X, f = getattr(datasets, f"make_{table}")(rows + _TEST_ROWS, random_state=seed)
        d = X.shape[1]
    y = f + 0.3 * f.std() * rng.normal(size=len(f))
    kernel = ConstantKernel() * Matern(np.ones(d), nu=1.5) + WhiteKernel()
    methods: dict[str, Any] = {
        "default": GPRegressor(verbose=0),
        "scikit-learn": make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)),
        "boosting": HistGradientBoostingRegressor(random_state=0),
        "forest": RandomForestRegressor(500, random_state=0),
    }
    found: dict[str, Any] = {"table": table, "rows": rows, "inputs": d, "seed": seed}
    for name, method in methods.items():
        began = time.process_time()
        mean = method.fit(X[:rows], y[:rows]).predict(X[rows:])
        rmse = float(np.sqrt(np.square(mean - f[rows:]).mean()) / f.std())
        found[name] = {"rmse": rmse, "cpu_seconds": time.process_time() - began}
    best = min(found[name]["rmse"] for name in methods if name != "default")
    return {**found, "ahead": found["default"]["rmse"] <= best, "near": found["default"]["rmse"] <= 1.02 * best}


def other_part(arguments: argparse.Namespace) -> None:
    """Run the simulations or Friedman's functions, and write the results."""
    if arguments.part == "simulations":
        found = {"commit": commit(), "rows": _SIMULATED_ROWS, **simulations()}
        print({name: value for name, value in found.items() if name != "each"})
    else:
        cases = []
        for rows in arguments.rows:
            for table in FRIEDMAN:
                cases.append(friedman(table, rows, arguments.seed))
                print(json.dumps(cases[-1]), flush=True)
        counts = {name: sum(one[name] for one in cases) for name in ("ahead", "near")}
        found = {"commit": commit(), "cases": len(cases), **counts, "fits": cases}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run the fits and write the results."""
    models = (*candidates(), "auto", "boosting")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="tables", choices=("tables", "simulations", "friedman"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=[*MADE, *REAL], choices=[*MADE, *REAL])
    parser.add_argument("--models", nargs="+", default=list(models), choices=models)
    parser.add_argument("--rows", nargs="+", type=int, default=[300])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.part != "tables":
        other_part(arguments)
        return
    at, file = commit(), arguments.json
    fits = json.loads(file.read_text(encoding="utf-8"))["fits"] if file is not None and file.exists() else []
    for rows in arguments.rows:
        for table in arguments.tables:
            case = {"table": table, "rows": rows, "seed": arguments.seed}
            parts = split(arguments.data, table, rows, arguments.seed)
            if len(parts[2]) < 10:
                continue
            result: dict[str, Any] = {**case, "inputs": parts[0].shape[1], "commit": at}
            for model in arguments.models:
                result[model] = fit(model, *parts)
            scores = "  ".join(
                f"{model} {result[model]['nll']:.3f}" for model in arguments.models if "nll" in result[model]
            )
            print(f"{table:18s} {rows:5d}  {scores}", flush=True)
            fits = [one for one in fits if any(one[name] != case[name] for name in case)] + [result]
            if file is not None:
                fits.sort(key=lambda one: (one["rows"], one["table"], one["seed"]))
                file.write_text(json.dumps({"summary": summary(fits), "fits": fits}, indent=1), encoding="utf-8")
    for one in summary(fits):
        print(json.dumps(one))


if __name__ == "__main__":
    main()
