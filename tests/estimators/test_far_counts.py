"""Counts far from all others: what sets off the warning, what does not, and starts of learning that suit both."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor, kernels
from gigagp.errors import FitWarning

MESSAGE = "A few counts are not predicted by the rows around them"


def rows(n: int, d: int = 1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and smooth logarithms of rates."""
    X = np.random.default_rng(seed).uniform(0, 3, (n, d))
    return X, 1 + np.sin(2 * X[:, 0])


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("likelihood", "n", "d", "giant"),
    [("poisson", 30, 1, 1e5), ("negative-binomial", 60, 3, 1e4), ("zero-inflated-poisson", 40, 1, 1e5)],
)
def test_a_giant_count_is_named(likelihood: str, n: int, d: int, giant: float) -> None:
    X, log_rate = rows(n, d)
    y = np.random.default_rng(1).poisson(np.exp(log_rate)).astype(float)
    y[n // 2] = giant
    with pytest.warns(FitWarning, match=rf"{MESSAGE}: 1 of {n} lie far from the others, such as .* in row {n // 2}\."):
        GPRegressor(likelihood=likelihood, random_state=0).fit(X, y)


def peaks(X: np.ndarray, log_rate: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(9 * np.exp(-8 * (X[:, 0] - 1.5) ** 2))).astype(float)


def mostly_zero(X: np.ndarray, log_rate: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(0.2 * np.exp(log_rate - 1)).astype(float)


def rough(X: np.ndarray, log_rate: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(1 + 2 * rng.normal(size=len(X)))).astype(float)


def overdispersed(X: np.ndarray, log_rate: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(log_rate) * rng.gamma(0.5, 2, len(X))).astype(float)


@pytest.mark.few(2)
@pytest.mark.parametrize("made", [peaks, mostly_zero, rough, overdispersed])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_other_counts_are_not(made, seed: int) -> None:
    """A warning is an error here: peaks that rows around them predict, many zeros, rates without order."""
    X, log_rate = rows(80, seed=seed)
    GPRegressor(likelihood="poisson", random_state=0).fit(X, made(X, log_rate, np.random.default_rng(seed)))


@pytest.mark.slow
def test_counts_of_long_exposures_are_not() -> None:
    """The control is the same count without its exposure."""
    X, log_rate = rows(40)
    exposure = np.ones(40)
    exposure[20] = 1e5
    y = np.random.default_rng(1).poisson(exposure * np.exp(log_rate)).astype(float)
    GPRegressor(likelihood="poisson", random_state=0).fit(X, y, exposure=exposure)
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(likelihood="poisson", random_state=0).fit(X, y)


@pytest.mark.slow
@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(10))
def test_learning_of_ordinary_counts_ends_as_high_as_from_random_starts(seed: int) -> None:
    """Learning begins at the variance of logarithms of counts; a nat less than from other starts tells nothing."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(30, 120)), 1 + seed % 3
    X = rng.uniform(0, 3, (n, d))
    log_rate = rng.uniform(-1, 4) + rng.uniform(0.3, 1.5) * np.sin(rng.uniform(1, 4) * X).sum(1)
    y = rng.poisson(np.exp(log_rate)).astype(float)
    found, allowed = evidence_from(X, y, None), 1.0
    for _ in range(3):
        lengthscale, variance = np.exp(rng.normal(size=d)), float(np.exp(rng.normal()))
        start = kernels.Matern(nu=1.5, lengthscale=list(lengthscale), variance=variance)
        assert found > evidence_from(X, y, start) - allowed


def evidence_from(X: np.ndarray, y: np.ndarray, kernel: kernels.Kernel | None) -> float:
    gp = GPRegressor(kernel, likelihood="poisson", random_state=0).fit(X, y)
    return gp.log_marginal_likelihood().value
