"""The posterior of Vecchia inference: every point is predicted from the rows nearest to it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.estimate import Estimate
from gigagp.inference.posterior import SampleFunctions, VarianceMethod
from gigagp.inference.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.saved import Saved
from gigagp.inference.table import TrainingTable
from gigagp.inference.trend import Trend
from gigagp.inference.vecchia.likelihood import Gap, Regression, pool_of
from gigagp.memory import require
from gigagp.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.predictor import LocalPredictor
from gigagp.operators import KernelMatrix
from gigagp.prior_samples import PriorSamples
from gigagp.random import standard_normal
from gigagp.schema import Field, check_tensors, number, record, whole


class VecchiaPosterior(RowsPosterior):
    """Predictions ``w_x' y_N`` from the m rows nearest to each point x, with the variance that they leave.

    The predictor is the best one from these rows, and its variance is exact: it is the variance of the error of this
    predictor, never smaller than that of the exact posterior. Covariances and samples are those of the errors of the
    same predictors, so that they agree with the variances and do not depend on which points are predicted together.

    Parameters
    ----------
    model : Model
        Model at the fitted hyperparameters.
    table : TrainingTable
        Training rows in the model's units.
    graph : NeighbourGraph
        Order of the rows and their neighbours.
    n_neighbours : int
        Neighbours of a point.
    trend : Trend
        Coefficients of the mean's basis.
    value : float
        Vecchia approximation of the log marginal likelihood, summed over targets.
    """

    kind = "vecchia"
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        graph: NeighbourGraph,
        n_neighbours: int,
        trend: Trend,
        value: float,
    ) -> None:
        self.model, self.table, self.budget = model, table, table.budget
        self._graph = graph
        self.coefficients, self.coefficient_root = trend.coefficients.to(table.Y), trend.root.to(table.Y)
        self._value = value
        self._noise = pool_of(model, table).noise
        self._predictor = LocalPredictor(model.kernel, table.X, self._noise, graph, n_neighbours, table.budget)
        basis = table.basis.double()
        self._basis = basis
        self._residuals = table.Y.double() - basis @ self.coefficients.double()

    @classmethod
    def fitted(cls, model: Model, table: TrainingTable, graph: NeighbourGraph, n_neighbours: int) -> VecchiaPosterior:
        """Return the posterior at a model, with the mean's coefficients and the likelihood from all rows."""
        pool = pool_of(model, table)
        every = torch.arange(table.n_rows, device=table.X.device)
        found = Regression.of(pool, table, every, graph.neighbours)
        return cls(model, table, graph, n_neighbours, found.trend, found.value)

    def solver_name(self) -> str:
        """Return the number of neighbours."""
        return f"{self._graph.n_neighbours} neighbours of each row, {self._predictor.n_neighbours} of each new point"

    @cached_property
    def gap(self) -> Gap:
        """What more neighbours of each row would change."""
        return Gap.of(pool_of(self.model, self.table), self._graph)

    def notes(self) -> dict[str, str]:
        """Return the gap."""
        return {"neighbours": self.gap.describe()}

    # Predictions ----------------------------------------------------------------------------------------------------

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean, shape (m, t)."""
        return self.mean_and_variance_given_trend(X)[0]

    def explained_basis(self, X: Tensor) -> Tensor:
        """Return `mean` minus `trend` with the mean's basis functions in place of the targets, shape (m, p)."""
        return self._predictor.predict(X, self._basis)[0].to(X)

    def mean_and_variance(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return the mean (m, t) and the variance (m,) of the latent function; ``method`` has no effect."""
        found, variance = self._predictor.predict(X, torch.cat([self._residuals, self._basis], 1))
        of_targets, of_basis = found.split([self.n_targets, self._basis.shape[1]], 1)
        root = self.trend_root(X, of_basis).double()
        return self.trend(X) + of_targets.to(X), (variance + root.square().sum(1)).to(X)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance at given coefficients of the mean; ``method`` has no effect."""
        found, variance = self._predictor.predict(X, self._residuals)
        return self.trend(X) + found.to(X), variance.to(X)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        """Return the covariance of the errors of the predictors, ``K** - W'K_X* - K_*X W + W'HW``."""
        local = self._predictor.weights(X)
        kernel, rows = self.model.kernel, self.table.X[local.rows].double()
        q, u = len(X), len(rows)
        require(8 * (3 * q * (q + u)), self.budget, f"The covariance of {q:,} points", "")
        wide = X.double()
        weights = wide.new_zeros(q, u).scatter_add(1, local.places, local.weights)
        matrix = KernelMatrix(kernel, rows, self._noise[local.rows] - kernel.white(rows), memory_budget=self.budget)
        inner = weights @ (matrix @ weights.T.contiguous())
        cross = weights @ kernel.block(rows, wide)
        found = kernel.block(wide, wide) - cross - cross.T + inner
        return (0.5 * (found + found.T)).to(X)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions, ``f(x) + w_x' (y - f(X) - noise)`` with prior functions f from random features.

        These samples have the error of the features. At a few thousand points, `sample_at` samples without it.
        """
        kernel, t = self.model.kernel, self.n_targets
        needed = n_samples * t  # targets are independent given the hyperparameters
        prior = PriorSamples.for_sample_functions(kernel, self.n_inputs, needed, generator)
        noise = standard_normal(self.n_rows, needed, generator=generator).to(self._noise)
        at_rows = prior.evaluate(kernel, self.X.double(), self.budget) + self._noise.sqrt()[:, None] * noise
        residuals = self._residuals.repeat_interleave(n_samples, 1) - at_rows

        def evaluate(X: Tensor) -> Tensor:
            values = [
                self.trend(block)[:, :, None]
                + (
                    prior.evaluate(kernel, block.double(), self.budget)
                    + self._predictor.weights(block).combine(residuals)
                )
                .to(block)
                .reshape(len(block), t, n_samples)
                for block in self._predictor.blocks(X, needed)
            ]
            return torch.cat(values) if values else X.new_zeros(0, t, n_samples)

        return evaluate

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the Vecchia approximation on all rows.

        Its standard error is 0, because nothing random is left in it; its distance from the exact likelihood is not
        part of it.
        """
        return Estimate(self._value, 0.0)

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; the order of the rows is found again on loading."""
        tensors = {
            "X": self.table.X,
            "Y": self.table.Y,
            "coefficients": self.coefficients,
            "coefficient_root": self.coefficient_root.contiguous(),
        }
        return tensors, {
            "value": self._value,
            "row_neighbours": self._graph.n_neighbours,
            "point_neighbours": self._predictor.n_neighbours,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> VecchiaPosterior:
        """Return the posterior that `state` described; see `Posterior.from_state`."""
        record({"value": number(), "row_neighbours": whole(1), "point_neighbours": whole(1)})(header, "posterior")
        fields = ROWS | {"coefficients": Field("p t", "real"), "coefficient_root": Field("p p", "real")}
        check_tensors(tensors, fields, saved.sizes)
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        graph = NeighbourGraph(saved.model.kernel, table.X, header["row_neighbours"])
        trend = Trend(tensors["coefficients"], tensors["coefficient_root"])
        return cls(saved.model, table, graph, header["point_neighbours"], trend, header["value"])
