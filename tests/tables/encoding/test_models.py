"""Estimators with ``encode="auto"``: predictions, units, files, and what scikit-learn asks of them."""

from __future__ import annotations

import copy
import datetime as dt
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

import gigagp
from engines import needs_extension
from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import EncodingWarning, InvalidInputError, ModelFileError
from gigagp.estimators.saving.persistence import load_state, save_state
from gigagp.tables.encoding import TableEncoder

N = 80


def table(n: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, city = rng.uniform(-2, 2, n), rng.choice(["Oslo", "Rome", "Bern"], n, p=[0.6, 0.3, 0.1])
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, n), unit="D")
    y = np.sin(2 * x) + (city == "Rome") + 0.05 * rng.normal(size=n)
    x[::9] = np.nan
    return pd.DataFrame({"x": x, "city": city, "day": day}), y


def fitted(**options) -> GPRegressor:
    return GPRegressor(encode="auto", optimizer=None, noise_variance=0.01, **options).fit(*table())


def test_predictions_beside_dense_algebra():
    """The posterior of a Matern kernel with one lengthscale for each part, on an encoding made by hand."""
    X, y = table()
    model = GPRegressor(
        kernels.Matern(nu=1.5, lengthscale=[0.8, 1.1, 2.0, 200.0, 1.5], variance=1.3),
        encode="auto",
        optimizer=None,
        noise_variance=0.01,
        mean="zero",
    ).fit(X, y - 0.0)
    centre = y.mean()  # a zero mean is that of standardized targets
    new, _ = table(7, 1)

    def by_hand(X: pd.DataFrame) -> np.ndarray:
        x = X["x"].fillna(table()[0]["x"].median()) / 0.8
        days = (X["day"] - table()[0]["day"].min()) / pd.Timedelta(days=1)
        angle = 2 * np.pi * ((X["day"] - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)) / 365.2425
        cities = [(X["city"] == one) / 2.0 for one in ("Oslo", "Rome", "Bern")]
        return np.stack([x, X["x"].isna() / 1.1, *cities, days / 200, np.sin(angle) / 1.5, np.cos(angle) / 1.5], 1)

    def covariance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        t = np.sqrt(3 * np.square(one[:, None] - other[None]).sum(2))
        return 1.3 * (1 + t) * np.exp(-t)

    train, points = by_hand(X), by_hand(new)
    weights = np.linalg.solve(covariance(train, train) + 0.01 * np.eye(N), y - centre)
    mean, cov = model.predict(new, return_cov=True)
    np.testing.assert_allclose(mean, centre + covariance(points, train) @ weights, rtol=0, atol=1e-9)
    cross = covariance(points, train)
    exact = covariance(points, points) - cross @ np.linalg.solve(covariance(train, train) + 0.01 * np.eye(N), cross.T)
    np.testing.assert_allclose(cov, exact, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_the_default_kernel_learns_one_lengthscale_for_each_part():
    X, y = table()  # nine missing cells are too few for noise of their own
    model = GPRegressor(encode="auto").fit(X, y)
    assert model.encoder_.labels == ["x", "x missing", "city", "day days", "day season"]
    assert model.kernel_.lengthscale.shape == (5,)
    text = model.describe()
    assert "lengthscale[city]" in text
    assert "  day   dates since 2020-01-" in text
    assert "numbers; 9 missing cells filled with the median" in text
    kept = GPRegressor(kernel=model.kernel_, encode="auto", optimizer=None).fit(X, y).kernel_
    assert kept.groups == model.kernel_.groups
    for name, value in model.kernel_.parameters().items():
        np.testing.assert_allclose(kept.parameters()[name], value, rtol=1e-14)  # units there and back


@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
def test_a_rare_category_is_as_far_as_a_frequent_one():
    n = 3000
    city = np.repeat(["a", "b", "c"], [n - 1003, 1000, 3])
    X = pd.DataFrame({"city": city, "x": np.linspace(0, 1, n)})
    y = np.linspace(0, 1, n)
    model = GPRegressor(encode="auto", optimizer=None, inference=inference.SparseVariational(10)).fit(X, y)
    np.testing.assert_array_equal(model.scaling_.x_scale[:4], 1.0)
    points = model.scaling_.inputs(model.encoder_.transform(X.iloc[[0, 2000, 2999]].assign(x=0.5)))
    np.testing.assert_allclose(np.square(points[:, None] - points[None]).sum(2), 2.0 * (1 - np.eye(3)))
    # standardized as other columns are, the rare category would be 30 times as far
    dense = (city[:, None] == np.array(["a", "b", "c"])).astype(float)
    strict = GPRegressor(optimizer=None, inference=inference.SparseVariational(10)).fit(dense, y)
    assert strict.scaling_.x_scale[2] < 0.04


def test_numbers_alone_give_the_same_bits_as_strict():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(50, 3)), rng.normal(size=50)
    one, other = (GPRegressor(kernels.Matern(nu=1.5), encode=encode).fit(X, y) for encode in ("strict", "auto"))
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert one.kernel_ == other.kernel_


