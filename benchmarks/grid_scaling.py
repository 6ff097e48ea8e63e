"""Measure time and memory of grid inference and of kernel interpolation in the space of the rows, in one run.

    python benchmarks/grid_scaling.py table --data FOLDER               # Table 1: iterations and memory, real data
    python benchmarks/grid_scaling.py table --data FOLDER --sets radar  # 1.25 M rows, 51,200 nodes
    python benchmarks/grid_scaling.py sine                              # Figure 3: m = n, n / 16, sqrt(n)
    python benchmarks/grid_scaling.py sound --data FOLDER               # Figure 4: error against time
    python benchmarks/grid_scaling.py volume --data FOLDER              # Figure 5: radar, against grid size

The tables and figures are those of Yadav, Sheldon and Musco 2021 (arXiv:2101.11751). Three methods use the same grid,
kernel and right-hand side: `grid` (factorised conjugate gradients on the statistics, ours), `ski` (the same conjugate
gradients on vectors of n rows with a sparse W, ours) and GPyTorch's `KISS-GP` (its product and its conjugate gradients,
if it is installed; it extends its grid by its own margins). Iterations are timed over a fixed number of steps, as the
best of several runs, in CPU seconds. Memory is that of the stored matrices, and that of the paper's formulas:
nnz(W) + m + n and nnz(W'W) + 2 m.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigagp import kernels
from gigagp.errors import SolverWarning
from gigagp.inference.grid.iterative import iterative_system
from gigagp.inference.grid.posterior import LowRankCovariance
from gigagp.inference.grid.system import SolveSettings
from gigagp.operators.grid import GridKernel, GridOperator, RowsGram, Starts
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.lanczos import log_determinant

sys.path.insert(0, str(Path(__file__).parent))
from grid_maps import peak, read
from grid_problems import SETS, InterpolatedKernelMatrix, Problem, at_most, problem_of, rows_of, sine, timed

#: Number of steps in a timed run of conjugate gradients.
STEPS = 20
#: Tasks of `sound`.
TASKS = ("mean", "log-likelihood", "covariance", "low rank")


def steps_of(operator: Any, right: torch.Tensor, steps: int = STEPS) -> Callable[[], Any]:
    """Return a function that runs ``steps`` steps of conjugate gradients."""
    solver = ConjugateGradients(tolerance=1e-30, max_epochs=steps, preconditioner=None, refresh_every=None)

    def run() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolverWarning)
            return solver.solve(operator, right)

    return run


def kiss_gp(problem: Problem, repeats: int) -> tuple[float | None, str]:
    """Return the seconds per iteration of GPyTorch and its set-up time, or None and the reason."""
    try:
        import gpytorch
        from linear_operator.utils import linear_cg
    except ImportError:
        return None, "not installed"
    grid, X = problem.grid, problem.X
    base = gpytorch.kernels.RBFKernel(ard_num_dims=grid.n_inputs).double()
    base.lengthscale = problem.kernel.parameters()["lengthscale"]
    bounds = list(zip(*grid.accepted, strict=True))
    kernel = gpytorch.kernels.GridInterpolationKernel(
        base, grid_size=list(grid.shape), num_dims=grid.n_inputs, grid_bounds=bounds
    ).double()
    with torch.no_grad(), gpytorch.settings.use_toeplitz(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        matrix = kernel(X, X).evaluate_kernel().add_diagonal(torch.tensor([problem.noise]).double())
        product = matrix.matmul
        product(problem.y)  # makes W
        setup = time.process_time() - start
        taken, _ = timed(lambda: linear_cg(product, problem.y, tolerance=1e-30, max_iter=STEPS, n_tridiag=0), repeats)
    return taken / STEPS, f"set up in {setup:.1f} s"


def compare(problem: Problem, repeats: int = 3, peers: bool = True, gram: str = "stencil") -> dict[str, Any]:
    """Return the seconds per iteration and the bytes of every method; ``gram="rows"`` forms no W'W."""
    n, m = len(problem.X), problem.grid.size
    kernel = problem.grid_kernel
    passed, statistics = timed(lambda: GridStatistics.from_rows(problem.grid, problem.X, problem.y))
    matrix: Any = statistics.gram
    nnz, nbytes = matrix.nnz, matrix.nbytes
    if gram == "rows":
        passed, matrix = timed(lambda: RowsGram(problem.grid, problem.X))
        nnz, nbytes = matrix.nnz, matrix.nbytes
    ours = GridOperator(kernel, matrix, problem.noise, Starts(statistics.cross, statistics.target_squares))
    grid_time, found = timed(steps_of(ours, ours.start_vectors()), repeats)
    row: dict[str, Any] = {"set": problem.name, "n": n, "shape": problem.grid.shape, "m": m}
    row |= {"grid_pass_s": passed, "grid_s": grid_time / found.iterations, "grid_bytes": nbytes + 2 * 8 * m}
    built, ski = timed(lambda: InterpolatedKernelMatrix(kernel, problem.X, problem.noise))
    ski_time, reference = timed(steps_of(ski, problem.y), repeats)
    stored = [part.values().nbytes + part.col_indices().nbytes for part in (ski.weights, ski._transposed)]
    row |= {"ski_set_up_s": built, "ski_s": ski_time / reference.iterations, "ski_bytes": sum(stored) + 8 * (m + n)}
    # Both compute Krylov iterates of the same matrix, so W' times them must agree.
    iterates = ours.adjoint(found.value), ski.scatter(reference.value)
    row["difference"] = float((iterates[0] - iterates[1]).abs().max() / iterates[1].abs().max())
    row["formula_ratio"] = (nnz + 2 * m) / (n * 4**problem.grid.n_inputs + m + n)
    row["time_ratio"] = row["grid_s"] / row["ski_s"]
    row["bytes_ratio"] = row["grid_bytes"] / row["ski_bytes"]
    row["pass_ratio"] = row["grid_pass_s"] / row["ski_set_up_s"]
    if peers:
        del ski, reference, iterates
        gc.collect()
        row["kiss_gp_s"], row["kiss_gp_note"] = kiss_gp(problem, repeats)
    return row


