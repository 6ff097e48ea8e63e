"""Regression kriging: dense equations with covariates, and rasters of covariates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, geo, kernels
from gigagp.errors import GigaGPWarning, InvalidInputError
from kriging_cases import fixed_model, matern, table, uneven, universal_kriging

NEEDED = 'the extra "geo" is not installed'
xarray = pytest.importorskip("xarray", reason=NEEDED)
pytest.importorskip("rioxarray", reason=NEEDED)

#: Centres of the cells of rasters, from north to south, over the rows of `uneven`.
Y, X_ = np.arange(355.0, -10.0, -10.0), np.arange(-5.0, 410.0, 10.0)


def height(x, y):
    return 3.0 * np.sin(x / 9) + 0.01 * y


def cells_of(points):
    """Return the centres of the cells in which points lie."""
    return 10 * np.floor(points / 10) + 5


def rows(n: int = 60):
    X = uneven(n)
    covariate = height(*cells_of(X).T)
    return X, covariate, 100 + 2.0 * covariate + np.random.default_rng(1).normal(size=n)


def raster(values=None, y=Y, x=X_, crs=None, **attributes):
    found = xarray.DataArray(
        height(x[None], y[:, None]) if values is None else values, coords={"y": y, "x": x}, dims=("y", "x")
    )
    return found.rio.write_crs(crs) if crs else found


def fitted(**options):
    X, covariate, y = rows()
    return geo.Kriging(fixed_model(), covariates=["h"], **options).fit({**table(X, y), "h": covariate}, "z")


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_points_get_the_answers_of_the_dense_equations(mean):
    """Kriging with external drift, and with slopes of the coordinates too; rows are clumped, repeated and far."""
    X, h, y = rows()
    new = np.array([[10.0, 20.0], [55.5, 71.25], [390.0, 350.0], [203.0, 3.0]])
    extra = height(*new.T)
    model = geo.Kriging(fixed_model(mean=mean), covariates=["h"]).fit({**table(X, y), "h": h}, "z")
    F, new_F = np.c_[np.ones(60), h], np.c_[np.ones(4), extra]
    if mean == "linear":
        F, new_F = np.c_[F, X], np.c_[new_F, new]
    expected = universal_kriging(X, y, new, matern, 0.05, F, new_F)
    found = model.predict(np.c_[new, extra], return_std=True)
    assert np.allclose(found, expected, rtol=0, atol=1e-7)
    named = model.predict({"easting": new[:, 0], "northing": new[:, 1], "h": extra})
    assert (named["mean"] == found[0]).all()
    assert (
        geo.Kriging(fixed_model(mean=mean), covariates=["h"]).fit(np.c_[X, h], y).predict(np.c_[new, extra]) == found[0]
    ).all()
    without = geo.Kriging(fixed_model(mean=mean)).fit(X, y).predict(new)
    assert abs(without - expected[0]).max() > 0.1, "the control: without the covariate"


def test_kernels_without_columns_see_the_places_alone():
    X, h, y = rows()
    sums = kernels.RBF() + kernels.Matern(1.5, ard=False) * kernels.RBF(columns=[2], variance=1.0, fixed=["variance"])
    gp = geo.Kriging(GPRegressor(sums, optimizer=None), covariates=["h"]).fit(np.c_[X, h], y).gp
    assert [leaf.active_columns for leaf in gp.kernel_.leaves()] == [[0, 1], [0, 1], [2]]
    gp = geo.Kriging(covariates=["h"]).fit(np.c_[X, h], y).gp
    assert all(leaf.active_columns == [0, 1] for leaf in gp.kernel_.leaves())


def test_the_variogram_is_of_what_the_covariates_leave():
    X, h, y = rows()
    model = fitted()
    left = model.variogram(n_bins=6)
    K = model.gp.kernel_.block(*[torch.from_numpy(np.c_[X, h])] * 2).numpy()
    F = np.c_[np.ones(60), h]
    H = K + 0.05 * np.eye(60)
    slopes = np.linalg.solve(F.T @ np.linalg.solve(H, F), F.T @ np.linalg.solve(H, y))
    expected = geo.variogram(X, y - F @ slopes, n_bins=6, kernel=kernels.Matern(1.5, 25.0, 2.0, ard=False))
    assert np.allclose(left.semivariance, expected.semivariance, equal_nan=True)
    assert np.allclose(left.model, expected.model + 0.05, equal_nan=True)
    both = GPRegressor(kernels.Matern(columns=[0, 1, 2]), optimizer=None)
    with pytest.raises(InvalidInputError, match="which sees covariates too"):
        geo.Kriging(both, covariates=["h"]).fit(np.c_[X, h], y).variogram()


def test_a_map_has_the_cells_and_the_values_of_the_raster():
    model = fitted()
    for given in (raster(), {"h": raster()}, raster().to_dataset(name="h"), raster().expand_dims(band=[1])):
        maps = model.predict(covariates=given)
        assert (maps.y.values == Y).all()
        assert (maps.x.values == X_).all()
    x, y = (part.ravel() for part in np.meshgrid(X_, Y))
    mean, std = model.predict(np.c_[x, y, height(x, y)], return_std=True)
    assert np.allclose(maps["mean"].values.ravel(), mean, rtol=0, atol=1e-10)
    assert np.allclose(maps["std"].values.ravel(), std, rtol=0, atol=1e-10)


def test_cells_of_another_grid_take_the_value_in_which_their_centre_lies():
    model = fitted()
    shuffled = raster().isel(y=slice(None, None, -1), x=slice(None, None, -1))  # from south to north, east to west
    x, y = np.array([0.0, 13.0, 409.9]), np.array([359.9, 47.0])
    centres = cells_of(np.array([[a, b] for b in y for a in x]))
    expected = model.predict(np.c_[np.array([[a, b] for b in y for a in x]), height(*centres.T)])
    for given in (raster(), shuffled):
        assert np.allclose(
            model.predict(covariates=given, x=x, y=y)["mean"].values.ravel(), expected, rtol=0, atol=1e-10
        )
    block = model.block_means(covariates=raster(), resolution=10.0, bounds=(0, 0, 20, 20), n_points=3)
    flat = model.block_means(covariates=0 * raster(), resolution=10.0, bounds=(0, 0, 20, 20), n_points=3)
    slope = (model.predict([[1.0, 1.0, 1.0]]) - model.predict([[1.0, 1.0, 0.0]]))[0]
    inside = height(block.x.values[None], block.y.values[:, None])
    assert np.allclose((block["mean"] - flat["mean"]).values, slope * inside, rtol=0, atol=1e-9)


def test_rows_and_points_may_take_their_covariates_from_the_raster():
    X, h, y = rows()
    expected = fitted()
    model = geo.Kriging(fixed_model(), covariates=["h"]).fit(X, y, covariates=raster())
    assert (model.gp.predict(np.c_[X, h]) == expected.gp.predict(np.c_[X, h])).all()
    assert (model.predict(X, covariates=raster()) == expected.predict(np.c_[X, h])).all()


def test_cells_without_a_value_have_none_in_the_map():
    model = fitted()
    whole = model.predict(covariates=raster())
    values = raster().values.astype(np.float32)
    values[3, 5] = -9999.0
    values[7] = -9999.0
    marked = raster(values).rio.write_nodata(-9999.0)
    with pytest.warns(GigaGPWarning, match=r"43 of 1,554 cells have no value of h, and none in the map"):
        maps = model.predict(covariates=marked)
    empty = np.isnan(maps["mean"].values)
    assert empty.sum() == 43
    assert empty[3, 5]
    assert empty[7].all()
    assert (np.isnan(maps["std"].values) == empty).all()
    assert abs(maps["mean"].values - whole["mean"].values)[~empty].max() < 1e-4
    with pytest.warns(GigaGPWarning, match="cells have no value of h"):
        assert np.isnan(model.predict(covariates=raster(), x=[405.0, 455.0], y=[5.0])["mean"].values).tolist() == [
            [False, True]
        ]


def test_rasters_around_the_earth_are_of_the_same_longitudes():
    source = np.random.default_rng(0)
    lon, lat = source.uniform(-110, -100, 40), source.uniform(30, 40, 40)
    east = xarray.DataArray(
        np.arange(100.0).reshape(10, 10), coords={"lat": np.arange(39.5, 30, -1), "lon": np.arange(250.5, 260)}
    )
    west = east.assign_coords(lon=east.lon - 360)
    gp = fixed_model(kernels.Matern(1.5, 300.0, metric="haversine"))
    places = {"lon": lon, "lat": lat, "z": np.sin(lat)}
    found = [geo.Kriging(gp, covariates=["h"]).fit(places, "z", covariates=one) for one in (east, west)]
    maps = [model.predict(covariates=one)["mean"].values for model, one in zip(found, (east, west), strict=True)]
    assert np.allclose(*maps, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda m, X: m.predict(resolution=10.0), "needs their rasters, as covariates"),
        (lambda m, X: m.predict(raster()), "and not a raster"),
        (lambda m, X: m.predict(raster().to_dataset(name="h")), "and not a raster"),
        (lambda m, X: m.predict(X), "must have the columns x and y, and the covariates h; got 2 columns"),
        (lambda m, X: m.predict(table(X, X[:, 0])), "no column 'h'"),
        (lambda m, X: m.predict({**table(X, X[:, 0]), "h": [1.0]}), "one value for each of 60 places; got 1"),
        (lambda m, X: m.predict({**table(X, X[:, 0]), "h": np.full(60, np.nan)}), "'h'"),
        (lambda m, X: m.predict(covariates={"slope": raster()}), "h not in slope"),
        (lambda m, X: m.predict(covariates=np.zeros((3, 3))), "must be an xarray.DataArray; got ndarray"),
        (lambda m, X: m.predict(covariates=raster(x=X_ + 1000)), "must overlap with the rows, x from"),
        (lambda m, X: m.predict(covariates=raster(y=Y + 1000)), "raster of h of Kriging must overlap"),
        (lambda m, X: m.predict(template=raster(y=Y + 1000), covariates=raster()), "template of Kriging must overlap"),
        (lambda m, X: m.predict(covariates=raster(np.full((37, 42), np.nan))), "No cell of the map"),
        (lambda m, X: m.predict(covariates=raster().expand_dims(time=[1, 2])), "one value in each cell"),
        (
            lambda m, X: m.predict(covariates=raster().assign_attrs(scale_factor=0.1)),
            "(0.1, 0.0), that were not applied",
        ),
        (lambda m, X: m.predict(covariates=raster().isel(y=[3])), "two or more different centres"),
        (lambda m, X: m.predict(covariates=raster().rename(x="u")), "must have coordinates y and x"),
        (lambda m, X: m.predict(covariates=raster().isel(x=[3, 3])), "two or more different centres"),
        (lambda m, X: m.predict(X + 500, covariates=raster()), "no value at 60 of 60 places; the first is row 0"),
        (lambda m, X: geo.Kriging(covariates=["h"]).fit(X, X[:, 0]), "got 2 columns"),
        (lambda m, X: geo.Kriging().fit(X, X[:, 0], covariates=raster()), "Kriging that has none"),
        (lambda m, X: geo.Kriging(covariates=["h", "s"]).fit(X, X[:, 0], covariates=raster()), "got one raster"),
        (
            lambda m, X: geo.Kriging(covariates=["h"], crs=32633).fit(
                1000 * X + 4e5, X[:, 0], covariates=raster(crs=4326)
            ),
            "must have the crs of the rows, EPSG:32633; got EPSG:4326. Use rio.reproject",
        ),
    ],
)
def test_what_cannot_be_is_refused(act, words):
    with pytest.raises(InvalidInputError) as error:
        act(fitted(), rows()[0])
    assert words in str(error.value)
