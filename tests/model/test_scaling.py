"""Standardization and its inverse."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.errors import FitWarning
from gigagp.estimators.metrics import rmse
from gigagp.model import scaling
from gigagp.model.scaling import Scaling

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


def with_far_rows(n, share, where):
    """Return inputs, a function of them, and which rows have a first input far from all others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    function = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    far = np.arange(n) < share * n
    X[far, 0] = where
    return X, function, far


@pytest.mark.parametrize("where", [1e3, -1e6, 1e200])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_few_rows_far_away_do_not_set_the_scale(where, share):
    X, y, far = with_far_rows(400, share, where)
    found, near = Scaling.fit(X, y[:, None], True), Scaling.fit(X[~far], y[~far, None], True)
    assert np.abs(np.log2(found.x_scale / near.x_scale)).max() < 1
    assert np.abs(found.x_centre - near.x_centre).max() < near.x_scale.max()
    np.testing.assert_allclose(found.inputs(X[~far]).std(0), 1, atol=0.6)


def test_other_inputs_have_variance_one():
    """Also skewed, discrete and clumped ones, those of few rows, and those of which half are far away."""
    rng = np.random.default_rng(1)
    columns = {
        "skewed": np.exp(rng.normal(size=2000)),
        "heavy tails": rng.standard_t(3, size=2000),
        "uniform": rng.uniform(size=2000),
        "rare": (rng.uniform(size=2000) < 0.01) * 1e6,
        "halves": np.where(rng.uniform(size=2000) < 0.5, 0.0, 1e6) + rng.normal(size=2000),
    }
    for name, column in columns.items():
        assert Scaling.fit(column[:, None], column[:, None], True).x_scale[0] == pytest.approx(column.std()), name
    few = np.array([1.0, 2.0, 3.0, 1e9])[:, None]
    assert Scaling.fit(few, few, True).x_scale[0] == pytest.approx(few.std())


def test_huge_tables_are_told_by_some_of_their_rows():
    X, y, far = with_far_rows(40_000, 0.1, 1e5)
    order = np.random.default_rng(2).permutation(len(X))
    scale = Scaling.fit(X[order], y[order, None], True).x_scale[0]
    assert scale == pytest.approx(X[~far, 0].std(), rel=0.2)  # two thirds of all rows are .74 of the near ones


FITS = {
    "exact": {},
    "neighbours": {"inference": inference.Vecchia()},
    "iterative": {"inference": inference.Iterative()},
    "inducing points": {"inference": inference.SparseVariational(60)},
    "computation-aware": {"inference": inference.ComputationAware(60)},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("chosen", FITS.values(), ids=FITS)
def test_fits_learn_the_other_rows(chosen, monkeypatch):
    X, function, far = with_far_rows(300, 0.15, -9999.0)
    y = function + 0.1 * np.random.default_rng(3).normal(size=len(X))
    train = np.arange(len(X)) % 3 > 0

    def error():
        found = (
            GPRegressor(random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | chosen)
            .fit(X[train], y[train])
            .predict(X[~train & ~far])
        )
        return rmse(function[~train & ~far], found)

    assert error() < 0.15
    monkeypatch.setattr(scaling, "_FAR", np.inf)  # the control
    assert error() > 0.5


@pytest.mark.slow
def test_classifiers_learn_the_other_rows(monkeypatch):
    X, function, far = with_far_rows(450, 0.15, -9999.0)
    train = np.arange(len(X)) % 3 > 0

    def accuracy():
        found = GPClassifier(kernels.RBF(), random_state=0).fit(X[train], function[train] > 0).predict(X[~train & ~far])
        return np.mean(found == (function[~train & ~far] > 0))

    assert accuracy() > 0.9
    monkeypatch.setattr(scaling, "_FAR", np.inf)  # the control
    assert accuracy() < 0.8


def with_a_far_target(where):
    X, function, _ = with_far_rows(200, 0.0, 0.0)
    y = function + 0.1 * np.random.default_rng(4).normal(size=len(X))
    y[17] = where
    return X, y


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("where", [100.0, -1e9])
def test_gaussian_noise_warns_of_far_targets(where):
    X, y = with_a_far_target(where)
    with pytest.warns(FitWarning, match=re.escape(f"such as {where:.3g} in row 17")):
        GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, y)
    with pytest.warns(FitWarning, match="row 17"):
        GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, np.stack([X[:, 0], y], 1))


