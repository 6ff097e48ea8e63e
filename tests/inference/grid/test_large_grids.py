"""Grids beyond the nodes for which dense factors are used: every answer of a fit, against dense algebra."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import norm

from contract import dense
from contract.dense import Array, Dense
from gigagp import GPRegressor, inference, kernels
from gigagp.model.means import Mean

NODES, ROWS, NOISE = (39, 40), 60, 0.02
#: Of solves at a final tolerance of 1e-9, in units of the answers' size.
SOLVED = 1e-5
#: Samples that are drawn, and standard errors of their moments that may be seen.
SAMPLES, ERRORS = 200, 5.5
MEANS = ("constant", "linear")
SCHEMES = {
    "few rows": inference.Grid(size=NODES, final_tolerance=1e-9),
    "linear interpolation": inference.Grid(size=NODES, interpolation="linear", final_tolerance=1e-9),
    "solves": inference.Grid(size=NODES, exact_nodes=0, variance="solve", final_tolerance=1e-9),
    "low rank": inference.Grid(size=NODES, exact_nodes=0, variance="low_rank", final_tolerance=1e-9),
    "samples": inference.Grid(size=NODES, exact_nodes=0, n_samples=SAMPLES, final_tolerance=1e-9),
}


def table() -> tuple[Array, Array, Array]:
    """Return rows of which some are clumped and some repeated, their targets, and points between them."""
    draw = np.random.default_rng(0)
    X = draw.uniform(size=(ROWS, 2)) * [1.0, 1e3]
    X[:10] = X[10] + 1e-3 * draw.normal(size=(10, 2)) * [1.0, 1e3]
    X[20:25] = X[25:30]
    y = np.sin(6 * X[:, 0]) + 1e-3 * X[:, 1] + 0.1 * draw.normal(size=ROWS)
    return X, y, np.concatenate([draw.uniform(0.1, 0.9, size=(6, 2)) * [1.0, 1e3], X[:1], X[20:21]])


def fitted(settings: inference.Grid, mean: str) -> tuple[GPRegressor, Dense]:
    """Return a fit at given hyperparameters, and the answers of dense algebra for the same grid at `table`'s points."""
    X, y, new = table()
    lengths = [0.2, 250.0]
    kernel = kernels.Matern(1.5, lengths, 1.3)
    gp = GPRegressor(kernel, settings, None, mean=mean, noise_variance=NOISE, standardize=False).fit(X, y)
    grid = gp.posterior_.grid
    assert grid.size > 1500
    covariance = dense.interpolated(
        dense.matern(1.5, np.array(lengths), 1.3), grid.lower, grid.spacing, grid.shape, grid.interpolation
    )

    def basis(points: Array) -> Array:
        ones = np.ones((len(points), 1))
        return np.concatenate([ones, points], 1) if mean == "linear" else ones

    return gp, dense.kriging(covariance, X, y[:, None], new, np.full(ROWS, NOISE), basis)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "mean"), [(name, MEANS[place % 2]) for place, name in enumerate(SCHEMES)])
