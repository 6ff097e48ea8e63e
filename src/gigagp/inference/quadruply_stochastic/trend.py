"""The uncertainty of the mean's coefficients, also where the weights are too many for a factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.trend import coefficient_root
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance


@dataclass(frozen=True)
class OpenTrend:
    """The root of the coefficients' covariance, and the prediction of the mean's basis if that were the targets.

    Attributes
    ----------
    root : Tensor of shape (p, p)
    solutions : Tensor of shape (q, p)
        Weights of the functions where ``rows`` is None, and otherwise factors of the covariances with these rows.
    rows : RowsCovariance or None
        Rows that represent all. Leaving out the others can only raise the uncertainty.
    """

    root: Tensor
    solutions: Tensor
    rows: RowsCovariance | None = None

    @classmethod
    def known(cls, p: int) -> OpenTrend:
        """Return the trend of p coefficients without uncertainty."""
        empty = torch.zeros(p, p, dtype=torch.float64)
        return cls(empty, empty[:0])

    @classmethod
    @torch.no_grad()
    def at_rows(cls, rows: RowsCovariance, basis: Tensor) -> OpenTrend:
        """Return what some rows leave open; ``basis`` is the mean's there, shape (r, p)."""
        solutions = rows.update(basis).contiguous()  # a model file gives it back like this, and it must round the same
        return cls(coefficient_root(basis.double().T @ solutions), solutions, rows)

    @classmethod
    @torch.no_grad()
    def at_weights(cls, Phi: Tensor, curvature: Tensor, factor: Tensor, basis: Tensor) -> OpenTrend:
        """Return what all rows of a model with features leave open: ``H^-1 = W - W Phi P^-1 Phi' W`` (Woodbury).

        Parameters
        ----------
        Phi : Tensor of shape (n, m)
        curvature : Tensor of shape (n,)
            Diagonal of W.
        factor : Tensor of shape (m, m)
            Cholesky factor of ``P = S + Phi' W Phi``.
        basis : Tensor of shape (n, p)
            The mean's, float64.
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
        """Return what `state` described."""
        rows = {name.removeprefix("rows."): value for name, value in state.items() if name.startswith("rows.")}
        return cls(state["root"], state["solutions"], RowsCovariance.from_state(kernel, rows) if rows else None)
