"""The base class of the two objectives of the weights: that of all rows and functions, and that of samples."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.bases import (
    Basis,
    FourierBasis,
    GridEigenfunctions,
    InducingBasis,
    RadialBasis,
)
from gigagp.inference.quadruply_stochastic.bases.inducing import random_points
from gigagp.inference.quadruply_stochastic.latent import LatentObjective
from gigagp.inference.quadruply_stochastic.options import WeightProblem
from gigagp.model.likelihoods import check_log_concave
from gigagp.model.model import NOISE, Model

#: Gain in nats an observation that ends a search of the best distribution while hyperparameters are learned, a
#: fiftieth of that which ends the learning. Several classes share a covariance, and the last steps of their searches
#: halve what is left.
_LEARNING = 1e-5


class WeightObjective(TableObjective):
    """The evidence lower bound of a model whose weights of basis functions have a Gaussian posterior.

    The seed is that of the basis, and of the samples of a fit. Targets that the likelihood does not describe are
    refused, and so is a likelihood that is not log-concave.
    """

    is_likelihood = False  # the value is a lower bound
    follows_likelihood = True  # as in the paper, hyperparameters start where a few rows' exact likelihood has them

    def __init__(self, problem: WeightProblem, seed: int) -> None:
        super().__init__(problem.table)
        likelihood, targets = problem.likelihood, problem.table.Y
        likelihood.check_targets(targets)
        check_log_concave(likelihood, targets)
        if problem.options.diagonal == "closed_form" and not problem.is_gaussian:
            msg = 'diagonal of QuadruplyStochastic must be "learned" for likelihoods other than Gaussian.'
            raise InvalidInputError(msg)
        self.problem, self.seed = problem, seed

    @property
    def n_rows(self) -> int:
        """Rows that are fitted, held or not."""
        return self.problem.n_rows

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets on the latent scale."""
        return self._on_latent_scale(self.table).target_variance

    def _on_latent_scale(self, table: TrainingTable) -> TrainingTable:
        return replace(table, Y=self.problem.likelihood.on_latent_scale(table.Y))

    def subset(self, rows: Tensor) -> ExactObjective:
        """Return the exact objective of Gaussian noise on a subset of the rows, with targets on the latent scale."""
        return ExactObjective(self._on_latent_scale(self.table.take_rows(rows)))

    def thin(self, rows: Tensor) -> TableObjective:
        """Return an objective on a subset of the rows in which the kernel itself takes the place of a basis.

        It is the exact likelihood where the likelihood is Gaussian, and the lower bound of all latent values otherwise.
        """
        if self.problem.is_gaussian:
            return self.subset(rows)
        nodes = self.problem.options.quadrature_nodes
        return LatentObjective(self.table.take_rows(rows), self.problem.likelihood, nodes, _LEARNING)

    def _new_basis(self, model: Model) -> tuple[Basis, torch.Generator]:
        """Return the basis at a model, and the generator that made it: the samples of a fit come from it next."""
        generator = torch.Generator().manual_seed(self.seed)
        options, kernel, X = self.problem.options, model.kernel, self.table.X
        most = options.n_functions
        basis: Basis
        if options.learns_precision:
            basis = RadialBasis(kernel, random_points(X, most, generator))
        elif options.basis == "inducing":
            basis = InducingBasis(kernel, random_points(X, most, generator))
        elif options.basis == "grid":
            basis = GridEigenfunctions.leading(kernel, X, most)
        else:
            basis = FourierBasis.fitting(kernel, most, int(torch.randint(2**62, (), generator=generator)))
        return basis, generator

    def _names_with_gradient(self, model: Model, *, of_kernel: bool) -> tuple[str, ...]:
        """Return the learned hyperparameters that a bound depends on, the kernel's only where ``of_kernel``."""
        has_noise = self.problem.likelihood.has_noise
        return tuple(
            name for name in model.learned_names() if (name == NOISE and has_noise) or (name != NOISE and of_kernel)
        )
