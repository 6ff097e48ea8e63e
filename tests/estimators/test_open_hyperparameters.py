"""Answers with what the rows leave open about the hyperparameters, as `GPRegressor` gives them by default."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.estimators.choices import open_hyperparameters as rules
from gigagp.estimators.description import facts
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.search.acquisition import log_expected_improvement
from helpers import close

NEW = np.random.default_rng(1).uniform(-0.2, 1.2, (6, 2))


def rows(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    X = draw.uniform(size=(n, 2))
    return X, 3 + 2 * np.sin(6 * X[:, 0]) + 0.4 * draw.normal(size=n)


@pytest.fixture(scope="module")
def averaged() -> GPRegressor:
    """An average of kernels, each with its draws."""
    return GPRegressor().fit(*rows())


@pytest.fixture(scope="module")
def alone() -> GPRegressor:
    """One kernel of the user's own with draws."""
    return GPRegressor(kernels.Matern(nu=1.5), hyperparameters="laplace").fit(*rows())


def dense(gp: GPRegressor, one: ExactPosterior, X: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return mean, covariance and noise variance of a component in the target's units, by universal kriging."""
    table, model, scaling = one.table, one.model, gp.scaling_
    points = torch.from_numpy((X - scaling.x_centre) / scaling.x_scale)
    K, C, S = (model.kernel.block(a, b).numpy() for a, b in ((table.X,) * 2, (points, table.X), (points, points)))
    H = np.linalg.inv(K + float(model.noise_variance) * np.eye(len(K)))
    B, N, y = table.basis.numpy(), model.mean.basis(points).numpy(), table.Y[:, 0].numpy()
    A = np.linalg.inv(B.T @ H @ B)
    beta, R = A @ B.T @ H @ y, N - C @ H @ B
    mean, covariance = N @ beta + C @ H @ (y - B @ beta), S - C @ H @ C.T + R @ A @ R.T
    unit = scaling.y_scale[0]
    return mean * unit + scaling.y_centre[0], covariance * unit**2, float(model.noise_variance) * unit**2


def parts(gp: GPRegressor) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray, float]]]:
    mixture = gp._uncertain
    return mixture.weights.numpy(), [dense(gp, one, NEW) for one in mixture.components]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["averaged", "alone"])
def test_all_answers_are_weighted_sums_of_dense_processes(name, request):
    """Answers at the learned hyperparameters are the control."""
    gp = request.getfixturevalue(name)
    weights, found = parts(gp)
    assert gp.hyperparameters_ == "laplace"
    assert len(set(gp._uncertain.groups)) == (1 if name == "alone" else len(gp.posterior_.components))
    means, covariances, noises = (np.array(part) for part in zip(*found, strict=True))
    mean = weights @ means
    covariance = np.einsum("k,kij->ij", weights, covariances + means[:, :, None] * means[:, None]) - np.outer(
        mean, mean
    )
    std = np.sqrt(np.diag(covariance))
    whole = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2) + noises[:, None])
    close(gp.predict(NEW), mean, condition=1e6)
    close(gp.predict(NEW, return_std=True)[1], std, condition=1e6)
    close(gp.predict(NEW, return_cov=True)[1], covariance, condition=1e6)
    close(gp.posterior(NEW).variance.numpy(), std**2, condition=1e6)
    close(gp.predict(NEW, return_std=True, include_noise=True)[1] ** 2, std**2 + weights @ noises, condition=1e6)
    for level in (0.05, 0.5, 0.975):
        z = (gp.predict_quantile(NEW, level) - means) / whole
        close(weights @ norm.cdf(z), np.full(len(NEW), level), condition=1e6)
    y = mean + 0.3
    close(gp.predictive_log_density(NEW, y), np.log(weights @ norm.pdf(y, means, whole)), condition=1e6)
    drawn = gp.sample_y(NEW, 4000)
    assert (np.abs(drawn.mean(1) - mean) < 4 * std / np.sqrt(4000)).all()
    np.testing.assert_allclose(drawn.std(1), std, rtol=0.1)
    learned = gp.predict(NEW, return_std=True, hyperparameters="learned")
    assert np.abs(learned[1] / std - 1).max() > 0.01


def test_without_draws_answers_are_those_at_the_learned_hyperparameters(averaged):
    """They are the same bits; the fit with draws is the control."""
    plain = GPRegressor(hyperparameters="learned").fit(*rows())
    assert plain.hyperparameters_ == "learned"
    assert plain._uncertain is None
    for gp in (plain, averaged):
        assert np.array_equal(gp.predict(NEW, hyperparameters="learned"), plain.predict(NEW))
    assert not np.array_equal(averaged.predict(NEW), plain.predict(NEW))
    assert np.array_equal(plain.predict(NEW, hyperparameters="laplace"), averaged.predict(NEW))


