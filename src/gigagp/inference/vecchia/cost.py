"""What conditioning rows on their nearest earlier rows costs, and how a fit with neighbours ends in time."""

from __future__ import annotations

import time

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import FEW_INPUTS, NeighbourGraph
from gigagp.runtime import interruption
from gigagp.runtime.machine import slowness

#: Nominal seconds of finding a neighbour of a row, with few inputs and with many, and of a row for each cubed
#: neighbour. On seven tables of 2 to 26 inputs, with 30 to 200 neighbours, they are right within a factor of 1.8.
_FOUND, _CUBED = (8e-8, 2e-7), 1.2e-11
#: Rows that are timed.
_TIMED_ROWS = 300
#: Share of the time left that regressing all rows may take in the end; the rows that take their place, at most and at
#: least, and the share that these may take.
_SHARE, SOME_ROWS, _FEWEST_ROWS, _SOME_SHARE = 0.2, 10_000, 500, 0.5


class Ending:
    """The end of a fit with neighbours: the regression of all rows, or where a deadline has no time for it, of some.

    ``row_seconds`` are the nominal seconds in which a row is conditioned on its neighbours, as far as they are known.
    ``takes_all`` says whether the mean's coefficients and the likelihood are from all rows, and ``some_rows`` how many
    take their place. ``kept_seconds`` are those before a deadline that learning leaves beside those of the regression.
    """

    def __init__(self, n_rows: int, row_seconds: float) -> None:
        self.n_rows, self.row_seconds = n_rows, row_seconds
        self.takes_all, self.some_rows, self.kept_seconds = True, min(SOME_ROWS, n_rows), 0.0
        self._is_timed, self._build_seconds = False, 0.0

    def reserve(self, model: Model, table: TrainingTable, graph: NeighbourGraph, left: float) -> None:
        """Decide by measured seconds of a row and the seconds that are left, and keep the time before the deadline."""
        built, seconds = measured_seconds(model, table, graph)
        self.row_seconds, self._is_timed = seconds / slowness(), True
        self._build_seconds = max(self._build_seconds, built)  # an earlier look may have found the tree built
        self.takes_all = seconds * self.n_rows <= _SHARE * max(left, 0.0)
        timely = int(_SOME_SHARE * min(max(left, 0.0) / seconds, SOME_ROWS / _SOME_SHARE))
        self.some_rows = min(max(timely, _FEWEST_ROWS), SOME_ROWS, self.n_rows)
        interruption.reserve(self.seconds() + self.kept_seconds, at_least=True)

    def seconds(self) -> float:
        """Return the expected seconds of the regression; before a row has been timed, the fewest that it may take."""
        rows = self.n_rows if self.takes_all and self._is_timed else self.some_rows
        return self._build_seconds + slowness() * self.row_seconds * rows


def nominal_seconds(n_neighbours: int, n_inputs: int) -> float:
    """Return the nominal seconds in which a row is conditioned on its neighbours; see `gigagp.runtime.machine`."""
    return _FOUND[n_inputs > FEW_INPUTS] * n_neighbours + _CUBED * n_neighbours**3


def measured_seconds(model: Model, table: TrainingTable, graph: NeighbourGraph) -> tuple[float, float]:
    """Return the measured seconds of a first row, and of each further one.

    The first one builds what all need: the order of the rows and their tree, if the graph does not have them yet.
    """
    began = time.perf_counter()
    rows = graph.neighbourhood.by_place[:: max(1, table.n_rows // _TIMED_ROWS)][:_TIMED_ROWS]
    pool = pool_of(model, table)
    pool.conditionals(rows[:1], graph.earlier(rows[:1]), weights=False)
    started = time.perf_counter()
    pool.conditionals(rows, graph.earlier(rows), weights=False)
    return started - began, (time.perf_counter() - started) / len(rows)
