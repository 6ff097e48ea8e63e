"""Warnings of predicted variances that are too small, beside dense algebra."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference
from gigagp.errors import FitWarning
from gigagp.estimators.fit_checks import small_variances
from gigagp.inference.contract.base import Inference
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import RBF, Kernel, Matern, White

METHODS_OF_FUNCTIONS = {
    "functions": lambda m: inference.QuadruplyStochastic(n_basis=m),
    "inducing points": lambda m: inference.SparseVariational(n_inducing=m, batch_size=None),
}
#: Two methods whose covariance is that of m weights.
WEIGHTS: dict[str, Callable[[int], Inference]] = {
    "features": lambda m: inference.RandomFeatures(n_features=m),
    "functions": lambda m: inference.QuadruplyStochastic(n_basis=m, n_columns=m),
}
LATENT = "Squared errors of the latent function"


def rows_like(kind: str, n: int, d: int, random: np.random.Generator) -> np.ndarray:
    X = random.uniform(size=(n, d))
    if kind == "gap":
        X[:, 0] = np.where(X[:, 0] < 0.5, 0.6 * X[:, 0], 0.4 + 0.6 * X[:, 0])
    elif kind == "clumps":
        X = X[random.integers(0, n // 20, n)] + 0.02 * random.normal(size=(n, d))
    elif kind == "repeated":
        X = X[random.integers(0, n // 3, n)]
    return X * 10.0 ** np.arange(d)  # badly scaled


def drawn(kernel: Kernel, X: np.ndarray, noise: float, targets: int, random: np.random.Generator) -> np.ndarray:
    """Return draws of the process at rows, with noise, shape (n, t)."""
    K = kernel.block(torch.from_numpy(X), torch.from_numpy(X)).numpy()
    root = np.linalg.cholesky(K + 1e-8 * np.eye(len(X)))
    return root @ random.normal(size=(len(X), targets)) + np.sqrt(noise) * random.normal(size=(len(X), targets))


def fitted(kernel: Kernel, method: Inference, X: np.ndarray, Y: np.ndarray, noise: float) -> GPRegressor:
    settings = {"noise_variance": noise, "standardize": False, "mean": "zero", "random_state": 0, "outputs": "shared"}
    gp = GPRegressor(kernel, method, None, **settings)
    return gp.fit(X, Y)


def table_of(gp: GPRegressor, X: np.ndarray, Y: np.ndarray) -> TrainingTable:
    return TrainingTable(torch.from_numpy(X), torch.from_numpy(Y), gp.posterior_.model.mean, 2**30)


def dense_ratio(
    gp: GPRegressor, kernel: Kernel, X: np.ndarray, Y: np.ndarray, noise: float, points: np.ndarray
) -> float:
    """Return expected squared errors over predicted variances, by dense algebra."""

    def block(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return kernel.block(torch.from_numpy(one), torch.from_numpy(other)).numpy()

    H, cross = block(X, X) + noise * np.eye(len(X)), block(X, points)
    variance = np.diag(block(points, points)) - (cross * np.linalg.solve(H, cross)).sum(0)
    mean, std = gp.predict(points, return_std=True)
    errors = (mean.reshape(len(points), -1) - cross.T @ np.linalg.solve(H, Y)) ** 2 + variance[:, None]
    return float((errors / std.reshape(len(points), -1) ** 2).mean(0).max())


@pytest.mark.few(1)
@pytest.mark.parametrize("noise", ["one", "rows", "white"])
@pytest.mark.parametrize("name", ["functions", "inducing points"])
def test_a_fit_warns_where_its_functions_cannot_follow_the_targets(name, noise):
    """Squared errors of new values are larger than predicted too, and with more functions they are not."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(500, 1))
    kernel, variance = RBF(0.03), 1e-3
    y = drawn(kernel, X, variance, 1, rng)[:, 0]
    given = {"one": variance, "rows": np.full(400, variance), "white": 0.0}[noise]
    kernel = kernel + White(variance) if noise == "white" else kernel

    def squares(m: int) -> float:
        gp = fitted(kernel, METHODS_OF_FUNCTIONS[name](m), X[:400], y[:400], given)
        mean, std = gp.predict(X[400:], return_std=True)
        return float(np.mean((y[400:] - mean) ** 2 / (std**2 + variance)))

    with pytest.warns(FitWarning, match="Squared errors at training rows are .* times the predicted variances"):
        assert squares(20) > 2
    assert squares(400 if name == "inducing points" else 2000) < 1.5  # the control: no warning, as warnings are errors


