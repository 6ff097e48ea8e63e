"""The Vecchia likelihood of a table: its rows as a pool, the mean's coefficients, and the distance from exact."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import Pool, is_compiled
from gigagp.neighbours.local import LOST, gram, total
from gigagp.neighbours.neighbourhood import Block, NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.indexing import as_noise
from gigagp.runtime import interruption
from gigagp.runtime.progress import current
from gigagp.settings.schema import Field, number, whole

#: What a model file has of a `Regression`.
REGRESSION_NUMBERS = {"squares": number(), "log_variance": number(), "raised": whole(0)}
REGRESSION_TENSORS = {
    name: Field(shape, "float64")
    for name, shape in {"coefficients": "p t", "coefficient_root": "p p", "gram": "p p"}.items()
}
#: Rows of a `Gap`, how many times the neighbours they get, and the largest number of those.
_GAP_ROWS, _GAP_FACTOR, _GAP_NEIGHBOURS = 200, 8, 400
#: Neighbours and rows of `typical_deviation`, and the least deviation that it returns, in units of the noise's.
_TYPICAL_NEIGHBOURS, _TYPICAL_ROWS, _TYPICAL_FLOOR = 30, 200, 0.1


def pool_of(model: Model, table: TrainingTable) -> Pool:
    """Return the rows of a table with their noise, float64."""
    independent = as_noise(model.noise_variance, table.X[:, 0].double(), "noise_variance")
    return Pool(model.kernel, table.X, independent + model.kernel.white(table.X).double(), budget=table.budget // 4)


class Whitened(NamedTuple):
    """Residuals of values of some rows over their standard deviations, shape (q, k), and sums over these rows."""

    values: Tensor
    log_variance: float
    raised: int

    @classmethod
    def of(cls, pool: Pool, values: Tensor, blocks: Iterable[Block]) -> Whitened:
        """Return them from values of all rows of a pool."""
        parts, log_variance, raised = [values.new_zeros(0, values.shape[1])], 0.0, 0
        done = 0
        for rows, neighbours in blocks:
            interruption.check()
            found = pool.conditionals(rows, neighbours, values, weights=False)
            assert found.residual is not None
            parts.append(found.residual / found.variance.sqrt()[:, None])
            log_variance += found.log_variance
            raised += found.raised
            done += len(rows)
            current().within(done / len(values))
        return cls(torch.cat(parts), log_variance, raised)

    def products(self, n_targets: int) -> tuple[Tensor, Tensor]:
        """Return the products of all columns but the first ``n_targets`` with each other and with the first ones."""
        products = gram(self.values)
        return products[n_targets:, n_targets:], products[n_targets:, :n_targets]


class Regression(NamedTuple):
    """The mean's coefficients by generalised least squares in the approximation, and the likelihood there.

    All tensors are float64, and all sums are over rows that are conditioned on their neighbours.
    """

    trend: Trend  # coefficients of the mean's basis
    gram: Tensor  # products ``sum_i phi_i phi_i' / D_i`` of the residuals of the basis functions, (p, p)
    #: the sum of ``r_i^2 / D_i`` for the residuals of the targets at these coefficients, over targets too
    squares: float
    log_variance: float  # the sum of ``log D_i``
    n_rows: float
    raised: int  # rows whose D was below `LOST` of their prior variance, and was raised to it

    @classmethod
    def of(cls, pool: Pool, table: TrainingTable, blocks: Iterable[Block]) -> Regression:
        """Return the coefficients from rows and their neighbours."""
        found = Whitened.of(pool, torch.cat([table.Y.double(), table.basis.double()], 1), blocks)
        return cls.of_whitened(found, table.n_targets)

    @classmethod
    def of_whitened(cls, found: Whitened, n_targets: int) -> Regression:
        """Return the coefficients from whitened residuals of targets and then of the basis functions."""
        of_targets, of_basis = found.values.split([n_targets, found.values.shape[1] - n_targets], 1)
        gram, cross = found.products(n_targets)
        trend = Trend.from_products(gram, cross)
        squares = total((of_targets - of_basis @ trend.coefficients).square())
        return cls(trend, gram, squares, found.log_variance, len(found.values), found.raised)

    def with_rows(self, pool: Pool, table: TrainingTable, blocks: Iterable[Block]) -> Regression:
        """Return the coefficients from further rows too, which the blocks name; pool and table are those of all rows.

        With the change ``a`` of the coefficients that the further rows ask for, the squares of the earlier rows grow by
        ``a' gram a``, because these were least squares.
        """
        basis = table.basis.double()
        residuals = table.Y.double() - basis @ self.trend.coefficients
        found = Whitened.of(pool, torch.cat([residuals, basis], 1), blocks)
        of_targets, of_basis = found.values.split([table.n_targets, basis.shape[1]], 1)
        gram, cross = found.products(table.n_targets)
        gram = self.gram + gram
        moved = Trend.from_products(gram, cross)
        change = moved.coefficients
        squares = total((of_targets - of_basis @ change).square()) + float((change * (self.gram @ change)).sum())
        return Regression(
            moved._replace(coefficients=self.trend.coefficients + change),
            gram,
            self.squares + squares,
            self.log_variance + found.log_variance,
            self.n_rows + len(found.values),
            self.raised + found.raised,
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the tensors and numbers of a model file; the number of rows is that of the table."""
        tensors = {
            "coefficients": self.trend.coefficients,
            "coefficient_root": self.trend.root.contiguous(),
            "gram": self.gram,
        }
        return tensors, {"squares": self.squares, "log_variance": self.log_variance, "raised": self.raised}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], n_rows: int) -> Regression:
        """Return the regression of a file whose tensors and numbers have been checked."""
        trend = Trend(tensors["coefficients"], tensors["coefficient_root"])
        return cls(trend, tensors["gram"], header["squares"], header["log_variance"], n_rows, header["raised"])

    @property
    def amplitude(self) -> float:
        """The most likely common factor of all covariances, the mean of ``r_i^2 / D_i`` over rows and targets."""
        return self.squares / (self.n_rows * self.trend.coefficients.shape[1])

    def amplified(self, factor: float) -> Regression:
        """Return the regression after all covariances were multiplied by a factor; coefficients stay as they are."""
        return self._replace(
            trend=self.trend._replace(root=math.sqrt(factor) * self.trend.root),
            gram=self.gram / factor,
            squares=self.squares / factor,
            log_variance=self.log_variance + self.n_rows * math.log(factor),
        )

    @property
    def value(self) -> float:
        """Log density of the rows given their neighbours, summed over targets."""
        n_targets = self.trend.coefficients.shape[1]
        return -0.5 * (self.squares + n_targets * (self.log_variance + self.n_rows * math.log(2 * math.pi)))

    def describe_raised(self) -> str:
        """Return in words how many rows were raised."""
        return (
            f"the neighbours of {self.raised:,} rows leave less than {LOST:g} of their variance, which is beyond "
            "float64, and this share was taken; the likelihood says little there"
        )


