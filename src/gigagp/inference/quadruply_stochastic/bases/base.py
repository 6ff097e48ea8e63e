"""The contract of a basis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gigagp.kernels import Kernel

#: Most functions of a tile, and most entries of one.
_TILE_WIDTH, _TILE_ENTRIES = 4096, 2**22


class Basis(ABC):
    """m functions ``phi_i`` and the prior ``w ~ N(0, S^-1)`` of their weights: ``f(x) = sum_i w_i phi_i(x)``.

    The covariance of f is ``phi(x)' S^-1 phi(z)``. Columns are computed by index, each without the others, so m may be
    far larger than what fits into memory.

    Attributes
    ----------
    kernel : Kernel
        Bound. Its hyperparameters may require gradients: `columns` is differentiable in them.
    size : int
        Number of functions, m.
    """

    kernel: Kernel
    size: int
    #: whether the prior precision S is diagonal; otherwise it is dense, and `prior_block` returns parts of it
    has_diagonal_prior: bool = True
    #: whether `columns` has accurate derivatives by the kernel's hyperparameters, so that these can be learned
    is_differentiable: bool = True
    #: name of the class in model files
    kind: str

    @abstractmethod
    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        """Return the functions of an index set at the rows of ``X``.

        Parameters
        ----------
        X : Tensor of shape (n, d)
        index : Tensor of shape (b,), int64
            From 0 to m - 1, in any order, repeats allowed.

        Returns
        -------
        Tensor of shape (n, b)
            In the dtype and on the device of ``X``.
        """

    @abstractmethod
    def with_kernel(self, kernel: Kernel) -> Basis:
        """Return the same functions at other hyperparameters."""

    def prior_diagonal(self, index: Tensor) -> Tensor:
        """Return the diagonal of S at an index set, shape (b,), float64; here: ones."""
        return torch.ones(len(index), dtype=torch.float64, device=index.device)

    def prior_block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return a block of S, shape (len(rows), len(columns)), float64."""
        same = (rows[:, None] == columns[None, :]).double()
        return same * self.prior_diagonal(columns)

    def blocks(self, width: int, device: torch.device | str = "cpu") -> Iterator[Tensor]:
        """Iterate over all indices, ``width`` at a time."""
        for first in range(0, self.size, width):
            yield torch.arange(first, min(first + width, self.size), device=device)

    def tiles(self, X: Tensor, functions: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Iterate over blocks of functions (None: all) at all rows: indices of rows and functions, and the entries."""
        rows = torch.arange(len(X), device=X.device)
        for index in self._some(functions, _TILE_WIDTH, X.device):
            for some in rows.split(max(1, _TILE_ENTRIES // len(index))):
                yield some, index, self.columns(X[some], index)

    def prior_tiles(
        self, device: torch.device | str = "cpu", functions: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Iterate over blocks of some columns (None: all) of S: indices of rows and columns, and the entries."""
        for columns in self._some(functions, _TILE_WIDTH, device):
            for rows in self.blocks(max(1, _TILE_ENTRIES // len(columns)), device):
                yield rows, columns, self.prior_block(rows, columns)

    def _some(self, functions: Tensor | None, width: int, device: torch.device | str) -> Iterator[Tensor]:
        if functions is None:
            return self.blocks(width, device)
        return (index for index in functions.split(width) if len(index))

    @abstractmethod
    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and plain data from which ``from_state`` of the class, given a kernel, makes the basis."""
