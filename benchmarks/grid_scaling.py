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
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from grid_maps import peak, read

from gigagp import kernels
from gigagp.errors import SolverWarning
from gigagp.grids import GridStatistics, RegularGrid
from gigagp.inference.grid.low_rank import LowRankCovariance
from gigagp.lanczos import log_determinant
from gigagp.operators.grid import GridKernel, GridOperator, InterpolatedKernelMatrix, Starts
from gigagp.solvers import ConjugateGradients

#: Number of steps in a timed run of conjugate gradients.
STEPS = 20


@dataclass(frozen=True)
class Problem:
    """Rows, a grid and the paper's hyperparameters, all in the data's own units."""

    name: str
    X: torch.Tensor
    y: torch.Tensor
    grid: RegularGrid
    kernel: kernels.Kernel
    noise: float

    @property
    def grid_kernel(self) -> GridKernel:
        """The kernel on the grid."""
        return GridKernel(self.kernel, self.grid)

    @classmethod
    def new(
        cls, name: str, X: np.ndarray, y: np.ndarray, shape: tuple[int, ...], scales: list[float], noise: float
    ) -> Problem:
        """Return the problem with standardized targets and a kernel of variance one."""
        grid = RegularGrid.around(X.min(0), X.max(0), shape)
        y = (y - y.mean()) / y.std()
        kernel = kernels.RBF(lengthscale=scales).bind(X.shape[1])
        return cls(name, torch.from_numpy(X), torch.from_numpy(y)[:, None], grid, kernel, noise)


