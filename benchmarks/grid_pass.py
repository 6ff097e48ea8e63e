"""Measure the rows per second of the pass that collects grid statistics, and of two alternatives, in one run.

    python benchmarks/grid_pass.py                       # 16 M rows in three inputs, 80 x 80 x 20 nodes
    python benchmarks/grid_pass.py --rows 4000000 --shape 40 40 20 --probes 16
    python benchmarks/grid_pass.py --stream --rows 120000000 --shape 160 80 10    # a radar volume from a generator

Methods: `moments` (ours: 7^d sums per cell, expanded once), `direct` (adds the 64 x 64 products of every row's weights
to the stencil, in compiled NumPy calls), `sparse` (as the authors: a SciPy matrix W, then W.T @ W). The slow methods
run on fewer rows; rows per second are compared. All three must agree.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy.sparse
import torch

from gigagp import kernels
from gigagp.inference.grid.iterative import iterative_system
from gigagp.inference.grid.system import SolveSettings
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics import Accumulator, GridCollector, GridStatistics, RegularGrid
from gigagp.operators.grid.statistics.gram import half_offsets

#: Noise variance of the synthetic rows.
NOISE = 0.01
#: Preconditioners and tolerances of solves for the mean; errors are relative to the first of them.
WAYS = (("long_waves", 1e-3), ("long_waves", 1e-1), ("none", 1e-2), ("none", 1e-3), ("circulant", 1e-3))


def radar(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows in the unit cube distributed as in radar data: denser near a station and near the ground."""
    rng = np.random.default_rng(seed)
    stations = np.random.default_rng(0).random((143, 2))
    which = rng.integers(len(stations), size=n)
    angle, reach = rng.random(n) * 2 * np.pi, rng.random(n) * 0.12
    X = np.empty((n, 3))
    X[:, 0] = stations[which, 0] + reach * np.cos(angle)
    X[:, 1] = stations[which, 1] + reach * np.sin(angle)
    X[:, 2] = np.minimum(rng.random(n), 0.15 + reach * 7)
    np.clip(X, 0, 1, out=X)
    y = np.sin(9 * X[:, 0]) * np.cos(7 * X[:, 1]) - X[:, 2]
    y += 0.1 * rng.standard_normal(n)
    return X, y


def seconds(work, repeats: int = 1, clock=time.perf_counter) -> tuple[float, object]:
    """Return the best of several times in seconds, and the last result."""
    best, result = np.inf, None
    for _ in range(repeats):
        start = clock()
        result = work()
        best = min(best, clock() - start)
    return best, result


