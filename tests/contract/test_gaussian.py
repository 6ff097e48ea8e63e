"""Every inference x targets x mean x row noise x dtype, against dense float64 algebra at its exact limit.

Each cell is checked on one of the tables of `contract.problems`, in turn, so that every inference meets all of them.
"""

from __future__ import annotations

from itertools import product

import pytest

from contract.checks import check
from contract.problems import DTYPES, MEANS, NOISES, TARGETS
from contract.systems import SYSTEMS

CELLS = list(enumerate(product(TARGETS, MEANS, NOISES, DTYPES)))


@pytest.mark.parametrize(("place", "cell"), CELLS, ids=lambda one: "-".join(one) if isinstance(one, tuple) else "")
@pytest.mark.parametrize("system", SYSTEMS, ids=repr)
def test_a_cell(system, place, cell):
    targets, mean, noise, dtype = cell
    check(system, place, targets, mean, noise, dtype)
