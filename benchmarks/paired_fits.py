"""Compare fits and predictions of every inference method in two checkouts of gigagp, in CPU seconds of one thread.

    git worktree add ../before <commit>    # and build its native module there
    python benchmarks/paired_fits.py --before ../before/src --json benchmarks/results/paired_fits.json
    python benchmarks/paired_fits.py --before ../before/src --cases "six inputs, 8000 rows" "kin40k, 8000 rows"

The two runs of a pair use new processes, one after the other. The ratio is that of the medians of CPU seconds, now over
before, for the fit and for 5,000 predictions with their standard deviations; ``gigagp demo`` counts as a fit. Test
errors, and for regression the negative log-likelihood of the test targets, show that both runs do the same work.

The cases of six inputs have a sum of eight random plane waves as their function. Those of kin40k, elevators, protein
and pol read a real table (``--data``) and predict its test rows.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from checkout import commit
from children import OWN, printed

#: Cases of a made function of six inputs, and of a real table.
LARGE = (
    "six inputs, 4000 rows",
    "six inputs, 8000 rows",
    "six inputs, 16000 rows",
    "kin40k, 8000 rows",
    "kin40k, 16000 rows",
    "elevators, 8000 rows",
    "protein, 8000 rows",
    "pol, 8000 rows",
)
REAL = ("kin40k", "elevators", "protein", "pol")
CASES = (
    "demo",
    "default, 300 rows",
    "default, 500 rows",
    "default, 2000 rows",
    "default, 4000 rows",
    "default, 8000 rows",
    "iterative, 3000 rows",
    "blocks of 1000, 3000 rows",
    "blocks of 100, 2000 rows",
    "grid, 20000 rows",
    "neighbours, 20000 rows",
    "sparse variational, 5000 rows",
    "computation-aware, 3000 rows",
    "quadruply stochastic, 5000 rows",
    "random features, 3000 rows",
    "classifier, 1000 rows",
)


def make(case: str) -> tuple[Any, int, int]:
    """Return the estimator of a case, its number of rows and its number of inputs."""
    from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, solvers

    name, rows = case.split(",")
    estimators = {
        **dict.fromkeys(("default", "six inputs", *REAL), lambda: GPRegressor(kernels.Matern(nu=1.5))),
        "iterative": lambda: GPRegressor(inference=inference.Iterative(), optimizer=optimization.Adam(steps=10)),
        **{
            name: lambda size=size: GPRegressor(
                inference=inference.Iterative(solver=solvers.AlternatingProjections(size)),
                optimizer=optimization.Adam(steps=10),
            )
            for name, size in (("blocks of 1000", 1000), ("blocks of 100", 100))
        },
        "grid": lambda: GPRegressor(inference=inference.Grid(size=100)),
        "neighbours": lambda: GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia()),
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


def rows_of(case: str, n: int, d: int, data: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs and targets of a case, and inputs and targets to predict."""
    if case.startswith(REAL):
        sys.path.insert(0, str(Path(__file__).parent))
        from splits import read_split

        return read_split(data, case.split(",")[0], rows=n)
    rng = np.random.default_rng(0)
    if case.startswith("six inputs"):
        X, new, waves = rng.normal(size=(n, 6)), rng.normal(size=(5000, 6)), rng.normal(size=(6, 8))
        noise = rng.normal(size=n), rng.normal(size=len(new))
        targets = [np.sin(points @ waves / 2).sum(1) + 0.2 * e for points, e in zip((X, new), noise, strict=True)]
        return X, targets[0], new, targets[1]
    X, new = rng.normal(size=(n, d)), rng.normal(size=(5000, d))

    def truth(X: np.ndarray) -> np.ndarray:
        return np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2 + np.cos(X.sum(1))

    y = truth(X) + 0.1 * rng.normal(size=n)
    if case.startswith("grid"):
        new = np.clip(new, X.min(0), X.max(0))
    return X, y, new, truth(new)


def child(case: str, data: Path) -> None:
    """Fit and predict, and print CPU seconds and the test error."""
    if case == "demo":
        from gigagp.commands.demo import demo

        began = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            demo(quiet=True)
        print(json.dumps({"fit": time.process_time() - began, "predict": 0.0, "error": 0.0, "nll": 0.0}))
        return
    estimator, n, d = make(case)
    X, y, new, expected = rows_of(case, n, d, data)
    if case.startswith("classifier"):
        y, expected = y > 0.5, expected > 0.5
    warnings.simplefilter("ignore")
    began, nll = time.process_time(), 0.0
    estimator.fit(X, y)
    fitted = time.process_time()
    if case.startswith("classifier"):
        error = float((estimator.predict(new) != expected).mean())
    else:
        mean, std = estimator.predict(new, return_std=True, include_noise=True)
        error = float(np.sqrt(((mean - expected) ** 2).mean()))
        nll = float((np.log(std) + 0.5 * ((expected - mean) / std) ** 2).mean() + 0.5 * np.log(2 * np.pi))
    print(json.dumps({"fit": fitted - began, "predict": time.process_time() - fitted, "error": error, "nll": nll}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, help="src folder of the other checkout")
    parser.add_argument("--now", type=Path, default=OWN)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.data)
        return
    results = {}
    commits = {name: commit(folder) for name, folder in (("before", options.before), ("now", options.now))}
    print(
        f"{'case':34s} {'fit before':>10s} {'now':>8s} {'ratio':>6s}   {'predict':>8s} {'now':>8s} {'ratio':>6s}  "
        "error and NLL"
    )
    for case in options.cases:
        command = ["--child", case, "--data", str(options.data)]
        pairs = [
            [printed(__file__, command, source) for source in (options.before, options.now)]
            for _ in range(options.runs)
        ]
        one: dict[str, Any] = {
            part: [statistics.median(pair[place][part] for pair in pairs) for place in (0, 1)]
            for part in ("fit", "predict", "error", "nll")
        }
        results[case] = one
        ratios = {part: one[part][1] / max(one[part][0], 1e-9) for part in ("fit", "predict")}
        print(
            f"{case:34s} {one['fit'][0]:10.2f} {one['fit'][1]:8.2f} {ratios['fit']:6.2f}   {one['predict'][0]:8.3f} "
            f"{one['predict'][1]:8.3f} {ratios['predict']:6.2f}   {one['error'][0]:.4f} {one['error'][1]:.4f} "
            f"{one['nll'][0]:7.4f} {one['nll'][1]:7.4f}",
            flush=True,
        )
        if options.json:  # write after every case, so that an interrupted run keeps its results
            found = {"commits": commits, "runs": options.runs, "results": results}
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
