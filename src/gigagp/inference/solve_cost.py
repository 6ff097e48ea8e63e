"""What linear solves with the kernel matrix of all rows cost, in nominal seconds; see `gigagp.machine`."""

from __future__ import annotations

from gigagp.inference.table import TrainingTable
from gigagp.machine import entries_seconds
from gigagp.neighbours.neighbourhood import FEW_INPUTS

#: Products of a solve where no trial has been made: with few inputs, and with many.
_FEW_PRODUCTS, MANY_PRODUCTS = 10.0, 30.0
#: Products below which a solve tells nothing.
FEWEST_PRODUCTS = 3.0
#: Solves of a guided fit in those of a trial: one to three gradients, the last solve from where they ended, and further
#: samples. Measured on kin40k, protein and elevators (8,000 rows): 1.3, 1.7 and 3 times as many as 1.6.
_SOLVES = 2.2


def expected_products(table: TrainingTable) -> float:
    """Return the products with the kernel matrix that a solve is expected to take, where no trial has been made."""
    return _FEW_PRODUCTS if table.n_inputs <= FEW_INPUTS else MANY_PRODUCTS


def products_seconds(table: TrainingTable, products: float) -> float:
    """Return the seconds of so many products with the kernel matrix."""
    return products * entries_seconds(float(table.n_rows) ** 2, table.n_inputs)


def solves_seconds(table: TrainingTable, products: float) -> float:
    """Return the seconds of the solves of a guided fit, each of so many products with the kernel matrix."""
    return _SOLVES * products_seconds(table, products)
