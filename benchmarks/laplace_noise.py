"""Score default fits with Laplace noise beside those with Gaussian and Student-t noise, for this checkout or another.

    python benchmarks/laplace_noise.py --json benchmarks/results/laplace_noise.json
    python benchmarks/laplace_noise.py --src ../before/src --kinds laplace --json ...

The tables are those of ``student_noise.py``, split 0. Errors are in standard deviations of the test targets, and the
NLL is that of noisy targets. Each fit is a process of its own with one thread. Rows of the JSON with the same commit,
table and kind are replaced.
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
from student_noise import TABLES, read

KINDS = ("laplace", "student-t", "gaussian")


def fit(folder: Path, table: str, rows: int, kind: str) -> dict[str, Any]:
    """Return the scores of one fit."""
    from gigagp import GPRegressor, kernels

    X, y, X_test, y_test = read(folder, table, rows, 0)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = GPRegressor(kernels.Matern(nu=1.5), likelihood=kind).fit(X, y)
    seconds, gap = time.process_time() - began, np.abs(gp.predict(X_test) - y_test) / y_test.std()
    return {
        "rows": len(y),
        "rmse": float(np.sqrt(np.mean(gap**2))),
        "mean_error": float(gap.mean()),
        "nll": -float(gp.predictive_log_density(X_test, y_test).mean()),
        "cpu_s": seconds,
        "warnings": sorted({str(one.message)[:60] for one in caught}),
    }


def main() -> None:
    """Fit every table in every way, and write the JSON after each."""
    run_tables(__file__, __doc__, fit, TABLES, "kind", KINDS, 500)


if __name__ == "__main__":
    main()
