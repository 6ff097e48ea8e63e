"""The warning of structure in what a fit takes for noise: what sets it off, and how seldom it is false."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import FitWarning
from gigagp.inference.contract.structured_noise import Likeness, likeness

MESSAGE = "has structure"


def draw(n: int, seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a Matern kernel of unit scale with a mean, half of the time in clumps, and their targets."""
    random = np.random.default_rng(seed)
    X = random.uniform(-2, 2, (n, (1, 2, 6)[seed % 3]))
    if seed % 2:
        X = X[random.integers(n // 10, size=n)] + 0.1 * random.normal(size=X.shape)
    r = np.sqrt(3 * ((X[:, None] - X) ** 2).sum(-1))
    K = (1 + r) * np.exp(-r) + noise * np.eye(n)
    return X, 3.0 + np.linalg.cholesky(K) @ random.normal(size=n)


def two_scales(n: int, seed: int = 0, *, ripple: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a function that is slow along two of six inputs, and fast along all of them."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 6))
    slow = np.sin(2 * X[:, 0]) + np.where(X[:, 0] > 0, X[:, 1] ** 2 / 2, 0.0)
    return X, slow + ripple * np.cos(3 * X.sum(1) / 6**0.5) + 0.1 * random.normal(size=n)


def at(X: np.ndarray, y: np.ndarray, noise: float, **settings) -> Likeness | None:
    """Return the likeness for a Matern kernel of unit scale that is given."""
    gp = GPRegressor(
        kernels.Matern(1.5, 1.0, 1.0), "auto", None, standardize=False, noise_variance=noise, **settings
    ).fit(X, y)
    return likeness(gp.posterior_.model, gp.posterior_.table)


@pytest.mark.slow
def test_rows_of_the_model_have_standard_normal_likenesses():
    """The larger of two of them, among few rows and many, even and in clumps; not with a ripple (the control)."""
    found, control = [], []
    for seed in range(60):
        X, y = draw(90 if seed % 8 else 400, seed, 0.3)
        one = at(X, y, 0.3)
        if one is not None:
            found.append(one.correlation / one.standard_error)
            more = at(X, y + np.sin(9 * X[:, 0]), 0.6)
            control.append(more is not None and more.is_structure)
    found = np.array(found)
    assert len(found) > 40
    assert found.max() < 4.5
    assert np.mean(found > 1.645) < 0.10 + 4 * np.sqrt(0.09 / len(found))  # for one of the two, .05
    assert found.std() > 0.5
    assert np.mean(control) > 0.2


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Most targets vary")  # in clumps
@pytest.mark.parametrize(("n", "fits"), [(60, 8), (150, 4)])
def test_fits_to_rows_of_their_model_do_not_warn(n, fits):
    """A warning is an error here."""
    for seed in range(fits):
        X, y = draw(n, 100 + seed, (0.05, 0.3, 1.0, 30.0)[seed % 4])
        GPRegressor(kernels.Matern(nu=1.5), random_state=0).fit(X, y)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "settings",
    [{}, {"inference": inference.Vecchia()}, {"dtype": "float32"}, {"mean": "linear"}, {"target_transform": "log"}],
    ids=lambda settings: str(next(iter(settings), "default")),
)
def test_a_second_scale_that_counts_as_noise_is_found(settings):
    X, y = two_scales(600)
    if "target_transform" in settings:
        y = np.exp(y)
    with pytest.warns(FitWarning, match=MESSAGE):
        GPRegressor(random_state=0, **{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X, y)


def test_a_kernel_with_both_scales_does_not_warn():
    X, y = two_scales(500)
    kernel = kernels.RBF(1.0) + kernels.Matern(1.5, 1.0, 0.5)
    GPRegressor(kernel, inference.Vecchia(), random_state=0).fit(X, y)


def test_the_likeness_grows_with_the_ripple_and_not_with_the_units():
    """It is a correlation, whatever the units of inputs and targets, and however large the noise is said to be."""
    found = []
    for ripple in (0.0, 0.15, 0.3):
        X, y = two_scales(600, ripple=ripple)
        lengthscales = np.array([1.5, 6.0, 200.0, 200.0, 200.0, 200.0])
        settings = {"inference": inference.Exact(), "optimizer": None, "standardize": False}
        each = []
        for s, t, more in ((1, 1, 1), (100, 1e-3, 1), (1, 1, 4)):
            kernel = kernels.Matern(1.5, lengthscales * s, 6.0 * t * t * more)
            gp = GPRegressor(kernel, noise_variance=0.05 * t * t * more, **settings).fit(X * s, y * t)
            each.append(likeness(gp.posterior_.model, gp.posterior_.table).correlation)
        assert each == pytest.approx([each[0]] * 3, rel=1e-6)
        found.append(each[0])
    assert found[0] < 0.08
    assert found[0] < found[1] < found[2]


def test_the_statistic_is_that_of_dense_algebra():
    """One group of rows: its mean and variance over targets of the model, for the neighbours of the larger value."""
    X, y = draw(70, 4, 0.5)
    found = at(X, y, 0.5)
    r = np.sqrt(3 * ((X[:, None] - X) ** 2).sum(-1))
    K = (1 + r) * np.exp(-r)
    inverse = np.linalg.inv(K + 0.5 * np.eye(70))
    P = inverse - np.outer(inverse.sum(1), inverse.sum(0)) / inverse.sum()
    scale = 1 / np.sqrt(np.diag(P))
    values = []
    places = (X - X.mean(0)) / X.std(0)
    for nearness in (-((places[:, None] - places) ** 2).sum(-1), K):
        np.fill_diagonal(nearness, -np.inf)
        A = np.zeros((70, 70))
        np.put_along_axis(A, nearness.argsort(1)[:, -3:], 1.0, 1)
        A = np.maximum(A, A.T)
        R = P * scale[:, None] * scale
        B = A - (R * A).sum() / 70 * np.eye(70)
        u = scale * (P @ y)
        pairs = A.sum()
        error = np.sqrt(2 * np.trace(R @ B @ R @ B)) / pairs
        values.append((u @ B @ u / np.mean(u**2) / pairs, error))
    best = max(values, key=lambda one: one[0] / one[1])
    assert found == pytest.approx(best, rel=1e-8)


def test_noise_that_hides_nothing_and_few_rows_are_not_looked_at():
    X, y = two_scales(40)
    assert at(X, y, 0.1) is None
    X, y = two_scales(200)
    assert at(X, y, 1e-6) is None
    assert at(np.ones((60, 1)), y[:60], 0.1) is None
    assert at(X[:60], np.ones(60), 0.1) is None


@pytest.mark.parametrize(("noise", "seen"), [(1e-5, False), (1e-2, True)])
def test_noise_that_is_nothing_beside_the_targets_is_not_looked_at(noise, seen):
    """A smooth function without noise: a given noise variance is more than the rows leave open."""
    X = np.random.default_rng(0).uniform(-2, 2, (200, 2))
    gp = GPRegressor(kernels.RBF(1.0, 1.0), "auto", None, standardize=False, noise_variance=noise)
    gp.fit(X, np.sin(X[:, 0]) + 0.1 * X[:, 1])
    assert (likeness(gp.posterior_.model, gp.posterior_.table) is not None) == seen


def test_repeated_rows_and_several_targets():
    """Neighbours at one place tell of the noise alone; the target with the most structure counts."""
    X, y = two_scales(300)
    random = np.random.default_rng(1)
    repeated = at(np.repeat(X[:60], 5, 0), np.repeat(y[:60], 5), 0.1)
    assert repeated is None or np.isfinite(repeated.correlation)
    both = np.stack([random.normal(size=300), y], 1)
    assert at(X, both, 0.3, outputs="shared") == pytest.approx(at(X, both[:, 1], 0.3), rel=1e-6)
    assert torch.tensor(at(X, both, 0.3, outputs="shared")).isfinite().all()
