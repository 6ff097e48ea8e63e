"""Noise probes on a grid with unevenly distributed rows: variances and samples against a solve for each point."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPWarning
from gigagp.inference.grid import likelihood
from gigagp.inference.iterative.sampled_variance import variance_from_samples
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from helpers import generator


def _tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    around = rng.uniform(-1, 1, (3000, 2))
    axis = np.linspace(-1, 1, 40)
    return {
        "gaussian": rng.standard_normal((3000, 2)),
        "clumped": np.concatenate([rng.standard_normal((200, 2)), 0.3 + 0.02 * rng.standard_normal((20000, 2))]),
        "gappy": around[np.abs(around[:, 0]) > 0.5],
        "lattice": np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2),
    }


TABLES = _tables()


def _statistics(X: np.ndarray) -> GridStatistics:
    grid = RegularGrid.around(X.min(0).tolist(), X.max(0).tolist(), (45, 45))
    return GridStatistics.from_rows(grid, X, np.zeros((len(X), 1)))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", TABLES)
def test_draws_have_the_gram_as_covariance_on_uneven_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every node, to within four standard errors and the error of the polynomial."""
    statistics = _statistics(TABLES[name])
    variance, count = statistics.gram.diagonal().clamp_min(0), 600
    near = likelihood._busiest_near(statistics.gram)

    def worst() -> float:
        draws = likelihood.draw_from_gram(statistics.gram, count, generator())
        error = (draws.square().mean(1).sqrt() - variance.sqrt()).abs()
        return float((error / (4.5 * (variance / (2 * count)).sqrt() + 0.01 * near.sqrt() + 1e-12)).max())

    assert worst() < 1
    if name == "gaussian":  # the control: rounding errors scaled to unit size
        monkeypatch.setattr(likelihood, "_ROUNDINGS", 0.0)
        assert worst() > 1e3


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("how", ["fit", "fit_table"])
@pytest.mark.parametrize("name", TABLES)
def test_error_bars_and_samples_agree_with_solves(name: str, how: str) -> None:
    """Stored and new samples, for rows held and streamed, inside the clumps and between them."""
    X, size = TABLES[name], 20 if name == "lattice" else 45  # a full lattice needs many steps
    y = np.sin(3 * X[:, 0]) * X[:, 1] + 0.1 * np.random.default_rng(1).standard_normal(len(X))
    gp = GPRegressor(
        kernels.Matern(nu=1.5, lengthscale=0.6),
        inference=inference.Grid(size, n_samples=200, final_tolerance=1e-6),  # for the reference solves
        optimizer=None,
        noise_variance=0.02,
        standardize=False,
    )
    gp = gp.fit(X, y) if how == "fit" else gp.fit_table((lambda: iter([(X, y)])), bounds=(X.min(0), X.max(0)))
    points = X[:: len(X) // 60]
    expected = gp.predict(points, return_std=True, variance="solve")[1]
    stored = gp.predict(points, return_std=True)[1]
    assert gp.posterior_.statistics.probes.shape[1] == 200  # all were collected, none drawn
    error = 4.5 / np.sqrt(2 * 200)
    assert (np.abs(stored / expected - 1) < error).all()
    fresh = gp.sample_y(points, 400, random_state=3).std(1)
    assert (np.abs(fresh / expected - 1) < 4.5 / np.sqrt(2 * 400) + 0.02).all()
    assert not (np.abs(1.5 * stored / expected - 1) < error).all()


def test_the_seed_chooses_the_samples() -> None:
    X = TABLES["gaussian"][:400]
    gp = GPRegressor(inference=inference.Grid(size=20), optimizer=None, mean="zero").fit(X, np.sin(X[:, 0]))
    first, again, other = (gp.sample_y(X[:9], 8, random_state=seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_variance_above_the_priors_is_cut_and_said() -> None:
    prior = torch.full((50,), 2.0, dtype=torch.float64)
    draws = 2.0**0.5 * torch.randn(50, 32, generator=generator(), dtype=torch.float64)
    found = variance_from_samples(draws, prior)  # some exceed the prior by chance, without a warning
    assert bool((found <= prior).all())
    assert bool((draws.square().mean(1) > prior).any())
    with pytest.warns(GigaGPWarning, match="times the prior's variance"):
        variance_from_samples(3 * draws, prior)
    with pytest.warns(GigaGPWarning, match="times the prior's variance"):
        variance_from_samples(draws * torch.nan, prior)


def test_a_fit_says_that_its_samples_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    X = TABLES["gaussian"][:400]
    whole = GridStatistics.from_rows

    def damaged(*arguments: object) -> GridStatistics:
        found = whole(*arguments)
        found.probes.mul_(1e4)
        return found

    monkeypatch.setattr(GridStatistics, "from_rows", damaged)
    gp = GPRegressor(inference=inference.Grid(size=20), optimizer=None)
    with pytest.warns(GigaGPWarning, match="times the prior's variance"):
        gp.fit(X, np.sin(X[:, 0]))
