"""Quadruply stochastic inference, relevance vectors: every cell of the matrix against dense algebra.

Each cell is checked on one of the tables of `contract.problems`, in turn, so that every inference meets all of them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, check
from contract.systems import family


@pytest.mark.filterwarnings("ignore:threshold of RelevanceVectorMachine")  # where slopes explain nearly all
@pytest.mark.parametrize(("place", "cell"), CELLS, ids=lambda one: "-".join(one) if isinstance(one, tuple) else "")
@pytest.mark.parametrize("system", family("quadruply", "relevance vectors"), ids=repr)
def test_a_cell(system, place, cell):
    check(system, place, *cell)
