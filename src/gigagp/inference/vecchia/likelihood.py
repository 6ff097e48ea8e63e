"""The Vecchia likelihood of a table: its rows as a pool, the mean's coefficients, and the distance from exact."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.table import TrainingTable
from gigagp.inference.trend import Trend
from gigagp.model import Model
from gigagp.neighbours.conditionals import Pool, is_compiled
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.indexing import as_noise

#: Rows of a `Gap`, how many times the neighbours they get, and the largest number of those.
_GAP_ROWS, _GAP_FACTOR, _GAP_NEIGHBOURS = 200, 8, 400
#: Neighbours and rows of `typical_deviation`.
_TYPICAL_NEIGHBOURS, _TYPICAL_ROWS = 30, 200


def pool_of(model: Model, table: TrainingTable) -> Pool:
    """Return the rows of a table with their noise, float64."""
    independent = as_noise(model.noise_variance, table.X[:, 0].double(), "noise_variance")
    return Pool(model.kernel, table.X, independent + model.kernel.white(table.X).double(), budget=table.budget // 4)


class Regression(NamedTuple):
    """The mean's coefficients by generalised least squares in the approximation, and the likelihood there.

    Attributes
    ----------
    trend : Trend
        Coefficients of the mean's basis.
    value : float
        Log density of the rows given their neighbours, summed over targets.
    """

    trend: Trend
    value: float

    @classmethod
    def of(cls, pool: Pool, table: TrainingTable, rows: Tensor, neighbours: Tensor) -> Regression:
        """Return the coefficients from some rows, shape (q,), and their neighbours, shape (q, m)."""
        basis = table.basis.double()
        found = pool.conditionals(rows, neighbours, torch.cat([table.Y.double(), basis], 1), weights=False)
        assert found.residual is not None
        whitened = found.residual / found.variance.sqrt()[:, None]
        of_targets, of_basis = whitened.split([table.n_targets, basis.shape[1]], 1)
        trend = Trend.from_products(of_basis.T @ of_basis, of_basis.T @ of_targets)
        fit = float((of_targets - of_basis @ trend.coefficients).square().sum())
        constant = found.log_variance + len(rows) * math.log(2 * math.pi)
        return cls(trend, -0.5 * (fit + table.n_targets * constant))


class Gap(NamedTuple):
    """What more neighbours would change: the mean of ``log(D / D') / 2`` over random rows, in nats.

    D is the variance of a row given its neighbours, and D' that given many more. The mean is the Kullback-Leibler
    divergence of the two approximations for each row. As D' is not the exact variance, it is a lower bound of the
    divergence from the exact process.

    Attributes
    ----------
    nats : float
        The mean; never negative but for rounding.
    standard_error : float
        Of the mean over all rows.
    neighbours : int
        Neighbours behind D'.
    """

    nats: float
    standard_error: float
    neighbours: int

    @classmethod
    def of(cls, pool: Pool, graph: NeighbourGraph) -> Gap:
        """Return the gap of a graph at 200 random rows."""
        n = len(graph.order)
        m = min(graph.n_neighbours, max(n - 1, 1))
        more = min(_GAP_FACTOR * m, max(_GAP_NEIGHBOURS, m), max(n - 1, 1))
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(2))[:_GAP_ROWS].to(graph.order.device)
        few = pool.conditionals(rows, graph.neighbourhood.earlier(m, rows), weights=False).variance
        many = pool.conditionals(rows, graph.neighbourhood.earlier(more, rows), weights=False).variance
        nats = 0.5 * (few / many).log()
        error = float(nats.std() / len(rows) ** 0.5) if 1 < len(rows) < n else 0.0
        return cls(float(nats.mean()), error, more)

    def describe(self) -> str:
        """Return the gap in words."""
        return (
            f"with {self.neighbours} neighbours a row's density would be {self.nats:.2g} nats sharper (standard error "
            f"{self.standard_error:.1g}, from {_GAP_ROWS} rows)"
        )


def typical_deviation(matrix: KernelMatrix) -> float:
    """Return the standard deviation with which a row's value is predicted; that of its noise where this is slow.

    It is the median over late rows of the neighbours' order, whose earlier neighbours are nearly their nearest rows.
    """
    noise = matrix.noise().double()
    if not is_compiled(matrix.kernel, matrix.device) or matrix.n == 1:
        return float(noise.mean().sqrt())
    graph = NeighbourGraph(matrix.kernel, matrix.X, _TYPICAL_NEIGHBOURS)
    late = graph.order[-max(1, matrix.n // 4) :]
    rows = late[:: max(1, len(late) // _TYPICAL_ROWS)]
    pool = Pool(matrix.kernel, matrix.X, noise, budget=matrix.memory_budget // 4)
    neighbours = graph.neighbourhood.earlier(min(_TYPICAL_NEIGHBOURS, matrix.n - 1), rows)
    return float(pool.conditionals(rows, neighbours, weights=False).variance.median().sqrt())
