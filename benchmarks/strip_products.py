"""What an exact solve with ten million rows would cost, from a strip of one product with their kernel matrix.

    python benchmarks/strip_products.py --rows 100000 1000000 10000000 --json benchmarks/results/strip_products.json

A strip is the product of some of the matrix's rows with all of its columns, in float32, as in a solve with
``dtype="mixed"``. A whole product computes every entry once for two rows, and so takes less time than its strips. How
much less is measured with the smallest number of rows and taken to be the same for all. Rows are uniform in a square,
the kernel is a Matern-1/2, and products have one column (the mean alone) and 66 (targets, trend and 64 samples). One
thread. A solve has eight iterations, as the exact mean of elevation had. Memory is that of rows, vectors and the
neighbours of a preconditioner with 30 of them, on paper.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import write

from gigagp.kernels import Matern
from gigagp.operators import KernelMatrix
from gigagp.products import cross_product

COLUMNS = (1, 66)
ENTRIES, ITERATIONS, INPUTS, NEIGHBOURS, COPIES = 2e10, 8, 2, 30, 4


def timed(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def run(n: int, columns: int, share: float | None) -> dict[str, float]:
    """Return what a strip of a product takes, and the whole product and a solve by it.

    ``share`` is the time of a whole product over that of its strips; None: it is measured.
    """
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, INPUTS, generator=generator)
    V = torch.randn(n, columns, generator=generator)
    kernel = Matern(nu=0.5, lengthscale=0.1).bind(INPUTS)
    strip = min(n, max(100, int(ENTRIES / n)))
    cross_product(kernel, X[:100], X[: min(n, 10_000)], V[: min(n, 10_000)], budget=2**28)  # loads the engine
    seconds = timed(lambda: cross_product(kernel, X[:strip], X, V, budget=2**28))
    strips = seconds * n / strip
    if share is None:
        matrix = KernelMatrix(kernel, X, torch.tensor(0.1), storage="tiles")
        share = timed(lambda: matrix @ V) / strips
    product = share * strips
    return {
        "rows": n,
        "columns": columns,
        "strip": strip,
        "strip_cpu_s": seconds,
        "entries_a_cpu_s": strip * n / seconds,
        "whole_over_strips": share,
        "product_cpu_s": product,
        "product_cpu_hours": product / 3600,
        "solve_cpu_hours": ITERATIONS * product / 3600,
        "memory_gib": 8 * n * (INPUTS + COPIES * columns + 3 * NEIGHBOURS) / 2**30,
    }


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    shares: dict[int, float] = {}
    for n in sorted(arguments.rows):
        for columns in COLUMNS:
            found = run(n, columns, shares.get(columns))
            shares.setdefault(columns, found["whole_over_strips"])
            rows.append({**found})
            print(rows[-1], flush=True)
            write(arguments.json, {"rows": arguments.rows}, rows)


if __name__ == "__main__":
    main()
