"""Likelihoods that are not Gaussian: every cell of the matrix against the best Gaussian posterior by dense search.

`test_likelihoods` tests that all other inference methods refuse them.
"""

from __future__ import annotations

import pytest

from contract.checks import CELLS, check
from contract.problems import LIKELIHOODS
from contract.systems import SYSTEMS

WITH = [(system, one) for system in SYSTEMS for one in LIKELIHOODS[1:] if one in system.likelihoods]


@pytest.mark.parametrize(("place", "cell"), CELLS, ids=lambda one: "-".join(one) if isinstance(one, tuple) else "")
@pytest.mark.parametrize(("system", "likelihood"), WITH, ids=repr)
def test_a_cell(system, likelihood, place, cell):
    # all tables except the one with a far row, where linear counts leave the range of float64
    check(system, place % 6, *cell, likelihood)
