r"""The exact posterior mean of a map by a solve that nearest neighbours precondition.

    python benchmarks/exact_mean.py elevation --rows 116700 --json benchmarks/results/exact_mean_elevation.json
    python benchmarks/exact_mean.py elevation --rows 816307 --share 0.01225 --threads 2 --neighbors 60 --rank 100 \
        --json benchmarks/results/exact_mean_elevation_record.json   # the record's rows

Hyperparameters are learned by `inference.Vecchia`. Then ``H v = y`` is solved by conjugate gradients with
`solvers.Vecchia`, products in float32 (``mixed``) and residuals in float64, to a true relative residual of 1e-3.
CPU seconds and seconds of each part, and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import KERNELS, SHARE, split, write

from gigagp import GPRegressor, inference, metrics
from gigagp.operators import KernelMatrix
from gigagp.products import cross_product
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.preconditioners import Vecchia


class Clock:
    """The seconds and CPU seconds of parts that follow each other."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self._began = time.perf_counter(), time.process_time()

    def end(self, part: str) -> None:
        """Note what a part took."""
        now = time.perf_counter(), time.process_time()
        for unit, before, after in zip(("s", "cpu_s"), self._began, now, strict=True):
            self.parts[f"{part}_{unit}"] = after - before
        self._began = now


def main() -> None:
    """Learn, solve, check the residual, and predict the held-out rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=116_700)
    parser.add_argument("--kernel", choices=KERNELS, default="half")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--share", type=float, default=SHARE, help="share of the rows that is held out")
    parser.add_argument("--neighbors", type=int, default=30, help="neighbours of the preconditioner")
    parser.add_argument("--rank", type=int, default=0, help="columns of the preconditioner")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    data = split(arguments.data, arguments.map, "random", arguments.rows, share=arguments.share)
    clock = Clock()
    gp = GPRegressor(kernel=KERNELS[arguments.kernel](), inference=inference.Vecchia()).fit(data.X, data.y)
    clock.end("learning")
    posterior = gp.posterior_
    model, table = posterior.model, posterior.table
    residuals = table.Y - table.basis @ posterior.coefficients
    matrix = KernelMatrix(model.kernel, table.X, model.noise_variance, mixed=True, storage="tiles")
    recipe = Vecchia(n_neighbors=arguments.neighbors, rank=arguments.rank)
    solver = ConjugateGradients(tolerance=arguments.tolerance, preconditioner=recipe)
    solution = solver.solve(matrix, residuals)
    clock.end("solve")
    residual = float((matrix @ solution.value - residuals).norm() / residuals.norm())
    clock.end("check")
    new = torch.from_numpy(gp.scaling_.inputs(data.X_test))
    mean = posterior.trend(new) + cross_product(model.kernel, new, table.X, solution.value, budget=2**30)
    clock.end("predict")
    in_units = mean[:, 0].numpy() * gp.scaling_.y_scale[0] + gp.scaling_.y_centre[0]
    found: dict[str, object] = {
        "rows": table.n_rows,
        "iterations": solution.iterations,
        "true_relative_residual": residual,
        "preconditioner": repr(recipe),
        "threads": arguments.threads,
        **clock.parts,
        "rmse": metrics.rmse(data.y_test, in_units),
        "rmse_of_neighbours": metrics.rmse(data.y_test, gp.predict(data.X_test)),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "engine": gp.engine_,
    }
    print(found)
    write(arguments.json, {"map": arguments.map, "kernel": arguments.kernel}, [found])


if __name__ == "__main__":
    main()
