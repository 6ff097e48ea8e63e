"""Before a fit, an estimator predicts from its prior."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.utils import get_tags

from gigagp import GPClassifier, GPRegressor, kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError

X = np.random.default_rng(0).normal(size=(7, 2))
KERNEL = kernels.RBF([0.7, 1.9], 1.7) + kernels.Linear(0.3)
THEIRS = 1.7 * sk.RBF([0.7, 1.9]) + 0.3 * sk.DotProduct(0.0)


@pytest.mark.parametrize("mean", ["zero", "constant", "linear"])
@pytest.mark.parametrize("standardize", [True, False])
def test_it_is_the_prior_of_scikit_learn_and_of_dense_algebra(mean, standardize):
    gp = GPRegressor(KERNEL, mean=mean, standardize=standardize)
    found, std = gp.predict(X, return_std=True)
    covariance = gp.predict(X, return_cov=True)[1]
    theirs = GaussianProcessRegressor(THEIRS)
    np.testing.assert_array_equal(found, theirs.predict(X))
    np.testing.assert_allclose(std, theirs.predict(X, return_std=True)[1])
    np.testing.assert_allclose(covariance, theirs.predict(X, return_cov=True)[1])
    scaled = X / np.array([0.7, 1.9])
    squares = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    np.testing.assert_allclose(covariance, 1.7 * np.exp(-0.5 * squares) + 0.3 * X @ X.T)
    np.testing.assert_array_equal(gp.predict(X), 0.0)
    parts = gp.predict(X, return_parts=True)[1]
    np.testing.assert_allclose(parts.mathematical, std)
    np.testing.assert_array_equal(parts.computational, 0.0)


def test_samples_have_its_moments():
    gp = GPRegressor(KERNEL)
    covariance = gp.predict(X, return_cov=True)[1]
    error = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / 20_000)
    samples = gp.sample_y(X, 20_000, random_state=1)
    assert samples.shape == (7, 20_000)
    assert (np.abs(samples @ samples.T / 20_000 - covariance) < 5 * error).all()
    assert (np.abs(samples.mean(1)) < 5 * np.sqrt(np.diag(covariance) / 20_000)).all()
    # Control: samples of another kernel do not pass.
    wrong = GPRegressor(kernels.RBF([0.9, 1.9], 1.7) + kernels.Linear(0.3)).sample_y(X, 20_000, random_state=1)
    assert not (np.abs(wrong @ wrong.T / 20_000 - covariance) < 5 * error).all()
    functions = gp.sample_functions(4000, random_state=2)
    values = functions(X)
    assert values.shape == (7, 4000)
    assert (np.abs(values @ values.T / 4000 - covariance) < 6 * error * np.sqrt(5) + 0.1).all()
    np.testing.assert_allclose(functions(X[:3]), values[:3], atol=1e-9)
    with pytest.raises(ValueError, match="features"):
        functions(X[:, :1])


def test_seeds_repeat():
    gp = GPRegressor(KERNEL)
    np.testing.assert_array_equal(gp.sample_y(X, 3, random_state=4), gp.sample_y(X, 3, random_state=4))
    assert not np.array_equal(gp.sample_y(X, 3, random_state=4), gp.sample_y(X, 3, random_state=5))


def test_a_fixed_mean_is_its_mean():
    gp = GPRegressor(KERNEL, mean=lambda points: 3.0 + points[:, 0])
    np.testing.assert_allclose(gp.predict(X), 3.0 + X[:, 0])
    assert abs(gp.sample_y(X, 4000).mean() - (3.0 + X[:, 0]).mean()) < 0.2


def test_noise_is_added_where_it_is_known():
    std = GPRegressor(KERNEL).predict(X, return_std=True)[1]
    given = GPRegressor(KERNEL, noise_variance=0.25, standardize=False)
    np.testing.assert_allclose(given.predict(X, return_std=True, include_noise=True)[1], np.sqrt(std**2 + 0.25))
    white = GPRegressor(KERNEL + kernels.White(0.5))
    np.testing.assert_allclose(white.predict(X, return_std=True)[1], std)
    np.testing.assert_allclose(white.predict(X, return_std=True, include_noise=True)[1], np.sqrt(std**2 + 0.5))
    for unknown in (None, np.full(3, 0.1)):
        gp = GPRegressor(KERNEL, noise_variance=unknown)
        np.testing.assert_allclose(gp.predict(X, return_std=True)[1], std)
        with pytest.raises(
            InvalidInputError, match=r"include_noise of GPRegressor.predict before fit needs one number"
        ):
            gp.predict(X, return_std=True, include_noise=True)


def test_the_estimator_stays_as_it_is():
    gp = GPRegressor(KERNEL)
    before = dict(vars(gp))
    gp.predict(X, return_std=True)
    gp.sample_y(X)
    gp.sample_functions(2)(X)
    assert vars(gp) == before
    # Another number of inputs gives another prior; the estimator does not remember the number.
    assert GPRegressor(kernels.Matern(nu=1.5)).predict(X, return_std=True)[1].shape == (7,)
    fresh = GPRegressor(kernels.Matern(nu=1.5))
    fresh.predict(X)
    fresh.predict(X[:, :1])
    y = np.sin(X[:, 0])
    np.testing.assert_array_equal(fresh.fit(X, y).predict(X), GPRegressor(kernels.Matern(nu=1.5)).fit(X, y).predict(X))


def test_what_a_prior_cannot_tell_needs_a_fit(tmp_path):
    gp = GPRegressor(kernels.Matern(nu=1.5))
    for question in (gp.describe, gp.log_marginal_likelihood, lambda: gp.save(tmp_path / "model.gp")):
        with pytest.raises(NotFittedError):
            question()
    with pytest.raises(NotFittedError):
        GPClassifier().predict(X)
    assert not get_tags(gp).requires_fit


def test_what_cannot_be_used_is_refused():
    gp = GPRegressor(KERNEL)
    with pytest.raises(InvalidInputError, match="X must be finite"):
        gp.predict([[np.nan, 1.0]])
    with pytest.raises(InvalidInputError, match="lengthscale of RBF must be one number or 1"):
        gp.predict(X[:, :1])
    with pytest.raises(InvalidInputError, match="kernel of GPRegressor must be"):
        GPRegressor("rbf").predict(X)
    with pytest.raises(InvalidInputError, match=r"n_samples of GPRegressor\.sample_functions must be an int"):
        gp.sample_functions(0)
    with pytest.raises(MemoryBudgetError):
        GPRegressor(KERNEL, memory_budget="1MiB").predict(np.zeros((2000, 2)), return_cov=True)


def test_it_follows_dtype():
    found = GPRegressor(KERNEL, dtype="float32").predict(X, return_cov=True)[1]
    np.testing.assert_allclose(found, GPRegressor(KERNEL).predict(X, return_cov=True)[1], rtol=1e-5, atol=1e-6)
