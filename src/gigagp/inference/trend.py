"""The mean's coefficients by generalised least squares, from solves that are made anyway."""

from __future__ import annotations

import torch


def estimate_trend(
    basis: torch.Tensor, targets: torch.Tensor, basis_solutions: torch.Tensor, target_solutions: torch.Tensor
) -> torch.Tensor:
    """Return the coefficients that maximise the likelihood at fixed kernel and noise.

    ``beta = (Phi' H^-1 Phi)^-1 Phi' H^-1 Y`` (Rasmussen and Williams 2006, eq. 2.42 with a vague prior); directions
    of the basis that the rows do not determine (a constant column beside a constant mean) get the shortest solution.

    Parameters
    ----------
    basis : Tensor of shape (n, p)
    targets : Tensor of shape (n, t)
    basis_solutions, target_solutions : Tensor of shape (n, p) and (n, t)
        ``H^-1`` times the two above.

    Returns
    -------
    Tensor of shape (p, t)
    """
    gram = basis.double().T @ basis_solutions.double()
    return trend_from_products(gram, basis_solutions.double().T @ targets.double()).to(targets)


def trend_from_products(gram: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
    """Return the same from ``Phi' H^-1 Phi``, shape (p, p), and ``Phi' H^-1 Y``, shape (p, t)."""
    root = coefficient_root(gram)
    return root @ (root.T @ cross)


def coefficient_root(gram: torch.Tensor) -> torch.Tensor:
    """Return R, shape (p, p), with ``R R' = (Phi' H^-1 Phi)^-1``: the covariance of the coefficients, given the rows.

    Directions that the rows do not determine are left out, as in the coefficients.
    """
    if gram.shape[0] == 0:
        return torch.zeros_like(gram)
    gram = 0.5 * (gram + gram.T)  # approximate solves leave it slightly unsymmetric
    values, vectors = torch.linalg.eigh(gram)
    determined = values > 1e-10 * values.abs().max()
    return vectors * torch.where(determined, values, torch.inf).rsqrt()
