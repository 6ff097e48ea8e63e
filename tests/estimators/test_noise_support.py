"""More noise than learned where left-out rows support it, or noise explains rows as well; and no more elsewhere."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning
from gigagp.estimators.fit_checks.noise_support import most_supported


def steps(random: np.random.Generator, n: int) -> np.ndarray:
    """Pure noise that is given in tenths, so that some rows have equal values by chance."""
    return np.round(random.uniform(size=n), 1)


def standardized(gp: GPRegressor, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    return (y - mean) / std


def pure_noise(d: int, repeats: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Stations, the last of which are the first ones again, with equal values."""
    random = np.random.default_rng(seed)
    X, y = random.uniform(size=(25, d)), steps(random, 25)
    X[25 - repeats :], y[25 - repeats :] = X[:repeats], y[:repeats]
    return X, y, random


@pytest.mark.few(1)
@pytest.mark.parametrize(("d", "repeats"), [(1, 0), (2, 0), (1, 2), (2, 2)])
def test_pure_noise_is_noise_with_and_without_repeated_rows(d, repeats):
    """Two stations that repeated by chance had been predicted with a std of .003; new values lay 20 of these off."""
    anew, elsewhere = [], []
    for seed in range(3):
        X, y, random = pure_noise(d, repeats, seed)
        gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
        anew.append(standardized(gp, np.tile(X, (8, 1)), steps(random, 200)))
        elsewhere.append(standardized(gp, random.uniform(size=(200, d)), steps(random, 200)))
    assert 0.5 < np.sqrt(np.mean(np.square(anew))) < 1.8
    assert 0.5 < np.sqrt(np.mean(np.square(elsewhere))) < 1.8


def test_few_repeats_do_not_make_a_fit_more_certain():
    """In six inputs 25 rows do not tell noise from a function; two that repeat must not seem to."""
    X, y, _ = pure_noise(6, 2, 0)
    with_repeats, without = (
        GPRegressor(kernels.Matern(nu=1.5)).fit(X, y),
        GPRegressor(kernels.Matern(nu=1.5)).fit(X[:23], y[:23]),
    )
    assert with_repeats.noise_variance_ == pytest.approx(without.noise_variance_, rel=0.5)


@pytest.mark.parametrize("d", [1, 6])
def test_stations_that_agree_keep_their_own_values(d):
    """The control: what differs between places and not within them is no noise, although no two places correlate."""
    random = np.random.default_rng(0)
    places, values = random.permutation(15)[:, None] / 15 * np.ones(d), random.normal(size=15)
    X, y = np.repeat(places, 3, axis=0), np.repeat(values, 3) + 0.05 * random.normal(size=45)
    gp = GPRegressor(kernels.Matern(1.5, [0.01] * d, 1.0, fixed=["lengthscale"]), noise_variance=0.01).fit(X, y)
    mean, std = gp.predict(places, return_std=True, include_noise=True)
    assert np.abs(mean - values).max() < 0.2
    assert std.max() < 0.2


@pytest.mark.parametrize(
    ("method", "fit"),
    [
        (inference.Exact(), "fit"),
        (inference.Vecchia(10, 10), "fit"),
        (inference.Iterative(), "fit"),
        (inference.Vecchia(10, 10), "fit_table"),
    ],
)
def test_a_lengthscale_below_all_distances_is_noise(method, fit):
    """Also of streamed rows that are all held: these had kept the learned noise."""
    random = np.random.default_rng(1)
    X, y = random.uniform(size=(40, 2)), random.normal(size=40)
    kernel = kernels.Matern(1.5, [1e-3, 1e-3], 1.0, fixed=["lengthscale"])
    gp = GPRegressor(kernel, method, optimization.LBFGS(20), noise_variance=0.01)
    gp = gp.fit(X, y) if fit == "fit" else gp.fit_table((X, y))
    anew = standardized(gp, X, random.normal(size=40))
    assert 0.7 < np.sqrt(np.mean(anew**2)) < 1.4
    assert "counts as noise" in gp.describe()


