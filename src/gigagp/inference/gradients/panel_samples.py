"""Samples of the prior whose values in the cells of a panel are exact, and which are functions elsewhere too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.kernels.features import count_columns, feature_products
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.products import PanelTiles, cross_covariance
from gigagp.products.blocks import ranges
from gigagp.products.panel import Factors
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

    The weights are those of the features, followed by the numbers Z of each product, (N T, s).

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
        n_entities, n_times = panel.known.shape
        count = len(panel.factors(model.kernel)) * n_entities * n_times
        normal = standard_normal(count, n_samples, generator=generator)
        return cls(drawn.draw, torch.cat([drawn.weights, normal]), panel)

    def evaluate(self, kernel: Kernel, X: Tensor, budget: int) -> Tensor:
        """Return the functions at the rows of ``X``, shape (n, s)."""
        kernel = kernel.bind(X.shape[1])
        columns = count_columns(kernel, self.draw)
        cells, weights = self.panel.known, self.weights[:columns].to(X)
        at, factors = self.panel.cells(X), self.panel.factors(kernel)
        pairs = (at.entities, cells.entities), (at.times, cells.times)
        # values of points with a gradient are those of the same functions in a form that has one
        entities, times = (_places(*pair) if not X.requires_grad else torch.full((len(pair[0]),), -1) for pair in pairs)
        inside = (entities[at.entity] >= 0) & (times[at.time] >= 0)
        outside = torch.nonzero(~inside)[:, 0]
        out = X.new_zeros(len(X), weights.shape[1])
        grid_rows = _all_cells(self.panel) if len(outside) else X[:0]
        for group, one in enumerate(factors):
            roots = self._roots(one, budget)
            grid = self._grid(columns, group, roots).to(X)
            found = grid[entities[at.entity[inside]], times[at.time[inside]]]
            out[inside] += found
            if not len(outside):
                continue
            own = self._features(kernel, grid_rows, weights, one.terms, budget).view_as(grid)
            by_entities = _regression(one.entities, at.entities, cells.entities, roots[0], entities, budget)
            by_times = _regression(one.times, at.times, cells.times, roots[1], times, budget)
            half = (by_entities @ (grid - own).flatten(1)).view(len(at.entities), *grid.shape[1:])
            out[outside] += self._features(kernel, X[outside], weights, one.terms, budget)
            out[outside] += torch.einsum("qt,qts->qs", by_times[at.time[outside]], half[at.entity[outside]])
        return out

    def _grid(self, columns: int, group: int, roots: tuple[Tensor, Tensor]) -> Tensor:
        """Return the values of one product in all cells, (N, T, s)."""
        n_entities, n_times = self.panel.known.shape
        count = n_entities * n_times
        normal = self.weights[columns + group * count :][:count].to(roots[0]).view(n_entities, n_times, -1)
        half = (roots[0] @ normal.flatten(1)).view_as(normal)
        return torch.matmul(roots[1], half)

    def _roots(self, factors: Factors, budget: int) -> tuple[Tensor, Tensor]:
        """Return lower factors of the matrices of entities and of times, float64."""
        cells, engine = self.panel.known, self.panel.engine
        pairs = (factors.entities, cells.entities), (factors.times, cells.times)
        return tuple(_root(engine.dense(part, points.double(), budget=budget)) for part, points in pairs)  # type: ignore[return-value]

    def _features(self, kernel: Kernel, X: Tensor, weights: Tensor, terms: tuple[int, ...], budget: int) -> Tensor:
        """Return the part of some terms of the kernel in functions from random features, (n, s)."""
        size = max(1, min(1024, budget // (64 * max(len(weights), 1) * X.element_size())))
        out = X.new_zeros(len(X), weights.shape[1])
        for rows in ranges(len(X), size):
            parts = list(feature_products(kernel, X[rows], self.draw, weights))
            out[rows] = sum(parts[term] for term in terms)
        return out


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


def _places(points: Tensor, known: Tensor) -> Tensor:
    """Return where points (m, d) are among known ones, or -1."""
    lookup = {row.tobytes(): place for place, row in enumerate(known.detach().cpu().numpy() + 0.0)}
    return torch.tensor(
        [lookup.get(row.tobytes(), -1) for row in points.detach().cpu().numpy() + 0.0], dtype=torch.long
    )


def _all_cells(panel: PanelTiles) -> Tensor:
    """Return all cells of a panel as rows, entity by entity."""
    cells, (n_entities, n_times) = panel.known, panel.known.shape
    rows = panel.rows.new_empty(n_entities * n_times, panel.rows.shape[1])
    rows[:, list(cells.entity_columns)] = cells.entities.repeat_interleave(n_times, 0)
    rows[:, list(cells.time_columns)] = cells.times.repeat(n_entities, 1)
    return rows
