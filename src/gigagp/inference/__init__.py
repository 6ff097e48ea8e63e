"""Inference methods for Gaussian processes, one file or folder for each, and the registry of all of them."""

from gigagp.inference.computation_aware import ComputationAware
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.curves import Curves
from gigagp.inference.exact.exact import Exact
from gigagp.inference.grid import Grid
from gigagp.inference.iterative.iterative import Iterative
from gigagp.inference.markov import Markov
from gigagp.inference.quadruply_stochastic import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.random_features.random_features import RandomFeatures
from gigagp.inference.registry import register, registered
from gigagp.inference.sparse_variational import SparseVariational
from gigagp.inference.vecchia import Vecchia

__all__ = [
    "Abilities",
    "ComputationAware",
    "Curves",
    "Exact",
    "Grid",
    "Inference",
    "Iterative",
    "Markov",
    "QuadruplyStochastic",
    "RandomFeatures",
    "RelevanceVectorMachine",
    "SparseVariational",
    "Vecchia",
    "register",
    "registered",
]
