"""The warning of fits that take a function for noise: when it is given, and that noise alone does not cause it."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone

from gigagp import GPClassifier, GPRegressor, inference
from gigagp.errors import FitWarning
from gigagp.kernels import RBF, Matern
from gigagp.optimization import LBFGS, Adam

FLAT = RBF(1.0, 1e-6, fixed=True)
MESSAGE = "explains the targets as noise: its kernel"


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


@pytest.mark.slow
def test_learning_that_ends_in_the_optimum_of_noise_warns():
    """Inducing points with lengthscales that are far too short begin there."""
    X, y = table(300, 12)
    start = Matern(1.5, 0.02, 0.5)
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(start, inference.SparseVariational(20), LBFGS(30), noise_variance=0.5, random_state=0).fit(X, y)


@pytest.mark.filterwarnings("ignore:Squared errors")  # of few features
@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        (inference.Exact(), LBFGS(20)),
        (inference.Iterative(), Adam(0.1, 3)),
        (inference.Vecchia(5), LBFGS(20)),
        (inference.ComputationAware(20), Adam(0.1, 5)),
        (inference.RandomFeatures(50), LBFGS(5)),
    ],
)
def test_lengthscales_that_are_far_too_short_warn(method, optimizer):
    """No row correlates with another, so that there is no gradient to leave the start by."""
    X, y = table(300, 8)
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(RBF(0.003), method, optimizer, random_state=0).fit(X, y)


@pytest.mark.parametrize(
    ("method", "optimizer"), [(inference.Vecchia(5), LBFGS(5)), (inference.QuadruplyStochastic(50), "auto")]
)
def test_streamed_rows_warn_of_lengthscales_that_are_far_too_short(method, optimizer):
    X, y = table(300, 8)
    gp = GPRegressor(RBF(0.003, fixed=True), method, optimizer, random_state=0)
    with pytest.warns(FitWarning, match=MESSAGE):
        gp.fit_table(lambda: [(X, y)])


def signs(f: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return f > 0.5


def counts(f: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.poisson(np.exp(1 + f))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("estimator", "draw"),
    [
        (GPClassifier(random_state=0), signs),
        (GPRegressor(likelihood="poisson", random_state=0), counts),
        (GPRegressor(likelihood="student-t", random_state=0), lambda f, _: f),
        (GPRegressor(likelihood="laplace", random_state=0), lambda f, _: f),
        (GPRegressor(Matern(nu=1.5), target_transform="auto", random_state=0), lambda f, _: np.exp(f)),
        (GPRegressor(Matern(nu=1.5), noise_variance=np.full(400, 0.01), random_state=0), lambda f, _: f),
    ],
)
def test_lengthscales_that_are_far_too_short_warn_with_other_targets(estimator, draw):
    X, f = table(400, 8)
    y = draw(f, np.random.default_rng(1))
    short = clone(estimator).set_params(kernel=RBF(0.003), optimizer=LBFGS(10))
    with pytest.warns(FitWarning, match=MESSAGE):
        short.fit(X, y)
    estimator.fit(X, y)  # the control: warnings are errors
    short.fit(X, np.random.default_rng(2).permutation(y))  # and there is nothing to find here


def test_duplicates_do_not_hide_lengthscales_that_are_far_too_short():
    X, y = table(300, 8)
    X, y = np.concatenate([X, X[:60]]), np.concatenate([y, y[:60]])
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(RBF(0.003), inference.Exact(), LBFGS(20), random_state=0).fit(X, y)


@pytest.mark.parametrize("shape", ["far apart", "with a wide gap", "in pairs", "in many dimensions"])
def test_rows_that_are_alone_in_a_good_fit_are_silent(shape):
    random = np.random.default_rng(2)
    X, y = table(200, 12 if shape == "in many dimensions" else 2)
    if shape == "far apart":
        X[:60] = random.uniform(-500, 500, (60, 2))
        y[:60] = random.normal(size=60)
    elif shape == "with a wide gap":
        X[:100] += 1e3
    elif shape == "in pairs":
        X[:100] = X[100:] + 1e-9
        y[:100] = y[100:]
    GPRegressor(RBF(0.5), inference.Exact(), LBFGS(50), random_state=0).fit(X, y)


@pytest.mark.each
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


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_constant_targets_whose_variance_is_zero_in_float32_are_silent(dtype):
    """Correlations were zero by zero, and the fit ended in torch's RuntimeError."""
    X = np.full((7, 1), 3.0)
    gp = GPRegressor(inference=inference.SparseVariational(1), mean="linear", dtype=dtype).fit(X, np.zeros(7))
    np.testing.assert_array_equal(gp.predict(X), np.zeros(7))
