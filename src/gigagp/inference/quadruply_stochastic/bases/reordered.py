"""A basis whose first functions are chosen, for the dense columns of a chevron."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.kernels import Kernel

#: Functions in a block of a pass over all of them, and rows that decide which functions come first.
_WIDTH, _ROWS = 4096, 1000


@dataclass(frozen=True, eq=False)
class ReorderedBasis(Basis):
    """The functions of another basis, some of which have changed places with the first ones.

    When to use: for a chevron, whose dense columns belong to the first functions. Which functions these are makes a
    difference (Evans and Nair 2020, https://arxiv.org/abs/2006.03015); `most_informed` chooses them.

    Parameters
    ----------
    basis : Basis
    head : Tensor of shape (k,), int64
        Distinct functions, which become 0 .. k - 1.

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
        """The kernel of the basis below."""
        return self.basis.kernel

    @property
    def size(self) -> int:  # type: ignore[override]  # a property here, an attribute elsewhere
        """Number of functions, m."""
        return self.basis.size

    @property
    def has_diagonal_prior(self) -> bool:  # type: ignore[override]  # a property here, an attribute elsewhere
        """As in the basis below."""
        return self.basis.has_diagonal_prior

    @property
    def is_differentiable(self) -> bool:  # type: ignore[override]  # a property here, an attribute elsewhere
        """As in the basis below."""
        return self.basis.is_differentiable

    def _moved(self) -> tuple[Tensor, Tensor]:
        """Return the places whose functions have changed, sorted, and their functions: a few times k, never m."""
        k = len(self.head)
        first = torch.arange(k, device=self.head.device)
        leaving = first[~torch.isin(first, self.head)]
        vacated = self.head[self.head >= k]
        places, functions = torch.cat([first, vacated]), torch.cat([self.head, leaving])
        order = places.argsort()
        return places[order], functions[order]

    def original(self, index: Tensor) -> Tensor:
        """Return the indices of some functions in the basis below."""
        places, functions = (one.to(index.device) for one in self._moved())
        if not len(places):
            return index
        found = torch.searchsorted(places, index).clamp_max(len(places) - 1)
        return torch.where(places[found] == index, functions[found], index)

    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        return self.basis.columns(X, self.original(index))

    def prior_diagonal(self, index: Tensor) -> Tensor:
        return self.basis.prior_diagonal(self.original(index))

    def prior_block(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self.basis.prior_block(self.original(rows), self.original(columns))

    def with_kernel(self, kernel: Kernel) -> ReorderedBasis:
        return replace(self, basis=self.basis.with_kernel(kernel))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, header = self.basis.state()
        return {"head": self.head, **tensors}, {"below": self.basis.kind, **header}


@torch.no_grad()
def most_informed(basis: Basis, X: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the functions about which a thousand random rows say most, the largest ``phi' phi / s`` first."""
    rows = X[torch.randperm(len(X), generator=generator)[:_ROWS].to(X.device)]
    best, which = X.new_zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64, device=X.device)
    for index in basis.blocks(_WIDTH, X.device):
        told = basis.columns(rows, index).double().square().sum(0) / basis.prior_diagonal(index)
        both, places = torch.cat([best, told]), torch.cat([which, index])
        order = both.argsort(descending=True, stable=True)[:count]
        best, which = both[order], places[order]
    return which
