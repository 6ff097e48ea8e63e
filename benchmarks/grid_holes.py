"""Measure grid inference on lattices of which a part has no rows: solves by each preconditioner, and whole fits.

    python benchmarks/grid_holes.py solves --inputs 1 2 --json benchmarks/results/grid_holes_solves.json
    python benchmarks/grid_holes.py solves --inputs 3 --json benchmarks/results/grid_holes_solves_3d.json
    python benchmarks/grid_holes.py between --json benchmarks/results/grid_holes_between.json
    python benchmarks/grid_holes.py fits --json benchmarks/results/grid_holes_fits.json
    python benchmarks/grid_holes.py elevation --data FOLDER --json benchmarks/results/grid_holes_elevation.json
    python benchmarks/grid_holes.py elevation --data FOLDER --window 500 420 --kept 105000 --nu 1.5 \
        --tolerances 1e-3 1e-2 --json benchmarks/results/grid_holes_half.json

Every solve has one target and four probes, to the tolerance of learning. Its errors are those of the mean at the rows,
in standard deviations of the noise, and of the kernel's gradient, relative to a solve to 1e-8 by neighbours. With an
older checkout in PYTHONPATH the script measures what that one has.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from maps import read_map, write

from gigagp import GPRegressor, inference, kernels, metrics
from gigagp.errors import GigaGPWarning, SolverWarning
from gigagp.inference.grid.iterative import iterative_system
from gigagp.inference.grid.system import SolveSettings
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid

#: Nodes for each number of inputs, and how rows are left out.
SHAPES = {1: (40_000,), 2: (200, 200), 3: (34, 34, 34)}
GAPS = {"dense": 1.0, "random half": 0.5, "half": 0.5, "clouds": 0.5, "random tenth": 0.1, "tenth": 0.1}
#: Lengthscales in lattice steps, and noise in units of the signal's variance.
LENGTHSCALES, NOISES = (4.0, 20.0), (1e-4, 1e-2, 1.0, 10.0)
CHOICES = ("circulant", "holes", "vecchia")
#: Largest number of iterations of a solve.
MOST = 300


def draw(shape: tuple[int, ...], lengthscale: float, nu: float, seed: int) -> np.ndarray:
    """Return a sample of a Matern process on a lattice of unit steps."""
    grid = RegularGrid((0.0,) * len(shape), (1.0,) * len(shape), shape)
    kernel = GridKernel(kernels.Matern(nu=nu, lengthscale=lengthscale), grid)
    return kernel.sample(1, torch.Generator().manual_seed(seed))[:, 0].numpy()


def kept(shape: tuple[int, ...], gaps: str, seed: int = 0) -> np.ndarray:
    """Return which points of a lattice have rows."""
    share = GAPS[gaps]
    if "random" in gaps:
        return np.random.default_rng(seed).random(np.prod(shape)) < share
    if gaps == "clouds":
        cloud = draw(shape, max(shape) / 12, 2.5, seed + 100)
        return cloud <= np.quantile(cloud, share)
    place = np.arange(np.prod(shape)) / np.prod(shape)  # a stretch in the middle is empty
    return np.abs(place - 0.5) > 0.5 * (1 - share)


def image(shape: tuple[int, ...], gaps: str, lengthscale: float, noise: float) -> tuple[np.ndarray, ...]:
    """Return rows with noise, and the points without rows with their values."""
    points = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1).reshape(-1, len(shape)).astype(float)
    values = draw(shape, lengthscale, 1.5, 0)
    y, rows = values + noise**0.5 * np.random.default_rng(0).normal(size=len(values)), kept(shape, gaps)
    return points[rows], y[rows], points[~rows], values[~rows]


def solves(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Compare preconditioners where nodes lie on the lattice of the rows."""
    inputs, gaps = arguments.inputs or SHAPES, arguments.gaps or GAPS
    return compare(
        arguments,
        [(d, g, scale, noise, 1.0) for d in inputs for g in gaps for scale in LENGTHSCALES for noise in NOISES],
    )


