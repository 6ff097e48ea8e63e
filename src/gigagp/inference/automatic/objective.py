"""The objective of ``inference="auto"``: exact solves, guided by neighbours, which may also end the fit."""

from __future__ import annotations

import math
import time
from contextlib import suppress

import torch

from gigagp import interruption
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference.automatic.local import SCORED_ROWS, LocalScores, seconds_per_row
from gigagp.inference.automatic.plan import Option, Plan
from gigagp.inference.base import Inference
from gigagp.inference.exact import EXACT_ROWS, Exact
from gigagp.inference.iterative import Iterative, IterativeObjective
from gigagp.inference.objective import FACTOR_SECONDS
from gigagp.inference.posterior import Posterior
from gigagp.inference.solve_records import warn_of_unfinished
from gigagp.inference.table import TrainingTable
from gigagp.inference.vecchia import Vecchia
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.machine import slowness
from gigagp.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.neighbours.neighbourhood import FEW_INPUTS
from gigagp.optimization.objective import Evaluation
from gigagp.preconditioners.automatic import automatic
from gigagp.progress import current
from gigagp.solvers import Status

#: Seconds for each kernel entry of a product with the probes' columns on the machine of the benchmarks (one thread,
#: float64), and their growth with the number of inputs.
_ENTRY, _ENTRY_OF_INPUT = 1.1e-9, 2e-11
#: Products of a solve where no trial has been made: up to three inputs, and beyond.
_FEW_PRODUCTS, _MANY_PRODUCTS = 10.0, 30.0
#: Solves of a guided fit in those of a trial: one to three gradients, the last solve from where they ended, and further
#: samples. Measured on kin40k, protein and elevators (8,000 rows): 1.3, 1.7 and 3 times as many as 1.6.
_SOLVES = 2.2
#: Share of the exact stages that the last solve takes, and share of that time which it must have to begin.
_LAST, _SHORT = 0.5, 0.5
#: Evaluations of the exact likelihood in a fit of a small table.
_FACTORS = 15
#: Rows of learning, roughly; shares of a time budget that regressing all rows may take, and that is kept for surprises.
_LEARNING_ROWS, _ENDING, _MARGIN = 10_000, 0.2, 0.05
#: Fewer rows than this are all regressed on their neighbours in the end without a time budget.
_ALL_ROWS = 50_000
#: Seconds that regressing all rows may take, and the nominal ones of a row for each squared neighbour.
_REGRESSION, _CONDITIONED = 30.0, 1e-8


