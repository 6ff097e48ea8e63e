"""Weights, the bound's terms, the most likely noise and the quantiles of Student-t noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from gigagp.model.student_noise import (
    LEAST_DF,
    MOST_DF,
    StudentNoise,
    expected_weights,
    most_likely_df,
    most_likely_noise,
    quantile,
    sites,
)


def number(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("df", [2.1, 4.0, 40.0])
def test_the_bound_of_a_known_error_is_its_density(df):
    """Where the function is known, the bound is exact at its weights, and lower at others."""
    noise = StudentNoise(df, 0.7)
    errors = number([0.0, 0.3, -2.0, 50.0])
    weights = expected_weights(errors.square(), noise)

    def value(weights):
        variance = noise.squared_scale / weights
        normal = -0.5 * ((2 * math.pi * variance).log() + errors.square() / variance)
        return float(normal.sum()) + sites(weights, df)

    exact = stats.t(df, scale=0.7**0.5).logpdf(errors.numpy()).sum()
    assert value(weights) == pytest.approx(exact, abs=1e-10)
    assert value(1.1 * weights) < exact - 1e-3
    assert value(0.9 * weights) < exact - 1e-3
    assert noise.variance == pytest.approx(stats.t(df, scale=0.7**0.5).var())
    assert bool((weights.diff() < 0).all())
    assert noise.multiplied(4.0).squared_scale == pytest.approx(2.8)


@pytest.mark.parametrize(("df", "tolerance"), [(3.0, 0.15), (8.0, 0.3)])
def test_the_most_likely_noise_is_that_of_scipy(df, tolerance):
    errors = stats.t(df, scale=2.0).rvs(4000, random_state=0)
    found = most_likely_noise(torch.from_numpy(errors**2), StudentNoise(4.0, 1.0), learns_df=True)
    wanted_df, _, scale = stats.t.fit(errors, floc=0)
    assert found.df == pytest.approx(wanted_df, rel=1e-2)
    assert found.squared_scale == pytest.approx(scale**2, rel=5e-3)
    assert found.df == pytest.approx(df, rel=tolerance)
    given = most_likely_noise(torch.from_numpy(errors**2), StudentNoise(5.0, 1.0), learns_df=False)
    assert given.df == 5.0
    assert given.squared_scale == pytest.approx(stats.t.fit(errors, f0=5.0, floc=0)[2] ** 2, rel=1e-3)


def test_the_degrees_of_freedom_are_those_of_the_highest_density():
    """The density is flat there, so that float32 would leave errors of a thousandth; 1,500 rows take several blocks."""
    errors = stats.t(8.0).rvs(1500, random_state=3)

    def loss(log_df):
        return -stats.t(math.exp(log_df)).logpdf(errors).mean()

    found = most_likely_df(torch.from_numpy(errors**2), 1.0)
    wanted = optimize.minimize_scalar(loss, bounds=(0.8, 4.0), method="bounded", options={"xatol": 1e-7})
    assert found == pytest.approx(math.exp(wanted.x), rel=3e-5)


def test_the_limits_of_the_degrees_of_freedom():
    """Errors of the same size are lighter than normal ones; Cauchy errors are heavier than any finite variance."""
    assert most_likely_df(torch.ones(50, dtype=torch.float64), 1.0) == pytest.approx(MOST_DF, rel=1e-3)
    cauchy = torch.from_numpy(stats.cauchy.rvs(size=500, random_state=1) ** 2)
    assert most_likely_noise(cauchy, StudentNoise(4.0, 1.0), learns_df=True).df == pytest.approx(LEAST_DF)


@pytest.mark.parametrize("df", [2.1, 3.0, 100.0, 1e4])
@pytest.mark.parametrize("variance", [0.0, 0.5, 1e4])
def test_quantiles(df, variance):
    """Against the two laws at the ends, and between them against a fine integral over the function."""
    mean, scale = number([0.0, 3.0]), 0.8
    for level in (1e-6, 0.025, 0.3, 0.5, 0.9, 0.999):
        found = quantile(level, mean, torch.full_like(mean, variance), df, torch.full_like(mean, scale**2)).numpy()
        assert found[1] - found[0] == pytest.approx(3.0, abs=1e-9)
        z = stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000) * variance**0.5
        below = stats.t(df, scale=scale).cdf(found[0] - z).mean()
        tolerance = 1e-10 if variance == 0 else 2e-4 if level > 1e-5 else 1.0
        assert below == pytest.approx(level, rel=tolerance, abs=1e-12)
    assert quantile(0.5, mean[:0], mean[:0], df, mean[:0]).shape == (0,)


@pytest.mark.slow
def test_many_points_at_once_are_the_same():
    draw = np.random.default_rng(0)
    mean, variance, squares = (torch.from_numpy(draw.uniform(0.1, 2.0, 20_000)) for _ in range(3))
    many = quantile(0.1, mean, variance, 3.0, squares)
    some = quantile(0.1, mean[::997], variance[::997], 3.0, squares[::997])
    torch.testing.assert_close(many[::997], some, rtol=1e-13, atol=0)
