"""Basis functions of a Gaussian process as a linear model: any block of columns by index, without the others."""

from gigagp.bases.base import Basis
from gigagp.bases.fourier import FourierBasis
from gigagp.bases.grid_eigenfunctions import GridEigenfunctions
from gigagp.bases.inducing import InducingBasis, RadialBasis

__all__ = ["Basis", "FourierBasis", "GridEigenfunctions", "InducingBasis", "RadialBasis"]
