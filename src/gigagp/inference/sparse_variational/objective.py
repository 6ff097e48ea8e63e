"""Base class of the collapsed and the stochastic bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.contract.weight_space import RowSums, WeightSpace
from gigagp.inference.sparse_variational.points import InducingPoints, require_points, row_blocks
from gigagp.inference.sparse_variational.posterior import (
    SparsePosterior,
    SparseSums,
    SparseTrend,
    sums_of_points,
    zeros_of_sums,
)
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.runtime.processes import sum_of_rows
from gigagp.settings.fields import Count, Settings, ShareBelowOne
from gigagp.solvers.preconditioners import pivoting

POINTS = "inducing_points"
#: Choice of the initial inducing points.
StartRule = Literal["kmeans++", "greedy", "random"]


@dataclass(frozen=True)
class SparseSettings(Settings):
    """The fields of `gigagp.inference.SparseVariational`, which documents them."""

    n_inducing: Count = 512
    batch_size: Count | None = None
    start: StartRule = "kmeans++"
    learn_inducing_points: bool = True
    jitter: ShareBelowOne = 1e-8

    @property
    def method(self) -> str:
        """Name of the method: ``"SGPR"`` or ``"SVGP"``."""
        return "SGPR" if self.batch_size is None else "SVGP"


class SparseObjective(TableObjective):
    """A lower bound of the log marginal likelihood of a table.

    The generator is the source of the initial points and of minibatches.
    """

    is_likelihood = False

    def __init__(self, settings: SparseSettings, table: TrainingTable, generator: torch.Generator) -> None:
        super().__init__(table)
        self.settings = settings
        self.count = min(settings.n_inducing, table.n_rows)
        self.batch_size = min(settings.batch_size or 1, table.n_rows)
        require_points(self.count, table, self.batch_size)
        self.seed = int(torch.randint(2**62, (), generator=generator))
        self._fixed: Tensor | None = None
        # Subtract a least-squares trend from the targets, because a large mean would lose digits in sums of squares.
        # The difference to the optimal trend is estimated with the rest.
        basis = table.basis.double()
        self._trend = Trend.from_products(basis.T @ basis, basis.T @ table.Y.double()).coefficients
        self._targets = table.Y.double() - basis @ self._trend

    # Rows -----------------------------------------------------------------------------------------------------------

    def _blocks(self, within: slice) -> Iterator[slice]:
        return row_blocks(within, self.count, self.table.budget, self.table.X.device)

    def _known(self, rows: slice | Tensor) -> Tensor:
        """Return targets minus the least-squares trend, and the mean's basis, shape (rows, t + p), float64."""
        X = self.table.X[rows]
        return torch.cat([self._targets[rows], self.table.mean.basis(X).to(self._targets)], 1)

    def _noise(self, model: Model, rows: slice | Tensor) -> Tensor:
        """Return the noise variances of rows in float64, including the kernel's white terms."""
        return model.noise_of_rows(rows, self.table.X[rows].double()).detach()

    # Inducing points ------------------------------------------------------------------------------------------------

    def start(self, model: Model) -> Model:
        """Return the model with inducing points, chosen among the rows if it has none; fixed points are stored here."""
        if POINTS in model.free or self._fixed is not None:
            return model
        generator = torch.Generator().manual_seed(self.seed)
        points = choose_points(self.settings.start, model, self.table, self.count, generator)
        if self.settings.learn_inducing_points:
            return replace(model, free={**model.free, POINTS: points.cpu()})
        self._fixed = points
        return model

    def points(self, model: Model) -> InducingPoints:
        """Return the inducing points of a model that `start` has returned, with their factor."""
        found = self._fixed if self._fixed is not None else model.free[POINTS]
        return InducingPoints(model.kernel, found.to(self._targets), self.settings.jitter)

    @torch.no_grad()
    def optimum(self, model: Model, points: InducingPoints) -> tuple[RowSums, WeightSpace, float]:
        """Return the sums over rows, the optimal distribution of the whitened inducing values, and the collapsed bound.

        With features ``F = K(X, Z) L^-T``, the bound of Titsias (2009, eq. 9) is the log likelihood of a model with
        these features minus ``sum_i (k(x_i, x_i) - f_i' f_i) / (2 noise_i)`` for each target.
        """
        n, width = self.table.n_rows, self.table.n_targets + len(self._trend)

        def sums_of(within: slice) -> list[Tensor]:
            blocks = (
                (self.table.X[rows].double(), self._known(rows), self._noise(model, rows))
                for rows in self._blocks(within)
            )
            return sums_of_points(model, points, blocks, width)

        like = zeros_of_sums(points, width)
        *found, unexplained = sum_of_rows(sums_of, like, n, points.count, "sums of inducing points", points.factor)
        sums, self._unexplained = RowSums(*found), float(unexplained)
        space = WeightSpace.fit(sums, n, self.table.n_targets)
        return sums, space, space.value - 0.5 * self.table.n_targets * self._unexplained

    # Posteriors -----------------------------------------------------------------------------------------------------

    def _posterior(
        self,
        model: Model,
        points: InducingPoints,
        mean: Tensor,
        root: Tensor,
        trend: SparseTrend,
        value: float,
        sums: SparseSums | None = None,
    ) -> SparsePosterior:
        """Return the posterior for whitened inducing values with the distribution ``N(mean, root root')``."""
        return SparsePosterior(
            model,
            points,
            mean,
            root,
            trend._replace(coefficients=self._trend + trend.coefficients),
            value,
            method=self.settings.method,
            n_rows=self.table.n_rows,
            dtype=self.table.X.dtype,
            budget=self.table.budget,
            sums=sums,
        )


