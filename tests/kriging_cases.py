"""Places, models and dense equations for the tests of maps."""

from __future__ import annotations

import math

import numpy as np

from gigagp import GPRegressor, inference, kernels


def uneven(n: int = 60, seed: int = 0) -> np.ndarray:
    """Return places of which a third is clumped, with two that are measured twice, and one far away."""
    source = np.random.default_rng(seed)
    X = source.uniform(0, 100, (n, 2))
    X[: n // 3] = X[0] + source.normal(size=(n // 3, 2))
    X[5], X[9] = X[4], X[8]
    X[-1] = [400.0, 350.0]
    return X


def table(X: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    return {"easting": X[:, 0], "northing": X[:, 1], "z": values}


def fixed_model(kernel=None, noise: float = 0.05, **options) -> GPRegressor:
    kernel = kernels.Matern(1.5, 25.0, 2.0, ard=False) if kernel is None else kernel
    return GPRegressor(kernel, inference.Exact(), noise_variance=noise, optimizer=None, **options)


def universal_kriging(X, y, new, covariance, noise, F, new_F):
    """Return mean and std of the latent function for a trend of columns F (n, p), by the system with multipliers."""
    n, p = F.shape
    system = np.block([[covariance(X, X) + noise * np.eye(n), F], [F.T, np.zeros((p, p))]])
    right = np.vstack([covariance(X, new), new_F.T])
    weights = np.linalg.solve(system, right)
    variance = np.diag(covariance(new, new)) - (weights * right).sum(0)
    return weights[:n].T @ y, np.sqrt(variance)


def ordinary_kriging(X, y, new, covariance, noise):
    """Return mean and standard deviation of the latent function by the system with a Lagrange multiplier."""
    return universal_kriging(X, y, new, covariance, noise, np.ones((len(X), 1)), np.ones((len(new), 1)))


def matern(A, B):
    t = math.sqrt(3) * np.sqrt(((A[:, None] - B[None]) ** 2).sum(2)) / 25.0
    return 2.0 * (1 + t) * np.exp(-t)
