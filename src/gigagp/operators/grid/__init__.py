"""Operators for grid inference, which act on values at the nodes of a regular grid."""

from gigagp.operators.grid.factorised import GridOperator, Starts
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics.gram import Gram
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.operators.grid.sum_kernel import SumKernel, grid_kernel
from gigagp.operators.grid.torus import Torus
from gigagp.operators.grid.whitened import WhitenedOperator

__all__ = [
    "Gram",
    "GridKernel",
    "GridOperator",
    "RowsGram",
    "Starts",
    "SumKernel",
    "Torus",
    "WhitenedOperator",
    "grid_kernel",
]
