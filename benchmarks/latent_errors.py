"""Variances of the latent function beside those of the exact posterior at the hyperparameters that a fit has learned.

    python benchmarks/latent_errors.py --json benchmarks/results/latent_errors.json
    python benchmarks/latent_errors.py --src ../before/src --methods QuadruplyStochastic --json ...

The exact posterior expects squared errors of the approximate mean. They are divided by the predicted variances, and
averaged over the test rows: one where a posterior is right, more where it is too certain. "by the mean" is the part of
the mean alone, in exact variances. Each fit is a process of its own with one thread. Rows of the JSON with the same
commit, table and method are replaced.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from children import run_tables
from splits import read_split

TABLES = ("pol", "elevators", "kin40k", "bike", "protein", "keggdirected", "parkinsons")
METHODS = ("QuadruplyStochastic", "RandomFeatures", "SparseVariational")
#: Most test rows.
_TEST_ROWS = 500


def fit(folder: Path, table: str, rows: int, method: str) -> dict[str, Any]:
    """Fit with the defaults and return the ratios."""
    from gigagp import GPRegressor, inference

    X, y, X_test, _ = read_split(folder, table, 0, rows)
    X_test, began = X_test[:_TEST_ROWS], time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = GPRegressor(inference=getattr(inference, method)(), random_state=0).fit(X, y)
        cpu = time.process_time() - began
        exact = GPRegressor(gp.kernel_, inference.Exact(), None, noise_variance=gp.noise_variance_).fit(X, y)
    mean, std = gp.predict(X_test, return_std=True)
    exact_mean, exact_std = exact.predict(X_test, return_std=True)
    of_mean = (mean - exact_mean) ** 2
    return {
        "rows": len(y),
        "cpu_s": cpu,
        "errors_over_variances": float(np.mean((of_mean + exact_std**2) / std**2)),
        "by_the_mean": float(np.mean(of_mean / exact_std**2)),
        "variances_over_exact": float(np.median(std**2 / exact_std**2)),
        "warnings": sorted({str(one.message).split(",")[0] for one in caught}),
    }


def main() -> None:
    """Fit every table in every way, and write the JSON after each."""
    run_tables(__file__, __doc__, fit, TABLES, "method", METHODS, 1000)


if __name__ == "__main__":
    main()
