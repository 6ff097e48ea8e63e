"""The learned covariance of the few entities of a panel: when it is taken, and its answers beside dense algebra."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp import GPRegressor, inference, kernels, metrics
from gigagp.errors import InvalidInputError

LOADINGS = np.array([1.0, -0.9, 0.8, -1.1, 0.7, -0.8, 0.9])


def long_table(curves: np.ndarray, seen: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the cells of curves (entities, times) that are seen, in shuffled order."""
    cells = np.random.default_rng(1).permutation(np.argwhere(seen))
    table = pd.DataFrame({"who": [f"e{one}" for one in cells[:, 0]], "t": 2.0 * cells[:, 1]})
    return table, curves[tuple(cells.T)]


def walks(draw: np.random.Generator, n: int, n_times: int) -> np.ndarray:
    """Return rough curves with variance 1, shape (n, n_times), that forget a half in five steps."""
    found, keep = np.zeros((n, n_times)), 0.5**0.2
    found[:, 0] = draw.normal(size=n)
    for t in range(1, n_times):
        found[:, t] = keep * found[:, t - 1] + np.sqrt(1 - keep**2) * draw.normal(size=n)
    return found


def panel(n: int, n_times: int, shared: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return curves of which a share of the variance follows one curve with either sign, and which cells are seen."""
    draw = np.random.default_rng(seed)
    common, own = walks(draw, 1, n_times), walks(draw, n, n_times)
    curves = np.sqrt(shared) * LOADINGS[:n, None] * common + np.sqrt(1 - shared) * own
    return 3 + curves + 0.1 * draw.normal(size=curves.shape), draw.random(curves.shape) < 0.75


def of_entities(gp: GPRegressor) -> list[kernels.Outputs]:
    """Return the covariances of entities in the learned kernel."""
    return [leaf for leaf in gp.kernel_.leaves() if isinstance(leaf, kernels.Outputs)]


def plain() -> kernels.Kernel:
    """Return the default kernel without a covariance, with rough curves."""
    own, t = kernels.Group(0), kernels.Matern(0.5, columns=[1], fixed=["variance"])
    return own * t + own + kernels.Matern(0.5, columns=[1])


@pytest.mark.parametrize("n", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_entities_that_move_together_or_against_each_other_have_a_covariance(n):
    curves, seen = panel(n, 150, shared=0.9)
    table, y = long_table(curves, seen)
    points, wanted = long_table(curves, ~seen)
    gp = GPRegressor(panel=("who", "t"), random_state=0).fit(table, y)
    (found,) = of_entities(gp)
    signs = np.sign(found.covariance().numpy())
    np.testing.assert_array_equal(signs, np.sign(np.outer(LOADINGS[:n], LOADINGS[:n])))
    apart = GPRegressor(plain(), panel=("who", "t"), random_state=0).fit(table, y)
    (mean, std), (other, other_std) = (one.predict(points, return_std=True, include_noise=True) for one in (gp, apart))
    assert metrics.gaussian_nll(wanted, mean, std) < metrics.gaussian_nll(wanted, other, other_std) - 0.3
    assert 0.9 < metrics.coverage(wanted, mean, std, 0.95) < 0.99


@pytest.mark.slow
def test_long_curves_have_covariances_of_fast_and_slow_changes_and_noise_of_each_entity():
    """The same entities agree in fast changes and oppose each other in slow ones; one of them is much noisier."""
    draw, n_times = np.random.default_rng(3), 1500
    of_fast, of_slow, deviations = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [0.1, 0.1, 0.1, 0.8]])
    fast = of_fast[:, None] * walks(draw, 1, n_times) + 0.3 * walks(draw, 4, n_times)
    slow = of_slow[:, None] * np.repeat(walks(draw, 1, n_times // 50), 50, axis=1)
    curves = fast + slow + deviations[:, None] * draw.normal(size=fast.shape)
    seen = draw.random(curves.shape) < 0.8
    seen[1, -200:] = False
    table, y = long_table(curves, seen)
    points, wanted = long_table(curves, ~seen)
    gp = GPRegressor(panel=("who", "t"), random_state=0).fit(table, y)
    own, *both = sorted((one.covariance().numpy() for one in of_entities(gp)), key=lambda B: np.abs(B[0, 1]))
    one, other = sorted(both, key=lambda B: B[0, 1])  # their order in the kernel is that of fast and slow
    np.testing.assert_array_equal(np.sign(one), np.sign(np.outer(of_fast, of_fast)))
    np.testing.assert_array_equal(np.sign(other), np.sign(np.outer(of_slow, of_slow)))
    np.testing.assert_allclose(np.sqrt(own.diagonal() + gp.noise_variance_), deviations, rtol=0.3)
    mean, std = gp.predict(points, return_std=True, include_noise=True)
    assert 0.9 < metrics.coverage(wanted, mean, std, 0.95) < 0.99


@pytest.mark.parametrize(("shared", "n_times"), [(0.0, 100), (0.9, 40)], ids=["independent", "few cells"])
def test_curves_that_show_no_covariance_have_none(shared, n_times):
    table, y = long_table(*panel(4, n_times, shared))
    gp = GPRegressor(panel=("who", "t"), random_state=0).fit(table, y)
    assert not of_entities(gp)
    assert any(isinstance(leaf, kernels.Group) for leaf in gp.kernel_.leaves())


@pytest.mark.parametrize("settings", [{"likelihood": "student-t"}, {"inference": inference.Vecchia()}], ids=str)
def test_what_has_no_exact_gaussian_likelihood_keeps_the_kernel(settings):
    table, y = long_table(*panel(4, 80, shared=0.9))
    gp = GPRegressor(panel=("who", "t"), random_state=0, **settings).fit(table, y)
    assert not of_entities(gp)
    assert {leaf.nu for leaf in gp.kernel_.leaves() if isinstance(leaf, kernels.Matern)} == {1.5}


def test_curves_are_rough_or_smooth():
    curves, seen = panel(4, 60, shared=0.0)
    smooth = np.sin(np.arange(60) / 6 + np.arange(4)[:, None]) + 0.01 * curves
    for wanted, some in ((0.5, curves), (1.5, smooth)):
        gp = GPRegressor(panel=("who", "t"), random_state=0).fit(*long_table(some, seen))
        assert {leaf.nu for leaf in gp.kernel_.leaves() if isinstance(leaf, kernels.Matern)} == {wanted}


@pytest.mark.parametrize("method", [inference.Exact(), inference.Markov()], ids=lambda one: type(one).__name__)
def test_answers_for_known_and_new_entities_are_those_of_dense_algebra(method, tmp_path):
    curves, seen = panel(4, 30, shared=0.5)
    seen[0, 20:] = False
    table, y = long_table(curves, seen)
    outputs = kernels.Outputs(
        4, columns=[0], new_outputs=True, variance=[0.5, 1.0, 2.0, 0.7], agreement=[2.0, 0.6, 1.5, 0.9, 1.2, 3.0]
    )
    times = kernels.Matern(0.5, 9.0, columns=[1], fixed=["variance"])
    kernel = outputs * times + kernels.Group(0, variance=0.3)
    settings = {"panel": ("who", "t"), "mean": "zero", "noise_variance": 0.02, "standardize": False}
    gp = GPRegressor(kernel, method, None, **settings).fit(table, y)
    points = pd.DataFrame(
        {"who": ["e0", "e0", "e3", "new", "new", "other", "other"], "t": [44.0, 3.1, 10.0, 10.0, 61.0, 10.0, 61.0]}
    )
    B = outputs.bind(2).covariance().numpy()
    extended = np.zeros((6, 6))  # by hand: each new entity is the mean of all, plus a part of its own
    of_mean = np.vstack([np.eye(4), np.full((2, 4), 1 / 4)])
    extended[:] = of_mean @ B @ of_mean.T
    extended[[4, 5], [4, 5]] = np.diag(B).mean()
    number = {"e0": 0, "e1": 1, "e2": 2, "e3": 3, "new": 4, "other": 5}

    def covariance(a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray:
        i, j = (one["who"].map(number).to_numpy() for one in (a, b))
        lag = np.abs(a["t"].to_numpy()[:, None] - b["t"].to_numpy()) / 9.0
        return extended[np.ix_(i, j)] * np.exp(-lag) + 0.3 * (i[:, None] == j)

    cross = covariance(points, table)
    solved = np.linalg.solve(covariance(table, table) + 0.02 * np.eye(len(y)), np.column_stack([y, cross.T]))
    posterior = covariance(points, points) - cross @ solved[:, 1:]
    mean, found = gp.predict(points, return_cov=True)
    np.testing.assert_allclose(mean, cross @ solved[:, 0], atol=1e-9)
    np.testing.assert_allclose(found, posterior, atol=1e-9)
    np.testing.assert_allclose(gp.predict(points, return_std=True)[1], np.sqrt(np.diag(posterior)), atol=1e-9)
    assert abs(found[3, 5]) > 1e-3  # what new entities share
    gp.save(tmp_path / "panel.gigagp")
    again = gigagp.load(tmp_path / "panel.gigagp")
    np.testing.assert_array_equal(again.predict(points, return_std=True), gp.predict(points, return_std=True))


def test_an_entity_that_the_fit_has_not_seen_is_refused_where_the_kernel_has_no_place_for_it():
    table, y = long_table(*panel(4, 30, shared=0.5))
    kernel = kernels.Outputs(4, columns=[0]) * kernels.Matern(0.5, columns=[1], fixed=["variance"])
    gp = GPRegressor(kernel, optimizer=None, panel=("who", "t")).fit(table, y)
    with pytest.raises(InvalidInputError, match="must be a whole number from 0 to 3"):
        gp.predict(table.assign(who="new"))
