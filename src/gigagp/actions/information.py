"""What actions tell about the function, and how far apart two sets of them are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.actions.base import Actions
from gigagp.dense import cholesky
from gigagp.errors import InvalidInputError
from gigagp.operators.base import SymmetricMatrix


def mutual_information(matrix: SymmetricMatrix, actions: Actions) -> float:
    """Return the information in nats that ``S' y`` carries about the function at the rows.

    ``(log det S'HS - log det S'NS) / 2`` with the noise N (Wenger et al. 2024, eq. 12 and lemma S5). Learning actions
    that maximise it and learning ones that leave the least posterior entropy is the same.

    Parameters
    ----------
    matrix : SymmetricMatrix
        H; its noise has to be positive.
    actions : Actions

    Raises
    ------
    InvalidInputError
        If there is a row without noise: the information is infinite.
    """
    noise = matrix.noise().to(torch.float64)
    if not bool((noise > 0).all()):
        msg = "matrix of mutual_information must have positive noise: without noise the information is infinite."
        raise InvalidInputError(msg)
    projected = actions.project(matrix @ actions.dense().to(matrix.dtype))
    factor = cholesky(0.5 * (projected + projected.T), "the projected matrix S'HS")
    return float(factor.diagonal().log().sum() - cholesky(actions.gram(noise), "S'NS").diagonal().log().sum())


def largest_mutual_information(matrix: SymmetricMatrix, count: int) -> float:
    """Return the most that ``count`` actions can tell: ``sum_j log(lambda_j / noise) / 2`` over the top eigenvalues.

    For one noise variance that all rows share, by a dense eigendecomposition (lemma S5).
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

    The prior's entropy less the mutual information; needs the dense K and its Cholesky factor, so small tables and
    kernels that are not smooth (a rank-deficient K has entropy minus infinity).
    """
    everything = slice(None)
    smooth = matrix.block(everything, everything).double() - torch.diag(matrix.noise().double())
    prior = cholesky(smooth, "the prior covariance").diagonal().log().sum()
    return float(prior) + 0.5 * matrix.n * math.log(2 * math.pi * math.e) - mutual_information(matrix, actions)


def grassmann_distance(left: Tensor, right: Tensor) -> float:
    """Return the distance of two column spans: the norm of the principal angles (Wenger et al. 2024, eq. S26).

    Parameters
    ----------
    left, right : Tensor of shape (n, p) and (n, q)
        Of full column rank; the smaller number of columns decides how many angles there are.
    """
    if left.ndim != 2 or right.ndim != 2 or left.shape[0] != right.shape[0]:
        msg = (
            "left and right of grassmann_distance must be matrices with as many rows; "
            f"got {tuple(left.shape)}, {tuple(right.shape)}."
        )
        raise InvalidInputError(msg)
    bases = [torch.linalg.qr(matrix.double()).Q for matrix in (left, right)]
    if bases[0].shape[1] < bases[1].shape[1]:
        bases.reverse()
    overlap = bases[0].T @ bases[1]
    cosines = torch.linalg.svdvals(overlap).clamp(max=1.0)
    # Small angles from their sines: the arc cosine of a number near one has no digits.
    sines = torch.linalg.svdvals(bases[1] - bases[0] @ overlap).clamp(max=1.0).flip(0)
    angles = torch.where(cosines > math.sqrt(0.5), sines.asin(), cosines.acos())
    return float(angles.norm())
