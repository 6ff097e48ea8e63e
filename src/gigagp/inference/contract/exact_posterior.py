"""Exact inference by a Cholesky factor (Rasmussen and Williams 2006, Alg. 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gigagp.errors import SolverWarning, warn
from gigagp.inference.contract.areas import restored
from gigagp.inference.contract.batches import by_batches, prior_covariance, within_batches
from gigagp.inference.contract.by_factor import SolvedByFactor
from gigagp.inference.contract.input_gradients import recomputed, wants_gradient
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.posterior import GroupEffect, GrowingPosterior, VarianceMethod, VarianceParts
from gigagp.inference.contract.rows_posterior import PathwiseUpdate, SolvedPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.kernels import Group
from gigagp.kernels.composite import group_terms, summands
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.neighbours.folds import Fold
from gigagp.operators import RowsMatrix
from gigagp.operators.indexing import as_noise
from gigagp.products.dense import cholesky
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal

#: n x n arrays alive at once during the computation of the factor and the gradient: the factor of H in the place of H,
#: its inverse, and weights of the gradient.
_ARRAYS = 3
#: Least noise variance, over the rounding of float32 and the trace of the kernel matrix, with which H is factorised in
#: float32. Below, means were off by up to .7 of a standard deviation (600 rows, four kernels), and factors failed.
_LEAST_NOISE = 8.0
#: Largest number of covariances between points and rows that are computed once for all moments, and whose graph is kept
#: for a backward pass (8 MiB).
_FEW_COVARIANCES = 2**18


def require_factor(table: TrainingTable) -> None:
    """Raise `MemoryBudgetError` if the factor of ``H`` and its gradient do not fit the memory budget."""
    n = table.n_rows
    require(
        _ARRAYS * n * n * table.X.element_size(),
        table.budget,
        f"Exact inference on {n:,} rows",
        "Use inference=gigagp.inference.Iterative(), or raise memory_budget.",
    )


@dataclass
class Factorised:
    """``H`` at one model with its Cholesky factor, and the quantities computed from the factor."""

    model: Model
    table: TrainingTable  # the rows, in float64 where float32 is too coarse for the noise of the model
    matrix: RowsMatrix  # ``H``
    factor: torch.Tensor  # lower Cholesky factor of ``H``, (n, n)
    solutions: torch.Tensor  # ``H^-1 (Y - mean)``, (n, t)
    basis_solutions: torch.Tensor  # ``H^-1`` times the mean's basis, (n, p)
    trend: Trend  # coefficients of the mean's basis by generalised least squares
    value: float  # log marginal likelihood, summed over targets

    @classmethod
    def of(cls, model: Model, table: TrainingTable) -> Factorised:
        """Factorise ``H`` of a model on a table; in float64 where rounding in float32 would show beside the noise."""
        if _is_coarse(model, table):
            table = table.in_float64()
            require_factor(table)
        matrix = table.matrix(model.kernel, model.noise_variance)
        return cls.from_factor(model, table, matrix, cholesky(matrix.to_dense(), overwrite=True))

    def with_rows(self, model: Model, table: TrainingTable) -> Factorised:
        """Return ``H`` of a table that begins with these rows, with its factor, in O(n^2) time for each further row.

        With ``B = L^-1 H_12``, the factor's further rows are ``[B', chol(H_22 - B' B)]``.
        """
        matrix = table.matrix(model.kernel, model.noise_variance)
        n = len(self.factor)
        further = matrix.block(slice(n, None), slice(None))
        below = torch.linalg.solve_triangular(self.factor, further[:, :n].T, upper=False).T
        factor = further.new_zeros(table.n_rows, table.n_rows)
        factor[:n, :n], factor[n:, :n] = self.factor, below
        factor[n:, n:] = cholesky(further[:, n:] - below @ below.T, "the matrix of the new rows given the others")
        return self.from_factor(model, table, matrix, factor)

    @classmethod
    def from_factor(cls, model: Model, table: TrainingTable, matrix: RowsMatrix, factor: torch.Tensor) -> Factorised:
        """Return ``H`` with a factor of it, and solve with that for what follows."""
        return cls(model, table, matrix, factor, *SolvedByFactor.of(table.Y, table.basis, factor))


def _is_coarse(model: Model, table: TrainingTable) -> bool:
    """Whether a factor in the table's float32 has errors that show beside the noise.

    Rounding moves the entries of ``H`` by a few units of the last digit, and so its eigenvalues, in the norm, by up to
    that share of the trace.
    """
    if table.X.dtype == torch.float64:
        return False
    noise = as_noise(model.noise_variance, table.X[:, 0].double(), "noise_variance") + model.kernel.white(table.X)
    trace = float(model.kernel.diagonal(table.X).double().sum())
    return float(noise.min()) < _LEAST_NOISE * torch.finfo(torch.float32).eps * trace


def warn_of_float64(asked: TrainingTable, used: TrainingTable) -> None:
    """Warn if a posterior was computed in float64 in place of float32."""
    if asked.X.dtype != used.X.dtype:
        msg = (
            f"The rounding of float32 would show beside the noise of this model ({used.n_rows:,} rows), so its "
            "matrix was factorised in float64."
        )
        warn(msg, SolverWarning)


class ExactPosterior(SolvedPosterior, GrowingPosterior):
    """The posterior from a Cholesky factor."""

    kind = "exact"
    covariance_is_cheap = True

    def __init__(self, known: Factorised) -> None:
        self.model, self.table, self.budget = known.model, known.table, known.table.budget
        self._known, self.factor = known, known.factor
        self.target_solutions, self.basis_solutions = known.solutions, known.basis_solutions
        self.coefficients, self.coefficient_root = known.trend

    def in_float64(self) -> ExactPosterior:
        """Return the posterior from a factor in float64."""
        table = self.table.in_float64()
        return self if table is self.table else ExactPosterior(Factorised.of(self.model, table))

    def with_rows(self, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None = None) -> ExactPosterior:
        """Return the posterior given additional rows, whose factor extends that of the earlier ones."""
        table = self.table.appended(X, Y)
        require_factor(table)
        return ExactPosterior(self._known.with_rows(self.model.appended(noise), table))

    def _whitened(self, X: torch.Tensor) -> torch.Tensor:
        cross = self.table.cross_covariance(self.model.kernel, X)
        return torch.linalg.solve_triangular(self.factor, cross.T, upper=False)

    @property
    def _points_at_once(self) -> int:
        return max(1, min(self.budget // (4 * self.X.shape[0] * self.X.element_size()), 1024))

    def solver_name(self) -> str:
        return "cholesky"

    def notes(self) -> dict[str, str]:
        return self.table.notes()

    @torch.no_grad()
    def group_effects(self) -> list[GroupEffect] | None:
        """Return each group that is a term of the kernel, with the effects of its levels; None without any."""
        groups = list(group_terms(self.model.kernel).values())
        return [self._effects_of(group) for group in groups] if groups and self.table.has_points else None

    def _effects_of(self, group: Group) -> GroupEffect:
        """Return the effects of a group: each is a separate variable, correlated with the rows of its level."""
        levels, own = group.levels(self.X).unique(dim=0, return_inverse=True)
        prior, lines = group.value("variance", self.factor), group.lines(self.X).to(self.factor)
        means, stds = [], []
        for variance, line in zip(prior, lines.T, strict=True):
            cross = line.new_zeros(len(own), len(levels))
            cross[torch.arange(len(own), device=own.device), own] = variance * line
            explained = torch.linalg.solve_triangular(self.factor, cross, upper=False).square().sum(0)
            of_trend = (cross.T @ self.basis_solutions.to(cross) @ self.coefficient_root.to(cross)).square().sum(1)
            means.append(cross.T @ self.target_solutions.to(cross))
            stds.append((variance - explained + of_trend).clamp_min(0).sqrt())
        return group, levels, torch.stack(means, 1), torch.stack(stds, 1)

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance; ``method`` has no effect. Variances have errors of 1e-12 of the prior variance."""
        if self._are_few(len(X)):
            whitened, of_targets, _ = self._at_few(X)
            return self.trend(X) + of_targets, (self.model.kernel.diagonal(X) - whitened.square().sum(0)).clamp_min(0)
        variances = []
        for block in X.split(self._points_at_once):
            # Rasmussen and Williams 2006, Alg. 2.1, line 6
            explained = recomputed(lambda some: self._whitened(some).square().sum(0), block)
            # A reduction never exceeds the prior variance; a negative difference near zero is a rounding error.
            variances.append((self.model.kernel.diagonal(block) - explained).clamp_min(0))
        return self.mean(X), torch.cat(variances) if variances else X.new_zeros(0)

    def _are_few(self, points: int) -> bool:
        """Whether all covariances of this many points with the rows are held at once, for all moments."""
        return points <= self._points_at_once and points * self.n_rows <= _FEW_COVARIANCES

    def _at_few(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ``L^-1 K(rows, X)``, and ``K(X, rows)`` times the solutions for targets and for the mean's basis."""
        cross = self.table.cross_covariance(self.model.kernel, X)
        whitened = torch.linalg.solve_triangular(self.factor, cross.T, upper=False)
        return whitened, _product(cross, self.target_solutions), _product(cross, self.basis_solutions)

    def cross_product(self, X: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``K(X, rows) @ vectors``, at few points with the same bits as beside their variances."""
        if not self._are_few(len(X)):
            return super().cross_product(X, vectors)
        return _product(self.table.cross_covariance(self.model.kernel, X), vectors)

    def _has_small_graph(self, X: torch.Tensor) -> bool:
        """Whether points with gradients are so few that one graph serves all moments."""
        return wants_gradient(X) and self._are_few(X[..., 0].numel())

    def mean_and_variance(self, X: torch.Tensor, method: VarianceMethod = "auto") -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean (m, t) and the variance (m,) of the latent function; ``method`` has no effect."""
        if not self._has_small_graph(X):
            return super().mean_and_variance(X, method)
        whitened, of_targets, of_basis = self._at_few(X)
        latent = (self.model.kernel.diagonal(X) - whitened.square().sum(0)).clamp_min(0)
        return self.trend(X) + of_targets, latent + self.trend_root(X, of_basis).square().sum(1).to(latent)

    def moments_of_part(self, X: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return mean (m, t), explained basis (m, p) and variance (m,) of one part of a sum, without the mean's own."""
        part = summands(self.model.kernel)[number]
        cross = self.table.cross_covariance(part, X)
        explained = torch.linalg.solve_triangular(self.factor, cross.T, upper=False).square().sum(0)
        variance = (part.diagonal(X) - explained).clamp_min(0)
        return cross @ self.target_solutions, cross @ self.basis_solutions, variance

    def covariance(self, X: torch.Tensor) -> torch.Tensor:
        if not self._has_small_graph(X):
            return super().covariance(X)
        flat = X.reshape(-1, X.shape[-1])
        whitened, _, of_basis = self._at_few(flat)
        rows, root = within_batches(whitened.T, X), within_batches(self.trend_root(flat, of_basis), X)
        return prior_covariance(self.model.kernel, X) - rows @ rows.mT + (root @ root.mT).to(rows)

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        m = X.shape[-2]
        require(3 * m * (m + self.X.shape[0]) * X.element_size(), self.budget, f"The covariance of {m:,} points", "")

        def left(X: torch.Tensor) -> torch.Tensor:
            whitened = within_batches(self._whitened(X.flatten(0, 1)).T, X)
            return prior_covariance(self.model.kernel, X) - whitened @ whitened.mT

        return by_batches(left, X, self._points_at_once)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> PathwiseUpdate:
        """Return pathwise samples: random features for the prior, the factor for the update.

        These samples have the error of the features. At a few thousand points, `sample_at` samples without it.
        """
        needed = n_samples * self.n_targets  # targets are independent given the hyperparameters
        prior = PriorSamples.for_sample_functions(self.model.kernel, self.n_inputs, needed, generator)
        noise = standard_normal(self.X.shape[0], needed, generator=generator).to(self.X)
        of_function = self.table.average(prior.evaluate(self.model.kernel, self.table.points, self.budget))
        values = of_function + self._known.matrix.noise().sqrt()[:, None] * noise
        return PathwiseUpdate(self, prior, torch.cholesky_solve(values, self.factor))

    def variance_parts(self, X: torch.Tensor) -> VarianceParts:
        variance = self.mean_and_variance(X)[1]
        return VarianceParts(variance, torch.zeros_like(variance))

    def left_out(self) -> LeftOut:
        """Return the distribution of each row given all others, from the inverse of ``H``."""
        inverse = torch.cholesky_inverse(self.factor.double()).diagonal()
        precision = without_trend(inverse, self.basis_solutions, self.coefficient_root)
        return LeftOut.of(self.table.Y, self.target_solutions, precision)

    def left_out_folds(self, folds: Sequence[Fold]) -> LeftOut:
        """Return the scored rows of folds, one fold after the other, each given all rows but those of its fold."""
        of_basis = self.basis_solutions.double() @ self.coefficient_root.double()
        precision = torch.cholesky_inverse(self.factor.double()) - of_basis @ of_basis.T
        return LeftOut.in_folds(self.table.Y, self.target_solutions, precision, folds)

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the exact value; its standard error is 0."""
        return Estimate(self._known.value, 0.0)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a model file; the factor is computed again on loading."""
        return self.table.state(), {}

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> ExactPosterior:
        table = restored(tensors, saved)
        require_factor(table)
        return cls(Factorised.of(saved.model, table))


def _product(cross: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return a product that is summed in float64."""
    return (cross.double() @ vectors.double()).to(cross)
