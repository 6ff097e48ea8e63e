"""Compare one training step on a real table with each engine and in mixed precision, in turns.

    python benchmarks/training_step.py --data ../shared/data --table pol --threads 2

A step of iterative inference at one set of hyperparameters runs conjugate gradients from zero for the targets and 64
probes (65 right-hand sides) to a relative residual of 0.01, and then computes the gradient with respect to all
hyperparameters. The kernel matrix is not stored, so the time is that of the engine. Prints CPU and wall seconds, their
ratios to the torch engine's (medians over repetitions), and the differences between solutions and between gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp.kernels import Matern
from gigagp.operators import KernelMatrix
from gigagp.products import NativeTiles, TorchTiles
from gigagp.solvers import ConjugateGradients


def step(kernel: Matern, X: torch.Tensor, B: torch.Tensor, tolerance: float, **settings: object) -> dict[str, object]:
    """Solve and differentiate once."""
    wall, cpu = time.perf_counter(), time.process_time()
    matrix = KernelMatrix(kernel, X, 0.01, storage="tiles", **settings)
    solution = ConjugateGradients(tolerance=tolerance).solve(matrix, B, n_targets=1)
    solved = time.process_time()
    gradient = matrix.gradient(solution.value, solution.value)
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "gradient_cpu_seconds": time.process_time() - solved,
        "iterations": solution.iterations,
        "residual": float(solution.relative_residual.max()),
        "value": solution.value,
        "gradient": torch.cat([value.reshape(-1) for value in gradient.values()]),
    }


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative norm of the difference."""
    return float((found - expected).norm() / expected.norm())


def main() -> None:
    """Run every variant in turn, several times, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="pol")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    X, y, *_ = read_split(arguments.data, arguments.table, 0, arguments.rows)
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    X, y = (X - X.mean(0)) / X.std(0).clamp_min(1e-12), (y - y.mean()) / y.std()
    probes = torch.randn(len(X), 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    B = torch.cat([y[:, None], probes], 1)
    kernel = Matern(1.5).bind(X.shape[1])
    variants: dict[str, dict[str, object]] = {"torch": {"engine": TorchTiles()}}
    if NativeTiles.available():
        variants |= {"native": {"engine": NativeTiles()}, "native, mixed": {"engine": NativeTiles(), "mixed": True}}
    load = os.getloadavg()[0]
    print(f"{arguments.table}: {len(X):,} rows, {X.shape[1]} inputs, {arguments.threads} threads, load {load:.1f}")
    runs: dict[str, list[dict]] = {name: [] for name in variants}
    for _ in range(arguments.repetitions):
        for name, settings in variants.items():
            runs[name].append(step(kernel, X, B, arguments.tolerance, **settings))
    rows = []
    for name, found in runs.items():
        row = {"variant": name, "iterations": found[0]["iterations"], "residual": found[0]["residual"]}
        for key in ("seconds", "cpu_seconds", "gradient_cpu_seconds"):
            row[key] = statistics.median(run[key] for run in found)
            pairs = zip(runs["torch"], found, strict=True)
            row[f"{key}_ratio"] = statistics.median(base[key] / run[key] for base, run in pairs)
        row["solution_difference"] = difference(found[0]["value"], runs["torch"][0]["value"])
        row["gradient_difference"] = difference(found[0]["gradient"], runs["torch"][0]["gradient"])
        rows.append(row)
        print(
            f"{name:14s} {row['cpu_seconds']:8.1f} CPU s ({row['cpu_seconds_ratio']:.2f}x), {row['seconds']:8.1f} wall "
            f"({row['seconds_ratio']:.2f}x), gradient {row['gradient_cpu_seconds']:.2f} CPU s "
            f"({row['gradient_cpu_seconds_ratio']:.2f}x), {row['iterations']} iterations, residual "
            f"{row['residual']:.2g}, difference from torch: solutions {row['solution_difference']:.2g}, gradient "
            f"{row['gradient_difference']:.2g}"
        )
    if arguments.json is not None:
        arguments.json.write_text(
            json.dumps({"rows": len(X), "load": load, "variants": rows}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
