"""Compare fits and predictions of every inference method in two checkouts of gigagp, in CPU seconds of one thread.

    git worktree add ../before <commit>    # and build its native module there
    python benchmarks/paired_fits.py --before ../before/src --json benchmarks/results/paired_fits.json

The two runs of a pair use new processes, one after the other. The ratio is that of the medians of CPU seconds, now over
before, for the fit and for 5,000 predictions with their standard deviations; ``gigagp demo`` counts as a fit. Test
errors show that both runs do the same work.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

CASES = (
    "demo",
    "default, 500 rows",
    "default, 2000 rows",
    "default, 4000 rows",
    "default, 8000 rows",
    "iterative, 3000 rows",
    "grid, 20000 rows",
    "sparse variational, 5000 rows",
    "computation-aware, 3000 rows",
    "quadruply stochastic, 5000 rows",
    "random features, 3000 rows",
    "classifier, 1000 rows",
)


def make(case: str) -> tuple[Any, int, int]:
    """Return the estimator of a case, its number of rows and its number of inputs."""
    from gigagp import GPClassifier, GPRegressor, inference, optimization

    name, rows = case.split(",")
    estimators = {
        "default": lambda: GPRegressor(),
        "iterative": lambda: GPRegressor(inference=inference.Iterative(), optimizer=optimization.Adam(steps=10)),
        "grid": lambda: GPRegressor(inference=inference.Grid(size=100)),
        "sparse variational": lambda: GPRegressor(inference=inference.SparseVariational(n_inducing=200)),
        "computation-aware": lambda: GPRegressor(
            inference=inference.ComputationAware(n_actions=128), optimizer=optimization.Adam(steps=15)
        ),
        "quadruply stochastic": lambda: GPRegressor(
            inference=inference.QuadruplyStochastic(n_basis=20_000), optimizer=optimization.SparseAdam(steps=300)
        ),
        "random features": lambda: GPRegressor(
            inference=inference.RandomFeatures(), optimizer=optimization.Adam(steps=10)
        ),
        "classifier": lambda: GPClassifier(),
    }
    return estimators[name](), int(rows.split()[0]), 2 if name == "grid" else 5


def child(case: str) -> None:
    """Fit and predict, and print CPU seconds and the test error."""
    if case == "demo":
        from gigagp.commands.demo import demo

        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            demo(quiet=True)
        print(json.dumps({"fit": time.process_time() - began, "predict": 0.0, "error": 0.0}))
        return
    estimator, n, d = make(case)
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(n, d)), rng.normal(size=(5000, d))

    def truth(X: np.ndarray) -> np.ndarray:
        return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + np.cos(X.sum(1))

    y, expected = truth(X) + 0.1 * rng.normal(size=n), truth(new)
    if case.startswith("classifier"):
        y, expected = y > 0.5, expected > 0.5
    if case.startswith("grid"):
        new = np.clip(new, X.min(0), X.max(0))
        expected = truth(new)
    warnings.simplefilter("ignore")
    began = time.process_time()
    estimator.fit(X, y)
    fitted = time.process_time()
    if case.startswith("classifier"):
        error = float((estimator.predict(new) != expected).mean())
    else:
        mean, _ = estimator.predict(new, return_std=True)
        error = float(np.sqrt(((mean - expected) ** 2).mean()))
    print(json.dumps({"fit": fitted - began, "predict": time.process_time() - fitted, "error": error}))


def run(source: Path, case: str) -> dict[str, float]:
    """Run one case with the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    command = [sys.executable, __file__, "--child", case]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, help="src folder of the other checkout")
    parser.add_argument("--now", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    results = {}
    commits = {
        name: subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        for name, folder in (("before", options.before), ("now", options.now))
    }
    print(
        f"{'case':34s} {'fit before':>10s} {'now':>8s} {'ratio':>6s}   {'predict':>8s} {'now':>8s} {'ratio':>6s}  error"
    )
    for case in options.cases:
        pairs = [(run(options.before, case), run(options.now, case)) for _ in range(options.runs)]
        one: dict[str, Any] = {
            part: [statistics.median(pair[place][part] for pair in pairs) for place in (0, 1)]
            for part in ("fit", "predict", "error")
        }
        results[case] = one
        ratios = {part: one[part][1] / max(one[part][0], 1e-9) for part in ("fit", "predict")}
        print(
            f"{case:34s} {one['fit'][0]:10.2f} {one['fit'][1]:8.2f} {ratios['fit']:6.2f}   {one['predict'][0]:8.3f} "
            f"{one['predict'][1]:8.3f} {ratios['predict']:6.2f}   {one['error'][0]:.4f} {one['error'][1]:.4f}",
            flush=True,
        )
        if options.json:  # write after every case, so that an interrupted run keeps its results
            found = {"commits": commits, "runs": options.runs, "results": results}
            options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
