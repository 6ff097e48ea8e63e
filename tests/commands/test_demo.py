from __future__ import annotations

import numpy as np
import pytest

from gigagp.commands.demo import load_dataset


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("table", ["digits", "diabetes"])
def test_the_demo_shows_results_calibration_and_what_next(run, table):
    code, out, error = run("demo", "--table", table, "-q")
    assert code == 0, error
    for word in ("stand-in: least squares", "linear regression", "Gaussian process", "nominal", "95 %", "gigagp fit"):
        assert word in out


def test_another_table_is_refused(refused):
    assert "--table must be digits or diabetes; got 'iris'" in refused("demo", "--table", "iris")


@pytest.mark.parametrize(("name", "shape"), [("digits", (1797, 32)), ("diabetes", (442, 11))])
def test_the_tables_are_whole(name, shape):
    data = load_dataset(name)[1]
    assert data.values.shape == shape
    assert np.all(data.values.std(axis=0) > 0)
