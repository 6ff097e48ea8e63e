"""The variational distribution of the weights: a mean, and a root that is diagonal except for its first columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.bases import Basis

MEAN, LOG_SCALE, COLUMNS, LOG_PRECISION = "mean", "log_scale", "columns", "log_precision"


def touched_root(log_scale: Tensor, columns: Tensor | None, index: Tensor, seen: slice | None = None) -> Tensor:
    """Return the rows of dense columns of the root that a sample touches, diagonal included, shape (w, s).

    Of ``columns`` (w, s) only the entries below the diagonal count. ``index`` (w,) has the touched functions, sorted,
    and those of the columns among them. ``seen`` says which columns these are; None: all, those of the first functions.
    """
    if columns is None or not columns.shape[1]:
        return log_scale.new_zeros(len(log_scale), 0)
    if seen is None:
        k = columns.shape[1]
        top = columns[:k].tril(-1) + torch.diag(log_scale[:k].exp())
        return torch.cat([top, columns[k:]])
    own = torch.arange(columns.shape[1], device=index.device)
    places = torch.searchsorted(index, own + seen.start)
    below = columns * (index[:, None] > own + seen.start)
    return below.index_put((places, own), log_scale[places].exp())


@dataclass
class Weights:
    """``w ~ N(mean, C C')``, with one C for all targets, and the prior precisions where they are learned.

    C is lower triangular. Its first k columns are dense, and the others have only their diagonal entry: mean-field for
    k = 0, the chevron of Challis and Barber for 0 < k < m, a full Cholesky factor for k = m. Ascent moves the arrays in
    place.
    """

    #: shape (m, t)
    mean: Tensor
    #: logarithms of C's diagonal, shape (m,)
    log_scale: Tensor
    #: C's first columns below the diagonal, shape (m, k)
    columns: Tensor | None = None
    #: logarithms of the prior precisions of a relevance vector machine, (m,); None: the basis gives the precisions
    log_precision: Tensor | None = None

    @property
    def n_basis(self) -> int:
        """Number of functions, m."""
        return len(self.mean)

    @property
    def n_columns(self) -> int:
        """Number of dense columns, k."""
        return 0 if self.columns is None else self.columns.shape[1]

    def arrays(self) -> dict[str, Tensor]:
        """Return the learned arrays by name."""
        named = {MEAN: self.mean, LOG_SCALE: self.log_scale, COLUMNS: self.columns, LOG_PRECISION: self.log_precision}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor]) -> Weights:
        """Return the weights that `arrays` described."""
        return cls(arrays[MEAN], arrays[LOG_SCALE], arrays.get(COLUMNS), arrays.get(LOG_PRECISION))

    def root_rows(self, index: Tensor) -> Tensor:
        """Return rows of the dense columns of C, shape (b, k), diagonal included."""
        if self.columns is None:
            return self.mean.new_zeros(len(index), 0)
        k = self.n_columns
        below = index[:, None] > torch.arange(k, device=index.device)
        found = self.columns[index] * below
        head = (index < k).nonzero()[:, 0]
        found[head, index[head]] = self.log_scale[index[head]].exp()
        return found

    def diagonal_scales(self, index: Tensor) -> Tensor:
        """Return the entries of the diagonal columns, shape (b,); 0 for functions with a dense column."""
        return torch.where(index < self.n_columns, 0.0, self.log_scale[index].exp())

    def prior_diagonal(self, basis: Basis, index: Tensor) -> Tensor:
        """Return the diagonal of the prior precision, learned or the basis', shape (b,), float64."""
        if self.log_precision is not None:
            return self.log_precision[index].double().exp()
        return basis.prior_diagonal(index)

    @torch.no_grad()
    def settle_precisions(self, index: Tensor) -> None:
        """Put the learned precisions of some functions where the bound is highest, if there are any.

        That is ``1 / E w^2`` (Tipping 2001, eq. 16 as an EM step). The other terms of the bound do not depend on the
        precisions, so this is exact and needs no learning rate. It also shrinks weights that the data do not need much
        faster than ascent would.
        """
        if self.log_precision is None:
            return
        squares = self.mean[index].square().mean(1) + self.diagonal_scales(index).square()
        squares += self.root_rows(index).square().sum(1)
        self.log_precision[index] = -squares.clamp_min(torch.finfo(squares.dtype).tiny).log()

    def root(self) -> Tensor:
        """Return all of C, shape (m, m), float64; for small m."""
        index = torch.arange(self.n_basis, device=self.mean.device)
        root = torch.diag(self.diagonal_scales(index)).double()
        root[:, : self.n_columns] += self.root_rows(index)
        return root

    def copy(self) -> Weights:
        """Return a copy with arrays of its own."""
        return Weights.from_arrays({name: value.clone() for name, value in self.arrays().items()})

    def take_over(self, other: Weights) -> None:
        """Copy the arrays of other weights, of the same sizes, in place."""
        theirs = other.arrays()
        for name, value in self.arrays().items():
            value.copy_(theirs[name])
