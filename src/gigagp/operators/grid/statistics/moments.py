"""One pass over rows: sums of powers of their offsets in each cell, and weighted sums of their targets at each node.

Summing ``w w'`` over rows directly costs (2r)^(2d) multiplications for each row (Yadav et al. 2021, Claim 2): 4,096 for
cubic weights in three dimensions. But a row's weights are cubic polynomials of its offset in its cell, so all products
of two weights are combinations of the 7^d powers ``prod_k offset_k^p_k``, p_k = 0 ... 6. A row adds 343 numbers to its
cell, and cells are expanded into entries of ``W'W`` once, at the end.

The loops are compiled where the extension was built (``products/native/grid.cpp``). Otherwise torch gives the same
numbers up to the order of sums.
"""

from __future__ import annotations

import itertools
import math
import mmap
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.gram import StencilGram, half_offsets
from gigagp.products.extension import native as _native
from gigagp.settings.indexed_random import random_bits
from gigagp.tables.rows.hashes import ROWS_A_THREAD, row_hashes, threads_for

#: Rows are sorted by cell in blocks: this many rows per cell, within bounds (the largest block takes up to 200 MB).
_ROWS_A_CELL, _LEAST_ROWS, _MOST_ROWS = 32, 2**18, 2**22
#: Number of bytes from which large pages are requested.
_LARGE = 2**24
#: Number of elements of a block of the pass in torch.
_BLOCK = 2**22


@dataclass(frozen=True)
class Survey:
    """Smallest number, largest number and sum of squares of each column, shape (c,); NaN if a number is not finite."""

    low: Tensor
    high: Tensor
    squares: Tensor


def survey(table: Tensor) -> Survey:
    """Return the survey of a float64 table of shape (n, c)."""
    if _native is not None:
        return Survey(*(torch.from_numpy(part) for part in _native.grid_survey(table.numpy(), threads_for(len(table)))))
    bad = table.new_full((), torch.nan).where(~table.isfinite().all(0), 0)
    infinity = table.new_full((1, table.shape[1]), torch.inf)
    low, high = torch.cat([table, infinity]).amin(0), torch.cat([table, -infinity]).amax(0)
    return Survey(low + bad, high + bad, table.square().sum(0) + bad)


