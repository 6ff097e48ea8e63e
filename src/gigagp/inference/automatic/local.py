"""What is known of a table from rows that are predicted by the rows around them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch

from gigagp.inference.contract.forecast import ratio_of_gains
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.cost import nominal_seconds
from gigagp.inference.vecchia.likelihood import Regression, pool_of
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph

#: Most and fewest rows that are left out one by one; of one in ten, the variance is also computed with half and with
#: twice as many neighbours.
SCORED_ROWS, FEWEST_SCORED_ROWS, _ONE_IN = 2000, 300, 10


class LocalScores(NamedTuple):
    """Scores of random rows that are predicted from the rows nearest to them, and what more of these would gain.

    Attributes
    ----------
    rows : Tensor
        Indices of the rows.
    densities : Tensor
        Negative log density of each given its neighbours, mean over targets, in the units of the model.
    rmse : float
        Root mean square error of a left-out row.
    gain : float
        What exact inference would gain of `nll`. Going from half of the neighbours to all, and from these to twice
        as many, gains the mean Kullback-Leibler divergence of the predictions, ``log(D / D') / 2``. What further
        doublings gain is taken for a geometric series.
    """

    rows: torch.Tensor
    densities: torch.Tensor
    rmse: float
    gain: float

    @property
    def nll(self) -> float:
        """Mean negative log density of a left-out row."""
        return float(self.densities.mean())

    @property
    def nll_error(self) -> float:
        """Its standard error."""
        count = len(self.densities)
        return float(self.densities.std() / count**0.5) if count > 1 else math.inf

    @classmethod
    def of(
        cls, model: Model, table: TrainingTable, graph: NeighbourGraph, n_neighbours: int, n_rows: int = SCORED_ROWS
    ) -> LocalScores:
        """Return the scores of so many rows at a model, whose coefficients of the mean come from the same rows."""
        n = table.n_rows
        pool = pool_of(model, table)
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(3))[:n_rows].to(table.X.device)
        width = min(n_neighbours, n - 1)
        neighbours = graph.neighbourhood.others(drawn, width)
        trend = Regression.of(pool, table, [(drawn, neighbours)]).trend
        values = table.Y.double() - table.basis.double() @ trend.coefficients
        found = pool.conditionals(drawn, neighbours, values)
        assert found.residual is not None
        squares = found.residual.square()
        variance = found.variance[:, None]
        densities = (0.5 * (2 * math.pi * variance).log() + 0.5 * squares / variance).mean(1)
        few = drawn[: math.ceil(len(drawn) / _ONE_IN)]
        widths = [max(width // 2, 1), width, min(2 * width, n - 1)]
        variances = [
            found.variance[: len(few)]
            if one == width
            else pool.conditionals(few, graph.neighbourhood.others(few, one), weights=False).variance
            for one in widths
        ]
        gains = [float(0.5 * (more / less).log().mean()) for more, less in pairwise(variances)]
        return cls(drawn, densities, float(squares.mean().sqrt()), _limit(*gains))


def scored_row_seconds(n_neighbours: int, n_inputs: int) -> float:
    """Return the nominal seconds that a scored row takes."""
    others = sum(nominal_seconds(one, n_inputs) for one in (n_neighbours // 2, 2 * n_neighbours))
    return nominal_seconds(n_neighbours, n_inputs) + others / _ONE_IN


def _limit(before: float, after: float) -> float:
    """Return the sum of the gains of doubling the neighbours again and again, given the last and the next of them."""
    if after <= 0:
        return 0.0
    return after / (1 - ratio_of_gains(before, after))
