"""`inference.ComputationAware`: the settings of computation-aware inference."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gigagp.inference.computation_aware.actions import Learned, Policy
from gigagp.inference.computation_aware.evidence import Loss
from gigagp.inference.computation_aware.objective import ComputationAwareObjective
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.likelihoods import Likelihood
from gigagp.runtime.machine import MULTIPLICATION, entries_seconds
from gigagp.settings.fields import Count

#: Gradients of a fit, passes over the kernel entries in each, and products of n x i and i x i matrices. Measured on
#: protein: 126 gradients and 49 CPU s for 4,000 rows, 129 and 96 s for 8,000.
_GRADIENTS, _PASSES, _PRODUCTS = 130, 3, 5


@dataclass(frozen=True)
class ComputationAware(Inference):
    """Inference conditioned on ``i`` linear combinations of the targets, with the uncertainty due to the others.

    The posterior variance is never below the exact one at the same hyperparameters. It includes the uncertainty due to
    finite data and that due to limited computation.

    When to use: if overconfidence is worse than wide intervals, and for tables that are too large for solves. Memory is
    O(n i). With learned actions, each step computes every kernel entry three times, so that memory is linear in n but
    time is not.

    Parameters
    ----------
    n_actions : int, default 512
        Number of linear combinations, i. It is limited by the number of rows, with which inference is exact.
    policy : Policy, default ``actions.Learned()``
        Choice of the linear combinations; see `gigagp.actions`.
    loss : {"elbo", "projected"}, default "elbo"
        Objective to maximize: ``"elbo"`` is a lower bound of the log marginal likelihood; ``"projected"`` is the
        likelihood of the projected targets, which generalizes badly and is meant for comparisons (Wenger et al. 2024,
        section 3).

    Notes
    -----
    `GPRegressor.log_marginal_likelihood` returns the lower bound.

    References
    ----------
    Wenger, Wu, Hennig, Gardner, Pleiss and Cunningham 2024, "Computation-Aware Gaussian Processes: Model Selection And
    Linear-Time Inference", https://arxiv.org/abs/2411.01036
    """

    n_actions: Count = 512
    policy: Policy = field(default_factory=Learned)
    loss: Loss = "elbo"

    abilities = Abilities("computation-aware", "up to a few hundred thousand", options={"--actions": "n_actions"})
    posteriors = (ComputationAwarePosterior,)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> ComputationAwareObjective:
        return ComputationAwareObjective(table, self.n_actions, self.policy, self.loss, generator)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the cost of 130 gradients: passes over all kernel entries, and products of the actions.

        What the actions leave uncertain is not known beforehand.
        """
        n, d = subject.table.X.shape
        actions = min(self.n_actions, n)
        gradient = entries_seconds(_PASSES * float(n) ** 2, d) + _PRODUCTS * MULTIPLICATION * n * actions**2
        return Forecast(_GRADIENTS * gradient, 8.0 * _PASSES * n * actions)

    def describe(self) -> str:
        return f"computation-aware ({self.n_actions} actions, {self.policy!r}, loss {self.loss})"
