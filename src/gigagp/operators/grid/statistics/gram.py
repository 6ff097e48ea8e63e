"""``W'W`` as a stencil: a symmetric matrix that couples only nodes a few steps apart."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.products.extension import native as _native

if TYPE_CHECKING:
    from gigagp.operators.grid.statistics.grid_sum import GridSum

#: Number of stored entries below which a second thread costs more than it saves.
_ENTRIES_A_THREAD = 2**18


#: Number of nodes whose entries for one offset are stored together. The same number is in products/native/grid.h.
GROUP = 16


class PackedGram(NamedTuple):
    """The entries of a `StencilGram` in the order in which its products read them, without groups of zeros.

    ``entries`` has a row of `GROUP` nodes for each nonzero group and offset. ``starts`` has the first row of each group
    of nodes, and ``which`` the number of each row's offset.
    """

    entries: np.ndarray
    starts: np.ndarray
    which: np.ndarray


def half_offsets(grid: RegularGrid) -> list[tuple[int, ...]]:
    """Return the offsets between nodes that share rows: zero, and the stored one of each pair ``+o, -o``.

    Those whose first nonzero step is positive are stored, in lexicographic order: 4, 25, 172 or 1,201 offsets for cubic
    interpolation in one to four dimensions.
    """
    steps = range(-grid.scheme.reach, grid.scheme.reach + 1)
    zero = (0,) * grid.n_inputs
    return [offset for offset in itertools.product(steps, repeat=grid.n_inputs) if offset >= zero]


class Gram(ABC):
    """The matrix ``W'W`` of the interpolation weights of rows, m by m, symmetric: what products need of the rows."""

    grid: RegularGrid | GridSum

    @property
    def n(self) -> int:
        """Number of nodes m."""
        return self.grid.size

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        return (self.n, self.n)

    @abstractmethod
    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the product with ``vectors`` of shape (m, s) or (m,), float64."""

    @abstractmethod
    def row_sums(self) -> Tensor:
        """Return ``W'1``, shape (m,), which is ``W'W 1`` on one grid, because rows of weights sum to one."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """Return the diagonal, shape (m,)."""

    @property
    @abstractmethod
    def trace(self) -> float:
        """Sum of the diagonal."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the whole matrix, shape (m, m); for small grids."""


