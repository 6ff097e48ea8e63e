"""Bases: a Gaussian process as a linear model, any block of whose columns can be computed without the others."""

from typing import Any

from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.inference.quadruply_stochastic.bases.fourier import FourierBasis
from gigagp.inference.quadruply_stochastic.bases.grid_eigenfunctions import GridEigenfunctions
from gigagp.inference.quadruply_stochastic.bases.inducing import InducingBasis, RadialBasis
from gigagp.kernels import Kernel

__all__ = [
    "Basis",
    "FourierBasis",
    "GridEigenfunctions",
    "InducingBasis",
    "RadialBasis",
    "basis_from_state",
]

_BY_KIND: dict[str, Any] = {one.kind: one for one in (FourierBasis, GridEigenfunctions, InducingBasis, RadialBasis)}


def basis_from_state(kind: str, kernel: Kernel, tensors: dict[str, Tensor], header: dict[str, Any]) -> Basis:
    """Return the basis of a class's `Basis.kind`, from a bound kernel and the result of `Basis.state`.

    Raises
    ------
    ModelFileError
        If there is no basis of that kind.
    """
    if kind not in _BY_KIND:
        raise ModelFileError(f"the model file names a basis that this version does not know: {kind!r}.")
    found: Basis = _BY_KIND[kind].from_state(kernel, tensors, header)
    return found
