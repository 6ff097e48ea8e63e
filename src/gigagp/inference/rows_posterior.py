"""Posteriors that keep their rows, posteriors that are computed from solutions, and pathwise samples."""

from __future__ import annotations

import torch

from gigagp.inference.posterior import Posterior
from gigagp.inference.table import TrainingTable
from gigagp.prior_samples import PriorSamples
from gigagp.products import cross_product
from gigagp.schema import Field

#: Tensors of a model file. The letters in shapes are n rows, d inputs and t targets.
ROWS = {"X": Field("n d", "real"), "Y": Field("n t", "real")}


class RowsPosterior(Posterior):
    """A posterior that keeps the rows it was fitted to.

    Attributes
    ----------
    table : TrainingTable
        Training rows in the model's units.
    """

    table: TrainingTable

    @property
    def X(self) -> torch.Tensor:
        """Training inputs, shape (n, d)."""
        return self.table.X

    @property
    def n_rows(self) -> int:
        """Number of rows that the posterior was fitted to."""
        return self.table.n_rows

    def places(self) -> torch.Tensor:
        """Return the training inputs."""
        return self.X


class SolvedPosterior(RowsPosterior):
    """A posterior whose mean is ``trend + K(x, X) target_solutions``.

    Attributes
    ----------
    target_solutions : Tensor of shape (n, t)
        ``H^-1 (Y - mean)``, or an approximation of it.
    """

    target_solutions: torch.Tensor

    def cross_product(self, X: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``K(X, training inputs) @ vectors`` without forming the kernel matrix."""
        return cross_product(self.model.kernel, X, self.X, vectors, budget=self.budget)

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return the posterior mean, shape (m, t)."""
        return self.trend(X) + self.cross_product(X, self.target_solutions)


class PathwiseUpdate:
    """Posterior samples as functions, ``f_j(x) + K(x, X) (v - u_j)`` plus the trend (Lin et al. 2024, eq. 16).

    Parameters
    ----------
    posterior : SolvedPosterior
        Posterior with the solutions ``v`` for the targets.
    prior : PriorSamples
        Prior functions ``f_j``.
    probe_solutions : Tensor of shape (n, s)
        ``u_j = H^-1 (f_j(X) + noise_j)`` for the same prior functions.
    """

    def __init__(self, posterior: SolvedPosterior, prior: PriorSamples, probe_solutions: torch.Tensor) -> None:
        self.posterior, self.prior, self.probe_solutions = posterior, prior, probe_solutions

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Return the samples at ``X``, shape (m, t, s / t); every target has its own samples."""
        deviations, mean = self.deviations_and_mean(X)
        return mean[:, :, None] + deviations.reshape(X.shape[0], self.posterior.n_targets, -1)

    def deviations_and_mean(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return deviations from the mean, ``f_j(x) - K(x, X) u_j``, shape (m, s), and the mean, shape (m, t)."""
        both, prior = self.products(X)
        n_targets = self.posterior.n_targets
        return prior - both[:, n_targets:], self.posterior.trend(X) + both[:, :n_targets]

    def products(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``K(x, X) [v, u]``, shape (m, t + s), and the prior functions ``f(x)``, shape (m, s)."""
        posterior = self.posterior
        both = posterior.cross_product(X, torch.cat([posterior.target_solutions, self.probe_solutions], 1))
        return both, self.prior.evaluate(posterior.model.kernel, X, posterior.budget)
