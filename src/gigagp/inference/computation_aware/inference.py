"""What users choose of computation-aware inference."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gigagp.actions import Learned, Policy
from gigagp.fields import Count
from gigagp.inference.base import Abilities, Inference
from gigagp.inference.computation_aware.evidence import Loss
from gigagp.inference.computation_aware.objective import ComputationAwareObjective
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Likelihood


@dataclass(frozen=True)
class ComputationAware(Inference):
    """Inference from ``i`` linear combinations of the rows, with error bars for what was not looked at.

    The posterior variance is never below the exact one at the same hyperparameters: it holds what the data leave open
    and what the skipped computation leaves open.

    When to use: where overconfidence is costlier than a wide interval, and for tables too large for solves. Memory is
    O(n i). With learned actions a step computes every kernel entry three times; memory, not time, is linear in n.

    Parameters
    ----------
    n_actions : int, default 512
        Linear combinations, i; a table with fewer rows has as many as rows, which is exact.
    policy : Policy, default ``actions.Learned()``
        How they are chosen, see `gigagp.actions`.
    loss : {"elbo", "projected"}, default "elbo"
        What is maximised: a lower bound of the log marginal likelihood, or the likelihood of the projected targets,
        which generalises badly and is kept for comparisons (Wenger et al. 2024, section 3).

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
        """Return the loss of a table."""
        return ComputationAwareObjective(table, self.n_actions, self.policy, self.loss, generator)

    def describe(self) -> str:
        """Return one line for people."""
        return f"computation-aware ({self.n_actions} actions, {self.policy!r}, loss {self.loss})"
