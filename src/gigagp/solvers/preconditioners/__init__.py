"""Preconditioners for conjugate gradients: approximations of a matrix that are cheap to invert."""

from gigagp.solvers.preconditioners.base import Parts, Preconditioner, PreconditionerRecipe
from gigagp.solvers.preconditioners.complete_panel import CompletePanel
from gigagp.solvers.preconditioners.low_rank import LowRankPlusNoise, Nystrom, PivotedCholesky, RandomlyPivotedCholesky
from gigagp.solvers.preconditioners.two_level import LowRankPlusBlocks, TwoLevel
from gigagp.solvers.preconditioners.vecchia import SparsePlusLowRank, Vecchia

__all__ = [
    "CompletePanel",
    "LowRankPlusBlocks",
    "LowRankPlusNoise",
    "Nystrom",
    "Parts",
    "PivotedCholesky",
    "Preconditioner",
    "PreconditionerRecipe",
    "RandomlyPivotedCholesky",
    "SparsePlusLowRank",
    "TwoLevel",
    "Vecchia",
]
