"""Prior means."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gigagp import means
from gigagp.errors import InvalidInputError
from gigagp.model.means import ConstantMean, FixedMean, resolve_mean
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
        (lambda: means.from_dict({"mean": "FixedMean"}), "names a mean that is not gigagp's: 'FixedMean'"),
        (lambda: means.from_dict({}), "must name one of"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()