def direct(grid: RegularGrid, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return half of the stencil of W'W by adding every product of every row's weights."""
    indices, weights = (part.numpy() for part in grid.stencil(torch.from_numpy(X)))
    steps = {sum(a * b for a, b in zip(o, grid.strides, strict=True)): k for k, o in enumerate(half_offsets(grid))}
    values = np.zeros((len(steps), grid.size))
    for i in range(indices.shape[1]):
        for j in range(i, indices.shape[1]):
            k = steps[int(indices[0, j] - indices[0, i])]
            values[k] += np.bincount(indices[:, i], weights[:, i] * weights[:, j], minlength=grid.size)
    return values


def sparse(grid: RegularGrid, X: np.ndarray, y: np.ndarray) -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    """Return W'W and W'y from a sparse W."""
    indices, weights = (found.numpy() for found in grid.stencil(torch.from_numpy(X)))
    rows = np.arange(len(X) + 1) * indices.shape[1]
    W = scipy.sparse.csr_matrix((weights.ravel(), indices.ravel(), rows), shape=(len(X), grid.size))
    return W.T @ W, W.T @ y


def compare(arguments: argparse.Namespace) -> dict[str, object]:
    grid = RegularGrid.around([0.0] * 3, [1.0] * 3, arguments.shape)
    X, y = radar(arguments.rows, 1)

    def ours(X: np.ndarray, y: np.ndarray, n_probes: int = 0) -> tuple[float, float, Accumulator]:
        accumulator = Accumulator(grid, 1, n_probes)
        start = time.perf_counter()
        accumulator.add(X, y)
        accumulator._flush()
        added = time.perf_counter() - start
        accumulator.statistics()
        return added, time.perf_counter() - start, accumulator

    found: dict[str, object] = {"rows": arguments.rows, "shape": arguments.shape, "threads": torch.get_num_threads()}
    ours(X, y)  # the first run touches fresh memory
    added, whole, _ = min((ours(X, y) for _ in range(3)), key=lambda one: one[1])
    rates = {"moments": arguments.rows / whole, "moments, rows alone": arguments.rows / added}
    if arguments.probes:
        added, whole, _ = min((ours(X, y, arguments.probes) for _ in range(2)), key=lambda one: one[1])
        rates[f"moments, {arguments.probes} probes"] = arguments.rows / whole
    few = min(arguments.slow_rows, arguments.rows)
    sample = ours(X[:few], y[:few])[2].statistics()
    taken, values = seconds(lambda: direct(grid, X[:few], y[:few]))
    rates["direct"] = few / taken
    worst = float(np.abs(values - sample.gram.values.numpy()).max() / sample.gram.values.abs().max())
    taken, (gram, cross) = seconds(lambda: sparse(grid, X[:few], y[:few]))
    rates["sparse"] = few / taken
    v = torch.randn(grid.size, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    product = torch.from_numpy(gram @ v.numpy())
    found["agreement"] = {
        "direct": worst,
        "sparse W'W v": float((sample.gram @ v - product).abs().max() / product.abs().max()),
        "sparse W'y": float(np.abs(sample.cross[:, 0].numpy() - cross).max() / np.abs(cross).max()),
    }
    print(f"{arguments.rows:,} rows, {grid.size:,} nodes, {torch.get_num_threads()} threads; slow methods {few:,} rows")
    for name, rate in rates.items():
        print(f"  {name:24s} {rate / 1e6:9.3f} M rows/s   {rates['moments'] / rate:8.1f} times slower than moments")
    print("  largest differences, relative:", found["agreement"])
    return found | {"rows_a_second": rates}


def stream(arguments: argparse.Namespace, ways: Sequence[tuple[str, float]] = WAYS) -> dict[str, object]:
    """Read rows from a generator, measure only the package's own time, and solve for the mean in several ways."""
    grid = RegularGrid.around([0.0] * 3, [1.0] * 3, arguments.shape)
    chunk, made = min(2**21, arguments.rows), 0.0

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal made
        start = time.perf_counter()
        # A few chunks are shifted slightly each time: making 120 M rows from scratch takes longer than adding them.
        held = [radar(chunk, k) for k in range(4)]
        rng = np.random.default_rng(9)
        made += time.perf_counter() - start
        for first in range(0, arguments.rows, chunk):
            start = time.perf_counter()
            X, y = held[(first // chunk) % len(held)]
            count = min(chunk, arguments.rows - first)
            moved = np.clip(X[:count] + 1e-3 * rng.standard_normal(3), 0, 1)
            made += time.perf_counter() - start
            yield moved, y[:count]

    start = time.perf_counter()
    collector = GridCollector(grid, 1, arguments.probes)
    collector.read(rows())
    read = time.perf_counter() - start - made
    statistics = collector.statistics()
    own = time.perf_counter() - start - made
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{statistics.n_rows:,} rows on {grid.size:,} nodes, {arguments.probes} probes, {torch.get_num_threads()} "
        f"threads: own time {own:.1f} s ({statistics.n_rows / own / 1e6:.2f} M rows/s; rows alone {read:.1f} s), the "
        f"generator's {made:.1f} s; peak memory {peak:.2f} GiB; occupied cells {statistics.occupancy:.0%}",
        flush=True,
    )
    found = {
        "rows": statistics.n_rows,
        "nodes": grid.size,
        "own_seconds": own,
        "peak_GiB": peak,
        "made_seconds": made,
    }
    return found | {"means": means(statistics, ways)}


def means(statistics: GridStatistics, ways: Sequence[tuple[str, float]] = WAYS) -> list[dict[str, object]]:
    """Solve for the mean with several settings; print CPU times in units of products, and errors at the rows."""
    gram_product, _ = seconds(lambda: statistics.gram @ statistics.cross, 5, time.process_time)
    kernel = GridKernel(kernels.Matern(2.5, 0.2).bind(3), statistics.grid)
    kernel = GridKernel(kernel.kernel, statistics.grid, kernel.fitting_torus(2e-3 * NOISE))
    grid_product, _ = seconds(lambda: kernel @ statistics.cross, 5, time.process_time)
    print(
        f"Matern-5/2 of lengthscale 0.2, noise {NOISE}; a product with K_G takes {1e3 * grid_product:.0f} ms of CPU, "
        f"one with W'W {1e3 * gram_product:.0f} ms; errors are relative to the first",
        flush=True,
    )
    exact, found = None, []
    for choice, tolerance in ways:
        settings = SolveSettings(tolerance, tolerance, 1000, choice)
        system = iterative_system(kernel, statistics, NOISE, settings)
        taken, solved = seconds(lambda system=system: system.solve(statistics.cross), clock=time.process_time)
        exact = solved.values if exact is None else exact
        difference = solved.values - exact
        error = float((difference * (statistics.gram @ difference)).sum() / statistics.n_rows) ** 0.5
        steps = solved.solution.iterations
        products = taken / (gram_product + grid_product)
        print(
            f"  mean by {choice:10s} to {tolerance:7.0e}: {steps:4d} steps, {taken:7.2f} CPU s, the time of "
            f"{products:7.1f} products with both; error at the rows {error / NOISE**0.5:.5f} of the noise's deviation",
            flush=True,
        )
        found.append(
            {
                "preconditioner": choice,
                "tolerance": tolerance,
                "steps": steps,
                "products": products,
                "cpu_s": taken,
                "error": error,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--shape", type=int, nargs=3, default=(80, 80, 20))
    parser.add_argument("--probes", type=int, default=0)
    parser.add_argument("--slow-rows", type=int, default=50_000, help="rows for the direct and the sparse method")
    parser.add_argument("--stream", action="store_true", help="read rows from a generator, and report peak memory")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found = stream(arguments) if arguments.stream else compare(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
