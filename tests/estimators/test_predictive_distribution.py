"""Quantiles and log densities of models without a transform of the target."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
F = np.sin(2 * X[:, 0]) + X[:, 1]
Y = 3 + 10 * (F + 0.2 * RNG.normal(size=60))
NEW = RNG.uniform(-2, 2, (7, 2))


def test_quantiles_and_densities_are_those_of_normal_distributions():
    gp = GPRegressor(kernels.Matern(nu=1.5), mean=lambda X: X[:, 1]).fit(X, Y)
    for noise in (False, True):
        mean, std = gp.predict(NEW, return_std=True, include_noise=noise)
        found = gp.predict_quantile(NEW, [0.1, 0.9], include_noise=noise)
        assert np.allclose(found, stats.norm(mean[:, None], std[:, None]).ppf([0.1, 0.9]))
    assert np.allclose(gp.predictive_log_density(X, Y), stats.norm(*gp.predict(X, True, include_noise=True)).logpdf(Y))


def test_several_targets_have_an_axis():
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.stack([Y, -2 * Y], 1))
    assert gp.predict_quantile(NEW, 0.5).shape == (7, 2)
    found = gp.predict_quantile(NEW, [0.1, 0.5, 0.9])
    assert found.shape == (7, 2, 3)
    assert np.allclose(found[:, 1, 0], -2 * found[:, 0, 2])
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    given = np.stack([Y, Y], 1)
    assert np.allclose(gp.predictive_log_density(X, given), stats.norm(mean, std).logpdf(given))
    with pytest.raises(InvalidInputError, match="2 target"):
        gp.predictive_log_density(X, Y)


@pytest.mark.parametrize("how", [{}, {"kernel": "average"}, {"likelihood": "student-t"}], ids=str)
def test_no_probabilities_have_no_quantiles(how):
    assert GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | how).fit(X[:20], Y[:20]).predict_quantile(
        NEW, []
    ).shape == (7, 0)


def test_before_a_fit_they_are_those_of_the_prior():
    gp = GPRegressor(kernels.RBF(1.0, 4.0), noise_variance=5.0)
    assert np.allclose(gp.predict_quantile(NEW, 0.975), 3 * stats.norm.ppf(0.975))
    assert np.allclose(gp.predictive_log_density(NEW, np.zeros(7)), stats.norm(0, 3).logpdf(0))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["laplace", "student-t", "poisson"])
def test_other_likelihoods_have_log_densities_and_quantiles_of_the_function(name):
    counts = np.random.default_rng(1).poisson(np.exp(0.5 * F)).astype(float)
    y = counts if name == "poisson" else Y
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(8), likelihood=name).fit(X, y)
    logs = gp.predictive_log_density(X, y)
    assert logs.shape == (60,)
    # densities sum to one over what can be measured
    if name == "poisson":
        total = sum(np.exp(gp.predictive_log_density(NEW, np.full(7, float(k)))) for k in range(60))
    else:
        grid = np.linspace(-300, 300, 3001)
        values = [np.exp(gp.predictive_log_density(NEW, np.full(7, one))) for one in grid]
        total = trapezoid(values, grid, axis=0)
    assert np.allclose(total, 1, atol=2e-3)
    mean, std = gp.predict_latent(NEW, return_std=True)
    found = gp.predict_quantile(NEW, 0.8, include_noise=False)
    link = np.exp if name == "poisson" else lambda f: f
    assert np.allclose(found, link(mean + std * stats.norm.ppf(0.8)))
    if name != "poisson":
        found = gp.predict_quantile(NEW, 0.8)[0]
        grid = np.linspace(found - 3000, found, 30_001)
        density = np.exp(gp.predictive_log_density(np.repeat(NEW[:1], len(grid), 0), grid))
        assert trapezoid(density, grid) == pytest.approx(0.8, abs=1e-3)
    if name == "poisson":
        with pytest.raises(InvalidInputError, match="whole numbers"):
            gp.predictive_log_density(NEW, np.full(7, 0.5))


@pytest.mark.parametrize("q", [0, 1, -0.1, [0.5, 1.5], [[0.5]], "a", None, np.nan, []])
def test_what_is_no_probability_is_refused(q):
    gp = GPRegressor(optimizer=None).fit(X, Y)
    if isinstance(q, list) and not q:
        assert gp.predict_quantile(NEW, q).shape == (7, 0)
        return
    with pytest.raises(InvalidInputError, match="q"):
        gp.predict_quantile(NEW, q)


def test_known_noise_of_rows_has_latent_quantiles_only():
    gp = GPRegressor(noise_variance=np.full(60, 4.0), optimizer=None).fit(X, Y)
    assert np.isfinite(gp.predict_quantile(NEW, 0.5, include_noise=False)).all()
    with pytest.raises(InvalidInputError, match="include_noise"):
        gp.predict_quantile(NEW, 0.5)