def iterations_of(problem: Problem, tolerance: float) -> dict[str, int]:
    """Return the numbers of iterations in which both methods reach a tolerance."""
    solver = ConjugateGradients(tolerance=tolerance, preconditioner=None)
    statistics = GridStatistics.from_rows(problem.grid, problem.X, problem.y)
    starts = Starts(statistics.cross, statistics.target_squares)
    ours = GridOperator(problem.grid_kernel, statistics.gram, problem.noise, starts)
    ski = InterpolatedKernelMatrix(problem.grid_kernel, problem.X, problem.noise)
    found = solver.solve(ours, ours.start_vectors()), solver.solve(ski, problem.y)
    return {"grid_steps": found[0].iterations, "ski_steps": found[1].iterations}


def show(row: dict[str, Any]) -> None:
    shape = " x ".join(map(str, row["shape"]))
    peer = row.get("kiss_gp_s")
    other = f"KISS-GP {peer * 1e3:9.2f} ms ({peer / row['grid_s']:6.1f} x)" if peer else row.get("kiss_gp_note", "")
    print(
        f"{row['set']:13s} n = {row['n']:9,d}  m = {row['m']:9,d} ({shape:13s})  grid "
        f"{row['grid_s'] * 1e3:8.2f} ms  ski {row['ski_s'] * 1e3:9.2f} ms ({row['ski_s'] / row['grid_s']:6.1f} x)  "
        f"{other}  memory formula {row['formula_ratio']:.3f}, bytes {row['grid_bytes'] / row['ski_bytes']:.3f}; "
        f"pass {row['grid_pass_s']:.2f} s, set-up of ski {row['ski_set_up_s']:.2f} s; "
        f"difference {row['difference']:.0e}",
        flush=True,
    )


#: Sets and shapes of the driver's table, besides two of the sine.
SHAPES = {
    "sound": [(8000,), (60000,)],
    "temperature": [(20, 20, 128)],
    "precipitation": [(64, 40, 20)],
    "elevation": [(600, 300)],
    "radar": [(80, 80, 8), (160, 160, 12)],
}


def table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    made: list[Callable[[], Problem]] = []
    for name in arguments.sets:
        if name == "sine":
            made += [lambda: sine(2**18, 2**14), lambda: sine(2**20, 2**10)]
        else:
            made += [lambda name=name, shape=shape: problem_of(name, arguments.data, shape) for shape in SHAPES[name]]  # type: ignore[misc]
    rows = []
    for make in made:
        rows.append(compare(at_most(make(), arguments.rows), arguments.repeats, not arguments.no_peers))
        show(rows[-1])
    return rows


