"""The warning of rows that all others contradict: how seldom it is false, and what sets it off."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning
from gigagp.estimators.fit_checks.poor_fits import chance_of_largest

MESSAGE = "error bars are too small for some rows"
NOISES = (1e-6, 0.05, 1.0, 30.0)


def draw(n: int, seed: int, noise: float | None = None) -> tuple[np.ndarray, np.ndarray, float]:
    """Return rows of the default model, some of them in clumps, targets, and the noise variance."""
    random = np.random.default_rng(seed)
    d = (1, 2, 6)[seed % 3]
    noise = NOISES[seed % len(NOISES)] if noise is None else noise
    X = random.uniform(-2, 2, (n, d)) if seed % 2 else random.normal(size=(n, d)) * random.choice([0.1, 1.0], (n, 1))
    r = np.sqrt(3 * ((X[:, None] - X) ** 2).sum(-1))
    K = (1 + r) * np.exp(-r) + noise * np.eye(n)
    return X, np.linalg.cholesky(K) @ random.normal(size=n), noise


def sizes_of(gp: GPRegressor) -> torch.Tensor:
    found = gp.posterior_.left_out()
    return (gp.posterior_.table.Y - found.mean).abs() * found.variance.rsqrt()[:, None]


@pytest.mark.slow
def test_the_chance_is_a_bound_for_the_model_itself():
    """However much the rows are correlated; error bars that are 15 % too small break it (the control)."""
    chances, narrower = [], []
    for seed in range(150):
        X, y, noise = draw(40, seed)
        kernel = kernels.Matern(1.5, 1.0, 1.0)
        gp = GPRegressor(kernel, "auto", None, mean="zero", standardize=False, noise_variance=noise).fit(X, y)
        chances.append(chance_of_largest(sizes_of(gp)))
        narrower.append(chance_of_largest(sizes_of(gp) / 0.85))
    for level in (0.02, 0.1, 0.3):
        allowed = 150 * level + 4 * np.sqrt(150 * level * (1 - level))
        assert np.sum(np.array(chances) < level) < allowed
    assert np.sum(np.array(narrower) < 0.02) > 150 * 0.02 + 4 * np.sqrt(150 * 0.02)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Most targets vary")  # in clumps
@pytest.mark.parametrize(("n", "fits"), [(20, 30), (60, 15)])
def test_learned_hyperparameters_do_not_make_large_errors_likelier(n, fits):
    """No warning, which is an error here, and as few small chances as there should be."""
    chances = []
    for seed in range(fits):
        X, y, _ = draw(n, seed)
        chances.append(chance_of_largest(sizes_of(GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, y))))
    assert np.sum(np.array(chances) < 0.05) < fits * 0.05 + 4 * np.sqrt(fits * 0.05)


SETTINGS = {
    "default": {},
    "vecchia": {"inference": inference.Vecchia()},
    "float32": {"dtype": "float32"},
    "linear mean": {"mean": "linear"},
    "without units": {"standardize": False},
}


def with_wrong(n: int = 100, *, errors: float = 12.0, where: int = 37) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a function with noise of .1, and one wrong target, by so many standard deviations."""
    random = np.random.default_rng(3)
    X = random.uniform(-2, 2, (n, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * random.normal(size=n)
    y[where] += 0.1 * errors
    return X, y


@pytest.mark.few(3)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_that_all_others_contradict_is_named(name):
    X, y = with_wrong()
    with pytest.warns(FitWarning, match=rf"{MESSAGE}: {y[37]:.3g} in row 37 lies .* what all other rows predict"):
        GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | SETTINGS[name], random_state=0).fit(X, y)
    GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | SETTINGS[name], random_state=0).fit(
        *with_wrong(errors=0.0)
    )  # the control: no warning


def test_what_it_advises_holds():
    """With Student-t noise the row is no contradiction, and the log density of new rows is better."""
    X, y = with_wrong()
    new, values = with_wrong(errors=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        before = (
            GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, y).predictive_log_density(new, values).mean()
        )
    after = GPRegressor(likelihood="student-t", random_state=0).fit(X, y)
    assert after.predictive_log_density(new, values).mean() > before


def test_heavy_tails_warn():
    random = np.random.default_rng(1)
    X = random.uniform(-2, 2, (200, 1))
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(
            X, np.sin(2 * X[:, 0]) + 0.3 * random.standard_t(3, 200)
        )


def test_one_of_several_targets_is_named():
    X, y = with_wrong()
    Y = np.column_stack([with_wrong(errors=0.0)[1], y])
    for outputs, place in (("shared", "in row 37"), ("independent", r"y\[:, 1\].* in row 37")):
        with pytest.warns(FitWarning, match=rf"{place} lies"):
            GPRegressor(kernels.Matern(nu=1.5), outputs=outputs, random_state=0).fit(X, Y)


UNLEARNED = [
    {"noise_variance": 0.01, "optimizer": None},
    {"optimizer": optimization.Adam(steps=2)},
    {"likelihood": "student-t"},
    {"likelihood": "laplace"},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("settings", UNLEARNED)
def test_only_gaussian_noise_that_was_learned_to_the_end_is_looked_at(settings):
    GPRegressor(kernels.RBF(0.5), random_state=0, **settings).fit(*with_wrong())
