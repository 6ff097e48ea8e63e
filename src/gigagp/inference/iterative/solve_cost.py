"""What linear solves with the kernel matrix of all rows cost, in nominal seconds; see `gigagp.runtime.machine`."""

from __future__ import annotations

from functools import cache

import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel, Matern
from gigagp.neighbours.neighbourhood import FEW_INPUTS
from gigagp.products import select
from gigagp.runtime.machine import entries_seconds, fastest, float64_slowness

#: Products of a solve where no trial has been made: with few inputs, and with many.
_FEW_PRODUCTS, MANY_PRODUCTS = 10.0, 30.0
#: Products below which a solve tells nothing.
FEWEST_PRODUCTS = 3.0
#: Solves of a guided fit in those of a trial: one to three gradients, the last solve from where they ended, and further
#: samples. Measured on kin40k, protein and elevators (8,000 rows): 1.3, 1.7 and 3 times as many as 1.6.
_SOLVES = 2.2
#: Products in float64 that a solve with products in float32 takes beside them, with its further iterations. Fits of two
#: to five solves had up to 8 more products, and 12 once (`benchmarks/results/mixed_precision_tables.json`).
_CORRECTIONS = 3.0
#: Rows, inputs and columns of the product that is timed, and bytes for it.
_TIMED_ROWS, _TIMED_INPUTS, _TIMED_COLUMNS, _BUDGET = 3000, 8, 18, 2**26


def products_slowness() -> float:
    """Return how many times as long as on the machine of the benchmarks products with a kernel matrix take now.

    Processors differ more in these than in products of stored matrices, which `gigagp.runtime.machine.slowness` times:
    without AVX-512, exponentials take twice as long. It is measured once in a process for each number of threads.
    """
    return _measured(torch.get_num_threads())


@cache
def _measured(threads: int) -> float:
    n, d = _TIMED_ROWS, _TIMED_INPUTS
    X = torch.linspace(0, 1, n * d, dtype=torch.float64).reshape(n, d)
    kernel = Matern(1.5).bind(d)
    engine = select(kernel, X.device, X.dtype, alone=True)  # processes that measure need not wait for each other
    vectors = torch.ones(n, _TIMED_COLUMNS, dtype=torch.float64)
    seconds = fastest(lambda: engine.product(kernel, X, X, vectors, budget=_BUDGET))
    return seconds / entries_seconds(float(n) ** 2, d)


def expected_products(table: TrainingTable) -> float:
    """Return the products with the kernel matrix that a solve is expected to take, where no trial has been made."""
    return _FEW_PRODUCTS if table.n_inputs <= FEW_INPUTS else MANY_PRODUCTS


def products_seconds(table: TrainingTable, products: float, kernel: Kernel | None = None) -> float:
    """Return the seconds of this many products with the kernel matrix; None: of a kernel that makes rows no panel."""
    return entries_seconds(table.entries_of(products, kernel), table.n_inputs)


def solves_seconds(table: TrainingTable, products: float, kernel: Kernel) -> float:
    """Return the seconds of the solves of a guided fit, each of this many products with the kernel matrix."""
    return _SOLVES * products_seconds(table, products, kernel)


def share_in_float32(table: TrainingTable, products: float) -> float:
    """Return the time of a solve with products in float32 over that of one in float64, for the same answers.

    ``products`` are those of a solve in float64. On the CPU it is 1: there the two take about as long.
    """
    slowness = float64_slowness(table.X.device)
    return 1.0 if slowness == 1 else 1 / slowness + _CORRECTIONS / products
