"""The outer loop: optimizers of the hyperparameters, and the record of their steps."""

from gigagp.optimization.adam import Adam
from gigagp.optimization.auto import Auto
from gigagp.optimization.history import History, SolveRecord, Step
from gigagp.optimization.lbfgs import LBFGS
from gigagp.optimization.objective import Evaluation, Objective
from gigagp.optimization.optimizer import Minimiser, Optimizer, Unsaved
from gigagp.optimization.restarts import Restarts
from gigagp.optimization.space import ParameterSpace
from gigagp.optimization.sparse import SparseAdaGrad, SparseAdam, SparseSGD
from gigagp.optimization.subsets import SubsetFirst, SubsetStart

__all__ = [
    "LBFGS",
    "Adam",
    "Auto",
    "Evaluation",
    "History",
    "Minimiser",
    "Objective",
    "Optimizer",
    "ParameterSpace",
    "Restarts",
    "SolveRecord",
    "SparseAdaGrad",
    "SparseAdam",
    "SparseSGD",
    "Step",
    "SubsetFirst",
    "SubsetStart",
    "Unsaved",
]
