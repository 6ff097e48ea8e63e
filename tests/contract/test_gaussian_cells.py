"""Gaussian targets: every cell that an inference accepts, against dense float64 algebra at its exact limit.

Each cell is checked on one of the tables of `contract.problems`, in turn, so that every inference meets all of them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, cell_name, check, refused
from contract.problems import TABLES
from contract.systems import SYSTEMS

ACCEPTED = [(system, cell) for system in SYSTEMS for cell in CELLS if not refused(system, cell)]
THREE_INPUTS = next(place for place, table in enumerate(TABLES) if table().X.shape[1] == 3)
#: Grids whose samples are solved for by iterations, which takes ten times as long as all other systems.
SOLVED = ("grid, iterative", "grid, neighbours", "grid, low rank", "grid, fit_table")
BY_SOLVES = [one for one in ACCEPTED if one[0].name in SOLVED]
#: Of those, several targets on the table with three inputs, where a cell takes ten seconds.
LARGE = [one for one in BY_SOLVES if one[1][:2] == (THREE_INPUTS, "several")]


@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.filterwarnings("ignore:threshold of RelevanceVectorMachine")  # where slopes explain nearly all
@pytest.mark.pairs
@pytest.mark.parametrize(("system", "cell"), [one for one in ACCEPTED if one not in BY_SOLVES], ids=cell_name)
def test_a_cell(system, cell):
    check(system, *cell)


@pytest.mark.few(2)
@pytest.mark.parametrize(("system", "cell"), [one for one in BY_SOLVES if one not in LARGE], ids=cell_name)
def test_a_cell_of_a_grid_by_solves(system, cell):
    check(system, *cell)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("system", "cell"), LARGE, ids=cell_name)
def test_a_cell_of_a_large_grid_by_solves(system, cell):
    check(system, *cell)


@pytest.mark.few(10)
@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
def test_the_others_are_refused(system):
    for cell in CELLS:
        if refused(system, cell):
            check(system, *cell)
