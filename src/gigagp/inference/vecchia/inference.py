"""`inference.Vecchia`: the settings of Vecchia inference, and learning from rows that are not held."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import FitWarning, InvalidInputError, UnreadableRowsError, warn
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.streaming import BegunFit, HeldRows, StreamJob, hold_rows
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.grouped import GroupedObjective
from gigagp.inference.vecchia.grouped_posterior import GroupedPosterior
from gigagp.inference.vecchia.laplace import DRAWN_NUMBERS, LaplaceObjective
from gigagp.inference.vecchia.laplace_posterior import LaplacePosterior
from gigagp.inference.vecchia.minibatch import Minibatch
from gigagp.inference.vecchia.objective import AFFORDABLE, VecchiaObjective
from gigagp.inference.vecchia.posterior import VecchiaPosterior
from gigagp.kernels.composite import own_groups
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.model.model import Model
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.neighbourhood import FEW_INPUTS, NeighbourGraph, neighbours_of_a_point, squared_distances
from gigagp.neighbours.search import NeighbourTree
from gigagp.runtime.memory import require
from gigagp.runtime.progress import Meter
from gigagp.settings.fields import Count
from gigagp.tables.rows.access import RowAccess
from gigagp.tables.rows.random_order import LAST, PlacedRows, last_of

#: Float64 numbers that a fit holds for each row beside the table: for the order, and for each of the row's numbers
#: (measured: ``python benchmarks/vecchia_rows.py``).
_ORDER_NUMBERS, _COPIES = 16, 4


@dataclass(frozen=True)
class Vecchia(Inference):
    """Inference from nearest neighbours: linear in the number of rows, and exact with all rows as neighbours.

    The likelihood is a product of the densities of rows, each given its nearest earlier rows (Vecchia 1988). A
    prediction conditions the function at a point on the rows nearest to it. Distances are in units of the lengthscales.
    For labels, counts and other non-Gaussian targets, latent values take the place of the targets, and their posterior
    is Laplace's approximation.

    When to use: for maps and other tables with up to three inputs and any number of rows, where 30 neighbours
    approximate the log likelihood to a few nats. With more inputs it quickly finds good hyperparameters, and more
    neighbours bring it closer to the exact result; `describe()` says how close. With many inputs and little noise,
    `Iterative` predicts better.

    Parameters
    ----------
    n_neighbors : int, default 30
        Earlier rows, m, that each row is conditioned on. With four or more inputs, at least 60 are worth their cost,
        which is ``n m^3 / 3`` operations for a likelihood.
    prediction_neighbors : int or None, default None
        Rows that a new point is conditioned on. None is 90 up to three inputs and 200 with more, and at least
        ``n_neighbors``; it is all rows if each row is conditioned on all others. Up to three inputs a third of them are
        at coarser scales, so that they surround gaps. For non-Gaussian targets None is 60, because latent values have
        no noise to average.
    learning_rows : int or None, default None
        Random rows whose densities estimate the likelihood in learning, each given neighbours among all rows, so that a
        step costs the same for any number of rows. None is 10,000, and in the end as many as take about a second:
        555,000 with 30 neighbours. Non-Gaussian targets are learned from only this many rows, half of them random and
        half in dense clusters; None is 20,000. Final predictions use all rows.

    Notes
    -----
    `GPRegressor.fit_table` passes a few times over a table that exceeds the memory budget. Rows for learning, as many
    as fit in a third of the budget, get their nearest earlier rows among all rows in a random order. A random subset of
    the rows, as large as the budget allows, is kept for the coefficients of the mean and for predictions. The
    hyperparameters are therefore those of the whole table, and predictions are valid, but less sharp than from all
    rows.

    References
    ----------
    Vecchia 1988, doi:10.1111/j.2517-6161.1988.tb01729.x; Guinness 2021, Gaussian process learning via Fisher scoring of
    Vecchia's approximation, doi:10.1007/s11222-021-09999-1; Katzfuss et al. 2020, Vecchia approximations of
    Gaussian-process predictions, arXiv:1805.03309; Kuendig and Sigrist 2024, Iterative methods for Vecchia-Laplace
    approximations for latent Gaussian process models, arXiv:2310.12000.
    """

    n_neighbors: Count = 30
    prediction_neighbors: Count | None = None
    learning_rows: Count | None = None

    abilities = Abilities(
        "vecchia",
        "any number, best in up to three inputs",
        likelihoods="any",
        streams=True,
        holds_rows=True,
        adds_rows=True,
        gpu_rows=math.inf,
        options={"--neighbors": "n_neighbors"},
    )
    posteriors = (VecchiaPosterior, LaplacePosterior, GroupedPosterior)

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the approximation of the log marginal likelihood on a table, by Laplace's if it is not Gaussian."""
        if isinstance(likelihood, Gaussian | None):
            return VecchiaObjective(table, self.n_neighbors, self.prediction_neighbors, self.learning_rows)
        found = LaplaceObjective(table, likelihood, self.n_neighbors, self.prediction_neighbors, self.learning_rows)
        likelihood.check_rows(table.Y)
        found.require_limits()
        return found

    def objective_of(
        self, model: Model, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> TableObjective:
        """Return the objective for models of one structure: with groups, their effects are beside the neighbours."""
        if own_groups(model.kernel) and isinstance(likelihood, Gaussian | None):
            least = 90 if table.n_inputs <= FEW_INPUTS else 200
            most = self.prediction_neighbors or neighbours_of_a_point(self.n_neighbors, least, table.n_rows)
            return GroupedObjective(table, self.n_neighbors, most)
        return self.objective(table, generator, likelihood)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the scores of the left-out rows, and the time of regressing every row on its neighbours."""
        table = subject.table
        numbers = _ORDER_NUMBERS + _COPIES * (table.n_inputs + table.n_targets)
        return subject.with_nll(subject.row_seconds * table.n_rows, 8.0 * numbers * table.n_rows, subject.nll)

    def stream(self, job: StreamJob, generator: torch.Generator) -> BegunFit:
        """Keep all rows, or a random subset if they are too many, and return their fit."""
        numbers = _ORDER_NUMBERS + _COPIES * (job.source.n_inputs + job.source.n_columns)
        gaussian = isinstance(job.likelihood, Gaussian)
        access = job.resources.enter_context(RowAccess(job.source, job.source.chunk_rows, job.likelihood.check_targets))
        held = hold_rows(job, access, numbers if gaussian else numbers + DRAWN_NUMBERS)
        objective: TableObjective
        if held.table.drawn_from is None or job.learn is None or not gaussian:
            access.close()
            objective = self.objective(held.table, generator, job.likelihood)
        else:
            given = self.n_neighbors, self.prediction_neighbors, self.learning_rows
            objective = StreamedObjective(held, *given, job.meter)
        if held.table.drawn_from is not None:
            msg = (
                f"The memory budget of {job.budget:,} bytes has room for {held.table.n_rows:,} of "
                f"{held.table.drawn_from:,} rows, drawn at random, from which predictions are made. All rows need "
                f"{held.needed:,} bytes. Raise memory_budget, or use inference.Grid (up to three inputs)."
            )
            warn(msg, FitWarning)
        return BegunFit(objective, job.start.standardized(held.scaling.units()), held.scaling, logs_steps=True)

    def describe(self) -> str:
        new = "60 to 200" if self.prediction_neighbors is None else f"{self.prediction_neighbors}"
        return f"Vecchia ({self.n_neighbors} neighbours for each row, {new} for each new point)"


# The Vecchia likelihood of a table that is larger than memory: some rows, with their neighbours in the whole table


#: Fewest rows to learn from, and the part of the memory budget that they and their neighbours may take: one over this.
_FEWEST_ROWS, _SHARE = 500, 3
#: Which of the random orders draws the rows to learn from: not the one in which rows are earlier than others.
_DRAW = 1


class StreamedObjective(VecchiaObjective):
    """The Vecchia likelihood of all rows of a source in random order, estimated from a minibatch of them.

    Each row of the minibatch has its true neighbours: the nearest of all rows of the source that come before it. So the
    estimate is unbiased, and hyperparameters are those of the whole table, however few rows are held. A pass over the
    source finds the neighbours; there is one at first, another where lengthscales have moved by much, and one for more
    rows in the end. Predictions, and the mean's coefficients, are from the rows that are held.

    Values are for as many rows as are held. There are no more learning rows than a third of the memory budget has room
    for, with their neighbours. Raises `MemoryBudgetError` if these are fewer than 500.
    """

    def __init__(
        self,
        held: HeldRows,
        n_neighbours: int,
        prediction_neighbours: int | None,
        learning_rows: int | None,
        meter: Meter,
    ) -> None:
        super().__init__(held.table, n_neighbours, prediction_neighbours, learning_rows)
        self._held, self._meter = held, meter
        table, n = held.table, held.order.n_rows
        numbers = 4 + 3 * (table.n_inputs + table.n_targets + table.basis[:1].shape[1])  # an evaluation has copies
        each = 8 * numbers * (n_neighbours + 1)
        what = f"Learning from {_FEWEST_ROWS} rows with {n_neighbours} neighbours each"
        require(_FEWEST_ROWS * each, table.budget // _SHARE, what, "Take fewer neighbours, or raise memory_budget.")
        self._most_rows = min(n, table.budget // _SHARE // each)
        self._size = min(self._most_rows, self._size if learning_rows is None else learning_rows)
        self._drawn: PlacedRows | None = None

    def start(self, model: Model) -> Model:
        """Return the model as it is; the first evaluation, or `refresh`, passes over the source."""
        if self._graph is not None and not self._graph.serves(model.kernel, self.table.X, self.n_neighbours):
            self._graph = self._batch = self._last = None
        return model

    def _affordable_rows(self) -> int:
        return min(self._most_rows, int(AFFORDABLE / self.n_neighbours**3))

    def _find(self, graph: NeighbourGraph) -> Minibatch:
        """Return random rows of the source with their neighbours; see `VecchiaObjective`."""
        order = self._held.order
        n = order.n_rows
        try:
            if self._drawn is None:
                self._meter.phase("drawing rows to learn from", n, unit="row")
                most = max(self._size, self._affordable_rows() if self._adds_rows else 0)
                self._drawn = order.drawn(most / n, _DRAW)
            chosen = self._drawn.draws <= last_of(self._size / n)
            drawn = PlacedRows(*(part[chosen] for part in self._drawn))
            self._meter.phase("finding neighbours in the table", n, unit="row")
            found = minibatch_of(self._held, drawn, graph.metric, min(self.n_neighbours, n - 1))
        except InvalidInputError as error:
            raise UnreadableRowsError(str(error)) from error
        self._meter.phase("learning from neighbours")
        return found

    def posterior(self, model: Model, generator: torch.Generator) -> VecchiaPosterior | GroupedPosterior:
        self._batch = self._last = self._drawn = None  # make room
        return super().posterior(model, generator)


# The nearest earlier rows of some rows among all rows of a source, which are read in blocks and never held -----------

#: Most rows whose neighbours in a block are searched together, and one over their part of the memory budget.
_TOGETHER, _NEAREST_SHARE = 2**12, 32


class _Nearest(NamedTuple):
    """Rows and the nearest earlier rows that were found so far.

    X and Y, shape (q, m + 1, ...), have the rows themselves first, then their neighbours, the nearest first. Empty
    places repeat the row.
    """

    X: Tensor
    Y: Tensor
    distances: Tensor  # squared, (q, m); infinite in empty places
    places: Tensor  # of the neighbours in the order, (q, m)

    @classmethod
    def none(cls, X: Tensor, Y: Tensor, n_neighbours: int) -> _Nearest:
        """Return rows without neighbours."""
        shape = len(X), n_neighbours
        X, Y = (part[:, None].repeat(1, n_neighbours + 1, 1) for part in (X, Y))
        distances = torch.full(shape, torch.inf, dtype=torch.float64)
        return cls(X, Y, distances, torch.full(shape, LAST))

    def take(self, rows: Tensor, block: _Block, found: Tensor, distances: Tensor) -> None:
        """Take neighbours of some rows in a block into account: their numbers there and squared distances, (r, m).

        Of equally distant rows those that come first are nearer, so that blocks of any size give the same neighbours.
        """
        m = found.shape[1]
        present = found >= 0
        index = found.clamp_min(0).long()
        new = torch.where(present, block.places[index], LAST)
        both = torch.cat([self.distances[rows], distances], 1), torch.cat([self.places[rows], new], 1)
        first = both[1].sort(dim=1, stable=True).indices
        order = first.gather(1, both[0].gather(1, first).sort(dim=1, stable=True).indices[:, :m])
        self.distances[rows], self.places[rows] = (part.gather(1, order) for part in both)
        for kept, more in ((self.X, block.X), (self.Y, block.Y)):
            values = torch.cat([kept[rows, 1:], torch.where(present[:, :, None], more[index], kept[rows, :1])], 1)
            kept[rows, 1:] = values.gather(1, order[:, :, None].expand(-1, -1, kept.shape[2]))


class _Block:
    """Rows of a block in their order, with a tree."""

    def __init__(self, X: Tensor, Y: Tensor, points: Tensor, places: Tensor) -> None:
        order = places.argsort(stable=True)
        self.X, self.Y, self.points, self.places = X[order], Y[order], points[order], places[order]
        self.low, self.high = points.amin(0), points.amax(0)
        self.tree = NeighbourTree(self.points)

    def add_to(self, nearest: _Nearest, points: Tensor, places: Tensor, together: int) -> None:
        """Add the neighbours of rows with given points and places, of this many at a time."""
        for rows in torch.arange(len(points)).split(together):
            outside = (self.low - points[rows]).clamp_min(0).maximum(points[rows] - self.high)
            # A little less than the distance of the box: sums round.
            rows = rows[(1 - 1e-12) * outside.square().sum(1) <= nearest.distances[rows, -1]]
            limits = torch.searchsorted(self.places, places[rows])
            found = self.tree.query(points[rows], nearest.distances.shape[1], limits)
            distances = squared_distances(points[rows], self.points, found.long())
            closer = distances[:, 0] <= nearest.distances[rows, -1]
            closer &= found[:, 0] >= 0
            nearest.take(rows[closer], self, found[closer], distances[closer])


def minibatch_of(held: HeldRows, drawn: PlacedRows, metric: Metric, n_neighbours: int) -> Minibatch:
    """Return rows of a source with their nearest earlier rows in the random order, by one pass over the source.

    The rows are given as they are stored. Raises `InvalidInputError` if a row cannot be used any more.
    """
    table = held.table

    def scaled(rows: PlacedRows) -> tuple[Tensor, Tensor]:
        X, Y = held.scaling.inputs(rows.X.numpy()), held.scaling.targets(rows.Y.numpy())
        return torch.from_numpy(X).to(table.X.dtype), torch.from_numpy(Y).to(table.Y.dtype)

    X, Y = scaled(drawn)
    points, nearest = metric(X), _Nearest.none(X, Y, n_neighbours)
    each = 8 * 2 * n_neighbours * (2 + table.n_inputs + table.n_targets)  # neighbours so far, and those in a block
    together = max(1, min(_TOGETHER, table.budget // _NEAREST_SHARE // each))
    for rows in held.order.blocks():
        X, Y = scaled(rows)
        _Block(X, Y, metric(X), rows.places).add_to(nearest, points, drawn.places, together)
    return _as_minibatch(held, nearest)


def _as_minibatch(held: HeldRows, nearest: _Nearest) -> Minibatch:
    q, m = nearest.distances.shape
    table, device = held.table, held.table.X.device
    rows = torch.arange(q) * (m + 1)
    neighbours = (rows[:, None] + torch.arange(1, m + 1)).masked_fill(nearest.distances == torch.inf, -1)
    X, Y = (part.flatten(0, 1).to(device) for part in (nearest.X, nearest.Y))
    return Minibatch(replace(table, X=X, Y=Y).require_finite(), rows.to(device), neighbours.to(torch.int32).to(device))
