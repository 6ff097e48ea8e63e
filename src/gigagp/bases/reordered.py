"""A basis whose first functions are chosen: what the dense columns of a chevron are for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigagp.bases.base import Basis
from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel

#: Functions that are looked at together, and rows that say which are chosen.
_WIDTH, _ROWS = 4096, 1000


@dataclass(frozen=True, eq=False)
class ReorderedBasis(Basis):
    """The functions of another basis with some of them put first, and those that were there in their places.

    When to use: a chevron's dense columns belong to the first functions, and which these are makes a difference (Evans
    and Nair 2020, https://arxiv.org/abs/2006.03015). `most_informed` chooses.

    Parameters
    ----------
    basis : Basis
    head : Tensor of shape (k,), int64
        Different functions, which become 0 .. k - 1.

    Raises
    ------
    InvalidInputError
        If an index is repeated or out of range.
    """

    basis: Basis
    head: Tensor

    kind = "reordered"

    def __post_init__(self) -> None:
        head = self.head
        if len(head) and (len(head.unique()) < len(head) or int(head.min()) < 0 or int(head.max()) >= self.basis.size):
            msg = f"head of ReorderedBasis must be different indices from 0 to {self.basis.size - 1}; got {head!r}."
            raise InvalidInputError(msg)

    @property
    def kernel(self) -> Kernel:  # type: ignore[override]  # a property here, an attribute elsewhere
        """The kernel of the basis."""
        return self.basis.kernel

    @property
    def size(self) -> int:  # type: ignore[override]  # a property here, an attribute elsewhere
        """Number of functions, m."""
        return self.basis.size

    @property
    def has_diagonal_prior(self) -> bool:  # type: ignore[override]  # a property here, an attribute elsewhere
        """As of the basis."""
        return self.basis.has_diagonal_prior

    @property
    def is_differentiable(self) -> bool:  # type: ignore[override]  # a property here, an attribute elsewhere
        """As of the basis."""
        return self.basis.is_differentiable

    def _moved(self) -> tuple[Tensor, Tensor]:
        """Return the places that hold other functions now, sorted, and which; a few times k, and not m."""
        k = len(self.head)
        first = torch.arange(k, device=self.head.device)
        leaving = first[~torch.isin(first, self.head)]
        vacated = self.head[self.head >= k]
        places, functions = torch.cat([first, vacated]), torch.cat([self.head, leaving])
        order = places.argsort()
        return places[order], functions[order]

    def original(self, index: Tensor) -> Tensor:
        """Return the indices that some functions have in the basis below."""
        places, functions = (one.to(index.device) for one in self._moved())
        if not len(places):
            return index
        found = torch.searchsorted(places, index).clamp_max(len(places) - 1)
        return torch.where(places[found] == index, functions[found], index)

    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        """Return functions at rows; see `Basis.columns`."""
        return self.basis.columns(X, self.original(index))

    def prior_diagonal(self, index: Tensor) -> Tensor:
        """Return the diagonal of S at an index set."""
        return self.basis.prior_diagonal(self.original(index))

    def prior_block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return a block of S."""
        return self.basis.prior_block(self.original(rows), self.original(columns))

    def with_kernel(self, kernel: Kernel) -> ReorderedBasis:
        """Return the same functions at other hyperparameters."""
        return replace(self, basis=self.basis.with_kernel(kernel))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state of the basis below, and what comes first."""
        tensors, header = self.basis.state()
        return {"head": self.head, **tensors}, {"below": self.basis.kind, **header}


@torch.no_grad()
def most_informed(basis: Basis, X: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the functions of which a thousand random rows say most, ``phi' phi / s``, the foremost first."""
    rows = X[torch.randperm(len(X), generator=generator)[:_ROWS].to(X.device)]
    best, which = X.new_zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64, device=X.device)
    for index in basis.blocks(_WIDTH, X.device):
        said = basis.columns(rows, index).double().square().sum(0) / basis.prior_diagonal(index)
        both, places = torch.cat([best, said]), torch.cat([which, index])
        order = both.argsort(descending=True, stable=True)[:count]
        best, which = both[order], places[order]
    return which
