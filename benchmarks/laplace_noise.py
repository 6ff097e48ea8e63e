"""Score default fits with Laplace noise beside those with Gaussian and Student-t noise, for this checkout or another.

    python benchmarks/laplace_noise.py --json benchmarks/results/laplace_noise.json
    python benchmarks/laplace_noise.py --src ../before/src --kinds laplace --json ...

The tables are those of ``student_noise.py``, split 0. Errors are in standard deviations of the test targets, and the
NLL is that of noisy targets. Each fit is a process of its own with one thread. Rows of the JSON with the same commit,
table and kind are replaced.
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
from student_noise import TABLES, read

KINDS = ("laplace", "student-t", "gaussian")


def fit(folder: Path, table: str, rows: int, kind: str) -> dict[str, Any]:
    """Return the scores of one fit."""
    from gigagp import GPRegressor

    X, y, X_test, y_test = read(folder, table, rows, 0)
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = GPRegressor(likelihood=kind).fit(X, y)
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
    """Run every table with every kind of noise, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--src", type=Path, default=OWN)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=3, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        table, rows, kind = options.child
        print(json.dumps(fit(options.data, table, int(rows), kind)))
        return
    cells = []
    for table in options.tables:
        for kind in options.kinds:
            child = ["--data", str(options.data), "--child", table, str(options.rows), kind]
            cells.append(({"table": table, "kind": kind}, child))
    measure(__file__, cells, options.src, options.json)


if __name__ == "__main__":
    main()
