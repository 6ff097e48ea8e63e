"""Basis functions of a Gaussian process as a linear model: any block of columns by index, without the others."""

from gigagp.bases.base import Basis
from gigagp.bases.fourier import FourierBasis
from gigagp.bases.grid_eigenfunctions import GridEigenfunctions
from gigagp.bases.inducing import InducingBasis, RadialBasis
from gigagp.bases.reordered import ReorderedBasis

__all__ = ["Basis", "FourierBasis", "GridEigenfunctions", "InducingBasis", "RadialBasis", "ReorderedBasis"]
