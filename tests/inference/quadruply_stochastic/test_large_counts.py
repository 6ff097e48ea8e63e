"""Poisson counts of which one is far above all others: the best distribution, and default fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels
from gigagp.errors import FitWarning
from gigagp.inference.quadruply_stochastic.latent import Sites, best_latent
from gigagp.model.likelihoods import Poisson


def counts(largest: float, d: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 3, (30, d))
    y = rng.poisson(np.exp(1 + np.sin(2 * X[:, 0]))).astype(float)
    y[15] = largest
    return X, y


def missed_nats(K: np.ndarray, y: np.ndarray, alpha: np.ndarray, curvature: np.ndarray) -> float:
    """Return the gain in nats of a Newton step, and half the squared relative error of W, by dense algebra."""
    root = np.sqrt(curvature)
    bent = np.eye(len(y)) + root[:, None] * K * root
    half = np.linalg.solve(np.linalg.cholesky(bent), root[:, None] * K)
    rate = np.exp(K @ alpha + 0.5 * (K.diagonal() - (half**2).sum(0)))
    gradient = y - rate - alpha
    step = K @ gradient - half.T @ (half @ gradient)
    return float(0.5 * gradient @ step + 0.5 * np.square(rate / curvature - 1).sum())


@pytest.mark.parametrize("largest", [1e3, 1e5, 1e10])
@pytest.mark.parametrize("variance", [1.0, 50.0])
def test_a_large_count_has_the_best_distribution(largest: float, variance: float) -> None:
    X, y = counts(largest)
    points, targets = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    K = kernels.Matern(nu=1.5, lengthscale=[0.3], variance=variance).block(points, points)
    given = torch.empty(30, 0, dtype=torch.float64), torch.ones(30, dtype=torch.float64), targets, Poisson(), 20
    # Sites of another model, under which rates leave float64.
    for start in (None, Sites(1e5 * torch.ones_like(targets), torch.ones_like(targets))):
        found = best_latent(K, *given, start, 1e-12)
        assert missed_nats(K.numpy(), y, found.alpha[:, 0].numpy(), found.curvature.numpy()) < 1e-6
    control = found.alpha[:, 0].numpy() * 0.99
    assert missed_nats(K.numpy(), y, control, found.curvature.numpy()) > 1e-3


def dense_laplace(K: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode, from above so that Newton's steps are monotone, and the standard deviations there."""
    f = np.full(len(y), np.log(y.max() + 1) + 1)
    for _ in range(200):
        root = np.exp(0.5 * f)
        factor = np.linalg.cholesky(np.eye(len(y)) + root[:, None] * K * root)
        b = root**2 * f + y - root**2
        half = np.linalg.solve(factor, root * (K @ b))
        f = K @ (b - root * np.linalg.solve(factor.T, half))
    half = np.linalg.solve(factor, root[:, None] * K)
    return f, np.sqrt(K.diagonal() - (half**2).sum(0))


@pytest.mark.few(1)
@pytest.mark.parametrize(("largest", "d"), [(1e5, 1), (1e10, 3)])
def test_a_default_fit_with_a_large_count_agrees_with_dense_laplace(largest: float, d: int) -> None:
    X, y = counts(largest, d)
    with pytest.warns(FitWarning, match="A few counts are not predicted by the rows around them"):
        model = GPRegressor(likelihood="poisson", random_state=0).fit(X, y)
    points = torch.from_numpy(X)
    mean, std = model.predict_latent(X, return_std=True)
    mode, spread = dense_laplace(model.kernel_.block(points, points).numpy(), y)
    others = np.arange(30) != 15  # the mode of the largest count itself loses digits to its curvature
    assert np.all(np.abs(mean - mode)[others] < spread[others])  # a bound and a mode differ by a part of the deviation
    assert np.all(np.abs(np.log(std / spread)) < np.log(1.5))
    assert np.abs(mean[15] - np.log(largest)) < 2 / np.sqrt(largest)
    assert not np.all(np.abs(1.0 - mode)[others] < spread[others])  # control: a rate that is the same everywhere
