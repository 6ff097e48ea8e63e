"""The objective of computation-aware inference, which learns hyperparameters and actions together."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from gigagp.inference.computation_aware.actions import (
    Actions,
    BlockActions,
    Choice,
    LearnableActions,
    Policy,
    balanced_bounds,
)
from gigagp.inference.computation_aware.evidence import ACTIONS, Evidence, Loss
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import estimate_trend
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix, kernel_matrix
from gigagp.optimization.objective import Evaluation
from gigagp.runtime.memory import require
from gigagp.settings.random import spawn


class ComputationAwareObjective(TableObjective):
    """The ELBO or the projected log likelihood, with its gradient by hyperparameters and actions.

    The rows are put into the order of the policy once (shuffled, or by clusters), and all computations use that order.

    Parameters
    ----------
    table : TrainingTable
        Training rows in the model's units.
    n_actions : int
        Requested number of actions; the number of rows limits it.
    policy : Policy
        Choice of the actions.
    loss : {"elbo", "projected"}
        Objective to maximize.
    generator : torch.Generator
        Source of the order of rows and of random actions.
    """

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
        self._ordered = self._arrange(torch.arange(n, device=table.X.device))
        self._is_arranged = False
        self._seed = int(spawn(generator).initial_seed())
        self._generator = generator
        self._last: Evidence | None = None
        self._bound: float | None = None
        self._note = ""

    @property
    def is_likelihood(self) -> bool:
        """Always false: the value is a lower bound, or the likelihood of projections."""
        return False

    @property
    def includes_its_error(self) -> bool:
        """Always true: what the actions leave out is part of the variance."""
        return True

    @property
    def follows_likelihood(self) -> bool:
        """True for the ELBO: from unit lengthscales, each learned block can overfit its rows with tiny lengthscales."""
        return self.loss == "elbo"

    @property
    def deterministic(self) -> bool:
        """Always true, even if the policy chooses new actions at every model."""
        return True

    def _noise(self, model: Model) -> Tensor:
        noise = model.noise_variance.to(device=self.table.X.device, dtype=torch.float64)
        return noise[self._order] if model.noise_is_known else noise.expand(self.table.n_rows)

    def _matrix(self, model: Model) -> KernelMatrix:
        table = self._ordered
        storage: Literal["auto", "tiles"] = "auto" if self.policy.multiplies_often else "tiles"
        return kernel_matrix(model.kernel, table.X, self._noise(model), memory_budget=table.budget, storage=storage)

    def _arrange(self, order: Tensor) -> TrainingTable:
        self._order = order
        return self.table.take_rows(order)

    def _own_generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def _settle_order(self, model: Model) -> None:
        """Put the rows into the order of the policy; done once, with the first hyperparameters."""
        if not self._is_arranged:
            order = self.policy.order(self._matrix(model), self.count, self._own_generator())
            self._ordered = self._arrange(order)
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
            note = f"{self._asked} asked for, {self.table.n_rows} rows"
        elif note:
            note = f"{self._asked} asked for: {note}"
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
