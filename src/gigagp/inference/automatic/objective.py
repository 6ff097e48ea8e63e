"""The objective of ``inference="auto"``: neighbours learn, and a forecast decides which method ends the fit."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference.automatic.plan import FREE, InGaps, Option, Plan
from gigagp.inference.contract.base import Inference
from gigagp.inference.contract.forecast import Subject, ratio_of_gains
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import EXACT_ROWS, Exact
from gigagp.inference.iterative.iterative import Iterative, IterativeObjective
from gigagp.inference.iterative.solve_cost import (
    FEWEST_PRODUCTS,
    MANY_PRODUCTS,
    expected_products,
    products_slowness,
    share_in_float32,
    solves_seconds,
)
from gigagp.inference.iterative.solve_records import require_solved, warn_of_unfinished
from gigagp.inference.iterative.subset_guide import SubsetGuide, guide_of
from gigagp.inference.registry import registered
from gigagp.inference.vecchia import Vecchia
from gigagp.inference.vecchia.cost import nominal_seconds
from gigagp.inference.vecchia.left_out import LeftOutRows
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled, why_not_compiled
from gigagp.neighbours.folds import folds_like_gaps
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.objective import Evaluation
from gigagp.runtime import interruption
from gigagp.runtime.machine import slowness
from gigagp.runtime.memory import size_in_words
from gigagp.runtime.progress import current
from gigagp.runtime.run import unshown
from gigagp.settings.random import spawn
from gigagp.solvers import Status

#: Share of the time left that exact solves may take by their nominal products, so that a guide serves these alone.
_LIKELY = 0.3
#: Share of the exact stages that the last solve takes, and share of that time which it must have to begin.
_LAST, _SHORT = 0.5, 0.5
#: Relative residual of probes from which samples, and gradients by them, are of no use.
_USELESS = 0.5
#: Shares of a time budget that scoring rows for the forecast may take, and that is kept for surprises.
_SCORING, _MARGIN = 0.07, 0.05
#: Nominal seconds a row that looking for gaps and predicting patches takes.
_GAP_SECONDS = 2e-5
#: Nominal seconds that regressing all rows on their neighbours may take in the end without a time budget.
_REGRESSION = 30.0

#: Why products are in float32.
_IN_FLOAT32 = (
    "Its products are in float32, with which its solves are expected to take {:.2g} of the time on this GPU; residuals "
    "in float64 decide when they stop."
)
#: Why the neighbours' posterior takes the place of the chosen method's.
_LATE = "Its stages took longer than forecast."
_FAILED = "Its solves left larger errors than neighbours do: the kernel matrix is too ill conditioned for them."
_NOISE = "Its solves need more noise than neighbours have learned: the kernel matrix is too ill conditioned without."


class AutomaticObjective(TableObjective):
    """The log marginal likelihood, until a forecast chooses another objective that ends the fit.

    Learning begins with subsets and neighbours. Then `settled` asks every registered method for its forecast, and the
    fit goes on with the objective of the chosen one, or ends with the neighbours' posterior. An optimizer that knows no
    guide learns by exact solves. The fit has ``budget`` seconds from ``started`` on, a value of ``time.monotonic()``.
    """

    includes_its_error = True  # neighbours take the place of a method whose own learning has not begun

    def __init__(self, table: TrainingTable, generator: torch.Generator, started: float, budget: float) -> None:
        super().__init__(table)
        self._started, self._budget = started, budget
        self._solving = IterativeObjective(Iterative(), table, generator)
        self._generator = spawn(generator)
        self._ending: TableObjective = self._solving
        self._neighbours: VecchiaObjective | None = None
        self._guide: VecchiaObjective | SubsetGuide | None = None
        self._chosen: Inference | None = None
        #: model at which a method was chosen, and the same if that method's own learning has not begun
        self._guided: Model | None = None
        self._waiting: Model | None = None
        #: root mean square error of left-out rows, as a share of the targets' root mean square
        self._local_error = math.inf
        self._last_seconds = 0.0
        self._scored_rows = SCORED_ROWS
        #: what was forecast before the choice; None before it, and where an optimizer asked for exact gradients
        self.plan: Plan | None = None

    @property
    def inference(self) -> Inference:
        """The method that the fit ends with."""
        return self._solving.settings if self._chosen is None else self._chosen

    # What the chosen objective answers ------------------------------------------------------------------------------

    @property
    def deterministic(self) -> bool:
        return self._ending.deterministic

    @property
    def follows_likelihood(self) -> bool:
        return self._ending.follows_likelihood

    @property
    def is_likelihood(self) -> bool:
        return self._ending.is_likelihood

    @property
    def least_gain(self) -> float:
        return self._ending.least_gain

    def own_optimizer(self) -> Any | None:
        return self._ending.own_optimizer()

    def start(self, model: Model) -> Model:
        return self._ending.start(model)

    def amplified(self, model: Model) -> Model:
        """Return the model with the most likely amplitude, if the last evaluation tells."""
        return self._ending.amplified(model)

    def evaluate(self, model: Model) -> Evaluation:
        self._chosen, self._waiting = self._chosen or self._solving.settings, None
        return self._ending.evaluate(model)

    def thin(self, rows: torch.Tensor) -> TableObjective:
        self._waiting = None
        return self._ending.thin(rows)

    def learn_remaining(self, model: Model, generator: torch.Generator) -> None:
        if self._chosen is not None:
            self._ending.learn_remaining(model, generator)

    def current_posterior(self) -> Posterior | None:
        return self._ending.current_posterior()

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return self._ending.snapshot()

    def restore(self, model: Model, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        self._ending.restore(model, tensors, header)

    # The choice -----------------------------------------------------------------------------------------------------

    def guide(self, model: Model) -> VecchiaObjective | SubsetGuide | None:
        """Return the likelihood by nearest neighbours, or that of a subset if exact solves are expected to follow.

        None where neighbours would be slow.
        """
        neighbours = self._find_neighbours(model)
        if neighbours is None:
            return None
        nominal, free = solves_seconds(self.table, MANY_PRODUCTS, model.kernel), self._budget == math.inf
        likely = nominal <= FREE if free else products_slowness() * nominal <= _LIKELY * self._seconds_left()
        self._guide = guide_of(neighbours, model) if likely else neighbours
        return self._guide

    def _find_neighbours(self, model: Model) -> VecchiaObjective | None:
        if not is_compiled(model.kernel):
            return None
        self._neighbours = neighbours = VecchiaObjective.for_learning(self.table)
        neighbours.ending.takes_all = neighbours.ending.row_seconds * self.n_rows <= _REGRESSION
        if self._budget < math.inf:
            with suppress(MemoryBudgetError):
                neighbours.reserve_ending(model)
            self._scored_rows, seconds = self._scoring(neighbours)
            neighbours.ending.kept_seconds = seconds + _MARGIN * self._budget
            interruption.reserve(neighbours.ending.seconds() + neighbours.ending.kept_seconds)
        return neighbours

    def _scoring(self, neighbours: VecchiaObjective) -> tuple[int, float]:
        """Return how many rows the forecast can score in its share of the time budget, and how long they take."""
        n_inputs = self.table.n_inputs
        seconds = slowness() * neighbours.ending.row_seconds / nominal_seconds(neighbours.n_neighbours, n_inputs)
        seconds *= scored_row_seconds(neighbours.prediction_neighbours, n_inputs)
        rows = min(max(int(_SCORING * self._budget / seconds), FEWEST_SCORED_ROWS), SCORED_ROWS)
        return rows, rows * seconds

    def _seconds_left(self) -> float:
        return self._started + self._budget - time.monotonic()

    def settled(self, model: Model) -> VecchiaObjective | SubsetGuide | AutomaticObjective:
        """Choose how the fit goes on from a model that the guide has learned; see `TableObjective.settled`.

        Where solves have failed since, or need more noise than neighbours have learned, neighbours end the fit.
        """
        if self._chosen is None:
            self._choose(model)
            self._waiting = model
        substitute = self._substitute()
        if isinstance(self._chosen, Iterative) and substitute is not None:
            if self._has_failed():
                self._replace(substitute, _FAILED)
            elif self._solving.start(model) is not model:
                self._replace(substitute, _NOISE)
        if isinstance(self._chosen, Vecchia):
            assert self._neighbours is not None
            return self._neighbours
        return self

    def _choose(self, model: Model, *, ends_here: bool = False) -> None:
        """Choose the method that ends the fit; where learning ``ends_here``, one that predicts at the same model."""
        current().phase("forecasting the last stage")
        self._guided = model
        neighbours = self._neighbours or self._find_neighbours(model)
        if neighbours is None:
            self._chosen = self._solving.settings
            return
        graph, width = neighbours.graph_of(model), neighbours.prediction_neighbours
        try:
            scores = LocalScores.of(model, self.table, graph, width, self._scored_rows)
            in_gaps = self._in_gaps(model, neighbours)
        except MemoryBudgetError:  # solves keep to smaller budgets
            self._chosen = self._solving.settings
            return
        self._local_error = scores.rmse / float(self.table.Y.double().square().mean().sqrt())
        products = self._products(model)
        subject = Subject(
            self.table,
            model,
            scores.rows,
            scores.densities,
            scores.squares,
            scores.rmse,
            scores.gain,
            products,
            neighbours.ending.row_seconds,
            math.inf if self._budget == math.inf else self._seconds_left() / slowness(),
        )
        local = Vecchia(neighbours.n_neighbours, width)
        options = self._options(subject, scores.nll_error, local, neighbours, ends_here=ends_here)
        spent = time.monotonic() - self._started
        if self._budget == math.inf:  # nominal times choose, so that the choice does not depend on the machine
            self.plan = Plan.of(options, math.inf, self.table.budget).after(spent, _slowness_of)
        else:
            options = [one.after(spent, _slowness_of(one.inference)) for one in options]
            self.plan = Plan.of(options, self._budget, self.table.budget)
        self.plan = replace(self.plan, in_gaps=in_gaps)
        self._chosen = chosen = self.plan.chosen.inference
        current().expect(max(self.plan.chosen.seconds - spent, 0.0))
        if isinstance(chosen, Iterative):
            self._last_seconds = _LAST * (self.plan.chosen.seconds - spent)
            share = share_in_float32(self.table, products)
            if share < 1 and not self._solving.table.mixed:
                self._solving.multiply_in_float32()
                self.plan = self.plan.remarked(_IN_FLOAT32.format(share))
        elif not isinstance(chosen, Vecchia):
            self._ending = chosen.objective_of(model, self.table, self._generator)
        # Solves that are late leave the time of the neighbours' end themselves.
        interruption.reserve(self._last_seconds or neighbours.ending.seconds())

    def _in_gaps(self, model: Model, neighbours: VecchiaObjective) -> InGaps | None:
        """Return the errors of neighbours in gaps; None where there are none, or no time to look."""
        if self._budget < math.inf and slowness() * _GAP_SECONDS * self.n_rows > _SCORING * self._seconds_left():
            return None
        patches = folds_like_gaps(model.kernel, self.table.X, self.table.predict_at)
        if patches is None:
            return None
        folds = patches.folds
        widths = neighbours.n_neighbours, neighbours.prediction_neighbours
        left_out = LeftOutRows.in_folds(model, self.table, folds, *widths)
        nll = torch.stack([part.mean() for part in left_out.densities().split([one.n_scored for one in folds])])
        rmse = float(left_out.residual.square().mean().sqrt())
        return InGaps(rmse, float(nll.mean()), float(nll.std()) / math.sqrt(len(nll)), patches.reach)

    def _options(
        self, subject: Subject, error: float, local: Vecchia, neighbours: VecchiaObjective, *, ends_here: bool
    ) -> list[Option]:
        """Return the forecasts of all methods that can run; on small tables only that of exact inference."""
        n = self.n_rows
        if n <= EXACT_ROWS and 3 * n**2 * self.table.X.element_size() <= self.table.budget:
            methods: list[Inference] = [Exact()]
        elif ends_here or subject.model.noise_is_known:
            methods = [local, self._solving.settings]
        else:
            replaced: dict[type[Inference], Inference] = {Vecchia: local, Iterative: self._solving.settings}
            kinds = [kind for kind in registered().values() if kind.forecast is not Inference.forecast]
            methods = [one for kind in kinds if self._can_run(one := replaced.get(kind) or kind())]
        options = []
        for method in methods:
            try:
                with unshown():
                    method.check_model(subject.model)
                    found = method.forecast(subject)
            except (InvalidInputError, MemoryBudgetError):
                continue
            if found is not None:
                if method is local and not neighbours.ending.takes_all:
                    found = replace(found, seconds=0.0)
                options.append(Option(method, n, found.seconds, found.memory, found.nll, error, found.rmse))
        return options

    def _can_run(self, method: Inference) -> bool:
        """Whether a method has the precision of the table and runs on its device."""
        table, can = self.table, method.abilities
        if table.X.device.type != "cpu" and can.devices == "cpu":
            return False
        return method.mixes_precision if table.mixed else str(table.X.dtype).removeprefix("torch.") in can.dtypes

    def _products(self, model: Model) -> float:
        """Return the products with the kernel matrix that a solve is expected to take, by trial solves.

        Where a time budget has no room for the fewest, a trial would only take time from learning.
        """
        solving = self._solving
        least = solves_seconds(self.table, FEWEST_PRODUCTS, model.kernel)
        if self._budget < math.inf and products_slowness() * least > self._seconds_left():
            return expected_products(self.table)
        choice = solving.try_preconditioners(model)
        if choice is not None and choice.products < math.inf:
            return choice.products
        return expected_products(self.table)

    # Posteriors -----------------------------------------------------------------------------------------------------

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior of the chosen method, which is chosen here if the optimizer has not asked for it."""
        return self._end(model, generator, learned=False)

    def learned_posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the same at a learned model, for which neighbours may find a better amplitude."""
        return self._end(model, generator, learned=True)

    def _end(self, model: Model, generator: torch.Generator, *, learned: bool) -> Posterior:
        if self._chosen is None:
            self._choose(model, ends_here=True)
        if isinstance(self._chosen, Vecchia):
            return self._local_posterior(model, generator, learned)
        substitute = self._substitute()
        if not isinstance(self._chosen, Iterative):
            # Of learning that has not ended nobody knows whether it predicts as well as neighbours do.
            unfinished = self._waiting is not None or interruption.was_cut()
            if unfinished and substitute is not None and self._guided is not None:
                return self._instead(substitute, self._guided, generator, _LATE, learned)
            ending = self._ending
            return ending.learned_posterior(model, generator) if learned else ending.posterior(model, generator)
        hurried = substitute if self._budget < math.inf else None
        if hurried is not None and self._seconds_left() < _SHORT * self._last_seconds:
            return self._instead(hurried, model, generator, _LATE, learned)
        solves = self._solving.solves
        begun = len(solves)
        kept = 0.0 if hurried is None or self._neighbours is None else self._neighbours.ending.seconds()
        with interruption.ending_earlier(kept):
            found = self._solving.solved_posterior(self._solving.start(model) if learned else model, generator)
        if hurried is not None and any(one.status == Status.TIME_SPENT.name for one in solves[begun:]):
            return self._instead(hurried, model, generator, _LATE, learned)
        if substitute is not None and self._guided is not None and self._has_failed():
            return self._instead(substitute, self._guided, generator, _FAILED, learned)
        require_solved(solves[begun:])
        warn_of_unfinished(solves)
        return found

    def _has_failed(self) -> bool:
        """Whether a solve could not end, and neighbours do better."""
        return any(map(self._failed, self._solving.solves))

    def _failed(self, solve: SolveRecord) -> bool:
        """Whether a solve could not end, and left more of the targets than neighbours leave, or most of the probes."""
        ended = solve.status not in (Status.STAGNATED.name, Status.DIVERGED.name, Status.BUDGET_SPENT.name)
        probes = solve.relative_residual_probes or 0.0
        return not ended and (solve.relative_residual_targets > self._local_error or probes > _USELESS)

    def _local_posterior(self, model: Model, generator: torch.Generator, learned: bool) -> Posterior:
        neighbours = self._neighbours
        assert neighbours is not None
        return neighbours.learned_posterior(model, generator) if learned else neighbours.posterior(model, generator)

    def _substitute(self) -> Option | None:
        """Return the neighbours' option, with which the fit can end at once; None where there was no choice."""
        options = () if self.plan is None else self.plan.options
        return next((one for one in options if isinstance(one.inference, Vecchia)), None)

    def _instead(self, option: Option, model: Model, generator: torch.Generator, why: str, learned: bool) -> Posterior:
        """Return the neighbours' posterior in place of the chosen method's."""
        self._replace(option, why)
        return self._local_posterior(model, generator, learned)

    def _replace(self, option: Option, why: str) -> None:
        """Let the neighbours' option take the place of the chosen one."""
        assert self.plan is not None
        self._chosen = option.inference
        self.plan = self.plan.instead(option, why)


