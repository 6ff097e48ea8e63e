"""Measure the error of the lower bounds for labels against the number of functions that a step samples.

    python benchmarks/quadruply_bounds.py

The weights are optimal mean-field weights for 500 labels. Every estimate uses all rows, so that it shows only the
sampling of functions. Prints the mean difference from the bound with all functions, in nats per row, and its standard
error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from gigagp import inference, kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.estimators.readings import BoundForm
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.model.likelihoods import Logistic
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import History, SparseAdam
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import NoProgress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--m", type=int, default=2000)
    parser.add_argument("--batches", type=int, nargs="+", default=[20, 60, 200, 600, 2000])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(vars(options))
    n, m = options.rows, options.m
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    latent = 3 * torch.sin(1.5 * X[:, 0]) * torch.cos(X[:, 1])
    draws = torch.rand(n, generator=generator, dtype=torch.float64)
    Y = torch.where(draws < latent.sigmoid(), 1.0, -1.0).double()[:, None]
    table = TrainingTable(X, Y, ZeroMean(), 2**33)
    model = Model(kernels.RBF(1.5, 4.0).bind(4), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
    forms: tuple[BoundForm, ...] = ("sqrt", "linear", "as_printed")
    objectives = {
        form: inference.QuadruplyStochastic(n_basis=m, row_batch=n, basis_batch=m, n_columns=0, bound=form).objective(
            table, torch.Generator().manual_seed(1), Logistic()
        )
        for form in forms
    }
    for objective in objectives.values():
        objective.begin(model)
    first = objectives["sqrt"]
    SparseAdam(steps=options.steps, hyper_learning_rate=0.0).run(
        first, model, Trace(History(), NoProgress()), generator
    )
    rows, everything = torch.arange(n), torch.arange(m)
    whole = BasisSample.from_indices(everything, everything, m)
    exact = first.evaluate_sample(model, rows, whole).value
    print(f"the bound with all functions: {exact / n:.4f} nats per row")
    found = []
    for batch in options.batches:
        line = [f"{batch:5} of {m} functions"]
        for form, objective in objectives.items():
            if objective is not first:
                objective.state.weights.take_over(first.state.weights)
            draws_of = torch.Generator().manual_seed(2)
            values = [
                objective.evaluate_sample(model, rows, BasisSample.draw(m, batch, draws_of)).value / n
                for _ in range(options.repeats if batch < m else 1)
            ]
            error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0
            found.append({"batch": batch, "form": form, "bias": float(np.mean(values)) - exact / n, "error": error})
            line.append(f"{form} {found[-1]['bias']:+.4f} +- {error:.4f}")
        print("  ".join(line), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
