"""Rows as the rows nearest to them predict them: random ones, and patches that are left out together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.inference.vecchia.objective import repeats
from gigagp.inference.vecchia.posterior import VecchiaPosterior
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.folds import Fold
from gigagp.neighbours.neighbourhood import NeighbourGraph

#: Random rows that the mean's coefficients come from where patches are left out.
_TREND_ROWS = 1000


class LeftOutRows(NamedTuple):
    """Random rows as the rows nearest to them predict them, noise included."""

    rows: torch.Tensor
    #: target less prediction, shape (q, t)
    residual: torch.Tensor
    #: shape (q,)
    variance: torch.Tensor
    #: whether another row has the same inputs, shape (q,)
    repeated: torch.Tensor

    @classmethod
    def of(cls, pool: Pool, table: TrainingTable, graph: NeighbourGraph, n_neighbours: int, n_rows: int) -> LeftOutRows:
        """Return the predictions at the model of a pool; the mean's coefficients come from the same rows."""
        drawn = torch.randperm(table.n_rows, generator=torch.Generator().manual_seed(3))[:n_rows].to(table.X.device)
        neighbours = graph.neighbourhood.others(drawn, n_neighbours)
        trend = Regression.of(pool, table, [(drawn, neighbours)]).trend
        values = table.Y.double() - table.basis.double() @ trend.coefficients
        found = pool.conditionals(drawn, neighbours, values)
        assert found.residual is not None
        return cls(drawn, found.residual, found.variance, repeats(table.X, drawn, neighbours))

    def densities(self) -> torch.Tensor:
        """Return the negative log density of each row, the mean over targets, shape (q,)."""
        variance = self.variance[:, None]
        return (0.5 * (2 * math.pi * variance).log() + 0.5 * self.residual.square() / variance).mean(1)

    @classmethod
    def in_folds(
        cls, model: Model, table: TrainingTable, folds: Sequence[Fold], n_neighbours: int, width: int
    ) -> LeftOutRows:
        """Return the scored rows of all folds, one fold after the other, as the rows of no fold predict them.

        Rows are conditioned on ``n_neighbours`` earlier ones for the mean's coefficients, and new ones on ``width``.
        """
        rows = torch.cat([one.scored for one in folds])
        is_kept = torch.ones(table.n_rows, dtype=torch.bool, device=rows.device)
        is_kept[torch.cat([one.rows for one in folds])] = False
        kept = is_kept.nonzero()[:, 0]
        rest, own = table.take_rows(kept), model.take_rows(kept)
        graph, pool = NeighbourGraph(model.kernel, rest.X, n_neighbours), pool_of(own, rest)
        drawn = torch.randperm(len(kept), generator=torch.Generator().manual_seed(3))[:_TREND_ROWS].to(rows.device)
        regression = Regression.of(pool, rest, [(drawn, graph.earlier(drawn))])
        mean, variance = VecchiaPosterior(own, rest, graph, width, regression).mean_and_variance(table.X[rows])
        noise = pool_of(model, table).noise[rows]
        nothing = torch.zeros_like(rows, dtype=torch.bool)
        return cls(rows, (table.Y[rows] - mean).double(), variance.double() + noise, nothing)
