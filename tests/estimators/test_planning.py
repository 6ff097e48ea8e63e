"""The choice of inference="auto", and its boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators.planning import EXACT_ROWS, resolve_inference
from gigagp.inference import Exact, Iterative, Markov
from gigagp.inference.automatic import Automatic
from gigagp.model.likelihoods import StudentT
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

PLENTY = 2**40


def test_the_rule():
    assert resolve_inference("auto", 2, 8, PLENTY) == Exact()
    assert resolve_inference("auto", EXACT_ROWS, 8, PLENTY) == Exact()
    assert resolve_inference("auto", EXACT_ROWS + 1, 8, PLENTY) == Automatic()


def test_one_input_is_passed_along_where_the_kernel_has_states():
    def chosen(kernel, n_inputs=1, n_rows=1001, budget=PLENTY, likelihood=None):
        model = Model(kernel.bind(n_inputs), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
        rows = np.linspace(0, 1, n_rows * n_inputs).reshape(n_rows, n_inputs)
        return resolve_inference("auto", n_rows, 8, budget, likelihood, model=model, rows=lambda: rows)

    assert chosen(kernels.Matern()) == Markov()
    assert chosen(kernels.Matern() + kernels.White(), n_rows=10**6) == Markov()
    assert chosen(kernels.Matern(), n_rows=1000) == Exact()
    assert chosen(kernels.Matern(), n_inputs=2) == Exact()
    assert chosen(kernels.RBF()) == Exact()
    assert chosen(kernels.Matern(), likelihood=StudentT()) == Exact()
    assert chosen(kernels.Periodic(0.3) * kernels.Matern()) == Exact()  # states of 110 numbers
    assert chosen(kernels.Matern(), n_rows=10**6, budget=10**7) == Automatic()


def test_a_fit_takes_states_only_of_a_given_kernel_in_float64():
    t = np.linspace(0, 30, 1001)[:, None]
    y = np.sin(t[:, 0])
    assert GPRegressor(optimizer=None).fit(t, y).inference_ == Markov()
    assert GPRegressor(optimizer=None, dtype="float32").fit(t, y).inference_ == Exact()
    assert GPRegressor(optimizer=None).fit(np.hstack([t, t]), y).inference_ == Exact()


@pytest.mark.parametrize("itemsize", [4, 8])
def test_what_does_not_fit_is_not_factorised(itemsize):
    needed = 3 * 1000**2 * itemsize
    assert resolve_inference("auto", 1000, itemsize, needed) == Exact()
    assert resolve_inference("auto", 1000, itemsize, needed - 1) == Automatic()


def test_what_is_given_is_kept():
    settings = Iterative(n_samples=3)
    assert resolve_inference(settings, 10, 8, PLENTY) is settings
    assert resolve_inference(Exact(), 10**9, 8, 1) == Exact()


@pytest.mark.parametrize("wrong", ["exact", None, Exact, 3])
def test_anything_else_is_refused(wrong):
    with pytest.raises(InvalidInputError, match=r'inference of GPRegressor must be "auto" or one of gigagp.inference'):
        resolve_inference(wrong, 10, 8, PLENTY)