@pytest.mark.parametrize("name", ["averaged", "alone"])
def test_further_rows_change_the_weights_by_their_dense_densities(name, request):
    """Bayes' rule within a kernel, and a power of it between kernels; the old weights are the control."""
    gp = request.getfixturevalue(name)
    y = np.array([3.5, 2.0, 4.4, 2.9, 1.0, 3.0])
    grown, mixture = gp.condition_on(NEW, y), gp._uncertain
    weights, found = parts(gp)
    gains = np.array([multivariate_normal.logpdf(y, m, C + s * np.eye(len(y))) for m, C, s in found])
    expected = np.zeros(len(weights))
    for group in set(mixture.groups):
        same = np.array(mixture.groups) == group
        total = np.exp(gains[same]) @ weights[same] / weights[same].sum()
        expected[same] = weights[same] * np.exp(gains[same]) / total * total ** (1 / mixture.temperature)
    expected /= expected.sum()
    close(np.sort(grown._uncertain.weights.numpy()), np.sort(expected), condition=1e8)
    assert np.abs(np.sort(weights) - np.sort(expected)).max() > 0.01
    assert grown.posterior_.n_rows == grown._uncertain.n_rows == 46
    weights, found = parts(grown)
    close(grown.predict(NEW), weights @ np.array([mean for mean, _, _ in found]), condition=1e8)


def test_files_and_pickles_have_the_draws(averaged, alone, tmp_path):
    for gp in (averaged, alone, averaged.condition_on(NEW, np.full(6, 3.0))):
        gp.save(tmp_path / "m.gp")
        for other in (gigagp.load(tmp_path / "m.gp"), pickle.loads(pickle.dumps(gp))):
            assert other.hyperparameters_ == "laplace"
            for choice in ("auto", "learned"):
                expected = gp.predict(NEW, return_std=True, hyperparameters=choice)
                found = other.predict(NEW, return_std=True, hyperparameters=choice)
                for one, two in zip(found, expected, strict=True):
                    close(one, two, condition=1e6)


def test_left_out_rows_are_mixed_with_the_weights_of_all_rows(alone):
    weights, components = alone._uncertain.weights.numpy(), alone._uncertain.components
    each = [one.left_out() for one in components]
    unit, centre = alone.scaling_.y_scale[0], alone.scaling_.y_centre[0]
    mean = sum(w * one.mean[:, 0].numpy() for w, one in zip(weights, each, strict=True)) * unit + centre
    density = sum(w * np.exp(one.log_density[:, 0].numpy()) for w, one in zip(weights, each, strict=True)) / unit
    found = alone.leave_one_out()
    close(found.mean, mean, condition=1e6)
    close(found.log_density, np.log(density), condition=1e6)
    assert np.abs(found.std - alone.leave_one_out(hyperparameters="learned").std).max() > 1e-3


def test_draws_are_the_default_only_where_they_are_cheap(monkeypatch, averaged):
    X, y = rows()
    for settings in (
        {"kernel": kernels.Matern(nu=1.5)},
        {"kernel": "choose"},
        {"optimizer": None},
        {"optimizer": optimization.Adam(steps=2)},
        {"inference": inference.Vecchia()},
        {"likelihood": "student-t"},
    ):
        assert GPRegressor(**settings).fit(X, y).hyperparameters_ == "learned"
    monkeypatch.setattr(rules, "DEFAULT_ROWS", len(X) - 1)
    assert GPRegressor().fit(X, y).hyperparameters_ == "learned"
    monkeypatch.undo()
    given = averaged.posterior_, inference.Exact(), averaged.likelihood_
    monkeypatch.setattr(rules, "_LEAST", 0.0)
    assert rules.uncertain_by_default(*given, 0.0, []) is None
    monkeypatch.undo()
    assert rules.uncertain_by_default(*given, np.inf, averaged.posterior_.components) is None
    # A part of the time goes to the heaviest kernel, and those whose noise was raised stay as they are.
    heaviest, *others = averaged.posterior_.components
    some = rules.uncertain_by_default(*given, np.inf, others)
    assert all(any(one is other for one in some.components) for other in others)
    assert not any(one is heaviest for one in some.components)
    share = float(some.weights[torch.tensor(some.groups) == 0].sum())
    assert share == pytest.approx(float(averaged.posterior_.weights[0]))


