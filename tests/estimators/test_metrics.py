from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from gigagp import metrics
from gigagp.errors import InvalidInputError

RNG = np.random.default_rng(0)
Y, MEAN, STD = RNG.normal(size=7), RNG.normal(size=7), RNG.uniform(0.2, 3.0, size=7)


def test_rmse():
    assert metrics.rmse([1.0, 2.0], [1.0, 4.0]) == pytest.approx(math.sqrt(2.0))


def test_nll_is_the_log_density_of_scipy():
    assert metrics.gaussian_nll(Y, MEAN, STD) == pytest.approx(-np.mean(stats.norm.logpdf(Y, MEAN, STD)), rel=1e-12)


def test_crps_is_the_integral_that_defines_it():
    def score(y, mean, std):
        below = integrate.quad(lambda t: stats.norm.cdf(t, mean, std) ** 2, mean - 12 * std, y)[0]
        return below + integrate.quad(lambda t: stats.norm.sf(t, mean, std) ** 2, y, mean + 12 * std)[0]

    expected = np.mean([score(*row) for row in zip(Y, MEAN, STD, strict=True)])
    assert metrics.gaussian_crps(Y, MEAN, STD) == pytest.approx(expected, rel=1e-6)


def test_crps_becomes_the_absolute_error():
    assert metrics.gaussian_crps(Y, MEAN, np.full(7, 1e-9)) == pytest.approx(np.mean(np.abs(Y - MEAN)), rel=1e-6)


@pytest.mark.parametrize("score", [metrics.gaussian_nll, metrics.gaussian_crps])
def test_proper_scores_are_best_at_the_truth(score):
    y = np.random.default_rng(1).normal(2.0, 3.0, size=20_000)
    at = {(m, s): score(y, np.full_like(y, m), np.full_like(y, s)) for m in (1.5, 2.0, 2.5) for s in (2.5, 3.0, 3.5)}
    assert min(at, key=at.get) == (2.0, 3.0)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_coverage_of_a_calibrated_prediction_is_the_level(level):
    n = 20_000
    y = np.random.default_rng(2).normal(1.0, 2.0, size=n)
    error = 4 * math.sqrt(level * (1 - level) / n)
    assert metrics.coverage(y, np.ones(n), np.full(n, 2.0), level) == pytest.approx(level, abs=error)
    assert metrics.coverage(y, np.ones(n), np.full(n, 1.5), level) < level - error  # detects overconfidence


def test_coverage_error_is_a_distance():
    y = np.arange(10.0)
    for std, share in ((1e9, 1.0), (1e-9, 0.1)):
        mean = np.zeros(10)
        assert metrics.coverage(y, mean, np.full(10, std), 0.6) == pytest.approx(share)
        assert metrics.coverage_error(y, mean, np.full(10, std), 0.6) == pytest.approx(abs(share - 0.6))


def test_several_targets_are_averaged():
    y, mean, std = (np.stack([part, part], axis=1) for part in (Y, MEAN, STD))
    assert metrics.gaussian_nll(y, mean, std) == pytest.approx(metrics.gaussian_nll(Y, MEAN, STD))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], []), "n at least 1"),
        (([1.0], [1.0, 2.0], [1.0]), r"mean must have the shape of y, \(1,\)"),
        (([1.0], [1.0], [0.0]), "std must be above zero"),
        (([1.0, 2.0], [1.0, np.nan], [1.0, 1.0]), "mean must be finite; got nan in row 2"),
        ((["a"], [1.0], [1.0]), "y must hold real numbers"),
        (([1j], [1.0], [1.0]), "y must hold real numbers"),
        ((1.0, 1.0, 1.0), r"got shape \(\)"),
    ],
)
@pytest.mark.parametrize("score", [metrics.gaussian_nll, metrics.gaussian_crps, metrics.coverage])
def test_bad_arguments_are_refused(score, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        score(*arguments)


@pytest.mark.parametrize("level", [0.0, 1.0, 95, -0.1, float("nan")])
def test_a_level_is_a_probability(level):
    with pytest.raises(InvalidInputError, match="level of coverage must be a number between 0 and 1"):
        metrics.coverage([1.0], [1.0], [1.0], level)


def test_scores_of_classes():
    probability = np.array([[0.91, 0.09], [0.63, 0.37], [0.18, 0.82], [0.44, 0.56]])
    codes = np.array([0, 1, 1, 1])
    np.testing.assert_allclose(metrics.log_loss(codes, probability), -np.log([0.91, 0.37, 0.82, 0.56]).mean())
    # Bins of one row each: |1 - 0.91|, |0 - 0.63|, |1 - 0.82|, |1 - 0.56|.
    np.testing.assert_allclose(metrics.calibration_error(codes, probability), (0.09 + 0.63 + 0.18 + 0.44) / 4)
    # A single bin: |3/4 - mean confidence|.
    np.testing.assert_allclose(
        metrics.calibration_error(codes, probability, 1), abs(0.75 - (0.91 + 0.63 + 0.82 + 0.56) / 4)
    )
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1.0, 1.0, 1.0], 40_000)
    drawn = (rng.random((40_000, 1)) > p.cumsum(1)).sum(1)
    honest = metrics.calibration_error(drawn, p)
    assert honest < 0.01
    assert metrics.calibration_error(drawn, p**3 / (p**3).sum(1, keepdims=True)) > 10 * honest


@pytest.mark.parametrize(
    ("codes", "probability"),
    [
        (np.array([0, 2]), np.full((2, 2), 0.5)),
        (np.array([0.0, 1.0]), np.full((2, 2), 0.5)),
        (np.array([0]), np.full((2, 2), 0.5)),
        (np.zeros(0, int), np.zeros((0, 2))),
        (np.array([0, 1]), np.full(2, 0.5)),
    ],
)
def test_classes_that_cannot_be_scored(codes, probability):
    for score in (metrics.log_loss, metrics.calibration_error):
        with pytest.raises(InvalidInputError, match="column indices of classes"):
            score(codes, probability)
