"""CPU seconds of default fits of small tables, beside scikit-learn's with the same kernels.

    python benchmarks/small_fits.py --before ../before/src --json benchmarks/results/small_fits.json

Three inputs; a smooth function with noise of a tenth for regression, and two classes for classification. The numbers
are medians of warm fits in one thread, of predictions with standard deviations (probabilities) at five points, and the
log likelihood that was reached. scikit-learn has the same kernel families and its own starts. ``--before`` names the
source folder of another checkout, whose runs take turns with those of this one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from checkout import commit
from children import OWN, printed

SIZES = {"regression": (6, 30, 100, 300), "classification": (30, 100, 300)}


def make(task: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets or labels."""
    rng = np.random.default_rng([0, n])
    X = rng.normal(size=(n, 3))
    if task == "classification":
        return X, (X[:, 0] + 0.3 * rng.normal(size=n) > 0).astype(int)
    return X, np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n)


def estimator_of(library: str, task: str) -> Any:
    """Return an estimator with a default of gigagp, or its kernel in scikit-learn."""
    if library == "gigagp":
        from gigagp import GPClassifier, GPRegressor, kernels

        return GPRegressor(kernels.Matern(nu=1.5)) if task == "regression" else GPClassifier()
    from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor, kernels

    if task == "classification":
        return GaussianProcessClassifier(kernels.ConstantKernel(1.0) * kernels.RBF(np.ones(3)))
    kernel = kernels.ConstantKernel(1.0) * kernels.Matern(np.ones(3), nu=1.5) + kernels.WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True)


def child(library: str, runs: int, most: int) -> None:
    """Print the results of all sizes up to ``most`` as JSON."""
    warnings.simplefilter("ignore")
    found = []
    for task, sizes in SIZES.items():
        for n in (size for size in sizes if size <= most):
            X, y = make(task, n)
            fits, predictions = [], []
            for run in range(runs + 1):
                estimator = estimator_of(library, task)
                began = time.process_time()
                estimator.fit(X, y)
                fitted = time.process_time()
                _ = (
                    estimator.predict(X[:5], return_std=True)
                    if task == "regression"
                    else estimator.predict_proba(X[:5])
                )
                if run:  # the first one is cold
                    fits.append(fitted - began)
                    predictions.append(time.process_time() - fitted)
            one: dict[str, Any] = {"library": library, "task": task, "rows": n}
            one |= {"fit_cpu_s": statistics.median(fits), "predict_cpu_s": statistics.median(predictions)}
            if library == "gigagp":
                latent = getattr(estimator, "latent_", estimator)
                one["log_likelihood"] = float(latent.log_marginal_likelihood(standardized=True).value)
            found.append(one)
    print(json.dumps(found))


def main() -> None:
    """Run all contenders and print their seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, default=None)
    parser.add_argument("--now", type=Path, default=OWN)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--most", type=int, default=300, help="largest number of rows")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.runs, options.most)
        return
    contenders = {} if options.before is None else {"before": ("gigagp", options.before)}
    contenders |= {"now": ("gigagp", options.now), "scikit-learn": ("sklearn", options.now)}
    found = {
        name: printed(__file__, ["--child", library, "--runs", str(options.runs), "--most", str(options.most)], source)
        for name, (library, source) in contenders.items()
    }
    commits = {name: commit(source) for name, (library, source) in contenders.items() if library == "gigagp"}
    print(f"{'task':16s} {'rows':>5s} " + " ".join(f"{name:>14s}" for name in found))
    for place, one in enumerate(next(iter(found.values()))):
        seconds = " ".join(f"{rows[place]['fit_cpu_s']:12.3f} s" for rows in found.values())
        print(f"{one['task']:16s} {one['rows']:5d} {seconds}")
    if options.json is not None:
        options.json.write_text(
            json.dumps({"commits": commits, "runs": options.runs, "results": found}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
