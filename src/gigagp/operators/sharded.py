"""The matrix H of a distributed fit, whose stored rows lie in several processes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gigagp.operators.kernel_matrix import KernelMatrix
from gigagp.products.stored import stored_product
from gigagp.runtime.group import Processes, row_edges
from gigagp.runtime.run import current_run


class ShardedKernelMatrix(KernelMatrix):
    """A `KernelMatrix` in several processes: each stores its share of the rows of K, where they are stored.

    `kernel_matrix` takes it inside of `gigagp.runtime.processes.joined`. Every process holds the inputs and calls the
    same methods in the same order. All of them pass the same whole vectors and get the whole product. Products with all
    rows are shared by the rows that are stored. All others, and the gradient, are shared by the engine
    (`gigagp.products.shared_tiles`). The bits do not depend on the number of processes, for the same storage.

    The arguments are those of `KernelMatrix`. Of the budget of a process, ``storage="auto"`` needs room for its share
    of the rows, so that more processes store more.
    """

    _holds_all = False

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        processes = current_run().processes
        assert processes is not None, "kernel_matrix makes it"
        self._processes: Processes = processes
        self._blocks: dict[int, Tensor] = {}
        super().__init__(*arguments, **settings)

    @property
    def _rows_held(self) -> int:
        edges = row_edges(self.n)
        parts = len(edges) - 1
        shares = (self._processes.share(parts, rank) for rank in range(self._processes.count))
        return max(edges[share.stop] - edges[share.start] for share in shares)

    def _stored_product(self, vectors: Tensor) -> Tensor:
        columns = vectors if vectors.ndim == 2 else vectors[:, None]

        def rows_of(rows: slice) -> Tensor:
            if rows.start not in self._blocks:
                found = self._engine.dense(self.kernel, self.X[rows], self.X, budget=self.memory_budget)
                self._blocks[rows.start] = found
            return stored_product(self._blocks[rows.start], columns)

        if not self._blocks:
            self.entries_computed += self.n * self.n
        product = self._processes.rows(vectors.new_empty(columns.shape), rows_of, "stored product", columns)
        return product if vectors.ndim == 2 else product[:, 0]


def kernel_matrix(*arguments: Any, **settings: Any) -> KernelMatrix:
    """Return the matrix for the rows of a fit: a `ShardedKernelMatrix` in a distributed one, else a `KernelMatrix`."""
    kind = KernelMatrix if current_run().processes is None else ShardedKernelMatrix
    return kind(*arguments, **settings)
