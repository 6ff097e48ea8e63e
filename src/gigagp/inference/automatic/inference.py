"""What ``inference="auto"`` stands for beyond a few thousand rows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from gigagp.inference.automatic.objective import AutomaticObjective, PlanningObjective, check_plan
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative.iterative import Iterative
from gigagp.inference.vecchia import Vecchia
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.neighbours.search import NeighbourTree

#: Rows whose neighbours tell how long a search takes, the searches of a fit, and their share of its time budget.
_TRIED_ROWS, _SEARCHES, _SHARE = 50, 10_000, 0.5
#: Rows that a time budget leaves in any case.
_FEWEST_ROWS = 5000

_Kind = TypeVar("_Kind", bound=AutomaticObjective)


@dataclass(frozen=True)
class Automatic(Inference):
    """Learn by neighbours, then end with neighbours or with exact solves, as a forecast of error and time says.

    It is not registered, because a fit reports the method that it ended with.

    Parameters
    ----------
    deadline : float, default infinity
        Value of ``time.monotonic()`` at which the fit is to end.
    all_rows : bool, default False
        Whether no row may be left out for lack of time.
    """

    deadline: Any = math.inf  # settings of type float must be finite
    all_rows: bool = False

    abilities = Abilities("auto", "any number", kernels="random features")
    posteriors = (*Iterative.posteriors, *Vecchia.posteriors)
    label = 'inference="auto"'  # the argument that means this
    mixes_precision = True  # neighbours are float64 in any case

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> AutomaticObjective:
        """Return the log marginal likelihood on a table, or on as many of its rows as a time budget can search."""
        return self._objective(AutomaticObjective, table, generator)

    def planning(self, table: TrainingTable, model: Model, generator: torch.Generator) -> PlanningObjective:
        """Return the objective that only learns as far as a forecast needs; refuse where nothing can be foreseen."""
        check_plan(model)
        return self._objective(PlanningObjective, table, generator)

    def _objective(self, kind: type[_Kind], table: TrainingTable, generator: torch.Generator) -> _Kind:
        started = time.monotonic()
        budget = self.deadline - started
        return kind(table if self.all_rows else _affordable(table, budget), generator, started, budget)

    def describe(self) -> str:
        return "chosen once the hyperparameters are learned"


def _affordable(table: TrainingTable, budget: float) -> TrainingTable:
    """Return the table, or random rows of it where finding neighbours among all would take too much of the budget."""
    n = table.n_rows
    if budget == math.inf or n <= _FEWEST_ROWS:
        return table
    tree = NeighbourTree(table.X.double())
    started = time.perf_counter()
    tree.query(table.X[:: max(1, n // _TRIED_ROWS)].double(), 60)
    seconds = (time.perf_counter() - started) / _TRIED_ROWS
    share = _SHARE * max(budget, 0.0) / (_SEARCHES * seconds)
    if share >= 1:
        return table
    kept = torch.randperm(n, generator=torch.Generator().manual_seed(4))[: max(_FEWEST_ROWS, int(share * n))]
    return table.take_rows(kept.sort().values.to(table.X.device))
