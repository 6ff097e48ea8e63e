"""Compare peak memory of fit and predict with the memory budget, at 45,000 rows.

    python benchmarks/memory.py --rows 45000 --budget 2GiB

Reports the peak resident memory of this process minus that after a fit of 100 rows, and the largest tensor that was
allocated, compared with the size of an n x n tensor. The fit is limited to few steps and epochs, because memory does
not depend on their number.
"""

from __future__ import annotations

import argparse
import resource
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gigagp import GPRegressor, inference, kernels, optimization, solvers
from gigagp.errors import SolverWarning
from gigagp.runtime.memory import resolve_budget

sys.path.insert(0, str(Path(__file__).parent))
from maps import write


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.largest = max(self.largest, item.untyped_storage().nbytes())
        return result


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Fit, predict and print the memory used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=45_000)
    parser.add_argument("--inputs", type=int, default=9)
    parser.add_argument("--test-rows", type=int, default=45_000)
    parser.add_argument("--budget", default="2GiB")
    parser.add_argument("--epochs", type=int, default=2, help="number of epochs of each solve")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    X = generator.normal(size=(arguments.rows, arguments.inputs))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * generator.normal(size=arguments.rows)
    X_test = generator.normal(size=(arguments.test_rows, arguments.inputs))
    budget = resolve_budget(arguments.budget)
    gp = GPRegressor(
        kernels.Matern(nu=1.5),
        inference=inference.Iterative(solver=solvers.ConjugateGradients(max_epochs=arguments.epochs)),
        optimizer=optimization.Auto(polish_steps=1),
        memory_budget=arguments.budget,
        dtype=arguments.dtype,
    )
    with warnings.catch_warnings(), LargestTensor() as spy:
        warnings.simplefilter("ignore", SolverWarning)
        gp.fit(X[:100], y[:100])  # triggers lazy imports and the libraries' own buffers
        before = peak()
        spy.largest = 0
        gp.fit(X, y)
        fitted = peak()
        gp.predict(X_test, return_std=True)
    n, size = arguments.rows, np.dtype(arguments.dtype).itemsize
    gib = 2**30
    print(f"{n:,} rows, {arguments.inputs} inputs, {arguments.dtype}, budget {budget / gib:.2f} GiB")
    print(f"after a fit of 100    {before / gib:6.2f} GiB resident")
    print(f"fit                   {(fitted - before) / gib:6.2f} GiB more at the peak")
    print(
        f"fit and predict       {(peak() - before) / gib:6.2f} GiB more at the peak, {arguments.test_rows:,} new rows"
    )
    print(f"largest tensor        {spy.largest / gib:6.2f} GiB; n x n would be {n * n * size / gib:.2f} GiB")
    print("within the budget" if peak() - before <= budget else "OVER THE BUDGET")
    measured = {
        "fit_gib": (fitted - before) / gib,
        "peak_gib": (peak() - before) / gib,
        "tensor_gib": spy.largest / gib,
    }
    write(arguments.json, vars(arguments), [measured])


if __name__ == "__main__":
    main()