def _slowness_of(method: Inference) -> float:
    """Return the factor of a method's nominal seconds on this machine."""
    return products_slowness() if isinstance(method, Iterative) else slowness()


class PlanningObjective(AutomaticObjective):
    """The same, for a forecast alone: learning ends with the neighbours, or on small tables with exact subsets."""

    def settled(self, model: Model) -> VecchiaObjective | SubsetGuide | AutomaticObjective:
        """Return the guide, so that no exact gradient follows."""
        return self if self._guide is None else self._guide

    def plan_at(self, model: Model) -> Plan:
        """Return the forecast at a model.

        Raises `InvalidInputError` if neighbours are not compiled for the kernel or do not fit the memory.
        """
        check_plan(model)
        self._choose(model)
        if self.plan is None:
            raise InvalidInputError(
                "plan of GPRegressor needs memory for the neighbours of a row, more than the memory budget of "
                f"{size_in_words(self.table.budget)}. Give a larger memory_budget."
            )
        return self.plan


def check_plan(model: Model) -> None:
    """Refuse a plan where neighbours are not compiled, from which everything is foreseen."""
    why = why_not_compiled(model.kernel)
    if why:
        msg = f"plan of GPRegressor forecasts from nearest neighbours in compiled code, but {why} fit works without."
        raise InvalidInputError(msg)


