"""The warning of fits that take a function for noise: when it is given, and that noise alone does not cause it."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor, inference
from gigagp.errors import FitWarning
from gigagp.kernels import RBF, Matern
from gigagp.optimization import LBFGS

FLAT = RBF(1.0, 1e-6, fixed=True)
MESSAGE = "explains the targets as noise and is flat"


def table(n: int, d: int = 2, *, noise: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.uniform(size=(n, d))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + noise * random.normal(size=n)


def fit_flat(X: np.ndarray, y: np.ndarray, *, flat: bool = True, mean: str = "constant") -> GPRegressor:
    """Fit with a kernel that cannot explain anything, or with one that can; the noise is learned."""
    return GPRegressor(FLAT if flat else RBF(0.5, 1.0), mean=mean, optimizer=LBFGS(5), random_state=0).fit(X, y)


@pytest.mark.parametrize("units", [1.0, 1e6])
@pytest.mark.parametrize("n", [60, 7000])
def test_a_flat_fit_to_a_function_warns(n, units):
    X, y = table(n)
    gp = GPRegressor(FLAT, inference.Vecchia(5), LBFGS(5), random_state=0)
    with pytest.warns(FitWarning, match=MESSAGE):
        gp.fit(X * np.array([units, 1.0]), units * y)


def test_constant_inputs_and_duplicate_rows_hide_no_function():
    X, y = table(100)
    X = np.column_stack([X, np.full(100, 0.1)]).repeat(6, axis=0)
    gp = GPRegressor(FLAT, optimizer=LBFGS(5), standardize=False, random_state=0)
    with pytest.warns(FitWarning, match=MESSAGE):
        gp.fit(X, y.repeat(6))


def test_one_function_among_several_targets_warns():
    X, y = table(200)
    with pytest.warns(FitWarning, match=MESSAGE):
        fit_flat(X, np.column_stack([np.random.default_rng(1).normal(size=200), y]))


def test_learning_that_ends_in_the_optimum_of_noise_warns():
    """Inducing points with lengthscales that are far too short begin there."""
    X, y = table(300, 12)
    start = Matern(1.5, 0.02, 0.5)
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(start, inference.SparseVariational(20), LBFGS(30), noise_variance=0.5, random_state=0).fit(X, y)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n", [12, 40, 400])
def test_a_flat_fit_to_noise_is_silent(n, seed):
    X, _ = table(n, seed=seed)
    y = np.random.default_rng(100 + seed).normal(size=n)
    assert fit_flat(X, y).noise_variance_ == pytest.approx(y.var(), rel=0.1)


@pytest.mark.parametrize("n", [2, 4])
def test_a_flat_fit_to_very_few_rows_is_silent(n):
    fit_flat(*table(n))


def test_a_function_that_the_mean_explains_is_silent():
    X, _ = table(300)
    y = 3 * X[:, 0] + 0.1 * np.random.default_rng(1).normal(size=300)
    fit_flat(X, y, mean="linear")
    with pytest.warns(FitWarning, match=MESSAGE):  # the control
        fit_flat(X, y)


def test_a_fit_that_finds_the_function_is_silent():
    fit_flat(*table(200), flat=False)
