"""What conditioning rows on their nearest earlier rows costs."""

from __future__ import annotations

import time

from gigagp.inference.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model import Model
from gigagp.neighbours.neighbourhood import FEW_INPUTS, NeighbourGraph

#: Nominal seconds of finding a neighbour of a row, with few inputs and with many, and of a row for each cubed
#: neighbour. On seven tables of 2 to 26 inputs, with 30 to 200 neighbours, they are right within a factor of 1.8.
_FOUND, _CUBED = (8e-8, 2e-7), 1.2e-11
#: Rows that are timed.
_TIMED_ROWS = 300


def nominal_seconds(n_neighbours: int, n_inputs: int) -> float:
    """Return the seconds in which a row is conditioned on its neighbours, nominal ones; see `gigagp.machine`."""
    return _FOUND[n_inputs > FEW_INPUTS] * n_neighbours + _CUBED * n_neighbours**3


def measured_seconds(model: Model, table: TrainingTable, graph: NeighbourGraph) -> tuple[float, float]:
    """Return the seconds that a first row takes now, and those of each further one.

    The first one builds what all need: the order of the rows and their tree, if the graph does not have them yet.
    """
    began = time.perf_counter()
    rows = graph.neighbourhood.by_place[:: max(1, table.n_rows // _TIMED_ROWS)][:_TIMED_ROWS]
    pool = pool_of(model, table)
    pool.conditionals(rows[:1], graph.earlier(rows[:1]), weights=False)
    started = time.perf_counter()
    pool.conditionals(rows, graph.earlier(rows), weights=False)
    return started - began, (time.perf_counter() - started) / len(rows)
