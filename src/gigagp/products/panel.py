"""Products for panels: rows that are cells of a table of entities and times, of which some may be missing.

A kernel whose parts depend on entities or on times alone has the matrix ``P (K_S (x) K_T) P'`` at such rows, where P
picks the cells that were observed (a latent Kronecker product: Lin et al. 2025). A product with it costs
``n_S n_T (n_S + n_T)`` in place of ``n^2``, and the matrix stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gigagp.kernels import Constant, Kernel, Leaf, Product, Sum
from gigagp.products.blocks import ranges
from gigagp.products.engine import Engine, LowRankWeights, Weights, weights_of

#: Rows below which a matrix is small in any form.
_FEWEST_ROWS = 500
#: Largest number of cells for each row, and of operations for each entry of the matrix.
_MOST_CELLS, _MOST_OPERATIONS = 8, 0.5


@dataclass(frozen=True)
class Cells:
    """Where rows are: ``entities[entity[i]]`` and ``times[time[i]]`` are the parts of row i.

    Attributes
    ----------
    entities : Tensor of shape (n_entities, columns of entities)
    times : Tensor of shape (n_times, columns of times)
    entity, time : Tensor of shape (n,)
        Several rows may be in one cell.
    entity_columns, time_columns : tuple of int
        The columns of the rows that each part has.
    """

    entities: Tensor
    times: Tensor
    entity: Tensor
    time: Tensor
    entity_columns: tuple[int, ...]
    time_columns: tuple[int, ...]

    @classmethod
    def of(cls, X: Tensor, entity_columns: tuple[int, ...], time_columns: tuple[int, ...]) -> Cells:
        """Return the cells of rows."""
        parts = (distinct_rows(X[:, list(columns)]) for columns in (entity_columns, time_columns))
        (entities, entity), (times, time) = parts
        return cls(entities, times, entity, time, entity_columns, time_columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of entities and of times."""
        return len(self.entities), len(self.times)

    @property
    def observed(self) -> Tensor:
        """Whether there is a row in each cell, shape (n_entities, n_times)."""
        found = torch.zeros(self.shape, dtype=torch.bool)
        found[self.entity, self.time] = True
        return found

    @property
    def operations(self) -> int:
        """Multiplications of a product with one vector."""
        n_entities, n_times = self.shape
        return n_entities * n_times * (n_entities + n_times)

    def spread(self, vectors: Tensor) -> Tensor:
        """Return ``P' vectors``: the sum of the rows of each cell, shape (n_entities, n_times, s)."""
        n_entities, n_times = self.shape
        grid = vectors.new_zeros(n_entities * n_times, vectors.shape[1])
        return grid.index_add_(0, self.entity * n_times + self.time, vectors).view(n_entities, n_times, -1)

    def pick(self, grid: Tensor) -> Tensor:
        """Return ``P grid``: the values at the rows' cells, shape (n, s)."""
        return grid[self.entity, self.time]


@dataclass(frozen=True)
class Factors:
    """Some terms of a kernel as a product of a kernel of the entities and one of the times.

    The names are those of the parts' hyperparameters in the whole kernel, in order. ``terms`` are the places of the
    terms in `Kernel.correlated_terms`.
    """

    entities: Kernel
    times: Kernel
    entity_names: tuple[str, ...]
    time_names: tuple[str, ...]
    terms: tuple[int, ...]

    def merged(self, cells: Cells) -> Cells:
        """Return cells in which all entities are one if no term depends on them, and likewise all times."""
        if all(isinstance(leaf, Constant) for leaf in self.entities.leaves()):
            cells = replace(cells, entities=cells.entities[:1], entity=torch.zeros_like(cells.entity))
        if all(isinstance(leaf, Constant) for leaf in self.times.leaves()):
            cells = replace(cells, times=cells.times[:1], time=torch.zeros_like(cells.time))
        return cells


