"""Preconditioners of panels with gaps: iterations and CPU seconds of solves with 4 columns to a residual of 0.01.

    python benchmarks/panel_preconditioners.py --json benchmarks/results/panel_preconditioners.json

A made panel of random entities in two dimensions and times on a line, with a Matern-3/2 kernel of entities times a
Matern-1/2 kernel of times, and as a "sum" one of each alone too. Of the cells a third are missing, at random or
everything from a random time on in two thirds of the entities, or one in thirty at random. ``gaps solved for`` is
`solvers.CompletePanel` with a factor of the matrix of the gaps, and ``gaps by entities`` without one. ``cpu_s``
includes the build. Iterations end at 300.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from checkout import commit

from gigagp import kernels, solvers
from gigagp.operators import KernelMatrix

RECIPES: dict[str, solvers.CompletePanel | solvers.Vecchia | None] = {
    "gaps solved for": solvers.CompletePanel(most_gaps=10**9),
    "gaps by entities": solvers.CompletePanel(most_gaps=0),
    "neighbours": solvers.Vecchia(n_neighbors=30),
    "none": None,
}
_PRODUCT = kernels.Matern(1.5, 0.3, columns=[0, 1]) * kernels.Matern(0.5, 0.5, columns=[2], fixed=["variance"])
KERNELS: dict[str, kernels.Kernel] = {
    "product": _PRODUCT,
    "sum": _PRODUCT + kernels.Matern(1.5, 0.5, columns=[0, 1]) + kernels.Matern(1.5, 0.2, columns=[2]),
}
_MOST_ITERATIONS = 300


def rows(n_entities: int, n_times: int, gaps: str) -> torch.Tensor:
    """Return the observed cells of a made panel."""
    draw = torch.Generator().manual_seed(0)
    places = torch.rand(n_entities, 2, generator=draw, dtype=torch.float64)
    times = torch.linspace(0, 1, n_times, dtype=torch.float64)[:, None]
    cells = torch.cat([places.repeat_interleave(n_times, 0), times.repeat(n_entities, 1)], 1)
    if gaps != "trailing":
        share = 1 / 30 if gaps == "few" else 1 / 3
        return cells[torch.rand(len(cells), generator=draw) > share].contiguous()
    ends = torch.where(torch.rand(n_entities, generator=draw) < 2 / 3, torch.rand(n_entities, generator=draw), 1.0)
    return cells[cells[:, 2] <= ends.repeat_interleave(n_times).double()].contiguous()


def main() -> None:
    """Run all, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=250)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--noises", type=float, nargs="+", default=[1e-1, 1e-2, 1e-4, 1e-6])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    where = commit()
    settings = {"entities": options.entities, "times": options.times, "threads": 1, "commit": where}
    records: list[dict[str, Any]] = []
    for kind, gaps in itertools.product(KERNELS, ("random", "trailing", "few")):
        X = rows(options.entities, options.times, gaps)
        B = torch.randn(len(X), 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for noise in options.noises:
            for name in options.recipes:
                matrix = KernelMatrix(KERNELS[kind], X, noise)
                solver = solvers.ConjugateGradients(
                    tolerance=0.01, preconditioner=RECIPES[name], max_epochs=_MOST_ITERATIONS
                )
                began = time.process_time()
                found = solver.solve(matrix, B)
                records.append(
                    {"kernel": kind, "gaps": gaps, "rows": len(X), "noise": noise, "preconditioner": name}
                    | {"iterations": found.iterations, "status": found.status.name}
                    | {"cpu_s": time.process_time() - began}
                )
                print(records[-1], flush=True)
                if options.json:
                    text = json.dumps({"settings": settings, "rows": records}, indent=1)
                    options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