def figure_sine(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for power in arguments.powers:
        n = 2**power
        for m in (n, n // 16, math.isqrt(n)):
            rows.append(compare(sine(n, m), arguments.repeats, not arguments.no_peers))
            show(rows[-1])
    return rows


def sound_rows(
    folder: Path | None,
    tasks: Sequence[str],
    nodes: Sequence[int],
    columns: int,
    rank: int,
    n_probes: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return errors and total seconds of both ways for every task and number of nodes.

    The error of a mean is that at the test rows, divided by their mean absolute value. Others are relative to kernel
    interpolation on the largest grid. Seconds include the set-up.
    """
    X, y = rows_of("sound", folder)
    X_test, y_test = (X[::7] + 0.5, y[::7]) if folder is None else read(folder, "sound/test.parquet")[0]
    X_all, target = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    points, n = torch.from_numpy(X_test), len(X)
    points = points.clamp(X.min(), X.max())
    kernel = kernels.RBF(lengthscale=10.895, variance=0.0026).bind(1)
    noise = 1e-4  # a variance, as in the authors' code
    solver = ConjugateGradients(tolerance=0.01, preconditioner=None)
    rng = np.random.default_rng(seed)
    probes = torch.from_numpy(rng.choice([-1.0, 1.0], (n, n_probes)))
    rows: list[dict[str, Any]] = []

    def add(way: str, m: int, task: str, seconds: float, found: Any) -> None:
        rows.append({"way": way, "m": m, "task": task, "seconds": seconds, "found": found})

    def of_ski(m: int, grid: RegularGrid, grid_kernel: GridKernel) -> None:
        built, ski = timed(lambda: InterpolatedKernelMatrix(grid_kernel, X_all, noise))
        if "mean" in tasks or "log-likelihood" in tasks:
            taken, solved = timed(lambda: solver.solve(ski, target).value)
            mean = grid.interpolate(points, grid_kernel @ ski.scatter(solved))[:, 0]
            add("ski", m, "mean", built + taken, mean)
            if "log-likelihood" in tasks:
                more, determinant = timed(lambda: log_determinant(ski, None, starts=probes).value)
                likelihood = -0.5 * (determinant + float((target * solved).sum()) + n * math.log(2 * math.pi))
                add("ski", m, "log-likelihood", built + taken + more, likelihood)
        if "covariance" in tasks or ("low rank" in tasks and m == max(nodes)):  # the reference of both
            smooth, prior = smooth_at(grid, grid_kernel)
            taken, solved = timed(lambda: solver.solve(ski, ski.interpolate(smooth)).value)
            add("ski", m, "covariance", built + taken, prior - smooth.T @ ski.scatter(solved))

    def smooth_at(grid: RegularGrid, grid_kernel: GridKernel) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = points[:columns]
        one_hot = grid.scatter(chosen, torch.eye(len(chosen), dtype=torch.float64))
        smooth = grid_kernel @ one_hot
        return smooth, one_hot.T @ smooth

    def of_grid(m: int, grid: RegularGrid, grid_kernel: GridKernel) -> None:
        passed, statistics = timed(lambda: GridStatistics.from_rows(grid, X_all, target))
        if "mean" in tasks or "log-likelihood" in tasks:
            starts = Starts(statistics.cross, statistics.target_squares)
            ours = GridOperator(grid_kernel, statistics.gram, noise, starts, n)
            taken, solved = timed(lambda: solver.solve(ours, ours.start_vectors()).value)
            dual = ours.adjoint(solved)
            add("grid", m, "mean", passed + taken, grid.interpolate(points, grid_kernel @ dual)[:, 0])
            if "log-likelihood" in tasks:
                gathered, cross = timed(lambda: grid.scatter(X_all, probes))
                squares = torch.full((n_probes,), float(n), dtype=torch.float64)
                drawn = GridOperator(grid_kernel, statistics.gram, noise, Starts(cross, squares), n)
                begin = drawn.start_vectors()
                more, determinant = timed(lambda: log_determinant(drawn, None, starts=begin).value)
                # y' K~^-1 y = (y'y - y'W theta) / noise
                fit = float(statistics.target_squares - (statistics.cross * (grid_kernel @ dual)).sum()) / noise
                likelihood = -0.5 * (determinant + fit + n * math.log(2 * math.pi))
                add("grid", m, "log-likelihood", passed + gathered + taken + more, likelihood)
        if "covariance" in tasks:
            smooth, prior = smooth_at(grid, grid_kernel)
            plain = GridOperator(grid_kernel, statistics.gram, noise)
            taken, solved = timed(lambda: solver.solve(plain, plain.lift(smooth)).value)
            add("grid", m, "covariance", passed + taken, prior - smooth.T @ plain.adjoint(solved))
        if "low rank" in tasks:
            _, prior = smooth_at(grid, grid_kernel)
            taken, low = timed(lambda: LowRankCovariance.build(grid_kernel, statistics, noise, min(rank, m)))
            root = grid.interpolate(points[:columns], low.root)
            add("grid", m, "low rank", passed + taken, prior - root @ root.T)

    for m in nodes:
        grid = RegularGrid.around(X.min(0), X.max(0), (m,))
        of_ski(m, grid, GridKernel(kernel, grid))
        of_grid(m, grid, GridKernel(kernel, grid))
        gc.collect()
    largest = {row["task"]: row["found"] for row in rows if row["way"] == "ski" and row["m"] == max(nodes)}
    scale = float(np.abs(y_test).mean())
    for row in rows:
        task, found = row["task"], row.pop("found")
        if task == "mean":
            row["error"] = float((found - torch.from_numpy(y_test)).abs().mean()) / scale
        elif task == "log-likelihood":
            row["error"] = abs(found - largest[task])
        else:
            row["error"] = float((found - largest["covariance"]).norm())
    return [row for row in rows if row["task"] in tasks]


def figure_sound(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return errors against total time."""
    rows = sound_rows(arguments.data, TASKS, arguments.nodes, arguments.columns, arguments.rank, arguments.probes)
    for row in rows:
        print(
            f"{row['way']:5s} m = {row['m']:6,d}  {row['task']:14s} {row['seconds']:8.2f} s  error {row['error']:.5g}"
        )
    return rows


def inference_times(
    problem: Problem, n_probes: int, ski_probes: int, tolerances: Sequence[float] = (0.1, 0.01)
) -> dict[str, Any]:
    """Return the seconds of set-up, mean and log-determinant of both ways (Figures 5 and 7).

    The paper's method does not solve for blocks of probes, so the time of kernel interpolation is measured with few
    probes and multiplied. The quadrature of a log-determinant has as many steps as a solve to the tolerance.
    """
    n, grid, kernel = len(problem.X), problem.grid, problem.grid_kernel
    solver = ConjugateGradients(tolerance=0.01, preconditioner=None)
    passed, statistics = timed(lambda: GridStatistics.from_rows(grid, problem.X, problem.y, n_probes))
    starts = Starts(statistics.cross, statistics.target_squares)
    ours = GridOperator(kernel, statistics.gram, problem.noise, starts, n)
    mean, solved = timed(lambda: solver.solve(ours, ours.start_vectors()))
    row = {"n": n, "shape": grid.shape, "m": grid.size, "grid_set_up_s": passed, "grid_mean_s": mean}
    row |= {
        "steps": solved.iterations,
        "mean_error": mean_error(problem, statistics, kernel @ ours.adjoint(solved.value)),
    }
    built, ski = timed(lambda: InterpolatedKernelMatrix(kernel, problem.X, problem.noise))
    mean, solved = timed(lambda: solver.solve(ski, problem.y))
    row |= {"ski_set_up_s": built, "ski_mean_s": mean, "ski_steps": solved.iterations}
    drawn = GridOperator(kernel, statistics.gram, problem.noise, Starts(statistics.probes, statistics.probe_squares), n)
    begin = drawn.start_vectors()
    rng = np.random.default_rng(0)
    few = torch.from_numpy(rng.choice([-1.0, 1.0], (n, ski_probes)))
    for tolerance in tolerances:
        name = f"logdet_{tolerance:g}"
        steps = ConjugateGradients(tolerance=tolerance, preconditioner=None).solve(drawn, begin).iterations
        taken, value = timed(lambda steps=steps: log_determinant(drawn, None, starts=begin, max_steps=steps))
        row |= {f"{name}_steps": steps, f"grid_{name}_s": taken, f"grid_{name}": value.value}
        row[f"{name}_standard_error"] = value.standard_error
        taken, value = timed(lambda steps=steps: log_determinant(ski, None, starts=few, max_steps=steps))
        row |= {f"ski_{name}_s": taken * n_probes / ski_probes, f"ski_{name}": value.value}
    for name in ("set_up", "mean", *(f"logdet_{tolerance:g}" for tolerance in tolerances)):
        row[f"{name}_ratio"] = row[f"ski_{name}_s"] / row[f"grid_{name}_s"]
    return row


def preconditioned_times(problem: Problem, n_probes: int, tolerance: float = 0.01) -> dict[str, Any]:
    """Return the seconds of set-up, mean and log-determinant with the package's choice of a preconditioner."""
    grid, kernel = problem.grid, problem.grid_kernel
    passed, statistics = timed(lambda: GridStatistics.from_rows(grid, problem.X, problem.y, n_probes))
    started = time.process_time()
    kernel = GridKernel(kernel.kernel, grid, kernel.fitting_torus(0.002 * problem.noise))
    system = iterative_system(kernel, statistics, problem.noise, SolveSettings(tolerance, tolerance, 1000))
    solved = system.solve(statistics.cross)
    mean = time.process_time() - started
    row: dict[str, Any] = {"n": statistics.n_rows, "shape": grid.shape, "m": grid.size, "grid_set_up_s": passed}
    steps = 0 if solved.solution is None else solved.solution.iterations
    row |= {"grid_mean_s": mean, "steps": steps, "solver": system.describe()}
    row["mean_error"] = mean_error(problem, statistics, solved.values)
    taken, value = timed(lambda: system.log_determinant(n_probes, torch.Generator().manual_seed(0)))
    name = f"logdet_{tolerance:g}"
    return row | {f"grid_{name}_s": taken, f"grid_{name}": value.value, f"{name}_standard_error": value.standard_error}


def mean_error(problem: Problem, statistics: GridStatistics, values: torch.Tensor) -> float:
    """Return the error of a mean at the rows as a share of the mean's own size, by a solve to 1e-5."""
    kernel = GridKernel(problem.kernel, problem.grid, problem.grid_kernel.fitting_torus(2e-3 * problem.noise))
    settings = SolveSettings(1e-5, 1e-5, 500)
    exact = iterative_system(kernel, statistics, problem.noise, settings).solve(statistics.cross).values
    error, size = (float((part * (statistics.gram @ part)).sum()) for part in (values - exact, exact))
    return (max(error, 0.0) / size) ** 0.5


def figure_volume(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time set-up, mean and log-determinant of the radar volume for several grids."""
    rows = []
    for shape in ((80, 80, 8), (112, 112, 10), (160, 160, 12)):
        problem = at_most(problem_of("radar", arguments.data, shape), arguments.rows)
        row = inference_times(problem, arguments.probes, arguments.ski_probes)
        row["gigagp"] = preconditioned_times(problem, arguments.probes)
        print(
            f"m = {row['m']:8,d}  set-up {row['grid_set_up_s']:6.2f} / {row['ski_set_up_s']:6.2f} s  "
            f"mean {row['grid_mean_s']:6.2f} / {row['ski_mean_s']:6.2f} s ({row['ski_steps']} steps)  "
            f"log-determinant of {arguments.probes} {row['grid_logdet_0.01_s']:6.2f} / "
            f"{row['ski_logdet_0.01_s']:6.2f} s (from {arguments.ski_probes})   peak {peak():.2f} GiB   [grid / ski]",
            flush=True,
        )
        rows.append(row)
        gc.collect()
    return rows


def main() -> None:
    """Run the requested task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("table", "sine", "sound", "volume"))
    parser.add_argument("--data", type=Path, help="folder with load.py and the Parquet files")
    known = ["sine", *SETS]
    parser.add_argument("--sets", nargs="+", choices=known, default=known, help="data sets of table")
    parser.add_argument("--rows", type=int, help="table, volume: largest number of rows, drawn at random")
    parser.add_argument(
        "--powers", type=int, nargs="+", default=[12, 14, 16, 18, 20], help="numbers of rows of sine, as powers of two"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        nargs="+",
        default=[1000, 2000, 5000, 6000, 8000, 10000, 30000, 60000],
        help="grid sizes of sound",
    )
    parser.add_argument("--columns", type=int, default=691, help="number of test points for sound's covariance")
    parser.add_argument("--rank", type=int, default=500, help="rank of sound's low-rank covariance")
    parser.add_argument("--probes", type=int, default=30)
    parser.add_argument(
        "--ski-probes", type=int, default=2, help="number of probes of ski in volume; each costs as much as the first"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true", help="without GPyTorch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    made_up = arguments.task == "sine" or (arguments.task == "table" and arguments.sets == ["sine"])
    if arguments.data is None and not made_up:
        parser.error("--data is required for all tasks except sine")
    torch.set_num_threads(arguments.threads)
    run = {"table": table, "sine": figure_sine, "sound": figure_sound, "volume": figure_volume}[arguments.task]
    rows = run(arguments)
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items() if name not in ("json", "data")}
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
