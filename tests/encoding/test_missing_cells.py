"""Rows with missing cells have noise of their own, so that they and complete rows have the right error bars."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.encoding import TableEncoder
from gigagp.inference.registry import registered

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


@pytest.mark.few(3)
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


@pytest.mark.parametrize("rule", ["average", "choose", "auto"])
def test_rules_for_the_kernel_keep_it(rule):
    X, y = table(150, 0)
    new, targets = table(1500, 1)
    complete, others = coverage(GPRegressor(rule, encode="auto").fit(X, y), new, targets)
    assert 0.9 < complete < 0.99
    assert others > 0.85


def test_the_posterior_is_that_of_dense_algebra_with_noise_by_row():
    X, y = table(120, 2)
    gp = GPRegressor(encode="auto", mean="zero").fit(X, y)
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
    labels = GPClassifier(encode="auto").fit(X, y > 0)
    assert not any(leaf.is_white for leaf in labels.latent_.kernel_.leaves())
    assert {type(one) for one in METHODS} <= set(registered().values())


def test_missing_cells_that_tell_nothing_cost_nothing():
    """An input that does not matter: its rows are as certain as others."""
    X, y = table(350, 4, share=0.0)
    X["idle"] = np.where(np.arange(350) % 4 == 0, np.nan, np.random.default_rng(0).normal(size=350))
    gp = GPRegressor(encode="auto").fit(X, y)
    _, std = gp.predict(X, return_std=True, include_noise=True)
    gone = X["idle"].isna().to_numpy()
    assert np.median(std[gone]) < 1.15 * np.median(std[~gone])
