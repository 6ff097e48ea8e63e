"""Curves of a panel, all rows of an entity, and which other curves are near one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours.batched import blocks
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.joint import factor_of
from gigagp.neighbours.local import LOST
from gigagp.neighbours.neighbourhood import Block, Neighbourhood
from gigagp.neighbours.predictor import LocalPredictor, LocalWeights, within_reach
from gigagp.products import cross_covariance
from gigagp.products.panel import distinct_rows, places_among

#: How many times as many entities are near in the kernel's metric as are then chosen by their correlation.
_CANDIDATES = 4
#: Entities whose correlations are computed together, and a variance that counts as none.
_TOGETHER, _TINY = 1024, torch.finfo(torch.float64).tiny


class CurveGraph:
    """Which earlier curves each curve is conditioned on; a function of a kernel, the rows and a number alone.

    Entities are told apart by ``entity_columns`` of the rows. How alike two of them are is their correlation at the
    middle of the time, column ``time_columns``.

    Parameters
    ----------
    kernel : Kernel
        Bound to the columns of ``X``.
    X : Tensor of shape (n, d)
        The rows.
    entity_columns, time_columns : tuple of int
        The columns of the entities and of the times.
    n_neighbours : int
        Earlier curves that a curve is conditioned on.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        entity_columns: tuple[int, ...],
        time_columns: tuple[int, ...],
        n_neighbours: int,
    ) -> None:
        self.kernel, self.X, self.n_neighbours = kernel, X, n_neighbours
        self.entity_columns, self.time_columns = entity_columns, time_columns
        self._entities, self.entity = distinct_rows(X[:, list(entity_columns)])
        counts = torch.bincount(self.entity, minlength=len(self._entities))
        order = X[:, time_columns[0]].argsort(stable=True)
        order = order[self.entity[order].argsort(stable=True)]
        #: the rows of each entity in the order of time
        self.curves = list(order.split(counts.tolist()))
        first = torch.stack([rows[len(rows) // 2] for rows in self.curves])
        self._middle = X[:, list(time_columns)].double().median(0).values
        self._places = self._at_the_middle(X[first])

    @property
    def n_entities(self) -> int:
        """Number of entities."""
        return len(self.curves)

    def _at_the_middle(self, X: Tensor) -> Tensor:
        """Return rows with the middle time in place of their own."""
        moved = X.double().clone()
        moved[:, list(self.time_columns)] = self._middle
        return moved

    @cached_property
    def _neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(self.kernel, self._places, torch.Generator().manual_seed(0))

    def earlier(self, entity: int) -> list[int]:
        """Return the earlier entities that an entity is conditioned on, those most like it first."""
        return self._earlier[entity]

    @cached_property
    def _earlier(self) -> list[list[int]]:
        count = min(_CANDIDATES * self.n_neighbours, max(self.n_entities - 1, 1))
        found = self._neighbourhood.earlier(count)
        return self._most_alike(self._places, found, self.n_neighbours)

    def _most_alike(self, points: Tensor, found: Tensor, count: int) -> list[list[int]]:
        """Return for each point (q, d) the entities with the highest correlation among those found, (q, c)."""
        chosen: list[list[int]] = []
        for some, near in zip(points.split(_TOGETHER), found.long().split(_TOGETHER), strict=True):
            others = self._places[near.clamp_min(0)]
            with torch.no_grad():
                covariance = blocks(self.kernel, some[:, None], others)[:, 0]
                scale = self.kernel.diagonal(others.flatten(0, 1)).view(near.shape).clamp_min(_TINY).rsqrt()
            alike = (covariance * scale).masked_fill(near < 0, -torch.inf)
            best = alike.sort(dim=1, descending=True, stable=True).indices[:, :count]
            lists = near.gather(1, best).tolist()
            chosen += [[one for one in entities if one >= 0] for entities in lists]
        return chosen

    def blocks(self, entities: list[int] | None = None) -> Iterator[Block]:
        """Iterate over entities, by default all: the rows of one, (b,), and those of its neighbours, (m,)."""
        for entity in range(self.n_entities) if entities is None else entities:
            yield self.curves[entity], self.rows_of(self.earlier(entity))

    def rows_of(self, entities: list[int]) -> Tensor:
        """Return the rows of some entities, one after the other."""
        none = torch.zeros(0, dtype=torch.long, device=self.X.device)
        return torch.cat([none, *(self.curves[one] for one in entities)])

    def around(self, X: Tensor, n_neighbours: int) -> list[tuple[Tensor, Tensor]]:
        """Return for each entity of points (q, d) their places and the rows that they are predicted from.

        These are the rows of the entity itself, where it has any, and of as many others.
        """
        points, number = distinct_rows(X[:, list(self.entity_columns)])
        counts = torch.bincount(number, minlength=len(points)).tolist()
        places = list(number.argsort(stable=True).split(counts)) if len(X) else []
        known = places_among(points, self._entities).tolist()
        centres = self._at_the_middle(X[torch.stack([one[0] for one in places])]) if places else X[:0]
        count = min(_CANDIDATES * n_neighbours + 1, self.n_entities)
        found = self._neighbourhood.around(centres, count)
        alike = self._most_alike(centres, found, n_neighbours + 1)
        groups = []
        for of_points, own, near in zip(places, known, alike, strict=True):
            others = [one for one in near if one != own][:n_neighbours]
            groups.append((of_points, self.rows_of(others if own < 0 else [own, *others])))
        return groups


class CurvePredictor(LocalPredictor):
    """The best predictors of points from all rows of their entity and of the entities most like it.

    Points of one entity share the factor of these rows.
    """

    def __init__(self, kernel: Kernel, graph: CurveGraph, noise: Tensor, n_neighbours: int, budget: int) -> None:
        self.curves, self.asked = graph, n_neighbours
        longest = max(len(rows) for rows in graph.curves)
        self.n_neighbours = min((n_neighbours + 1) * longest, len(graph.X))
        self.kernel, self._X, self._noise, self._budget = kernel, graph.X, noise, budget
        self._pool = Pool(kernel, graph.X, noise, budget=budget)

    def weights(self, X: Tensor) -> LocalWeights:
        """Return the predictors of points, shape (q, d), which may require gradients."""
        wide = within_reach(X)
        groups = self.curves.around(X.detach(), self.asked)
        width = max((len(near) for _, near in groups), default=0)
        variance, weights = wide.new_zeros(len(X)), wide.new_zeros(len(X), width)
        found = torch.zeros(len(X), width, dtype=torch.long, device=X.device)
        for places, near in groups:
            factor, points = factor_of(self._pool, near), wide[places]
            cross = cross_covariance(self.kernel, points, self._X[near].double(), budget=self._budget)
            half = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
            own = self.kernel.diagonal(points)
            left = (own - half.square().sum(0)).maximum(LOST * own)
            made = torch.linalg.solve_triangular(factor.mT, half, upper=True).mT
            variance = variance.index_put((places,), left)
            weights = weights.index_put((places[:, None], torch.arange(len(near))), made)
            found[places[:, None], torch.arange(len(near))] = near
        rows, local = torch.unique(found, return_inverse=True)
        return LocalWeights(rows, local, weights, variance)

    def predict(self, X: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions and variances; see `LocalPredictor.predict`. Points of an entity go together."""
        order = distinct_rows(X[:, list(self.curves.entity_columns)])[1].argsort(stable=True)
        back = order.argsort()
        found, variance = super().predict(X[order], values)
        return found[back], variance[back]