def test_few_rows_of_many_inputs_have_draws(monkeypatch):
    """No other kernel is learned there, so that the fit is short; its hyperparameters are the least known of all."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 12))
    y = X[:, 0] + 0.5 * X[:, 1] ** 2 + 0.2 * rng.normal(size=40)
    gp = GPRegressor().fit(X, y)
    assert len(gp.kernel_choice_.tried) == 1
    assert gp.hyperparameters_ == "laplace"
    monkeypatch.setattr(rules, "_LEAST", 0.0)  # the control
    assert GPRegressor().fit(X, y).hyperparameters_ == "learned"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": None}, "learned hyperparameters"),
        ({"likelihood": "student-t"}, "Gaussian noise"),
        ({"inference": inference.Grid(size=20)}, "Exact, Iterative or Vecchia"),
        ({"inference": inference.SparseVariational(5)}, "Exact, Iterative or Vecchia"),
        ({"hyperparameters": "mcmc"}, "hyperparameters of GPRegressor"),
    ],
)
def test_draws_that_cannot_be_had_are_refused(settings, words):
    with pytest.raises(InvalidInputError, match=words):
        GPRegressor(**{"kernel": kernels.Matern(nu=1.5), "hyperparameters": "laplace", **settings}).fit(*rows())


@pytest.mark.slow
def test_outputs_have_draws_of_their_own():
    X, y = rows(20)
    gp = GPRegressor(kernels.Matern(nu=1.5), hyperparameters="laplace").fit(X, np.stack([y, -2 * y], 1))
    assert gp.hyperparameters_ == ("laplace", "laplace")
    std = gp.predict(NEW, return_std=True)[1]
    np.testing.assert_allclose(std[:, 1], 2 * std[:, 0], rtol=1e-6)
    with pytest.raises(InvalidInputError, match="got 2 that share"):
        GPRegressor(kernels.Matern(nu=1.5), outputs="shared", hyperparameters="laplace").fit(X, np.stack([y, -y], 1))


def test_the_description_says_how_much_wider_answers_are(alone):
    words = dict(facts(alone))["predictions"]
    assert f"{len(alone._uncertain.components)} draws" in words
    learned = alone.predict(rows()[0], return_std=True, hyperparameters="learned")[1]
    ratio = np.sort(alone.predict(rows()[0], return_std=True)[1] / learned)
    assert f"{ratio[19]:.3g} times" in words
    assert "at the learned" in dict(facts(GPRegressor(kernels.Matern(nu=1.5)).fit(*rows(20))))["predictions"]


def test_learning_again_keeps_the_draws(alone):
    again = alone.condition_on(NEW, np.full(6, 3.0), refit=True)
    assert again.hyperparameters_ == "laplace"
    assert again._uncertain.n_rows == 46


@pytest.mark.slow
def test_learning_again_asks_for_no_more_draws_than_the_fit():
    """Learning that ends after one step, far from the mode, would warn if draws were asked for."""
    X = np.random.default_rng(0).uniform(size=(100, 2))
    y = np.sin(5 * X).sum(1)
    early = optimization.Auto(subset_sizes=(20,), polish_steps=1)
    with pytest.warns(FitWarning) as said:
        again = GPRegressor(optimizer=early).fit(X[:90], y[:90]).condition_on(X[90:], y[90:], refit=True)
    assert again.posterior_.n_rows == 100
    assert not any("nearest mode" in str(one.message) for one in said)
    with pytest.warns(FitWarning) as said:
        GPRegressor(hyperparameters="laplace", optimizer=early).fit(X, y)
    assert any("below the nearest mode" in str(one.message) for one in said)


@pytest.mark.slow
def test_the_expected_improvement_is_that_of_the_mixture(averaged):
    """That of a normal distribution with the same moments is the control."""
    mixture, points = averaged._uncertain, torch.from_numpy(NEW)
    best = -1.2
    found = log_expected_improvement(mixture, averaged.scaling_, best)(points).exp().numpy()
    values = np.linspace(-12, best, 8_001)
    scaled = averaged.scaling_.points(points)
    marginals = mixture.marginals(scaled)
    for k in (0, 3):
        density = mixture.weights.numpy() @ norm.pdf(
            values, marginals.means[:, k].numpy(), marginals.variances[:, k, None].sqrt().numpy()
        )
        assert found[k] == pytest.approx(np.trapezoid((best - values) * density, values), rel=1e-4, abs=1e-12)
    mean, variance = mixture.mean_and_variance(scaled)
    u = (best - mean[:, 0].numpy()) / variance.sqrt().numpy()
    normal = variance.sqrt().numpy() * (u * norm.cdf(u) + norm.pdf(u))
    assert np.abs(normal / found - 1).max() > 0.01
