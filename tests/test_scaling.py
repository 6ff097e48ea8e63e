"""Standardization and its inverse."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor
from gigagp.scaling import Scaling

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3)) * [1e3, 1.0, 1e-5] + [7.0, -2.0, 1e-3]
Y = RNG.normal(size=(50, 2)) * [2.0, 1e6]


def test_columns_have_mean_zero_and_variance_one():
    scaling = Scaling.fit(X, Y, True)
    for standardized in (scaling.inputs(X), scaling.targets(Y)):
        np.testing.assert_allclose(standardized.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(standardized.std(0), 1, rtol=1e-12)
    np.testing.assert_allclose(scaling.original(scaling.targets(Y)), Y, rtol=1e-12)
    samples = RNG.normal(size=(50, 2, 4))
    np.testing.assert_allclose(
        scaling.original(samples), samples * scaling.y_scale[:, None] + scaling.y_centre[:, None], rtol=1e-12
    )


def test_nothing_is_done_unless_asked():
    scaling = Scaling.fit(X, Y, False)
    np.testing.assert_array_equal(scaling.inputs(X), X)
    np.testing.assert_array_equal(scaling.original(Y), Y)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e200, -1e-200])
def test_constant_columns_are_only_centred(constant):
    """This includes columns to which rounding gives a small spread."""
    columns = np.full((49, 1), constant)
    scaling = Scaling.fit(columns, columns, True)
    assert scaling.x_scale[0] == scaling.y_scale[0] == 1
    np.testing.assert_allclose(scaling.inputs(columns), 0, atol=1e-15 * abs(constant))


def test_the_rounding_of_a_constant_is_no_slope():
    """Sums like 0.1 + 0.2 give columns that are constant except for their last bits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    X[:, 1] = 700.0 + 1e-13 * rng.integers(-4, 5, 30)
    scaling = Scaling.fit(X, X[:, :1], True)
    assert (scaling.inputs(X)[:, 1] == 0).all()
    assert scaling.inputs(np.array([[0.0, 701.0]]))[0, 1] == pytest.approx(1.0)  # a value that differs is not constant
    y = X[:, 0] + 0.1 * rng.normal(size=30)
    gp = GPRegressor(mean="linear", optimizer=None).fit(X, y)
    exact = GPRegressor(mean="linear", optimizer=None).fit(np.where([True, False], X, 700.0), y)
    assert np.allclose(gp.predict(X), exact.predict(X), rtol=0, atol=1e-12)
    assert (gp.posterior_.coefficients[2] == 0).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_scales_beyond_the_range_of_squares(scale):
    plain, scaled = Scaling.fit(X, Y, True), Scaling.fit(X * scale, Y * scale, True)
    np.testing.assert_allclose(scaled.inputs(X * scale), plain.inputs(X), rtol=1e-9, atol=1e-9)