@pytest.mark.pairs
@pytest.mark.filterwarnings("ignore:Squared errors")
@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("kind", ["even", "gap", "clumps", "repeated"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_latent_errors_are_those_of_dense_algebra(name, kind, targets):
    random = np.random.default_rng(1)
    X, kernel = rows_like(kind, 200, 2, random), Matern(1.5, [0.3, 3.0])
    Y = drawn(kernel, X, 0.1, targets, random)
    gp = fitted(kernel, WEIGHTS[name](60), X, Y, 0.1)
    points = small_variances._points_between(kernel, torch.from_numpy(X), 64, torch.Generator().manual_seed(0)).numpy()
    expected = dense_ratio(gp, kernel, X, Y, 0.1, points)
    assert small_variances.latent_errors(table_of(gp, X, Y), gp.posterior_) == pytest.approx(expected, rel=1e-3)
    assert expected > 2


@pytest.mark.parametrize("kind", ["even", "gap", "clumps", "repeated"])
def test_the_exact_posterior_has_the_errors_that_it_predicts(kind):
    random = np.random.default_rng(2)
    X, kernel = rows_like(kind, 200, 2, random), Matern(1.5, [0.3, 3.0])
    Y = drawn(kernel, X, 0.01, 1, random)
    gp = fitted(kernel, inference.Exact(), X, Y, 0.01)
    assert small_variances.latent_errors(table_of(gp, X, Y), gp.posterior_) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_fit_warns_where_latent_variances_are_too_small(name):
    """The noise hides it at the rows; with more functions there is nothing to warn of."""
    random = np.random.default_rng(3)
    X, kernel = random.uniform(size=(400, 2)), Matern(1.5, 0.3)
    Y = drawn(kernel, X, 0.1, 1, random)
    with pytest.warns(FitWarning, match=f"{LATENT}.* expected to be .* times the predicted variances"):
        fitted(kernel, WEIGHTS[name](40), X, Y, 0.1)
    fitted(kernel, WEIGHTS[name](2000), X, Y, 0.1)  # the control: no warning, as warnings are errors


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors")
@pytest.mark.parametrize("kind", ["even", "clumps"])
def test_nearest_rows_tell_the_errors_in_a_large_table(kind):
    random = np.random.default_rng(4)
    X, kernel = rows_like(kind, 2500, 2, random), Matern(0.5, [0.3, 3.0])
    Y = drawn(kernel, X, 0.1, 1, random)
    gp = fitted(kernel, inference.RandomFeatures(n_features=100), X, Y, 0.1)
    points = small_variances._points_between(kernel, torch.from_numpy(X), 300, torch.Generator().manual_seed(5)).numpy()
    found = small_variances.latent_errors(table_of(gp, X, Y), gp.posterior_)
    assert found > small_variances._LATENT
    assert 0.4 < found / dense_ratio(gp, kernel, X, Y, 0.1, points) < 2.5  # 64 points at two places


def test_points_at_which_far_rows_matter_do_not_count():
    """Of a smooth function with noise the nearest thousand rows know much less than all do, which is no fault."""
    random = np.random.default_rng(6)
    X, kernel = random.uniform(size=(3000, 1)), RBF(3.0)
    Y = np.sin(X) + random.normal(size=X.shape)
    gp = fitted(kernel, inference.SparseVariational(n_inducing=40, batch_size=None), X, Y, 1.0)
    table = table_of(gp, X, Y)
    assert small_variances.latent_errors(table, gp.posterior_) == 0.0
    near = small_variances.most_correlated(kernel, table.X[[1500]], table.X, 1000, 2**30).rows[0]
    points = small_variances._points_between(kernel, table.X[near[:100]], 64, torch.Generator().manual_seed(0))
    of_near = dense_ratio(gp, kernel, X[near], Y[near], 1.0, points.numpy())
    assert of_near > 1.5  # the control: they would count as errors


@pytest.mark.slow
def test_a_fit_without_errors_and_without_variances_does_not_warn():
    X = np.array([[0.0], [1.0]])
    method = inference.SparseVariational(n_inducing=2, batch_size=None)
    GPRegressor(Matern(nu=1.5), inference=method, mean="linear", dtype="float32", random_state=0).fit(
        1e6 * X, 1e6 * X[:, 0]
    )


def test_rows_in_groups_are_compared_within_groups():
    """Rows of thirty people, measured at close times: between two people, few features know as little as the kernel."""
    random = np.random.default_rng(7)
    person = random.integers(0, 30, 300)
    X = np.stack([person, random.uniform(size=300)], 1)
    kernel = Matern(1.5, [0.1, 0.5])
    Y = drawn(kernel, X, 1e-3, 1, random)
    with pytest.warns(FitWarning, match="Squared errors"):
        gp = fitted(kernel, inference.RandomFeatures(n_features=1000), X, Y, 1e-3)
    within = np.stack([person[:100], random.uniform(size=100)], 1)
    assert dense_ratio(gp, kernel, X, Y, 1e-3, within) > 10
    apart = np.stack([person[:100] + 0.5, random.uniform(size=100)], 1)
    assert dense_ratio(gp, kernel, X, Y, 1e-3, apart) < 2  # the control: points between people would not show it


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("noise", "optimizer"), [(1e-2, None), (1e-4, None), pytest.param(1e-2, "auto", marks=pytest.mark.slow)]
)
def test_relevance_vectors_with_less_noise_than_they_leave_out_warn(noise, optimizer):
    """Between the rows errors were ten to sixty predicted deviations, without a word."""
    rng = np.random.default_rng(0)
    parts = rng.uniform(0, 1, (20, 1)), 0.5 + 1e-3 * rng.normal(size=(10, 1)), 2 + 1e-2 * rng.normal(size=(10, 1))
    X = np.concatenate(parts)
    y = np.sin(4 * X[:, 0]) + 1e-4 * rng.normal(size=40)
    kernel = RBF(0.3) if optimizer is None else None
    with pytest.warns(FitWarning, match="its standard deviations are too small"):
        GPRegressor(kernel, inference.RelevanceVectorMachine(), optimizer, noise_variance=noise).fit(X, y)


@pytest.mark.slow
def test_relevance_vectors_with_noise_do_not_warn():
    """The control: learned noise has what they leave out."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1))
    GPRegressor(inference=inference.RelevanceVectorMachine()).fit(X, np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=60))