# Initial inducing points, chosen among the distinct training rows -----------------------------------------------------


#: Number of candidate rows per inducing point, and smallest number of candidate rows.
_ROWS_PER_POINT, _LEAST_ROWS = 20, 10_000
#: Memory of the greedy choice per row and point: a float64 column, and the same again while it grows.
_BYTES_PER_ENTRY = 32


def choose_points(rule: str, model: Model, table: TrainingTable, count: int, generator: torch.Generator) -> Tensor:
    """Return up to ``count`` distinct training rows, shape (m, d), float64: all, if the table has no more.

    The rule is `gigagp.inference.SparseVariational.start`. The model's kernel measures distances and variances.
    """
    n = table.n_rows
    affordable = max(table.budget // (_BYTES_PER_ENTRY * count), count)
    wanted = min(max(_ROWS_PER_POINT * count, _LEAST_ROWS), affordable)
    looked_at = torch.randperm(n, generator=generator)[:wanted]
    X = torch.unique(table.X[looked_at.to(table.X.device)].double(), dim=0)
    if len(X) < count and len(looked_at) < n:
        X = torch.unique(table.X.double(), dim=0)
    # `unique` sorts the rows, so shuffle them again
    X = X[torch.randperm(len(X), generator=generator).to(X.device)]
    count = min(count, len(X))
    if rule == "random" or count == len(X):
        return X[:count].clone()
    matrix = KernelMatrix(model.kernel, X, memory_budget=table.budget, storage="tiles")
    chosen = _spread(matrix.coordinates(), count, generator) if rule == "kmeans++" else _greedy(matrix, count)
    return X[chosen].clone()


def _greedy(matrix: KernelMatrix, count: int) -> Tensor:
    """Return the rows of largest variance given the previous ones (Burt et al. 2020, section 4.2).

    If no variance above rounding is left, the first of the remaining rows follow: they matter once lengthscales shrink.
    """
    chosen = pivoting.greedy(matrix, count).pivots
    others = torch.ones(matrix.n, dtype=torch.bool, device=chosen.device)
    others[chosen] = False
    return torch.cat([chosen, others.nonzero()[: count - len(chosen), 0]])


def _spread(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return rows drawn in proportion to their squared distance from earlier ones (Arthur and Vassilvitskii 2007)."""
    chosen = [int(torch.randint(len(points), (), generator=generator))]
    nearest = torch.full_like(points[:, 0], torch.inf)
    for _ in range(count - 1):
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).square().sum(1))
        nearest[chosen[-1]] = 0.0
        cumulative = nearest.cumsum(0)
        if not float(cumulative[-1]) > 0:  # for the kernel, all remaining rows coincide with chosen ones
            rest = torch.ones(len(points), dtype=torch.bool)
            rest[chosen] = False
            chosen.extend(rest.nonzero()[: count - len(chosen), 0].tolist())
            break
        draw = torch.rand((), generator=generator, dtype=torch.float64).to(cumulative) * cumulative[-1]
        chosen.append(min(int(torch.searchsorted(cumulative, draw, right=True)), len(points) - 1))
    return torch.tensor(chosen, device=points.device)