def test_all_answers_are_those_of_dense_algebra(name, mean):
    gp, right = fitted(SCHEMES[name], mean)
    new, wanted, deviation = table()[2], right.mean[:, 0], np.sqrt(right.variance)
    size = np.sqrt(1.3)
    from_samples = gp.posterior_.notes() != {}
    assert from_samples == (name == "samples")
    mean_found, std = gp.predict(new, return_std=True)
    np.testing.assert_allclose(mean_found, wanted, atol=SOLVED * size)
    share = ERRORS / np.sqrt(2 * SAMPLES) if from_samples else SOLVED
    np.testing.assert_allclose(std, deviation, rtol=share, atol=SOLVED * size)
    covariance = gp.predict(new, return_cov=True)[1]
    np.testing.assert_allclose(covariance, right.covariance, atol=SOLVED * size**2)
    single = np.array([[part[0] for part in gp.predict(x[None], return_std=True)] for x in new])
    np.testing.assert_allclose(single, np.stack([mean_found, std], 1), atol=SOLVED * size)
    levels = np.array([0.05, 0.5, 0.9])
    quantiles = gp.predict_quantile(new, levels, include_noise=False)
    np.testing.assert_allclose(quantiles, wanted[:, None] + std[:, None] * norm.ppf(levels), atol=SOLVED * size)
    noisy = np.sqrt(std**2 + NOISE)
    at = wanted + 0.7 * noisy
    np.testing.assert_allclose(gp.predictive_log_density(new, at), norm.logpdf(at, wanted, noisy), atol=1e-3)
    draws = gp.sample_y(new, SAMPLES, random_state=1)
    np.testing.assert_array_less(np.abs(draws.mean(1) - wanted), ERRORS * deviation / SAMPLES**0.5 + SOLVED * size)
    pairs = np.sqrt((deviation[:, None] ** 2 * deviation**2 + right.covariance**2) / SAMPLES)
    np.testing.assert_array_less(np.abs(np.cov(draws) - right.covariance), ERRORS * pairs + SOLVED * size**2)


def test_the_comparison_finds_a_kernel_without_interpolation():
    """The control: on a grid this fine the process between the nodes still differs from the kernel's."""
    gp, right = fitted(SCHEMES["linear interpolation"], "constant")
    X, y, new = table()
    kernel = dense.matern(1.5, np.array([0.2, 250.0]), 1.3)
    itself = dense.kriging(kernel, X, y[:, None], new, np.full(ROWS, NOISE), lambda points: np.ones((len(points), 1)))
    found = gp.predict(new, return_std=True)[1]
    assert np.abs(found - np.sqrt(itself.variance)).max() > 100 * np.abs(found - np.sqrt(right.variance)).max()


# Means that the interpolation does not reproduce ----------------------------------------------------------------------


@dataclass(frozen=True)
class Waves(Mean):
    """A mean of a constant and a wave."""

    name = "waves"

    def basis(self, X: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.ones_like(X[:, :1]), (3 * X[:, :1]).sin()], 1)


@pytest.mark.filterwarnings("ignore:The grid leaves out more variance")
@pytest.mark.parametrize("outside", ["refuse", "clamp", "prior"])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
def test_a_mean_is_the_same_at_rows_and_in_predictions(interpolation, outside):
    """Rows had been explained by the interpolated basis, and predictions were made with the basis itself."""
    draw = np.random.default_rng(0)
    X, new = draw.uniform(-1, 1, size=(20, 1)), draw.uniform(-0.9, 0.9, size=(5, 1))
    y = 3 * np.sin(3 * X[:, 0]) + 0.1 * draw.normal(size=20)
    settings = inference.Grid(size=9, interpolation=interpolation, outside=outside)
    gp = GPRegressor(
        kernels.Matern(1.5, 0.5, 0.2), settings, None, mean=Waves(), noise_variance=NOISE, standardize=False
    ).fit(X, y)
    geometry = gp.posterior_.grid.lower, gp.posterior_.grid.spacing, gp.posterior_.grid.shape, interpolation
    nodes = (geometry[0][0] + geometry[1][0] * np.arange(9))[:, None]

    def itself(points: Array) -> Array:
        return Waves().basis(torch.from_numpy(points)).numpy()

    def interpolated(points: Array) -> Array:
        return dense.interpolation_weights(points, *geometry) @ itself(nodes)

    covariance = dense.interpolated(dense.matern(1.5, 0.5, 0.2), *geometry)
    right, mixed = (
        dense.kriging(covariance, X, y[:, None], new, np.full(20, NOISE), basis) for basis in (interpolated, itself)
    )
    mean, std = gp.predict(new, return_std=True)
    np.testing.assert_allclose(mean, right.mean[:, 0], rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(right.variance), rtol=1e-8)
    assert np.abs(mean - mixed.mean[:, 0]).max() > 1e-4  # the control
