"""Rows with missing cells have noise of their own, so that they and complete rows have the right error bars."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.inference.registry import registered
from gigagp.tables.encoding import TableEncoder

NOISE = 0.3


def table(n: int, seed: int, share: float = 0.15) -> tuple[pd.DataFrame, np.ndarray]:
    """Two numbers, of which the first matters most and is missing in some rows, and a category."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    city = rng.integers(0, 3, size=n)
    y = 4 * np.sin(1.5 * X[:, 0]) + 3 * X[:, 0] + X[:, 1] + city + NOISE * rng.normal(size=n)
    X[rng.random(n) < share, 0] = np.nan
    return pd.DataFrame({"x": X[:, 0], "z": X[:, 1], "city": np.array(["Bern", "Oslo", "Rome"])[city]}), y


def coverage(gp: GPRegressor, X: pd.DataFrame, y: np.ndarray) -> tuple[float, float]:
    """Return the shares of complete and of other rows that lie within two predicted standard deviations."""
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    inside, gone = np.abs(y - mean) < 2 * std, X["x"].isna().to_numpy()
    return inside[~gone].mean(), inside[gone].mean()


METHODS = [
    inference.Exact(),
    inference.Iterative(),
    inference.Vecchia(),
    inference.SparseVariational(n_inducing=100),
    inference.ComputationAware(n_actions=100),
    inference.QuadruplyStochastic(),
    inference.RandomFeatures(),
]


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # of few features
@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_error_bars_of_complete_and_of_other_rows(method):
    X, y = table(350, 0)
    new, targets = table(1500, 1)
    gp = GPRegressor(inference=method, encode="auto").fit(X, y)
    complete, others = coverage(gp, new, targets)
    assert 0.91 < complete < 0.985
    assert others > 0.88
    _, std = gp.predict(new, return_std=True, include_noise=True)
    gone = new["x"].isna().to_numpy()
    assert np.median(std[~gone]) < 2 * NOISE
    assert np.median(std[gone]) > 3
    assert re.search(r"noise +standard deviation 0\.[23]\d+ in complete rows; [456]\.\d+ without 'x'\n", gp.describe())


def test_one_noise_for_all_rows_is_wrong_for_both():
    """The control: the same kernel without noise of its own for these rows."""
    X, y = table(350, 0)
    new, targets = table(1500, 1)
    gp = GPRegressor(kernels.Matern(1.5), encode="auto").fit(X, y)
    complete, others = coverage(gp, new, targets)
    assert complete > 0.999
    assert others < 0.8
    assert "complete rows" not in gp.describe()


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", ["average", "choose", "auto"])
def test_rules_for_the_kernel_keep_it(rule):
    X, y = table(150, 0)
    new, targets = table(1500, 1)
    complete, others = coverage(GPRegressor(rule, encode="auto").fit(X, y), new, targets)
    assert 0.9 < complete < 0.99
    assert others > 0.85


def test_the_posterior_is_that_of_dense_algebra_with_noise_by_row():
    X, y = table(120, 2)
    gp = GPRegressor(encode="auto", mean="zero", hyperparameters="learned").fit(X, y)
    kernel, rows = gp.kernel_, torch.from_numpy(gp.encoder_.transform(X))
    ((_, mark),) = gp.encoder_.marks
    extra = float(kernel.parameters()["1.0.variance"])
    noise = gp.noise_variance_ + extra * rows[:, mark]
    K = kernel.block(rows, rows)
    new, _ = table(20, 3)
    points = torch.from_numpy(gp.encoder_.transform(new))
    cross, centre = kernel.block(points, rows), y.mean()
    H = K + torch.diag(noise)
    mean = centre + cross @ torch.linalg.solve(H, torch.from_numpy(y - centre))
    latent = kernel.diagonal(points) - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    found, std = gp.predict(new, return_std=True, include_noise=True)
    np.testing.assert_allclose(found, mean, rtol=0, atol=1e-8)
    expected = latent + gp.noise_variance_ + extra * points[:, mark]
    np.testing.assert_allclose(std**2, expected, rtol=1e-7)


@pytest.mark.slow
def test_it_comes_back_from_a_file(tmp_path):
    X, y = table(120, 2)
    gp = GPRegressor(encode="auto").fit(X, y)
    gp.save(tmp_path / "model.gp")
    new, _ = table(20, 3)
    back = gigagp.load(tmp_path / "model.gp")
    np.testing.assert_array_equal(back.predict(new, return_std=True), gp.predict(new, return_std=True))
    assert back.describe() == gp.describe()


