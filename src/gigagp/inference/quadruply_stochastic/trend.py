"""The uncertainty of the mean's coefficients, also where the weights are too many for a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.trend import coefficient_root
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.settings.schema import part


@dataclass(frozen=True)
class OpenTrend:
    """The root of the coefficients' covariance, and the prediction of the mean's basis if that were the targets."""

    #: shape (p, p)
    root: Tensor
    #: weights of the functions where ``rows`` is None, and otherwise factors of the covariances with these rows, (q, p)
    solutions: Tensor
    #: rows that represent all: leaving out the others can only raise the uncertainty
    rows: RowsCovariance | None = None

    @classmethod
    def known(cls, p: int) -> OpenTrend:
        """Return the trend of p coefficients without uncertainty."""
        empty = torch.zeros(p, p, dtype=torch.float64)
        return cls(empty, empty[:0])

    @classmethod
    @torch.no_grad()
    def at_rows(cls, rows: RowsCovariance, basis: Tensor) -> OpenTrend:
        """Return the trend's uncertainty given some rows; ``basis`` is the mean's there, shape (r, p)."""
        solutions = rows.update(basis).contiguous()  # a model file gives it back like this, and it must round the same
        return cls(coefficient_root(basis.double().T @ solutions), solutions, rows)

    @classmethod
    @torch.no_grad()
    def at_weights(cls, Phi: Tensor, curvature: Tensor, factor: Tensor, basis: Tensor) -> OpenTrend:
        """Return the trend's uncertainty given all rows of a model with features.

        It follows from ``H^-1 = W - W Phi P^-1 Phi' W`` (Woodbury) with the Cholesky factor of ``P = S + Phi' W Phi``.
        ``curvature`` is the diagonal of W, and ``basis`` the mean's, (n, p), float64.
        """
        weighed = curvature[:, None] * basis
        cross = Phi.T @ weighed
        solutions = torch.cholesky_solve(cross, factor)
        return cls(coefficient_root(basis.T @ weighed - cross.T @ solutions), solutions)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `from_state` takes."""
        found = {"root": self.root, "solutions": self.solutions}
        return found if self.rows is None else found | {f"rows.{k}": v for k, v in self.rows.state().items()}

    @classmethod
    def from_state(cls, kernel: Any, state: dict[str, Tensor]) -> OpenTrend:
        """Return the trend's uncertainty from the tensors of `state`."""
        rows = part(state, "rows.")
        return cls(state["root"], state["solutions"], RowsCovariance.from_state(kernel, rows) if rows else None)