@pytest.mark.few(2)
@pytest.mark.parametrize("chosen", FITS.values(), ids=FITS)
def test_fits_warn_of_targets_that_no_row_around_them_predicts(chosen):
    """The standard deviation of all targets is hardly larger for this one, but the fit is much worse."""
    X, y = with_a_far_target(10.0)
    with pytest.warns(FitWarning, match="are not predicted by the rows around them: 1 of 200 .* such as 10 in row 17"):
        GPRegressor(random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | chosen).fit(X, y)


@pytest.mark.few(1)
@pytest.mark.parametrize("where", [10.0, 100.0])
@pytest.mark.parametrize("mean", ["constant", lambda X: 1000.0 + X[:, 0]])
def test_streamed_fits_warn_of_far_targets_in_the_units_of_the_data(where, mean):
    X, y = with_a_far_target(where)
    if callable(mean):
        y = y + mean(X)
    with pytest.warns(FitWarning, match=re.escape(f"such as {y[17]:.3g}, among the rows")):
        GPRegressor(inference=inference.Vecchia(10), mean=mean, random_state=0).fit_table(lambda: [(X, y)])


@pytest.mark.slow
def test_the_warning_is_of_bad_fits():
    X, y = with_a_far_target(10.0)
    others = np.arange(len(X)) != 17
    new, function, _ = with_far_rows(1000, 0.0, 0.0)

    def error(rows, **chosen):
        return rmse(
            function[200:],
            GPRegressor(random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | chosen)
            .fit(X[rows], y[rows])
            .predict(new[200:]),
        )

    best = error(others)
    assert error(slice(None), likelihood="student-t") < 1.5 * best
    with pytest.warns(FitWarning, match="row 17"):
        assert error(slice(None)) > 5 * best


def test_far_targets_that_the_function_explains_do_not_warn():
    """A peak is ten spreads from the other targets. Warnings are errors here."""
    X = np.linspace(-3, 3, 300)[:, None]
    y = np.sin(X[:, 0]) + 20 * np.exp(-(X[:, 0] ** 2) / 0.02) + 0.1 * np.random.default_rng(6).normal(size=300)
    GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, y)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("y", "chosen"),
    [
        (with_a_far_target(100.0)[1], {"likelihood": "auto"}),
        (with_a_far_target(100.0)[1], {"likelihood": "student-t"}),
        (with_a_far_target(10.0)[1], {"likelihood": "student-t"}),
        (with_a_far_target(100.0)[1], {"noise_variance": np.where(np.arange(200) == 17, 1e4, 0.01)}),
        (np.exp(0.5 * np.random.default_rng(5).normal(size=200)), {}),  # skewed, as targets often are
        (np.where(np.arange(200) < 80, 1e3, 0.0) + with_a_far_target(0.0)[1], {}),  # not few
    ],
)
def test_other_targets_and_other_noise_do_not_warn(y, chosen):
    """Warnings are errors here."""
    GPRegressor(random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | chosen).fit(with_a_far_target(0.0)[0], y)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("y", "likelihood"),
    [
        (with_a_far_target(3.0)[1], "gaussian"),
        (np.exp(np.random.default_rng(5).normal(size=200)), "gaussian"),
        ((np.arange(200) == 17).astype(float), "gaussian"),
        ((np.arange(200) == 17).astype(float), "auto"),  # which finds nothing better
    ],
)
def test_targets_that_spoil_no_fit_may_still_lie_outside_their_error_bars(y, likelihood):
    with pytest.warns(FitWarning) as caught:
        GPRegressor(kernels.Matern(nu=1.5), random_state=0, likelihood=likelihood).fit(with_a_far_target(0.0)[0], y)
    assert ["error bars are too small for some rows" in str(one.message) for one in caught] == [True]