def test_marks_are_the_columns_of_missing_cells():
    n = 40
    gone = np.arange(n) % 3 == 0
    few = np.arange(n) < 9
    texts = np.array(["a", "b"])[np.arange(n) % 2].astype(object)
    days = pd.Series(pd.date_range("2020-01-01", periods=n, freq="30D"))
    X = pd.DataFrame(
        {
            "few": np.where(few, np.nan, np.arange(n) ** 2.0),
            "number": np.where(gone, np.nan, np.arange(n)),
            "text": np.where(gone, None, texts),
            "day": days.mask(gone),
            "only": np.where(gone, np.nan, 1.0),
        }
    )
    encoder = TableEncoder.fit(X)
    assert [label for label, _ in encoder.marks] == ["number", "text", "day", "only"]
    encoded = encoder.transform(X)
    for _, mark in encoder.marks:
        np.testing.assert_array_equal(encoded[:, mark], gone)
    assert TableEncoder.fit(X[["few"]]).noise() is None
    assert TableEncoder.from_plain(encoder.to_plain(), encoder.n_encoded).marks == encoder.marks


@pytest.mark.slow
def test_what_is_given_stays():
    """A kernel or a noise variance of the user's own, an inference without such noise, and classes."""
    X, y = table(120, 2)

    def is_noisy(**given):
        return any(leaf.is_white for leaf in GPRegressor(encode="auto", **given).fit(X, y).kernel_.leaves())

    assert is_noisy()
    assert not is_noisy(kernel=kernels.RBF())
    assert not is_noisy(noise_variance=0.1)
    assert not is_noisy(likelihood="student-t")
    numbers = X[["x"]]
    gp = GPRegressor(inference=inference.Grid(size=50), encode="auto").fit(numbers, y)
    assert not any(leaf.is_white for leaf in gp.kernel_.leaves())
    labels = GPClassifier(kernels.RBF(), encode="auto").fit(X, y > 0)
    assert not any(leaf.is_white for leaf in labels.latent_.kernel_.leaves())
    assert {type(one) for one in METHODS} <= set(registered().values())


@pytest.mark.slow
def test_missing_cells_that_tell_nothing_cost_nothing():
    """An input that does not matter: its rows are as certain as others."""
    X, y = table(350, 4, share=0.0)
    X["idle"] = np.where(np.arange(350) % 4 == 0, np.nan, np.random.default_rng(0).normal(size=350))
    gp = GPRegressor(encode="auto").fit(X, y)
    _, std = gp.predict(X, return_std=True, include_noise=True)
    gone = X["idle"].isna().to_numpy()
    assert np.median(std[gone]) < 1.15 * np.median(std[~gone])


# Cells that are missing only after the fit --------------------------------------------------------------------------


def complete_table(n: int = 80) -> tuple[pd.DataFrame, np.ndarray]:
    """Two numbers, a date and a category, without missing cells; the first number matters most."""
    rng = np.random.default_rng(5)
    day = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    X = pd.DataFrame(
        {"x": rng.uniform(-2, 2, n), "z": rng.exponential(size=n), "day": day, "city": rng.choice(["Bern", "Oslo"], n)}
    )
    return X, 3 * np.sin(X["x"]) + 0.3 * X["z"] + (X["city"] == "Oslo") + 0.05 * rng.normal(size=n)


def with_holes(X: pd.DataFrame) -> pd.DataFrame:
    """Six rows: one complete, one without each of the numbers and the date, one without two of them, one complete."""
    new = X.iloc[:6].copy()
    new.loc[1, "x"], new.loc[2, "z"], new.loc[3, "day"] = np.nan, np.nan, pd.NaT
    new.loc[4, ["x", "z"]] = np.nan
    return new


def by_hand(gp: GPRegressor, new: pd.DataFrame, X: pd.DataFrame, row: int, columns: list[str]) -> tuple[float, float]:
    """Return mean and std of a row averaged over all values of its missing cells in the fit, independently drawn."""
    rng = np.random.default_rng(0)
    copies = pd.concat([new.iloc[[row]]] * 2000, ignore_index=True)
    for column in columns:
        copies[column] = X[column].to_numpy()[rng.integers(len(X), size=2000)]
    mean, std = gp.predict(copies, return_std=True)
    return mean.mean(), float(np.sqrt(np.mean(std**2) + mean.var()))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:X. column 'x' has")
