"""Compare the default fit of 4,000 rows with scikit-learn's of half of them, in CPU seconds of one thread.

    python benchmarks/default_fit.py --data ../shared/data --tables elevators pol

The fits run one after the other, each in its own process. CPU seconds include the fit and the prediction but not the
imports. scikit-learn gets the same kernel family (constant times Matern-3/2 with one lengthscale per input, plus white
noise) and uses its own start and optimizer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from children import printed
from splits import read_split


def fit_gigagp(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Fit with default settings."""
    from gigagp import GPRegressor, kernels

    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    return mean, std, f"{len(gp.history_)} evaluations, {type(gp.inference_).__name__}"


def fit_sklearn(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """Fit with scikit-learn's optimizer and start."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0) * Matern(np.ones(X.shape[1]), nu=1.5) + WhiteKernel(1.0)
    gp = GaussianProcessRegressor(kernel)
    evaluations = 0
    inner = gp.log_marginal_likelihood

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal evaluations
        evaluations += 1
        return inner(*args, **kwargs)

    gp.log_marginal_likelihood = counted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about lengthscales at their bounds
        gp.fit(X, y)
    mean, std = gp.predict(X_test, return_std=True)
    return mean, std, f"{evaluations} evaluations"


def child(data: Path, table: str, which: str, rows: int) -> None:
    """Run one fit of so many rows, or half as many for scikit-learn, and print its numbers as JSON."""
    from gigagp.estimators.metrics import coverage, gaussian_nll, rmse

    X, y, X_test, y_test = read_split(data, table, split=0, rows=rows)
    if which == "sklearn":
        X, y = X[: rows // 2], y[: rows // 2]
    if which == "gigagp":
        import gigagp

        _ = gigagp.GPRegressor  # exclude the import from the time
    else:
        import sklearn.gaussian_process  # noqa: F401
    started, cpu = time.perf_counter(), time.process_time()
    mean, std, note = (fit_gigagp if which == "gigagp" else fit_sklearn)(X, y, X_test)
    result = {
        "table": table,
        "library": which,
        "rows": len(y),
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - started,
        "nll": gaussian_nll(y_test, mean, std),
        "rmse": rmse(y_test, mean),
        "coverage_95": coverage(y_test, mean, std, 0.95),
        "note": note,
    }
    print(json.dumps(result))


def main() -> None:
    """Run all fits and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=["elevators", "pol"])
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.data, *arguments.child, arguments.rows)
        return
    results = []
    print(f"{'table':10s} {'library':8s} {'rows':>6s} {'CPU s':>8s} {'NLL':>8s} {'RMSE':>7s} {'cover 95':>8s}  note")
    for table in arguments.tables:
        pair = {}
        for which in ("gigagp", "sklearn"):
            common = ["--data", str(arguments.data), "--rows", str(arguments.rows)]
            result = printed(__file__, [*common, "--child", table, which])
            pair[which] = result
            results.append(result)
            print(
                f"{table:10s} {which:8s} {result['rows']:6d} {result['cpu_seconds']:8.2f} {result['nll']:8.4f} "
                f"{result['rmse']:7.4f} {result['coverage_95']:8.3f}  {result['note']}",
                flush=True,
            )
        ratio = pair["sklearn"]["cpu_seconds"] / pair["gigagp"]["cpu_seconds"]
        print(f"{table:10s} scikit-learn on half the rows takes {ratio:.1f} times the CPU seconds", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
