"""Maps: variograms against loops over pairs, kriging and block means against dense algebra, files and their systems."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

from gigagp import geo, kernels
from gigagp.errors import InvalidInputError
from kriging_cases import fixed_model, matern, ordinary_kriging, table, uneven

NEEDED = 'the extra "geo" is not installed'


@pytest.fixture
def geopandas():
    return pytest.importorskip("geopandas", reason=NEEDED)


@pytest.fixture
def rioxarray(geopandas):
    pytest.importorskip("xarray", reason=NEEDED)
    return pytest.importorskip("rioxarray", reason=NEEDED)


# Variograms -----------------------------------------------------------------------------------------------------------


def pairs_of(X, y, kernel, noise):
    """Return distance, absolute difference and model semivariance of every pair, one by one."""
    K = kernel.block(torch.from_numpy(X), torch.from_numpy(X)).numpy()
    found = []
    for i in range(len(X)):
        for j in range(i):
            found.append((math.dist(X[i], X[j]), abs(y[i] - y[j]), K[i, i] / 2 + K[j, j] / 2 - K[i, j] + noise))
    return np.array(found)


@pytest.mark.parametrize("estimator", ["matheron", "cressie"])
def test_variograms_agree_with_a_loop_over_pairs(estimator):
    X, y = uneven(), np.random.default_rng(1).normal(size=60)
    kernel = kernels.RBF([30.0, 9.0], 1.3) + kernels.Linear(0.001)
    found = geo.variogram(X, y, n_bins=7, max_distance=90.0, estimator=estimator, kernel=kernel, noise_variance=0.2)
    pairs = pairs_of(X, y, kernel, 0.2)
    for k, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        chosen = pairs[((pairs[:, 0] > low) | (k == 0)) & (pairs[:, 0] <= high)]
        n = len(chosen)
        assert found.count[k] == n
        expected = (chosen[:, 1] ** 2).mean() / 2
        if estimator == "cressie":
            expected = np.sqrt(chosen[:, 1]).mean() ** 4 / (0.457 + 0.494 / n + 0.045 / n**2) / 2
        assert np.allclose([found.distance[k], found.semivariance[k]], [chosen[:, 0].mean(), expected], rtol=1e-12)
        assert np.isclose(found.model[k], chosen[:, 2].mean(), rtol=1e-10)
    assert found.count.sum() == (pairs[:, 0] <= 90.0).sum()
    assert list(found.to_dict()) == ["distance", "semivariance", "count", "model"]


def test_the_model_is_what_the_variogram_is_expected_to_be():
    X = uneven(120)
    kernel, draws = kernels.Matern(1.5, [30.0, 8.0], 2.0, metric="rotated", angle=40.0).bind(2), 300
    K = kernel.block(torch.from_numpy(X), torch.from_numpy(X)).numpy() + 0.1 * np.eye(120)
    Y = np.linalg.cholesky(K) @ np.random.default_rng(2).normal(size=(120, draws))
    found = [geo.variogram(X, y, n_bins=6, max_distance=100.0, kernel=kernel, noise_variance=0.1) for y in Y.T]
    values = np.array([one.semivariance for one in found])
    error = values.std(0) / math.sqrt(draws)
    assert (abs(values.mean(0) - found[0].model) < 4 * error).all()
    other = geo.variogram(
        X, Y[:, 0], n_bins=6, max_distance=100.0, kernel=kernels.Matern(1.5, 90.0, 2.0, ard=False), noise_variance=0.1
    )
    assert (abs(values.mean(0) - other.model) > 4 * error).any(), "the control has another range"


@pytest.mark.parametrize(("scale", "offset"), [(0.1, 0.0), (1 / 3, 0.0), (0.1, 5e5), (7.3, 1e6), (1e-3, 12.0)])
@pytest.mark.parametrize("inputs", [1, 2])
def test_rows_on_a_lattice_have_the_same_bins_in_all_units(inputs, scale, offset):
    """Pairs at a limit of two bins are many, and rounding must not divide them."""
    n = {1: 40, 2: 12}[inputs]
    X = np.stack(np.meshgrid(*[np.arange(float(n))] * inputs), -1).reshape(-1, inputs)
    y = np.random.default_rng(3).normal(size=len(X))
    for n_bins, limit in ((4, None), (10, None), (15, (n - 1) / 2), (8, 4.0)):
        own, other = (
            geo.variogram(factor * X + origin, y, n_bins=n_bins, max_distance=None if limit is None else factor * limit)
            for factor, origin in ((1.0, 0.0), (scale, offset))
        )
        np.testing.assert_array_equal(other.count, own.count)
        np.testing.assert_allclose(other.semivariance, own.semivariance, rtol=1e-12)
    moved = geo.variogram(scale * X + offset, y, n_bins=8, max_distance=scale * 3.99)
    assert (moved.count != own.count).any(), "the control"


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_the_model_keeps_its_digits_far_from_zero(offset):
    X = offset + np.random.default_rng(0).integers(0, 2**20, (50, 2)) / 2**20  # exact at any offset
    y = np.zeros(50)
    for kernel in (kernels.RBF([0.3, 0.2], 1.3), kernels.Matern(0.5, 0.3, ard=False), kernels.Periodic(1.0, 1.0, 0.7)):
        found = geo.variogram(X, y, kernel=kernel).model
        np.testing.assert_allclose(found, geo.variogram(X - offset, y, kernel=kernel).model, rtol=1e-9)


def test_the_model_of_a_kernel_that_knows_zero_is_not_moved():
    X = 3 + np.random.default_rng(0).uniform(0, 1, (40, 2))
    kernel = kernels.Linear(0.7) * kernels.RBF([0.3, 0.2])
    pairs = pairs_of(X, np.zeros(40), kernel.bind(2), 0.0)
    found = geo.variogram(X, np.zeros(40), n_bins=1, max_distance=2.0, kernel=kernel)
    assert found.model[0] == pytest.approx(pairs[:, 2].mean(), rel=1e-12)
    assert found.model[0] != pytest.approx(pairs_of(X - 3, np.zeros(40), kernel.bind(2), 0.0)[:, 2].mean(), rel=0.1)


def test_one_gross_error_hardly_moves_the_robust_variogram():
    X, y = np.random.default_rng(3).uniform(0, 1, (300, 2)), np.random.default_rng(4).normal(size=300)
    wrong = y.copy()
    wrong[7] += 100.0
    ratios = {}
    for estimator in ("matheron", "cressie"):
        clean, spoiled = (geo.variogram(X, one, estimator=estimator).semivariance for one in (y, wrong))
        ratios[estimator] = np.nanmedian(spoiled / clean)
    assert ratios["cressie"] < 1.3
    assert ratios["matheron"] > 10, "the control"
    assert abs(np.median(geo.variogram(X, y, estimator="cressie").semivariance) - 1) < 0.2


def test_distances_cross_the_date_line():
    X = np.array([[179.9, 0.0], [-179.9, 0.0], [0.0, 90.0], [120.0, 90.0]])
    found = geo.variogram(X, [0.0, 2.0, 5.0, 5.0], metric="haversine", n_bins=2, max_distance=60.0)
    assert found.count.tolist() == [2, 0] if found.distance[0] < 30 else [1, 1]
    kilometres = geo.variogram(X[:2], [0.0, 2.0], metric="haversine", n_bins=1, max_distance=60.0)
    assert np.allclose(kilometres.distance, 2 * math.pi * 6371.0088 * 0.2 / 360)
    assert kilometres.semivariance == [2.0]
    degrees = geo.variogram(X[:2], [0.0, 2.0], n_bins=1, max_distance=60.0)
    assert degrees.count == [0], "the control"


def test_of_many_rows_some_are_taken_by_the_seed():
    X, y = np.random.default_rng(5).uniform(0, 1, (500, 2)), np.random.default_rng(6).normal(size=500)
    found = [geo.variogram(X, y, max_rows=100, random_state=seed) for seed in (0, 0, 1)]
    assert (found[0].semivariance == found[1].semivariance).all()
    assert (found[0].semivariance != found[2].semivariance).any()
    assert found[0].n_rows == 100


# Kriging --------------------------------------------------------------------------------------------------------------


def test_kriging_is_ordinary_kriging(rioxarray):
    X, y = uneven(), np.random.default_rng(1).normal(size=60) + 100
    model = geo.Kriging(fixed_model()).fit(table(X, y), "z")
    maps = model.predict(resolution=(40.0, 30.0), bounds=(-10.0, 0.0, 110.0, 120.0))
    assert maps.sizes == {"y": 4, "x": 3}
    assert maps.y.values.tolist() == [105.0, 75.0, 45.0, 15.0]
    assert maps.x.values.tolist() == [10.0, 50.0, 90.0]
    places = np.array([[x, y] for y in maps.y.values for x in maps.x.values])
    mean, std = ordinary_kriging(X, y, places, matern, 0.05)
    assert np.allclose(maps["mean"].values.ravel(), mean, rtol=0, atol=1e-8)
    assert np.allclose(maps["std"].values.ravel(), std, rtol=0, atol=1e-7)
    noisy = model.predict(template=maps, include_noise=True)
    assert np.allclose(noisy["std"] ** 2 - maps["std"] ** 2, 0.05)
    for x, y_ in ((90.0, 105.0), (10.0, 15.0)):
        single = model.gp.predict([[x, y_]])
        assert np.isclose(float(maps["mean"].sel(x=x, y=y_)), single[0]), "north is up and west is left"


@pytest.mark.few(1)
@pytest.mark.parametrize("system", ["EPSG:4326", "EPSG:32633"])
def test_a_map_keeps_its_system_in_a_file(geopandas, rioxarray, system, tmp_path):
    source = np.random.default_rng(0)
    X = source.uniform([10, 47], [14, 50], (80, 2)) if "4326" in system else source.uniform(0, 9e4, (80, 2)) + 4e5
    frame = geopandas.GeoDataFrame(
        {"z": np.sin(np.arange(80))}, geometry=geopandas.points_from_xy(X[:, 0], X[:, 1]), crs=system
    )
    model = geo.Kriging().fit(frame, "z")
    metrics = {leaf.metric for leaf in model.gp.kernel_.leaves()}
    assert metrics <= ({"haversine"} if "4326" in system else {"euclidean", "rotated"})
    maps = model.predict(resolution=0.5 if "4326" in system else 2e4)
    assert maps.rio.crs == system
    assert maps["std"].attrs["long_name"] == "standard deviation of z at the centres of cells"
    maps["mean"].rio.to_raster(tmp_path / "z.tif")
    with rioxarray.open_rasterio(tmp_path / "z.tif") as again:
        assert again.rio.crs == system
        assert (again.values[0] == maps["mean"].values).all()
        west, _, east, north = again.rio.bounds()
    assert np.isclose(west, X[:, 0].min())
    assert east >= X[:, 0].max()
    assert north >= X[:, 1].max()


def test_a_map_of_rows_on_both_sides_of_the_date_line_is_narrow(rioxarray):
    lon = np.array([178.0, 179.5, -179.0, -176.0, 179.0, -177.5])
    frame = {"lon": lon, "lat": np.linspace(-3, 3, 6), "z": np.arange(6.0)}
    maps = geo.Kriging(fixed_model(kernels.RBF(300.0, metric="haversine"))).fit(frame, "z").predict(resolution=1.0)
    assert maps.longitude.values.tolist() == [178.5, 179.5, 180.5, 181.5, 182.5, 183.5]
    whole = geo.Kriging(fixed_model(kernels.RBF(300.0, metric="haversine"))).fit(
        {**frame, "lon": np.linspace(-180, 180, 6)}, "z"
    )
    assert whole.predict(resolution=60.0).longitude.values.tolist() == [-150.0, -90.0, -30.0, 30.0, 90.0, 150.0]


@pytest.mark.parametrize("shift", [0.0, 180.0])
def test_a_trend_does_not_jump_where_longitudes_do(rioxarray, shift):
    """At the date line with longitudes from -180 to 180, and at Greenwich with those from 0 to 360."""
    source = np.random.default_rng(0)
    east, lat = source.uniform(-4, 4, 60), source.uniform(-4, 4, 60)  # from the line
    lon = (east + 360.0) % 360.0 if shift else (east + 360.0) % 360.0 - 180.0
    gp = fixed_model(kernels.RBF(200.0, metric="haversine"), mean="linear")
    model = geo.Kriging(gp).fit({"lon": lon, "lat": lat, "z": 5.0 * east}, "z")
    maps = model.predict(bounds=(east.min() + 180 - shift, -4, east.max() + 180 - shift, 4), resolution=0.5)
    for found in (maps, model.predict(resolution=0.5)):
        expected = 5.0 * (found.longitude.values - 180.0 + shift)
        assert abs(found["mean"].values - expected).max() < 0.02
        assert len(found.longitude) in (16, 17)
    assert model.variogram().semivariance.max() < 1e-3, "nothing is left beside the trend"
    apart = model.predict(x=[120.0 - shift, 160.0 - shift], y=[0.0])["mean"].values[0]  # far from all rows
    assert np.isclose(apart[1] - apart[0], 200.0, rtol=1e-3)
    blocks = model.block_means(template=maps)
    assert abs(blocks["mean"].values - maps["mean"].values).max() < 0.01


def test_left_out_rows_are_those_of_fits_without_them(geopandas):
    X, y = uneven(25), np.random.default_rng(1).normal(size=25) + 10
    frame = geopandas.GeoDataFrame({"z": y}, geometry=geopandas.points_from_xy(X[:, 0], X[:, 1]), crs=32633)
    found = geo.Kriging(fixed_model()).fit(frame, "z").leave_one_out()
    assert found.crs == 32633
    for row in range(25):
        rest = np.arange(25) != row
        mean, std = ordinary_kriging(X[rest], y[rest], X[row : row + 1], matern, 0.05)
        assert np.isclose(found["mean"][row], mean[0], atol=1e-8)
        assert np.isclose(found["std"][row] ** 2, std[0] ** 2 + 0.05, atol=1e-8)
        assert np.isclose(found["standardized"][row], (y[row] - mean[0]) / found["std"][row])


def test_the_variogram_of_a_model_has_no_trend():
    X = np.random.default_rng(0).uniform(0, 100, (150, 2))
    y = 3.0 * X[:, 0] + np.sin(X[:, 1] / 10)
    model = geo.Kriging(fixed_model(noise=0.01, mean="linear")).fit(table(X, y), "z")
    assert model.variogram().semivariance.max() < 10
    assert geo.variogram(X, y).semivariance.max() > 1000, "the control"
    assert np.isclose(model.variogram().model[0], geo.variogram(X, y, kernel=model.gp.kernel_).model[0] + 0.01)


# Block means ----------------------------------------------------------------------------------------------------------


def means_over(X, y, places, weights):
    """Return mean and standard deviation of a weighted sum by the dense system of ordinary kriging."""
    n = len(X)
    H = np.block([[matern(X, X) + 0.05 * np.eye(n), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
    right = np.vstack([matern(X, places) @ weights[:, None], np.ones((1, 1))])
    solution = np.linalg.solve(H, right)
    variance = weights @ matern(places, places) @ weights - (solution * right).sum()
    return float(solution[:n, 0] @ y), math.sqrt(variance)


def midpoints(low, high, n):
    steps = (np.arange(n) + 0.5) / n
    x, y = np.meshgrid(low[0] + (high[0] - low[0]) * steps, low[1] + (high[1] - low[1]) * steps)
    return np.stack([x.ravel(), y.ravel()], 1)


def test_block_means_agree_with_dense_algebra(rioxarray):
    X, y = uneven(), np.random.default_rng(1).normal(size=60) + 100
    model = geo.Kriging(fixed_model()).fit(table(X, y), "z")
    blocks = model.block_means(resolution=30.0, bounds=(0.0, 0.0, 90.0, 60.0), n_points=6)
    points = model.predict(template=blocks)
    for row in range(2):
        for place in range(3):
            low = np.array([30.0 * place, 30.0 - 30.0 * row])
            fine = midpoints(low, low + 30.0, 40)
            mean, std = means_over(X, y, fine, np.full(1600, 1 / 1600))
            assert abs(float(blocks["mean"][row, place]) - mean) < 2e-3
            assert abs(float(blocks["std"][row, place]) - std) < 2e-3
    assert (blocks["std"].values < points["std"].values).sum() >= 5
    stds = model.predict(x=midpoints([0.0, 0.0], [30.0, 30.0], 6)[:6, 0], y=np.linspace(2.5, 27.5, 6))["std"]
    assert abs(float(stds.mean()) - float(blocks["std"][1, 0])) > 0.02, "the control: the mean of deviations is another"


def test_means_over_polygons_agree_with_dense_algebra(geopandas):
    from shapely.geometry import Polygon

    X, y = uneven(), np.random.default_rng(1).normal(size=60) + 100
    frame = geopandas.GeoDataFrame({"z": y}, geometry=geopandas.points_from_xy(X[:, 0], X[:, 1]), crs=32633)
    model = geo.Kriging(fixed_model()).fit(frame, "z")
    corner = Polygon([(0, 0), (40, 0), (40, 20), (20, 20), (20, 40), (0, 40)])
    sliver = Polygon([(50, 50), (60, 60), (60.001, 60)])
    cells = geopandas.GeoDataFrame({"name": ["corner", "sliver"]}, geometry=[corner, sliver], crs=32633, index=[7, 3])
    found = model.block_means(cells, n_points=8)
    assert found.index.tolist() == [7, 3]
    lattice = midpoints([0.0, 0.0], [40.0, 40.0], 8)
    inside = lattice[~((lattice[:, 0] > 20) & (lattice[:, 1] > 20))]
    mean, std = means_over(X, y, inside, np.full(len(inside), 1 / len(inside)))
    assert np.isclose(found["mean"][7], mean, atol=1e-8)
    assert np.isclose(found["std"][7], std, atol=1e-7)
    assert np.isfinite(found["std"][3])
    moved = model.block_means(cells.to_crs(4326), n_points=8)
    assert abs(moved["mean"][7] - found["mean"][7]) < 1e-3
    assert moved.crs == 4326


def test_block_means_on_the_sphere_weigh_areas(rioxarray):
    """Far from all rows the mean over a cell is that of the trend, and at a pole cells shrink to a point."""
    frame = {"lon": np.array([0.0, 90.0, 180.0, -90.0]), "lat": np.array([60.0, 60.0, 60.0, 60.0])}
    frame["z"] = np.array([1.0, 2.0, 3.0, 4.0])
    gp = fixed_model(kernels.Matern(2.5, 3000.0, metric="haversine"), noise=1e-4)
    model = geo.Kriging(gp).fit(frame, "z")
    blocks = model.block_means(template=_template([75.0, 45.0], [0.0, 180.0]), n_points=12)
    lon, lat = np.linspace(-90, 90, 121)[:-1] + 0.75, np.linspace(60, 90, 41)[:-1] + 0.375
    x, y = (part.ravel() for part in np.meshgrid(lon, lat))
    weights = np.cos(np.radians(y))
    expected = (weights * model.gp.predict(np.stack([x, y], 1))).sum() / weights.sum()
    assert abs(float(blocks["mean"][0, 0]) - expected) < 1e-4
    plain = model.gp.predict(np.stack([x, y], 1)).mean()
    assert abs(plain - expected) > 1e-2, "the control takes equal steps in latitude for equal areas"


def _template(latitude, longitude):
    xarray = pytest.importorskip("xarray", reason=NEEDED)
    return xarray.DataArray(
        np.zeros((len(latitude), len(longitude))), coords={"latitude": latitude, "longitude": longitude}
    )


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda t: geo.Kriging("matern").fit(t, "z"), "regressor of Kriging must be a GPRegressor"),
        (lambda t: geo.Kriging().fit({"a": [1.0], "b": [2.0]}, "b"), "its columns are a, b"),
        (lambda t: geo.Kriging().fit(t, "rain"), "has no column 'rain'"),
        (lambda t: geo.Kriging().fit(np.zeros((2, 2)), ["a", "a"]), "target must hold real numbers; got the text 'a'"),
        (lambda t: geo.Kriging().fit([[0.0, 1.0]], [1.0]), "two places or more; got 1"),
        (lambda t: geo.Kriging().fit({**t, "easting": [1.0]}, "z"), "must have one length; got 1, 60"),
        (lambda t: geo.Kriging(x="easting").fit(t, "z"), "x and y of Kriging must both"),
        (lambda t: geo.Kriging().fit({**t, "z": np.where(t["z"] > 1, np.nan, t["z"])}, "z"), "'z'"),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(), "takes either resolution"),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(resolution=1, x=[1], y=[2]), "takes either"),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(resolution=-1.0), "must be a positive number"),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(resolution=1e-6), "cells; at most"),
        (
            lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(resolution=1, bounds=(1, 0, 0, 1)),
            "bounds of Kriging must be (west, south, east, north)",
        ),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").predict(x=[np.nan], y=[1.0]), "finite numbers"),
        (lambda t: geo.Kriging(fixed_model()).fit(t, "z").block_means(t), "GeoDataFrame or GeoSeries"),
        (lambda t: geo.variogram([[0.0, 0.0], [0.0, 0.0]], [1.0, 2.0]), "rows at two or more places"),
        (lambda t: geo.variogram([[0.0, 95.0], [0.0, 0.0]], [1.0, 2.0], metric="haversine"), "latitudes"),
        (lambda t: geo.variogram([[0.0, 95.0], [0.0, 0.0]], [1.0, 2.0], estimator="mean"), "estimator"),
    ],
)
def test_what_cannot_be_is_refused(act, words):
    if "GeoSeries" in words:
        pytest.importorskip("geopandas", reason=NEEDED)
    X = uneven()
    with pytest.raises(InvalidInputError) as error:
        act(table(X, np.random.default_rng(0).normal(size=60)))
    assert words in str(error.value)


def test_what_is_no_point_is_refused(geopandas):
    from shapely.geometry import LineString, Point

    for geometry, words in (([Point(1, 2), LineString([(0, 0), (1, 1)])], "a LineString in row 1"), ([None], "row 0")):
        frame = geopandas.GeoDataFrame({"z": np.arange(len(geometry))}, geometry=geometry, crs=4326)
        with pytest.raises(InvalidInputError, match=words):
            geo.Kriging().fit(frame, "z")
    with pytest.raises(InvalidInputError, match="must be one of degrees"):
        geo.Kriging(crs=32633).fit({"lon": [1.0, 2.0], "lat": [1.0, 2.0], "z": [1.0, 2.0]}, "z")


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch):
    model = geo.Kriging(fixed_model()).fit(table(uneven(), np.arange(60.0)), "z")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(InvalidInputError, match=r'pip install "gigagp\[geo\]"'):
        model.predict(resolution=50.0)
    monkeypatch.setitem(sys.modules, "geopandas", None)
    assert isinstance(model.leave_one_out(), dict)
