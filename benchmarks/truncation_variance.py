"""Measure the variance of randomly truncated solves, by estimator, preconditioner and law of the length.

    python benchmarks/truncation_variance.py --data ../shared/data --table pol --rows 1000 --draws 60

Gradients are drawn repeatedly at hyperparameters learned by exact inference. ``inflation`` is the variance (summed over
the logarithms of all hyperparameters) relative to that of converged solves with the same probes. ``work x variance`` is
the inflation times the iterations, relative to the iterations of converged solves; below 1, truncation pays even
without its unbiasedness. ``bias`` is the largest deviation of the mean from the exact gradient in standard errors; the
rows with stopped solves are the control. Where the inflation is large, gradients have heavy tails, and these standard
errors are too small.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from splits import read_split

from gigagp import GPRegressor, gradients, inference, kernels, solvers, truncation
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import GradientEstimator
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

PRECONDITIONERS = {
    "none": None,
    "rank 5": solvers.PivotedCholesky(rank=5),
    "rank 100": solvers.PivotedCholesky(rank=100),
    "two-level": solvers.TwoLevel(),
}
#: Laws for slow and for fast convergence, as (rate, minimum).
LAWS = {
    "none": [(0.05, 20), (0.1, 30), (0.05, 80)],
    "rank 5": [(0.05, 20), (0.1, 30), (0.05, 80)],
    "rank 100": [(0.05, 20), (0.1, 30), (0.05, 80)],
    "two-level": [(1.0, 1), (1.0, 3), (0.5, 3), (0.3, 5)],
}


def flat(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the values of all hyperparameters in one vector."""
    return torch.cat([value.reshape(-1).double() for value in values.values()])


def draw(
    table: TrainingTable, model: Model, estimator: GradientEstimator, draws: int, **solver: Any
) -> tuple[torch.Tensor, float, float]:
    """Return gradients with respect to logarithms (draws, p), and the iterations and seconds per draw."""
    settings = inference.Iterative(solver=solvers.ConjugateGradients(**solver), gradient=estimator, warm_start=False)
    objective = settings.objective(table, torch.Generator().manual_seed(0))
    scale, began = flat(model.parameters()), time.perf_counter()
    found, iterations = [], 0
    for _ in range(draws):
        evaluation = objective.evaluate(model)
        assert evaluation.solve is not None
        found.append(flat(evaluation.gradient) * scale)
        iterations += evaluation.solve.iterations
    return torch.stack(found), iterations / draws, (time.perf_counter() - began) / draws


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--table", default="pol")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--preconditioners", nargs="+", default=list(PRECONDITIONERS), choices=PRECONDITIONERS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    X, y, _, _ = read_split(options.data, options.table, 0, options.rows)
    learned = GPRegressor(kernels.Matern(nu=1.5), inference.Exact(), mean="zero", standardize=False).fit(X, y)
    noise = torch.tensor(learned.noise_variance_, dtype=torch.float64)
    model = Model(learned.kernel_, ZeroMean(), noise)
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y).reshape(len(y), -1), ZeroMean(), 2**33)
    exact = flat(ExactObjective(table).evaluate(model).gradient) * flat(model.parameters())
    print(f"{options.table}, {options.rows} rows, noise variance {float(noise):.3g}, {options.draws} draws")
    estimators = {
        "hutchinson": gradients.Hutchinson(options.probes),
        "pathwise": gradients.Pathwise(options.probes, prior="exact"),
    }
    records = []
    print(
        f"{'preconditioner':14s} {'estimator':10s} {'solves':14s} iterations  seconds  inflation"
        "  work x variance   bias"
    )
    for name, estimator in estimators.items():
        reference, _, _ = draw(table, model, estimator, options.draws, tolerance=1e-8)
        for which in options.preconditioners:
            recipe = {"preconditioner": PRECONDITIONERS[which]}
            _, finished, _ = draw(table, model, estimator, 2, tolerance=1e-8, max_epochs=5000, **recipe)
            laws: list[tuple[str, truncation.Distribution]] = []
            for rate, minimum in LAWS[which]:
                if minimum >= len(y):
                    continue  # no series of this table is so long
                decay = truncation.ExponentialDecay(rate, minimum)
                stopped = min(round(decay.expected_longest()), len(y))
                laws += [(f"{rate}, {minimum}", decay), (f"stopped at {stopped}", truncation.Fixed(stopped))]
            for label, law in laws:
                found, iterations, seconds = draw(table, model, estimator, options.draws, truncation=law, **recipe)
                inflation = float(found.var(0).sum() / reference.var(0).sum())
                error = found.std(0) / options.draws**0.5
                used = error > 0  # constant inputs have a zero gradient
                bias = float(((found.mean(0) - exact).abs() / error)[used].max())
                work = inflation * iterations / finished
                print(
                    f"{which:14s} {name:10s} {label:14s} {iterations:10.1f} {seconds:8.3f} {inflation:10.3f} "
                    f"{work:16.3f} {bias:6.2f}",
                    flush=True,
                )
                numbers = {"iterations": iterations, "seconds": seconds, "inflation": inflation, "work": work}
                records.append({"preconditioner": which, "estimator": name, "law": repr(law), "bias": bias, **numbers})
    if options.json:
        options.json.write_text(
            json.dumps({"settings": vars(options) | {"data": ""}, "rows": records}, default=str), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