def test_every_answer_takes_the_table():
    model = fitted()
    X, y = table()
    new, _ = table(6, 2)
    mean, std, parts = model.predict(new, return_std=True, return_parts=True)
    np.testing.assert_array_equal(mean, model.predict(new))
    np.testing.assert_allclose(parts.mathematical, std)
    assert model.sample_y(new, 3).shape == (6, 3)
    assert model.sample_functions(2)(new).shape == (6, 2)
    assert model.score(X, y) > 0.9
    copied = copy.deepcopy(model)
    np.testing.assert_array_equal(copied.predict(new), mean)
    assert clone(model).encode == "auto"
    assert not hasattr(clone(model), "encoder_")
    again = model.set_params(encode="strict").fit(np.zeros((3, 1)) + np.arange(3)[:, None], np.arange(3.0))
    assert not hasattr(again, "encoder_")


def test_warnings_come_once():
    model = fitted()
    new = table(4, 2)[0].assign(city="Lima")
    for answer in (
        lambda: model.predict(new, return_std=True),
        lambda: model.sample_y(new, 2),
    ):
        with pytest.warns(EncodingWarning, match="'city'.*'Lima'") as caught:
            answer()
        assert len(caught) == 1
    known, unknown = (model.predict(new.assign(x=0.0, city=one), return_std=True)[1] for one in ("Oslo", "Oslo"))
    np.testing.assert_array_equal(known, unknown)
    with pytest.warns(EncodingWarning):
        assert (model.predict(new.assign(x=0.0), return_std=True)[1] > known).all()


def test_columns_in_another_order_are_refused_as_by_scikit_learn():
    model = fitted()
    X, _ = table()
    with pytest.raises(InvalidInputError, match="Feature names must be in the same order"):
        model.predict(X[["city", "x", "day"]])
    with pytest.raises(InvalidInputError, match="feature names"):
        model.predict(X[["x", "city"]])


def test_a_fit_decides_first():
    with pytest.raises(NotFittedError, match='encode="auto" is not fitted'):
        GPRegressor(encode="auto").predict(table()[0])
    with pytest.raises(InvalidInputError, match="encode of GPRegressor"):
        GPRegressor(encode="all").fit(*table())
    with pytest.raises(InvalidInputError, match='must be "strict" for fit_table'):
        GPRegressor(encode="auto").fit_table(table()[0], "x")
    with pytest.raises(InvalidInputError, match=r"the text '(Oslo|Rome|Bern)'"):
        GPRegressor().fit(table()[0][["city"]], table()[1])


def test_a_failed_fit_leaves_the_model():
    model = fitted()
    before = model.encoder_
    with pytest.raises(InvalidInputError, match="different types"):
        model.fit(pd.DataFrame({"a": ["x", dt.date(2024, 1, 1), "y"]}, dtype=object), np.arange(3.0))
    assert model.encoder_ is before


def test_rows_are_added_in_the_same_encoding():
    X, y = table()
    model = GPRegressor(encode="auto", inference=inference.Vecchia(79, 79), optimizer=None).fit(X[:60], y[:60])
    model.partial_fit(X[60:], y[60:])
    assert model.posterior_.n_rows == N


@pytest.mark.slow
def test_validation_rows_are_encoded():
    X, y = table()
    new, measured = table(20, 5)
    model = GPRegressor(encode="auto").fit(X, y, validation=(new, measured))
    assert model.history_[-1].validation_rmse is not None
    with pytest.raises(InvalidInputError, match="validation"):
        GPRegressor(encode="auto").fit(X, y, validation=(new, measured, 1))


