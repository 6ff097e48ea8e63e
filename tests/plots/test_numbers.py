"""The numbers behind pictures, against dense algebra and known answers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, plots
from gigagp.errors import InvalidInputError
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.plots.checks import chance_band
from gigagp.plots.curves import points_needed
from gigagp.plots.measured import predicted
from gigagp.plots.view import View
from gigagp.storage.figures import new_figure

RNG = np.random.default_rng(3)
#: Uneven: clumped, with a gap, duplicated rows and a badly scaled column.
CLUMPED = np.concatenate([RNG.normal(0, 0.05, 30), RNG.uniform(2, 3, 30)])
X = np.column_stack([CLUMPED, 1e4 * RNG.uniform(size=60), RNG.normal(size=60)])
X[10:14] = X[9]
Y = np.sin(X[:, 0]) + 1e-4 * X[:, 1] + 0.1 * RNG.normal(size=60)


def fitted(X=X, y=Y, **options) -> GPRegressor:
    return GPRegressor(
        kernels.RBF([1.0, 1e4, 2.0][: X.shape[1]]), inference.Exact(), None, noise_variance=0.01, **options
    ).fit(X, y)


@pytest.mark.parametrize("column", [0, 1, 2])
def test_partial_dependence_is_that_of_dense_algebra(column):
    gp = fitted()
    found = plots.partial_dependence_values(gp, column, X, n_rows=60, resolution=5)
    assert found.n_rows == 60
    for k, value in enumerate(found.values):
        moved = X.copy()
        moved[:, column] = value
        mean, covariance = gp.predict(moved, return_cov=True)
        assert found.mean[k] == pytest.approx(mean.mean(), rel=1e-8, abs=1e-9)
        assert found.std[k] == pytest.approx(np.sqrt(covariance.mean()), rel=1e-6)
        assert found.std[k] < np.sqrt(np.diag(covariance)).mean()  # a control: the average is better known than a row


def test_partial_dependence_from_samples_agrees_with_the_covariance():
    settings = inference.Iterative(n_samples=64)
    sampled = GPRegressor(kernels.RBF([1.0, 1e4, 2.0]), settings, None, noise_variance=0.01).fit(X, Y)
    options = {"X": X, "n_rows": 20, "resolution": 4}
    found = plots.partial_dependence_values(sampled, 0, **options)
    dense = plots.partial_dependence_values(fitted(), 0, **options)
    np.testing.assert_allclose(found.mean, dense.mean, atol=0.02)
    # 64 samples: the standard error of a standard deviation is 9 %
    assert np.abs(np.log(found.std / dense.std)).max() < 4 * 0.09


def test_sensitivity_of_an_additive_function():
    n = 400
    X = RNG.uniform(size=(n, 3))
    gp = GPRegressor(kernels.RBF(3.0), inference.Exact(), None, noise_variance=1e-6).fit(X, 2 * X[:, 0] + X[:, 1])
    found = plots.relevance_values(gp, n_rows=n)
    shares = np.array([0.8, 0.2, 0.0])  # of variances 4/12 and 1/12
    assert (np.abs(found.sensitivity - shares) < 4 * found.standard_error + 1e-3).all()
    assert np.abs(found.sensitivity - shares[::-1]).max() > 4 * found.standard_error.max()  # a control


def test_the_standard_error_of_sensitivity_is_that_of_repeated_draws():
    gp = fitted()
    X_new = np.column_stack([RNG.uniform(0, 3, 2000), 1e4 * RNG.uniform(size=2000), RNG.normal(size=2000)])
    runs = [plots.relevance_values(gp, X_new, n_rows=100, random_state=k) for k in range(30)]
    spread = np.std([run.sensitivity[0] for run in runs], ddof=1)
    stated = np.mean([run.standard_error[0] for run in runs])
    assert 0.6 < stated / spread < 1.7


def test_lengthscales_are_in_the_units_of_the_columns():
    found = plots.relevance_values(fitted())
    np.testing.assert_allclose(found.lengthscale, [1.0, 1e4, 2.0], rtol=1e-9)
    np.testing.assert_allclose(found.inverse * found.lengthscale, 1.0)
    np.testing.assert_allclose(found.lengthscales_in_spread, X.std(0) / [1.0, 1e4, 2.0], rtol=1e-9)
    parts = kernels.RBF(0.5, columns=[0]) + kernels.Matern(2.5, 3.0, columns=[0, 2]) + kernels.Linear()
    gp = GPRegressor(parts, inference.Exact(), None).fit(X, Y)
    np.testing.assert_allclose(plots.relevance_values(gp).lengthscale, [0.5, np.inf, 3.0], rtol=1e-9)


def test_lengthscales_of_places_on_the_sphere_are_in_km():
    places = np.column_stack([RNG.uniform(5, 15, 60), RNG.uniform(55, 65, 60), RNG.uniform(0, 30, 60)])
    kernel = kernels.Matern(1.5, [400.0, 7.0], metric="haversine") + kernels.RBF(2.0, columns=[1])
    gp = GPRegressor(kernel, inference.Exact(), None).fit(pd.DataFrame(places, columns=["lon", "lat", "day"]), Y)
    found = plots.relevance_values(gp)
    degree = np.radians(6371.0088)
    assert found.units == ["km", "km", ""]
    np.testing.assert_allclose(found.lengthscale, [400.0, 2.0 * degree, 7.0], rtol=1e-9)
    spread = places.std(0) * [degree * np.cos(np.radians(places[:, 1].mean())), degree, 1.0]
    np.testing.assert_allclose(found.lengthscales_in_spread, spread / found.lengthscale, rtol=1e-9)
    ax = plots.relevance(gp, quantity="lengthscale")
    assert {text.get_text() for text in ax.texts} == {"400 km", "222 km", "7"}


def test_lengthscales_along_columns_of_turned_axes():
    kernel = kernels.Matern(1.5, [9.0, 3.0], metric="rotated", angle=30.0)
    found = plots.relevance_values(GPRegressor(kernel, inference.Exact(), None).fit(X[:, [0, 2]], Y))
    # One lengthscale is where the correlation of two points apart along one column is that of a distance of one.
    one = kernels.Matern(1.5, 1.0).bind(1).block(*(torch.tensor([[k]], dtype=torch.float64) for k in (0.0, 1.0)))
    for k, length in enumerate(found.lengthscale):
        ends = torch.zeros(2, 2, dtype=torch.float64)
        ends[1, k] = float(length)
        assert float(kernel.bind(2).block(ends[:1], ends[1:])) == pytest.approx(float(one), rel=1e-9)


def test_rows_of_a_fit_come_back():
    for transform in ("none", "log"):
        gp = GPRegressor(kernels.RBF(1.0), inference.Exact(), None, target_transform=transform)
        gp.fit(X, np.exp(Y))
        rows = View(gp).rows
        np.testing.assert_allclose(rows.X, X, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(rows.y, np.exp(Y), rtol=1e-8)
    both = fitted(y=np.stack([Y, -3 * Y], 1))
    np.testing.assert_allclose(View(both, 1).rows.y, -3 * Y, rtol=1e-9, atol=1e-9)


def test_ranks_of_normal_predictions_and_of_others():
    gp = fitted()
    new = X + 0.01
    mean, std = gp.predict(new, return_std=True, include_noise=True)
    found = plots.predicted(gp, new, Y)
    np.testing.assert_allclose(found.rank, norm.cdf((Y - mean) / std), rtol=1e-9)
    assert found.share_inside(0.95) == pytest.approx(np.mean(np.abs(Y - mean) <= 1.959964 * std))
    skewed = GPRegressor(
        kernels.RBF([1.0, 1e4, 2.0]), inference.Exact(), None, target_transform="log", noise_variance=0.01
    )
    skewed.fit(X, np.exp(Y))
    centre, latent = skewed.predict_latent(new, return_std=True)
    ranks = plots.predicted(skewed, new, np.exp(Y)).rank
    spread = np.hypot(latent, skewed.noise_variance_**0.5)
    np.testing.assert_allclose(ranks, norm.cdf((Y - centre) / spread), atol=0.005)


def test_leave_one_out_takes_the_place_of_test_rows():
    gp = fitted()
    found = plots.predicted(gp)
    left_out = gp.leave_one_out()
    np.testing.assert_allclose(found.mean, left_out.mean)
    np.testing.assert_allclose(found.rank, norm.cdf((Y - left_out.mean) / left_out.std), rtol=1e-6)
    assert "from all others" in found.source


def test_the_chance_band_is_that_of_simulated_rows():
    n, levels = 80, np.array([0.0, 0.2, 0.5, 0.95, 1.0])
    low, high = chance_band(n, levels)
    draws = (np.random.default_rng(0).uniform(size=(20000, n, 1)) <= levels).mean(1)
    inside = ((draws >= low - 1e-12) & (draws <= high + 1e-12)).mean(0)
    assert (inside >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 20000)).all()
    assert (low[0], high[-1]) == (0, 1)
    assert ((draws >= low + 0.06) & (draws <= high - 0.06)).mean(0)[2] < 0.9  # a control


def test_a_curve_has_points_for_every_cycle():
    years = np.arange(804)[:, None] / 12
    y = np.sin(2 * np.pi * years[:, 0])
    gp = GPRegressor(kernels.Periodic(period=1.0), inference.Exact(), None).fit(years, y)
    view = View(gp)
    assert points_needed(view, view.axes[0], 67.0) >= 16 * 67
    slow = View(GPRegressor(kernels.RBF(50.0), inference.Exact(), None).fit(years, y))
    assert points_needed(slow, slow.axes[0], 67.0) < 16 * 67  # a control


def test_columns_of_every_type():
    n = 80
    frame = pd.DataFrame(
        {
            "day": pd.date_range("2021-01-01", periods=n),
            "city": RNG.choice(["Oslo", "Rome"], n),
            "x": RNG.normal(size=n),
        }
    )
    frame.loc[3, "x"] = np.nan
    y = (frame.city == "Rome") + frame.x.fillna(0)
    gp = GPRegressor(encode="auto", optimizer=None, inference=inference.Exact(), noise_variance=0.01).fit(frame, y)
    found = plots.partial_dependence_values(gp, "city", frame, n_rows=n)
    assert set(found.values) == {"Oslo", "Rome"}
    for value, mean in zip(found.values, found.mean, strict=True):
        assert mean == pytest.approx(gp.predict(frame.assign(city=value)).mean(), rel=1e-6, abs=1e-8)
    days = plots.partial_dependence_values(gp, "day", frame, n_rows=n, resolution=3)
    assert days.values.dtype.kind == "M"
    assert days.values[0] == np.datetime64("2021-01-01")
    assert days.mean[1] == pytest.approx(gp.predict(frame.assign(day=pd.Timestamp(days.values[1]))).mean(), rel=1e-6)
    assert plots.relevance_values(gp).names == ["day", "city", "x"]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda gp: plots.partial_dependence_values(gp, "z"), "column of a picture must be one of input 1"),
        (lambda gp: plots.partial_dependence_values(gp, 3), "column of a picture must be one of input 1"),
        (lambda gp: plots.predicted(gp, X), "X and y of a picture must be given together"),
        (lambda gp: plots.predicted(gp, X, Y[:5]), "60"),
        (lambda gp: plots.predicted(gp, X[:, :2], Y), "features"),
        (lambda gp: plots.relevance(gp, quantity="size"), "quantity of relevance"),
        (lambda gp: plots.relevance_values(gp, n_rows=1), "n_rows"),
        (lambda gp: plots.curve(gp), "curve needs a model of one input"),
        (lambda gp: plots.surface(gp), "surface needs a model of two inputs"),
        (lambda gp: gp.plot(target=1), "target of a picture must be from 0 to 0"),
        (lambda gp: gp.plot(path="figure.jpg"), r"ends in \.png, \.pdf, \.svg"),
        (lambda gp: gp.plot(path="/nowhere/figure.png"), "does not exist"),
        (lambda gp: gp.history_.plot("speed"), "quantity of History.plot must be one of"),
        (lambda gp: gp.history_.plot(), "needs at least one step"),
    ],
)
def test_bad_arguments(call, match):
    with pytest.raises(InvalidInputError, match=match):
        call(fitted())


def test_models_without_rows_say_what_they_need():
    settings = inference.SparseVariational(n_inducing=10)
    sparse = GPRegressor(kernels.RBF([1.0, 1e4, 2.0]), settings, None).fit(X, Y)
    assert View(sparse).rows is None
    with pytest.raises(InvalidInputError, match="does not keep its rows"):
        plots.predicted(sparse)
    with pytest.raises(InvalidInputError, match="needs X for the sensitivity"):
        plots.relevance(sparse, quantity="sensitivity")
    assert plots.partial_dependence_values(sparse, 0, resolution=3).n_rows == 0
    known = GPRegressor(kernels.RBF(1.0), inference.Exact(), None, noise_variance=np.full(60, 0.1)).fit(X, Y)
    with pytest.raises(InvalidInputError, match="need the noise of new rows"):
        plots.predicted(known, X, Y)
    classifier = GPClassifier(
        inference=inference.QuadruplyStochastic(n_basis=20), optimizer=optimization.SparseAdam(steps=5)
    ).fit(X, Y > 1)
    with pytest.raises(InvalidInputError, match="need a GPRegressor"):
        plots.predicted(classifier, X, Y > 1)


def test_ranks_of_left_out_rows_are_those_of_the_transformed_target():
    x, y = X[:15, 1:2] / 1e4, Y[:15]
    options = {"mean": "zero", "noise_variance": 0.05, "standardize": False}
    gp = GPRegressor(kernels.RBF(0.3), inference.Exact(), None, target_transform="log", **options).fit(x, np.exp(y))
    found = predicted(gp)
    for k in range(15):
        rest = np.arange(15) != k
        alone = GPRegressor(kernels.RBF(0.3), inference.Exact(), None, **options).fit(x[rest], y[rest])
        mean, std = alone.predict(x[k : k + 1], return_std=True, include_noise=True)
        assert found.rank[k] == pytest.approx(norm.cdf((y[k] - mean[0]) / std[0]), rel=1e-6, abs=1e-9)
    assert "each predicted from all others" in found.source


def test_ranks_of_left_out_rows_of_a_mixture_are_mixed():
    apart = [
        GPRegressor(kernels.RBF([length, 1e4, 2.0]), inference.Exact(), None, noise_variance=0.05).fit(X, Y)
        for length in (0.3, 3.0)
    ]
    ranks = [predicted(gp).rank for gp in apart]
    gp = GPRegressor(kernels.RBF([0.3, 1e4, 2.0]), inference.Exact(), None, noise_variance=0.05).fit(X, Y)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    gp.posterior_ = MixturePosterior([one.posterior_ for one in apart], weights)
    np.testing.assert_allclose(predicted(gp).rank, 0.25 * ranks[0] + 0.75 * ranks[1], rtol=1e-9)
    assert np.abs(ranks[0] - ranks[1]).max() > 0.05


def test_partial_dependence_is_drawn():
    pytest.importorskip("matplotlib")
    gp, options = fitted(), {"n_rows": 20, "resolution": 5}
    values = plots.partial_dependence_values(gp, 1, **options)
    ax = plots.partial_dependence(gp, 1, ax=new_figure(4, 3).add_subplot(), label="yield", **options)
    np.testing.assert_allclose(ax.lines[0].get_xdata(), values.values)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), values.mean)
    assert "yield" in ax.get_ylabel()
