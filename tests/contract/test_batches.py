"""A prediction at a point does not depend on the other points of the call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contract.fits import GAPPY, GAUSSIAN, fitted
from contract.systems import KINDS
from gigagp.errors import InvalidInputError

FAR = {"float64": (1e4, 1e10, 1e100, 1e300), "float32": (1e4, 1e10, 1e30)}
OPEN = [system for system in KINDS if not system.inside]
GRIDS = [system for system in KINDS if system.inside]


def far_rows(dtype, d):
    """Return points on both sides of far rows, as one batch."""
    return np.concatenate([[[far], [-far]] for far in FAR[dtype]]) * np.ones(d)


def answers(system, gp, X):
    """Return means, standard deviations and samples at points, with the axis of points first."""
    functions = gp.sample_functions(3, random_state=4)(X)
    found = {"mean": gp.predict(X), "std": system.std(gp, X), "functions": functions}
    found["std of its own"] = gp.predict(X, return_std=True)[1]
    if len(X) < 20:
        covariance = gp.predict(X, return_cov=True)[1]
        found["covariance"] = covariance
        found["noise"] = gp.predict(X, return_cov=True, include_noise=True)[1]
    return found


def assert_same(alone, beside, m, allowed):
    for name, value in alone.items():
        other = beside[name][:m, :m] if value.ndim == 2 and value.shape[0] == value.shape[1] == m else beside[name][:m]
        worst = np.abs(value - other).max()
        assert worst <= allowed, f"{name}: {worst:.3g} apart from what it is alone"


def allowed(dtype):
    return {"float64": 1e-8, "float32": 2e-3}[dtype]


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # few functions
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("place", [GAUSSIAN, GAPPY])
@pytest.mark.parametrize("system", OPEN, ids=repr)
def test_far_rows_change_nothing_else(system, place, dtype):
    gp, cell = fitted(system.name, place, dtype=dtype)
    new = cell.table.new
    alone = answers(system, gp, new)
    rows = far_rows(dtype, new.shape[1])
    beside = answers(system, gp, np.concatenate([new, rows]))
    assert_same(alone, beside, len(new), allowed(dtype))
    assert all(np.isfinite(value).all() for value in beside.values())
    assert (beside["std"] >= 0).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("outside", ["clamp", "prior"])
@pytest.mark.parametrize("system", GRIDS, ids=repr)
def test_far_rows_of_a_grid(system, outside):
    """Far rows are refused by default, by name; with other settings they do not change predictions at other points."""
    gp, cell = fitted(system.name, GAUSSIAN)
    new, far = cell.table.new, np.full((1, 2), 1e10)
    with pytest.raises(InvalidInputError, match="row 6"):
        gp.predict(np.concatenate([new, far]))
    policy = replace(system, make=lambda p: replace(system.make(p), outside=outside))
    gp = policy.fit(cell)
    alone = answers(policy, gp, new)
    beside = answers(policy, gp, np.concatenate([new, far_rows("float64", 2)]))
    assert_same(alone, beside, len(new), allowed("float64"))
    assert all(np.isfinite(value).all() for value in beside.values())


@pytest.mark.few(5)
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_a_point_alone_is_the_point_in_a_crowd(system):
    gp, cell = fitted(system.name, GAUSSIAN)
    new, draw = cell.table.new, np.random.default_rng(0)
    inside = draw.uniform(cell.table.X.min(0), cell.table.X.max(0), size=(150, 2))
    crowd = answers(system, gp, np.concatenate([new, inside]))
    for place in (0, 2, 5):
        alone = answers(system, gp, new[place : place + 1])
        for name in ("mean", "std", "functions", "std of its own"):
            # a solve with a tolerance stops at a different iterate with other right-hand sides
            most = 1e-8 + 0.1 * system.tolerance
            assert np.abs(alone[name] - crowd[name][place : place + 1]).max() <= most, name


@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_no_points_are_no_answers(system):
    gp, _ = fitted(system.name, GAUSSIAN)
    with pytest.raises(ValueError, match="minimum of 1 is required"):  # raised by scikit-learn
        gp.predict(np.zeros((0, 2)))