def between(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Compare preconditioners where nodes lie between the rows of a map."""
    gaps = arguments.gaps or GAPS
    return compare(arguments, [(2, g, 8.0, noise, cell) for g in gaps for noise in NOISES[:3] for cell in (0.8, 1.7)])


def compare(
    arguments: argparse.Namespace, cases: list[tuple[int, str, float, float, float]]
) -> list[dict[str, object]]:
    """Compare preconditioners for numbers of inputs, gaps, lengthscales, noises and cells in lattice steps."""
    found: list[dict[str, object]] = []
    for d, gaps, lengthscale, noise, cell in cases:
        X, y, *_ = image(SHAPES[d], gaps, lengthscale, noise)
        shape = tuple(int(np.ceil((n - 1) / cell)) + 5 for n in SHAPES[d])
        grid = RegularGrid((-2.0 * cell,) * d, (cell,) * d, shape)
        statistics = GridStatistics.from_rows(grid, X, y - y.mean(), n_probes=4)
        kernel = GridKernel(kernels.Matern(nu=1.5, lengthscale=lengthscale), grid)
        kernel = GridKernel(kernel.kernel, grid, kernel.fitting_torus(0.002 * noise))
        draws = statistics.gram @ kernel.sample(4, torch.Generator().manual_seed(1)) + noise**0.5 * statistics.probes
        cross, ones = torch.cat([statistics.cross, draws], 1), torch.ones(5, dtype=torch.float64)
        exact = iterative_system(kernel, statistics, noise, SolveSettings(1e-8, 1e-8, 3000, "vecchia"))
        best = exact.solve(cross)
        slopes = exact.gradient(best, ones)
        row: dict[str, object] = {"inputs": d, "gaps": gaps, "lengthscale": lengthscale, "noise": noise, "cell": cell}
        row |= {"nodes": grid.size, "rows": len(X)}
        for choice in CHOICES:
            start = time.process_time()
            system = iterative_system(kernel, statistics, noise, SolveSettings(1e-3, 1e-3, MOST, choice))
            built = time.process_time()
            solved = system.solve(cross)
            seconds = time.process_time() - built
            difference = solved.values - best.values
            mean_error = ((difference * (statistics.gram @ difference)).sum(0) / len(X) / noise).sqrt()
            own = system.gradient(solved, ones)
            errors = [float(((own[name] - slope) / slope).abs().max()) for name, slope in slopes.items()]
            row[choice] = {
                "iterations": solved.solution.iterations,
                "status": solved.solution.status.name,
                "setup_cpu_s": built - start,
                "solve_cpu_s": seconds,
                "mean_error": float(mean_error.max()),
                "gradient_error": max(errors),
            }
        found.append(row)
        text = "  ".join(
            f"{name} {one['iterations']:3d} {one['setup_cpu_s'] + one['solve_cpu_s']:6.2f}s {one['gradient_error']:.0e}"
            for name, one in ((name, row[name]) for name in CHOICES)
        )
        print(f"{d} {gaps:12s} {lengthscale:4g} {noise:7g} cell {cell:3g}  {text}", flush=True)
        write(arguments.json, vars(arguments), found)
    return found


def fitted(
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    tolerance: float = 1e-3,
    **settings: object,
) -> dict[str, object]:
    """Fit with the automatic grid, and return its cost and the scores in the gaps."""
    grid = inference.Grid(outside="clamp", tolerance=tolerance)
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GigaGPWarning)
        gp = GPRegressor(inference=grid, **{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X, y)
    seconds, last = time.process_time() - start, gp.posterior_.final_solve
    start = time.process_time()
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    return {
        "fit_cpu_s": seconds,
        "predict_cpu_s": time.process_time() - start,
        "rows": len(X),
        "engine": gp.engine_,
        "solver": gp.solver_,
        "kernel": repr(gp.kernel_),
        "noise_variance": gp.noise_variance_,
        "gradients_on_all_rows": sum(step.stage == "all rows" for step in gp.history_),
        "last_solve": None if last is None else {"iterations": last.iterations, "status": last.status},
        "unfinished_solves": [str(one.message) for one in caught if issubclass(one.category, SolverWarning)],
        "rmse": metrics.rmse(y_test, mean),
        "crps": metrics.gaussian_crps(y_test, mean, std),
        "coverage_95": metrics.coverage(y_test, mean, std),
    }


def report(name: str, row: dict[str, object]) -> None:
    print(
        f"{name:36s} fit {row['fit_cpu_s']:6.1f} s  gradients {row['gradients_on_all_rows']:2d}  last solve "
        f"{row['last_solve']}  RMSE {row['rmse']:8.4g}  CRPS {row['crps']:8.4g}  "
        f"coverage {row['coverage_95']:.3f}  {row['engine']}, {row['solver']}",
        flush=True,
    )


def fits(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Fit images of 300 x 300 with gaps, with the automatic grid and hyperparameters."""
    found = []
    for gaps in arguments.gaps or [gaps for gaps in GAPS if gaps != "dense"]:
        for lengthscale, noise in ((5.0, 0.01), (20.0, 0.1)):
            X, y, X_test, f = image((300, 300), gaps, lengthscale, noise)
            y_test = f + noise**0.5 * np.random.default_rng(1).normal(size=len(f))
            row = {"gaps": gaps, "lengthscale": lengthscale, "noise": noise} | fitted(X, y, X_test, y_test)
            report(f"{gaps}, lengthscale {lengthscale:g}, noise {noise:g}", row)
            found.append(row)
            write(arguments.json, vars(arguments), found)
    return found


def elevation(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Fit a window of elevation, 500 x 300 pixels by default, of which clouds hide all but so many rows."""
    window = tuple(arguments.window)
    X, y = read_map(arguments.data, "elevation")
    step = np.unique(X[:, 0])[1] - X[:, 0].min()
    places = np.rint((X - X.min(0)) / step).astype(int) - (300, 200)
    inside = ((places >= 0) & (places < window)).all(1)
    X, y, places = X[inside], y[inside], places[inside]
    cloud = draw(window, 40.0, 2.5, 7).reshape(window)[places[:, 0], places[:, 1]]
    hidden = cloud > np.quantile(cloud, arguments.kept / len(cloud))
    found = []
    for nu in arguments.nu:
        for tolerance in arguments.tolerances:
            data = X[~hidden], y[~hidden], X[hidden], y[hidden]
            row = {"nu": nu, "tolerance": tolerance, "share": len(data[1]) / np.prod(window)}
            row |= fitted(*data, tolerance=tolerance, kernel=kernels.Matern(nu=nu))
            report(f"elevation, nu = {nu:g}, tolerance {tolerance:g}", row)
            found.append(row)
            write(arguments.json, vars(arguments), found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("solves", "between", "fits", "elevation"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--inputs", nargs="*", type=int, choices=SHAPES)
    parser.add_argument("--gaps", nargs="*", choices=GAPS)
    window = parser.add_argument_group("elevation")
    window.add_argument("--window", nargs=2, type=int, default=(500, 300), help="pixels along each input")
    window.add_argument("--kept", type=int, default=105_569, help="rows that no cloud hides")
    window.add_argument("--nu", nargs="+", type=float, default=(0.5, 1.5))
    window.add_argument("--tolerances", nargs="+", type=float, default=(1e-3,))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"solves": solves, "between": between, "fits": fits, "elevation": elevation}[arguments.what](arguments)


if __name__ == "__main__":
    main()
