"""Linear operators: matrices as objects that solvers, preconditioners and gradients work with."""

from gigagp.operators.averages import AveragedMatrix, Averages
from gigagp.operators.base import Index, LinearOperator, SymmetricMatrix
from gigagp.operators.dense import DenseMatrix
from gigagp.operators.kernel_matrix import KernelMatrix
from gigagp.operators.sharded import ShardedKernelMatrix, kernel_matrix

#: The matrix H of the rows of a table: of values at points, or of averages.
RowsMatrix = KernelMatrix | AveragedMatrix

__all__ = [
    "AveragedMatrix",
    "Averages",
    "DenseMatrix",
    "Index",
    "KernelMatrix",
    "LinearOperator",
    "RowsMatrix",
    "ShardedKernelMatrix",
    "SymmetricMatrix",
    "kernel_matrix",
]
