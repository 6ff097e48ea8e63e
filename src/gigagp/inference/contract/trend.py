"""Coefficients of the mean by generalised least squares, from the solves that inference makes anyway."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from gigagp.solvers import Solution

#: A direction of unit size with less information than this share counts as undetermined by the rows.
_DETERMINED = 1e-12
#: A row whose leverage is as near to 1 determines a direction alone; the variance of its prediction has no digits left.
_ALONE = 1e-10


class Trend(NamedTuple):
    """The learned part of the mean, with its uncertainty given the rows."""

    coefficients: torch.Tensor  # of the mean's basis, (p, t)
    root: torch.Tensor  # of the covariance of the coefficients, (p, p); see `coefficient_root`

    @classmethod
    def from_state(cls, tensors: Mapping[str, torch.Tensor], beside: str) -> Trend:
        """Return the trend stored in a model file; in files of versions without the root, the root is zero.

        Raises `KeyError` if the file has only one of the root and the tensor ``beside``, which the root multiplies.
        """
        if ("coefficient_root" in tensors) != (beside in tensors):
            raise KeyError(f"coefficient_root without {beside}, or the other way round")
        coefficients = tensors["coefficients"]
        root = tensors.get("coefficient_root")
        return cls(coefficients, coefficients.new_zeros(len(coefficients), len(coefficients)) if root is None else root)

    @classmethod
    def from_products(cls, gram: torch.Tensor, cross: torch.Tensor) -> Trend:
        """Return the trend from ``Phi' H^-1 Phi``, shape (p, p), and ``Phi' H^-1 Y``, shape (p, t)."""
        root = coefficient_root(gram)
        return cls(root @ (root.T @ cross), root)


class OrthogonalBasis(NamedTuple):
    """The span of the mean's basis at the rows, as orthogonal columns of unit mean square.

    Iterative solves are for these columns. The error of a solve is relative to its column. Columns that are alike, such
    as a constant beside an input far from zero, or two inputs that hardly differ, have large coefficients that cancel;
    the errors of their solves would not cancel. There are r columns for the r directions that the rows determine.
    """

    columns: torch.Tensor  # Q, (n, r), with ``Q'Q = n I``
    to_basis: torch.Tensor  # R, (r, p), with ``Phi = Q R``
    #: T, (p, r), with ``Phi T = Q``; the shortest in units of the columns where the rows leave a direction open
    to_columns: torch.Tensor

    @classmethod
    def of(cls, basis: torch.Tensor) -> OrthogonalBasis:
        """Return the columns of a basis of shape (n, p), by the Gram-Schmidt process, each of them twice.

        A column of ones comes first and does not change, so that the others are centred.
        """
        n, p = basis.shape
        sizes = basis.double().square().mean(0).sqrt()
        units = torch.where(sizes > 0, sizes, 1.0)
        columns = basis.new_zeros(n, 0, dtype=torch.float64)
        for one in (basis.double() / units).unbind(1):
            left = one
            for _ in range(2):
                left = left - columns @ (columns.T @ left / n)
            size = left.square().mean().sqrt()
            if size > math.sqrt(_DETERMINED):
                columns = torch.cat([columns, (left / size)[:, None]], 1)
        scaled = columns.T @ (basis.double() / units) / max(n, 1)
        inverse = torch.linalg.pinv(scaled, rtol=0.0) if p else scaled.T
        found = columns, scaled * units, inverse / units[:, None]
        return cls(*(one.to(basis) for one in found))

    def trend(self, found: Trend) -> Trend:
        """Return the trend in coefficients of the basis, for one in coefficients of the columns."""
        p, r = self.to_columns.shape
        root = torch.cat([self.to_columns @ found.root, found.root.new_zeros(p, p - r)], 1)
        return Trend(self.to_columns @ found.coefficients, root)


def estimate_trend(basis: torch.Tensor, targets: torch.Tensor, basis_solutions: torch.Tensor) -> Trend:
    """Return the coefficients that maximize the likelihood at fixed kernel and noise.

    ``beta = (Phi' H^-1 Phi)^-1 Phi' H^-1 Y`` (Rasmussen and Williams 2006, eq. 2.42 with a vague prior). If the rows do
    not determine some direction of the basis (for example, a constant column and a constant mean), the solution of
    smallest norm is used, with each basis function scaled to unit size. ``basis_solutions`` are ``H^-1 Phi``.
    """
    solved = basis_solutions.double()
    found = Trend.from_products(basis.double().T @ solved, solved.T @ targets.double())
    return Trend(found.coefficients.to(targets), found.root.to(targets))


def solved_trend(basis: torch.Tensor, targets: torch.Tensor, solution: Solution) -> Trend:
    """Return `estimate_trend` from the solution for the targets, the basis and further columns.

    From a truncated solve it is a ratio of unbiased estimates, which is biased. The trend then uses the unweighted
    iterates x with residuals r instead, in products a'x_b + r_b'x_a, whose error is quadratic in that of the iterates
    and so below the other errors of conjugate gradients.
    """
    sizes = [targets.shape[1], basis.shape[1]]
    if solution.truncated is None:
        return estimate_trend(basis, targets, solution.value[:, sizes[0] : sum(sizes)])
    plain = solution.truncated.plain
    assert plain.residual is not None
    of_targets, of_basis = plain.value[:, : sum(sizes)].double().split(sizes, 1)
    residual = plain.residual[:, sizes[0] : sum(sizes)].double()
    gram = basis.double().T @ of_basis + residual.T @ of_basis
    found = Trend.from_products(gram, basis.double().T @ of_targets + residual.T @ of_targets)
    return Trend(found.coefficients.to(targets), found.root.to(targets))


@np.errstate(all="ignore")  # as torch does, leave numbers that are not finite to the caller
def coefficient_root(gram: torch.Tensor) -> torch.Tensor:
    """Return R, shape (p, p), with ``R R' = (Phi' H^-1 Phi)^-1``: a root of the coefficients' covariance.

    Directions that the rows do not determine are left out, as in the coefficients. The choice of these directions does
    not depend on the units of the basis functions.
    """
    products = gram.cpu().numpy()
    sizes = np.sqrt(np.maximum(products.diagonal(), 0.0))
    units = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    # approximate solves leave the products slightly asymmetric
    values, vectors = np.linalg.eigh(units[:, None] * (0.5 * (products + products.T)) * units)
    # row-major, as a model file restores it, so that products with it round to the same bits
    root = units[:, None] * vectors / np.sqrt(np.where(values > _DETERMINED, values, np.inf))
    return torch.from_numpy(np.ascontiguousarray(root)).to(gram)


def needed_rows(basis: torch.Tensor) -> torch.Tensor:
    """Return the numbers of the rows without which the others determine fewer coefficients of the mean's basis (n, p).

    Their leverage in least squares is 1, whatever the kernel is. One of them is a row that alone has some input other
    than zero, where the mean is linear.
    """
    columns = basis.double()
    sizes = columns.norm(dim=0)
    left, values, _ = torch.linalg.svd(columns / torch.where(sizes > 0, sizes, 1.0), full_matrices=False)
    leverage = left[:, values > math.sqrt(_DETERMINED)].square().sum(1)
    return torch.nonzero(leverage > 1 - _ALONE)[:, 0]
