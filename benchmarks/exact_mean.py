"""The exact posterior mean of a map by a solve that nearest neighbours precondition.

    python benchmarks/exact_mean.py elevation --rows 116700 --json benchmarks/results/exact_mean_elevation.json

Hyperparameters are learned by `inference.Vecchia`. Then ``H v = y`` is solved by conjugate gradients with
`solvers.Vecchia(30)`, products in float32 (``mixed``) and residuals in float64, to a true relative residual of 1e-3.
One thread; CPU seconds of each part, and the peak memory of the process.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import resource
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import KERNELS, split, write

from gigagp import GPRegressor, inference, metrics
from gigagp.operators import KernelMatrix
from gigagp.preconditioners import Vecchia
from gigagp.products import cross_product
from gigagp.solvers import ConjugateGradients


def main() -> None:
    """Learn, solve, check the residual, and predict the held-out rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=116_700)
    parser.add_argument("--kernel", choices=KERNELS, default="half")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = split(arguments.data, arguments.map, "random", arguments.rows)
    start = time.process_time()
    gp = GPRegressor(kernel=KERNELS[arguments.kernel](), inference=inference.Vecchia()).fit(data.X, data.y)
    learned = time.process_time()
    posterior = gp.posterior_
    model, table = posterior.model, posterior.table
    residuals = table.Y - table.basis @ posterior.coefficients
    matrix = KernelMatrix(model.kernel, table.X, model.noise_variance, mixed=True, storage="tiles")
    solver = ConjugateGradients(tolerance=arguments.tolerance, preconditioner=Vecchia(n_neighbors=30))
    solution = solver.solve(matrix, residuals)
    solved = time.process_time()
    residual = float((matrix @ solution.value - residuals).norm() / residuals.norm())
    checked = time.process_time()
    new = torch.from_numpy(gp.scaling_.inputs(data.X_test))
    mean = posterior.trend(new) + cross_product(model.kernel, new, table.X, solution.value, budget=2**30)
    predicted = time.process_time()
    in_units = mean[:, 0].numpy() * gp.scaling_.y_scale[0] + gp.scaling_.y_centre[0]
    found: dict[str, object] = {
        "rows": table.n_rows,
        "iterations": solution.iterations,
        "true_relative_residual": residual,
        "learning_cpu_s": learned - start,
        "solve_cpu_s": solved - learned,
        "check_cpu_s": checked - solved,
        "predict_cpu_s": predicted - checked,
        "rmse": metrics.rmse(data.y_test, in_units),
        "rmse_of_neighbours": metrics.rmse(data.y_test, gp.predict(data.X_test)),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "engine": gp.engine_,
    }
    print(found)
    write(arguments.json, {"map": arguments.map, "kernel": arguments.kernel}, [found])


if __name__ == "__main__":
    main()
