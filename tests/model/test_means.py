"""Prior means."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, means
from gigagp.errors import InvalidInputError
from gigagp.model.means import ConstantMean, FixedMean, LinearMean, resolve_mean
from helpers import DTYPES, points


@pytest.mark.parametrize("dtype", DTYPES)
def test_bases(dtype):
    X = points(6, 3, dtype=dtype)
    assert resolve_mean("zero").basis(X).shape == (6, 0)
    assert torch.equal(resolve_mean("constant").basis(X), torch.ones(6, 1, dtype=dtype))
    linear = resolve_mean("linear").basis(X)
    assert linear.dtype == dtype
    assert torch.equal(linear[:, 0], torch.ones(6, dtype=dtype))
    assert torch.equal(linear[:, 1:], X)


def test_slopes_of_some_inputs_alone():
    """The coefficients of generalised least squares on a constant and the chosen input, also from a saved model."""
    X = points(6, 3)
    assert torch.equal(LinearMean([2, 0]).basis(X), torch.stack([torch.ones(6), X[:, 2], X[:, 0]], 1).double())
    source = np.random.default_rng(0)
    X, Z = source.normal(size=(40, 3)) * [1.0, 10.0, 100.0] + 50.0, source.normal(size=(5, 3)) + 50.0
    y = 0.3 * X[:, 2] + np.sin(X[:, 0]) + 0.1 * source.normal(size=40)
    kernel = kernels.Matern(1.5, 2.0, 1.0, ard=False, columns=[0, 1])
    gp = GPRegressor(kernel, inference.Exact(), noise_variance=0.01, optimizer=None, mean=LinearMean([2])).fit(X, y)
    bound = kernel.bind(3)
    H = bound.block(*[torch.from_numpy(X)] * 2).numpy() + 0.01 * np.eye(40)
    F, cross = np.c_[np.ones(40), X[:, 2]], bound.block(torch.from_numpy(Z), torch.from_numpy(X)).numpy()
    slopes = np.linalg.solve(F.T @ np.linalg.solve(H, F), F.T @ np.linalg.solve(H, y))
    expected = np.c_[np.ones(5), Z[:, 2]] @ slopes + cross @ np.linalg.solve(H, y - F @ slopes)
    assert np.allclose(gp.predict(Z), expected, rtol=0, atol=1e-8)
    assert (
        abs(
            GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | (gp.get_params(deep=False) | {"mean": "linear"}))
            .fit(X, y)
            .predict(Z)
            - expected
        ).max()
        > 0.01
    )


def test_slopes_of_some_inputs_are_saved(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    gp = GPRegressor(kernels.RBF(), optimizer=None, mean=LinearMean([2])).fit(X, X[:, 2])
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.mean == LinearMean([2])
    assert (again.predict(X) == gp.predict(X)).all()


@pytest.mark.parametrize("name", ["zero", "constant", "linear"])
def test_learned_means_have_no_known_part(name):
    assert not resolve_mean(name).offset(points(6, 3).numpy()).any()


def test_a_function_is_the_known_part():
    mean = resolve_mean(lambda X: np.sin(X[:, 0]))
    X = points(5, 2)
    assert np.array_equal(mean.offset(X.numpy()), np.sin(X[:, 0].numpy()))
    assert mean.basis(X).shape == (5, 0)
    whole_numbers = resolve_mean(lambda X: np.arange(len(X))).offset(X.numpy())
    assert whole_numbers.dtype == np.float64


@pytest.mark.parametrize(
    "function",
    [lambda X: 0.0, lambda X: X, lambda X: np.full(len(X), np.nan), lambda X: ["a"] * len(X), lambda X: 1j * X[:, 0]],
)
def test_functions_must_return_one_number_a_row(function):
    with pytest.raises(InvalidInputError, match="must return 5 finite numbers"):
        resolve_mean(function).offset(points(5, 2).numpy())


@pytest.mark.parametrize("name", ["zero", "constant", "linear"])
def test_descriptions(name):
    mean = resolve_mean(name)
    assert type(means.from_dict(json.loads(json.dumps(means.describe(mean))))) is type(mean)


def test_a_mean_is_taken_as_it_is():
    mean = ConstantMean()
    assert resolve_mean(mean) is mean
    assert repr(mean) == "ConstantMean()"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: resolve_mean("quadratic"), "mean of GPRegressor must be"),
        (lambda: resolve_mean(1.0), "mean of GPRegressor must be"),
        (lambda: means.describe(FixedMean(lambda X: X[:, 0])), "cannot be saved with a model: it has no name"),
        (lambda: FixedMean(3.0), "must be callable"),
        (lambda: LinearMean([0, 0]), "columns of LinearMean must be different"),
        (lambda: LinearMean("ab"), "columns of LinearMean must be a list of integers"),
        (lambda: LinearMean([3]).basis(points(5, 3)), "columns of LinearMean must be below 3"),
        (lambda: means.from_dict({"mean": "linear", "settings": {"rows": 3}}), "arguments that it does not take"),
        (lambda: means.from_dict({"mean": "zero", "settings": 3}), "arguments that it does not take"),
        (lambda: means.from_dict({"mean": "FixedMean"}), "names a mean that is not gigagp's: 'FixedMean'"),
        (lambda: means.from_dict({}), "must name one of"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()
