"""Quantities that explain the behaviour of iterative solves, for small matrices, and of inducing points.

Lin et al. 2024, section 3 and figures 3 and 6, consider the distance from the start of a solve to its solution, and the
spectrum of the inverse that determines it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from gigagp.inference.contract.posterior import Posterior
from gigagp.kernels import Kernel, StationaryKernel
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


# Sparse models (Wenger et al. 2024, S5.1) -----------------------------------------------------------------------------


def inducing_distance(kernel: Kernel, Z: torch.Tensor, X: torch.Tensor) -> float:
    """Return the mean distance of inducing points to the nearest row, in lengthscales (eq. S24).

    Points far from all rows carry no information about them; in many dimensions inducing points tend to end there.

    Parameters
    ----------
    kernel : Kernel
        Its first stationary part defines the lengthscales; without such a part, distances are not scaled.
    Z : Tensor of shape (m, d)
        Inducing points.
    X : Tensor of shape (n, d)
        Inputs of the rows.
    """
    bound = kernel.bind(X.shape[1])
    leaf = next((leaf for leaf in bound.leaves() if isinstance(leaf, StationaryKernel)), None)
    points, rows = (values if leaf is None else leaf.scale(values) for values in (Z.double(), X.double()))
    exact = "donot_use_mm_for_euclid_dist"  # norms and products would lose the digits of rows far from zero
    nearest = [torch.cdist(block, rows, compute_mode=exact).min(1).values for block in points.split(256)]
    return float(torch.cat(nearest).mean())


def latent_share(posterior: Posterior, X: torch.Tensor) -> float:
    """Return the mean share of the latent variance in the predictive variance (eq. S25).

    At the inducing points of a sparse model, it tends to zero where the data leave much undetermined, because the model
    then attributes this to noise.

    Parameters
    ----------
    posterior : Posterior
        Must have one noise variance.
    X : Tensor of shape (m, d)
        Inputs in the posterior's units.
    """
    variance = posterior.mean_and_variance(X)[1]
    return float((variance / (variance + posterior.model.noise_at(X))).mean())
