"""What a fit to averages over areas says of the points below them, on made fields.

    python benchmarks/area_averages.py --json benchmarks/results/area_averages.json

Each field is drawn from a Matern process on a lattice of 32 x 32 cells. Its 100 areas are the cells nearest to each of
100 seats, which are denser in one corner, and an area's target is the average of its cells, weighted by a made
population, plus noise. "areas" is a default fit to these averages, "centroids" one to the same targets at the weighted
means of the cells, and "copied" gives each cell the target of its area. Errors and 95 % intervals are of the field at
the cells.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit

from gigagp import GPRegressor, kernels

_SIDE, _AREAS, _NOISE = 32, 100, 0.05
_MEASURES = ("rmse", "rmse_centroids", "rmse_copied", "inside", "inside_centroids", "cpu_s")


def run(seed: int) -> dict[str, Any]:
    """Return errors and shares within the intervals for one field, and the CPU seconds of the fit to areas."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*[(np.arange(_SIDE) + 0.5) / _SIDE] * 2), -1).reshape(-1, 2)
    kernel = kernels.Matern(lengthscale=rng.uniform(0.15, 0.5), variance=1.0, nu=1.5, ard=False)
    covariance = kernel.block(*[torch.from_numpy(cells)] * 2).numpy()
    field = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(cells))) @ rng.normal(size=len(cells))
    population = np.exp(rng.normal(size=len(cells)))
    seats = rng.uniform(size=(_AREAS, 2)) ** 1.5
    area = np.unique(np.square(cells[:, None] - seats).sum(2).argmin(1), return_inverse=True)[1]
    shares = np.equal.outer(np.arange(area.max() + 1), area) * population
    shares /= shares.sum(1, keepdims=True)
    y = shares @ field + _NOISE * rng.normal(size=len(shares))
    began = time.process_time()
    gp = GPRegressor().fit(cells, y, blocks=area, weights=population)
    mean, std = gp.predict(cells, return_std=True)
    seconds = time.process_time() - began
    of_centroids = GPRegressor().fit(shares @ cells, y)
    other, other_std = of_centroids.predict(cells, return_std=True)
    return {
        "seed": seed,
        "rmse": _rmse(field, mean),
        "rmse_centroids": _rmse(field, other),
        "rmse_copied": _rmse(field, y[area]),
        "inside": float(np.mean(np.abs(field - mean) <= 1.959964 * std)),
        "inside_centroids": float(np.mean(np.abs(field - other) <= 1.959964 * other_std)),
        "cpu_s": seconds,
    }


def _rmse(field: np.ndarray, found: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(field - found))))


def main() -> None:
    """Draw the fields and write the errors and shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", type=int, default=40)
    parser.add_argument("--json", type=Path, default=Path("area_averages.json"))
    options = parser.parse_args()
    found = [run(seed) for seed in range(options.fields)]
    record: dict[str, Any] = {"commit": commit(), "fields": found}
    for name in _MEASURES:
        values = np.array([one[name] for one in found])
        record[name] = float(values.mean())
        record[f"{name}_standard_error"] = float(values.std(ddof=1) / len(found) ** 0.5)
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in record.items() if name != "fields"})


if __name__ == "__main__":
    main()
