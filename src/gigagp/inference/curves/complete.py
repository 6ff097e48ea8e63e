"""The complete part of a panel, and what it says of all other cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.contract.input_gradients import refuse_gradient
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.vecchia.likelihood import Regression
from gigagp.kernels import Kernel
from gigagp.model.model import Model
from gigagp.neighbours.local import LOST
from gigagp.operators import KernelMatrix
from gigagp.products import PanelTiles
from gigagp.products.dense import cholesky
from gigagp.products.panel import Cells, Factors, distinct_rows, places_among
from gigagp.runtime import interruption
from gigagp.runtime.memory import require
from gigagp.solvers.preconditioners.complete_panel import Alone, Spectrum, is_exact

#: Least share of the rows that a complete part has, least number of its entities, most entities and times, and the
#: most entities or times of a panel in which it is looked for.
_LEAST_SHARE, _LEAST_ENTITIES, _MOST_ENTITIES, _MOST_TIMES, _MOST_IN_ALL = 0.2, 50, 3000, 500, 10_000
#: Least noise variance as a share of the kernel's, and times of points that are predicted together.
_LEAST_NOISE, _TIMES = 1e-12, 256


@dataclass(frozen=True)
class Product:
    """One product of the kernel on the complete part, with the matrices of its factors, 1 x 1 where these are one."""

    factors: Factors
    cells: Cells
    S: Tensor
    T: Tensor

    def whole(self, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Return the matrices for all entities and for all times."""
        pairs = zip((self.S, self.T), shape, strict=True)
        S, T = (one if len(one) == size else one.expand(size, size) for one, size in pairs)
        return S, T


@dataclass(frozen=True)
class Grid:
    """Entities and times of which every cell was observed.

    Attributes
    ----------
    rows : Tensor of shape (N, T)
        The row in each cell.
    cells : Cells
        Where they are, entity by entity.
    """

    rows: Tensor
    cells: Cells

    @classmethod
    def of(cls, panel: PanelTiles, n_rows: int) -> Grid | None:
        """Return the complete part of a panel; None where it is small because gaps are everywhere."""
        entities, times = complete_part(panel.known.observed)
        if len(entities) * len(times) < _LEAST_SHARE * n_rows or len(entities) < _LEAST_ENTITIES:
            return None
        return cls.at(panel.known, entities, times)

    @classmethod
    def at(cls, known: Cells, entities: Tensor, times: Tensor) -> Grid:
        """Return the part with these numbers of entities (N,) and of times (T,)."""
        numbers = torch.full(known.shape, -1, dtype=torch.long)
        numbers[known.entity, known.time] = torch.arange(len(known.entity))
        cells = Cells(
            known.entities[entities].double(),
            known.times[times].double(),
            torch.arange(len(entities)).repeat_interleave(len(times)),
            torch.arange(len(times)).repeat(len(entities)),
            known.entity_columns,
            known.time_columns,
        )
        return cls(numbers[entities][:, times], cells)

    def take(self, entities: Tensor, times: Tensor) -> Grid:
        """Return a part of it."""
        shape = len(entities), len(times)
        index = torch.arange(shape[0]).repeat_interleave(shape[1]), torch.arange(shape[1]).repeat(shape[0])
        points = self.cells.entities[entities], self.cells.times[times]
        return Grid(
            self.rows[entities][:, times], Cells(*points, *index, self.cells.entity_columns, self.cells.time_columns)
        )

    def solved(self, model: Model, panel: PanelTiles, budget: int) -> tuple[list[Product], Spectrum]:
        """Return the products of the kernel on the grid, and the spectrum of its matrix H."""
        products = []
        for factors in panel.factors(model.kernel):
            cells = factors.merged(self.cells)
            products.append(Product(factors, cells, *panel.dense_factors(factors, cells, budget)))
        n_entities, n_times = self.cells.shape
        noise = model.noise_variance.double().expand(n_entities)
        return products, Spectrum.of([(one.S, one.T) for one in products], noise, noise.new_ones(n_times))


def has_spectrum(panel: PanelTiles, model: Model) -> bool:
    """Whether the matrix of a complete panel is known exactly by eigenvectors of its factors, which need some noise."""
    has_one_noise = not (model.noise_is_known or model.kernel.has_white) and model.noise_share > _LEAST_NOISE
    return has_one_noise and is_exact(panel, model.kernel)


