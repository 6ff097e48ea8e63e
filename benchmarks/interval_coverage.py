"""Coverage of prediction intervals on twelve small tables: learned and uncertain hyperparameters, and conformal ones.

    python benchmarks/interval_coverage.py --data ../shared/data --json benchmarks/results/interval_coverage.json

Each split draws its training rows at random and up to 1,000 other rows for the scores. Intervals are of measurements:

- ``learned``: `predict_quantile` at the learned hyperparameters;
- ``laplace``: `predict_quantile(..., hyperparameters="laplace")`;
- ``jackknife``: the mean plus and minus a quantile of leave-one-out residuals, in their standard deviations, times the
  standard deviation of a measurement, all at the learned hyperparameters;
- ``mapie``: MAPIE's jackknife+ with `StdConformityScore` (J+GP, arXiv:2401.07733) and ten folds, each of which learns
  its own hyperparameters; left out where MAPIE is not installed.

Widths are mean widths of the 95 % intervals in standard deviations of the training targets. CPU seconds of ``learned``
are those of the fit and its predictions, and those of the others come on top. Splits of a table are averaged;
"worst" and "best" are over tables.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from kernel_choice import read
from sklearn.datasets import make_friedman1

#: Tables with their training rows.
TABLES = {
    "kin40k": 60,
    "precipitation": 80,
    "friedman1": 100,
    "elevation": 120,
    "keggdirected": 150,
    "bike": 200,
    "parkinsons": 250,
    "protein": 300,
    "diabetes": 300,
    "temperature": 400,
    "elevators": 500,
    "pol": 700,
}
LEVELS = (0.95, 0.5)
_TEST_ROWS = 1000
_FOLDS = 10


def rows_of(data: Path, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of a table."""
    if table == "friedman1":
        return make_friedman1(3000, n_features=10, noise=1.0, random_state=0)
    return read(data, table)


def split(X: np.ndarray, y: np.ndarray, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return X, y, X_test, y_test."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:rows], order[rows : rows + _TEST_ROWS]
    return X[train], y[train], X[test], y[test]


def scores(intervals: np.ndarray, y: np.ndarray, unit: float, seconds: float, nll: float | None) -> dict[str, Any]:
    """Return the scores of intervals of shape (levels, 2, m)."""
    inside = ((y >= intervals[:, 0]) & (y <= intervals[:, 1])).mean(1)
    width = float((intervals[0, 1] - intervals[0, 0]).mean()) / unit
    return {"coverage_95": 100 * inside[0], "coverage_50": 100 * inside[1], "width_95": width} | {
        "nll": nll,
        "cpu_seconds": seconds,
    }


def by_quantiles(gp: Any, X: np.ndarray, hyperparameters: str) -> np.ndarray:
    """Return intervals from the quantiles of predictions."""
    levels = [q for level in LEVELS for q in ((1 - level) / 2, (1 + level) / 2)]
    return gp.predict_quantile(X, levels, hyperparameters=hyperparameters).T.reshape(len(LEVELS), 2, -1)


def by_jackknife(gp: Any, y: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return intervals from quantiles of leave-one-out residuals."""
    left_out = gp.leave_one_out()
    residuals = np.sort(np.abs(y - left_out.mean) / left_out.std)
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    found = []
    for level in LEVELS:
        rank = math.ceil(level * (len(y) + 1))
        reach = (residuals[rank - 1] if rank <= len(y) else np.inf) * std
        found.append((mean - reach, mean + reach))
    return np.array(found)


def by_mapie(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray | None:
    """Return the intervals of MAPIE; None if it is not installed."""
    try:
        from mapie.conformity_scores import StdConformityScore
        from mapie.regression import CrossConformalRegressor
    except ImportError:
        return None
    from gigagp import GPRegressor

    class Measured(GPRegressor):
        """A regressor whose standard deviations are those of measurements, as MAPIE expects."""

        def predict(self, X: Any, return_std: bool = False) -> Any:  # type: ignore[override]
            return super().predict(X, return_std, include_noise=return_std)

    conformal = CrossConformalRegressor(
        Measured(), confidence_level=list(LEVELS), conformity_score=StdConformityScore(), cv=_FOLDS
    )
    conformal.fit_conformalize(X, y)
    return conformal.predict_interval(X_new)[1].transpose(2, 1, 0)


def case(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """Return the scores of one split."""
    from gigagp import GPRegressor, kernels

    began, unit, found = time.process_time(), float(y.std()), {}
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    for name in ("learned", "laplace"):
        intervals = by_quantiles(gp, X_test, name)
        nll = -float(gp.predictive_log_density(X_test, y_test, hyperparameters=name).mean()) - math.log(unit)
        found[name] = scores(intervals, y_test, unit, time.process_time() - began, nll)
        began = time.process_time()
    found["jackknife"] = scores(by_jackknife(gp, y, X_test), y_test, unit, time.process_time() - began, None)
    began = time.process_time()
    intervals = by_mapie(X, y, X_test)
    if intervals is not None:
        found["mapie"] = scores(intervals, y_test, unit, time.process_time() - began, None)
    return found


def mean_of(results: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return the scores of each method, averaged."""
    found: dict[str, dict[str, float | None]] = {}
    for method in results[0]:
        found[method] = {
            name: None if value is None else statistics.fmean(one[method][name] for one in results)
            for name, value in results[0][method].items()
        }
    return found


def summary(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, by method, the mean of each score over tables, and the extremes of the coverages."""
    found: dict[str, Any] = {}
    for method, scores in mean_of([table["methods"] for table in tables]).items():
        of_tables = [table["methods"][method] for table in tables]
        extremes = {
            f"{which}_{level}": choose(one[f"coverage_{level}"] for one in of_tables)
            for level in (95, 50)
            for which, choose in (("worst", min), ("best", max))
        }
        error = {
            f"error_{level}": statistics.fmean(abs(one[f"coverage_{level}"] - level) for one in of_tables)
            for level in (95, 50)
        }
        found[method] = scores | extremes | error
    return found


def main() -> None:
    """Run the fits and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tables = []
    for table in arguments.tables:
        X, y = rows_of(arguments.data, table)
        results = [case(*split(X, y, TABLES[table], seed)) for seed in range(arguments.splits)]
        methods = mean_of(results)
        tables.append({"table": table, "rows": TABLES[table], "inputs": X.shape[1], "methods": methods})
        for method, one in methods.items():
            print(
                f"{table:14s} {method:10s}", {k: None if v is None else round(v, 3) for k, v in one.items()}, flush=True
            )
        if arguments.json is not None:
            report = {"commit": commit(), "splits": arguments.splits, "summary": summary(tables), "tables": tables}
            arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(tables), indent=1))


if __name__ == "__main__":
    main()
