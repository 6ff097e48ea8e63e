"""Grid inference through `GPRegressor`, on arrays."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPWarning, InvalidInputError, MemoryBudgetError
from gigagp.inference.grid.spacing import axis_gap, cell_lengths
from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.interpolation import CUBIC

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (1500, 2))
NEW = RNG.uniform(0.1, 2.9, (200, 2))


def truth(points: np.ndarray) -> np.ndarray:
    return np.sin(2 * points[:, 0]) * np.cos(3 * points[:, 1]) + 0.5 * points[:, 0]


Y = truth(X) + 0.1 * RNG.normal(size=len(X))
KERNEL = kernels.Matern(2.5, [0.6, 0.5])


def fitted(**settings: object) -> GPRegressor:
    options: dict[str, object] = {"kernel": KERNEL, "inference": inference.Grid(size=(24, 24))} | settings
    return GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | options).fit(X, Y)


@pytest.fixture(scope="module")
def model() -> GPRegressor:
    return fitted()


@pytest.mark.slow
def test_as_good_as_exact_inference(model: GPRegressor) -> None:
    exact = GPRegressor(kernel=KERNEL, inference=inference.Exact()).fit(X, Y)
    mine, std = model.predict(NEW, return_std=True)
    other, other_std = exact.predict(NEW, return_std=True)
    assert np.abs(mine - other).max() < 0.02
    assert np.abs(std / other_std - 1).max() < 0.15
    assert abs(model.noise_variance_ / exact.noise_variance_ - 1) < 0.02
    gap = model.log_marginal_likelihood().value - exact.log_marginal_likelihood().value
    assert abs(gap) < 5
    assert model.solver_ == "dense factor"
    assert "24 x 24" in model.engine_


@pytest.mark.slow
def test_saved_and_loaded(model: GPRegressor, tmp_path: Path) -> None:
    model.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    for ask in (
        lambda gp: gp.predict(NEW, return_std=True),
        lambda gp: gp.predict(NEW[:5], return_cov=True),
        lambda gp: gp.sample_y(NEW[:5], 40, random_state=1),
    ):
        for one, other in zip(ask(model), ask(again), strict=True):
            assert np.array_equal(one, other)
    assert np.isclose(again.log_marginal_likelihood().value, model.log_marginal_likelihood().value, rtol=1e-11)
    assert again.inference_ == inference.Grid(size=(24, 24))
    assert again.describe() == model.describe()


@pytest.mark.slow
def test_iterative_solves_agree_with_dense_ones(model: GPRegressor) -> None:
    gp = fitted(
        kernel=model.kernel_,
        noise_variance=model.noise_variance_,
        optimizer=None,
        inference=inference.Grid(size=(24, 24), exact_nodes=0, final_tolerance=1e-6),
    )
    assert gp.solver_.startswith("conjugate gradients")
    std, expected = (one.predict(NEW, return_std=True)[1] for one in (gp, model))
    # the root of the kernel may have an error of a hundredth of the noise variance
    assert np.all(np.abs(gp.predict(NEW) - model.predict(NEW)) < 0.05 * expected)
    assert abs(np.mean((std / expected) ** 2) - 1) < 4 * (2 / 32) ** 0.5
    solved = gp.predict(NEW[:4], return_std=True, variance="solve")[1]
    assert np.abs(solved / expected[:4] - 1).max() < 1e-3
    estimate = gp.log_marginal_likelihood()
    assert abs(estimate.value - model.log_marginal_likelihood().value) < 4 * estimate.standard_error
    assert gp.posterior_.final_solve.status == "CONVERGED"


@pytest.mark.slow
def test_learning_without_values(model: GPRegressor) -> None:
    """Estimated gradients lead to the optimum of exact ones, within the error of the probes."""
    gp = fitted(inference=inference.Grid(size=(24, 24), exact_nodes=0))
    mine, exact = (one.kernel_.parameters()["lengthscale"].numpy() for one in (gp, model))
    assert np.abs(np.log(mine / exact)).max() < 0.25
    assert abs(np.log(gp.noise_variance_ / model.noise_variance_)) < 0.05
    assert gp.history_.steps[-1].solve is not None


@pytest.mark.slow
def test_automatic_size_follows_the_lengthscales() -> None:
    shapes = []
    for scale in (0.2, 0.6):
        gp = fitted(
            kernel=kernels.Matern(2.5, [scale, 2 * scale]),
            inference=inference.Grid(),
            optimizer=None,
            noise_variance=0.1,
        )
        shapes.append(gp.posterior_.grid.shape)
    for shape, scale in zip(shapes, (0.2, 0.6), strict=True):
        cells = np.ptp(X, axis=0) / np.array([scale, 2 * scale]) * 4
        assert np.all(np.abs(np.array(shape) - 5 - cells) <= 1)


def test_cells_of_kernels() -> None:
    kernel = kernels.RBF([1.0], columns=[0]) + kernels.Matern(0.5, [3.0, 6.0], columns=[0, 1])
    assert np.allclose(cell_lengths(kernel, 3, 1.0, CUBIC), [1 / 3, 1.0, np.inf])
    assert np.allclose(cell_lengths(kernels.Periodic(2.0, period=3.0), 1, 1.0, CUBIC), [3.0 / (2 * np.pi) / 5])


@pytest.mark.parametrize(
    "kernel", [kernels.RBF([0.5, 2.0]), kernels.Matern(2.5, [0.5, 2.0]), kernels.Matern(1.5, 0.7, 4.0)]
)
def test_less_noise_asks_for_finer_cells(kernel: kernels.Kernel) -> None:
    """Cells become finer until the variance left out, averaged over the rows, is about the noise variance."""
    kernel = kernel.bind(2)
    shares, variance = [], float(kernel.diagonal(torch.zeros(1, 2).double())[0])
    for ratio in (1e-1, 1e-2, 1e-3):
        cells = cell_lengths(kernel, 2, ratio * variance, CUBIC)
        grid = RegularGrid((0.0, 0.0), tuple(cells), (12, 12))
        points = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        indices, weights = grid.stencil((1 + 9 * points) * torch.tensor(cells))
        corner = grid.nodes()[indices[0]]
        gap = variance - float(((weights @ kernel.block(corner, corner)) * weights).sum(1).mean())
        shares.append(gap / (ratio * variance))
    assert shares[0] < 0.1  # the smoothness decides
    assert shares[1] < 1.0
    assert 0.6 < shares[2] < 0.85  # the noise variance decides
    lengths = kernel.parameters()["lengthscale"].expand(2)
    finest = cell_lengths(kernel, 2, 1e-12, CUBIC)
    assert np.allclose(finest, (lengths / 12).tolist())  # the number of nodes is limited
    # a spacing that ignores the noise leaves out more than the noise
    before = cell_lengths(kernel, 2, variance, CUBIC)
    assert sum(axis_gap(kernel, axis, 2, cell, CUBIC) for axis, cell in enumerate(before)) > 1.5e-3 * variance


def test_a_grid_chosen_for_little_noise_is_as_good_as_exact_inference() -> None:
    """At a noise of 0.1 % of the variance, where a grid of five nodes per lengthscale is worse."""
    kernel, noise, rng = kernels.Matern(1.5, [0.5]), 1e-3, np.random.default_rng(3)
    points, new = rng.uniform(0, 20, (400, 1)), rng.uniform(0.1, 19.9, (400, 1))
    K = kernel.bind(1).block(*2 * [torch.from_numpy(np.concatenate([points, new]))]).numpy()
    draw = np.linalg.cholesky(K + 1e-10 * np.eye(len(K))) @ rng.normal(size=len(K))
    y = draw[:400] + np.sqrt(noise) * rng.normal(size=400)
    given = {"kernel": kernel, "noise_variance": noise, "optimizer": None, "standardize": False, "mean": "zero"}

    def error(used: object) -> float:
        gp = GPRegressor(inference=used, **given).fit(points, y)
        return float(np.sqrt(np.mean((gp.predict(new) - draw[400:]) ** 2)))

    exact = error(inference.Exact())
    assert error(inference.Grid()) < 1.05 * exact
    with pytest.warns(GigaGPWarning, match="leaves out more variance"):
        assert error(inference.Grid(size=205)) > 1.05 * exact


def test_several_targets_share_the_grid() -> None:
    targets = np.stack([Y, 2 - 3 * Y], 1)
    given = {"optimizer": None, "noise_variance": 0.03, "hyperparameter_units": "standardized"}
    gp = GPRegressor(KERNEL, inference.Grid(size=20), outputs="shared", **given).fit(X, targets)
    alone = GPRegressor(KERNEL, inference.Grid(size=20), **given).fit(X, Y)
    both = gp.predict(NEW)
    assert np.allclose(both[:, 0], alone.predict(NEW), atol=1e-10)
    assert np.allclose(both[:, 1], 2 - 3 * both[:, 0], atol=1e-9)
    assert gp.sample_y(NEW[:4], 3).shape == (4, 2, 3)


@pytest.mark.slow
def test_low_rank_variances_and_their_parts() -> None:
    settings = inference.Grid(size=(24, 24), exact_nodes=0, variance="low_rank", rank=60)
    gp = fitted(inference=settings, optimizer=None, noise_variance=0.03, kernel=kernels.Matern(2.5, [0.5, 0.5]))
    _, std, parts = gp.predict(NEW[:30], return_std=True, return_parts=True)
    assert np.allclose(parts.mathematical**2 + parts.computational**2, std**2)
    exact = gp.predict(NEW[:30], return_std=True, variance="solve")[1]
    assert np.all(std >= exact * (1 - 1e-6))
    assert parts.computational.max() > 0.1 * exact.max()


# Bad input ------------------------------------------------------------------------------------------------------------


def test_what_a_grid_cannot_do_is_refused_before_any_work() -> None:
    grid = inference.Grid()
    wide = RNG.normal(size=(50, 6))
    with pytest.raises(InvalidInputError, match="sum of terms of at most 3 inputs"):
        GPRegressor(inference=grid).fit(wide, wide[:, 0])
    with pytest.raises(InvalidInputError, match="must be stationary"):
        GPRegressor(kernels.RBF() * kernels.Linear(), inference=grid).fit(X, Y)
    constant = X.copy()
    constant[:, 1] = 7.0
    with pytest.raises(InvalidInputError, match="Input 1 is constant"):
        GPRegressor(inference=grid).fit(constant, Y)
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(InvalidInputError, match="column 1, row 3"):
        GPRegressor(inference=grid).fit(broken, Y)
    with pytest.raises(InvalidInputError, match="must have 2 numbers"):
        fitted(inference=inference.Grid(size=(10, 10, 10)), optimizer=None)
    with pytest.raises(MemoryBudgetError, match="statistics"):
        fitted(inference=inference.Grid(size=3000), optimizer=None, memory_budget="200MiB")


@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # as well
def test_a_lengthscale_below_the_cell_is_warned_of() -> None:
    with pytest.warns(GigaGPWarning, match="cannot see the lengthscale"):
        fitted(kernel=kernels.Matern(1.5, 0.1), inference=inference.Grid(size=12), optimizer=None, noise_variance=1.0)


@pytest.mark.slow
def test_points_beyond_the_grid() -> None:
    far = np.array([[50.0, 1.0]])
    settings = {"optimizer": None, "noise_variance": 0.03}
    with pytest.raises(InvalidInputError, match=r"row 0 .*outside="):
        fitted(**settings).predict(far)
    # the message gives the region in the data's own units, one cell around the rows, with the names of the inputs
    named = pd.DataFrame({"east": X[:, 0], "north": 1e6 + 100 * X[:, 1]})
    gp = GPRegressor(kernels.Matern(2.5, [0.6, 50.0]), inference.Grid(size=24), **settings).fit(named, Y)
    message = r"1 of 1 rows lie .*'east' from -0\.15\d+ to 3\.15\d+, 'north' from 9999\d\d.*'east' = 50, 'north' = 1e"
    with pytest.raises(InvalidInputError, match=message):
        gp.predict(pd.DataFrame({"east": [50.0], "north": [1e6]}))
    with pytest.raises(InvalidInputError, match=message):
        gp.partial_fit(pd.DataFrame({"east": [50.0], "north": [1e6]}), [0.0])
    prior = fitted(inference=inference.Grid(size=20, outside="prior"), mean="zero", **settings)
    mean, std = prior.predict(far, return_std=True)
    assert abs(std[0] / Y.std() - 1) < 1e-6
    assert abs(mean[0] - Y.mean()) < 1e-9
    unknown = fitted(inference=inference.Grid(size=20, outside="prior"), **settings)
    assert 1.01 < unknown.predict(far, return_std=True)[1][0] / Y.std() < 1.2
    clamped = fitted(inference=inference.Grid(size=20, outside="clamp"), **settings)
    assert np.isfinite(clamped.predict(far)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [16, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_small_tables_without_noise(seed: int, size: int) -> None:
    """Their noise is learned without the grid, and has to hold what the grid leaves out all the same."""
    random = np.random.default_rng(seed)
    X, new = random.uniform(0, 5, (300, 2)), random.uniform(0.2, 4.8, (100, 2))
    y, expected = (np.sin(part[:, 0]) + 0.3 * part[:, 1] for part in (X, new))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # next to no noise is hard for solves; what is checked is the result
        gp = GPRegressor(kernels.RBF(), inference=inference.Grid(size=size)).fit(X, y)
        mean, std = gp.predict(new, return_std=True, include_noise=True)
    assert gp.score(X, y) > 0.9999
    assert np.mean(((mean - expected) / std) ** 2) < 1.5
