"""Block-sparse actions: each action combines the rows of its own block, and every row belongs to one block."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions.base import (
    LearnableActions,
    check_rows,
    row_blocks,
    smooth_columns_product,
)
from gigagp.kernels import Kernel
from gigagp.operators import KernelMatrix
from gigagp.products import LowRankWeights, cross_product, select

#: Blocks are multiplied in groups of about this many rows, so that a call of an engine has enough work. A group is a
#: dense matrix with one column for each of its blocks, at most `_GROUP_BLOCKS`.
_GROUP_ROWS, _GROUP_BLOCKS = 1024, 16


def balanced_bounds(n: int, count: int) -> tuple[int, ...]:
    """Return the ``count + 1`` bounds of blocks whose sizes differ by at most one, the larger blocks first."""
    small, larger = divmod(n, count)
    return tuple(j * small + min(j, larger) for j in range(count + 1))


class BlockActions(LearnableActions):
    """Action j is a vector on rows ``bounds[j]`` to ``bounds[j + 1]`` and zero elsewhere (Wenger et al. 2024, eq. 14).

    ``S`` has one nonzero entry per row, so ``K @ S`` computes every kernel entry once, in O(n i) memory, and its
    columns are always linearly independent. Blocks consist of consecutive rows; order the rows beforehand.

    Parameters
    ----------
    values : Tensor of shape (n,)
        The nonzero entries, row by row.
    bounds : tuple of int
        0, followed by the ends of all blocks, of which the last is n.

    Raises
    ------
    InvalidInputError
        If the blocks do not cover all rows, or all entries of a block are zero.
    """

    def __init__(self, values: Tensor, bounds: tuple[int, ...]) -> None:
        covers = values.ndim == 1 and len(bounds) > 1 and bounds[0] == 0 and bounds[-1] == values.shape[0]
        if not covers or any(end <= start for start, end in pairwise(bounds)):
            raise InvalidInputError(
                f"bounds of BlockActions must rise from 0 to the number of rows, {tuple(values.shape)}; got {bounds!r}."
            )
        self.values, self.bounds = values.to(torch.float64), bounds
        self.n, self.count = values.shape[0], len(bounds) - 1
        sizes = torch.tensor(bounds).diff()
        self.block_of = torch.repeat_interleave(torch.arange(self.count), sizes).to(values.device)
        squares = self.gram(torch.ones_like(self.values)).diagonal()
        bad = (~((squares > 0) & torch.isfinite(squares))).nonzero()[:, 0].tolist()
        if bad:
            msg = f"values of BlockActions must be finite and not all zero in a block; those of block {bad[0]} are not."
            raise InvalidInputError(msg)

    def describe(self) -> str:
        return "block-sparse actions"

    @cached_property
    def _groups(self) -> list[tuple[slice, slice, Tensor]]:
        """Groups of consecutive blocks: their rows, their numbers, and their part of S as a dense matrix."""
        groups, first = [], 0
        per_group = min(max(1, _GROUP_ROWS * self.count // self.n), _GROUP_BLOCKS)
        while first < self.count:
            last = min(first + per_group, self.count)
            rows = slice(self.bounds[first], self.bounds[last])
            part = self.values.new_zeros(rows.stop - rows.start, last - first)
            part.scatter_(1, (self.block_of[rows] - first)[:, None], self.values[rows, None])
            groups.append((rows, slice(first, last), part))
            first = last
        return groups

    def dense(self) -> Tensor:
        matrix = self.values.new_zeros(self.n, self.count)
        return matrix.scatter_(1, self.block_of[:, None], self.values[:, None])

    def combine(self, coefficients: Tensor, rows: slice = slice(None)) -> Tensor:
        return self.values[rows, None] * coefficients.to(torch.float64)[self.block_of[rows]]

    def project(self, vectors: Tensor) -> Tensor:
        check_rows(vectors, self.n)
        # Proceed group by group, so that vectors of the size of K @ S are not converted to float64 as a whole.
        return torch.cat([part.T @ vectors[rows].to(torch.float64) for rows, _, part in self._groups])

    def gram(self, weights: Tensor) -> Tensor:
        """Return ``S' diag(weights) S``, a diagonal matrix."""
        return torch.diag(self.project((weights.to(torch.float64) * self.values)[:, None])[:, 0])

    def row_quadratics(self, coefficients: Tensor) -> Tensor:
        return self.values.square() * coefficients.diagonal()[self.block_of]

    def kernel_product(self, matrix: KernelMatrix) -> Tensor:
        """Return ``K @ S`` group by group, with every kernel entry computed once."""
        product = matrix.X.new_empty(self.n, self.count)
        for rows, blocks, part in self._groups:
            product[:, blocks] = smooth_columns_product(matrix, rows, part)
        return product

    def cross_product(self, kernel: Kernel, X_new: Tensor, X: Tensor, budget: int) -> Tensor:
        product = X_new.new_empty(X_new.shape[0], self.count)
        for rows, blocks, part in self._groups:
            product[:, blocks] = cross_product(kernel, X_new, X[rows], part.to(X), budget=budget)
        return product

    def kernel_gradient(self, matrix: KernelMatrix, left: Tensor) -> dict[str, Tensor]:
        """Return ``sum_ij (left @ S')_ij dK_ij / d parameter`` by groups, with every kernel entry computed once."""
        engine = select(matrix.kernel, matrix.device, matrix.dtype)
        total: dict[str, Tensor] = {}
        for rows, blocks, part in self._groups:
            weights = LowRankWeights(left[:, blocks].to(matrix.dtype).contiguous(), part.to(matrix.dtype))
            found = engine.gradient(
                matrix.kernel, matrix.X, matrix.X[rows], weights, symmetric=False, budget=matrix.memory_budget
            )
            total = {name: value + total[name] if total else value for name, value in found.items()}
        return total

    def state(self) -> dict[str, Tensor]:
        return {"values": self.values, "bounds": torch.tensor(self.bounds)}

    def outer_at(self, left: Tensor, right: Tensor) -> Tensor:
        """Return, for each row, the entry of ``left @ right'`` at the row's block."""
        found = torch.empty_like(self.values)
        for rows in row_blocks(self.n, left.shape[1]):
            picked = right.to(torch.float64)[self.block_of[rows]]
            found[rows] = (left[rows].to(torch.float64) * picked).sum(1)
        return found

    def combine_at(self, coefficients: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return, for each row, the entry of ``diag(weights) @ S @ coefficients`` at the row's block."""
        product = self.values * coefficients.diagonal()[self.block_of]
        return product if weights is None else weights * product

    def kernel_product_at(self, matrix: KernelMatrix, left: Tensor) -> Tensor:
        """Return, for each row, the entry of ``K @ left`` at its block, with every kernel entry computed once."""
        found = torch.empty_like(self.values)
        noise = matrix.noise()
        for rows, blocks, _ in self._groups:
            product = matrix.rows_product(rows, left[:, blocks].to(matrix.dtype).contiguous())
            index = (self.block_of[rows] - blocks.start)[:, None]
            own = left[rows, blocks].gather(1, index)[:, 0]
            found[rows] = product.gather(1, index)[:, 0].double() - noise[rows].double() * own.double()
        return found
