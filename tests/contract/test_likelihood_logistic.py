"""Signs: every cell of the matrix against the best Gaussian posterior, by a dense search.

`test_likelihoods` has that all other inferences refuse them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, check
from contract.systems import SYSTEMS

WITH = [system for system in SYSTEMS if "logistic" in system.likelihoods]


@pytest.mark.filterwarnings("ignore:threshold of RelevanceVectorMachine")  # of a few signs no function may be left
@pytest.mark.parametrize(("place", "cell"), CELLS, ids=lambda one: "-".join(one) if isinstance(one, tuple) else "")
@pytest.mark.parametrize("system", WITH, ids=repr)
def test_a_cell(system, place, cell):
    # but the table with a far row: linear counts leave float64 there
    check(system, place % 6, *cell, "logistic")
