"""A function that is known at all rows: what is left to be sampled is the difference from it.

A step sees a few of the functions, so what it knows of the fit is off by an error whose variance is the squared norm of
the weights over the number of sampled functions. With weights ``a`` whose function ``Phi a`` has been computed at all
rows, ``Phi mu = Phi a + Phi (mu - a)``, and only the second part is sampled: the error is that of the difference. This
is the idea of stochastic variance reduction (Johnson and Zhang 2013,
https://papers.nips.cc/paper/4937-accelerating-stochastic-gradient-descent-using-predictive-variance-reduction), for
sampled functions. Nothing becomes biased: for the same reason an anchor takes the gap out of the lower bound of other
likelihoods (Theorem 3 of Evans and Nair 2020), whose cause is this error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gigagp.bases import Basis
from gigagp.inference.quadruply_stochastic.estimators import Origin
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.kernels import Kernel

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Steps that a first anchor may cost as much as: it is there from the beginning then. Otherwise it comes when so many
#: have been taken, so that a short fit does not pay for a long one.
_EARLY = 2000


@dataclass(frozen=True, eq=False)
class Anchor:
    """Weights, and their functions at the rows that are held.

    Attributes
    ----------
    basis : Basis
        At the hyperparameters of then.
    vectors : Tensor of shape (m, t + k)
        The mean, and the dense columns of the root.
    fitted : Tensor of shape (n, t + k)
    n_targets : int
        t.
    """

    basis: Basis
    vectors: Tensor
    fitted: Tensor
    n_targets: int

    @classmethod
    @torch.no_grad()
    def at(cls, basis: Basis, weights: Weights, X: Tensor) -> Anchor:
        """Return an anchor at weights: one pass over rows and functions, O(n m (t + k))."""
        everything = torch.arange(basis.size, device=X.device)
        vectors = torch.cat([weights.mean, weights.root_rows(everything)], 1)
        fitted = X.new_zeros(len(X), vectors.shape[1])
        for rows, index, columns in basis.tiles(X):
            fitted[rows] += columns @ vectors[index]
        return cls(basis, vectors, fitted, weights.mean.shape[1])

    @property
    def mean(self) -> Tensor:
        """The mean of the weights, shape (m, t)."""
        return self.vectors[:, : self.n_targets]

    @property
    def columns(self) -> Tensor:
        """The dense columns of the root, shape (m, k)."""
        return self.vectors[:, self.n_targets :]

    @property
    def fitted_mean(self) -> Tensor:
        """The function of the mean at the rows, shape (n, t)."""
        return self.fitted[:, : self.n_targets]

    @property
    def fitted_columns(self) -> Tensor:
        """The functions of the columns at the rows, shape (n, k)."""
        return self.fitted[:, self.n_targets :]

    def state(self) -> dict[str, Tensor]:
        """Return what `from_state` makes it of again."""
        hyperparameters = {f"kernel.{name}": value for name, value in self.basis.kernel.parameters().items()}
        return {"vectors": self.vectors, "fitted": self.fitted, **hyperparameters}

    @classmethod
    def from_state(cls, basis: Basis, state: dict[str, Tensor], n_targets: int) -> Anchor:
        """Return the anchor that `state` described, on the same basis."""
        values = {name.removeprefix("kernel."): value for name, value in state.items() if name.startswith("kernel.")}
        there = basis.with_kernel(basis.kernel.replace(values))
        return cls(there, state["vectors"], state["fitted"], n_targets)

    @torch.no_grad()
    def origins(
        self, kernel: Kernel, rows: Tensor, X: Tensor, index: Tensor, features: Tensor
    ) -> tuple[Origin, Origin]:
        """Return what of the mean and of the columns a sample of rows and functions touches.

        ``X`` are the rows' inputs, ``features`` the functions there at the hyperparameters of now, ``kernel``.
        """
        own = None
        if not _same(kernel, self.basis.kernel):
            own = self.basis.columns(X, index)
        elif features.requires_grad:  # what is known does not move with the hyperparameters
            own = features.detach()
        vectors, fitted, t = self.vectors[index], self.fitted[rows], self.n_targets
        return Origin(vectors[:, :t], fitted[:, :t], own), Origin(vectors[:, t:], fitted[:, t:], own)


def steps_between(objective: QuadruplyStochasticObjective) -> int:
    """Return the steps that take as many features as an anchor: it is moved as often, and costs as much as they do.

    So the cost of a step, this share of an anchor included, knows nothing of rows and functions still.
    """
    touched = min(2 * objective.basis_batch, objective.basis.size)
    return math.ceil(objective.n_rows * objective.basis.size / (objective.row_batch * touched))


def is_early(steps: int) -> bool:
    """Whether an anchor costs so few steps that a fit starts with one."""
    return steps <= _EARLY


def _same(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels of the same tree have the same hyperparameters."""
    mine, theirs = one.parameters(), other.parameters()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)