def zeros_and_earnings(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of the targets are zero, whatever the inputs, of which many repeat (DAAG::psid3)."""
    random = np.random.default_rng(seed)
    X = np.column_stack([random.integers(0, 2, size=(n, 4)), random.integers(20, 30, size=n)]).astype(float)
    return X, np.where(random.random(n) < 0.5, 0.0, random.exponential(5000, size=n))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:The rows around", "ignore:Most targets vary")
@pytest.mark.parametrize(("kernel", "seeds"), [(None, 3), ("average", 1)])
def test_many_equal_targets_leave_noise(kernel, seeds):
    for seed in range(seeds):
        X, y = zeros_and_earnings(96, seed)
        new, targets = zeros_and_earnings(400, 10 + seed)
        gp = GPRegressor(kernel).fit(X, y)
        mean, std = gp.predict(new, return_std=True, include_noise=True)
        assert gigagp.metrics.gaussian_nll(targets, mean, std) - math.log(y.std()) < 2.5
        assert np.mean(np.abs(targets - mean) < 1.96 * std) > 0.85


@pytest.mark.slow
def test_functions_keep_their_noise():
    """The control: no word and no more noise where intervals hold, also without noise, in clumps and large units."""
    random = np.random.default_rng(2)
    X = random.uniform(-2, 2, size=(60, 2))
    clumped = np.concatenate([X[:20], 0.01 * X[20:]])
    for rows, noise, unit in ((X, 0.0, 1.0), (X, 0.1, 1.0), (X, 0.1, 1e6), (clumped, 0.1, 1.0)):
        y = unit * (np.sin(2 * rows[:, 0]) + rows[:, 1] + noise * random.normal(size=60))
        gp = GPRegressor(kernels.Matern(nu=1.5)).fit(rows, y)
        assert not gp.likelihood_note_
        assert gp.noise_variance_ < (1.8 * noise * unit) ** 2 + 1e-5 * unit**2


def test_near_rows_of_a_smooth_function_are_no_repeats():
    """Two of these are .0002 apart, and had counted as one place, from which alone the noise was learned."""
    X = np.random.default_rng(0).uniform(size=(20, 1))
    assert not GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.sin(8 * X[:, 0])).likelihood_note_


def test_rows_of_a_smooth_function_are_no_repeats_beside_scattered_ones():
    """The control: most rows lie along a smooth function, so that each is near the next, and 30 lie far from all."""
    random = np.random.default_rng(2)
    X = np.concatenate([random.uniform(0, 1, size=70), 100.0 * np.arange(1, 31)])[:, None]
    y = np.where(X[:, 0] <= 1, np.sin(6 * X[:, 0]), random.normal(size=100)) + 0.01 * random.normal(size=100)
    gp = GPRegressor(kernels.RBF(0.3), optimizer=optimization.LBFGS(50)).fit(X, y)
    assert not gp.likelihood_note_
    assert gp.noise_variance_ < 0.01


def test_a_single_row_decides_nothing():
    random = np.random.default_rng(3)
    X = np.sort(random.uniform(-2, 2, size=(60, 1)), axis=0)
    y = np.sin(2 * X[:, 0]) + 0.01 * random.normal(size=60)
    y[30] += 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # of the far target
        assert not GPRegressor(kernels.Matern(nu=1.5)).fit(X, y).likelihood_note_


def test_the_supported_noise_is_that_of_the_density():
    random = torch.Generator().manual_seed(0)
    variances = 0.1 + torch.rand(400, generator=random, dtype=torch.float64)
    whole = variances + 2.0
    errors = (torch.randn(400, generator=random, dtype=torch.float64) * whole.sqrt())[:, None]
    more, gain = most_supported(errors, variances)
    assert more == pytest.approx(2.0, rel=0.25)
    assert gain > 50
    assert most_supported(errors * (variances / whole).sqrt()[:, None], variances)[1] < 2.0
    far = torch.zeros(50, 1, dtype=torch.float64)
    far[7] = 100.0  # one row alone
    assert most_supported(far, torch.ones(50, dtype=torch.float64)) == (0.0, 0.0)
    assert most_supported(torch.zeros(5, 1, dtype=torch.float64), torch.ones(5, dtype=torch.float64)) == (0.0, 0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": None, "noise_variance": 1e-6},
        {"noise_variance": np.full(25, 1e-6)},
        {"kernel": kernels.Matern(1.5) + kernels.White(1e-6, fixed=True)},
    ],
    ids=["given", "known", "white"],
)
def test_noise_that_is_given_stays(options):
    random = np.random.default_rng(0)
    X, y = random.uniform(size=(25, 2)), random.normal(size=25)
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | options).fit(X, y)
    assert not gp.likelihood_note_
    if "noise_variance" in options:
        np.testing.assert_allclose(gp.noise_variance_, options["noise_variance"])


def test_the_note_is_kept_in_a_file(tmp_path):
    random = np.random.default_rng(1)
    X, y = random.uniform(size=(25, 2)), random.normal(size=25)
    gp = GPRegressor(kernels.Matern(1.5, [1e-3, 1e-3], fixed=["lengthscale"])).fit(X, y)
    gp.save(tmp_path / "m.gp")
    assert gigagp.load(tmp_path / "m.gp").describe() == gp.describe()
    assert "counts as noise" in gp.describe()
