"""Predictions from features: correct for their model, convergent to the exact ones, saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization, truncation
from gigagp.errors import InvalidInputError
from gigagp.estimators import checkpoint
from gigagp.inference import RandomFeatures
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.random_features.posterior import FeaturePosterior
from gigagp.inference.random_features.random_features import RandomFeaturesObjective
from gigagp.model.means import LinearMean, ZeroMean
from gigagp.model.model import Model
from helpers import dense_posterior, draw_targets, generator, largest_tensor, points, within_standard_errors

#: of few features
pytestmark = pytest.mark.filterwarnings("ignore:Squared errors of the latent function")
KERNEL = (kernels.Matern(2.5, [1.0, 2.0], 1.3) + kernels.Linear(0.2) + kernels.White(0.05)).bind(2)
X, X_NEW = points(70, 2, seed=1), points(9, 2, seed=2)
NOISES = {"one": torch.tensor(0.1).double(), "each": torch.linspace(0.05, 0.3, 70).double()}
Y = draw_targets(KERNEL, X, 0.1, columns=2) + 1.5


def posterior_of(n_features, noise="one", mean=None, seed=0, kernel=KERNEL, budget=2**30, **settings):
    mean = ZeroMean() if mean is None else mean
    model = Model(kernel, mean, NOISES[noise])
    objective = RandomFeatures(n_features, **settings).objective(TrainingTable(X, Y, mean, budget), generator(seed))
    return objective.posterior(model, generator(seed + 1))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("mean", [ZeroMean(), LinearMean()], ids=["zero", "linear"])
def test_predictions_are_those_of_the_covariance_that_the_features_make(mean, noise):
    posterior = posterior_of(30, noise, mean)
    draw, kernel = posterior.draw, posterior.model.kernel
    both = kernel.features(torch.cat([X, X_NEW]), draw)
    whole = both @ both.T
    H = whole[:70, :70] + torch.diag(NOISES[noise] + kernel.white(X))
    cross, basis = whole[:70, 70:], mean.basis(X)
    coefficients = torch.zeros(0, 2).double()
    if basis.shape[1]:
        solved = torch.linalg.solve(H, basis)
        coefficients = torch.linalg.solve(basis.T @ solved, solved.T @ Y)
    residual = Y - basis @ coefficients
    solutions = torch.linalg.solve(H, residual)
    expected = mean.basis(X_NEW) @ coefficients + cross.T @ solutions
    covariance = whole[70:, 70:] - cross.T @ torch.linalg.solve(H, cross)
    if basis.shape[1]:  # universal kriging
        left = mean.basis(X_NEW) - cross.T @ solved
        covariance = covariance + left @ torch.linalg.solve(basis.T @ solved, left.T)
    found, variance = posterior.mean_and_variance(X_NEW)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.mean(X_NEW), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(variance, covariance.diagonal(), rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.covariance(X_NEW), covariance, rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.target_solutions, solutions, rtol=0, atol=1e-9)
    torch.testing.assert_close(posterior.coefficients, coefficients, rtol=0, atol=1e-10)


def test_predictions_converge_to_the_exact_ones():
    """The error decreases with the root of the number of features, but not for a different kernel (the control)."""
    exact = dense_posterior(KERNEL, X, Y, X_NEW, 0.1)

    def error(n_features, kernel=KERNEL):
        errors = []
        for seed in range(6):
            mean, variance = posterior_of(n_features, seed=seed, kernel=kernel).mean_and_variance(X_NEW)
            errors += [(mean - exact.mean).square().mean(), (variance - exact.covariance.diagonal()).square().mean()]
        return float(torch.stack(errors).mean().sqrt())

    coarse, fine = error(50), error(800)
    assert fine == pytest.approx(coarse / 4, rel=0.5)
    other = (kernels.Matern(0.5, 0.3) + kernels.White(0.05)).bind(2)
    assert error(800, other) > 0.8 * error(50, other)


def test_samples_have_the_posterior_law():
    posterior = posterior_of(30, mean=LinearMean())
    samples = posterior.sample_functions(4000, generator(5))(X_NEW)
    assert samples.shape == (9, 2, 4000)
    mean, covariance = posterior.mean(X_NEW), posterior.covariance(X_NEW)
    assert within_standard_errors(samples.permute(2, 0, 1), mean)
    assert not within_standard_errors(samples.permute(2, 0, 1), mean + 0.1)
    deviations = samples - mean[:, :, None]
    for target in range(2):
        products = deviations[:, target, None].permute(2, 0, 1) * deviations[:, target].T[:, None, :]
        assert within_standard_errors(products, covariance)
        assert not within_standard_errors(products, 1.3 * covariance)
    assert within_standard_errors((deviations[:, 0] * deviations[:, 1]).T, 0.0)  # targets are independent


def test_samples_are_functions():
    functions = posterior_of(30).sample_functions(3, generator(5))
    assert torch.allclose(functions(X_NEW)[2:4], functions(X_NEW[2:4]), atol=1e-12)
    again = posterior_of(30).sample_functions(3, generator(5))
    assert torch.equal(functions(X_NEW), again(X_NEW))


def test_predictions_keep_to_the_budget():
    budget = 2**19
    posterior = posterior_of(60, budget=budget)
    many = points(4000, 2, seed=8)
    with largest_tensor() as spy:
        posterior.mean_and_variance(many)
        posterior.sample_functions(2, generator())(many)
    assert 8 * spy.elements <= budget  # all features of these points would need four times this
    assert posterior.mean(X_NEW[:0]).shape == (0, 2)
    assert posterior.mean_and_variance(X_NEW[:0])[1].shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_variances_are_never_negative(dtype):
    """With almost no noise, at the training rows."""
    table = TrainingTable(X.to(dtype), Y.to(dtype), ZeroMean(), 2**30)
    model = Model(kernels.RBF(3.0).bind(2), ZeroMean(), torch.tensor(1e-8).double())
    posterior = RandomFeatures(40).objective(table, generator()).posterior(model, generator())
    mean, variance = posterior.mean_and_variance(torch.cat([X, X_NEW]).to(dtype))
    assert mean.dtype == variance.dtype == dtype
    assert bool((variance >= 0).all())


def test_the_likelihood_is_that_of_the_features():
    posterior = posterior_of(30)
    assert isinstance(posterior, FeaturePosterior)
    estimate = posterior.log_marginal_likelihood(generator())
    assert estimate == (posterior.space.value, 0.0)


# Through the estimator ------------------------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).normal(size=(80, 2))
TARGET = np.sin(2 * ROWS[:, 0]) + 0.3 * ROWS[:, 1] + 0.1 * np.random.default_rng(1).normal(size=80)
SERIES = truncation.SingleSample(truncation.OneOverJ(base=5, maximum=30, step=5))
METHODS = {
    "frozen": (RandomFeatures(40), optimization.LBFGS(steps=8)),
    "redrawn": (RandomFeatures(40, redraw=True), optimization.Adam(steps=7)),
    "truncated": (RandomFeatures(40, truncation=SERIES), optimization.Adam(steps=7)),
    "truncated, features": (RandomFeatures(40, truncation=SERIES, prediction="features"), optimization.Adam(steps=7)),
}


def estimator(name, **settings):
    method, optimizer = METHODS[name]
    return GPRegressor(kernels.RationalQuadratic(), inference=method, optimizer=optimizer, **settings)


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_model_predicts_the_same(tmp_path, name):
    fitted = estimator(name, mean="linear").fit(ROWS, TARGET)
    fitted.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    for left, right in zip(fitted.predict(ROWS, return_std=True), loaded.predict(ROWS, return_std=True), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(fitted.sample_y(ROWS, 2), loaded.sample_y(ROWS, 2), rtol=1e-9, atol=1e-9)
    assert loaded.inference_ == fitted.inference_
    assert loaded.describe() == fitted.describe()
    assert "random features (" in fitted.describe()
    assert loaded.log_marginal_likelihood() == pytest.approx(fitted.log_marginal_likelihood())


class Killed(Exception):
    pass


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_fit_resumes_to_the_same_bits(tmp_path, monkeypatch, name):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    whole, path = estimator(name).fit(ROWS, TARGET), tmp_path / "fit.checkpoint"
    evaluate, count = RandomFeaturesObjective.evaluate, {"ran": 0, "most": 3}

    def counted(self, model):
        if count["ran"] >= count["most"]:
            raise Killed
        count["ran"] += 1
        return evaluate(self, model)

    monkeypatch.setattr(RandomFeaturesObjective, "evaluate", counted)
    with pytest.raises(Killed):
        estimator(name).fit(ROWS, TARGET, checkpoint=path)
    count.update(ran=0, most=100)
    resumed = estimator(name).fit(ROWS, TARGET, checkpoint=path)
    assert count["ran"] == len(whole.history_) - 3
    assert np.array_equal(whole.predict(ROWS), resumed.predict(ROWS))


def test_known_noise_several_targets_and_validation():
    noise = np.linspace(0.01, 0.2, 80)
    gp = GPRegressor(inference=RandomFeatures(60), noise_variance=noise, optimizer=optimization.Adam(steps=5))
    gp.fit(ROWS, TARGET, validation=(ROWS[:20], TARGET[:20]))
    assert gp.history_[-1].validation_rmse < gp.history_[0].validation_rmse
    assert gp.noise_variance_.shape == (80,)
    two = GPRegressor(inference=RandomFeatures(60), optimizer=optimization.Adam(steps=5))
    two.fit(ROWS, np.column_stack([TARGET, -TARGET]))
    mean, std = two.predict(ROWS[:3], return_std=True)
    assert mean.shape == std.shape == (3, 2)
    np.testing.assert_allclose(mean[:, 0], -mean[:, 1], atol=1e-8)
    assert two.predict(ROWS[:3], return_cov=True)[1].shape == (3, 3, 2)
    assert two.sample_y(ROWS[:3], 4).shape == (3, 2, 4)


def test_float32_is_float64_to_its_digits():
    fits = [
        GPRegressor(inference=RandomFeatures(40), dtype=dtype, optimizer=optimization.Adam(steps=4)).fit(ROWS, TARGET)
        for dtype in ("float64", "float32")
    ]
    np.testing.assert_allclose(fits[0].predict(ROWS), fits[1].predict(ROWS), atol=1e-3)
    assert fits[1].engine_ == "40 features, cpu, float32"


def test_learning_needs_adam_where_the_likelihood_is_random():
    gp = GPRegressor(inference=RandomFeatures(40, redraw=True), optimizer=optimization.LBFGS())
    with pytest.raises(InvalidInputError, match="LBFGS needs a deterministic objective"):
        gp.fit(ROWS, TARGET)


def test_a_kernel_without_a_spectrum_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(kernels.RBF, "has_spectrum", False)
    with pytest.raises(
        InvalidInputError, match=r"kernel of GPRegressor must have random features for inference.Random"
    ):
        GPRegressor(kernels.RBF(), inference=RandomFeatures(40)).fit(ROWS, TARGET)


def test_predictions_with_the_learned_values_can_be_exact():
    method = RandomFeatures(20, prediction=inference.Exact())
    gp = GPRegressor(inference=method, optimizer=optimization.Adam(steps=5)).fit(ROWS, TARGET)
    exact = GPRegressor(gp.kernel_, inference=inference.Exact(), optimizer=None, noise_variance=gp.noise_variance_)
    np.testing.assert_allclose(gp.predict(ROWS), exact.fit(ROWS, TARGET).predict(ROWS), rtol=1e-9)
