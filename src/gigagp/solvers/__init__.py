"""Solvers of ``H v = b`` and the preconditioners that they accept."""

from gigagp.solvers.alternating_projections import AlternatingProjections
from gigagp.solvers.base import Solver
from gigagp.solvers.cholesky import Cholesky
from gigagp.solvers.conjugate_gradients import ConjugateGradients
from gigagp.solvers.preconditioners import (
    CompletePanel,
    Nystrom,
    PivotedCholesky,
    RandomlyPivotedCholesky,
    TwoLevel,
    Vecchia,
)
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.solution import Solution, Start, Status, Truncated
from gigagp.solvers.stochastic_gradient_descent import StochasticGradientDescent

__all__ = [
    "AlternatingProjections",
    "Cholesky",
    "CompletePanel",
    "ConjugateGradients",
    "Nystrom",
    "PivotedCholesky",
    "Prepared",
    "RandomlyPivotedCholesky",
    "Solution",
    "Solver",
    "Start",
    "Status",
    "StochasticGradientDescent",
    "Truncated",
    "TwoLevel",
    "Vecchia",
]
