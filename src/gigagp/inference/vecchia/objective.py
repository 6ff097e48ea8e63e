"""The Vecchia approximation of the log marginal likelihood, with its gradient and its expected information."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.cost import Ending, nominal_seconds
from gigagp.inference.vecchia.effects import Effects
from gigagp.inference.vecchia.grouped_posterior import GroupedPosterior
from gigagp.inference.vecchia.likelihood import Gap, Regression, pool_of
from gigagp.inference.vecchia.minibatch import Minibatch
from gigagp.inference.vecchia.posterior import VecchiaPosterior
from gigagp.kernels.composite import group_terms
from gigagp.model.model import Model
from gigagp.neighbours.local import Derivatives
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.neighbourhood import (
    FEW_INPUTS,
    FEW_NEIGHBOURS,
    NeighbourGraph,
    neighbours_of_a_point,
    squared_distances,
)
from gigagp.optimization.objective import Evaluation
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime import interruption
from gigagp.runtime.machine import slowness

#: Neighbours that a guide begins with in more than a few inputs, and the most that it goes on to.
MANY_NEIGHBOURS, MOST_NEIGHBOURS = 60, 200
#: Nats a row that more neighbours must be worth before a guide doubles them. On kin40k the likelihood of 60, 120 and
#: 200 neighbours is 0.34, 0.53 and 0.62 nats a row, and that of 60 learns twice the exact variance.
_WIDE_GAP = 0.05
#: Nats a row that neighbours may miss where exact gradients follow. With 8,000 rows they miss .007 on protein and .014
#: on pol, where they lead as near to the optimum as exact subsets do, or nearer. Where they miss .031 (elevators), .08
#: (a function of six inputs) or more (kin40k), 2,000 rows with an exact likelihood led nearer.
_NARROW_GAP = 0.02
#: Rows whose densities estimate the likelihood at first; the cost of an evaluation, in rows times cubed neighbours, up
#: to which they become more in the end, 555,000 rows with 30 neighbours, about a second; the fewest rows, and those
#: where time is short.
_LEARNING_ROWS, AFFORDABLE, _FEWEST_ROWS, _FEWEST_IN_TIME = 10_000, 1.5e10, 4000, 1000
#: Smallest gains in nats for each row, with few inputs and with many.
_LEAST_GAINS = (1e-5, 5e-4)
#: Seed of the rows that learning looks at.
_SEED = 1
#: Share of the time left that an evaluation with more rows may take, and its time over that of a regression.
_CLOSER, _EVALUATION = 0.1, 3.0
#: Effects that are solved for beside neighbours, at most; nominal seconds of that over those of conditioning all rows,
#: the most seconds, and the largest share of the time left; and bytes for each neighbour of each row.
_MOST_EFFECTS, _EFFECT_COST, _EFFECT_SECONDS, _EFFECT_SHARE, _EFFECT_BYTES = 3000, 2.0, 60.0, 0.3, 48
#: Rows whose distances to their nearest rows tell how fine a function the table can show, and how many of these are
#: looked at, because some may be equal.
_SPACED_ROWS, _SPACED = 200, 10


class _Evaluated(NamedTuple):
    """The last evaluation."""

    model: Model
    found: Derivatives
    regression: Regression


class VecchiaObjective(TableObjective):
    """The sum of the log densities of rows given their nearest earlier rows (Vecchia 1988).

    The neighbours are those at the model of the last `refresh`, so that the value is a smooth function of the
    hyperparameters in between. Where `refresh` finds that more neighbours are worth much, it doubles them up to
    ``most_neighbours``.

    By default new points have 90 neighbours with few inputs and 200 with many, at least ``n_neighbours``, and all rows
    if each row has all others. The sum is estimated from 10,000 rows at first, and once the hyperparameters have
    settled from as many as cost about a second.
    """

    has_posteriors_near = True
    rival: None = None
    deterministic = True  # the rows and their neighbours stay the same between refreshes

    def __init__(
        self,
        table: TrainingTable,
        n_neighbours: int,
        prediction_neighbours: int | None,
        learning_rows: int | None,
        most_neighbours: int | None = None,
        *,
        skips_repeats: bool = False,
    ) -> None:
        super().__init__(table)
        if prediction_neighbours is None:
            least = 90 if table.n_inputs <= FEW_INPUTS else 200
            prediction_neighbours = neighbours_of_a_point(n_neighbours, least, table.n_rows)
        self.n_neighbours, self._most_neighbours = n_neighbours, most_neighbours or 0
        self.prediction_neighbours = prediction_neighbours
        self._adds_rows, self._skips_repeats = learning_rows is None, skips_repeats
        self._size = min(_LEARNING_ROWS if learning_rows is None else learning_rows, table.n_rows)
        self.ending = Ending(table.n_rows, nominal_seconds(n_neighbours, table.n_inputs))
        self._graph: NeighbourGraph | None = None
        self._batch: Minibatch | None = None
        self._last: _Evaluated | None = None
        self._quick: tuple[Minibatch, Model, Regression] | None = None

    @classmethod
    def for_learning(cls, table: TrainingTable) -> VecchiaObjective:
        """Return the objective with the neighbours that good hyperparameters take."""
        return cls(table, _learning_neighbours(table), None, None, MOST_NEIGHBOURS)

    @classmethod
    def on_some_rows(cls, table: TrainingTable, n_rows: int) -> VecchiaObjective:
        """Return the same on some rows that repeat no earlier one, without looking closer: no table raises its cost.

        Among so few rows, a handful of repeated ones with equal targets would decide that there is no noise.
        """
        return cls(table, _learning_neighbours(table), None, n_rows, skips_repeats=True)

    @property
    def least_gain(self) -> float:
        """Smallest gain in nats that is worth another step.

        The likelihood of a map can be flat in a long lengthscale that predictions across gaps depend on: on one of
        733,358 rows the continuous ranked probability score in gaps fell from 63.5 to 55.1 when steps went on to 1e-5
        nats a row instead of 5e-4, for 3 s. With many inputs steps cost more and gain less.
        """
        return self.n_observations * _LEAST_GAINS[self.table.n_inputs > FEW_INPUTS]

    @property
    def share(self) -> float:
        """All rows over those whose densities were computed last."""
        assert self._batch is not None, "evaluate comes first"
        return self.table.n_rows / len(self._batch.rows)

    def refresh(self, model: Model) -> bool:
        """Find the neighbours anew where lengthscales have moved, else look closer; return whether anything changed.

        Looking closer is first to double the neighbours, where it may and where they are worth it, and then to add
        rows. Few rows do not suffice in the end: of those that nearly repeat an earlier row, a handful decides on the
        noise (on protein, 10,000 of 41,157 rows ended 0.07 nats a row below all).
        """
        kernel, X = model.kernel, self.table.X
        if self._graph is None or not self._graph.serves(kernel, X, self.n_neighbours):
            self._graph = NeighbourGraph(kernel, X, self.n_neighbours)
            self.reserve_ending(model)
            self._size = min(self._size, self._timely_rows())
        elif self._batch is None:
            pass  # the graph is that of the model
        elif self._needs_neighbours(model, self._graph):
            self.n_neighbours = min(2 * self.n_neighbours, self._most_neighbours)
            self._graph = self._graph.with_neighbours(self.n_neighbours)
            self.reserve_ending(model)
            self._size = max(_FEWEST_ROWS, min(self._size, self._affordable_rows()))
            self._size = min(self._size, self._timely_rows(), self.table.n_rows)
        elif self._adds_rows and self._size < self._affordable_rows():
            self._size = self._affordable_rows()
        else:
            return False
        self._last = self._batch = self._quick = None  # frees the old rows before the new ones are found
        self._batch = self._find(self._graph)
        return True

    def reserve_ending(self, model: Model) -> None:
        """Where the fit has a deadline, decide how it ends, and keep the time for that."""
        left = interruption.seconds_left()
        if left < math.inf:
            self.ending.reserve(model, self.table, self._last_graph(model), left)

    def ending_seconds(self) -> float:
        return self.ending.seconds()

    def _find(self, graph: NeighbourGraph) -> Minibatch:
        """Return as many random rows as learning asks for."""
        return self._drawn_rows(graph, self._size)

    def _drawn_rows(self, graph: NeighbourGraph, n_rows: int) -> Minibatch:
        """Return random rows of the table with their neighbours; a larger number includes a smaller one's."""
        drawn = torch.randperm(self.table.n_rows, generator=torch.Generator().manual_seed(_SEED))[:n_rows]
        rows = drawn.sort().values.to(self.table.X.device)
        neighbours = graph.earlier(rows)
        if self._skips_repeats:
            new = ~repeats(self.table.X, rows, neighbours)
            rows, neighbours = rows[new], neighbours[new]
        return Minibatch.of(self.table, rows, neighbours)

    def suffices(self, model: Model) -> bool:
        """Whether the likelihood misses so little at a model that its optimum is near the exact one."""
        gap = Gap.of(pool_of(model, self.table), NeighbourGraph(model.kernel, self.table.X, self.n_neighbours))
        return gap.nats - 2 * gap.standard_error <= _NARROW_GAP

    def _needs_neighbours(self, model: Model, graph: NeighbourGraph) -> bool:
        """Whether more neighbours would change the likelihood by much."""
        if self.n_neighbours >= self._most_neighbours:
            return False
        gap = Gap.of(pool_of(model, self.table), graph)
        return gap.nats - 2 * gap.standard_error > _WIDE_GAP

    def _affordable_rows(self) -> int:
        """Return the number of rows whose densities cost about a second, or a tenth of the time that is left."""
        rows = int(AFFORDABLE / min(self.n_neighbours, self.table.n_rows) ** 3)
        return min(rows, self._timely_rows(), self.table.n_rows)

    def _timely_rows(self) -> int:
        """Return the number of rows of which an evaluation takes a tenth of the time that is left."""
        left = interruption.seconds_left()
        if left == math.inf:
            return sys.maxsize
        rows = int(_CLOSER * max(left, 0.0) / (_EVALUATION * slowness() * self.ending.row_seconds))
        return max(rows, _FEWEST_IN_TIME)

    def start(self, model: Model) -> Model:
        """Find the neighbours; return the model as it is.

        An optimizer calls this at the beginning of a fit, also of one that is resumed: both have the same neighbours.
        """
        self.refresh(model)
        return model

    def evaluate(self, model: Model) -> Evaluation:
        if self._batch is None:
            self.refresh(model)
        assert self._batch is not None
        regression = self._regression(model, self._batch)
        found = self._batch.derivatives(model, regression)
        self._last = _Evaluated(model, found, regression)
        gradient = {name: self.share * value for name, value in found.gradient.items()}
        if model.noise_is_known:
            del gradient["noise_variance"]
        return Evaluation(self.share * found.value, gradient)

    def quick_value(self, model: Model) -> float | None:
        """Return the value, which takes a third of the time of an evaluation."""
        return None if self._batch is None else self.share * self._regression(model, self._batch).value

    def _regression(self, model: Model, batch: Minibatch) -> Regression:
        """Return the regression of a batch, which `quick_value` may have left for `evaluate`."""
        known, self._quick = self._quick, None
        if known is None or known[0] is not batch or not model.equals(known[1]):
            known = (batch, model, batch.regression(model))
        self._quick = known
        return known[2]

    def finest(self, model: Model) -> float:
        """Return the factor of the lengthscales at which neighbouring rows are half a lengthscale apart, at most 1."""
        X = self.table.X
        rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(_SEED))[:_SPACED_ROWS].to(X.device)
        nearest = self._last_graph(model).neighbourhood.others(rows, min(_SPACED, len(X) - 1))
        points = Metric(model.kernel, X)
        gaps = squared_distances(points(X[rows]), points(X), nearest.long()).sqrt()
        apart = gaps.masked_fill(gaps == 0, math.inf).min(1).values
        typical = float(apart.median())
        return min(2 * typical, 1.0) if math.isfinite(typical) else 1.0

    def fisher(self, space: ParameterSpace, vector: Tensor, probes: Tensor) -> Tensor:
        """Return the expected information of all observations at a vector; ``probes`` have no effect.

        It comes with the last evaluation, unless that one was read from a checkpoint.
        """
        model = space.decode(vector)
        if self._last is None or not model.equals(self._last.model):
            self.evaluate(model)
        assert self._last is not None
        found = self._last.found
        index = torch.cat([torch.arange(found.slices[name].start, found.slices[name].stop) for name in space.names])
        slope = space.jacobian(vector)
        return self.share * slope[:, None] * found.information[index][:, index] * slope[None, :]

    def thin(self, rows: Tensor) -> VecchiaObjective:
        """Return this objective: fewer rows would not make its steps cheaper, but take neighbours away."""
        return self

    def guide(self, model: Model) -> VecchiaObjective:
        return self

    def current_posterior(self) -> VecchiaPosterior | None:
        """Return the posterior at the last evaluated model, with the neighbours that were found last."""
        if self._last is None or self._graph is None:
            return None
        return self._posterior_of(self._last.model, self._graph, self._last.regression)

    def _posterior_of(self, model: Model, graph: NeighbourGraph, found: Regression) -> VecchiaPosterior:
        """Return the posterior with the mean's coefficients of some rows, which stand for all in the likelihood."""
        share = self.table.n_rows / found.n_rows
        whole = found._replace(
            squares=share * found.squares, log_variance=share * found.log_variance, n_rows=self.table.n_rows
        )
        return VecchiaPosterior(model, self.table, graph, self.prediction_neighbours, whole)

    def graph_of(self, model: Model) -> NeighbourGraph:
        """Return the graph of exactly this model's kernel: a model file has no other kernel to find it with."""
        if self._graph is None or not self._graph.is_of(model.kernel, self.table.X, self.n_neighbours):
            self._graph = NeighbourGraph(model.kernel, self.table.X, self.n_neighbours)
            self._batch = self._last = None
        return self._graph

    def _last_graph(self, model: Model) -> NeighbourGraph:
        """Return the neighbours that were found last, or those of a model if none were found yet."""
        return self.graph_of(model) if self._graph is None else self._graph

    def posterior(self, model: Model, generator: torch.Generator) -> VecchiaPosterior | GroupedPosterior:
        """Return the posterior at a model, with the mean's coefficients and the likelihood from all rows.

        Where there is no time for that, they are from at most 10,000 random rows. The coefficients are as uncertain as
        these leave them, and predictions are made from all rows in any case. Effects of up to 3,000 levels, such as the
        offsets of the entities of a panel, are solved for beside the neighbours.
        """
        effects = self._effects_to_solve_for(model)
        if effects is not None:
            near = self._effect_neighbours, self.prediction_neighbours
            return GroupedPosterior.fitted(model, self.table, *near, effects)
        graph = self.graph_of(model)
        if self.ending.takes_all:
            return VecchiaPosterior.fitted(model, self.table, graph, self.prediction_neighbours)
        return self._posterior_of(model, graph, self._drawn_rows(graph, self.ending.some_rows).regression(model))

    @property
    def _effect_neighbours(self) -> int:
        """Neighbours of a row where effects are solved for: few if none were given, because an effect has many rows."""
        return min(self.n_neighbours, FEW_NEIGHBOURS) if self._most_neighbours else self.n_neighbours

    def _effects_to_solve_for(self, model: Model) -> Effects | None:
        """Return the effects of levels, if they are few enough, and rows few enough for the memory and the time left.

        The neighbours of a point are a few rows of each of a few levels, which tell little of the effects of these.
        """
        groups, table = group_terms(model.kernel), self.table
        if not groups or table.drawn_from is not None:
            return None
        left, n = interruption.seconds_left(), table.n_rows
        seconds = _EFFECT_COST * nominal_seconds(self._effect_neighbours, table.n_inputs) * n
        timely = seconds <= _EFFECT_SECONDS if left == math.inf else slowness() * seconds <= _EFFECT_SHARE * left
        if not timely or _EFFECT_BYTES * self._effect_neighbours * n > table.budget:
            return None
        effects = Effects(tuple(groups.values()), table.X)
        return effects if effects.count <= _MOST_EFFECTS else None

    def learned_posterior(self, model: Model, generator: torch.Generator) -> VecchiaPosterior | GroupedPosterior:
        """Return the posterior at a learned model; where it was learned from fewer rows, with the amplitude of all.

        The regression of all rows gives that amplitude at no cost. With a time budget of 10 s the factor was 0.85 on
        kin40k (36,000 rows), and the NLL of other rows fell from -.99 to -1.02.
        """
        of_part = self._batch is None or len(self._batch.rows) < self.table.n_rows
        found = self.posterior(model, generator)
        return found.amplified() if of_part else found

    def posterior_near(self, model: Model, generator: torch.Generator) -> VecchiaPosterior:
        """Return the posterior at a model with the neighbours that were found last."""
        return VecchiaPosterior.fitted(model, self.table, self._last_graph(model), self.prediction_neighbours)


def _learning_neighbours(table: TrainingTable) -> int:
    return FEW_NEIGHBOURS if table.n_inputs <= FEW_INPUTS else MANY_NEIGHBOURS


def repeats(X: Tensor, rows: Tensor, neighbours: Tensor) -> Tensor:
    """Return which rows (q,) are equal to the first of their neighbours (q, m), the nearest one."""
    nearest = neighbours[:, 0].long()
    return (nearest >= 0) & (X[rows] == X[nearest]).all(1)
