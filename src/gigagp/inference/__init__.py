"""How a Gaussian process is inferred: one file for each system."""

from gigagp.inference.computation_aware import ComputationAware
from gigagp.inference.exact import Exact
from gigagp.inference.grid import Grid
from gigagp.inference.iterative import Iterative
from gigagp.inference.quadruply_stochastic import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.random_features import RandomFeatures
from gigagp.inference.sparse_variational import SparseVariational

__all__ = [
    "ComputationAware",
    "Exact",
    "Grid",
    "Iterative",
    "QuadruplyStochastic",
    "RandomFeatures",
    "RelevanceVectorMachine",
    "SparseVariational",
]
