"""Measure peak memory and seconds of one training step of computation-aware inference, at a fixed number of actions.

    python benchmarks/computation_aware_memory.py --rows 20000 40000 80000 160000

Each size runs in its own process, and its memory is the peak resident memory minus that before the table was made. It
should be linear in the number of rows. A step computes ``3 n^2`` kernel entries for any number of actions.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np
import torch

from gigagp import __version__, inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ConstantMean
from gigagp.model.model import Model
from gigagp.runtime.memory import resolve_budget


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def step(rows: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Make a table, evaluate value and gradient once, and return time and memory."""
    dtype = getattr(torch, arguments.dtype)
    settings = inference.ComputationAware(arguments.actions)
    budget = resolve_budget(arguments.budget)
    before = peak()
    random = np.random.default_rng(0)
    X = torch.from_numpy(random.normal(size=(rows, arguments.inputs))).to(dtype)
    Y = torch.sin(X[:, :1]) + 0.5 * X[:, 1:2] ** 2
    objective = settings.objective(TrainingTable(X, Y, ConstantMean(), budget), torch.Generator().manual_seed(0))
    kernel = kernels.Matern(1.5).bind(arguments.inputs)
    model = Model(kernel, ConstantMean(), torch.tensor(0.1, dtype=torch.float64))
    started = time.perf_counter()
    model = objective.start(model)
    began = time.perf_counter()
    objective.evaluate(model)
    return {
        "rows": rows,
        "start_seconds": began - started,
        "step_seconds": time.perf_counter() - began,
        "peak_gib": (peak() - before) / 2**30,
        "resident_gib": peak() / 2**30,
        "product_gib": rows * min(arguments.actions, rows) * dtype.itemsize / 2**30,
    }


def main() -> None:
    """Run every size in its own process and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 40_000, 80_000, 160_000])
    parser.add_argument("--actions", type=int, default=512)
    parser.add_argument("--inputs", type=int, default=9)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    parser.add_argument("--budget", default="2GiB")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    print(f"gigagp {__version__}, {arguments.actions} actions, {arguments.dtype}, {torch.get_num_threads()} threads")
    print(f"{'rows':>8s} {'peak GiB':>9s} {'resident':>9s} {'K S GiB':>8s} {'start s':>8s} {'step s':>8s}", flush=True)
    results = []
    for rows in arguments.rows:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(step, (rows, arguments))
        print(
            f"{rows:8d} {found['peak_gib']:9.2f} {found['resident_gib']:9.2f} {found['product_gib']:8.2f} "
            f"{found['start_seconds']:8.1f} {found['step_seconds']:8.1f}",
            flush=True,
        )
        results.append(found)
        if arguments.json is not None:
            arguments.json.write_text(
                json.dumps({"version": __version__, "sizes": results}, indent=1), encoding="utf-8"
            )


if __name__ == "__main__":
    main()
