"""Gaussian targets: every cell that an inference accepts, against dense float64 algebra at its exact limit.

Each cell is checked on one of the tables of `contract.problems`, in turn, so that every inference meets all of them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, cell_name, check, refused
from contract.systems import SYSTEMS

ACCEPTED = [(system, cell) for system in SYSTEMS for cell in CELLS if not refused(system, cell)]
#: Grids whose samples are solved for by iterations take ten times as long as all others.
SOLVED = ("grid, iterative", "grid, neighbours", "grid, low rank", "grid, fit_table")


@pytest.mark.filterwarnings("ignore:threshold of RelevanceVectorMachine")  # where slopes explain nearly all
@pytest.mark.pairs
@pytest.mark.parametrize(("system", "cell"), [one for one in ACCEPTED if one[0].name not in SOLVED], ids=cell_name)
def test_a_cell(system, cell):
    check(system, *cell)


@pytest.mark.each
@pytest.mark.parametrize(("system", "cell"), [one for one in ACCEPTED if one[0].name in SOLVED], ids=cell_name)
def test_a_cell_of_a_grid_by_solves(system, cell):
    check(system, *cell)


@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
def test_the_others_are_refused(system):
    for cell in CELLS:
        if refused(system, cell):
            check(system, *cell)
