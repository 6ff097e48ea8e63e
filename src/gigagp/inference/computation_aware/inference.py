"""`inference.ComputationAware`, and its objective, which learns hyperparameters and actions together."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from gigagp.inference.computation_aware.actions import (
    Actions,
    BlockActions,
    Choice,
    LearnableActions,
    Learned,
    Policy,
    balanced_bounds,
)
from gigagp.inference.computation_aware.evidence import ACTIONS, Evidence, Loss
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import estimate_trend
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix, kernel_matrix
from gigagp.optimization.objective import Evaluation
from gigagp.runtime.machine import MULTIPLICATION, entries_seconds
from gigagp.runtime.memory import require
from gigagp.settings.fields import Count
from gigagp.settings.random import spawn

#: Gradients of a fit, passes over the kernel entries in each, and products of n x i and i x i matrices. Measured on
#: protein: 126 gradients and 49 CPU s for 4,000 rows, 129 and 96 s for 8,000.
_GRADIENTS, _PASSES, _PRODUCTS = 130, 3, 5


@dataclass(frozen=True)
class ComputationAware(Inference):
    """Inference conditioned on ``i`` linear combinations of the targets, with the uncertainty due to the others.

    The posterior variance is never below the exact one at the same hyperparameters. It includes the uncertainty due to
    finite data and that due to limited computation.

    When to use: if overconfidence is worse than wide intervals, and for tables that are too large for solves. Memory is
    O(n i). With learned actions, each step computes every kernel entry three times, so memory is linear in n but time
    is quadratic.

    Parameters
    ----------
    n_actions : int, default 512
        Number of linear combinations, i, at most the number of rows, for which inference is exact.
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


class ComputationAwareObjective(TableObjective):
    """The ELBO or the projected log likelihood, with its gradient by hyperparameters and actions.

    The rows are put into the order of the policy once (shuffled, or by clusters), and all computations use that order.
    """

    deterministic = True  # also where the policy chooses new actions at every model
    is_likelihood = False  # the value is a lower bound, or the likelihood of projections
    includes_its_error = True  # the variance includes the error of conditioning on few actions

    def __init__(
        self, table: TrainingTable, n_actions: int, policy: Policy, loss: Loss, generator: torch.Generator
    ) -> None:
        super().__init__(table)
        n = table.n_rows
        self.count, self.policy, self.loss = min(n_actions, n), policy, loss
        self._asked = n_actions
        require(
            2 * n * self.count * 8,
            table.budget,
            f"{self.count} actions on {n:,} rows",
            "Use fewer actions, or raise memory_budget.",
        )
        self._order, self._ordered = torch.arange(n, device=table.X.device), table
        self._is_arranged = False
        self._seed = int(spawn(generator).initial_seed())
        self._generator = generator
        self._last: Evidence | None = None
        self._bound: float | None = None
        self._note = ""

    @property
    def follows_likelihood(self) -> bool:
        """True for the ELBO: from unit lengthscales, each learned block can overfit its rows with tiny lengthscales."""
        return self.loss == "elbo"

    def _noise(self, model: Model) -> Tensor:
        noise = model.noise_variance.to(device=self.table.X.device, dtype=torch.float64)
        return noise[self._order] if model.noise_is_known else noise.expand(self.table.n_rows)

    def _matrix(self, model: Model) -> KernelMatrix:
        table = self._ordered
        storage: Literal["auto", "tiles"] = "auto" if self.policy.multiplies_often else "tiles"
        return kernel_matrix(model.kernel, table.X, self._noise(model), memory_budget=table.budget, storage=storage)

    def _own_generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def _settle_order(self, model: Model) -> None:
        """Put the rows into the order of the policy; done once, with the first hyperparameters."""
        if not self._is_arranged:
            self._order = self.policy.order(self._matrix(model), self.count, self._own_generator())
            self._ordered = self.table.take_rows(self._order)
            self._is_arranged = True

    def _choose(self, matrix: KernelMatrix) -> Choice:
        """Choose actions by the policy, from targets minus their least-squares trend and a fixed seed."""
        table = self._ordered
        basis, Y = table.basis, table.Y
        residuals = (Y - basis @ estimate_trend(basis, Y, basis).coefficients).double()
        return self.policy.choose(matrix, residuals, self.count, self._own_generator())

    def start(self, model: Model) -> Model:
        """Return the model with the entries of the actions, if they are learned."""
        if not self.policy.is_learned or (self._is_arranged and self._knows(model)):
            return model
        self._settle_order(model)
        chosen = self._choose(self._matrix(model)).actions
        assert isinstance(chosen, LearnableActions)
        return replace(model, free={ACTIONS: chosen.values.cpu()})

    def _knows(self, model: Model) -> bool:
        """Whether the model's actions belong to these rows, and not to an earlier stage on other rows."""
        return ACTIONS in model.free and model.free[ACTIONS].shape[0] == self.table.n_rows

    def _evidence(self, model: Model) -> Evidence:
        self._last = None  # free the arrays of the last model before computing those of the next one
        self._settle_order(model)
        matrix = self._matrix(model)
        actions: Actions
        if self.policy.is_learned:
            values = self.start(model).free[ACTIONS].to(matrix.X).double()  # with the rounding of the matrix's dtype
            actions, product, note = BlockActions(values, balanced_bounds(matrix.n, self.count)), None, ""
        else:
            actions, product, note = self._choose(matrix)
        if self.count < self._asked and not note:
            note = f"{self._asked} requested, {self.table.n_rows} rows"
        elif note:
            note = f"{self._asked} requested: {note}"
        self._note = note
        self._last = Evidence(model, self._ordered, actions, self.loss, self._noise(model), matrix, product)
        return self._last

    def evaluate(self, model: Model) -> Evaluation:
        """Return value and gradient; actions that a policy chooses from the model are treated as constant."""
        evidence = self._evidence(model)
        terms = evidence.terms()
        self._bound = terms.elbo if self.loss == "elbo" else None
        return Evaluation(terms.value(self.loss), evidence.gradient(by_actions=self.policy.is_learned))

    def thin(self, rows: Tensor) -> ComputationAwareObjective:
        table = self.table.take_rows(rows)
        return ComputationAwareObjective(table, self._asked, self.policy, self.loss, self._generator)

    def current_posterior(self) -> ComputationAwarePosterior | None:
        found = self._last
        if found is None:
            return None
        return ComputationAwarePosterior(
            found.model,
            self._ordered,
            found.actions,
            found.factor,
            found.conditioned(),
            self._noise(found.model),
            self._bound,
            self._note,
        )

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> ComputationAwarePosterior:
        """Return the posterior at a model, in float64: with little noise, float32 leaves `S'HS` no digits."""
        if self.table.X.dtype != torch.float64:
            self._last = None
            return self._in_float64().posterior(model)
        evidence = self._evidence(model)
        self._bound = evidence.terms().elbo if self.loss == "elbo" else None
        posterior = self.current_posterior()
        assert posterior is not None
        self._last = None
        return posterior

    def _in_float64(self) -> ComputationAwareObjective:
        """Return the objective of the same rows, in the same order, with products in float64."""
        other = copy.copy(self)
        other.table, other._ordered = self.table.in_float64(), self._ordered.in_float64()
        return other