@dataclass(frozen=True, eq=False)
class PanelTiles:
    """An engine that multiplies one factor of a Kronecker product after the other.

    Other engines compute the factors, and whatever is not a product with the rows of a panel.

    Parameters
    ----------
    rows : Tensor of shape (n, d)
        The rows of the panel. No leaf of the kernel depends on columns of entities and of times.
    known : Cells
        Where they are.
    engine : Engine
        The engine for the factors, and for the kernel itself.
    """

    rows: Tensor
    known: Cells
    engine: Engine

    @property
    def name(self) -> str:
        """The engine of the factors, and what is made of them."""
        return f"Kronecker products by {self.engine.name}"

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        whole, every = self.cells(Z), self.factors(kernel)
        merged = [factors.merged(whole) for factors in every]
        grids = [cells.spread(V) for cells in merged]
        out = X.new_empty(X.shape[0], V.shape[1])
        row_bytes = 3 * whole.shape[1] * V.shape[1] * X.element_size()
        for rows in [slice(None)] if Z is X else ranges(X.shape[0], max(budget // (4 * row_bytes), 256)):
            here = whole if Z is X else self.cells(X[rows])
            total: Tensor | None = None
            for factors, right, grid in zip(every, merged, grids, strict=True):
                left = right if Z is X else factors.merged(here)
                half = self._times(factors.entities, left.entities, right.entities, grid.flatten(1), budget)
                half = half.view(len(left.entities), len(right.times), -1)
                K_T = self.engine.dense(factors.times, left.times, right.times, budget=budget)
                if left.shape[0] * left.shape[1] <= _MOST_CELLS * len(left.entity):
                    found = left.pick(torch.einsum("at,bts->bas", K_T, half))
                else:
                    found = torch.einsum("qt,qts->qs", K_T[left.time], half[left.entity])
                total = found if total is None else total.add_(found)
            assert total is not None
            out[rows] = total
        return out

    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix by the engine of the kernel; see `Engine.dense`."""
        return self.engine.dense(kernel, X, Z, budget=budget)

    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`."""
        if not isinstance(weights, LowRankWeights) or Z is not X:
            return self.engine.gradient(kernel, X, Z, weights, symmetric=symmetric, budget=budget)
        whole = self.cells(X)
        found = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in kernel.parameters().items()}
        for factors in self.factors(kernel):
            cells = factors.merged(whole)
            n_entities, n_times = cells.shape
            left, right = cells.spread(weights.left), cells.spread(weights.right)
            K_T = self.engine.dense(factors.times, cells.times, budget=budget)
            passed = torch.einsum("tu,aus->ats", K_T, right).reshape(n_entities, -1)
            outer = left.reshape(n_entities, -1)
            is_small = n_entities**2 * left.element_size() <= budget // 4
            by_entities = weights_of(outer @ passed.T) if is_small else LowRankWeights(outer, passed)
            passed = self._times(
                factors.entities, cells.entities, cells.entities, right.reshape(n_entities, -1), budget
            )
            by_times = weights_of(torch.einsum("ats,aus->tu", left, passed.view(n_entities, n_times, -1)))
            for part, points, of_part, names in (
                (factors.entities, cells.entities, by_entities, factors.entity_names),
                (factors.times, cells.times, by_times, factors.time_names),
            ):
                slopes = self.engine.gradient(part, points, points, of_part, symmetric=symmetric, budget=budget)
                for name, value in zip(names, slopes.values(), strict=False):
                    found[name] += value.reshape(found[name].shape)
        return found

    def dense_factors(self, factors: Factors, cells: Cells, budget: int) -> tuple[Tensor, Tensor]:
        """Return the matrices of the entities and of the times of cells, float64."""
        pairs = (factors.entities, cells.entities), (factors.times, cells.times)
        S, T = (self.engine.dense(part, points, budget=budget).double() for part, points in pairs)
        return S, T

    def _times(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V`` for many columns, with a stored matrix where the budget has room for it."""
        if X.shape[0] * Z.shape[0] * X.element_size() <= budget // 4:
            return self.engine.dense(kernel, X, None if X is Z else Z, budget=budget) @ V
        return self.engine.product(kernel, X, Z, V, budget=budget)

    def operations(self, kernel: Kernel) -> int:
        """Return the multiplications of a product of the rows with one vector."""
        return sum(factors.merged(self.known).operations for factors in self.factors(kernel))

    def cells(self, X: Tensor) -> Cells:
        """Return the cells of rows, which are known for those of the panel."""
        return self.known if X is self.rows else Cells.of(X, self.known.entity_columns, self.known.time_columns)

    def factors(self, kernel: Kernel) -> list[Factors]:
        """Return the kernel as a sum of products; see `factors_of`."""
        return factors_of(kernel, self.known.entity_columns, self.known.time_columns)


def factors_of(kernel: Kernel, entity_columns: tuple[int, ...], time_columns: tuple[int, ...]) -> list[Factors]:
    """Return a kernel without white terms as a sum of products; terms of the same times are one product."""
    kernel = kernel.replace(kernel.parameters())  # leaves are told apart as objects, and one object may stand twice
    names = iter(kernel.parameters())
    labels = {id(leaf): tuple(next(names) for _ in leaf.parameters()) for leaf in kernel.leaves()}
    groups: dict[tuple[int, ...], list[tuple[int, list[Leaf], list[Leaf]]]] = {}
    for place, term in enumerate(kernel.correlated_terms()):
        of_times = [leaf for leaf in term if not _is_of(leaf, entity_columns)]
        of_entities = [leaf for leaf in term if _is_of(leaf, entity_columns)]
        groups.setdefault(tuple(id(leaf) for leaf in of_times), []).append((place, of_entities, of_times))
    return [
        Factors(
            Sum(*(_product(leaves, entity_columns) for _, leaves, _ in terms)),
            _product(terms[0][2], time_columns),
            tuple(name for _, leaves, _ in terms for leaf in leaves for name in labels[id(leaf)]),
            tuple(name for leaf in terms[0][2] for name in labels[id(leaf)]),
            tuple(place for place, _, _ in terms),
        )
        for terms in groups.values()
    ]


def panel_of(kernel: Kernel, X: Tensor, engine: Engine) -> PanelTiles | None:
    """Return the engine that is cheapest for the rows X of a panel; None where they are no panel, or a small one.

    Every set of columns that no leaf joins with others may be the times, with all other columns as the entities.
    """
    joined = joined_columns(kernel)
    if len(X) < _FEWEST_ROWS or len(joined) < 2:
        return None
    found = _known.setdefault(X, {})
    if joined not in found:
        found[joined] = _cheapest(X, joined)
    cells = found[joined]
    return None if cells is None else PanelTiles(X, cells, engine)


#: What `_cheapest` has found for the rows that live.
_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _cheapest(X: Tensor, joined: tuple[tuple[int, ...], ...]) -> Cells | None:
    """Return the cells of rows with the fewest operations, with the smaller factor as the times; None for no panel.

    A factor has at least as many members as any of its sets of columns has values, which most tables show at the first.
    """
    n, best, least = len(X), None, _MOST_OPERATIONS * len(X) ** 2
    if any(len(distinct_rows(X[:, list(columns)])[0]) ** 2 > least for columns in joined):
        return None
    for times in joined if len(joined) > 2 else joined[:1]:
        entities = tuple(sorted(column for other in joined if other is not times for column in other))
        cells = Cells.of(X, entities, times)
        if cells.shape[0] < cells.shape[1]:
            cells = Cells.of(X, times, entities)
        if cells.shape[0] * cells.shape[1] <= _MOST_CELLS * n and cells.operations <= least:
            best, least = cells, cells.operations
    return best


def joined_columns(kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """Return the sets of columns that leaves of a bound kernel depend on together, joined where they overlap."""
    sets: list[set[int]] = []
    for leaf in (leaf for term in kernel.correlated_terms() for leaf in term if not isinstance(leaf, Constant)):
        columns = set(leaf.active_columns)
        sets = [one for one in sets if not one & columns] + [columns.union(*(one for one in sets if one & columns))]
    return tuple(sorted(tuple(sorted(columns)) for columns in sets))


def _is_of(leaf: Leaf, columns: tuple[int, ...]) -> bool:
    """Whether a leaf depends on these columns alone; constants do."""
    return isinstance(leaf, Constant) or set(leaf.active_columns) <= set(columns)


def _product(leaves: list[Leaf], columns: tuple[int, ...]) -> Kernel:
    """Return the product of leaves as a kernel of these columns; without leaves it is one."""
    return Product(*(leaf.on_columns(columns) for leaf in leaves)) if leaves else Constant(1.0).bind(len(columns))


def distinct_rows(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows, and the number of the distinct row that each row is."""
    array = np.ascontiguousarray(points.detach().cpu().numpy()) + 0.0  # -0.0 is 0.0
    keys = array.view(np.dtype((np.void, array.dtype.itemsize * array.shape[1]))).ravel()
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    chosen = torch.from_numpy(np.sort(first)).to(points.device)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))  # in the order in which they come
    return points[chosen], torch.from_numpy(rank[number]).to(points.device)


def places_among(points: Tensor, known: Tensor) -> Tensor:
    """Return where points (m, d) are among known distinct ones, or -1."""
    lookup = {row.tobytes(): place for place, row in enumerate(known.detach().cpu().numpy() + 0.0)}
    found = [lookup.get(row.tobytes(), -1) for row in points.detach().cpu().numpy() + 0.0]
    return torch.tensor(found, dtype=torch.long, device=points.device)
