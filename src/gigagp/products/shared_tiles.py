"""Kernel products that the processes of a distributed fit share; see `gigagp.runtime.processes`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.products.engine import Engine, LowRankWeights, Weights
from gigagp.products.native_tiles import NativeTiles
from gigagp.products.torch_tiles import TorchTiles
from gigagp.runtime.group import Processes, row_edges
from gigagp.runtime.run import current_run

#: Entries of the kernel matrix below which a process computes a result alone, in a few milliseconds.
SMALLEST = 2**20
#: Rows for each term of a symmetric product, and the most and fewest terms. A term costs as much as one of its own
#: columns of length n, and the terms are what processes share.
_ROWS_A_TERM, _FEWEST, _MOST = 3000, 4, 256


@dataclass(frozen=True)
class SharedTiles:
    """An engine whose work is shared with the other processes.

    `select` wraps engines in it inside of `gigagp.runtime.processes.joined`. Products of other points are shared by
    rows, and symmetric products and gradients by pairs of stretches of rows, so that every entry is still computed
    once. The bits do not depend on the number of processes.
    """

    engine: Engine

    @property
    def name(self) -> str:
        """Name of the engine of each process, and how many there are."""
        processes = current_run().processes
        shared = "" if processes is None or processes.count == 1 else f" in {processes.count} processes"
        return self.engine.name + shared

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        processes, engine = _sharing(X, Z), self.engine
        if processes is None:
            return engine.product(kernel, X, Z, V, budget=budget)
        out = X.new_empty(X.shape[0], V.shape[1])
        if Z is X and isinstance(engine, NativeTiles | TorchTiles):
            terms = n_terms(len(X))

            def term(part: int) -> Tensor:
                return engine.product_part(kernel, X, V, part, terms, budget=budget).double()

            return processes.total(out.double(), terms, term, "symmetric product", V).to(X.dtype)

        def rows_of(rows: slice) -> Tensor:
            return engine.product(kernel, X[rows], Z, V, budget=budget)

        return processes.rows(out, rows_of, "product", V, len(Z))

    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix, which each process computes; see `Engine.dense`."""
        return self.engine.dense(kernel, X, Z, budget=budget)

    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`. Only low-rank weights are shared."""
        processes, engine = _sharing(X, Z), self.engine
        if processes is None or not isinstance(weights, LowRankWeights):
            return engine.gradient(kernel, X, Z, weights, symmetric=symmetric, budget=budget)
        left, right = weights.left, weights.right
        shapes = {name: value.shape for name, value in kernel.parameters().items()}
        like = torch.zeros(sum(shape.numel() for shape in shapes.values()), dtype=torch.float64)
        if symmetric:
            terms = n_terms(len(X))
            blocks = list(_triangle(len(X), terms))
        else:
            edges = row_edges(len(X), len(Z))
            terms = len(edges) - 1
            blocks = [(slice(*pair), slice(None)) for pair in pairwise(edges)]

        def term(part: int) -> Tensor:
            total = torch.zeros_like(like)
            for rows, columns in blocks[len(blocks) * part // terms : len(blocks) * (part + 1) // terms]:
                own = symmetric and rows == columns
                points = X[rows]
                found = engine.gradient(
                    kernel,
                    points,
                    points if own else Z[columns],
                    LowRankWeights(left[rows].contiguous(), right[columns].contiguous()),
                    symmetric=own,
                    budget=budget,
                )
                flat = torch.cat([found[name].reshape(-1) for name in shapes]) if shapes else total
                total += flat if own or not symmetric else 2 * flat
            return total

        summed = processes.total(like, terms, term, "gradient", left)
        parts = summed.split([shape.numel() for shape in shapes.values()])
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}


def n_terms(n: int) -> int:
    """Return the number of terms of a symmetric product of n rows, a power of two; it depends on the rows alone."""
    return 2 ** (min(max(n // _ROWS_A_TERM, _FEWEST), _MOST).bit_length() - 1)


def _sharing(X: Tensor, Z: Tensor) -> Processes | None:
    """Return the processes that share a job; None where it is too small, or there are none."""
    return current_run().processes if len(X) * len(Z) >= SMALLEST else None


def _triangle(n: int, terms: int) -> Iterator[tuple[slice, slice]]:
    """Iterate over blocks on and above the diagonal, which are a few for each term."""
    count = 2 * int(terms**0.5) + 1
    edges = [n * k // count for k in range(count + 1)]
    every = [slice(*pair) for pair in pairwise(edges)]
    # Along diagonals, so that the blocks on the main one, which cost half, are spread over the terms.
    for a in range(count):
        for step in range((count + 1) // 2):
            b = (a + step) % count
            yield (every[a], every[b]) if a <= b else (every[b], every[a])
