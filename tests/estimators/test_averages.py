"""Averages over blocks of points, against linear maps of joint predictions."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators.answers import averages as module

RNG = np.random.default_rng(0)
#: Clumped, badly scaled rows of which some repeat.
X = np.concatenate([RNG.uniform(size=(40, 2)), 0.3 + 1e-3 * RNG.normal(size=(20, 2))]) * [1.0, 1e4]
X[50:55] = X[45:50]
Y = np.sin(6 * X[:, 0]) + X[:, 1] / 1e4 + 0.1 * RNG.normal(size=60)
POINTS = RNG.uniform(-0.2, 1.2, size=(30, 2)) * [1.0, 1e4]
BLOCKS = np.array(["b", "a", "c"])[RNG.integers(0, 3, 30)]
WEIGHTS = RNG.uniform(size=30) * (RNG.uniform(size=30) > 0.2)
KERNEL = kernels.Matern(nu=1.5)


def shares() -> np.ndarray:
    """Return the share of each point in blocks a, b and c, by a loop."""
    found = np.zeros((3, 30))
    for k, (block, weight) in enumerate(zip(BLOCKS, WEIGHTS, strict=True)):
        found["abc".index(block), k] = weight
    return found / found.sum(1, keepdims=True)


def fit(**settings) -> GPRegressor:
    y = settings.pop("y", Y)
    return GPRegressor(**{"kernel": KERNEL} | settings).fit(X, y)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kernel": None},  # a mixture
        {"inference": inference.Vecchia(10)},
        {"target_transform": "log", "y": np.exp(Y)},
        {"likelihood": "poisson", "y": np.floor(np.exp(Y))},
        {"outputs": "shared", "y": np.stack([Y, -2 * Y], 1)},
        {"outputs": "independent", "y": np.stack([Y, Y**2], 1)},
        {"outputs": "correlated", "y": np.stack([Y, np.where(X[:, 0] > 0.5, np.nan, -Y)], 1)},
    ],
    ids=str,
)
def test_averages_are_linear_maps_of_predictions(settings, monkeypatch):
    gp, W = fit(**settings), shares()
    mean, cov = gp.predict(POINTS, return_cov=True)
    if cov.ndim == 4:
        wanted = np.einsum("bm,minj,cn->bicj", W, cov, W)
        deviations = np.sqrt(np.einsum("bibi->bi", wanted))
    else:
        wanted = np.einsum("bm,mn...,cn->bc...", W, cov, W)
        deviations = np.sqrt(np.einsum("bb...->b...", wanted))
    found = gp.predict_average(POINTS, BLOCKS, WEIGHTS, return_cov=True)
    scale = np.abs(cov).max()
    np.testing.assert_allclose(found[0], np.tensordot(W, mean, 1), rtol=1e-10)
    np.testing.assert_allclose(found[1], wanted, atol=1e-10 * scale)
    for points in (1000, 1):  # all blocks at once, and one at a time
        monkeypatch.setattr(module, "_BATCH_POINTS", points)
        mean, std = gp.predict_average(POINTS, BLOCKS, WEIGHTS, return_std=True)
        np.testing.assert_allclose(mean, found[0], rtol=1e-9, atol=1e-9 * scale**0.5)
        np.testing.assert_allclose(std, deviations, rtol=1e-5)
    np.testing.assert_allclose(gp.predict_average(POINTS, BLOCKS, WEIGHTS), found[0], rtol=1e-9)
    # the control: points of a block err together
    apart = gp.predict(POINTS, return_std=True)[1]
    assert (np.sqrt(np.tensordot(W**2, apart**2, 1)) < 0.95 * std).any()


def test_the_moments_are_those_of_averages_of_joint_samples():
    gp, W = fit(), shares()
    samples = W @ gp.sample_y(POINTS, 20_000, random_state=1)
    mean, std = gp.predict_average(POINTS, BLOCKS, WEIGHTS, return_std=True)
    assert (np.abs(samples.mean(1) - mean) < 5 * std / np.sqrt(20_000)).all()
    assert (np.abs(samples.std(1) / std - 1) < 5 / np.sqrt(2 * 20_000)).all()


def test_an_exposure_belongs_to_each_point():
    gp, over = fit(likelihood="poisson", y=np.floor(np.exp(Y)), inference=inference.Vecchia(59)), np.arange(1.0, 31.0)
    found = gp.predict_average(POINTS, BLOCKS, WEIGHTS, exposure=over)
    np.testing.assert_allclose(found, shares() @ (over * gp.predict(POINTS)), rtol=1e-9)


def test_an_exposure_of_another_length_is_refused():
    gp = fit(likelihood="poisson", y=np.floor(np.exp(Y)), inference=inference.Vecchia(10), optimizer=None)
    with pytest.raises(InvalidInputError, match=r"exposure must be a number or have shape \(30,\)"):
        gp.predict_average(POINTS, BLOCKS, exposure=np.ones(29))


def test_without_labels_and_weights_all_points_are_one_block():
    gp = fit()
    np.testing.assert_allclose(gp.predict_average(POINTS), [gp.predict(POINTS).mean()], rtol=1e-10)
    alone = gp.predict_average(POINTS[:1], return_std=True)
    np.testing.assert_allclose(alone, gp.predict(POINTS[:1], return_std=True), rtol=1e-10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"blocks": BLOCKS[:5]}, r"shape \(30,\), one label for each point; got \(5,\)"),
        ({"blocks": [None, *BLOCKS[1:]]}, "row 0 has none"),
        ({"blocks": np.where(np.arange(30) == 3, np.nan, 1.0)}, "row 3 has none"),
        ({"blocks": np.array([1, "a", *range(28)], dtype=object)}, "labels of one kind"),
        ({"weights": WEIGHTS[:4]}, r"got shape \(4,\)"),
        ({"weights": np.where(np.arange(30) == 7, -1.0, 1.0)}, "got -1 in row 7"),
        ({"blocks": BLOCKS, "weights": np.where(BLOCKS == "c", 0.0, 1.0)}, "those of 'c' are"),
        ({"return_std": True, "return_cov": True}, "predict_average cannot both be True"),
    ],
)
def test_blocks_that_are_none_are_refused(given, words):
    gp = GPRegressor(KERNEL, optimizer=None).fit(X, Y)
    with pytest.raises(InvalidInputError, match=words):
        gp.predict_average(POINTS, **given)
