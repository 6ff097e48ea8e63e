"""Samples of the prior whose values in the cells of a panel are exact, and which are functions elsewhere too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.kernels.features import count_columns, feature_products
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.products import PanelTiles, cross_covariance
from gigagp.products.blocks import ranges
from gigagp.products.panel import Cells, Factors, places_among
from gigagp.settings.random import standard_normal

#: Addition to a factor's diagonal as a share of its mean, which has no visible effect on samples.
_JITTER = 1e-11


@dataclass(frozen=True)
class PanelSamples(PriorSamples):
    """Functions ``f_j = sum_g f_gj`` with exact values ``L_S Z L_T'`` in the cells of a panel, for each product g.

    Elsewhere, a function is what its values in the cells say of it, plus what they leave open of a function ``h_gj``
    from random features: ``f(x) = h(x) + K(x, cells) K(cells, cells)^-1 (f - h)(cells)``, where the matrix between x
    and the cells is again a product of two factors. Random features alone have an error of some percent of the prior's
    variance everywhere, which is far above the posterior's where the noise is low.

    The weights are those of the features, followed by the numbers Z of each product, (N T, s). N or T is 1 where a
    product does not depend on the entity or on the time.

    Attributes
    ----------
    panel : PanelTiles
        The panel of the rows that the samples were drawn for.
    """

    panel: PanelTiles

    @classmethod
    def of_panel(
        cls, model: Model, panel: PanelTiles, n_samples: int, n_features: int, generator: torch.Generator, law: str
    ) -> PanelSamples:
        """Draw the features and all numbers."""
        drawn = PriorSamples.new(model.kernel, model.n_inputs, n_samples, n_features, generator, law)
        normal = standard_normal(sum(count_numbers(panel, model.kernel)), n_samples, generator=generator)
        return cls(drawn.draw, torch.cat([drawn.weights, normal]), panel)

    def evaluate(self, kernel: Kernel, X: Tensor, budget: int) -> Tensor:
        """Return the functions at the rows of ``X``, shape (n, s)."""
        kernel = kernel.bind(X.shape[1])
        columns = count_columns(kernel, self.draw)
        cells, weights, weights_of_cells = self.panel.known, self.weights[:columns].to(X), self.weights[columns:]
        at, factors = self.panel.cells(X), self.panel.factors(kernel)
        pairs = (at.entities, cells.entities), (at.times, cells.times)
        # values of points with a gradient are those of the same functions in a form that has one
        entities, times = (
            places_among(*pair) if not X.requires_grad else torch.full((len(pair[0]),), -1) for pair in pairs
        )
        inside = (entities[at.entity] >= 0) & (times[at.time] >= 0)
        outside = torch.nonzero(~inside)[:, 0]
        out = X.new_zeros(len(X), weights.shape[1])
        in_cells, at_outside = (
            self._features(kernel, rows, weights, factors, budget)
            for rows in (_all_cells(self.panel) if len(outside) else X[:0], X[outside])
        )
        numbers = weights_of_cells.split(count_numbers(self.panel, kernel))
        for group, one in enumerate(factors):
            here, there = one.merged(cells), one.merged(at)
            roots = self._roots(one, here, budget)
            grid = _grid(numbers[group], roots).to(X)
            # the numbers of the rows' entities and times; one that all share is known
            of_entities = entities if len(here.entities) == len(cells.entities) else entities.new_zeros(1)
            of_times = times if len(here.times) == len(cells.times) else times.new_zeros(1)
            out[inside] += grid[of_entities[there.entity[inside]], of_times[there.time[inside]]]
            if not len(outside):
                continue
            own = in_cells[group].view(*cells.shape, -1)[: grid.shape[0], : grid.shape[1]]
            by_entities = _regression(one.entities, there.entities, here.entities, roots[0], of_entities, budget)
            by_times = _regression(one.times, there.times, here.times, roots[1], of_times, budget)
            half = (by_entities @ (grid - own).flatten(1)).view(len(there.entities), *grid.shape[1:])
            out[outside] += at_outside[group]
            out[outside] += torch.einsum("qt,qts->qs", by_times[there.time[outside]], half[there.entity[outside]])
        return out

    def _roots(self, factors: Factors, cells: Cells, budget: int) -> tuple[Tensor, Tensor]:
        """Return lower factors of the matrices of entities and of times, float64."""
        pairs, engine = ((factors.entities, cells.entities), (factors.times, cells.times)), self.panel.engine
        return tuple(_root(engine.dense(part, points.double(), budget=budget)) for part, points in pairs)  # type: ignore[return-value]

    def _features(self, kernel: Kernel, X: Tensor, weights: Tensor, factors: list[Factors], budget: int) -> Tensor:
        """Return the part of each product in functions from random features, (number of products, n, s)."""
        size = max(1, min(1024, budget // (64 * max(len(weights), 1) * X.element_size())))
        out = X.new_zeros(len(factors), len(X), weights.shape[1])
        for rows in ranges(len(X), size):
            parts = list(feature_products(kernel, X[rows], self.draw, weights))
            for group, one in enumerate(factors):
                out[group, rows] = sum(parts[term] for term in one.terms)
        return out


def count_numbers(panel: PanelTiles, kernel: Kernel) -> list[int]:
    """Return how many numbers Z each product of a kernel has."""
    return [math.prod(factors.merged(panel.known).shape) for factors in panel.factors(kernel)]


def _grid(numbers: Tensor, roots: tuple[Tensor, Tensor]) -> Tensor:
    """Return ``L_S Z L_T'`` for the numbers (N T, s), shape (N, T, s)."""
    Z = numbers.to(roots[0]).view(len(roots[0]), len(roots[1]), -1)
    return torch.matmul(roots[1], (roots[0] @ Z.flatten(1)).view_as(Z))


def _root(matrix: Tensor) -> Tensor:
    """Return a lower factor of a covariance matrix, which is singular up to rounding."""
    share, scale = _JITTER, float(matrix.diagonal().mean()) or 1.0
    while True:
        lifted = matrix + torch.eye(len(matrix), dtype=matrix.dtype) * (share * scale)
        factor, info = torch.linalg.cholesky_ex(lifted)
        if int(info) == 0 or share > 1e-3:
            return factor
        share *= 10


def _regression(kernel: Kernel, X: Tensor, points: Tensor, root: Tensor, places: Tensor, budget: int) -> Tensor:
    """Return ``K(X, points) K(points, points)^-1``, exact unit vectors for those of X that are among the points."""
    cross = cross_covariance(kernel, X, points, budget=budget)
    found = torch.cholesky_solve(cross.T.to(root), root).T.to(X)
    if X.requires_grad:
        return found
    known = torch.nonzero(places >= 0)[:, 0]
    found[known] = 0.0
    found[known, places[known]] = 1.0
    return found


def _all_cells(panel: PanelTiles) -> Tensor:
    """Return all cells of a panel as rows, entity by entity."""
    cells, (n_entities, n_times) = panel.known, panel.known.shape
    rows = panel.rows.new_empty(n_entities * n_times, panel.rows.shape[1])
    rows[:, list(cells.entity_columns)] = cells.entities.repeat_interleave(n_times, 0)
    rows[:, list(cells.time_columns)] = cells.times.repeat(n_entities, 1)
    return rows
