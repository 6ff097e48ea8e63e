"""Bases: a Gaussian process as a linear model, any block of whose columns can be computed without the others."""

from gigagp.bases.base import Basis
from gigagp.bases.fourier import FourierBasis
from gigagp.bases.grid_eigenfunctions import GridEigenfunctions
from gigagp.bases.inducing import InducingBasis, RadialBasis
from gigagp.bases.reordered import ReorderedBasis
from gigagp.bases.stored import basis_from_state

__all__ = [
    "Basis",
    "FourierBasis",
    "GridEigenfunctions",
    "InducingBasis",
    "RadialBasis",
    "ReorderedBasis",
    "basis_from_state",
]
