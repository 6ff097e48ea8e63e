"""The Vecchia likelihood of a table that is larger than memory: some rows, with their neighbours in the whole table."""

from __future__ import annotations

import torch

from gigagp.errors import InvalidInputError, UnreadableRowsError
from gigagp.inference.contract.streaming import HeldRows
from gigagp.inference.vecchia.minibatch import Minibatch
from gigagp.inference.vecchia.nearest_in_passes import minibatch_of
from gigagp.inference.vecchia.objective import AFFORDABLE, VecchiaObjective
from gigagp.inference.vecchia.posterior import VecchiaPosterior
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.runtime.memory import require
from gigagp.runtime.progress import Meter
from gigagp.tables.rows.random_order import PlacedRows, last_of

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

    Values are for as many rows as are held.

    Parameters
    ----------
    held : HeldRows
    n_neighbours, prediction_neighbours, learning_rows
        As for `VecchiaObjective`. There are no more learning rows than memory has room for, with their neighbours.
    meter : Meter
        Shows the passes.

    Raises
    ------
    MemoryBudgetError
        If a minibatch of 500 rows does not fit a third of the memory budget.
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

    def posterior(self, model: Model, generator: torch.Generator) -> VecchiaPosterior:
        """Return the posterior given the rows that are held."""
        self._batch = self._last = self._drawn = None  # make room
        return super().posterior(model, generator)
