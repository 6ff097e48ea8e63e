"""The posterior of Vecchia inference: every point is predicted from the rows nearest to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from gigagp.errors import MemoryBudgetError
from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import REGRESSION_NUMBERS, REGRESSION_TENSORS, Gap, Regression, pool_of
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.predictor import LocalPredictor, LocalWeights, within_reach
from gigagp.operators import KernelMatrix
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import check_tensors, optional, record, whole


class Predictor(Protocol):
    """What predicts the latent function at points from values of the rows."""

    def predict(self, X: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions (q, k) from values of all rows (n, k), and the variances that they leave (q,)."""


def corrected_functions(
    posterior: RowsPosterior, predictor: Predictor, prior: PriorSamples, corrections: Tensor
) -> SampleFunctions:
    """Return samples as functions, ``trend(x) + g(x) + w_x' c``, from prior functions g, as many for each target.

    The corrections c, shape (n, s), are the values at the rows minus those of the s functions g (and their noise). The
    predictor weights them by ``w_x``.
    """
    kernel, t, s = posterior.model.kernel, posterior.n_targets, corrections.shape[1]

    def evaluate(X: Tensor) -> Tensor:
        flat = prior.evaluate(kernel, X.double(), posterior.budget) + predictor.predict(X, corrections)[0]
        return posterior.trend(X)[:, :, None] + flat.to(X).reshape(len(X), t, s // t)

    return evaluate


#: Change of the logarithm of all covariances that is worth another model.
_LEAST_CHANGE = 0.01
#: Most neighbours of the points of a batch whose covariances are stored, and most points at a time.
_LARGEST_BATCH, _POINTS = 4096, 1024


def amplified_model(model: Model, factor: float) -> Model | None:
    """Return the model with all covariances times a factor; None if it is no clear change, or not all may follow."""
    clear = math.isfinite(factor) and factor > 0 and abs(math.log(factor)) > _LEAST_CHANGE
    return model.amplified(factor) if clear else None


def by_neighbours(predictor: LocalPredictor, X: Tensor, of_one: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the covariances of the errors of predictors within batches, (b, q, d) to (b, q, q).

    Large batches are computed one by one by the function ``of_one``.
    """
    b, q = X.shape[:2]
    if not b or q * predictor.n_neighbours > _LARGEST_BATCH:
        return one_by_one(of_one, X)
    return torch.cat([predictor.covariances(some) for some in X.split(max(1, _POINTS // q))]).to(X)


def error_covariance(posterior: RowsPosterior, local: LocalWeights, noise: Tensor, X: Tensor) -> Tensor:
    """Return the covariance of the errors of predictors with weights W at points X, ``K** - W'K_X* - K_*X W + W'HW``.

    It is float64. ``noise`` is that of the values at the rows, including the kernel's white part.
    """
    kernel, budget = posterior.model.kernel, posterior.budget
    rows, wide = posterior.table.X[local.rows].double(), within_reach(X)
    q, u = len(X), len(rows)
    require(8 * (3 * q * (q + u)), budget, f"The covariance of {q:,} points", "")
    weights = wide.new_zeros(q, u).scatter_add(1, local.places, local.weights)
    matrix = KernelMatrix(kernel, rows, noise[local.rows] - kernel.white(rows), memory_budget=budget)
    inner = weights @ (matrix @ weights.T.contiguous())
    cross = weights @ kernel.block(rows, wide)
    found = kernel.block(wide, wide) - cross - cross.T + inner
    return 0.5 * (found + found.T)


class NeighboursPosterior(RowsPosterior, GrowingPosterior):
    """Predictions ``w_x' y_N`` from some rows near each point x, with the variance that they leave.

    The predictor is the best one from these rows, and its variance is exact: it is the variance of the error of this
    predictor, never smaller than that of the exact posterior. Covariances and samples are those of the errors of the
    same predictors, so that they agree with the variances and do not depend on which points are predicted together.
    """

    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        regression: Regression,
        local: LocalPredictor,
        noise: Tensor,
        predictor: Predictor | None = None,
    ) -> None:
        self.model, self.table, self.budget = model, table, table.budget
        self._regression, trend = regression, regression.trend
        self.coefficients, self.coefficient_root = trend.coefficients.to(table.Y), trend.root.to(table.Y)
        self._local, self._predictor, self._noise = local, predictor or local, noise
        self._basis = table.basis.double()
        self._residuals = table.Y.double() - self._basis @ self.coefficients.double()

    # Predictions ----------------------------------------------------------------------------------------------------

    def mean(self, X: Tensor) -> Tensor:
        return self.mean_and_variance_given_trend(X)[0]

    def explained_basis(self, X: Tensor) -> Tensor:
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
        if X.ndim == 3:
            return by_neighbours(self._local, X, self.covariance_given_trend)
        return error_covariance(self, self._local.weights(X), self._noise, X).to(X)

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
        return corrected_functions(self, self._predictor, prior, residuals)

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the Vecchia approximation on all rows.

        Its standard error is 0, because nothing random is left in it; its distance from the exact likelihood is not
        part of it.
        """
        return Estimate(self._regression.value, 0.0)


class VecchiaPosterior(NeighboursPosterior):
    """Predictions from the m rows nearest to each point."""

    kind = "vecchia"

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        graph: NeighbourGraph,
        n_neighbours: int,
        regression: Regression,
    ) -> None:
        noise = pool_of(model, table).noise
        self._graph = graph
        local = LocalPredictor(model.kernel, table.X, noise, graph, n_neighbours, table.budget)
        super().__init__(model, table, regression, local, noise)

    @classmethod
    def fitted(cls, model: Model, table: TrainingTable, graph: NeighbourGraph, n_neighbours: int) -> VecchiaPosterior:
        """Return the posterior at a model, with the mean's coefficients and the likelihood from all rows."""
        pool = pool_of(model, table)
        return cls(model, table, graph, n_neighbours, Regression.of(pool, table, graph.blocks()))

    def amplified(self) -> VecchiaPosterior:
        """Return the posterior with all covariances multiplied by their most likely factor, if all of them may follow.

        The likelihood of a multiple of the covariance is largest there. Means stay as they are.
        """
        factor = self._regression.amplitude
        model = amplified_model(self.model, factor)
        if model is None:
            return self
        graph, regression = self._graph.with_amplitude_of(model.kernel), self._regression.amplified(factor)
        return VecchiaPosterior(model, self.table, graph, self._local.asked, regression)

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> VecchiaPosterior:
        """Return the posterior given additional rows, which come after all others in the order.

        Predictions are those of a fit to all rows. The likelihood and the mean's coefficients have the neighbours of
        the earlier rows as they were, so that only the new rows are conditioned.
        """
        model, grown = self.model.appended(noise), self.table.appended(X, Y)
        added = self._graph.appended(X.to(grown.X))
        regression = self._regression.with_rows(pool_of(model, grown), grown, added)
        graph = NeighbourGraph(model.kernel, grown.X, self._graph.n_neighbours)
        return VecchiaPosterior(model, grown, graph, self._local.asked, regression)

    def solver_name(self) -> str:
        return f"{self._graph.width} neighbours of each row, {self._local.n_neighbours} of each new point"

    @cached_property
    def _gap(self) -> Gap | None:
        """The gain of more neighbours of each row; None if the memory budget has no room for them."""
        try:
            return Gap.of(pool_of(self.model, self.table), self._graph)
        except MemoryBudgetError:
            return None

    def gap(self) -> Estimate | None:
        """Return the gain of more neighbours of each row, in nats; it costs about a tenth of a second."""
        return None if self._gap is None else Estimate(self._gap.nats, self._gap.standard_error)

    def notes(self) -> dict[str, str]:
        """Return whether rows were left out, the gap, and how many conditional variances were beyond float64."""
        raised = {"floor": self._regression.describe_raised()} if self._regression.raised else {}
        gap = "the memory budget has no room for more of them" if self._gap is None else self._gap.describe()
        return {**self.table.describe_drawn(), "neighbours": gap, **raised}

    def left_out(self) -> LeftOut | None:
        """Return the distribution of each row given all others in the approximation; None if rows were left out.

        The inverse of the approximation of ``H`` is sparse, and its diagonal is exact.
        """
        if self.table.drawn_from is not None:
            return None
        pool, t = pool_of(self.model, self.table), self.n_targets
        values = torch.cat([self._residuals, self._basis], 1)
        solved, precision = torch.zeros_like(values), values.new_zeros(len(values))
        for rows, neighbours in self._graph.blocks():
            found = pool.conditionals(rows, neighbours, values)
            assert found.residual is not None
            scaled, present = found.residual / found.variance[:, None], neighbours >= 0
            to, weights = neighbours[present].long(), found.weights[present]
            of = torch.arange(len(rows), device=rows.device)[:, None].expand_as(present)[present]
            solved.index_add_(0, rows, scaled)
            solved.index_add_(0, to, -weights[:, None] * scaled[of])
            precision.index_add_(0, rows, 1 / found.variance)
            precision.index_add_(0, to, weights.square() / found.variance[of])
        precision = without_trend(precision, solved[:, t:], self.coefficient_root)
        return LeftOut.of(self.table.Y, solved[:, :t], precision)

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; the order of the rows is found again on loading."""
        tensors, numbers = self._regression.state()
        return {"X": self.table.X, "Y": self.table.Y, **tensors}, {
            **numbers,
            "row_neighbours": self._graph.n_neighbours,
            "point_neighbours": self._local.asked,
            "drawn_from": self.table.drawn_from,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> VecchiaPosterior:
        check = REGRESSION_NUMBERS | {"row_neighbours": whole(1), "point_neighbours": whole(1)}
        record(check, {"drawn_from": optional(whole(1))})(header, "posterior")
        check_tensors(tensors, ROWS | REGRESSION_TENSORS, saved.sizes)
        given = tensors["X"], tensors["Y"], saved.model.mean, saved.budget
        table = TrainingTable(*given, drawn_from=header.get("drawn_from"))
        graph = NeighbourGraph(saved.model.kernel, table.X, header["row_neighbours"])
        regression = Regression.from_state(tensors, header, table.n_rows)
        return cls(saved.model, table, graph, header["point_neighbours"], regression)
