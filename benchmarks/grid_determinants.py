"""Standard errors of log-determinants of grid inference by preconditioner, and of the one that a trial chooses.

python benchmarks/grid_determinants.py            # a minute on one core
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from gigagp import kernels
from gigagp.inference.grid.factorised_system import FactorisedGridSystem
from gigagp.inference.grid.system import DenseGridSystem, SolveSettings
from gigagp.inference.grid.whitened_system import WhitenedGridSystem
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid

sys.path.insert(0, str(Path(__file__).parent))
from maps import write

#: name, nodes for each input, lengthscales as shares of the domain, whether rows have gaps
PROBLEMS = (
    ("1 input, short", (1000,), (0.01,), False),
    ("2 inputs, very short", (44, 44), (0.02, 0.02), False),
    ("2 inputs, short", (36, 36), (0.08, 0.08), False),
    ("2 inputs, long", (36, 36), (0.3, 0.3), False),
    ("2 inputs, gaps", (36, 36), (0.3, 0.3), True),
    ("3 inputs, short", (11, 11, 11), (0.25, 0.25, 0.25), False),
    ("3 inputs, long", (11, 11, 11), (0.5, 0.5, 0.5), False),
    ("3 inputs, gaps", (11, 11, 11), (0.5, 0.5, 0.5), True),
)


def main(arguments: list[str] | None = None) -> None:
    """Print one row a problem: the exact value, and estimate minus exact with its standard error by method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--noise", type=float, default=0.01)
    parser.add_argument("--probes", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000, help="largest number of steps of a quadrature")
    parser.add_argument("--problems", type=int, default=len(PROBLEMS), help="the first so many problems only")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    rows: list[dict[str, object]] = []
    print("| problem | exact | circulant | long waves | chosen | CPU s of these |")
    print("|---|---|---|---|---|---|")
    for name, shape, lengthscales, gaps in PROBLEMS[: options.problems]:
        d = len(shape)
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(options.rows, d, dtype=torch.float64, generator=generator)
        if gaps:
            X = X[(X - 0.5).norm(dim=1) > 0.35]
        y = torch.randn(len(X), 1, dtype=torch.float64, generator=generator)
        grid = RegularGrid.around([0.0] * d, [1.0] * d, shape)
        statistics = GridStatistics.from_rows(grid, X, y, options.probes)
        first = GridKernel(kernels.Matern(2.5, list(lengthscales)), grid)
        kernel = GridKernel(first.kernel, grid, first.fitting_torus(0.002 * options.noise))
        exact = DenseGridSystem(kernel, statistics, options.noise).log_determinant(0, generator).value
        settings = SolveSettings(preconditioner="circulant")
        whitened = WhitenedGridSystem(kernel, statistics, options.noise, settings)
        long_waves = FactorisedGridSystem(
            kernel, statistics, options.noise, replace(settings, preconditioner="long_waves")
        )
        both = (whitened.circulant_log_determinant, long_waves.own_log_determinant)
        methods = [lambda *given, one=one: one(*given, options.steps) for one in both]
        for way, one in zip(("circulant", "long waves", "chosen"), (*methods, whitened.log_determinant), strict=True):
            began = time.process_time()
            found = one(options.probes, torch.Generator().manual_seed(1))
            row = {"problem": name, "way": way, "cpu_seconds": time.process_time() - began}
            rows.append({**row, "exact": exact, "error": found.value - exact, "standard_error": found.standard_error})
        shown = " | ".join(f"{row['error']:+.2f} ({row['standard_error']:.2f})" for row in rows[-3:])
        seconds = ", ".join(f"{row['cpu_seconds']:.1f}" for row in rows[-3:])
        print(f"| {name} | {exact:,.1f} | {shown} | {seconds} |", flush=True)
        write(options.json, vars(options), rows)


if __name__ == "__main__":
    main()