def test_means_with_a_slope_for_each_category():
    X, y = table()
    model = GPRegressor(encode="auto", mean="linear", optimizer=None).fit(X, y + 100 * (X["city"] == "Rome"))
    far = model.predict(X.iloc[:1].assign(city=["Rome"])) - model.predict(X.iloc[:1].assign(city=["Oslo"]))
    assert 90 < far[0] < 110


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_a_file_gives_the_same_bits(kind, tmp_path):
    X, y = table()
    new = table(5, 3)[0]
    if kind == "classifier":
        steps = optimization.SparseAdam(steps=3)
        model = GPClassifier(encode="auto", inference=inference.QuadruplyStochastic(20), optimizer=steps)
        model.fit(X, np.where(y > 0.5, "up", "down"))
        answer = "predict_proba"
    else:
        model, answer = fitted(), "predict"
    model.save(tmp_path / "one.gp")
    loaded = gigagp.load(tmp_path / "one.gp")
    np.testing.assert_array_equal(getattr(loaded, answer)(new), getattr(model, answer)(new))
    assert loaded.n_features_in_ == 3
    assert list(loaded.feature_names_in_) == ["x", "city", "day"]
    loaded.save(tmp_path / "two.gp")
    assert (tmp_path / "one.gp").read_bytes() == (tmp_path / "two.gp").read_bytes()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_strange_texts_survive_a_file(kind, tmp_path):
    del kind
    X, y = table()
    names = ["\u00e9\u4e2d", 'a"b\\', "x\ny"]
    X = X.assign(city=[names[k % 3] for k in range(N)]).rename(columns={"city": "Stadt \u00fc"})
    model = GPRegressor(encode="auto", optimizer=None).fit(X, y)
    model.save(tmp_path / "m.gp")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "m.gp").predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("encoder",), None, "header.encoder"),
        (("encoder", 1, "categories"), ["a"] * 3, "different strings"),
        (("encoder", 1, "categories"), ["a"], "encoded columns"),
        (("encoder", 1, "column"), "numbers", "fill"),
        (("encoder", 0, "fill"), 1e400, "finite"),
        (("feature_names",), ["x"] * 8, "0 or 3"),
        (("settings", "encode"), "other", "encode"),
        (("settings", "encode"), [], "setting"),
        (("kernel", "groups"), [0] * 7, "groups"),
        (("kernel", "groups"), [0, 10**12] * 4, "groups"),
        (("kernel", "groups"), "abc", "groups"),
    ],
)
def test_hostile_files_are_refused(place, value, message, tmp_path):
    fitted().save(tmp_path / "m.gp")
    kind, tensors, header = load_state(tmp_path / "m.gp")
    at = header
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    save_state(tmp_path / "m.gp", kind, tensors, header)
    with pytest.raises(ModelFileError, match=message):
        gigagp.load(tmp_path / "m.gp")


def test_a_file_without_its_encoder_takes_numbers_alone(tmp_path):
    fitted().save(tmp_path / "m.gp")
    kind, tensors, header = load_state(tmp_path / "m.gp")
    del header["encoder"]
    header["feature_names"] = []
    save_state(tmp_path / "m.gp", kind, tensors, header)
    with pytest.raises(InvalidInputError):
        gigagp.load(tmp_path / "m.gp").predict(table()[0])


def test_cross_validation_of_a_table():
    X, y = table()
    model = GPRegressor(encode="auto", optimizer=None)
    assert cross_val_score(model, X, y, cv=3).mean() > 0.3


@pytest.mark.slow
def test_sparse_one_hot_inputs_with_a_constant_column():
    rng = np.random.default_rng(0)
    dense = np.eye(4)[rng.integers(0, 3, N)]  # the last column is constant
    y = dense @ [0.0, 1.0, 3.0, 9.0] + 0.01 * rng.normal(size=N)
    sparse = scipy.sparse.csr_matrix(dense)
    one, other = GPRegressor(kernels.Matern(nu=1.5)).fit(sparse, y), GPRegressor(kernels.Matern(nu=1.5)).fit(dense, y)
    np.testing.assert_array_equal(one.predict(sparse), other.predict(dense))
    kernel = kernels.Categorical(columns=[0, 1, 2, 3])
    overlap = GPRegressor(kernel).fit(scipy.sparse.csc_array(dense), y)
    np.testing.assert_allclose(overlap.predict(sparse), dense @ [0, 1, 3, 9], atol=0.05)
    with pytest.warns(EncodingWarning, match="column '3' is left out"):
        encoded = GPRegressor(encode="auto").fit(sparse, y)
    np.testing.assert_allclose(encoded.predict(sparse), dense @ [0, 1, 3, 9], atol=0.05)


def test_maps_of_a_table_with_categories():
    X, y = table()
    found = gigagp.diagnostics.map_values(fitted(), resolution=5)
    assert found.names == ["x", "day"]
    assert found.mean.shape == (1, 5, 5)
    model = GPRegressor(encode="auto", optimizer=None).fit(X[["x", "city"]].to_numpy(dtype=object), y)
    assert gigagp.diagnostics.map_values(model, resolution=5).mean.shape == (1, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        only = GPRegressor(encode="auto", optimizer=None).fit(X[["city"]], y)
    with pytest.raises(InvalidInputError, match="the model has 0"):
        gigagp.diagnostics.map_values(only)


def test_the_encoder_of_a_model_is_that_of_its_table():
    assert fitted().encoder_ == TableEncoder.fit(table()[0])


@pytest.mark.slow
def test_transforms_of_the_target_take_the_table():
    X, y = table()
    model = GPRegressor(encode="auto", target_transform="log").fit(X, np.exp(y))
    with pytest.warns(EncodingWarning) as caught:
        mean, std = model.predict(X.assign(city="Lima"), return_std=True)
    assert len(caught) == 1
    assert (mean > 0).all()
    assert (std > 0).all()
    assert (
        GPRegressor(encode="auto", target_transform="auto", optimizer=None).fit(X, np.exp(y)).score(X, np.exp(y)) > 0.5
    )


@needs_extension
def test_a_plan_takes_the_table_and_changes_nothing():
    X, y = table()
    model = GPRegressor(encode="auto")
    assert model.plan(X, y).chosen is not None
    assert not hasattr(model, "encoder_")
    assert not hasattr(model, "n_features_in_")