class StencilGram(Gram):
    """The matrix ``W'W`` of interpolation weights, m by m, symmetric, as `gigagp.grids.GridStatistics.gram` has it.

    Only nodes at most three steps apart in every dimension (cubic; one step for linear) share rows. So the matrix is a
    fixed stencil of offsets, with one number for each offset and node; by symmetry half of them are stored (Yadav et
    al. 2021, Claim 2).

    Parameters
    ----------
    grid : RegularGrid
    values : Tensor of shape (h, m)
        float64. ``values[k, i]`` is the entry of nodes i and ``i + half_offsets(grid)[k] @ grid.strides``; zero where
        the latter is outside of the grid.

    Raises
    ------
    InvalidInputError
        If the shape or dtype does not fit.
    """

    grid: RegularGrid

    def __init__(self, grid: RegularGrid, values: Tensor) -> None:
        offsets = half_offsets(grid)
        if values.shape != (len(offsets), grid.size) or values.dtype != torch.float64:
            raise InvalidInputError(
                f"values of StencilGram must be float64 of shape ({len(offsets)}, {grid.size}); got {values.dtype} of "
                f"shape {tuple(values.shape)}."
            )
        self.grid = grid
        self.values = values.contiguous()
        strides = grid.strides
        #: For each row of `values`, the difference of the two nodes' numbers; never negative.
        self.steps = [sum(o * s for o, s in zip(offset, strides, strict=True)) for offset in offsets]
        self._steps = np.array(self.steps, dtype=np.int64)

    @torch.no_grad()
    def __matmul__(self, vectors: Tensor) -> Tensor:
        # The compiled loop has torch's number of threads; the result is the same for any number.
        V = vectors.unsqueeze(1) if vectors.ndim == 1 else vectors
        if V.ndim != 2 or len(V) != self.n or V.dtype != torch.float64:
            raise InvalidInputError(
                f"StencilGram multiplies float64 vectors of shape ({self.n}, s); got {vectors.dtype} of shape "
                f"{tuple(vectors.shape)}."
            )
        if _native is None or V.device.type != "cpu":
            return self._torch_product(V).reshape(vectors.shape)
        by_vector = V.T.contiguous()
        out = torch.empty_like(by_vector)
        threads = max(1, min(torch.get_num_threads(), self.packed.entries.size // _ENTRIES_A_THREAD))
        _native.grid_product("", *self.packed, self._steps, by_vector.numpy(), out.numpy(), threads)
        return out.T.contiguous().reshape(vectors.shape)

    @cached_property
    def packed(self) -> PackedGram:
        """The entries in the order in which products read them; made by the first product and kept."""
        groups = -(-self.n // GROUP)
        padded = torch.nn.functional.pad(self.values, (0, groups * GROUP - self.n)).reshape(-1, groups, GROUP)
        # Neighbouring offsets are kept apart, because a load waits for a preceding store that it overlaps.
        offsets = half_offsets(self.grid)
        order = torch.tensor(sorted(range(len(offsets)), key=lambda k: offsets[k][::-1]))
        used = (padded != 0).any(2)[order].T  # (groups, h); nodes without rows nearby have no entries
        group, place = used.nonzero(as_tuple=True)
        which = order[place]
        starts = torch.zeros(groups + 1, dtype=torch.int64)
        torch.cumsum(used.sum(1), 0, out=starts[1:])
        return PackedGram(padded[which, group].numpy(), starts.numpy(), which.int().numpy())

    def _torch_product(self, V: Tensor) -> Tensor:
        out = self.values[0].unsqueeze(1) * V
        for row, step in zip(self.values[1:], self.steps[1:], strict=True):
            entries = row[: self.n - step].unsqueeze(1)
            out[: self.n - step].addcmul_(entries, V[step:])
            out[step:].addcmul_(entries, V[: self.n - step])
        return out

    def diagonal(self) -> Tensor:
        return self.values[0]

    @property
    def trace(self) -> float:
        return float(self.values[0].sum())

    def row_sums(self) -> Tensor:
        return self @ torch.ones(self.n, dtype=torch.float64)

    @cached_property
    def offset_sums(self) -> Tensor:
        """Sum of the entries at each of `half_offsets`."""
        return self.values.sum(1)

    def dense(self) -> Tensor:
        out = torch.zeros(self.n, self.n, dtype=torch.float64)
        for row, step in zip(self.values, self.steps, strict=True):
            # Added, not set: on grids only a few nodes wide two offsets can have the same step.
            out.diagonal(step).add_(row[: self.n - step])
            if step:
                out.diagonal(-step).add_(row[: self.n - step])
        return out

    def with_values(self, values: Tensor, grid: RegularGrid | None = None) -> StencilGram:
        """Return the matrix with other values, or on a grid that was moved."""
        return StencilGram(grid or self.grid, values)

    def __add__(self, other: StencilGram) -> StencilGram:
        return StencilGram(self.grid, self.values + self._same_grid(other).values)

    def __sub__(self, other: StencilGram) -> StencilGram:
        return StencilGram(self.grid, self.values - self._same_grid(other).values)

    def _same_grid(self, other: StencilGram) -> StencilGram:
        if other.grid != self.grid:
            raise InvalidInputError(f"Only matrices on the same grid can be added; got {self.grid} and {other.grid}.")
        return other

    @property
    def nbytes(self) -> int:
        """Bytes that are stored."""
        return self.values.numel() * self.values.element_size()

    @property
    def nnz(self) -> int:
        """Number of nonzero entries of the whole matrix."""
        stored = torch.count_nonzero(self.values, dim=1)
        return int(2 * stored.sum() - stored[0])

    @property
    def state(self) -> dict[str, Tensor]:
        """The matrix as tensors, for `from_state`: entries of the nodes that have any."""
        used = (self.values != 0).any(0).nonzero().squeeze(1)
        return {"nodes": used, "values": self.values[:, used].contiguous()}

    @classmethod
    def from_state(cls, grid: RegularGrid, state: Mapping[str, Any]) -> StencilGram:
        """Return the matrix that `state` described."""
        values = torch.zeros(len(half_offsets(grid)), grid.size, dtype=torch.float64)
        values[:, state["nodes"]] = state["values"]
        return cls(grid, values)
