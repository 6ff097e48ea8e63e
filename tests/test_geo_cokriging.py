"""Cokriging: several measurements at places, of which some were not made.

That `GPRegressor(outputs="correlated")` has the answers of the dense equations is tested in
tests/estimators/test_correlated_outputs.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor, geo, kernels
from gigagp.errors import InvalidInputError
from kriging_cases import uneven

POINTS = np.array([[10.0, 20.0], [55.5, 71.25], [390.0, 350.0]])
MATERN = kernels.Matern(1.5, 25.0, ard=False, fixed=["variance"])


def metals(n: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Return places and two metals, of which the second was measured at every third place."""
    X, draw = uneven(n), np.random.default_rng(2)
    shared = np.sin(X[:, 0] / 15) + np.cos(X[:, 1] / 20)
    Y = np.stack([shared, 300 + 40 * shared], 1) + draw.normal(size=(n, 2)) * [0.1, 4.0]
    Y[np.arange(n) % 3 > 0, 1] = np.nan
    return X, Y


def test_places_and_values_are_a_model_of_correlated_outputs():
    X, Y = metals()
    given = GPRegressor(MATERN, optimizer=None)
    model = geo.Kriging(given).fit(X, Y)
    plain = GPRegressor(MATERN, optimizer=None, outputs="correlated").fit(X, Y)
    found, expected = model.predict(POINTS, return_std=True), plain.predict(POINTS, return_std=True)
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))
    np.testing.assert_array_equal(model.predict(POINTS), expected[0])
    assert given.outputs == "auto"  # the user's own is left alone
    alone = geo.Kriging(GPRegressor(MATERN, optimizer=None)).fit(X[::3], Y[::3, 1])
    apart = alone.predict(POINTS[:2], return_std=True)[0] - found[0][:2, 1]
    assert np.abs(apart).max() > 1, "the control: the other metal tells of this one"
    left = model.leave_one_out()
    np.testing.assert_array_equal(np.isnan(left["residual_1"]), np.isnan(Y[:, 1]))
    np.testing.assert_allclose(left["mean_0"], plain.leave_one_out().mean[:, 0])


def test_tables_and_maps_have_a_column_for_each():
    X, Y = metals()
    frame = {"easting": X[:, 0], "northing": X[:, 1], "lead": Y[:, 0], "zinc": Y[:, 1]}
    model = geo.Kriging(GPRegressor(MATERN, optimizer=None)).fit(frame, ["lead", "zinc"])
    found = model.predict({"easting": POINTS[:, 0], "northing": POINTS[:, 1]})
    assert list(found) == ["easting", "northing", "mean_lead", "mean_zinc", "std_lead", "std_zinc"]
    mean, std = geo.Kriging(GPRegressor(MATERN, optimizer=None)).fit(X, Y).predict(POINTS, return_std=True)
    np.testing.assert_array_equal(found["mean_zinc"], mean[:, 1])
    np.testing.assert_array_equal(found["std_lead"], std[:, 0])
    assert "lead, zinc" in repr(model)
    pytest.importorskip("xarray")
    maps = model.predict(x=POINTS[:, 0], y=POINTS[:2, 1])
    np.testing.assert_allclose(maps["mean_zinc"].to_numpy()[1, 1], mean[1, 1], rtol=1e-12)
    assert maps["std_zinc"].attrs["long_name"].startswith("standard deviation of zinc")


def test_what_takes_one_measurement_says_so():
    X, Y = metals()
    model = geo.Kriging(GPRegressor(MATERN, optimizer=None)).fit(X, Y)
    for method in (model.variogram, model.block_means, model.cross_validate, lambda: model.plot(None)):
        with pytest.raises(InvalidInputError, match="of Kriging is for one measurement; this model has 2"):
            method()
    with pytest.raises(InvalidInputError, match="NaN"):
        geo.Kriging().fit(X, Y[:, 1])
    with pytest.raises(InvalidInputError, match="different columns"):
        geo.Kriging().fit({"easting": X[:, 0], "northing": X[:, 1], "z": X[:, 0]}, ["z", "z"])
    with pytest.raises(InvalidInputError, match="infinite"):
        geo.Kriging().fit(X, np.where(np.isnan(Y), np.inf, Y))