class Gap(NamedTuple):
    """The gain of more neighbours: the mean of ``log(D / D') / 2`` over random rows, in nats.

    D is the variance of a row given its neighbours, and D' that given many more. The mean is the Kullback-Leibler
    divergence of the two approximations for each row. As D' is not the exact variance, it is a lower bound of the
    divergence from the exact process. It is never negative but for rounding.
    """

    nats: float
    standard_error: float
    neighbours: int  # behind D'

    @classmethod
    def of(cls, pool: Pool, graph: NeighbourGraph) -> Gap:
        """Return the gap of a graph at 200 random rows."""
        n, m = len(graph.order), graph.width
        more = min(_GAP_FACTOR * m, max(_GAP_NEIGHBOURS, m), max(n - 1, 1))
        rows = torch.randperm(n, generator=torch.Generator().manual_seed(2))[:_GAP_ROWS].to(graph.order.device)
        few = pool.conditionals(rows, graph.earlier(rows), weights=False).variance
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
    """Return the standard deviation with which the latent function is predicted at a row from those around it.

    It is the median over late rows of the neighbours' order, whose earlier neighbours are nearly their nearest rows. At
    least it is a tenth of the noise's deviation, and a third of that where neighbours would be slow.
    """
    noise = matrix.noise().double()
    if not is_compiled(matrix.kernel) or matrix.n == 1:
        return float(noise.mean().sqrt()) / 3
    graph = NeighbourGraph(matrix.kernel, matrix.X, _TYPICAL_NEIGHBOURS)
    late = graph.order[-max(1, matrix.n // 4) :]
    rows = late[:: max(1, len(late) // _TYPICAL_ROWS)]
    pool = Pool(matrix.kernel, matrix.X, noise, budget=matrix.memory_budget // 4)
    neighbours = graph.neighbourhood.earlier(min(_TYPICAL_NEIGHBOURS, matrix.n - 1), rows)
    variance = pool.conditionals(rows, neighbours, weights=False).variance
    latent = (variance - noise[rows]).maximum(_TYPICAL_FLOOR**2 * noise[rows])
    return float(latent.median().sqrt())
