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
from gigagp.kernels import Kernel

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Steps that a first anchor may cost as much as: it is there from the beginning then. Otherwise it comes when so many
#: have been taken, so that a short fit does not pay for a long one.
_EARLY = 2000


@dataclass(frozen=True, eq=False)
class Anchor:
    """Weights, and their function at the rows that are held.

    Attributes
    ----------
    basis : Basis
        At the hyperparameters of then.
    mean : Tensor of shape (m, t)
    fitted : Tensor of shape (n, t)
    """

    basis: Basis
    mean: Tensor
    fitted: Tensor

    @classmethod
    @torch.no_grad()
    def at(cls, basis: Basis, mean: Tensor, X: Tensor) -> Anchor:
        """Return an anchor at weights: one pass over rows and functions, O(n m)."""
        fitted = X.new_zeros(len(X), mean.shape[1])
        for rows, index, columns in basis.tiles(X):
            fitted[rows] += columns @ mean[index]
        return cls(basis, mean.clone(), fitted)

    def state(self) -> dict[str, Tensor]:
        """Return what `from_state` makes it of again."""
        hyperparameters = {f"kernel.{name}": value for name, value in self.basis.kernel.parameters().items()}
        return {"mean": self.mean, "fitted": self.fitted, **hyperparameters}

    @classmethod
    def from_state(cls, basis: Basis, state: dict[str, Tensor]) -> Anchor:
        """Return the anchor that `state` described, on the same basis."""
        values = {name.removeprefix("kernel."): value for name, value in state.items() if name.startswith("kernel.")}
        return cls(basis.with_kernel(basis.kernel.replace(values)), state["mean"], state["fitted"])

    def origin(self, kernel: Kernel, rows: Tensor, X: Tensor, index: Tensor, features: Tensor) -> Origin:
        """Return what of it a sample of rows and functions touches.

        ``X`` are the rows' inputs, ``features`` the functions there at the hyperparameters of now, ``kernel``.
        """
        with torch.no_grad():
            if not _same(kernel, self.basis.kernel):
                features = self.basis.columns(X, index)
            return Origin(features.detach(), self.mean[index], self.fitted[rows])


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