# Scores of rows that are predicted by the rows around them ------------------------------------------------------------


#: Most and fewest rows that are left out one by one; of one in ten, the variance is also computed with half and with
#: twice as many neighbours.
SCORED_ROWS, FEWEST_SCORED_ROWS, _ONE_IN = 2000, 300, 10


class LocalScores(NamedTuple):
    """Scores of random rows that are predicted from the rows nearest to them, and what more of these would gain.

    Going from half of the neighbours to all, and from these to twice as many, gains the mean Kullback-Leibler
    divergence of the predictions, ``log(D / D') / 2``. The gains of further doublings are taken for a geometric series.
    """

    rows: torch.Tensor  # indices of the rows
    #: negative log density of each given its neighbours, mean over targets, in the units of the model
    densities: torch.Tensor
    squares: torch.Tensor  # squared error of each over its variance, mean over targets
    rmse: float  # root mean square error of a left-out row
    gain: float  # what exact inference would gain of `nll`

    @property
    def nll(self) -> float:
        """Mean negative log density of a left-out row."""
        return float(self.densities.mean())

    @property
    def nll_error(self) -> float:
        """Its standard error."""
        count = len(self.densities)
        return float(self.densities.std() / count**0.5) if count > 1 else math.inf

    @classmethod
    def of(
        cls, model: Model, table: TrainingTable, graph: NeighbourGraph, n_neighbours: int, n_rows: int = SCORED_ROWS
    ) -> LocalScores:
        """Return the scores of this many rows at a model, whose coefficients of the mean come from the same rows."""
        n, pool = table.n_rows, pool_of(model, table)
        width = min(n_neighbours, n - 1)
        left_out = LeftOutRows.of(pool, table, graph, width, n_rows)
        drawn, variance = left_out.rows, left_out.variance
        few = drawn[: math.ceil(len(drawn) / _ONE_IN)]
        widths = [max(width // 2, 1), width, min(2 * width, n - 1)]
        variances = [
            variance[: len(few)]
            if one == width
            else pool.conditionals(few, graph.neighbourhood.others(few, one), weights=False).variance
            for one in widths
        ]
        gains = [float(0.5 * (more / less).log().mean()) for more, less in pairwise(variances)]
        errors = left_out.residual.square()
        squares = (errors / variance[:, None]).mean(1)
        return cls(drawn, left_out.densities(), squares, float(errors.mean().sqrt()), _limit(*gains))


def scored_row_seconds(n_neighbours: int, n_inputs: int) -> float:
    """Return the nominal seconds that a scored row takes."""
    others = sum(nominal_seconds(one, n_inputs) for one in (n_neighbours // 2, 2 * n_neighbours))
    return nominal_seconds(n_neighbours, n_inputs) + others / _ONE_IN


def _limit(before: float, after: float) -> float:
    """Return the sum of the gains of doubling the neighbours again and again, given the last and the next of them."""
    if after <= 0:
        return 0.0
    return after / (1 - ratio_of_gains(before, after))
