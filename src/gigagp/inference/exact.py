"""Exact inference by a Cholesky factor (Rasmussen and Williams 2006, Alg. 2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gigagp.dense import cholesky
from gigagp.estimate import Estimate
from gigagp.fields import Settings
from gigagp.gradients.exact import Exact as ExactGradient
from gigagp.inference.objective import TableObjective
from gigagp.inference.posterior import PathwiseUpdate, Posterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.table import TrainingTable
from gigagp.inference.trend import Trend, estimate_trend
from gigagp.memory import require
from gigagp.model import Model
from gigagp.operators import KernelMatrix
from gigagp.optimization.fisher import fisher_information
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.prior_samples import PriorSamples
from gigagp.random import standard_normal

#: n x n arrays alive at once during an evaluation: H, its factor, its inverse.
_ARRAYS = 3


@dataclass(frozen=True)
class Exact(Settings):
    """Inference without approximation, in O(n^3) time and three n x n arrays.

    When to use: up to a few thousand rows. ``inference="auto"`` takes it up to 3,000 rows where the memory allows.
    """

    def objective(self, table: TrainingTable, generator: torch.Generator) -> ExactObjective:
        """Return the log marginal likelihood of a table."""
        return ExactObjective(table)

    def describe(self) -> str:
        """Return one line for people."""
        return "exact (Cholesky)"


@dataclass
class _Factorised:
    """Everything that one model's factor gives; belongs to that model alone."""

    model: Model
    matrix: KernelMatrix
    factor: torch.Tensor
    solutions: torch.Tensor
    basis_solutions: torch.Tensor
    trend: Trend
    value: float