class Moments:
    """Sums over rows on a grid, before they are expanded into ``W'W``.

    Beside the ``n_columns`` columns of Y there are ``n_probes`` columns of random signs; see `signs`.
    """

    def __init__(self, grid: RegularGrid, n_columns: int, n_probes: int = 0, seed: int = 0) -> None:
        self.grid, self.n_columns, self.n_probes, self.seed = grid, n_columns, n_probes, seed
        scheme, d = grid.scheme, grid.n_inputs
        #: [cell][powers of all inputs but the last][powers of the last, padded by one]. Unwritten pages take no memory.
        self.values: Tensor = _zeros(math.prod(grid.cells), scheme.n_moments ** (d - 1) * (scheme.n_moments + 1))
        #: W'Y and W'Z, [column][node]
        self.columns = _zeros(n_columns + n_probes, grid.size)

        self._workspace = None if _native is None else _native.GridWorkspace()

    @property
    def block_rows(self) -> int:
        """Number of rows that are added up together. The last digits of sums depend on where these blocks begin."""
        return min(max(_ROWS_A_CELL * len(self.values), _LEAST_ROWS), _MOST_ROWS)

    def state(self) -> dict[str, Tensor]:
        """Return the sums of cells that have rows, as tensors from which `take_over` restores every bit."""
        used = self.values[:, 0].nonzero().squeeze(1)
        # If most cells have rows nothing is copied: the sums may already take much of the memory.
        dense = 2 * len(used) > len(self.values)
        cells = torch.zeros(0, dtype=torch.int64) if dense else used
        return {"cells": cells, "values": self.values if dense else self.values[used], "columns": self.columns}

    def take_over(self, state: dict[str, Tensor]) -> None:
        """Restore the sums that `state` described, on the same grid."""
        if len(state["cells"]):
            self.values[state["cells"]] = state["values"]
        elif len(state["values"]):
            self.values.copy_(state["values"])
        self.columns.copy_(state["columns"])

    def add(self, X: Tensor, Y: Tensor, weights: Tensor | None = None) -> None:
        """Add rows: X (n, d) accepted by the grid, Y (n, t) and weights (n,), all float64, finite and contiguous."""
        if _native is None or weights is not None:
            return self._add_with_torch(X, Y, weights)
        rows = self.block_rows
        _native.grid_add(
            "",
            _description(self.grid),
            X.numpy(),
            Y.numpy(),
            self.n_probes,
            self.seed % 2**64,
            self.values.numpy(),
            self.columns.numpy(),
            rows,
            self._workspace,
            threads_for(len(X)),
        )
        return None

    def counts(self) -> Tensor:
        """Return the number of rows in each cell, shape (cells,), exact; the sum of their weights if they have some."""
        return self.values[:, 0].clone()

    def position_sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums of the rows' positions and of their squares, shape (d,) each; see `RegularGrid.positions`."""
        scheme, d, grid = self.grid.scheme, self.grid.n_inputs, self.grid
        used = self.values[:, 0].nonzero().squeeze(1)
        count = self.values[used, 0]
        sums, squares = [], []
        for axis, (stride, length) in enumerate(zip(grid.cell_strides, grid.cells, strict=True)):
            middle = (used // stride % length).double() + scheme.before + 0.5
            place = 1 if axis == d - 1 else scheme.n_moments ** (d - 2 - axis) * (scheme.n_moments + 1)
            first, second = self.values[used, place], self.values[used, 2 * place]
            sums.append((count * middle + first).sum())
            squares.append((count * middle.square() + 2 * middle * first + second).sum())
        return torch.stack(sums), torch.stack(squares)

    def gram(self) -> StencilGram:
        """Return ``W'W`` of all rows."""
        grid = self.grid
        products, target, source = _expansion(grid)
        values = _zeros(len(half_offsets(grid)), grid.size)
        if _native is None:
            self._expand_with_torch(products, target, source, values)
        else:
            _native.grid_expand(
                "",
                _description(grid),
                self.values.numpy(),
                products.numpy(),
                target.numpy(),
                source.int().numpy(),
                values.numpy(),
                threads_for(ROWS_A_THREAD * len(self.values) // 256),
            )
        return StencilGram(grid, values)

    # Without the compiled extension ---------------------------------------------------------------------------------

    def _add_with_torch(self, X: Tensor, Y: Tensor, weights: Tensor | None) -> None:
        grid, scheme = self.grid, self.grid.scheme
        width = self.values.shape[1]
        rows = max(1, _BLOCK // max(width, scheme.width**grid.n_inputs * (self.n_columns + self.n_probes)))
        for start in range(0, len(X), rows):
            block, columns = X[start : start + rows], Y[start : start + rows]
            first, offset = grid.located(block)
            cell = (first * torch.tensor(grid.cell_strides)).sum(1)
            powers = offset.unsqueeze(2) ** torch.arange(scheme.n_moments)
            product = torch.ones(len(block), 1, dtype=torch.float64)
            for axis in range(grid.n_inputs):
                one = powers[:, axis]
                if axis == grid.n_inputs - 1:
                    one = torch.nn.functional.pad(one, (0, 1))
                product = (product.unsqueeze(2) * one.unsqueeze(1)).flatten(1)
            probes = signs(block, columns, self.n_probes, self.seed) if self.n_probes else columns[:, :0]
            if weights is not None:
                own = weights[start : start + rows, None]
                product, columns, probes = product * own, columns * own, probes * own.sqrt()
            self.values.index_add_(0, cell, product)
            indices, shares = grid.stencil(block)
            for column, to in zip(torch.cat([columns, probes], 1).T, self.columns, strict=True):
                to.index_add_(0, indices.flatten(), (shares * column.unsqueeze(1)).flatten())

    def _expand_with_torch(self, products: Tensor, target: Tensor, source: Tensor, values: Tensor) -> None:
        grid, scheme = self.grid, self.grid.scheme
        used = self.values[:, 0].nonzero().squeeze(1)
        flat = values.view(-1)
        for cells in used.split(max(1, _BLOCK // len(target))):
            shape = (len(cells), *[scheme.n_moments] * (grid.n_inputs - 1), scheme.n_moments + 1)
            found = self.values[cells].reshape(shape)[..., : scheme.n_moments]
            for _ in range(grid.n_inputs):  # replaces the first input's powers by pairs of nodes, as the last axis
                found = torch.tensordot(found, products, dims=([1], [1]))
            node = torch.zeros_like(cells)
            for stride, cell_stride, length in zip(grid.strides, grid.cell_strides, grid.cells, strict=True):
                node += cells // cell_stride % length * stride
            flat.index_add_(0, (node.unsqueeze(1) + target).flatten(), found.flatten(1)[:, source].flatten())


def signs(X: Tensor, Y: Tensor, n_probes: int, seed: int) -> Tensor:
    """Return the rows' random signs, shape (n, n_probes), 1.0 or -1.0.

    They are a function of the row's own numbers and the seed. So the sums ``W'Z`` do not depend on the order of rows,
    or on how they are cut into chunks or spread over machines, and a row can be removed again. Rows whose inputs and
    targets are all equal get the same signs.
    """
    hashed = row_hashes(X, Y, seed)
    words = [random_bits(0, hashed + k) for k in range((n_probes + 63) // 64)]
    bits = [(words[probe // 64] >> (probe % 64)) & 1 for probe in range(n_probes)]
    return 1.0 - 2.0 * torch.stack(bits, 1).double()


def _zeros(rows: int, columns: int) -> Tensor:
    """Return zeros that take memory only once they are written to, in large pages if the system has them.

    A pass visits cells all over this memory. With small pages the first visits took longer than the sums.
    """
    size = 8 * rows * columns
    if size < _LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(rows, columns, dtype=torch.float64)
    pages = mmap.mmap(-1, size)
    with suppress(OSError):  # the system has no large pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.float64).reshape(rows, columns)


def _description(grid: RegularGrid) -> tuple[object, ...]:
    """Return a grid in the form that the compiled extension takes."""
    return (grid.lower, grid.spacing, grid.shape, grid.scheme.width)


def _expansion(grid: RegularGrid) -> tuple[Tensor, Tensor, Tensor]:
    """Return the expansion of moments into entries of ``W'W``: ``products``, ``target`` and ``source``.

    ``products``, shape (pairs, n_moments), has the polynomials of the products of two weights, for pairs (a, b) with a
    <= b. ``target`` has the flat position of each entry in `StencilGram.values`, for the cell whose first node is node
    0. ``source`` has the combination of pairs, one pair per input and numbered in C order, that gives the entry.
    """
    scheme = grid.scheme
    pairs = list(itertools.combinations_with_replacement(range(scheme.width), 2))
    place = {pair: k for k, pair in enumerate(pairs)} | {(b, a): k for k, (a, b) in enumerate(pairs)}
    polynomials = scheme.products()
    products = torch.stack([polynomials[a, b] for a, b in pairs])
    target, source = [], []
    for k, offset in enumerate(half_offsets(grid)):
        starts = [range(max(0, -o), min(scheme.width, scheme.width - o)) for o in offset]
        for a in itertools.product(*starts):
            node, pair = 0, 0
            for position, step, stride in zip(a, offset, grid.strides, strict=True):
                node += position * stride
                pair = pair * len(pairs) + place[position, position + step]
            target.append(k * grid.size + node)
            source.append(pair)
    return products, torch.tensor(target), torch.tensor(source)
