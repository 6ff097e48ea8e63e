"""Inputs and targets of which few lie far from all others: errors of default fits and of every method.

    python benchmarks/far_rows.py --json benchmarks/results/far_rows.json
    python benchmarks/far_rows.py --src ../before/src --json benchmarks/results/far_rows.json

The function is ``sin(2 x0) + x1 / 2`` of three normal inputs, with noise of the standard deviation 0.1. In some rows
the first input is a number that stands for a missing one, or an error of measurement; they have targets like all
others. "In a clump" has four fifths of the rows within a thousandth of the range of the first input, and waves there.
"A target of 100" has one of them, in a training row. Test rows are drawn like training rows, and scored where their
first input is not far. Each fit is a process of its own with one thread.
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

#: Share of the rows that are far, and where they are.
CASES = {
    "none": (0.0, 0.0),
    "one row at 1e6": (0.0, 1e6),
    "15 % at -999": (0.15, -999.0),
    "30 % at -9999": (0.3, -9999.0),
    "5 % at 9.97e36": (0.05, 9.97e36),
    "in a clump": (0.2, np.nan),
    "a target of 100": (0.0, np.nan),
}
METHODS = (
    "default",
    "float32",
    "Vecchia",
    "Iterative",
    "SparseVariational",
    "QuadruplyStochastic",
    "ComputationAware",
    "RandomFeatures",
    'kernel="auto"',
    'likelihood="auto"',
    "GPClassifier",
)


def table(case: str, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y and the rows that are not far; the first row is the one that is, where there is one."""
    share, where = CASES[case]
    random = np.random.default_rng(0)
    X, noise = random.normal(size=(n, 3)), 0.1 * random.normal(size=n)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + noise
    far = random.uniform(size=n) < share
    if case == "in a clump":
        X[:, 0] = np.where(far, random.uniform(-20, 20, n), 0.005 * X[:, 0])
        y = np.where(far, 0.0, np.sin(400 * X[:, 0])) + 0.5 * X[:, 1] + noise
    elif case == "a target of 100":
        y[0] = 100.0
    else:
        far[0] = case != "none"
        X[far, 0] = where
    return X, y, ~far


def fit(case: str, n: int, method: str) -> dict[str, Any]:
    """Fit two thirds of the rows; return scores on the others, or the error."""
    from gigagp import GPClassifier, GPRegressor, inference, kernels, metrics

    X, y, near = table(case, n)
    cut = 2 * n // 3
    chosen: dict[str, Any] = {"random_state": 0}
    if hasattr(inference, method):
        chosen["inference"] = getattr(inference, method)(*([500] if method == "QuadruplyStochastic" else []))
    own = {
        "float32": {"dtype": "float32"},
        'kernel="auto"': {"kernel": "auto"},
        'likelihood="auto"': {"likelihood": "auto"},
    }
    chosen |= own.get(method, {})
    began = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            if method == "GPClassifier":
                found = GPClassifier(**chosen).fit(X[:cut], y[:cut] > 0).predict(X[cut:][near[cut:]])
                scores = {"accuracy": float(np.mean(found == (y[cut:][near[cut:]] > 0)))}
            else:
                gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | chosen).fit(X[:cut], y[:cut])
                mean, std = gp.predict(X[cut:][near[cut:]], return_std=True, include_noise=True)
                truth = y[cut:][near[cut:]]
                scores = {"rmse": metrics.rmse(truth, mean), "nll": metrics.gaussian_nll(truth, mean, std)}
        except Exception as error:  # what users see
            scores = {"error": f"{type(error).__name__}: {error}"}
    seconds = time.process_time() - began
    return {"rows": cut, **scores, "cpu_s": seconds, "warnings": sorted({str(one.message)[:80] for one in caught})}


def main() -> None:
    """Run every case with every method, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, default=OWN)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--rows", type=int, default=1200, help="of training and test together")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(fit(options.child[0], options.rows, options.child[1])))
        return
    cells = [
        ({"case": case, "method": method}, ["--rows", str(options.rows), "--child", case, method])
        for case in options.cases
        for method in options.methods
    ]
    measure(__file__, cells, options.src, options.json)


if __name__ == "__main__":
    main()
