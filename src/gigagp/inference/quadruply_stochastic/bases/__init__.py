"""Bases: a Gaussian process as a linear model, any block of whose columns can be computed without the others."""

from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.inference.quadruply_stochastic.bases.fourier import FourierBasis
from gigagp.inference.quadruply_stochastic.bases.grid_eigenfunctions import GridEigenfunctions
from gigagp.inference.quadruply_stochastic.bases.inducing import InducingBasis, RadialBasis
from gigagp.inference.quadruply_stochastic.bases.reordered import ReorderedBasis
from gigagp.inference.quadruply_stochastic.bases.stored import basis_from_state

__all__ = [
    "Basis",
    "FourierBasis",
    "GridEigenfunctions",
    "InducingBasis",
    "RadialBasis",
    "ReorderedBasis",
    "basis_from_state",
]
