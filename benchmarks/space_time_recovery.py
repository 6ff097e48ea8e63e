"""Whether a sum-metric space-time kernel is found again in data that were drawn from it.

    python benchmarks/space_time_recovery.py --json benchmarks/results/space_time_recovery.json

Forty places and 25 days, 1,000 rows, three quarters of them for the fit. For each seed: the log marginal likelihood at
the true hyperparameters, at those found from the default start and at those found from the truth, and the error of the
latent function in the other rows. A fit whose likelihood is below that of the truth has not learned; one above it has
found what the data say, however far it is from the truth. If the maximum is found, twice the difference follows, for
many rows, a chi-squared distribution with as many degrees of freedom as hyperparameters (here 8).
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from maps import write

from gigagp import GPRegressor, inference, kernels

NOISE = 0.05


def truth() -> kernels.Kernel:
    return (
        kernels.Matern(1.5, 400.0, 1.0, columns=[0, 1], metric="haversine")
        + kernels.Matern(1.5, 20.0, 0.7, columns=[2])
        + kernels.Matern(1.5, [250.0, 6.0], 1.5, metric="haversine")
    )


def start() -> kernels.Kernel:
    return (
        kernels.Matern(1.5, columns=[0, 1], metric="haversine")
        + kernels.Matern(1.5, columns=[2])
        + kernels.Matern(1.5, metric="haversine")
    )


def draw(seed: int, places: int = 40, days: int = 25) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, latent values and measurements, and which rows are for the fit."""
    rng = np.random.default_rng(seed)
    lon, lat = rng.uniform(0, 15, places), rng.uniform(45, 55, places)
    X = np.array([[a, b, d] for a, b in zip(lon, lat, strict=True) for d in np.linspace(0, 60, days)])
    points = torch.from_numpy(X)
    K = truth().bind(3).block(points, points).numpy() + 1e-8 * np.eye(len(X))
    f = np.linalg.cholesky(K) @ rng.normal(size=len(X))
    y = f + np.sqrt(NOISE) * rng.normal(size=len(X))
    fitted = np.ones(len(X), dtype=bool)
    fitted[rng.permutation(len(X))[: len(X) // 4]] = False
    return X, f, y, fitted


def one(seed: int) -> dict[str, Any]:
    X, f, y, fitted = draw(seed)

    def fit(kernel: kernels.Kernel, noise: float | None, optimizer: str | None = "auto") -> GPRegressor:
        options = {} if noise is None else {"noise_variance": noise}
        return GPRegressor(kernel, inference.Exact(), optimizer, mean="zero", **options).fit(X[fitted], y[fitted])

    def judged(gp: GPRegressor) -> dict[str, Any]:
        error = gp.predict(X[~fitted]) - f[~fitted]
        at = fit(gp.kernel_, float(gp.noise_variance_), None)
        values = {name: value.tolist() for name, value in gp.kernel_.parameters().items()}
        return {
            "log_likelihood": at.log_marginal_likelihood(standardized=True).value,
            "latent_rmse": float(np.sqrt(np.mean(error**2))),
            "hyperparameters": {**values, "noise_variance": float(gp.noise_variance_)},
        }

    begin = time.process_time()
    found = fit(start(), None)
    seconds = time.process_time() - begin
    row = {
        "at_truth": judged(fit(truth(), NOISE, None)),
        "found": judged(found),
        "from_truth": judged(fit(truth(), NOISE)),
    }
    return {
        "seed": seed,
        "fit_cpu_s": seconds,
        "gain_over_truth": row["found"]["log_likelihood"] - row["at_truth"]["log_likelihood"],
        "below_start_at_truth": row["from_truth"]["log_likelihood"] - row["found"]["log_likelihood"],
        "rmse_over_truth": row["found"]["latent_rmse"] / row["at_truth"]["latent_rmse"],
        **row,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    rows = [one(seed) for seed in range(arguments.seeds)]
    for row in rows:
        print({k: row[k] for k in ("seed", "fit_cpu_s", "gain_over_truth", "below_start_at_truth", "rmse_over_truth")})
    write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
