"""Targets without noise: the least noise that is learned, its derivatives, and fits that had no factor without it."""

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels
from gigagp.errors import NotPositiveDefiniteError
from gigagp.inference import Exact, Iterative, QuadruplyStochastic
from gigagp.inference.contract.least_noise import with_least_noise
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

SHARE = "gigagp.inference.contract.least_noise._LEAST_SHARE"


def inputs(kind: str, n: int) -> np.ndarray:
    """Return rows in three columns: even, in clumps, repeated, or with one badly scaled column."""
    random = np.random.default_rng(1)
    X = random.uniform(size=(n, 3))
    if kind == "clumped":
        X = random.uniform(size=(n // 20 + 1, 3)).repeat(20, 0)[:n] + 0.01 * random.normal(size=(n, 3))
    if kind == "repeated":
        X[n // 2 :] = X[: n - n // 2]
    return X * [1.0, 1e6, 1e-4] if kind == "scaled" else X


def function(X: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return a smooth function of inputs over a scale."""
    U = X / scale
    return np.sin(6 * U[:, 0]) * np.cos(4 * U[:, 1]) + U[:, 2] ** 2


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["even", "clumped", "repeated", "scaled"])
@pytest.mark.parametrize("inference", [Exact(), Iterative()], ids=["exact", "iterative"])
def test_a_function_without_noise_is_learned(kind, inference):
    X = inputs(kind, 600)
    y = function(X, scale := np.array([1.0, 1e6, 1e-4]) if kind == "scaled" else np.ones(3))
    train, test = np.arange(600) < 500, np.arange(600) >= 500
    gp = GPRegressor(kernels.Matern(2.5), inference, random_state=0).fit(X[train], y[train])
    mean, std = gp.predict(X[test], return_std=True, include_noise=True)
    assert np.abs(mean - function(X[test], scale)).max() < 0.05 * y.std()
    assert np.mean(((y[test] - mean) / std) ** 2) < 4


def smooth_model() -> Model:
    """Return a model with far less noise than a factor in float64 allows."""
    return Model(kernels.RBF([20.0, 25.0, 200.0], 1e6).bind(3), ZeroMean(), torch.tensor(1e-12).double())


def test_the_matrix_has_a_factor_with_the_least_noise_and_none_without():
    X = inputs("even", 800)
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(function(X, np.ones(3)))[:, None], ZeroMean(), 2**34)
    model, objective = smooth_model(), ExactObjective(table)
    raised = objective.start(model)
    assert raised.noise_variance == pytest.approx(16 * 2.0**-52 * 800 * 1e6)
    assert with_least_noise(raised, table.X) is raised
    assert np.isfinite(objective.evaluate(model).value)
    assert torch.isfinite(objective.learned_posterior(model, torch.Generator()).mean(table.X)).all()
    with pytest.raises(NotPositiveDefiniteError):  # the control: a model that is given
        objective.posterior(model)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Matern(1.5, 0.7, 2.0),
        kernels.RBF([0.4, 0.5, 0.6]) + kernels.Linear(0.3),
        kernels.RBF(1.0) * kernels.Linear(),
    ],
    ids=["one", "sum", "product"],
)
def test_derivatives_are_those_of_the_value_below_the_least_noise(kernel, monkeypatch):
    monkeypatch.setattr(SHARE, 1e-4)
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 3)))
    table = TrainingTable(X, torch.sin(2 * X[:, :1]) + 0.3 * X[:, 1:2], ZeroMean(), 2**30)
    model, objective = Model(kernel.bind(3), ZeroMean(), torch.tensor(1e-9).double()), ExactObjective(table)
    found = objective.evaluate(model).gradient
    assert found["noise_variance"] >= 0
    for name, value in model.kernel.parameters().items():
        for place in range(value.numel()):
            step = torch.zeros_like(value).reshape(-1)
            step[place] = 1e-5
            up, down = (objective.value(model.replace({name: value + s * step.reshape(value.shape)})) for s in (1, -1))
            assert float(found[name].reshape(-1)[place]) == pytest.approx((up - down) / 2e-5, rel=1e-5, abs=1e-5)
    held = model.replace({"noise_variance": objective.start(model).noise_variance})  # the control: the same, but fixed
    variance = next(name for name in found if name.endswith("variance") and name != "noise_variance")
    monkeypatch.setattr(SHARE, 0.0)
    assert abs(float(objective.evaluate(held).gradient[variance] - found[variance])) > 1e-3


def test_noise_that_is_given_stays():
    X = inputs("even", 50)
    y = function(X, np.ones(3))
    for inference in (Exact(), Iterative()):
        gp = GPRegressor(kernels.Matern(0.5), inference, None, noise_variance=1e-18).fit(X, y)
        assert gp.noise_variance_ == pytest.approx(1e-18)


@pytest.mark.slow
@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_functions_seen_at_once_learn_the_noise_that_they_leave(nu):
    """With a few steps the error bars of functions were tens to thousands of times too small, without a warning."""
    X = np.random.default_rng(0).uniform(size=(500, 3))
    y = function(X, np.ones(3))
    gp = GPRegressor(kernels.Matern(nu), QuadruplyStochastic(), random_state=0).fit(X[:400], y[:400])
    mean, std = gp.predict(X[400:], return_std=True, include_noise=True)
    assert np.mean(((y[400:] - mean) / std) ** 2) < 4
