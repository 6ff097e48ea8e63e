"""Answers with uncertain hyperparameters, against sums over a dense grid of hyperparameters in float64."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import gigagp
from gigagp import GPClassifier, GPRegressor, averaged, inference, kernels, optimization
from gigagp.errors import FitWarning, InvalidInputError, MemoryBudgetError
from gigagp.inference import uncertain_hyperparameters as uncertain
from gigagp.inference.mixture_posterior import MixturePosterior

NEW = np.linspace(-2.2, 3.0, 9)[:, None]
LEVELS = (0.025, 0.25, 0.75, 0.975)


def rows(n: int, noise: float, seed: int, kind: str = "even") -> tuple[np.ndarray, np.ndarray]:
    """Return a standardized table of one input, whose rows are even, clumped with a gap, or repeated."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    if kind == "clumped":
        X[n // 3 :] = 2 * X[: n - n // 3] ** 0.5 + 0.02 * rng.normal(size=(n - n // 3, 1))
    elif kind == "repeated":
        X[n // 2 :] = X[: n - n // 2]
    y = np.sin(2 * X[:, 0]) + noise * rng.normal(size=n)
    return (X - X.mean()) / X.std(), (y - y.mean()) / y.std()


class Dense:
    """The answers of a Matern-3/2 kernel with a constant mean, summed over a grid of its three hyperparameters.

    The constant has a flat prior. The logs of lengthscale, standard deviation and noise have the documented priors.
    """

    centres, widths = np.array([0.0, 0.0, math.log(0.3)]), np.array([1.5, 1.0, 1.0])

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X, self.y = torch.from_numpy(X), torch.from_numpy(y)
        axes = [np.linspace(c - 3 * w, c + 3 * w, 17) for c, w in zip(self.centres, self.widths, strict=True)]
        for _ in range(2):  # a finer grid where the density is
            self._compute(axes)
            mean = self.weights @ self.points
            std = (self.weights @ (self.points - mean) ** 2).sqrt() + 0.02
            axes = [
                np.linspace(max(float(m - 5 * s), axis[0]), min(float(m + 5 * s), axis[-1]), 21)
                for m, s, axis in zip(mean, std, axes, strict=True)
            ]
        self._compute(axes)

    def _compute(self, axes: list[np.ndarray]) -> None:
        self.points = torch.cartesian_prod(*(torch.from_numpy(axis) for axis in axes))
        parts = [self._of(some) for some in self.points.split(1000)]
        logs, self.means, self.variances, self.noises = (torch.cat(part) for part in zip(*parts, strict=True))
        self.weights = (logs - logs.logsumexp(0)).exp()

    def _of(self, points: torch.Tensor) -> tuple[torch.Tensor, ...]:
        length, scale, noise = points.exp().T[:, :, None, None]
        n, new, ones = len(self.y), torch.from_numpy(NEW), torch.ones(len(points), len(self.y), 1).double()

        def kernel(Z: torch.Tensor) -> torch.Tensor:
            r = math.sqrt(3) * (self.X - Z.T).abs() / length
            return scale**2 * (1 + r) * torch.exp(-r)

        inverse = torch.linalg.inv(kernel(self.X) + noise**2 * torch.eye(n).double())
        gram = ones.mT @ inverse @ ones
        beta = ones.mT @ inverse @ self.y[:, None] / gram
        residual = self.y[:, None] - ones * beta
        logs = 0.5 * (torch.linalg.slogdet(inverse)[1] - (residual.mT @ inverse @ residual + gram.log())[:, 0, 0])
        penalty = ((points - torch.from_numpy(self.centres)) / torch.from_numpy(self.widths)).square().sum(1) / 2
        cross = kernel(new)
        rest = 1 - ones.mT @ inverse @ cross
        mean = (beta + residual.mT @ inverse @ cross)[:, 0]
        variance = scale[:, 0] ** 2 - (cross * (inverse @ cross)).sum(1, keepdim=True) + rest**2 / gram
        return logs - penalty, mean, variance[:, 0], noise[:, 0] ** 2

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        mean = self.weights @ self.means
        return mean.numpy(), (self.weights @ (self.variances + (self.means - mean) ** 2)).sqrt().numpy()

    def distribution(self, values: np.ndarray) -> np.ndarray:
        """Return the distribution function of a measurement at values of shape (m, k)."""
        z = (torch.from_numpy(values)[None] - self.means[:, :, None]) / (self.variances + self.noises).sqrt()[:, :, None]
        return (self.weights[:, None, None] * torch.special.ndtr(z)).sum(0).numpy()


CASES = [
    (15, 0.3, "even"),
    (20, 1.0, "clumped"),
    (30, 3.0, "even"),
    (30, 0.03, "clumped"),
    (40, 0.3, "repeated"),
    (60, 0.3, "clumped"),
]


@pytest.fixture(scope="module")
def dense() -> list[tuple[GPRegressor, Dense]]:
    found = []
    for seed, case in enumerate(CASES):
        X, y = rows(*case[:2], seed, case[2])
        found.append((GPRegressor(standardize=False).fit(X, y), Dense(X, y)))
    return found


def test_it_is_the_sum_over_a_dense_grid(dense):
    """Errors are those of a few draws; at the learned hyperparameters the same measures fail by factors."""
    errors: dict[str, list[np.ndarray]] = {"learned": [], "laplace": []}
    tails: dict[str, list[np.ndarray]] = {"learned": [], "laplace": []}
    for gp, truth in dense:
        mean, std = truth.moments()
        for name in errors:
            m, s = gp.predict(NEW, return_std=True, hyperparameters=name)
            errors[name].append(np.concatenate([(m - mean) / std, np.log(s / std)]))
            values = gp.predict_quantile(NEW, LEVELS, hyperparameters=name)
            tails[name].append(truth.distribution(values) - LEVELS)
    rms = {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in errors.items()}
    assert rms["laplace"] < 0.1 < 0.17 < rms["learned"]
    level = {name: float(np.abs(found).mean()) for name, found in tails.items()}
    assert level["laplace"] < 0.01 < 0.015 < level["learned"]


def test_neighbours_and_solves_agree_with_it():
    X, y = rows(40, 0.3, 0)
    exact = GPRegressor(inference=inference.Exact()).fit(X, y)
    m, s = exact.predict(NEW, return_std=True, hyperparameters="laplace")
    near = GPRegressor(exact.kernel_, inference.Vecchia(39, 39), noise_variance=exact.noise_variance_).fit(X, y)
    mean, std = near.predict(NEW, return_std=True, hyperparameters="laplace")
    np.testing.assert_allclose(mean, m, atol=0.15)
    np.testing.assert_allclose(std, s, rtol=0.2)
    solved = GPRegressor(inference=inference.Iterative(final_tolerance=1e-8)).fit(X, y)
    mean, std = solved.predict(NEW, return_std=True, variance="solve", hyperparameters="laplace")
    np.testing.assert_allclose(mean, m, atol=0.15)
    np.testing.assert_allclose(std, s, rtol=0.2)
    assert np.isfinite(solved.sample_y(NEW, 3, hyperparameters="laplace")).all()
