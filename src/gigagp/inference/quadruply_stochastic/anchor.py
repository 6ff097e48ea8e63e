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
from functools import cached_property
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
    images : Tensor of shape (m, t + k) or None
        Products with the prior precision, where it is dense.
    """

    basis: Basis
    vectors: Tensor
    fitted: Tensor
    n_targets: int
    images: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def at(cls, basis: Basis, weights: Weights, X: Tensor) -> Anchor:
        """Return an anchor at weights: a pass over rows and functions, O(n m (t + k)), and over S if it is dense."""
        everything = torch.arange(basis.size, device=X.device)
        vectors = torch.cat([weights.mean, weights.root_rows(everything)], 1)
        used = vectors.any(1).nonzero()[:, 0]  # at the start of inducing points, those of some rows alone
        fitted = X.new_zeros(len(X), vectors.shape[1])
        for rows, index, columns in basis.tiles(X, used):
            fitted[rows] += columns @ vectors[index]
        images = None
        if not basis.has_diagonal_prior:
            images = torch.zeros_like(vectors)
            for rows, index, block in basis.prior_tiles(X.device, used):
                images[rows] += block.to(X) @ vectors[index]
        return cls(basis, vectors, fitted, weights.mean.shape[1], images)

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
        images = {} if self.images is None else {"images": self.images}
        return {"vectors": self.vectors, "fitted": self.fitted, **images, **hyperparameters}

    @classmethod
    def from_state(cls, basis: Basis, state: dict[str, Tensor], n_targets: int) -> Anchor:
        """Return the anchor that `state` described, on the same basis."""
        values = {name.removeprefix("kernel."): value for name, value in state.items() if name.startswith("kernel.")}
        there = basis.with_kernel(basis.kernel.replace(values))
        return cls(there, state["vectors"], state["fitted"], n_targets, state.get("images"))

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
        vectors, fitted = self.vectors[index], self.fitted[rows]
        images = None if self.images is None else self.images[index]

        def origin(part: slice) -> Origin:
            found = Origin(vectors[:, part], fitted[:, part], own)
            return found if images is None else found._replace(images=images[:, part], squares=self._squares[part])

        return origin(slice(None, self.n_targets)), origin(slice(self.n_targets, None))

    @cached_property
    def _squares(self) -> Tensor:
        """The vectors' ``v' S v``, shape (t + k,)."""
        assert self.images is not None
        return (self.vectors.double() * self.images.double()).sum(0).to(self.vectors)


def steps_between(objective: QuadruplyStochasticObjective) -> int:
    """Return the steps that take as many entries of Phi and S as an anchor: after so many it is moved.

    So it costs what they do, and the cost of a step, this share included, knows nothing of rows and functions still.
    """
    m, b = objective.basis.size, objective.basis_batch
    whole, step = objective.n_rows * m, objective.row_batch * min(2 * b, m)
    if not objective.basis.has_diagonal_prior:
        whole, step = whole + m**2, step + b**2
    return math.ceil(whole / step)


def is_early(objective: QuadruplyStochasticObjective) -> bool:
    """Whether a fit starts with an anchor: it costs few steps.

    With a dense prior precision it is there in any case. Few weights are not zero at that start, so it costs little,
    and a start that is worth something has large weights, whose prior term a sample knows nothing of.
    """
    return not objective.basis.has_diagonal_prior or steps_between(objective) <= _EARLY


def _same(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels of the same tree have the same hyperparameters."""
    mine, theirs = one.parameters(), other.parameters()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)
