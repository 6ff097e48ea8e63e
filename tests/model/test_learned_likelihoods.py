"""Likelihoods of counts, amounts, proportions, levels and limits: against SciPy, fine sums and quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gigagp.errors import InvalidInputError
from gigagp.inference.vecchia.mode import Curvature
from gigagp.model import likelihoods
from gigagp.model.likelihoods import (
    Beta,
    Binomial,
    Censored,
    Gamma,
    HurdlePoisson,
    Likelihood,
    NegativeBinomial,
    Ordinal,
    Quantile,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
    check_laplace,
    check_log_concave,
)

F64 = {"dtype": torch.float64}
INF = math.inf
COUNTS = [
    NegativeBinomial(0.7),
    NegativeBinomial(1e-7),
    NegativeBinomial(30.0),
    ZeroInflatedPoisson(0.4),
    ZeroInflatedNegativeBinomial(0.4, 0.7),
    HurdlePoisson(0.4),
]
AMOUNTS = [Gamma(2.5), Gamma(0.4), Beta(7.0), Beta(30.0), Quantile(0.9), Quantile(0.5)]
LIMITS = [Weibull(1.7), Weibull(0.6), Censored()]
ALL = [*COUNTS, *AMOUNTS, *LIMITS, Binomial(), Ordinal((0.7, 1.1))]
each = pytest.mark.parametrize("likelihood", ALL, ids=repr)

#: Targets of each; pairs where there are limits.
TARGETS = {
    "counts": [0.0, 1.0, 7.0, 300.0],
    "positive": [0.01, 1.0, 40.0],
    "unit": [0.01, 0.4, 0.99],
    "real": [-1.2, 0.3, 4.0],
    "binomial": [0.0, 0.3, 1.0],
    "ordinal": [0.0, 1.0, 2.0, 3.0],
    "weibull": [(1.0, 1.0), (2.0, INF), (0.0, 3.0), (1.0, 1.5), (5.0, 5.01)],
    "censored": [(1.0, 1.0), (2.0, INF), (-INF, 3.0), (1.0, 1.5), (5.0, 5.01)],
}


def number(value):
    return torch.tensor(value, **F64)


def targets(likelihood):
    """Return targets (n, 1), or with limits (2, n, 1)."""
    found = number(TARGETS.get(likelihood.name, TARGETS[likelihood.values]))
    return found.T[:, :, None] if likelihood.has_limits else found[:, None]


def noise(likelihood):
    return number(10.0 if likelihood.name == "binomial" else 0.5)


def grid_of(likelihood):
    """Return all values of a target, or enough for the trapezoidal rule, with the weights of a sum over them."""
    if likelihood.name == "ordinal":
        return torch.arange(4, **F64), torch.ones(4, **F64)
    if likelihood.name == "binomial":
        return torch.arange(11, **F64) / 10, torch.ones(11, **F64)
    if likelihood.values == "counts":
        return torch.arange(6000, **F64), torch.ones(6000, **F64)
    t, step = torch.linspace(-60, 60, 120_001, **F64), 1e-3
    if likelihood.values == "real":
        return t, torch.full_like(t, step)
    if likelihood.values == "positive":
        return t.exp(), step * t.exp()
    t = t[t.abs() < 34]
    return torch.sigmoid(t), step * torch.sigmoid(t) * torch.sigmoid(-t)


def log_density(likelihood, y, f):
    pair = torch.stack([y, y]) if likelihood.has_limits else y
    return likelihood.log_density(pair, f, noise(likelihood))


@each
@pytest.mark.parametrize("f", [-1.5, 0.3, 2.0])
def test_they_are_densities_with_the_stated_moments(likelihood, f):
    y, weights = grid_of(likelihood)
    density = log_density(likelihood, y, number(f)).exp() * weights
    has_kink = likelihood.name == "quantile"  # which limits the sum to the square of its step
    assert float(density.sum()) == pytest.approx(1, rel=5e-6 if has_kink else 1e-6)
    mean = float((density * y).sum())
    if not has_kink:
        assert float(likelihood.target_mean(number(f))) == pytest.approx(mean, rel=1e-6)
    else:  # whose function is not a mean
        below = (y < f).double() + 0.5 * (y == f)
        assert float((density * below).sum()) == pytest.approx(likelihood.level, abs=2e-3)
    variance = float((density * (y - mean).square()).sum())
    assert float(likelihood.target_variance(number(f), noise(likelihood))) == pytest.approx(variance, rel=1e-5)


def test_densities_are_those_of_scipy():
    f = np.array([-2.0, 0.5, 4.0])
    mean, at = np.exp(f), torch.from_numpy(f)
    y = np.array([0.0, 3.0, 60.0])
    none = torch.zeros(3, **F64)
    found = NegativeBinomial(0.7).log_density(torch.from_numpy(y), at, none)
    np.testing.assert_allclose(found, stats.nbinom(1 / 0.7, 1 / (1 + 0.7 * mean)).logpmf(y), rtol=1e-12)
    few = NegativeBinomial(1e-9).log_density(torch.from_numpy(y), at, none)
    np.testing.assert_allclose(few, stats.poisson(mean).logpmf(y), rtol=1e-6)  # their limit
    y = np.array([0.01, 3.0, 60.0])
    found = Gamma(2.5).log_density(torch.from_numpy(y), at, none)
    np.testing.assert_allclose(found, stats.gamma(2.5, scale=mean / 2.5).logpdf(y), rtol=1e-12)
    life = stats.weibull_min(1.7, scale=mean)
    for low, high, expected in (
        (y, y, life.logpdf(y)),
        (y, np.full(3, INF), life.logsf(y)),
        (np.zeros(3), y, life.logcdf(y)),
        (y, 1.3 * y, np.log(life.cdf(1.3 * y) - life.cdf(y))),
    ):
        found = Weibull(1.7).log_density(torch.from_numpy(np.stack([low, high])), at, none)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    normal = stats.norm(f, math.sqrt(0.5))
    y = np.array([-2.5, 1.0, 3.0])
    for low, high, expected in (
        (y, y, normal.logpdf(y)),
        (y, np.full(3, INF), normal.logsf(y)),
        (np.full(3, -INF), y, normal.logcdf(y)),
        (y, y + 0.3, np.log(normal.cdf(y + 0.3) - normal.cdf(y))),
    ):
        found = Censored().log_density(torch.from_numpy(np.stack([low, high])), at, number(0.5))
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    share = np.array([0.1, 0.4, 0.9])
    p = 1 / (1 + np.exp(-f))
    found = Beta(7.0).log_density(torch.from_numpy(share), at, none)
    np.testing.assert_allclose(found, stats.beta(7 * p, 7 * (1 - p)).logpdf(share), rtol=1e-10)
    found = Binomial().log_density(torch.from_numpy(share), at, number(10.0))
    np.testing.assert_allclose(found, stats.binom(10, p).logpmf(10 * share), rtol=1e-10)


@each
def test_derivatives_at_places_far_from_all_targets(likelihood):
    """They are finite, and agree with differences where these have digits."""
    y = targets(likelihood)
    n = y.shape[-2]
    f = number([-1e3, -300.0, -40.0, -5.0, 0.1, 2.0, 6.0, 50.0, 400.0, 1e3]).expand(n, -1)
    y = y.expand(*y.shape[:-1], f.shape[1])
    rows = noise(likelihood).expand(n)
    found = Curvature.of(likelihood, y, f, rows)
    assert not bool(torch.isnan(likelihood.log_density(y, f, rows[:, None])).any())
    for part in found:
        assert bool(torch.isfinite(part).all())
    assert float(found.hessian.min()) >= 0
    near, step = f.abs() <= 6, 1e-4
    high, low = (Curvature.of(likelihood, y, f + sign * step, rows) for sign in (1, -1))
    change = (high.curvature - low.curvature) / (2 * step)
    torch.testing.assert_close(found.change[near], change[near], rtol=1e-5, atol=1e-5)
    value = [likelihood.smooth_log_density(y, f + sign * step, rows[:, None]) for sign in (1, -1)]
    torch.testing.assert_close(found.slope[near], ((value[0] - value[1]) / (2 * step))[near], rtol=1e-5, atol=1e-5)
    if likelihood.is_log_concave and likelihood.information_at(f, rows[:, None]) is None:
        check_log_concave(likelihood, y[..., :1])
        second = -(high.slope - low.slope) / (2 * step)
        torch.testing.assert_close(found.hessian[near], second[near], rtol=1e-5, atol=1e-5)
    check_laplace(likelihood, y[..., :1])


@pytest.mark.parametrize("likelihood", [one for one in ALL if not one.is_log_concave], ids=repr)
@pytest.mark.parametrize("f", [-2.0, 0.3, 1.5])
def test_the_expected_information(likelihood, f):
    y, weights = grid_of(likelihood)
    at = torch.full_like(y, f).requires_grad_()
    logs = log_density(likelihood, y, at)
    (slope,) = torch.autograd.grad(logs.sum(), at)
    expected = float((slope.square() * logs.detach().exp() * weights).sum())
    assert float(likelihood.information_at(number(f), noise(likelihood))) == pytest.approx(expected, rel=1e-6)


# Mixtures, which predictions are --------------------------------------------------------------------------------------


def brute(values, mean, std):
    """Return the mean of a function of f for ``f ~ N(mean, std^2)`` by a fine sum."""
    z = torch.linspace(-60, 60, 20_001, **F64)
    return values(mean + std * z) @ (-0.5 * z.square()).softmax(0)


@each
@pytest.mark.parametrize(("mean", "std"), [(0.5, 1.0), (0.2, 0.01), (-1.0, 2.5)])
def test_predictions_are_those_of_quadrature(likelihood, mean, std):
    m, s, e = number([mean]), number([std]), noise(likelihood).reshape(1)
    found = likelihood.target_moments(m, s, e)
    h = brute(likelihood.target_mean, mean, std)
    of_mean = brute(lambda f: (likelihood.target_mean(f) - h).square(), mean, std)
    within = brute(lambda f: likelihood.target_variance(f, e).expand_as(f), mean, std)
    assert float(found.mean) == pytest.approx(float(h), rel=1e-6)
    assert float(found.of_mean) == pytest.approx(float(of_mean), rel=1e-5)
    assert float(found.of_target) == pytest.approx(float(of_mean + within), rel=1e-5)
    covariance = number([[std**2, 0.3 * std**2], [0.3 * std**2, std**2]])
    joint = likelihood.target_covariance(m.expand(2), covariance)
    assert float(joint[0, 0]) == pytest.approx(float(of_mean), rel=1e-5)
    y = targets(likelihood)[..., 0]
    logs = likelihood.predictive_log_density(y, m, s, e)
    for k in range(y.shape[-1]):
        one = y[:, k : k + 1] if likelihood.has_limits else y[k]
        density = brute(lambda f, one=one: likelihood.log_density(one, f, e).exp(), mean, std)
        if float(density) > 1e-250:
            error = 1e-3 if likelihood.name == "quantile" else 1e-6  # of the sum across a kink
            assert float(logs[k]) == pytest.approx(float(density.log()), rel=error, abs=error)


@each
@pytest.mark.few(5)
@pytest.mark.parametrize(("mean", "std"), [(0.5, 1.0), (-2.0, 2.5), (9.0, 0.01)])
def test_quantiles(likelihood, mean, std):
    """A mixture has at most the level below a quantile, and at least the level up to it."""
    m, s, e = number([mean]), number([std]), noise(likelihood).reshape(1)
    levels = [0.01, 0.5, 0.999]
    found = [float(likelihood.target_quantile(level, m, s, e)) for level in levels]
    assert found == sorted(found)
    zeros = {"zero-inflated-poisson", "zero-inflated-negative-binomial", "hurdle-poisson"}
    step = {"binomial": 0.1, "ordinal": 1.0}.get(likelihood.name, 1.0 if likelihood.values == "counts" else 0.0)
    if step and found[-1] < 30_000:
        y = torch.arange(0, found[-1] / step + 1.5, **F64) * step
        y = y[y < 4] if likelihood.name == "ordinal" else y[y <= 1 + 1e-9] if likelihood.name == "binomial" else y
        probability = likelihood.predictive_log_density(y, m, s, e).exp().cumsum(0)
        for level, quantile in zip(levels, found, strict=True):
            place = round(quantile / step)
            assert float(probability[place]) >= level - 1e-9
            assert place == 0 or float(probability[place - 1]) < level + 1e-9
    elif not step and likelihood.name != "censored":
        generator = torch.Generator().manual_seed(1)
        f = mean + std * torch.randn(40_000, generator=generator, **F64)
        drawn = likelihood.draw_targets(f, e.expand_as(f), generator)
        for level, quantile in zip(levels, found, strict=True):
            if likelihood.values == "unit" and quantile > 1 - 1e-12:
                continue  # float64 has no number between it and 1
            below = likelihood.mixture_distribution(number([quantile]), m, s, e)
            assert float(below) == pytest.approx(level, abs=1e-9)
            assert float((drawn <= quantile).double().mean()) == pytest.approx(level, abs=0.012)
    assert likelihood.name not in zeros or found[0] == 0


@each
def test_draws(likelihood):
    generator = torch.Generator().manual_seed(3)
    f = torch.full((200_000,), 0.7, **F64)
    drawn = likelihood.draw_targets(f, noise(likelihood).expand_as(f), generator).double()
    centre = float(likelihood.target_mean(number(0.7)))
    if likelihood.name == "quantile":
        assert float((drawn < 0.7).double().mean()) == pytest.approx(likelihood.level, abs=0.005)
        q = likelihood.level
        centre = 0.7 + float(likelihood._scale(number(0.5))) * (1 - 2 * q) / (q * (1 - q))
    variance = float(likelihood.target_variance(number(0.7), noise(likelihood)))
    assert float(drawn.mean()) == pytest.approx(centre, abs=5 * math.sqrt(variance / 200_000))
    assert float(drawn.var()) == pytest.approx(variance, rel=0.1)
    for level in (0.1, 0.5, 0.9):
        exact = float(likelihood.target_quantile(level, number([0.7]), number([1e-9]), noise(likelihood).reshape(1)))
        assert float((drawn <= exact + 1e-9).double().mean()) >= level - 0.005
        assert float((drawn < exact - 1e-9).double().mean()) <= level + 0.005


def test_large_counts_and_narrow_densities():
    """A fixed rule over f falls between the places where such densities are."""
    m, s, e = number([11.0]), number([1.5]), number([0.0])
    y = number([math.floor(math.exp(11.5))])
    likelihood = NegativeBinomial(1e-7)
    fine = torch.linspace(11.3, 11.7, 400_001, **F64)
    prior = torch.exp(-0.5 * ((fine - m) / s).square()) / (s * math.sqrt(2 * math.pi))
    exact = (likelihood.log_density(y, fine, e).exp() * prior).sum() * (fine[1] - fine[0])
    found = likelihood.predictive_log_density(y, m, s, e)
    assert float(found) == pytest.approx(float(exact.log()), rel=1e-9)
    rough = Likelihood.predictive_log_density(likelihood, y, m, s, e)  # the control
    assert abs(float(rough - found)) > 1e-3
    far = likelihood.predictive_log_density(number([1e9]), number([0.0]), number([0.1]), e)
    assert bool(torch.isfinite(far))
    median = float(likelihood.target_quantile(0.5, m, s, e))
    assert median == pytest.approx(math.exp(11.0), rel=1e-4)


# Targets and parameters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("likelihood", "bad", "match"),
    [
        (NegativeBinomial(), [[1.0], [-1.0]], r"whole numbers from 0 to 2\^53 .*; got -1 in row 1"),
        (HurdlePoisson(), [[1.0], [2.0], [0.5]], r"whole numbers from 0 to 2\^53 .*; got 0.5 in row 2"),
        (NegativeBinomial(), [[1.0], [1e17]], r"whole numbers from 0 to 2\^53 .*; got 1e\+17 in row 1"),
        (Gamma(), [[0.0], [1.0]], "positive, from 1e-15 to 1e15 .*; got 0 in row 0"),
        (Gamma(), [[1.0], [1e200]], r"positive, from 1e-15 to 1e15 .*; got 1e\+200 in row 1"),
        (Beta(), [[0.5, 0.5], [0.5, 1.0]], r"above 0 and below 1; got 1 \(column 1\) in row 1"),
        (Binomial(), [[0.5], [1.25]], "proportions from 0 to 1; got 1.25 in row 1"),
        (Ordinal(), [[0.0], [1.5]], "levels: whole numbers, 0 or above; got 1.5 in row 1"),
        (Ordinal((1.0,)), [[0.0], [3.0]], "whole numbers from 0 to 2; got 3 in row 1"),
        (Weibull(), [[[1.0], [-1.0]], [[1.0], [2.0]]], "between limits from 0 on, .*; got -1 in row 1"),
        (Weibull(), [[[1.0], [0.0]], [[math.inf], [1e-30]]], "between limits from 1e-15 .*; got 1e-30 in row 1"),
    ],
)
def test_bad_targets_are_named(likelihood, bad, match):
    with pytest.raises(InvalidInputError, match=f"targets of the {likelihood.name} likelihood must be {match}"):
        likelihood.check_targets(number(bad))


def test_parameters():
    with pytest.raises(InvalidInputError, match="dispersion of NegativeBinomial must be"):
        NegativeBinomial(0.0)
    with pytest.raises(InvalidInputError, match="level of Quantile must be"):
        Quantile(1.0)
    y = number([[0.0], [2.0], [2.0], [1.0]])
    assert NegativeBinomial(0.3).start(y) == {}
    learned = NegativeBinomial().settled(NegativeBinomial().start(y))
    assert learned == NegativeBinomial(0.5)
    start = Ordinal().start(y)["gaps"]
    assert start.shape == (1,)
    assert float(start[0]) > 0
    assert Ordinal().settled({"gaps": number([0.5])}) == Ordinal((0.5,))
    with pytest.raises(InvalidInputError, match="must have 3 to 100 levels, numbered from 0; got 2"):
        Ordinal().start(number([[0.0], [1.0]]))
    share = ZeroInflatedPoisson().start(number([[0.0], [0.0], [3.0], [1.0]]))["zero_odds"]
    assert float(share) == pytest.approx(0.25 / 0.75)


def test_all_of_them_are_here():
    missing = {name for name in likelihoods.NAMES} - {one.name for one in ALL}
    assert missing == {"gaussian", "laplace", "student-t", "logistic", "probit", "poisson"}