class AutomaticObjective(IterativeObjective):
    """The log marginal likelihood, and the choice of the posterior.

    Learning begins with subsets and neighbours. Then `settled` forecasts what exact solves would gain and cost, and the
    fit ends with these or with the neighbours' posterior. An optimizer that knows no guide learns by exact solves.

    Parameters
    ----------
    table : TrainingTable
        Training rows in the model's units.
    generator : torch.Generator
        Source of all random numbers.
    started : float
        Value of ``time.monotonic()`` at which the fit began.
    budget : float
        Seconds that the fit may take from then on; infinity without a time budget.
    """

    def __init__(self, table: TrainingTable, generator: torch.Generator, started: float, budget: float) -> None:
        super().__init__(Iterative(), table, generator)
        self._started, self._budget = started, budget
        self._neighbours: VecchiaObjective | None = None
        self._chosen: Inference | None = None
        n, few = table.n_rows, table.n_inputs <= FEW_INPUTS
        self._row_seconds = _CONDITIONED * (90 if few else 200) ** 2
        self._ends_with_all = n <= _ALL_ROWS or n * self._row_seconds <= _REGRESSION
        self._last_seconds = 0.0
        #: what was forecast before the choice; None before it, and where an optimizer asked for exact gradients
        self.plan: Plan | None = None

    @property
    def inference(self) -> Inference:
        """The method that the fit ends with."""
        return self.settings if self._chosen is None else self._chosen

    def guide(self, model: Model) -> VecchiaObjective | None:
        """Return the likelihood by nearest neighbours; None where it would be slow."""
        if not is_compiled(model.kernel, self.table.X.device):
            return None
        self._neighbours = neighbours = VecchiaObjective.for_learning(self.table)
        if self._budget < math.inf:
            graph, width = neighbours.graph_of(model), neighbours.prediction_neighbours
            with suppress(MemoryBudgetError):
                self._row_seconds = seconds_per_row(model, self.table, graph, width)
            self._ends_with_all = self._row_seconds * self.n_rows <= _ENDING * max(self._seconds_left(), 0.0)
            interruption.reserve(self._ending_seconds() + _MARGIN * self._budget)
        return neighbours

    def _seconds_left(self) -> float:
        return self._started + self._budget - time.monotonic()

    def _ending_seconds(self) -> float:
        """Return the expected time of the scores and of the neighbours' posterior."""
        return self._row_seconds * (SCORED_ROWS + (self.n_rows if self._ends_with_all else _LEARNING_ROWS))

    def settled(self, model: Model) -> VecchiaObjective | AutomaticObjective:
        """Choose how the fit goes on from a model that the guide has learned; see `TableObjective.settled`."""
        if self._chosen is None:
            self._choose(model)
        if isinstance(self._chosen, Vecchia):
            assert self._neighbours is not None
            return self._neighbours
        return self

    def _choose(self, model: Model) -> None:
        current().phase("forecasting the last stage")
        neighbours = self._neighbours or self.guide(model)
        if neighbours is None:
            self._chosen = self.settings
            return
        graph, width = neighbours.graph_of(model), neighbours.prediction_neighbours
        try:
            scores = LocalScores.of(model, self.table, graph, width)
        except MemoryBudgetError:  # solves keep to smaller budgets
            self._chosen = self.settings
            return
        n = self.table.n_rows
        ending = self._row_seconds * n if self._ends_with_all else 0.0
        local = Option(Vecchia(neighbours.n_neighbours, width), n, ending, scores.nll, scores.nll_error, scores.rmse)
        options = [local, self._exact(model, scores)]
        if isinstance(options[1].inference, Exact):
            del options[0]  # the answer on a small table is exact, whatever it costs
        spent = time.monotonic() - self._started
        if self._budget == math.inf:  # nominal times choose, so that the choice does not depend on the machine
            self.plan = Plan.of(options, math.inf).after(spent, slowness())
        else:
            self.plan = Plan.of([one.after(spent, 1.0) for one in options], self._budget)
        self._chosen = self.plan.chosen.inference
        current().expect(max(self.plan.chosen.seconds - spent, 0.0))
        self._last_seconds = _LAST * (self.plan.chosen.seconds - spent)
        interruption.reserve(self._last_seconds)

    def _exact(self, model: Model, scores: LocalScores) -> Option:
        """Return what exact inference is expected to bring: by factors on small tables, else by solves."""
        n, table = self.n_rows, self.table
        small = n <= EXACT_ROWS and 3 * n**2 * table.X.element_size() <= table.budget
        inference = Exact() if small else self.settings
        seconds = self._factors_seconds() if small else self._solves_seconds(model)
        nll, rmse = scores.nll - scores.gain, scores.rmse * math.exp(-scores.gain)
        return Option(inference, n, seconds, nll, scores.nll_error, rmse)

    def _factors_seconds(self) -> float:
        """Return the expected seconds of learning with factors of all rows."""
        ratio = 1.0 if self._budget == math.inf else slowness()
        return ratio * _FACTORS * FACTOR_SECONDS * self.n_rows**3

    def _solves_seconds(self, model: Model) -> float:
        """Return the expected seconds of the exact stages."""
        n, d = self.table.X.shape
        matrix = self._matrix(model)
        _, self._reuse = automatic(matrix)
        choice = None if self._reuse is None else self._reuse.choice
        products = _FEW_PRODUCTS if d <= FEW_INPUTS else _MANY_PRODUCTS
        if choice is not None and choice.products < math.inf:
            products = choice.products
        ratio = 1.0 if self._budget == math.inf else slowness()
        return ratio * _SOLVES * products * (_ENTRY + d * _ENTRY_OF_INPUT) * n**2

    def evaluate(self, model: Model) -> Evaluation:
        """Return the estimated gradient; the value is None."""
        self._chosen = self._chosen or self.settings
        return super().evaluate(model)

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior of the chosen method, which is chosen here if the optimizer has not asked for it."""
        if self._chosen is None:
            self._choose(model)
        if isinstance(self._chosen, Vecchia):
            return self._local_posterior(model, generator)
        substitute = self._substitute()
        if substitute is not None and self._seconds_left() < _SHORT * self._last_seconds:
            return self._instead(substitute, model, generator)
        begun = len(self.solves)
        with interruption.ending_earlier(self._ending_seconds() if substitute is not None else 0.0):
            found = self.solved_posterior(model, generator)
        if substitute is not None and any(one.status == Status.TIME_SPENT.name for one in self.solves[begun:]):
            return self._instead(substitute, model, generator)
        warn_of_unfinished(self.solves)
        return found

    def _local_posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        neighbours = self._neighbours
        assert neighbours is not None
        if self._ends_with_all:
            return neighbours.posterior(model, generator)
        return neighbours.posterior_from_learning_rows(model)

    def _substitute(self) -> Option | None:
        """Return the option that a time budget falls back to; None without a budget, or where there is no choice."""
        options = () if self.plan is None or self._budget == math.inf else self.plan.options
        return next((one for one in options if isinstance(one.inference, Vecchia)), None)

    def _instead(self, option: Option, model: Model, generator: torch.Generator) -> Posterior:
        """Return the neighbours' posterior, since exact solves do not end in time."""
        assert self.plan is not None
        self._chosen = option.inference
        self.plan = self.plan.instead(option, "Its stages took longer than foreseen.")
        return self._local_posterior(model, generator)


class PlanningObjective(AutomaticObjective):
    """The same, for a forecast alone: learning ends with the neighbours, or on small tables with exact subsets."""

    def settled(self, model: Model) -> VecchiaObjective | AutomaticObjective:
        """Return the guide, so that no exact gradient follows."""
        return self if self._neighbours is None else self._neighbours

    def plan_at(self, model: Model) -> Plan:
        """Return the forecast at a model.

        Raises
        ------
        InvalidInputError
            If neighbours are not compiled for the kernel, so that nothing can be foreseen.
        """
        self._choose(model)
        if self.plan is None:
            msg = (
                "plan of GPRegressor needs a kernel that the package can compile, and memory for the neighbours of a "
                f"row; got {model.kernel!r}."
            )
            raise InvalidInputError(msg)
        return self.plan
