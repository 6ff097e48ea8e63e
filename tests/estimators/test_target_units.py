"""Answers about counts and signs in the target's own units, against sums and integrals by other means."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import gigagp
from gigagp import GPRegressor, inference, kernels, likelihoods, optimization, plots
from gigagp.errors import InvalidInputError, NonFiniteError

RNG = np.random.default_rng(0)
#: A clump, a gap, a row that is repeated and one that is far away.
X = np.concatenate([RNG.uniform(0, 1, 30), RNG.uniform(2, 3, 25), [2.5, 2.5, 6.0]])[:, None]
RATE = np.exp(1 + np.sin(2 * X[:, 0]))
COUNTS, SIGNS = RNG.poisson(RATE).astype(float), np.where(RNG.uniform(size=len(X)) < 0.2 + RATE / 10, 1.0, -1.0)
NEW = np.array([-1.0, 0.3, 0.31, 1.5, 2.5, 2.5, 4.0, 40.0])[:, None]
PLACES = np.linspace(-12, 12, 20_001)
WEIGHTS = stats.norm.pdf(PLACES) / stats.norm.pdf(PLACES).sum()

METHODS = {
    "vecchia": lambda: inference.Vecchia(10),
    "quadruply": lambda: inference.QuadruplyStochastic(n_basis=40),
    "relevance": lambda: inference.RelevanceVectorMachine(),
}
LINKS = {"poisson": np.exp, "logistic": lambda f: np.tanh(f / 2), "probit": lambda f: 2 * stats.norm.cdf(f) - 1}


def fit(likelihood: str = "poisson", method: str = "vecchia", y: np.ndarray | None = None, **changes) -> GPRegressor:
    y = (COUNTS if likelihood == "poisson" else SIGNS) if y is None else y
    kernel = kernels.Matern(1.5, 0.7, 1.5) if method == "vecchia" else kernels.RBF(0.7, 1.5)
    settings = {"kernel": kernel, "optimizer": None, "mean": "zero"} | changes
    return GPRegressor(inference=METHODS[method](), likelihood=likelihood, **settings).fit(X, y)


def spread_of(likelihood: str, values: np.ndarray) -> np.ndarray:
    """Return the variance of a target whose mean is known."""
    return values if likelihood == "poisson" else 1 - values**2


PAIRS = [*((one, method) for one in LINKS for method in ("vecchia", "quadruply")), ("poisson", "relevance")]


@pytest.mark.parametrize(("likelihood", "method"), PAIRS)
def test_moments_and_quantiles_are_those_of_the_latent_function_through_the_link(likelihood, method):
    gp, link = fit(likelihood, method), LINKS[likelihood]
    f, std = gp.predict_latent(NEW, return_std=True)
    values = link(f[:, None] + std[:, None] * PLACES)
    mean = values @ WEIGHTS
    of_mean = (values - mean[:, None]) ** 2 @ WEIGHTS
    of_target = of_mean + spread_of(likelihood, values) @ WEIGHTS
    np.testing.assert_allclose(gp.predict(NEW), mean, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(gp.predict(NEW, return_std=True)[1] ** 2, of_mean, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(
        gp.predict(NEW, return_std=True, include_noise=True)[1] ** 2, of_target, rtol=1e-7, atol=1e-12
    )
    levels = [0.05, 0.5, 0.9]
    found = gp.predict_quantile(NEW, levels, include_noise=False)
    np.testing.assert_allclose(found, link(f[:, None] + std[:, None] * stats.norm.ppf(levels)), rtol=1e-9, atol=1e-12)
    assert abs(mean - link(f)).max() > 1e-3  # a control: the mean of the target is not that at the mean of f


@pytest.mark.parametrize("method", METHODS)
def test_quantiles_of_counts_are_the_least_counts_that_reach_the_level(method):
    gp = fit(method=method)
    f, std = gp.predict_latent(NEW, return_std=True)
    rates = np.exp(f[:, None] + std[:, None] * PLACES)
    levels = [0.025, 0.25, 0.5, 0.75, 0.975]
    found = gp.predict_quantile(NEW, levels)
    assert (found == found.round()).all()
    for level, k in zip(levels, found.T, strict=True):
        reached, before = (stats.poisson.cdf(one[:, None], rates) @ WEIGHTS for one in (k, k - 1))
        assert (reached >= level - 1e-8).all()
        assert (before < level + 1e-8).all()


@pytest.mark.parametrize("likelihood", LINKS)
def test_log_probabilities_sum_to_one_and_have_the_predicted_moments(likelihood):
    gp = fit(likelihood)
    place = NEW[1:6]
    possible = np.arange(600.0) if likelihood == "poisson" else np.array([-1.0, 1.0])
    each = np.repeat(place, len(possible), axis=0), np.tile(possible, len(place))
    shares = np.exp(gp.predictive_log_density(*each)).reshape(len(place), -1).T
    np.testing.assert_allclose(shares.sum(0), 1, atol=1e-6)
    mean, std = gp.predict(place, return_std=True, include_noise=True)
    np.testing.assert_allclose(possible @ shares, mean, rtol=1e-3)
    np.testing.assert_allclose(np.sqrt((possible**2) @ shares - (possible @ shares) ** 2), std, rtol=0.03)
    if likelihood == "poisson":
        share = gp.predictive_log_density(X, COUNTS).mean()
        assert share > stats.poisson.logpmf(COUNTS, COUNTS.mean()).mean()


@pytest.mark.parametrize("likelihood", LINKS)
def test_deviation_covariance_posterior_and_samples_agree(likelihood):
    gp = fit(likelihood)
    place = NEW[:6]
    mean, std = gp.predict(place, return_std=True)
    both, covariance = gp.predict(place, return_cov=True)
    np.testing.assert_allclose(both, mean, rtol=1e-8)
    np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-7)
    measured = gp.predict(place, return_cov=True, include_noise=True)[1]
    apart = gp.predict(place, return_std=True, include_noise=True)[1] ** 2 - std**2
    np.testing.assert_allclose(measured - covariance, np.diag(apart), atol=1e-7)
    for k in range(6):  # a row alone, as in a table
        alone = gp.predict(place[k : k + 1], return_std=True)
        np.testing.assert_allclose(np.ravel(alone), [mean[k], std[k]], rtol=1e-9)
    joint = gp.posterior(place)
    np.testing.assert_allclose(joint.mean, mean, rtol=1e-8)
    np.testing.assert_allclose(joint.stddev, std, rtol=1e-7)
    np.testing.assert_allclose(joint.covariance, covariance, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(gp.posterior(place, include_noise=True).covariance, measured, rtol=1e-6, atol=1e-9)
    count = 10_000
    for draws in (gp.sample_y(place, count), joint.rsample((count,)).numpy().T):
        error = 5 * std / np.sqrt(count)
        assert (abs(draws.mean(1) - mean) < error).all()
        kurtosis = ((draws - mean[:, None]) ** 4).mean(1) / std**4
        assert (abs(draws.var(1) / std**2 - 1) < 6 * np.sqrt(kurtosis / count)).all()
        products = (draws[0] - mean[0]) * (draws[1] - mean[1])
        assert abs(products.mean() - covariance[0, 1]) < 5 * products.std() / np.sqrt(count)
    targets = gp.sample_y(place, count, include_noise=True)
    assert set(np.unique(targets)) <= set(np.arange(10_000.0) if likelihood == "poisson" else [-1.0, 1.0])
    whole = np.sqrt(np.diag(measured))
    assert (abs(targets.mean(1) - mean) < 5 * whole / np.sqrt(count)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", ["poisson", "logistic"])
def test_the_joint_distribution_has_gradients(likelihood):
    gp = fit(likelihood)

    def value(points):
        joint = gp.posterior(points)
        return joint.mean, joint.variance, joint.covariance[0, 1], joint.rsample((2,), random_state=1)

    place = torch.tensor([[0.25], [1.4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, place, eps=1e-5, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("method", ["vecchia", "quadruply"])
def test_several_targets_have_an_axis(method):
    both = fit(method=method, y=np.stack([COUNTS, COUNTS[::-1]], 1))
    mean, std = both.predict(NEW, return_std=True)
    f, spread = both.predict_latent(NEW, return_std=True)
    assert mean.shape == std.shape == f.shape == (8, 2)
    np.testing.assert_allclose(mean, np.exp(f + spread**2 / 2), rtol=1e-9)
    again, covariance = both.predict(NEW, return_cov=True)
    assert covariance.shape == (8, 8, 2)
    np.testing.assert_allclose(np.diagonal(covariance).T, std**2, rtol=1e-6)
    joint = both.posterior(NEW)
    np.testing.assert_allclose(joint.covariance, covariance, rtol=1e-6, atol=1e-9 * covariance.max())
    np.testing.assert_allclose(joint.mean, again, rtol=1e-6)
    assert both.predict_quantile(NEW, [0.2, 0.7]).shape == (8, 2, 2)
    assert both.predict_quantile(NEW, 0.2).shape == (8, 2)
    assert both.sample_y(NEW, 3).shape == both.sample_y(NEW, 3, include_noise=True).shape == (8, 2, 3)
    assert both.predictive_log_density(X, np.stack([COUNTS, COUNTS], 1)).shape == (len(X), 2)


def test_scores_compare_counts_with_counts():
    gp = fit()
    explained = 1 - ((COUNTS - gp.predict(X)) ** 2).sum() / ((COUNTS - COUNTS.mean()) ** 2).sum()
    assert gp.score(X, COUNTS) == pytest.approx(explained)
    assert explained > 0.3


@pytest.mark.parametrize("likelihood", ["gaussian", "laplace", "student-t"])
def test_the_latent_function_under_noise_is_what_is_predicted(likelihood):
    gp = GPRegressor(inference=inference.Vecchia(8), likelihood=likelihood, optimizer=None).fit(X, COUNTS)
    for options in ({}, {"return_std": True}, {"return_cov": True}):
        pairs = zip(gp.predict(NEW, **options), gp.predict_latent(NEW, **options), strict=True)
        for one, other in pairs:  # rows, or a mean and what is beside it
            np.testing.assert_array_equal(one, other)
    found = gp.sample_y(NEW[:3], 20_000, include_noise=True)
    mean, std = gp.predict(NEW[:3], return_std=True, include_noise=True)
    assert (abs(found.mean(1) - mean) < 6 * std / np.sqrt(20_000)).all()
    assert (abs(found.std(1) / std - 1) < (0.3 if likelihood == "student-t" else 0.02)).all()


def test_after_a_transform_the_latent_function_is_that_of_the_transformed_target():
    gp = GPRegressor(inference=inference.Exact(), target_transform="log", optimizer=None).fit(X, RATE)
    f, std = gp.predict_latent(NEW, return_std=True)
    of_logs = GPRegressor(inference=inference.Exact(), optimizer=None).fit(X, np.log(RATE))
    np.testing.assert_allclose((f, std), of_logs.predict(NEW, return_std=True), rtol=1e-9)
    whole = of_logs.predict(NEW, return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(gp.predict(NEW), np.exp(f + whole**2 / 2), rtol=1e-9)
    draws = np.log(gp.sample_y(NEW[:3], 20_000, include_noise=True))
    assert (abs(draws.mean(1) - f[:3]) < 6 * whole[:3] / np.sqrt(20_000)).all()
    assert (abs(draws.std(1) / whole[:3] - 1) < 0.04).all()


def test_a_saved_model_answers_with_the_same_bits(tmp_path):
    gp = fit()
    gp.save(tmp_path / "counts.gp")
    again = gigagp.load(tmp_path / "counts.gp")
    for name in ("predict", "predict_latent"):
        for one, other in zip(getattr(gp, name)(NEW, True), getattr(again, name)(NEW, True), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(gp.predict_quantile(NEW, 0.9), again.predict_quantile(NEW, 0.9))


def test_before_a_fit_the_rate_is_that_of_the_prior():
    prior = GPRegressor(kernels.RBF(1.0, 0.5), likelihood="poisson")
    mean, std = prior.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, np.exp(0.25))
    np.testing.assert_allclose(std, np.exp(0.25) * np.sqrt(np.expm1(0.5)))
    assert not prior.predict_latent(NEW).any()
    law = stats.poisson(np.exp(np.sqrt(0.5) * PLACES))
    k = prior.predict_quantile(NEW, 0.9)
    assert law.cdf(k[0]) @ WEIGHTS >= 0.9
    assert law.cdf(k[0] - 1) @ WEIGHTS < 0.9
    assert not np.array_equal(prior.sample_functions(2)(NEW), prior.sample_functions(2, latent=True)(NEW))
    np.testing.assert_allclose(prior.sample_functions(2)(NEW), np.exp(prior.sample_functions(2, latent=True)(NEW)))


def test_what_has_no_answer_is_refused_in_words():
    gp = fit()
    with pytest.raises(InvalidInputError, match=r"return_parts of GPRegressor\.predict must be False with the poisson"):
        gp.predict(NEW, return_parts=True)
    with pytest.raises(InvalidInputError, match="Gaussian noise; the likelihood of this fit is poisson"):
        fit(optimizer=optimization.LBFGS(1)).predict(NEW, hyperparameters="laplace")
    with pytest.raises(InvalidInputError, match="cannot both be True"):
        gp.predict_latent(NEW, return_std=True, return_cov=True)
    with pytest.raises(InvalidInputError, match="mean of GPRegressor must not be a function with the poisson"):
        fit(mean=lambda X: np.zeros(len(X)))
    with pytest.raises(InvalidInputError, match="whole numbers"):
        gp.predictive_log_density(NEW, np.full(8, 0.5))
    huge = fit(kernel=kernels.Matern(1.5, 0.5, 3000.0))
    with pytest.raises(NonFiniteError):
        huge.predict(NEW)
    assert np.isfinite(huge.predict_latent(NEW)).all()


@dataclass(frozen=True)
class Exponential(likelihoods.Likelihood):
    """Waiting times with the mean ``exp(f)``, without their moments."""

    is_log_concave = True
    name = "waiting"

    def log_density(self, y, f, noise):
        return -f - y * (-f).exp()


@dataclass(frozen=True)
class Waiting(Exponential):
    """The same with their moments."""

    def target_mean(self, f):
        return f.exp()

    def target_variance(self, f, noise):
        return (2 * f).exp()


@dataclass(frozen=True)
class Falling(Waiting):
    """A mean that falls, which the contract of likelihoods excludes."""

    def target_mean(self, f):
        return (-f).exp()


def test_a_likelihood_of_ones_own_says_what_its_mean_is():
    waiting, settings = RNG.exponential(RATE), {"optimizer": None, "kernel": kernels.Matern(1.5, 0.7, 1.0)}
    silent = GPRegressor(inference=inference.Vecchia(8), likelihood=Exponential(), **settings).fit(X, waiting)
    f, std = silent.predict_latent(NEW, return_std=True)
    for ask in (silent.predict, silent.sample_y, lambda X: silent.predict_quantile(X, 0.5, include_noise=False)):
        with pytest.raises(InvalidInputError, match=r"need Exponential\.target_mean, which .*predict_latent"):
            ask(NEW)
    gp = GPRegressor(inference=inference.Vecchia(8), likelihood=Waiting(), **settings).fit(X, waiting)
    mean, of_target = gp.predict(NEW, return_std=True, include_noise=True)
    np.testing.assert_allclose(mean, np.exp(f + std**2 / 2), rtol=1e-8)
    of_mean = mean**2 * np.expm1(std**2)
    np.testing.assert_allclose(of_target**2, of_mean + np.exp(2 * f + 2 * std**2), rtol=1e-7)
    covariance, latent = gp.predict(NEW, return_cov=True)[1], gp.predict_latent(NEW, return_cov=True)[1]
    np.testing.assert_allclose(covariance, mean[:, None] * mean * np.expm1(latent), rtol=1e-6, atol=1e-9)
    with pytest.raises(InvalidInputError, match=r"Quantiles of measurements .* Waiting\.target_quantile"):
        gp.predict_quantile(NEW, 0.5)
    falling = GPRegressor(inference=inference.Vecchia(8), likelihood=Falling(), **settings).fit(X, waiting)
    with pytest.raises(InvalidInputError, match="must not fall"):
        falling.predict_quantile(NEW, 0.5, include_noise=False)


def test_pictures_show_counts():
    frame = pd.DataFrame({"x": X[:, 0]})
    gp = GPRegressor(kernels.Matern(1.5, 0.7, 1.5), inference.Vecchia(10), None, likelihood="poisson").fit(
        frame, COUNTS
    )
    view = plots.view.View(gp)
    assert view.rows_to_draw(None, None).y.tolist() == COUNTS.tolist()
    assert view.label(None) == "target"
    np.testing.assert_allclose(view.mean(NEW), gp.predict(pd.DataFrame({"x": NEW[:, 0]})))
    axes = plots.curve(gp)
    assert axes.collections
    bands = view.quantiles(NEW[:6], [0.025, 0.975], include_noise=True)
    assert (bands == bands.round()).all()
    dependence = plots.partial_dependence_values(gp, "x", frame, resolution=4)
    assert (dependence.bands > 0).all()  # a rate; normal bands would not know
    at = frame.assign(x=dependence.values[1])
    assert dependence.mean[1] == pytest.approx(gp.predict(at).mean())


@pytest.mark.slow
def test_ranks_of_counts_are_evenly_distributed_where_predictions_are_calibrated():
    from gigagp.plots.measured import predicted

    rng = np.random.default_rng(1)
    places = rng.uniform(0, 3, (1200, 1))
    y = rng.poisson(np.exp(0.5 + np.sin(2 * places[:, 0]))).astype(float)
    gp = GPRegressor(kernels.Matern(1.5, 0.7, 1.0), inference.Vecchia(10), None, likelihood="poisson")
    found = predicted(gp.fit(places[:400], y[:400]), places[400:], y[400:])
    assert stats.kstest(found.rank, "uniform").pvalue > 0.001
    assert abs(found.share_inside(0.5) - 0.5) < 4 * 0.5 / np.sqrt(800)
    shifted = predicted(gp, places[400:], y[400:] + 2)
    assert stats.kstest(shifted.rank, "uniform").pvalue < 1e-6  # a control
