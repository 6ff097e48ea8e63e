"""Compare error bars after solves that stop on a budget: the plain iterative variance and computational uncertainty.

    python benchmarks/computational_uncertainty.py --table pol --budget 5
    python benchmarks/computational_uncertainty.py --table pol --rows 3000 --budget 2 --exact

The hyperparameters have been tuned for these tables (Matern-3/2, split 0), so that results differ only by the solve.
Every solver gets the target and 64 pathwise probes, and ``--budget`` epochs. "plain" is `gigagp.inference.Iterative`:
the mean comes from the unconverged solution, and the variance from unconverged samples. "aware" conditions on all
products that the solver has computed (`gigagp.inference.computation_aware.RecordingMatrix`). "+ blocks" also conditions
on the solution split into 256 clusters, which costs one more epoch. ``--exact`` adds the exact posterior (n^3).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import __version__, inference, kernels, metrics, solvers
from gigagp.errors import SolverWarning
from gigagp.inference.computation_aware import RecordingMatrix
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.gradients import Pathwise
from gigagp.inference.iterative.pathwise_posterior import PathwisePosterior
from gigagp.inference.iterative.solve_records import record_of
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled


def main() -> None:
    """Solve with every solver, print the scores of every posterior and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="pol")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--budget", type=float, default=5, help="number of epochs of each solve")
    parser.add_argument("--block-size", type=int, default=1000, help="block size of alternating projections")
    parser.add_argument("--capacity", type=int, default=1024)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--solvers", nargs="+", default=["none", "CG", "AP", "SGD"], help="none: CG without help")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", SolverWarning)
    X, y, X_test, y_test = read_split(arguments.data, arguments.table, 0, arguments.rows)
    tuned = json.loads((arguments.data / "uci/tuned-matern32-hyperparameters.json").read_text(encoding="utf-8"))
    scales = next(one for one in tuned if one["dataset"] == arguments.table and one["split"] == 0)
    kernel = kernels.Matern(1.5, scales["length_scale"], scales["signal_scale"] ** 2).bind(X.shape[1])
    noise = torch.tensor(scales["noise_scale"] ** 2, dtype=torch.float64)
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**33)
    model, points = Model(kernel, ZeroMean(), noise), torch.from_numpy(X_test)
    print(f"gigagp {__version__}, {arguments.table}, {len(y):,} rows, budget {arguments.budget:g} epochs", flush=True)
    print(
        f"{'posterior':46s} {'NLL':>8s} {'RMSE':>7s} {'50 %':>6s} {'80 %':>6s} {'95 %':>6s} {'latent var':>10s} "
        f"{'CPU s':>6s}"
    )
    results = []

    def show(name: str, posterior: Posterior, seconds: float) -> None:
        mean, variance = (part.numpy() for part in posterior.mean_and_variance(points))
        std = np.sqrt(variance + float(noise))
        row = {
            "posterior": name,
            "nll": metrics.gaussian_nll(y_test, mean[:, 0], std),
            "rmse": metrics.rmse(y_test, mean[:, 0]),
            "coverage": [metrics.coverage(y_test, mean[:, 0], std, level) for level in metrics.INTERVALS],
            "latent_variance": float(variance.mean()),
            "cpu_seconds": seconds,
        }
        shares = " ".join(f"{100 * share:6.1f}" for share in row["coverage"])
        print(
            f"{name:46s} {row['nll']:8.4f} {row['rmse']:7.4f} {shares} {row['latent_variance']:10.5f} {seconds:6.1f}",
            flush=True,
        )
        results.append(row)
        if arguments.json is not None:
            settings = {"table": arguments.table, "rows": len(y), "budget": arguments.budget, "version": __version__}
            arguments.json.write_text(json.dumps({"settings": settings, "rows": results}, indent=1), encoding="utf-8")

    if arguments.exact:
        started = time.process_time()
        exact = inference.Exact().objective(table, torch.Generator()).posterior(model)
        show("exact", exact, time.process_time() - started)
    limits = {"tolerance": 1e-8, "max_epochs": arguments.budget}
    tried = {
        "none": solvers.ConjugateGradients(preconditioner=None, **limits),
        "CG": solvers.ConjugateGradients(**limits),
        "AP": solvers.AlternatingProjections(block_size=arguments.block_size, **limits),
        "SGD": solvers.StochasticGradientDescent(**limits),
    }
    probes = Pathwise(n_probes=64).draw(model, table.X, torch.Generator().manual_seed(0))
    for key in arguments.solvers:
        solver, name = tried[key], {"none": "CG, no preconditioner"}.get(key, key)
        started = time.process_time()
        matrix = RecordingMatrix(model, table, arguments.capacity)
        right = torch.cat([table.Y, probes.right_hand_sides(model, matrix, 2**30)], 1)
        solution = solver.solve(matrix, right, generator=torch.Generator().manual_seed(1), n_targets=1)
        targets, samples = solution.value[:, :1], solution.value[:, 1:]
        seconds = time.process_time() - started
        no_basis = Trend(targets.new_zeros(0, 1), targets.new_zeros(0, 0))
        values = right[:, 1:] if is_compiled(kernel) else None
        solved = targets, samples, table.basis, no_basis, probes.prior, solver, record_of(solution, 1)
        plain = PathwisePosterior(model, table, *solved, probe_values=values)
        residual = float(solution.relative_residual[0])
        show(f"{name}: plain, residual {residual:.2g}", plain, seconds)
        aware = matrix.posterior()
        show(f"{name}: aware, {aware.n_actions} actions", aware, time.process_time() - started)
        matrix.add_blocks(targets)
        more = matrix.posterior()
        show(f"{name}: + blocks, {more.n_actions} actions", more, time.process_time() - started)


if __name__ == "__main__":
    main()