def timed(work: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Return the best of several times in CPU seconds (which exclude other work) and the last result."""
    best, found = math.inf, None
    for _ in range(repeats):
        start = time.process_time()
        found = work()
        best = min(best, time.process_time() - start)
    return best, found


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


def compare(problem: Problem, repeats: int = 3, peers: bool = True) -> dict[str, Any]:
    """Return the seconds per iteration and the bytes of every method."""
    n, m = len(problem.X), problem.grid.size
    kernel = problem.grid_kernel
    passed, statistics = timed(lambda: GridStatistics.from_rows(problem.grid, problem.X, problem.y))
    gram = statistics.gram
    ours = GridOperator(kernel, gram, problem.noise, Starts(statistics.cross, statistics.target_squares))
    grid_time, found = timed(steps_of(ours, ours.start_vectors()), repeats)
    row: dict[str, Any] = {"set": problem.name, "n": n, "shape": problem.grid.shape, "m": m}
    row |= {"grid_pass_s": passed, "grid_s": grid_time / found.iterations, "grid_bytes": gram.nbytes + 2 * 8 * m}
    built, ski = timed(lambda: InterpolatedKernelMatrix(kernel, problem.X, problem.noise))
    ski_time, reference = timed(steps_of(ski, problem.y), repeats)
    stored = [part.values().nbytes + part.col_indices().nbytes for part in (ski.weights, ski._transposed)]
    row |= {"ski_set_up_s": built, "ski_s": ski_time / reference.iterations, "ski_bytes": sum(stored) + 8 * (m + n)}
    # Both compute Krylov iterates of the same matrix, so W' times them must agree.
    iterates = ours.adjoint(found.value), ski.scatter(reference.value)
    row["difference"] = float((iterates[0] - iterates[1]).abs().max() / iterates[1].abs().max())
    row["formula_ratio"] = (gram.nnz + 2 * m) / (n * 4**problem.grid.n_inputs + m + n)
    row["time_ratio"] = row["grid_s"] / row["ski_s"]
    del ski, reference, iterates
    gc.collect()
    if peers:
        row["kiss_gp_s"], row["kiss_gp_note"] = kiss_gp(problem, repeats)
    return row


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


def sine(n: int, m: int) -> Problem:
    rng = np.random.default_rng(0)
    X = rng.random((n, 1))
    y = np.sin(4 * np.pi * X[:, 0]) + 0.25 * rng.standard_normal(n)
    return Problem.new("sine", X, y, (max(m, 6),), [0.312], 0.074 / 1.439)


def radar_rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the radar volume in the authors' form: no echo is -30 dBZ, and the target is a seventh root."""
    ((X, _),) = read(folder, "radar/klbb-2016-06-01.parquet")
    return X[:, :3], (10 ** (np.nan_to_num(X[:, 3], nan=-30.0) / 10)) ** (1 / 7)


def radar(folder: Path, shape: tuple[int, ...]) -> Problem:
    X, y = radar_rows(folder)
    return Problem.new("radar", X, y, shape, [0.25, 0.25, 200.0], 0.1)


def problems(folder: Path, names: list[str]) -> list[Callable[[], Problem]]:
    """Return functions that make the problems of Table 1 from the data folder."""

    def sound(m: int) -> Problem:
        ((X, y),) = read(folder, "sound/train.parquet")
        return Problem.new("sound", X, y, (m,), [10.895], 0.05)

    def elevation() -> Problem:
        ((X, y),) = read(folder, "elevation/us-prism.parquet")
        return Problem.new("elevation", X, y, (600, 300), [0.5, 0.5], 0.05)

    def weather(name: str, file: str, shape: tuple[int, ...], scales: list[float]) -> Problem:
        ((X, y),) = read(folder, file)
        return Problem.new(name, X[:, 1:], y, shape, scales, 0.5)

    temperature, rain = "temperature/noaa-tmax-1990-93.parquet", "precipitation/january-2010.parquet"
    made: dict[str, list[Callable[[], Problem]]] = {
        "sine": [lambda: sine(2**18, 2**14), lambda: sine(2**20, 2**10)],
        "sound": [lambda: sound(8000), lambda: sound(60000)],
        "temperature": [lambda: weather("temperature", temperature, (20, 20, 128), [3.0, 3.0, 20.0])],
        "precipitation": [lambda: weather("precipitation", rain, (64, 40, 20), [3.1, 2.0, 2.0])],
        "elevation": [elevation],
        "radar": [lambda: radar(folder, (80, 80, 8)), lambda: radar(folder, (160, 160, 12))],
    }
    return [make for name in names for make in made[name]]


def at_most(problem: Problem, rows: int | None) -> Problem:
    """Return the problem with at most ``rows`` of its rows, drawn at random."""
    if rows is None or rows >= len(problem.X):
        return problem
    chosen = np.random.default_rng(0).permutation(len(problem.X))[:rows]
    return replace(problem, X=problem.X[chosen], y=problem.y[chosen])


def table(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for make in problems(arguments.data, arguments.sets):
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


def figure_sound(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return errors against total time; the reference is kernel interpolation on the largest grid."""
    (X, y), (X_test, y_test) = read(arguments.data, "sound/train.parquet", "sound/test.parquet")
    X_all, target = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    points, n = torch.from_numpy(X_test), len(X)
    kernel = kernels.RBF(lengthscale=10.895, variance=0.0026).bind(1)
    noise, columns = 1e-4, arguments.columns  # both are variances, as in the authors' code
    solver = ConjugateGradients(tolerance=0.01, preconditioner=None)
    probes = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], (n, arguments.probes)))
    rows: list[dict[str, Any]] = []

    def add(way: str, m: int, task: str, seconds: float, found: Any) -> None:
        rows.append({"way": way, "m": m, "task": task, "seconds": seconds, "found": found})

    for m in arguments.nodes:
        grid = RegularGrid.around(X.min(0), X.max(0), (m,))
        grid_kernel, smooth_at = GridKernel(kernel, grid), points[:columns]
        one_hot = grid.scatter(smooth_at, torch.eye(columns, dtype=torch.float64))
        smooth, prior = grid_kernel @ one_hot, one_hot.T @ (grid_kernel @ one_hot)
        built, ski = timed(lambda: InterpolatedKernelMatrix(grid_kernel, X_all, noise))  # noqa: B023
        taken, solved = timed(lambda: solver.solve(ski, target).value)  # noqa: B023
        mean = grid.interpolate(points, grid_kernel @ ski.scatter(solved))[:, 0]
        add("ski", m, "mean", built + taken, mean)
        more, determinant = timed(lambda: log_determinant(ski, None, starts=probes).value)  # noqa: B023
        likelihood = -0.5 * (determinant + float((target * solved).sum()) + n * math.log(2 * math.pi))
        add("ski", m, "log-likelihood", built + taken + more, likelihood)
        taken, solved = timed(lambda: solver.solve(ski, ski.interpolate(smooth)).value)  # noqa: B023
        add("ski", m, "covariance", built + taken, prior - smooth.T @ ski.scatter(solved))
        ski = solved = None  # free the memory before the next method
        passed, statistics = timed(lambda: GridStatistics.from_rows(grid, X_all, target))  # noqa: B023
        starts = Starts(statistics.cross, statistics.target_squares)
        ours = GridOperator(grid_kernel, statistics.gram, noise, starts, n)
        taken, solved = timed(lambda: solver.solve(ours, ours.start_vectors()).value)  # noqa: B023
        dual = ours.adjoint(solved)
        add("grid", m, "mean", passed + taken, grid.interpolate(points, grid_kernel @ dual)[:, 0])
        gathered, cross = timed(lambda: grid.scatter(X_all, probes))  # noqa: B023
        squares = torch.full((arguments.probes,), float(n), dtype=torch.float64)
        drawn = GridOperator(grid_kernel, statistics.gram, noise, Starts(cross, squares), n)
        more, determinant = timed(lambda: log_determinant(drawn, None, starts=drawn.start_vectors()).value)  # noqa: B023
        # y' K~^-1 y = (y'y - y'W theta) / noise
        fit = float(statistics.target_squares - (statistics.cross * (grid_kernel @ dual)).sum()) / noise
        likelihood = -0.5 * (determinant + fit + n * math.log(2 * math.pi))
        add("grid", m, "log-likelihood", passed + gathered + taken + more, likelihood)
        plain = GridOperator(grid_kernel, statistics.gram, noise)
        taken, solved = timed(lambda: solver.solve(plain, plain.lift(smooth)).value)  # noqa: B023
        add("grid", m, "covariance", passed + taken, prior - smooth.T @ plain.adjoint(solved))
        rank = min(arguments.rank, m)
        taken, low = timed(lambda: LowRankCovariance.build(grid_kernel, statistics, noise, rank))  # noqa: B023
        root = grid.interpolate(smooth_at, low.root)
        add("grid", m, f"covariance of rank {low.rank}", passed + taken, prior - root @ root.T)
        solved = plain = low = None
        print(f"m = {m:,} done", flush=True)
    largest = {row["task"]: row["found"] for row in rows if row["way"] == "ski" and row["m"] == max(arguments.nodes)}
    scale = float(np.abs(y_test).mean())
    for row in rows:
        task, found = row["task"], row.pop("found")
        if task == "mean":
            row["error"] = float((found - torch.from_numpy(y_test)).abs().mean()) / scale
        elif task == "log-likelihood":
            row["error"] = abs(found - largest[task])
        else:
            row["error"] = float((found - largest["covariance"]).norm())
        print(f"{row['way']:5s} m = {row['m']:6,d}  {task:24s} {row['seconds']:8.2f} s  error {row['error']:.5g}")
    return rows


def figure_volume(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Time set-up, mean and log-determinant of the radar volume for several grids."""
    rows = []
    solver = ConjugateGradients(tolerance=0.01, preconditioner=None)
    for shape in ((80, 80, 8), (112, 112, 10), (160, 160, 12)):
        problem = at_most(radar(arguments.data, shape), arguments.rows)
        n, grid, kernel = len(problem.X), problem.grid, problem.grid_kernel
        passed, statistics = timed(lambda: GridStatistics.from_rows(grid, problem.X, problem.y, arguments.probes))  # noqa: B023
        ours = GridOperator(
            kernel, statistics.gram, problem.noise, Starts(statistics.cross, statistics.target_squares), n
        )
        mean, solved = timed(lambda: solver.solve(ours, ours.start_vectors()))  # noqa: B023
        drawn = GridOperator(
            kernel, statistics.gram, problem.noise, Starts(statistics.probes, statistics.probe_squares), n
        )
        determinant, value = timed(lambda: log_determinant(drawn, None, starts=drawn.start_vectors()))  # noqa: B023
        row = {
            "shape": shape,
            "m": grid.size,
            "grid_set_up_s": passed,
            "grid_mean_s": mean,
            "grid_logdet_s": determinant,
        }
        row |= {"steps": solved.iterations, "logdet": value.value, "standard_error": value.standard_error}
        built, ski = timed(lambda: InterpolatedKernelMatrix(kernel, problem.X, problem.noise))  # noqa: B023
        mean, solved = timed(lambda: solver.solve(ski, problem.y))  # noqa: B023
        row |= {"ski_set_up_s": built, "ski_mean_s": mean, "ski_steps": solved.iterations}
        few = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], (n, arguments.ski_probes)))
        determinant, value = timed(lambda: log_determinant(ski, None, starts=few, max_steps=drawn.grid_products))  # noqa: B023
        # The paper's method does not solve for blocks, so its time is proportional to the number of probes.
        row["ski_logdet_s"] = determinant * arguments.probes / arguments.ski_probes
        row["ski_logdet"] = value.value
        print(
            f"m = {grid.size:8,d}  set-up {passed:6.2f} / {built:6.2f} s  "
            f"mean {row['grid_mean_s']:6.2f} / {mean:6.2f} s ({solved.iterations} steps)  "
            f"log-determinant of {arguments.probes} {row['grid_logdet_s']:6.2f} / "
            f"{row['ski_logdet_s']:6.2f} s (from {arguments.ski_probes})   peak {peak():.2f} GiB   [grid / ski]",
            flush=True,
        )
        rows.append(row)
        ski = drawn = ours = statistics = None
        gc.collect()
    return rows


def main() -> None:
    """Run the requested task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("table", "sine", "sound", "volume"))
    parser.add_argument("--data", type=Path, help="folder with load.py and the Parquet files")
    known = ["sine", "sound", "temperature", "precipitation", "elevation", "radar"]
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
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
