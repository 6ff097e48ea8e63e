"""Quantities that explain the behaviour of iterative solves, for matrices small enough to factorise.

Lin et al. 2024, section 3 and figures 3 and 6, consider the distance from the start of a solve to its solution, and the
spectrum of the inverse that determines it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gigagp.operators import KernelMatrix
from gigagp.operators.base import LinearOperator
from gigagp.products.dense import cholesky


def squared_distance(operator: LinearOperator, start: torch.Tensor, solution: torch.Tensor) -> torch.Tensor:
    """Return ``||start - solution||_H^2`` of each column, shape (s,) (Lin et al. 2024, eq. 12).

    From a zero start, its mean over probes is ``tr(H^-1)`` for Hutchinson's estimator and exactly n for the pathwise
    estimator (eqs. 14 and 15).
    """
    difference = (start - solution).to(operator.dtype)
    return operator.inner(difference, operator @ difference)


class InverseSpectrum(NamedTuple):
    """Summary of the spectrum of ``H^-1``.

    Attributes
    ----------
    trace : float
        ``tr(H^-1)``.
    largest : float
        Largest eigenvalue of ``H^-1``; at most the inverse of the smallest noise variance.
    condition : float
        Condition number of H.
    """

    trace: float
    largest: float
    condition: float


def inverse_spectrum(matrix: KernelMatrix) -> InverseSpectrum:
    """Return trace, largest eigenvalue and condition number, by dense factors; for a few thousand rows at most."""
    dense = matrix.to_dense().double()
    eigenvalues = torch.linalg.eigvalsh(dense)
    identity = torch.eye(matrix.n, dtype=torch.float64, device=dense.device)
    trace = float(torch.linalg.solve_triangular(cholesky(dense), identity, upper=False).square().sum())
    smallest, largest = float(eigenvalues[0]), float(eigenvalues[-1])
    return InverseSpectrum(trace, 1 / smallest, largest / smallest)
