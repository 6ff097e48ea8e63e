"""How often 95 % intervals of the averages of blocks hold the true averages, on made fields.

    python benchmarks/block_averages.py --json benchmarks/results/block_averages.json

Each field is drawn on a lattice of 30 x 30 cells from a Matern process and measured with noise in 150 of the cells,
half of which are in a tenth of the area. Blocks are 25 squares of 6 x 6 cells. Intervals are normal ones by
`GPRegressor.predict_average`. "independent" are those that take errors at points for independent, as is often done.
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

_SIDE, _ROWS, _NOISE = 30, 150, 0.2


def run(seed: int) -> dict[str, Any]:
    """Return the shares of the blocks of one field whose average is within its interval, and the CPU seconds."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*[(np.arange(_SIDE) + 0.5) / _SIDE] * 2), -1).reshape(-1, 2)
    kernel = kernels.Matern(lengthscale=rng.uniform(0.1, 0.4), variance=1.0, nu=1.5, ard=False)
    covariance = kernel.block(*[torch.from_numpy(cells)] * 2).numpy()
    factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(cells)))
    field = factor @ rng.normal(size=len(cells))
    dense = np.flatnonzero((cells < 0.32).all(1))
    rows = np.union1d(rng.choice(dense, _ROWS // 2, replace=False), rng.choice(len(cells), _ROWS // 2, replace=False))
    began = time.process_time()
    gp = GPRegressor().fit(cells[rows], field[rows] + _NOISE * rng.normal(size=len(rows)))
    blocks = (cells // 0.2) @ [5, 1]
    mean, std = gp.predict_average(cells, blocks, return_std=True)
    seconds = time.process_time() - began
    names = np.unique(blocks)
    truth = np.array([field[blocks == one].mean() for one in names])
    apart = gp.predict(cells, return_std=True)[1]
    independent = np.array([np.sqrt((apart[blocks == one] ** 2).sum()) / (blocks == one).sum() for one in names])
    return {
        "seed": seed,
        "inside": float(np.mean(np.abs(truth - mean) <= 1.959964 * std)),
        "inside_if_independent": float(np.mean(np.abs(truth - mean) <= 1.959964 * independent)),
        "cpu_s": seconds,
    }


def main() -> None:
    """Draw the fields and write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", type=int, default=40)
    parser.add_argument("--json", type=Path, default=Path("block_averages.json"))
    options = parser.parse_args()
    found = [run(seed) for seed in range(options.fields)]
    inside = np.array([one["inside"] for one in found])
    record = {
        "commit": commit(),
        "fields": found,
        "inside": float(inside.mean()),
        "standard_error": float(inside.std(ddof=1) / len(found) ** 0.5),
        "inside_if_independent": float(np.mean([one["inside_if_independent"] for one in found])),
        "cpu_s": float(np.mean([one["cpu_s"] for one in found])),
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print({name: value for name, value in record.items() if name != "fields"})


if __name__ == "__main__":
    main()
