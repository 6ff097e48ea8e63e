"""Posteriors that keep their rows, posteriors that are computed from solutions, and pathwise samples."""

from __future__ import annotations

from abc import abstractmethod

import torch

from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.prior_samples import PriorSamples
from gigagp.products import Engine, cross_product, select
from gigagp.settings.schema import Field

#: Tensors of a model file. The letters in shapes are n rows, d inputs and t targets.
ROWS = {"X": Field("n d", "real"), "Y": Field("n t", "real")}


class RowsPosterior(Posterior):
    """A posterior that keeps the rows it was fitted to."""

    table: TrainingTable

    @property
    def X(self) -> torch.Tensor:
        """Training inputs, shape (n, d)."""
        return self.table.X

    @property
    def n_rows(self) -> int:
        return self.table.n_rows

    def places(self) -> torch.Tensor:
        return self.X


class SolvedPosterior(RowsPosterior):
    """A posterior whose mean is ``trend + K(x, X) target_solutions``."""

    target_solutions: torch.Tensor  # ``H^-1 (Y - mean)``, or an approximation of it, (n, t)
    basis_solutions: torch.Tensor  # the same for the mean's basis, (n, p)

    def engine(self) -> Engine:
        return select(self.model.kernel, self.device, self.dtype, rows=self.table.points)

    def cross_product(self, X: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``K(X, rows) @ vectors`` without forming the kernel matrix."""
        table = self.table
        return cross_product(self.model.kernel, X, table.points, table.spread(vectors), budget=self.budget)

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        return self.trend(X) + self.cross_product(X, self.target_solutions).to(X)

    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        return self.cross_product(X, self.basis_solutions)

    @abstractmethod
    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> PathwiseUpdate:
        """Return pathwise samples at given coefficients of the mean's basis."""

    def sample_functions(self, n_samples: int, generator: torch.Generator) -> PathwiseUpdate:
        """Return posterior samples as functions; points need no further product for the mean's coefficients."""
        update = self.sample_functions_given_trend(n_samples, generator)
        if not self.coefficient_root.shape[0]:
            return update
        return update.with_coefficients(self.coefficient_root @ self._coefficient_draws(n_samples, generator))


class PathwiseUpdate:
    """Posterior samples as functions, ``f_j(x) + K(x, X) (v - u_j)`` plus the trend (Lin et al. 2024, eq. 16).

    v are the posterior's solutions for the targets, and ``u_j = H^-1 (f_j(X) + noise_j)`` those for the prior functions
    ``f_j``, shape (n, s).
    """

    def __init__(self, posterior: SolvedPosterior, prior: PriorSamples, probe_solutions: torch.Tensor) -> None:
        self.posterior, self.prior, self.probe_solutions = posterior, prior, probe_solutions
        self.coefficients = probe_solutions.new_zeros(0, probe_solutions.shape[1])

    def with_coefficients(self, coefficients: torch.Tensor) -> PathwiseUpdate:
        """Return the samples with other coefficients of the mean, given as deviations b from the estimates, (p, s).

        They change a sample by ``phi(x) b - K(x, X) H^-1 Phi b`` for the basis phi, with values Phi at the rows.
        """
        own = coefficients.to(self.probe_solutions)
        found = PathwiseUpdate(
            self.posterior, self.prior, self.probe_solutions + self.posterior.basis_solutions.to(own) @ own
        )
        found.coefficients = own
        return found

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Return the samples at ``X``, shape (m, t, s / t); every target has its own samples."""
        deviations, mean = self.deviations_and_mean(X)
        return mean[:, :, None] + deviations.reshape(X.shape[0], self.posterior.n_targets, -1)

    def deviations_and_mean(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return deviations from the mean, ``f_j(x) - K(x, X) u_j``, shape (m, s), and the mean, shape (m, t)."""
        both, prior = self.products(X)
        n_targets = self.posterior.n_targets
        if self.coefficients.shape[0]:
            prior = prior + self.posterior.model.mean.basis(X).to(self.coefficients) @ self.coefficients
        return prior - both[:, n_targets:], self.posterior.trend(X) + both[:, :n_targets]

    def products(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``K(x, X) [v, u]``, shape (m, t + s), and the prior functions ``f(x)``, shape (m, s)."""
        posterior = self.posterior
        both = posterior.cross_product(X, torch.cat([posterior.target_solutions, self.probe_solutions], 1))
        return both, self.prior.evaluate(posterior.model.kernel, X, posterior.budget)
