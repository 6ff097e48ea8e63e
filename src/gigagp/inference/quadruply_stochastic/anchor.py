"""Anchors: weights whose function is known at all rows, so that only the difference from it has to be sampled.

A step sees only a few of the functions, so its estimate of the fit has an error, whose variance is the squared norm of
the weights over the number of sampled functions. Let ``a`` be weights whose function ``Phi a`` has been computed at all
rows. Then ``Phi mu = Phi a + Phi (mu - a)``, and only the second part is sampled: the error is that of the difference.
This is stochastic variance reduction (Johnson and Zhang 2013,
https://papers.nips.cc/paper/4937-accelerating-stochastic-gradient-descent-using-predictive-variance-reduction) applied
to sampled functions. No estimate becomes biased. For likelihoods other than Gaussian the same error opens the gap of
the lower bound (Theorem 3 of Evans and Nair 2020), so an anchor nearly closes that gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.estimators.terms import Origin
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.kernels import Kernel
from gigagp.runtime.processes import fill_rows
from gigagp.settings.schema import part

#: A fit starts with an anchor that costs at most as much as this many steps. A dearer one is made only after the steps
#: that cost as much, so that a short fit does not pay for it.
_EARLY = 2000


@dataclass(frozen=True, eq=False)
class Anchor:
    """Weights, and their functions at the held rows; the basis is at the hyperparameters of that moment."""

    basis: Basis
    #: the mean, and the dense columns of the root (k = 0 where they are left out), shape (m, t + k)
    vectors: Tensor
    #: their functions at the held rows, shape (n, t + k)
    fitted: Tensor
    n_targets: int
    #: products of the vectors with the prior precision, where that is dense, shape (m, t + k)
    images: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def at(cls, basis: Basis, weights: Weights, X: Tensor, *, with_columns: bool = True) -> Anchor:
        """Return the anchor of some weights, by one pass over rows and functions, O(n m (t + k)), and over a dense S.

        Without the columns it is O(n m t). Where a step sees s of the k columns, an anchor of all would take k / s
        times as long as the steps that pay for it, and n k numbers.
        """
        vectors = weights.mean.clone()
        if with_columns:
            vectors = torch.cat([weights.mean, weights.root_rows(torch.arange(basis.size, device=X.device))], 1)
        used = vectors.any(1).nonzero()[:, 0]  # inducing points start with the weights of some rows alone

        def at_rows(rows: slice) -> Tensor:
            found = X.new_zeros(len(X[rows]), vectors.shape[1])
            for some, index, columns in basis.tiles(X[rows], used):
                found[some] += columns @ vectors[index]
            return found

        fitted = fill_rows(X.new_empty(len(X), vectors.shape[1]), at_rows, max(len(used), 1), "anchor", vectors)
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
    def has_columns(self) -> bool:
        """Whether it has dense columns."""
        return self.vectors.shape[1] > self.n_targets

    @property
    def fitted_mean(self) -> Tensor:
        """The function of the mean at the rows, shape (n, t)."""
        return self.fitted[:, : self.n_targets]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors from which `from_state` makes the anchor again."""
        hyperparameters = {f"kernel.{name}": value for name, value in self.basis.kernel.parameters().items()}
        images = {} if self.images is None else {"images": self.images}
        return {"vectors": self.vectors, "fitted": self.fitted, **images, **hyperparameters}

    @classmethod
    def from_state(cls, basis: Basis, state: dict[str, Tensor], n_targets: int) -> Anchor:
        """Return the anchor that `state` described, on the same basis."""
        there = basis.with_kernel(basis.kernel.replace(part(state, "kernel.")))
        return cls(there, state["vectors"], state["fitted"], n_targets, state.get("images"))

    @torch.no_grad()
    def origins(
        self, kernel: Kernel, rows: Tensor, X: Tensor, index: Tensor, features: Tensor
    ) -> tuple[Origin, Origin | None]:
        """Return the part of the mean, and of the columns if it has them, that a sample of rows and functions touches.

        ``kernel`` and ``features`` (r, w), the sampled functions at the sampled rows ``X``, are at the present
        hyperparameters.
        """
        own = None
        if not _same(kernel, self.basis.kernel):
            own = self.basis.columns(X, index)
        elif features.requires_grad:  # the anchor's functions do not move with the hyperparameters
            own = features.detach()
        vectors, fitted = self.vectors.index_select(0, index), self.fitted.index_select(0, rows)
        images = None if self.images is None else self.images.index_select(0, index)

        def origin(part: slice) -> Origin:
            found = Origin(vectors[:, part], fitted[:, part], own)
            return found if images is None else found._replace(images=images[:, part], squares=self._squares[part])

        of_mean = origin(slice(None, self.n_targets))
        return of_mean, origin(slice(self.n_targets, None)) if self.has_columns else None

    @cached_property
    def _squares(self) -> Tensor:
        """The vectors' ``v' S v``, shape (t + k,)."""
        assert self.images is not None
        return (self.vectors.double() * self.images.double()).sum(0).to(self.vectors)


def steps_between(basis: Basis, n_rows: int, row_batch: int, basis_batch: int) -> int:
    """Return the number of steps between two anchors: together they compute as many entries of Phi and S as an anchor.

    The cost of a step, its share of an anchor included, then does not depend on the number of rows or functions.
    ``basis_batch`` is the number of functions in each of the two samples of a step.
    """
    m, b = basis.size, basis_batch
    whole, step = n_rows * m, row_batch * min(2 * b, m)
    if not basis.has_diagonal_prior:
        whole, step = whole + m**2, step + b**2
    return math.ceil(whole / step)


def is_early(basis: Basis, steps: int) -> bool:
    """Whether a fit starts with an anchor: where the anchor costs few ``steps`` (`steps_between`).

    With a dense prior precision it always does. Few weights differ from zero at the start, so the anchor is cheap, and
    a good start has large weights, whose prior term cannot be estimated from samples.
    """
    return not basis.has_diagonal_prior or steps <= _EARLY


def residuals(targets: Tensor, anchor: Anchor | None, rows: Tensor) -> Tensor:
    """Return the targets of rows less the function of an anchor's mean there, shape (r, t)."""
    found = targets[rows]
    return found if anchor is None else found - anchor.fitted_mean[rows]


def _same(one: Kernel, other: Kernel) -> bool:
    """Whether two kernels of the same tree have the same hyperparameters."""
    mine, theirs = one.parameters(), other.parameters()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)
