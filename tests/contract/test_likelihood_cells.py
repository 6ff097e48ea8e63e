"""Likelihoods that are not Gaussian: every cell of the matrix against the best Gaussian posterior by dense search.

`test_likelihoods` tests that all other inference methods refuse them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, cell_name, check, refused
from contract.problems import LIKELIHOODS
from contract.systems import SYSTEMS

WITH = [(system, one) for system in SYSTEMS for one in LIKELIHOODS[1:] if one in system.likelihoods]
#: All tables except the one with a far row, where linear counts leave the range of float64.
SMALL = [(place % 6, *cell) for place, (_, *cell) in enumerate(CELLS)]
ACCEPTED = [(system, one, cell) for system, one in WITH for cell in SMALL if not refused(system, cell, one)]


@pytest.mark.pairs
@pytest.mark.parametrize(("system", "likelihood", "cell"), ACCEPTED, ids=cell_name)
def test_a_cell(system, likelihood, cell):
    check(system, *cell, likelihood)


@pytest.mark.few(6)
@pytest.mark.parametrize(("system", "likelihood"), WITH, ids=repr)
def test_the_others_are_refused(system, likelihood):
    for cell in SMALL:
        if refused(system, cell, likelihood):
            check(system, *cell, likelihood)
