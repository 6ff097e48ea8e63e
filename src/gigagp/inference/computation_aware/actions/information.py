"""The information that actions carry about the function, and the distance between two sets of actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions.base import Actions
from gigagp.operators.base import SymmetricMatrix
from gigagp.products.dense import cholesky


def mutual_information(matrix: SymmetricMatrix, actions: Actions) -> float:
    """Return the information in nats that ``S' y`` carries about the function at the rows.

    It is ``(log det S'HS - log det S'NS) / 2`` with the noise N (Wenger et al. 2024, eq. 12 and lemma S5). Actions that
    maximise it also minimise the posterior entropy.

    Parameters
    ----------
    matrix : SymmetricMatrix
        The matrix H; its noise must be positive.
    actions : Actions

    Raises
    ------
    InvalidInputError
        If a row has no noise, because the information is then infinite.
    """
    noise = matrix.noise().to(torch.float64)
    if not bool((noise > 0).all()):
        msg = "matrix of mutual_information must have positive noise: without noise the information is infinite."
        raise InvalidInputError(msg)
    projected = actions.project(matrix @ actions.dense().to(matrix.dtype))
    factor = cholesky(0.5 * (projected + projected.T), "the projected matrix S'HS")
    return float(factor.diagonal().log().sum() - cholesky(actions.gram(noise), "S'NS").diagonal().log().sum())


def largest_mutual_information(matrix: SymmetricMatrix, count: int) -> float:
    """Return the largest information of ``count`` actions, ``sum_j log(lambda_j / noise) / 2`` over top eigenvalues.

    All rows must have the same noise variance. The eigenvalues come from a dense eigendecomposition (lemma S5).
    """
    everything = slice(None)
    noise = matrix.noise().to(torch.float64)
    if not bool((noise == noise[0]).all() and noise[0] > 0):
        msg = "matrix of largest_mutual_information must have one positive noise variance for all rows."
        raise InvalidInputError(msg)
    values = torch.linalg.eigvalsh(matrix.block(everything, everything).double())
    return 0.5 * float((values[-count:] / noise[0]).log().sum())


def posterior_entropy(matrix: SymmetricMatrix, actions: Actions) -> float:
    """Return the entropy in nats of the function at the rows after conditioning on ``S' y``.

    It is the prior's entropy minus the mutual information. It requires the dense K and its Cholesky factor, so it is
    limited to small tables and kernels that are not smooth (a rank-deficient K has an entropy of minus infinity).
    """
    everything = slice(None)
    smooth = matrix.block(everything, everything).double() - torch.diag(matrix.noise().double())
    prior = cholesky(smooth, "the prior covariance").diagonal().log().sum()
    return float(prior) + 0.5 * matrix.n * math.log(2 * math.pi * math.e) - mutual_information(matrix, actions)


def grassmann_distance(left: Tensor, right: Tensor) -> float:
    """Return the distance between two column spans: the norm of their principal angles (Wenger et al. 2024, eq. S26).

    Parameters
    ----------
    left, right : Tensor of shape (n, p) and (n, q)
        Matrices of full column rank; the smaller number of columns is the number of angles.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[0] != right.shape[0]:
        raise InvalidInputError(
            "left and right of grassmann_distance must be matrices with the same number of rows; "
            f"got {tuple(left.shape)}, {tuple(right.shape)}."
        )
    bases = [torch.linalg.qr(matrix.double()).Q for matrix in (left, right)]
    if bases[0].shape[1] < bases[1].shape[1]:
        bases.reverse()
    overlap = bases[0].T @ bases[1]
    cosines = torch.linalg.svdvals(overlap).clamp(max=1.0)
    # Small angles are computed from their sines, because the arc cosine of a number near one loses its digits.
    sines = torch.linalg.svdvals(bases[1] - bases[0] @ overlap).clamp(max=1.0).flip(0)
    angles = torch.where(cosines > math.sqrt(0.5), sines.asin(), cosines.acos())
    return float(angles.norm())
