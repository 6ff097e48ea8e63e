"""The mean's coefficients by generalised least squares, from solves that are made anyway."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

#: Share of a unit direction's information, below which rows do not determine it.
_DETERMINED = 1e-12


class Trend(NamedTuple):
    """The learned part of the mean, and what the rows leave open about it.

    Attributes
    ----------
    coefficients : Tensor of shape (p, t)
        Of the mean's basis.
    root : Tensor of shape (p, p)
        Root of their covariance; see `coefficient_root`.
    """

    coefficients: torch.Tensor
    root: torch.Tensor

    @classmethod
    def from_state(cls, tensors: Mapping[str, torch.Tensor], beside: str) -> Trend:
        """Return the trend of a model file. One from before the root was kept has the variances that it had then.

        Raises
        ------
        KeyError
            If only one is there of the root and of ``beside``, what it multiplies.
        """
        if ("coefficient_root" in tensors) != (beside in tensors):
            msg = f"coefficient_root without {beside}, or the other way round"
            raise KeyError(msg)
        coefficients = tensors["coefficients"]
        root = tensors.get("coefficient_root")
        return cls(coefficients, coefficients.new_zeros(len(coefficients), len(coefficients)) if root is None else root)

    @classmethod
    def from_products(cls, gram: torch.Tensor, cross: torch.Tensor) -> Trend:
        """Return both from ``Phi' H^-1 Phi``, shape (p, p), and ``Phi' H^-1 Y``, shape (p, t)."""
        root = coefficient_root(gram)
        return cls(root @ (root.T @ cross), root)


def estimate_trend(basis: torch.Tensor, targets: torch.Tensor, basis_solutions: torch.Tensor) -> Trend:
    """Return the coefficients that maximise the likelihood at fixed kernel and noise.

    ``beta = (Phi' H^-1 Phi)^-1 Phi' H^-1 Y`` (Rasmussen and Williams 2006, eq. 2.42 with a vague prior); directions
    of the basis that the rows do not determine (a constant column beside a constant mean) get the shortest solution,
    each function in units of its own size.

    Parameters
    ----------
    basis : Tensor of shape (n, p)
    targets : Tensor of shape (n, t)
    basis_solutions : Tensor of shape (n, p)
        ``H^-1`` times the basis.
    """
    gram = basis.double().T @ basis_solutions.double()
    found = Trend.from_products(gram, basis_solutions.double().T @ targets.double())
    return Trend(found.coefficients.to(targets), found.root.to(targets))


def coefficient_root(gram: torch.Tensor) -> torch.Tensor:
    """Return R, shape (p, p), with ``R R' = (Phi' H^-1 Phi)^-1``: the covariance of the coefficients, given the rows.

    Directions that the rows do not determine are left out, as in the coefficients. Which they are does not depend on
    the units of the basis' functions.
    """
    if gram.shape[0] == 0:
        return torch.zeros_like(gram)
    sizes = gram.diagonal().clamp_min(0.0).sqrt()
    units = torch.where(sizes > 0, 1 / torch.where(sizes > 0, sizes, 1.0), 0.0)
    gram = units[:, None] * (0.5 * (gram + gram.T)) * units  # approximate solves leave it slightly unsymmetric
    values, vectors = torch.linalg.eigh(gram)
    determined = values > _DETERMINED
    # row by row, as a model file gives it back: products with it round to the same bits then
    return (units[:, None] * vectors * torch.where(determined, values, torch.inf).rsqrt()).contiguous()
