"""Targets without noise: errors and error bars of every way to fit them, of this checkout and of an earlier one.

    python benchmarks/noise_free.py --json benchmarks/results/noise_free.json
    python benchmarks/noise_free.py --src ../before/src --json benchmarks/results/noise_free.json

The cases are random rows of bike, whose target is a function of its inputs, and a smooth function of three inputs.
Their likelihood rises as the noise falls, until the kernel matrix has no factor in float64. Each fit is a process of
its own with one thread. Rows of the JSON with the same commit, case and method are replaced.
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

sys.path.insert(0, str(Path(__file__).parent))
from children import OWN, measure
from splits import read_split

#: table or function, training rows, smoothness of the Matern kernel
CASES = {
    "bike": ("bike", 2000, 1.5),
    "bike, 4,000 rows": ("bike", 4000, 1.5),
    "smooth": ("smooth", 3000, 2.5),
}
METHODS = ("auto", "Exact", "Iterative", "QuadruplyStochastic")
#: Rows up to which all functions are seen at once.
_WHOLE = 2000


def read(folder: Path, table: str, rows: int) -> tuple[np.ndarray, ...]:
    """Return X, y, X_test, y_test."""
    if table != "smooth":
        return read_split(folder, table, 0, rows)
    random = np.random.default_rng(0)
    X, X_test = random.uniform(size=(rows, 3)), random.uniform(size=(500, 3))
    y, y_test = (np.sin(6 * U[:, 0]) * np.cos(4 * U[:, 1]) + U[:, 2] ** 2 for U in (X, X_test))
    return X, y, X_test, y_test


def fit(folder: Path, table: str, rows: int, nu: float, method: str) -> dict[str, Any]:
    """Fit and return the scores, or the error."""
    from gigagp import GPRegressor, inference, kernels, metrics

    X, y, X_test, y_test = read(folder, table, rows)
    if method == "QuadruplyStochastic":
        X, y = X[:_WHOLE], y[:_WHOLE]
    chosen = "auto" if method == "auto" else getattr(inference, method)()
    began, found = time.process_time(), {"rows": len(y)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            gp = GPRegressor(kernels.Matern(nu), chosen, random_state=0).fit(X, y)
        except Exception as error:  # what users see
            return found | {"error": type(error).__name__, "cpu_s": time.process_time() - began}
    found |= {"cpu_s": time.process_time() - began, "ended": str(gp.posterior_.kind)}
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    found |= {"rmse": metrics.rmse(y_test, mean), "nll": metrics.gaussian_nll(y_test, mean, std)}
    found |= {"squared_errors_over_variances": float(np.mean(((y_test - mean) / std) ** 2))}
    found |= {"noise_share": gp.noise_variance_ / float(np.var(y))}
    return found | {"warnings": sorted({one.category.__name__ for one in caught})}


def main() -> None:
    """Run every case with every method, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--src", type=Path, default=OWN)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--rows", type=int, default=None, help="default: as the case has")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=4, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        table, rows, nu, method = options.child
        print(json.dumps(fit(options.data, table, int(rows), float(nu), method)))
        return
    cells = []
    for case in options.cases:
        table, rows, nu = CASES[case]
        for method in options.methods:
            child = ["--data", str(options.data), "--child", table, str(options.rows or rows), str(nu), method]
            cells.append(({"case": case, "method": method}, child))
    measure(__file__, cells, options.src, options.json)


if __name__ == "__main__":
    main()
