"""Folds of blocks, predictions of left-out blocks against fits without them, and pictures of maps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.model_selection import KFold, cross_val_score

from gigagp import geo, kernels
from gigagp.errors import InvalidInputError
from kriging_cases import fixed_model, matern, ordinary_kriging, uneven, universal_kriging


def rows(n: int = 60):
    X = uneven(n)
    return X, np.random.default_rng(1).normal(size=n) + 100 + X[:, 1] / 50


def test_blocks_are_squares_and_no_fold_shares_one():
    X, _ = rows()
    cv = geo.BlockKFold(4, block_size=20.0)
    blocks = cv.blocks(X)
    corner = np.floor((X - X.min(0)) / 20)
    same = (corner[:, None] == corner[None]).all(2)
    assert (same == (blocks[:, None] == blocks[None])).all()
    folds = list(cv.split(X))
    assert np.array_equal(np.sort(np.concatenate([test for _, test in folds])), np.arange(60))
    for train, test in folds:
        assert not set(blocks[train]) & set(blocks[test])
        assert len(train) + len(test) == 60
    wide = geo.BlockKFold(2, block_size=(1e9, 20.0)).blocks(X)
    assert len(np.unique(wide)) == len(np.unique(corner[:, 1]))
    shuffled = [geo.BlockKFold(4, block_size=20.0, shuffle=True, random_state=s) for s in (0, 0, 1)]
    found = [np.concatenate([test for _, test in one.split(X)]).tolist() for one in shuffled]
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize("case", ["uneven", "line", "even"])
def test_without_a_size_there_are_enough_blocks(case):
    X = {
        "uneven": rows()[0],
        "line": np.c_[np.arange(50.0), np.zeros(50)],
        "even": np.random.default_rng(0).random((90, 2)),
    }
    blocks = geo.BlockKFold(5).blocks(X[case])
    assert 20 <= blocks.max() + 1 <= 80
    assert len(list(geo.BlockKFold(5).split(X[case]))) == 5


def test_blocks_do_not_part_at_the_date_line():
    frame = {"lon": np.array([179.0, -179.9, 179.9, -179.0, 178.0, -178.0]), "lat": np.zeros(6)}
    folds = [test.tolist() for _, test in geo.BlockKFold(2, block_size=2.5).split(frame)]
    assert sorted(map(sorted, folds)) == [[0, 1, 2, 4], [3, 5]]


@pytest.mark.few(1)
@pytest.mark.parametrize("covariates", [None, ["h"]])
def test_left_out_blocks_are_those_of_fits_without_them(covariates):
    X, y = rows()
    h = np.cos(X[:, 0])
    inputs = X if covariates is None else np.c_[X, h]
    model = geo.Kriging(fixed_model(), covariates=covariates).fit(inputs, y)
    cv = geo.BlockKFold(3, block_size=25.0)
    found = model.cross_validate(cv)
    trend = np.ones((60, 1)) if covariates is None else np.c_[np.ones(60), h]
    for number, (train, test) in enumerate(cv.split(X)):
        mean, std = universal_kriging(X[train], y[train], X[test], matern, 0.05, trend[train], trend[test])
        std = np.sqrt(std**2 + 0.05)
        assert np.allclose(found.table["mean"][test], mean, rtol=0, atol=1e-7)
        assert np.allclose(found.table["std"][test], std, rtol=0, atol=1e-7)
        assert (found.table["fold"][test] == number).all()
        assert np.allclose(found.predicted.rank[test], norm.cdf((y[test] - mean) / std), atol=1e-6)
    z = np.asarray(found.table["standardized"])
    assert np.isclose(found.rmse, np.sqrt(np.mean((y - found.predicted.mean) ** 2)))
    assert np.isclose(found.coverage(), np.mean(abs(z) < norm.ppf(0.975)))
    assert np.isclose(found.nll, -norm.logpdf(y, found.predicted.mean, found.predicted.std).mean())
    assert str(found).startswith("3 folds of 60 rows: RMSE ")
    single = model.cross_validate(KFold(60))
    left_out = model.leave_one_out()
    assert np.allclose(single.table["mean"], left_out["mean"], rtol=0, atol=1e-7)
    assert single.rmse < found.rmse, "a place that keeps its neighbours is easier"


def test_tools_of_scikit_learn_take_the_folds():
    X, y = rows()
    cv = geo.BlockKFold(3, block_size=25.0)
    errors = cross_val_score(geo.Kriging(fixed_model()), X, y, cv=cv, scoring="neg_mean_squared_error")
    expected = [
        np.mean((ordinary_kriging(X[train], y[train], X[test], matern, 0.05)[0] - y[test]) ** 2)
        for train, test in cv.split(X)
    ]
    assert np.allclose(-errors, expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda X, y: list(geo.BlockKFold(block_size=-1.0).split(X)), "block_size of BlockKFold must be a positive"),
        (lambda X, y: list(geo.BlockKFold(block_size=1e4).split(X)), "10000.0 makes 1"),
        (lambda X, y: list(geo.BlockKFold(1000).split(X)), "number of different places"),
        (lambda X, y: geo.BlockKFold(1), "n_splits of BlockKFold must be an int of at least 2; got 1"),
        (
            lambda X, y: geo.Kriging(fixed_model()).fit(X, y).cross_validate("five"),
            "cv of Kriging.cross_validate must be",
        ),
        (lambda X, y: list(geo.BlockKFold().split(X[:, :1])), "np.c_[x, y] makes them"),
        (lambda X, y: geo.Kriging(fixed_model()).fit(X, y).cross_validate([(np.arange(9), [10])]), "each row out once"),
    ],
)
def test_what_cannot_be_is_refused(act, words):
    with pytest.raises(InvalidInputError) as error:
        act(*rows())
    assert words in str(error.value)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_the_picture_of_a_validation_has_folds_and_errors(tmp_path):
    pytest.importorskip("matplotlib")
    X, y = rows()
    found = geo.Kriging(fixed_model(), x="x", y="y").fit({"x": X[:, 0], "y": X[:, 1], "z": y}, "z").cross_validate(3)
    figure = found.plot(tmp_path / "folds.png")
    assert (tmp_path / "folds.png").stat().st_size > 5000
    folds, errors, calibration = figure.axes
    assert folds.get_title() == "3 folds"
    assert [len(one.get_offsets()) for one in folds.collections] == np.bincount(found.table["fold"]).tolist()
    assert errors.get_xlabel() == "predicted z"
    assert calibration.get_ylabel() == "rows inside (%)"


@pytest.mark.parametrize("n", [60, 450])
def test_the_picture_of_a_map_shows_mean_deviation_and_rows(n, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("rioxarray")
    lon, lat = np.random.default_rng(0).uniform([5, 45], [15, 52], (n, 2)).T
    gp = fixed_model(kernels.Matern(1.5, 300.0, metric="haversine"))
    model = geo.Kriging(gp).fit({"lon": lon, "lat": lat, "rain": np.sin(lon)}, "rain")
    maps = model.predict(resolution=1.0)
    maps["mean"][0, 0] = np.nan
    figure = model.plot(maps, tmp_path / "map.svg")
    mean, _, std, _ = figure.axes
    assert (mean.get_title(), std.get_title()) == ("rain", "standard deviation")
    assert mean.get_xlabel() == "longitude (°)"
    assert mean.get_aspect() == pytest.approx(1 / np.cos(np.radians(np.median(lat))))
    drawn, dots = mean.collections
    assert np.ma.allclose(drawn.get_array(), maps["mean"].values)
    assert (dots.get_offsets() == np.c_[lon, lat]).all()
    assert len(std.collections) == 1
    with pytest.raises(InvalidInputError, match=r"ends in \.png"):
        model.plot(maps, tmp_path / "map.gif")