@pytest.mark.parametrize("kernel", [None, "average"])
def test_a_cell_that_is_missing_after_the_fit_leaves_open_what_it_was(kernel):
    X, y = complete_table()
    gp = GPRegressor(kernel=kernel, encode="auto").fit(X, y)
    new = with_holes(X)
    mean, std = gp.predict(new, return_std=True)
    for row, columns in ((1, ["x"]), (2, ["z"]), (3, ["day"]), (4, ["x", "z"])):
        expected, spread = by_hand(gp, new, X, row, columns)
        assert abs(mean[row] - expected) < 0.15 * spread
        assert std[row] == pytest.approx(spread, rel=0.15)
    at_median = gp.predict(new.assign(x=new["x"].fillna(X["x"].median())).iloc[[1]], return_std=True)[1]
    assert std[1] > 20 * at_median[0]  # what was answered before
    complete, alone = gp.predict(X.iloc[[0, 5]], return_std=True)
    np.testing.assert_allclose((mean[[0, 5]], std[[0, 5]]), (complete, alone), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:X. column")
@pytest.mark.parametrize(
    "options",
    [
        {"inference": inference.Exact()},
        {"inference": inference.Iterative()},
        {"inference": inference.Vecchia(10, 20)},
        {"inference": inference.SparseVariational(n_inducing=40)},
        {"kernel": "average"},
        {"likelihood": "student-t"},
        {"dtype": "float32"},
        {"mean": "linear"},
    ],
    ids=lambda one: str(*one.values()).partition("(")[0],
)
def test_all_answers_about_missing_cells_agree(options, tmp_path):
    X, y = complete_table()
    gp = GPRegressor(encode="auto", optimizer=None, noise_variance=0.01, **options)
    if options.get("kernel") == "average":
        gp.set_params(optimizer="auto", noise_variance=None)
    gp.fit(X, y)
    new = with_holes(X)
    mean, std = gp.predict(new, return_std=True)
    near = 1e-3 if options.get("dtype") == "float32" else 1e-6
    alone = [gp.predict(new.iloc[[k]], return_std=True) for k in range(6)]
    np.testing.assert_allclose(np.array(alone)[:, :, 0], np.stack([mean, std], 1), rtol=near, atol=near)
    centre, covariance = gp.predict(new, return_cov=True)
    np.testing.assert_allclose(centre, mean, rtol=near, atol=near)
    if "inference" not in options or not isinstance(options["inference"], inference.Iterative):  # from samples
        np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=10 * near)
    drawn = gp.sample_y(new, 4000, random_state=1)
    assert (np.abs(drawn.mean(1) - mean) < 5 * std / np.sqrt(4000) + 1e-3).all()
    apart = 0.1
    if isinstance(gp.inference_, inference.Iterative) and gp.posterior_.probe_values is None:
        apart += 4.5 * gp.posterior_.variance_error / 2  # samples alone, without compiled neighbours
    np.testing.assert_allclose(drawn.std(1), std, rtol=apart)
    drawn = gp.sample_functions(64, random_state=1)(new)
    assert (np.abs(drawn.mean(1) - mean) < 5 * std / 8).all()
    low, high = gp.predict_quantile(new, [0.16, 0.84], include_noise=False).T
    np.testing.assert_allclose((high - low)[1:5] / (2 * std[1:5]), 0.9945, atol=0.01)
    density = gp.predictive_log_density(new, mean)
    assert (density[[1, 4]] < density[0] - 1).all()
    gp.save(tmp_path / "m.gp")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "m.gp").predict(new, return_std=True), (mean, std))


@pytest.mark.filterwarnings("ignore:X. column")
def test_missing_cells_of_transformed_targets_and_of_classes():
    X, y = complete_table()
    new = with_holes(X)
    gp = GPRegressor(encode="auto", target_transform="log").fit(X, np.exp(y))
    _, std = gp.predict(new, return_std=True)
    assert std[1] > 5 * std[0]
    np.testing.assert_allclose(np.sqrt(np.diag(gp.predict(new, return_cov=True)[1])), std, rtol=1e-3)
    classes = GPClassifier(kernels.RBF(), encode="auto").fit(X, np.where(y > y.mean(), "high", "low"))
    probability = classes.predict_proba(new)
    assert 0.15 < probability[1, 0] < 0.85


def test_files_from_before_have_the_median_alone():
    X, _ = complete_table()
    plain = TableEncoder.fit(X).to_plain()
    for one in plain:
        one.pop("values", None)
    old = TableEncoder.from_plain(plain, TableEncoder.fit(X).n_encoded)
    with pytest.warns(gigagp.errors.EncodingWarning, match="the median"):
        assert np.isfinite(old.transform(with_holes(X), opens=True)).all()


@pytest.mark.filterwarnings("ignore:X. column")
def test_what_missing_cells_leave_open_is_due_to_the_data():
    X, y = complete_table()
    gp = GPRegressor(encode="auto", inference=inference.Exact(), optimizer=None).fit(X, y)
    new = with_holes(X)
    _, std, parts = gp.predict(new, return_std=True, return_parts=True)
    np.testing.assert_allclose(parts.mathematical, std, rtol=1e-6)
    assert not parts.computational.any()
    assert std[1] > 2 * std[0]
