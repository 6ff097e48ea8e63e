"""Kriging at points: dense equations, kinds of tables, reference systems, tools of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from gigagp import GPRegressor, geo, kernels
from gigagp.errors import GigaGPWarning, InvalidInputError
from gigagp.runtime.progress import Meter
from kriging_cases import fixed_model, matern, ordinary_kriging, table, uneven

UTM = "EPSG:32633"
POINTS = np.array([[10.0, 20.0], [55.5, 71.25], [390.0, 350.0], [-40.0, 3.0]])


def rows(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    return uneven(n), np.random.default_rng(1).normal(size=n) + 100


@pytest.fixture
def geopandas():
    return pytest.importorskip("geopandas", reason='the extra "geo" is not installed')


FAR = uneven(60) + np.array([5e5, 5e6])


def frame_of(geopandas, X, crs=None, **columns):
    return geopandas.GeoDataFrame(columns, geometry=geopandas.points_from_xy(X[:, 0], X[:, 1]), crs=crs)


def test_points_get_the_answers_of_the_dense_equations():
    X, y = rows()
    mean, std = geo.Kriging(fixed_model()).fit(X, y).predict(POINTS, return_std=True)
    dense = ordinary_kriging(X, y, POINTS, matern, 0.05)
    assert np.allclose(mean, dense[0], rtol=0, atol=1e-8)
    assert np.allclose(std, dense[1], rtol=0, atol=1e-7)
    other = ordinary_kriging(X, y, POINTS[:, ::-1], matern, 0.05)
    assert abs(mean - other[0]).max() > 0.01, "the control: x is not y"


def test_coordinates_and_values_do_as_a_table_and_a_column():
    X, y = rows()
    expected = geo.Kriging(fixed_model()).fit(table(X, y), "z").predict(POINTS, True)
    for places, values in ((X, y), (X.tolist(), y.tolist()), (table(X, y), y), (X, y[:, None])):
        found = geo.Kriging(fixed_model()).fit(places, values).predict(POINTS, return_std=True)
        assert (np.stack(found) == np.stack(expected)).all()


def test_a_map_has_the_values_of_points_at_its_cells():
    pytest.importorskip("xarray")
    X, y = rows()
    model = geo.Kriging(fixed_model()).fit(X, y)
    maps = model.predict(x=POINTS[:, 0], y=POINTS[:2, 1], include_noise=True)
    places = np.array([[x, y] for y in POINTS[:2, 1] for x in POINTS[:, 0]])
    mean, std = model.predict(places, return_std=True, include_noise=True)
    assert (maps["mean"].values.ravel() == mean).all()
    assert (maps["std"].values.ravel() == std).all()
    assert np.allclose(std**2 - model.predict(places, return_std=True)[1] ** 2, 0.05)


class Recorder(Meter):
    """How far the phases have come."""

    def __init__(self):
        self.done = []

    def start(self, total, title):
        pass

    def step(self, **fields):
        pass

    def close(self):
        pass

    def phase(self, title, total=None, **details):
        self.done.append((title, total))

    def reached(self, done, **fields):
        self.done.append(done)


def test_many_cells_are_predicted_in_blocks_and_say_how_far_they_are(monkeypatch):
    pytest.importorskip("xarray")
    X, y = rows()
    model = geo.Kriging(fixed_model(verbose=Recorder())).fit(X, y)
    meter = model.gp.verbose  # a clone has a copy
    x, down = np.linspace(0, 100, 5), np.linspace(0, 50, 4)
    whole = model.predict(x=x, y=down)
    meter.done.clear()
    taken = []
    monkeypatch.setattr("gigagp.geo.kriging._BLOCK", 6)
    predict = GPRegressor.predict
    monkeypatch.setattr(GPRegressor, "predict", lambda gp, X, **o: taken.append(len(X)) or predict(gp, X, **o))
    blocks = model.predict(x=x, y=down)
    assert taken == [6, 6, 6, 2]
    assert meter.done == [("predicting", 20), 6, 12, 18, 20]
    for name in ("mean", "std"):
        assert np.allclose(blocks[name], whole[name], rtol=1e-10, atol=0)


def test_a_table_gets_a_table_of_its_kind():
    pandas, polars, pyarrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    X, y = rows()
    model = geo.Kriging(fixed_model()).fit(table(X, y), "z")
    mean, std = model.predict(POINTS, return_std=True)
    columns = {"name": list("abcd"), "northing": POINTS[:, 1], "easting": POINTS[:, 0]}
    for made in (columns, pandas.DataFrame(columns), polars.DataFrame(columns), pyarrow.table(columns)):
        found = model.predict(made)
        assert type(found) is type(made)
        assert (np.asarray(found["mean"]) == mean).all()
        assert (np.asarray(found["std"]) == std).all()
        assert np.asarray(found["name"]).tolist() == list("abcd")
        again = model.predict(found, include_noise=True)
        assert np.allclose(np.asarray(again["std"]) ** 2, std**2 + 0.05)
        assert (np.asarray(found["std"]) == std).all(), "the table that was given is left alone"
        assert (model.predict(made, return_std=False) == mean).all()
    labelled = pandas.DataFrame(columns, index=[7, 3, 9, 1])
    assert model.predict(labelled).index.tolist() == [7, 3, 9, 1]


def test_points_of_geopandas_keep_geometry_index_and_system(geopandas):
    X, y = rows()
    model = geo.Kriging(fixed_model()).fit(frame_of(geopandas, X, UTM, z=y), "z")
    points = frame_of(geopandas, POINTS, UTM, name=list("abcd")).set_index(np.array([7, 3, 9, 1]))
    expected = model.predict(POINTS, return_std=True)
    for given in (points, points.geometry):
        found = model.predict(given)
        assert isinstance(found, geopandas.GeoDataFrame)
        assert found.crs == UTM
        assert found.index.tolist() == [7, 3, 9, 1]
        assert found.geometry.geom_equals(points.geometry).all()
        assert (found[["mean", "std"]].to_numpy() == np.stack(expected, 1)).all()


def test_points_in_another_system_are_moved_to_that_of_the_rows(geopandas):
    X, y = rows()
    X = 1000 * X + [400_000, 5_200_000]
    kernel = kernels.Matern(1.5, 25_000.0, 2.0, ard=False)
    model = geo.Kriging(fixed_model(kernel)).fit(frame_of(geopandas, X, UTM, z=y), "z")
    points = frame_of(geopandas, 1000 * POINTS + [400_000, 5_200_000], UTM)
    expected = model.predict(points)
    degrees = points.to_crs(4326)
    lonlat = {"lon": degrees.geometry.x.to_numpy(), "lat": degrees.geometry.y.to_numpy()}
    for given in (degrees, lonlat):
        found = model.predict(given)
        assert np.allclose(found["mean"], expected["mean"], rtol=0, atol=1e-6)
        assert np.allclose(found["std"], expected["std"], rtol=0, atol=1e-6)
    assert found["lon"] is lonlat["lon"], "in the table's own system"
    with pytest.raises(InvalidInputError, match="could be longitudes and latitudes in degrees"):
        model.predict(degrees.set_crs(None, allow_override=True))


@pytest.mark.slow
def test_an_array_of_degrees_needs_a_system():
    lon, lat = np.random.default_rng(0).uniform([5, 45], [15, 52], (50, 2)).T
    X, y = np.stack([lon, lat], 1), np.sin(lon)
    model = geo.Kriging(crs="EPSG:4326").fit(X, y)
    assert {leaf.metric for leaf in model.gp.kernel_.leaves()} == {"haversine"}
    named = geo.Kriging().fit({"lon": lon, "lat": lat, "z": y}, "z")
    assert (model.predict(X) == named.predict(X)).all()


def test_a_regressor_without_a_kernel_gets_that_of_the_places():
    X, y = np.random.default_rng(0).uniform([5, 45], [15, 52], (40, 2)), np.arange(40.0)
    model = geo.Kriging(GPRegressor(mean="linear", optimizer=None), crs=4326).fit(X, y)
    assert {leaf.metric for leaf in model.gp.kernel_.leaves()} == {"haversine"}
    assert model.regressor.kernel is None


# scikit-learn ---------------------------------------------------------------------------------------------------------


def test_arguments_are_those_of_an_estimator():
    model = geo.Kriging(fixed_model(), x="a", y="b", crs=UTM, covariates=["c"])
    assert clone(model).get_params(deep=False).keys() == {"regressor", "x", "y", "crs", "covariates"}
    assert clone(model).covariates == ["c"]
    model.set_params(regressor__noise_variance=0.5, regressor__kernel__variance=3.0, x="u")
    assert (model.regressor.noise_variance, model.regressor.kernel.variance, model.x) == (0.5, 3.0, "u")
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.predict(resolution=1)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        model.leave_one_out()


def test_cross_validation_is_that_of_a_loop(geopandas):
    X, y = rows(30)
    folds = KFold(3, shuffle=True, random_state=0)
    expected = np.empty(30)
    for train, test in folds.split(X):
        expected[test] = ordinary_kriging(X[train], y[train], X[test], matern, 0.05)[0]
    model = geo.Kriging(fixed_model())
    frame = frame_of(geopandas, X, UTM, z=y)
    for places, values in ((X, y), (frame, frame["z"]), (frame.geometry, y)):
        assert np.allclose(cross_val_predict(model, places, values, cv=folds), expected, rtol=0, atol=1e-8)
        errors = cross_val_score(model, places, values, cv=folds, scoring="neg_mean_squared_error")
        assert np.isclose(-errors.mean(), ((expected - y) ** 2).mean(), rtol=1e-7)
        shares = cross_val_score(model, places, values, cv=folds)
        left = [((expected[t] - y[t]) ** 2).sum() / ((y[t] - y[t].mean()) ** 2).sum() for _, t in folds.split(X)]
        assert np.allclose(shares, 1 - np.array(left), rtol=1e-7)
    named = clone(model).fit(frame, "z")
    assert np.isclose(named.score(frame, "z"), named.score(frame, y), rtol=1e-14)


def test_searches_and_pipelines_take_it():
    X, y = rows(30)
    search = GridSearchCV(geo.Kriging(fixed_model()), {"regressor__kernel__lengthscale": [0.01, 25.0]}, cv=3)
    smooth = 100 + np.sin(X[:, 0] / 20)
    assert search.fit(X, smooth).best_params_ == {"regressor__kernel__lengthscale": 25.0}
    thousands = make_pipeline(FunctionTransformer(lambda X: X / 1000), geo.Kriging(fixed_model())).fit(1000 * X, y)
    assert np.allclose(thousands.predict(1000 * POINTS), geo.Kriging(fixed_model()).fit(X, y).predict(POINTS))


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda X, y: geo.Kriging().fit(X[:, :1], y), "np.c_[x, y] makes them; got shape (60, 1)"),
        (lambda X, y: geo.Kriging().fit(np.c_[X, y], y), "must have the columns x and y; got 3 columns"),
        (lambda X, y: geo.Kriging().fit(X[:, 0], y), "np.c_[x, y] makes them; got shape (60,)"),
        (lambda X, y: geo.Kriging().fit(X, y[:9]), "same number of rows"),
        (lambda X, y: geo.Kriging().fit(X[:0], y[:0]), "must have rows; got none"),
        (lambda X, y: geo.Kriging().fit({"x": [], "y": [], "z": []}, "z"), "must have rows; got none"),
        (lambda X, y: geo.Kriging().fit(X, "z"), "names the column 'z' of an array"),
        (lambda X, y: geo.Kriging().fit({"x": [0.0, 1.0], "y": [0.0, 1.0], "z": np.eye(2)}, "z"), "got shape (2, 2)"),
        (lambda X, y: geo.Kriging(crs=4807).fit({"lon": [1.0, 2.0], "lat": [1.0, 2.0], "z": [1, 2]}, "z"), "in grad"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(resolution="a"), "one along x and one along y"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(resolution=1, bounds="a"), "(west, south, east"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(x="a", y=[0.0]), "finite numbers along one axis"),
        (
            lambda X, y: (
                geo.Kriging(fixed_model(), crs=UTM).fit(X + np.array([5e5, 5e6]), y).predict({"lon": [0], "lat": [91]})
            ),
            "Row 0 of the points of Kriging",
        ),
        (lambda X, y: geo.Kriging().fit("stations.csv", y), "got the text 'stations.csv'"),
        (lambda X, y: geo.Kriging(covariates="elevation").fit(X, y), "must be a list of names"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(X[:0]), "must have rows; got none"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(X, resolution=1), "not points and resolution"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict({"lon": [1.0], "lat": [1.0]}), "Give Kriging a crs"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).predict(resolution=1, bounds=(900, 0, 990, 9)), "overlap"),
    ],
)
def test_what_cannot_be_is_refused(act, words):
    pytest.importorskip("pyproj")
    with pytest.raises(InvalidInputError) as error:
        act(*rows())
    assert words in str(error.value)
    assert len(str(error.value)) < 400, "no whole array in the message"


def test_swapped_coordinates_are_refused(geopandas):
    source = np.random.default_rng(0)
    X, z = source.uniform([5, 45], [15, 52], (40, 2)), np.arange(40.0)
    gp = fixed_model(kernels.Matern(1.5, 300.0, metric="haversine"))
    model = geo.Kriging(gp, crs=4326).fit(X, z)
    for act in (lambda: model.predict(X[:3, ::-1]), lambda: model.predict(x=[46.0, 47.0], y=[6.0, 7.0])):
        with pytest.raises(InvalidInputError, match="Longitude comes first, and then latitude"):
            act()
    assert np.isfinite(model.predict([[40.0, 50.0]])).all(), "far away is allowed"
    dutch = source.uniform([20e3, 320e3], [270e3, 600e3], (40, 2))
    plane = geo.Kriging(fixed_model()).fit(frame_of(geopandas, dutch, 28992, z=z), "z")
    for points, words in ((dutch[:3, ::-1], "inside if x and y are swapped"), ([[5.1, 52.0]], "could be longitudes")):
        with pytest.raises(InvalidInputError, match=words):
            plane.predict(points)
    with pytest.raises(InvalidInputError, match="inside if x and y are swapped"):
        geo.Kriging(fixed_model()).fit(frame_of(geopandas, dutch[:, ::-1], 28992, z=z), "z")
    with pytest.warns(GigaGPWarning, match="could be longitudes and latitudes in degrees"):
        small = geo.Kriging(fixed_model()).fit(frame_of(geopandas, X, 28992, z=z), "z")
    assert np.isfinite(small.predict([[5.1, 52.0]])).all(), "a made-up plane may have any numbers"
    with pytest.raises(InvalidInputError, match="inside if x and y are swapped"):
        geo.Kriging(gp).fit({"lon": X[:, 1], "lat": X[:, 0] + 90, "z": z}, "z")


def test_a_raster_or_another_system_is_no_table_of_places(geopandas):
    xarray = pytest.importorskip("xarray")
    X, y = rows(20)
    with pytest.raises(InvalidInputError, match="must be a table or an array, and not a raster"):
        geo.Kriging().fit(xarray.DataArray(np.zeros((2, 2)), dims=("y", "x")), y)
    with pytest.raises(InvalidInputError, match="must be that of the GeoDataFrame"):
        geo.Kriging(crs=4326).fit(frame_of(geopandas, X, UTM, z=y), "z")
    assert geo.Kriging(fixed_model(), crs=UTM).fit(frame_of(geopandas, X, UTM, z=y), "z").places.crs == UTM


def test_the_mean_over_a_sliver_is_the_value_within_it(geopandas):
    shapely = pytest.importorskip("shapely")
    X, y = rows()
    model = geo.Kriging(fixed_model()).fit(X, y)
    sliver = shapely.Polygon([(0, 0), (90, 150), (300, 200), (300, 200.0000001), (90, 150.0000001)])
    found = model.block_means(geopandas.GeoSeries([sliver]))
    middle = np.array([[sliver.representative_point().x, sliver.representative_point().y]])
    expected = model.predict(middle, return_std=True)
    np.testing.assert_allclose(found[["mean", "std"]].to_numpy()[0], np.ravel(expected), rtol=1e-9)
    for bad in (None, shapely.Polygon([(0, 0), (1, 1), (2, 2)])):
        with pytest.raises(InvalidInputError, match="must be polygons with an area"):
            model.block_means(geopandas.GeoSeries([bad]))
