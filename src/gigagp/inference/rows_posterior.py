"""Posteriors that keep the rows, those that are made of solutions, and samples as functions."""

from __future__ import annotations

import torch

from gigagp.inference.posterior import Posterior
from gigagp.inference.table import TrainingTable
from gigagp.prior_samples import PriorSamples
from gigagp.products import cross_product
from gigagp.schema import Field

#: Tensors of a model file; shapes in letters: n rows, d inputs, t targets.
ROWS = {"X": Field("n d", "real"), "Y": Field("n t", "real")}


class RowsPosterior(Posterior):
    """A posterior that keeps the rows it was fitted to.

    Attributes
    ----------
    table : TrainingTable
    """

    table: TrainingTable

    @property
    def X(self) -> torch.Tensor:
        """Training inputs, shape (n, d)."""
        return self.table.X

    @property
    def n_rows(self) -> int:
        """Rows that it was fitted to."""
        return self.table.n_rows

    def places(self) -> torch.Tensor:
        """Return the rows."""
        return self.X


class SolvedPosterior(RowsPosterior):
    """A posterior whose mean is ``trend + K(x, X) target_solutions``.

    Attributes
    ----------
    target_solutions : Tensor of shape (n, t)
        ``H^-1 (Y - mean)``, or its approximation.
    basis_solutions : Tensor of shape (n, p)
        The same for the mean's basis functions as targets.
    """

    target_solutions: torch.Tensor
    basis_solutions: torch.Tensor

    def cross_product(self, X: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return ``K(X, training inputs) @ vectors`` without forming K."""
        return cross_product(self.model.kernel, X, self.X, vectors, budget=self.budget)

    def mean(self, X: torch.Tensor) -> torch.Tensor:
        """Return the posterior mean, shape (m, t)."""
        return self.trend(X) + self.cross_product(X, self.target_solutions)

    def explained_basis(self, X: torch.Tensor) -> torch.Tensor:
        """Return what `mean` less `trend` would be if the mean's basis functions were the targets, shape (m, p)."""
        return self.cross_product(X, self.basis_solutions)


class PathwiseUpdate:
    """Posterior samples as functions: ``f_j(x) + K(x, X) (v - u_j)`` plus the trend (Lin et al. 2024, eq. 16).

    Parameters
    ----------
    posterior : SolvedPosterior
    prior : PriorSamples
        The functions ``f_j``.
    probe_solutions : Tensor of shape (n, s)
        ``u_j = H^-1 (f_j(X) + noise_j)``, with the same functions.
    """

    def __init__(self, posterior: SolvedPosterior, prior: PriorSamples, probe_solutions: torch.Tensor) -> None:
        self.posterior, self.prior, self.probe_solutions = posterior, prior, probe_solutions

    def __call__(self, X: torch.Tensor) -> torch.Tensor:
        """Return the samples at the rows of ``X``, shape (m, t, number of probes / t): each target has its own."""
        deviations, mean = self.deviations_and_mean(X)
        return mean[:, :, None] + deviations.reshape(X.shape[0], self.posterior.n_targets, -1)

    def deviations_and_mean(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``f_j(x) - K(x, X) u_j`` (m, s), samples of posterior minus mean, and the mean (m, t)."""
        posterior = self.posterior
        n_targets = posterior.n_targets
        both = posterior.cross_product(X, torch.cat([posterior.target_solutions, self.probe_solutions], 1))
        prior = self.prior.evaluate(posterior.model.kernel, X, posterior.budget)
        return prior - both[:, n_targets:], posterior.trend(X) + both[:, :n_targets]
