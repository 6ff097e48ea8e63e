"""Compare preconditioners: iterations of conjugate gradients, and CPU seconds of the set-up and of an application.

    python benchmarks/preconditioners.py --tables kin40k pol protein elevators elevation temperature --rows 5000 20000
    python benchmarks/preconditioners.py --tables kin40k elevation --rows 5000 --noise 1e-4 1e-2 1 10

The system is that of a Matern-3/2 whose hyperparameters Vecchia inference has learned on the rows, with the targets and
four random right-hand sides. ``--noise`` sets the noise as a multiple of the kernel's variance instead. Iterations are
counted until the targets, and on average the random columns, reach a relative residual of 1e-2 and of 1e-4; "over" is
the cap (``--cap``). One thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import FILES, read_map, write
from splits import read_split

from gigagp import GPRegressor, inference, kernels
from gigagp.operators import KernelMatrix
from gigagp.solvers import ConjugateGradients, Status
from gigagp.solvers.preconditioners import (
    PivotedCholesky,
    PreconditionerRecipe,
    RandomlyPivotedCholesky,
    TwoLevel,
    Vecchia,
)
from gigagp.solvers.preconditioners.automatic import auto_sizes, automatic
from gigagp.solvers.prepared import Prepared

TOLERANCES = (1e-2, 1e-4)


def read(folder: Path, name: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return standardized inputs and targets."""
    X, y = read_map(folder, name, rows) if name in FILES else read_split(folder, name, rows=rows)[:2]
    spread = X.std(0)
    return (X - X.mean(0)) / np.where(spread > 0, spread, 1.0), (y - y.mean()) / y.std()


def recipes(n: int) -> dict[str, PreconditionerRecipe | None]:
    """Return the preconditioners to compare."""
    rank, size = auto_sizes(n)
    return {
        "none": None,
        "greedy, rank 100": PivotedCholesky(100),
        f"random, rank {rank}": RandomlyPivotedCholesky(rank),
        f"two levels of {rank}": TwoLevel(rank, size),
        "15 neighbours": Vecchia(15),
        "30 neighbours": Vecchia(30),
        "60 neighbours": Vecchia(60),
        "120 neighbours": Vecchia(120),
        "200 neighbours": Vecchia(200),
        "30 neighbours, rank 200": Vecchia(30, rank=200),
    }


def measure(
    matrix: KernelMatrix, sides: torch.Tensor, recipe: PreconditionerRecipe | None, cap: int
) -> dict[str, object]:
    """Return the figures of one preconditioner."""
    found: dict[str, object] = {}
    built = None
    if recipe is not None:
        started = time.process_time()
        built = recipe.build(matrix, torch.Generator().manual_seed(0))
        found["setup_cpu_s"] = time.process_time() - started
        started = time.process_time()
        built.apply(sides)
        found["apply_cpu_s"] = time.process_time() - started
    for tolerance in TOLERANCES:
        solver = ConjugateGradients(tolerance=tolerance, max_epochs=cap, preconditioner=built)
        solution = solver.solve(matrix, sides, generator=torch.Generator().manual_seed(0), n_targets=1)
        reached = solution.status == Status.CONVERGED
        found[f"iterations_{tolerance:g}"] = solution.iterations if reached else f"over {solution.iterations}"
    return found


def study(folder: Path, name: str, rows: int, shares: list[float | None], cap: int) -> list[dict[str, object]]:
    """Return the figures of all preconditioners on one table."""
    X, y = read(folder, name, rows)
    gp = GPRegressor(
        kernels.Matern(nu=1.5), inference=inference.Vecchia(30 if X.shape[1] <= 3 else 60), standardize=False
    ).fit(X, y)
    inputs = torch.from_numpy(np.ascontiguousarray(X))
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(len(y), 4, generator=generator, dtype=torch.float64)
    sides = torch.cat([torch.from_numpy(y.copy())[:, None], random], 1)
    results = []
    for share in shares:
        variance = float(gp.kernel_.diagonal(inputs[:1]))
        noise = float(gp.noise_variance_) if share is None else share * variance
        matrix = KernelMatrix(gp.kernel_, inputs, noise)
        matrix @ sides  # the first product stores the matrix
        started = time.process_time()
        matrix @ sides
        product = time.process_time() - started
        chosen = automatic(matrix, Prepared(matrix))
        shown = {"table": name, "rows": len(y), "inputs": X.shape[1], "noise_share": noise / variance}
        shown |= {"product_cpu_s": product, "automatic": repr(chosen)}
        print(shown, flush=True)
        for words, recipe in recipes(len(y)).items():
            results.append(shown | {"preconditioner": words, **measure(matrix, sides, recipe, cap)})
            print("  ", {k: v for k, v in results[-1].items() if k not in shown}, flush=True)
    return results


def main() -> None:
    """Run all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--tables", nargs="+", default=["kin40k", "pol", "protein", "elevators", "elevation", "temperature"]
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[5000, 20000])
    parser.add_argument("--noise", nargs="+", type=float, default=None)
    parser.add_argument("--cap", type=int, default=300, help="the most iterations of one solve")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, object]] = []
    for name in arguments.tables:
        for rows in arguments.rows:
            results += study(arguments.data, name, rows, arguments.noise or [None], arguments.cap)
            if arguments.json is not None:
                write(arguments.json, vars(arguments), results)


if __name__ == "__main__":
    main()