class ExactObjective(TableObjective):
    """The log marginal likelihood with its exact gradient and, on request, the Fisher information.

    Parameters
    ----------
    table : TrainingTable
    """

    def __init__(self, table: TrainingTable) -> None:
        super().__init__(table)
        n = table.n_rows
        size = table.X.element_size()
        require(
            _ARRAYS * n * n * size,
            table.budget,
            f"Exact inference on {n:,} rows",
            "Use inference=gigagp.inference.Iterative(), or raise memory_budget.",
        )
        self._last: _Factorised | None = None

    @property
    def deterministic(self) -> bool:
        """Exact numbers are."""
        return True

    def _factorise(self, model: Model) -> _Factorised:
        self._last = None  # free the factor of the last model before the next one is made
        table = self.table
        matrix = KernelMatrix(model.kernel, table.X, model.noise_variance, memory_budget=table.budget, storage="dense")
        factor = cholesky(matrix.to_dense())
        basis = table.basis
        solutions = torch.cholesky_solve(torch.cat([table.Y, basis], 1), factor)
        solved_targets, solved_basis = solutions.split([table.n_targets, basis.shape[1]], 1)
        trend = estimate_trend(basis, table.Y, solved_basis)
        residuals = table.Y - basis @ trend.coefficients
        solved = solved_targets - solved_basis @ trend.coefficients
        # Rasmussen and Williams 2006, eq. 2.30, summed over targets
        fit = float((residuals * solved).double().sum())
        log_determinant = 2 * float(factor.diagonal().double().log().sum())
        value = -0.5 * (fit + table.n_targets * (log_determinant + table.n_rows * math.log(2 * math.pi)))
        self._last = _Factorised(model, matrix, factor, solved, solved_basis, trend, value)
        return self._last

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient."""
        state = self._factorise(model)
        gradient = ExactGradient().gradient(state.matrix, state.solutions, state.factor)
        return Evaluation(state.value, gradient)

    def value(self, model: Model) -> float:
        """Return the value alone."""
        return self._factorise(model).value

    def fisher(self, space: ParameterSpace, vector: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        """Return the Fisher information of all observations where `evaluate` was last called."""
        state = self._last
        assert state is not None, "evaluate comes first"
        information = fisher_information(
            state.model, self.table.X, state.factor, space, vector, probes.to(state.factor)
        )
        return self.table.n_targets * information

    def thin(self, rows: torch.Tensor) -> ExactObjective:
        """Return the objective on a subset of the rows."""
        return self.subset(rows)

    def current_posterior(self) -> ExactPosterior | None:
        """Return the posterior where `evaluate` was last called."""
        state = self._last
        if state is None:
            return None
        return ExactPosterior(
            state.model, self.table, state.factor, state.solutions, state.basis_solutions, state.trend, state.value
        )

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> ExactPosterior:
        """Return the posterior at a model."""
        self._factorise(model)
        posterior = self.current_posterior()
        assert posterior is not None
        self._last = None
        return posterior


class ExactPosterior(Posterior):
    """The posterior from a Cholesky factor.

    Parameters
    ----------
    model : Model
    table : TrainingTable
    factor : Tensor of shape (n, n)
    target_solutions : Tensor of shape (n, t)
    basis_solutions : Tensor of shape (n, p)
    trend : Trend
    value : float
        Log marginal likelihood.
    """

    kind = "exact"
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        factor: torch.Tensor,
        target_solutions: torch.Tensor,
        basis_solutions: torch.Tensor,
        trend: Trend,
        value: float,
    ) -> None:
        self.model, self.table, self.factor = model, table, factor
        self.X, self.budget = table.X, table.budget
        self.target_solutions, self.basis_solutions = target_solutions, basis_solutions
        self.coefficients, self.coefficient_root = trend
        self._value = value

    def _whitened(self, X: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(self.factor, self.model.kernel.block(self.X, X), upper=False)

    def _blocks(self, X: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = max(1, self.budget // (4 * self.X.shape[0] * X.element_size()))
        return X.split(min(rows, 1024))

    def solver_name(self) -> str:
        """Return the solver that ran."""
        return "cholesky"

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance, whatever the method; the variance is right to rounding, 1e-12 of the prior's."""
        variances = []
        for block in self._blocks(X):
            explained = self._whitened(block).square().sum(0)  # Rasmussen and Williams 2006, Alg. 2.1, line 6
            # The data never explain more than the prior holds; below zero is rounding of a difference near zero.
            variances.append((self.model.kernel.diagonal(block) - explained).clamp_min(0))
        return self.mean(X), torch.cat(variances) if variances else X.new_zeros(0)

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the full covariance."""
        m = X.shape[0]
        require(3 * m * (m + self.X.shape[0]) * X.element_size(), self.budget, f"The covariance of {m:,} points", "")
        whitened = self._whitened(X)
        return self.model.kernel.block(X, X) - whitened.T @ whitened

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return pathwise samples: random features for the prior, the factor for the update.

        For samples without the features' error at a few thousand points use `sample_at`.
        """
        needed = n_samples * self.n_targets  # targets are independent given the hyperparameters
        prior = PriorSamples.new(self.model.kernel, self.X.shape[1], needed, 4000, generator)
        noise = standard_normal(self.X.shape[0], needed, generator=generator).to(self.X)
        matrix = KernelMatrix(self.model.kernel, self.X, self.model.noise_variance, storage="tiles")
        values = prior.evaluate(self.model.kernel, self.X, self.budget) + matrix.noise().sqrt()[:, None] * noise
        return PathwiseUpdate(self, prior, torch.cholesky_solve(values, self.factor))

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        """Return the variance, and that nothing was left uncomputed."""
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the exact value; its standard error is 0."""
        return Estimate(self._value, 0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what a file needs: the factor is made again on loading."""
        return {"X": self.table.X, "Y": self.table.Y}, {}

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], model: Model, budget: int) -> ExactPosterior:
        """Return the posterior that `state` described."""
        table = TrainingTable(tensors["X"], tensors["Y"], model.mean, budget)
        return ExactObjective(table).posterior(model)