def panel_of_rows(table: TrainingTable, model: Model) -> PanelTiles | None:
    """Return the panel whose cells the rows of a table are; None if they are none, or few."""
    matrix = table.matrix(model.kernel, model.noise_variance)
    return matrix.panel if isinstance(matrix, KernelMatrix) else None


def quick_grid(table: TrainingTable, model: Model) -> tuple[PanelTiles, Grid] | None:
    """Return the panel of a table and its complete part; None where it has none that is quick to solve for exactly."""
    panel = panel_of_rows(table, model)
    if panel is None or max(panel.known.shape) > _MOST_IN_ALL or not has_spectrum(panel, model):
        return None
    grid = Grid.of(panel, table.n_rows)
    if grid is None or grid.cells.shape[0] > _MOST_ENTITIES or grid.cells.shape[1] > _MOST_TIMES:
        return None
    return panel, grid


@dataclass(frozen=True)
class _Beyond:
    """p entities at u times, given the complete part.

    The effects of entities alone and of times alone are variables in addition to a product of both, as the coefficients
    of a mean are: what the product leaves open given these, and what the effects leave open, are sums of positive
    terms. As one covariance that all of it explains, digits would be lost with little noise.

    Attributes
    ----------
    S, T : list of Tensor of shape (N, p) and (T, u)
        Covariances of the complete entities with these, and of the complete times with these, for each product.
    product : _OfBoth or None
        The product that depends on both.
    entities, times : Tensor of shape (p, p) and (u, u)
        Covariances of the effects of these entities and times given those of the complete part.
    Q : Tensor of shape (p, k, u)
        Roots of what the k effects of the complete part leave open.
    """

    S: list[Tensor]
    T: list[Tensor]
    product: _OfBoth | None
    entities: Tensor
    times: Tensor
    Q: Tensor

    def means(self, alpha: Tensor) -> Tensor:
        """Return the means from solutions (N, T, k) of the complete part, (p, u, k)."""
        parts = (
            torch.einsum("ptk,tu->puk", (S.T @ alpha.flatten(1)).view(S.shape[1], *alpha.shape[1:]), T)
            for S, T in zip(self.S, self.T, strict=True)
        )
        return torch.stack(list(parts)).sum(0)

    def covariances(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the covariances of pairs of entities, numbers (c,), at all times, without noise, (c, u, u)."""
        found = self.Q[first].mT @ self.Q[second]
        found += self.entities[first, second][:, None, None] + self.times
        return found if self.product is None else found + self.product.covariances(first, second)


@dataclass(frozen=True)
class _OfBoth:
    """The product of a kernel of entities and one of times, between p entities at u times and given the complete part.

    Attributes
    ----------
    S, T : Tensor of shape (p, p) and (u, u)
        Covariances among these.
    A, B : Tensor of shape (N, p) and (T, u)
        Covariances of the complete entities and times with these, in the basis of the spectrum.
    D : Tensor of shape (N, T)
        The inverse of the spectrum.
    """

    S: Tensor
    T: Tensor
    A: Tensor
    B: Tensor
    D: Tensor

    def covariances(self, first: Tensor, second: Tensor) -> Tensor:
        """Return those that the complete part leaves open, as `_Beyond.covariances`."""
        weights = (self.A[:, first] * self.A[:, second]).T @ self.D
        return self.S[first, second][:, None, None] * self.T - self.B.T @ (weights[:, :, None] * self.B)

    def projected(self, alone: Alone, roots: Tensor) -> Tensor:
        """Return ``roots`` (k, N + T) of the effects times what the part predicts of the product, (p, k, u)."""
        of_entities = self.A[:, :, None] * (self.D @ (alone.v[:, None] * self.B))[:, None, :]
        of_times = ((alone.w[:, None] * self.A).T @ self.D)[:, :, None] * self.B
        by_entity, by_time = roots.split([len(self.A), len(self.B)], 1)
        found = (by_entity @ of_entities.flatten(1)).view(-1, *of_entities.shape[1:]).movedim(1, 0)
        return found + by_time @ of_times


@dataclass(frozen=True)
class _Located:
    """Points of a panel: which entities and times they have, and the other rows of these entities.

    Attributes
    ----------
    beyond : _Beyond
        The p entities at all times.
    points : list of Tensor
        The points of each entity.
    time : Tensor of shape (q,)
        The time of each point.
    own : list of Tensor
        The rows of each entity that are not in the complete part.
    own_time : list of Tensor
        Their times.
    """

    beyond: _Beyond
    points: list[Tensor]
    time: Tensor
    own: list[Tensor]
    own_time: list[Tensor]


class CompletePart:
    """Every cell of a panel given its complete part and the other rows of its entity.

    The complete part is solved exactly by eigenvectors. What it leaves open of another entity is a process of its own
    rows, a small matrix for each entity: the exact posterior but for what entities with gaps say of each other.
    """

    def __init__(self, model: Model, table: TrainingTable, panel: PanelTiles, grid: Grid) -> None:
        self._model, self._table, self._panel, self._grid = model, table, panel, grid
        self._budget = table.budget
        n_entities, n_times = grid.cells.shape
        needed = 8 * (8 * n_entities**2 + 4 * n_entities * n_times * table.n_targets)
        require(needed, self._budget, f"The complete part of {n_entities:,} entities", "Use inference.Vecchia.")
        self._products, self.spectrum = grid.solved(model, panel, self._budget)
        self._roots = self.spectrum.roots()
        is_other = torch.ones(table.n_rows, dtype=torch.bool)
        is_other[grid.rows.flatten()] = False
        others = torch.nonzero(is_other)[:, 0]
        known = panel.known
        order = others[known.entity[others].argsort(stable=True)]
        counts = torch.bincount(known.entity[others], minlength=known.shape[0])
        #: rows of each entity that are not in the complete part
        self._own = order.split(counts.tolist())

    @classmethod
    def of(cls, model: Model, table: TrainingTable) -> CompletePart | None:
        """Return the complete part of a table; None where it is no panel, has none, or a large one."""
        found = quick_grid(table, model)
        return None if found is None else cls(model, table, *found)

    @property
    def n_entities(self) -> int:
        """Entities of the complete part."""
        return self._grid.cells.shape[0]

    def regression(self, *, of_grid: bool = False) -> Regression:
        """Return the mean's coefficients and the likelihood: of the complete part, and of other rows given it.

        ``of_grid`` says whether they are those of the complete part alone.
        """
        table, t = self._table, self._table.n_targets
        values = torch.cat([table.Y.double(), table.basis.double()], 1)
        on_grid = values[self._grid.rows]
        alpha = self.spectrum.solve(on_grid)
        gram = torch.einsum("ats,atr->sr", on_grid, alpha)
        log_variance = self.spectrum.log_determinant()
        others = torch.cat([table.X.new_zeros(0, dtype=torch.long), *([] if of_grid else self._own)])
        for at in self._located(table.X[others]):
            mean, covariance = at.beyond.means(alpha), self._covariance_of_each(at)
            for place, (own, time) in enumerate(zip(at.own, at.own_time, strict=True)):
                factor = self._factor(covariance[place], time)
                white = torch.linalg.solve_triangular(factor, values[own] - mean[place, time], upper=False)
                gram += white.T @ white
                log_variance += 2 * float(factor.diagonal().log().sum())
        trend = Trend.from_products(gram[t:, t:], gram[t:, :t])
        contrast = torch.cat([torch.eye(t, dtype=torch.float64), -trend.coefficients])
        squares = float((contrast * (gram @ contrast)).sum())
        n_rows = self._grid.rows.numel() + len(others)
        return Regression(trend, gram[t:, t:], squares, log_variance, n_rows, 0)

    def predict(self, X: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions (q, k) of points (q, d) from values of all rows (n, k), and their variances (q,)."""
        refuse_gradient(X, "inference.Curves", "Use inference.Iterative or inference.Vecchia.")
        alpha = self.spectrum.solve(values.double()[self._grid.rows])
        found = X.new_zeros(len(X), values.shape[1], dtype=torch.float64)
        variance = self._model.kernel.diagonal(X.double())
        least = LOST * variance
        for at in self._located(X):
            mean, covariance = at.beyond.means(alpha), self._covariance_of_each(at)
            for place, points in enumerate(at.points):
                own, of_own, to = at.own[place], at.own_time[place], at.time[points]
                here = covariance[place]
                found[points], variance[points] = mean[place, to], here.diagonal()[to]
                if len(own):
                    both = torch.cat([here[of_own][:, to], values[own] - mean[place, of_own]], 1)
                    half = torch.linalg.solve_triangular(self._factor(here, of_own), both, upper=False)
                    cross, residual = half.split([len(points), values.shape[1]], 1)
                    found[points] += cross.T @ residual
                    variance[points] -= cross.square().sum(0)
        return found, variance.maximum(least)

    def covariance(self, X: Tensor) -> Tensor:
        """Return the covariances of the errors of the predictors of points (q, d), (q, q)."""
        refuse_gradient(X, "inference.Curves", "Use inference.Iterative or inference.Vecchia.")
        q = len(X)
        require(16 * q**2, self._budget, f"The covariance of {q:,} points", "")
        found = X.new_zeros(q, q, dtype=torch.float64)
        noise = self._model.noise_variance.double()
        for at in self._located(X, together=True):
            weights = []  # of an entity's points and own rows, in the errors of its points
            for place, covariance in enumerate(self._covariance_of_each(at)):
                of_own, to = at.own_time[place], at.time[at.points[place]]
                solved = torch.cholesky_solve(covariance[of_own][:, to], self._factor(covariance, of_own))
                weights.append(torch.cat([torch.eye(len(to), dtype=torch.float64), -solved]))
            cells = [
                torch.cat([at.time[points], of_own]) for points, of_own in zip(at.points, at.own_time, strict=True)
            ]
            for first, points in enumerate(at.points):
                for second in range(first + 1):
                    pair = torch.tensor([first]), torch.tensor([second])
                    covariance = at.beyond.covariances(*pair)[0][cells[first]][:, cells[second]]
                    if first == second:
                        covariance.diagonal()[len(points) :] += noise
                    block = weights[first].T @ covariance @ weights[second]
                    others = at.points[second]
                    found[points[:, None], others] = block
                    found[others[:, None], points] = block.T
        return 0.5 * (found + found.T)

    def _covariance_of_each(self, at: _Located) -> Tensor:
        """Return the covariance of the times of each entity, (p, u, u)."""
        every = torch.arange(len(at.points))
        return at.beyond.covariances(every, every)

    def _factor(self, covariance: Tensor, at: Tensor) -> Tensor:
        """Return the Cholesky factor of rows at places among times, with their noise."""
        H = covariance[at][:, at]
        H.diagonal().add_(self._model.noise_variance.double())
        return cholesky(H, "the covariance of a curve given the complete part", overwrite=True)

    def _located(self, X: Tensor, *, together: bool = False) -> Iterator[_Located]:
        """Iterate over points (q, d), some entities and times at a time, or all ``together``."""
        if not len(X):
            return
        known, shape = self._panel.known, self._grid.cells.shape
        cells = Cells.of(X, known.entity_columns, known.time_columns)
        numbers = places_among(cells.entities, known.entities).tolist()
        for some in torch.arange(cells.shape[1]).split(cells.shape[1] if together else _TIMES):
            times, index = distinct_rows(torch.cat([known.times.double(), cells.times[some].double()]))
            of_known, of_some = index.split([known.shape[1], len(some)])
            inside = torch.nonzero((cells.time >= some[0]) & (cells.time <= some[-1]))[:, 0]
            entities, entity = cells.entity[inside].unique(return_inverse=True)
            each = 8 * len(times) * (3 * len(times) + 2 * len(self.spectrum.core) + 3 * shape[0])
            size = len(entities) if together else max(1, self._budget // (4 * each))
            require(each * size, self._budget, f"{len(times):,} times of {size:,} entities given the others", "")
            points = inside[entity.argsort(stable=True)].split(torch.bincount(entity).tolist())
            time = torch.zeros(len(X), dtype=torch.long)
            time[inside] = of_some[cells.time[inside] - some[0]]
            for part in torch.arange(len(entities)).split(size):
                interruption.check()
                own = [
                    self._own[one] if one >= 0 else X.new_zeros(0, dtype=torch.long)
                    for one in (numbers[e] for e in entities[part].tolist())
                ]
                yield _Located(
                    self._beyond(cells.entities[entities[part]].double(), times),
                    [points[one] for one in part.tolist()],
                    time,
                    own,
                    [of_known[known.time[rows]] for rows in own],
                )

    def _beyond(self, entities: Tensor, times: Tensor) -> _Beyond:
        """Return entities (p, columns) at times (u, columns) given the complete part."""
        grid, engine = self._grid.cells, self._panel.engine

        def between(kernel: Kernel, X: Tensor, Z: Tensor | None = None) -> Tensor:
            return engine.dense(kernel, X, Z, budget=self._budget).double()

        S = [between(one.factors.entities, grid.entities, entities) for one in self._products]
        T = [between(one.factors.times, grid.times, times) for one in self._products]
        alone, product = self.spectrum.alone, None
        of_entities = _Effects.none(grid.shape[0], len(entities))
        of_times = _Effects.none(grid.shape[1], len(times))
        for one, cross_S, cross_T in zip(self._products, S, T, strict=True):
            own_S, own_T = between(one.factors.entities, entities), between(one.factors.times, times)
            if len(one.T) == 1:
                of_entities.add(own_T[0, 0], cross_S, own_S)
            elif len(one.S) == 1:
                of_times.add(own_S[0, 0], cross_T, own_T)
            else:
                A, B = self.spectrum.left.T @ cross_S, self.spectrum.right.T @ cross_T
                product = _OfBoth(own_S, own_T, A, B, 1 / self.spectrum.values)
        entities_left, by_entity = of_entities.given(alone.S_root)
        times_left, by_time = of_times.given(alone.T_root)
        effects = torch.block_diag(by_entity, by_time)
        if len(effects):
            effects = torch.linalg.solve_triangular(self.spectrum.core, effects, upper=False)
        of_entity, of_time = effects.split([len(entities), len(times)], 1)
        Q = of_entity.T[:, :, None] + of_time
        if product is not None and len(effects):
            Q -= product.projected(alone, self._roots)
        return _Beyond(S, T, product, entities_left, times_left, Q)


@dataclass
class _Effects:
    """Covariances of effects of n complete entities with those of m others, (n, m), and among these, (m, m)."""

    cross: Tensor
    own: Tensor

    @classmethod
    def none(cls, n: int, m: int) -> _Effects:
        return cls(torch.zeros(n, m, dtype=torch.float64), torch.zeros(m, m, dtype=torch.float64))

    def add(self, factor: Tensor, cross: Tensor, own: Tensor) -> None:
        """Add a part of the kernel, times a number."""
        self.cross += factor * cross
        self.own += factor * own

    def given(self, root: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariance of the others given the n, and their coefficients, for a root of the covariance of n.

        The coefficients are those of the standard normal numbers behind the n effects, one for each column.
        """
        if not root.shape[1]:
            return self.own, self.cross[:0]
        coefficients = torch.linalg.solve_triangular(root, self.cross, upper=False)
        return self.own - coefficients.T @ coefficients, coefficients


def complete_part(observed: Tensor) -> tuple[Tensor, Tensor]:
    """Return entities and times, as sorted numbers, of which every cell was observed (N, T).

    Whichever entity or time lacks the largest share of what is left is left out, one after the other.
    """
    missing = (~observed).double()
    kept = [torch.ones(size, dtype=torch.bool) for size in observed.shape]
    counts = [missing.sum(1), missing.sum(0)]
    while bool((counts[0] * kept[0]).sum() > 0):
        sizes = [int(one.sum()) for one in kept]
        shares = [counts[axis] * kept[axis] / max(sizes[1 - axis], 1) for axis in (0, 1)]
        axis = int(shares[1].max() > shares[0].max())
        out = int(shares[axis].argmax())
        kept[axis][out] = False
        counts[1 - axis] = counts[1 - axis] - (missing[:, out] if axis else missing[out])
    return torch.nonzero(kept[0])[:, 0], torch.nonzero(kept[1])[:, 0]
