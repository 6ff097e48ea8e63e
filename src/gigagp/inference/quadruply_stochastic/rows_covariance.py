"""The covariance of the exact process given some of the rows, and the uncertainty of the mean's coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.input_gradients import recomputed
from gigagp.inference.contract.trend import coefficient_root
from gigagp.inference.quadruply_stochastic.latent import bent_factor, bent_solve
from gigagp.kernels import Kernel
from gigagp.products.dense import triangular_inverse
from gigagp.settings.schema import part

#: Entries of a block of covariances.
_ENTRIES = 2**22


class RowsCovariance:
    """``k(x, z) - k(x, X) (K + W^-1)^-1 k(X, z)``: the prior covariance conditioned on some rows.

    Further rows can only lower it, so it is nowhere smaller than the covariance given all rows: rows that are left out
    count as uncertainty. A factor of the weights' covariance has no such property. With independent weights of Fourier
    functions the variance is the same everywhere, between the rows and far from all of them.

    ``curvature`` (r,) is the diagonal of W: one over the noise variances, or the curvatures of a log-likelihood.
    """

    def __init__(self, kernel: Kernel, X: Tensor, curvature: Tensor) -> None:
        self.kernel, self.X, self.curvature = kernel, X, curvature

    @cached_property
    def _root(self) -> Tensor:
        return self.curvature.double().sqrt()

    @cached_property
    def _factor(self) -> Tensor:
        """Cholesky factor of ``I + W^1/2 K W^1/2``."""
        X = self.X.double()
        return bent_factor(self.kernel.block(X, X), self._root)

    def _whitened(self, X: Tensor) -> Tensor:
        """Return a matrix V, shape (r, n): the rows lower the prior covariance by ``V' V``."""
        return torch.linalg.solve_triangular(
            self._factor, self._root[:, None] * self.kernel.block(self.X.double(), X.double()), upper=False
        )

    def _parts(self, X: Tensor) -> tuple[Tensor, ...]:
        return X.split(max(1, _ENTRIES // len(self.X)))

    def whitening(self) -> Tensor:
        """Return the matrix W, shape (r, r), whose ``k(x, X) W`` has the squares that lower the prior variance."""
        return self._root[:, None] * triangular_inverse(self._factor).T

    def variance(self, X: Tensor) -> Tensor:
        """Return the variances at points, shape (n,), float64."""
        taken = torch.cat(
            [recomputed(lambda some: self._whitened(some).square().sum(0), part) for part in self._parts(X)]
        )
        return (self.kernel.diagonal(X.double()) - taken).clamp_min(0.0)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the covariance of points, shape (n, n), float64."""

        def left(X: Tensor) -> Tensor:
            taken, wide = self._whitened(X), X.double()
            return self.kernel.block(wide, wide) - taken.T @ taken

        return recomputed(left, X)

    @cached_property
    @torch.no_grad()
    def divergence(self) -> float:
        """The divergence from the prior of a process with this covariance and the prior's mean, in nats."""
        determinant = 2 * float(self._factor.diagonal().log().sum())
        return 0.5 * (determinant - len(self.X) + float(triangular_inverse(self._factor).square().sum()))

    def taken(self, X: Tensor, update: Tensor) -> Tensor:
        """Return ``k(x, X) v`` at points for an `update` v, shape (n, q), float64."""

        def part(X: Tensor) -> Tensor:
            return self.kernel.block(X.double(), self.X.double()) @ update

        return torch.cat([recomputed(part, some) for some in self._parts(X)])

    @torch.no_grad()
    def update(self, values: Tensor) -> Tensor:
        """Return ``v = (K + W^-1)^-1 values``, shape (r, q).

        If ``values`` are samples f of the prior at the rows, plus noise of variance ``W^-1``, then ``f(x) - k(x, X) v``
        has this covariance (Matheron's rule; Wilson et al. 2020, https://arxiv.org/abs/2002.09309).
        """
        return bent_solve(self._factor, self._root, values.double())

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `from_state` takes."""
        return {"X": self.X, "curvature": self.curvature}

    @classmethod
    def from_state(cls, kernel: Kernel, state: dict[str, Any]) -> RowsCovariance:
        """Return the covariance that `state` described."""
        return cls(kernel, state["X"], state["curvature"])


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
