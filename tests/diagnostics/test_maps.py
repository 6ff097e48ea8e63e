"""Maps of fitted functions: their numbers are the model's predictions, and bad arguments are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigagp import GPClassifier, GPRegressor, diagnostics, inference, kernels, optimization
from gigagp.errors import InvalidInputError

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 3, (60, 3))
Y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]


def fitted(d: int, **settings) -> GPRegressor:
    options = {"kernel": kernels.RBF(1.0), "inference": inference.Exact(), "optimizer": None} | settings
    return GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | options).fit(X[:, :d], Y)


@pytest.mark.parametrize("d", [1, 2])
def test_values_are_predictions(d):
    gp = fitted(d)
    found = diagnostics.map_values(gp, resolution=7, include_noise=True)
    assert found.names == ["input 1", "input 2"][:d]
    assert (found.across, found.at, found.mean.shape) == (None, [0.0], (1, *[7] * d))
    for axis, column in zip(found.axes, X.T, strict=False):
        np.testing.assert_allclose(axis[[0, -1]], [column.min(), column.max()], rtol=1e-12)
    place = (2, 5)[:d]
    point = [[axis[k] for axis, k in zip(found.axes, place, strict=True)]]
    mean, std = gp.predict(point, return_std=True, include_noise=True)
    assert found.mean[0][place] == pytest.approx(mean[0], rel=1e-9)
    assert found.std[0][place] == pytest.approx(std[0], rel=1e-9)
    assert diagnostics.map_values(gp, resolution=7).std.max() < found.std.max()


def test_slices_of_three_inputs(monkeypatch):
    monkeypatch.setattr("gigagp.plots.view.BLOCK", 10)  # predicted in parts
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    gp = GPRegressor(kernels.RBF(1.0), inference.Exact(), None).fit(frame, Y)
    found = diagnostics.map_values(gp, across="b", at=[0.5, 1.5], lower=[0, 0, 0], upper=[1, 1, 2], resolution=4)
    assert (found.names, found.across, found.at) == (["a", "c"], "b", [0.5, 1.5])
    assert found.axes[1].tolist() == pytest.approx([0, 2 / 3, 4 / 3, 2])
    point = pd.DataFrame([[found.axes[0][1], 1.5, found.axes[1][3]]], columns=["a", "b", "c"])
    assert found.mean[1, 1, 3] == pytest.approx(gp.predict(point)[0], rel=1e-9)
    usual = diagnostics.map_values(gp, resolution=3)
    low, high = X[:, 2].min(), X[:, 2].max()
    assert usual.across == "c"
    np.testing.assert_allclose(usual.at, low + (high - low) * np.array([1, 3, 5]) / 6)
    assert diagnostics.map_values(gp, across=0, at=[0.0], resolution=3).names == ["b", "c"]


def test_the_region_of_a_grid_is_that_of_its_rows():
    gp = fitted(2, inference=inference.Grid(size=14), kernel=kernels.RBF(1.5), noise_variance=0.1)
    found = diagnostics.map_values(gp, resolution=5)
    np.testing.assert_allclose([axis[0] for axis in found.axes], X[:, :2].min(0), rtol=1e-9)
    np.testing.assert_allclose([axis[-1] for axis in found.axes], X[:, :2].max(0), rtol=1e-9)


def test_one_of_several_targets():
    gp = GPRegressor(kernels.RBF(1.0), inference.Exact(), None).fit(X[:, :1], np.stack([Y, -2 * Y], 1))
    one, other = (diagnostics.map_values(gp, resolution=5, target=k) for k in (0, 1))
    np.testing.assert_allclose(other.mean, -2 * one.mean, atol=1e-9)
    np.testing.assert_allclose(other.std, 2 * one.std, rtol=1e-9)


def test_a_classifier_shows_its_probabilities(tmp_path):
    settings = inference.QuadruplyStochastic(n_basis=60)
    gp = GPClassifier(inference=settings, optimizer=optimization.SparseAdam(steps=20)).fit(X[:, :2], Y > 1)
    found = diagnostics.map_values(gp, resolution=4, lower=[0, 0], upper=[1, 1])
    point = np.array([[found.axes[0][1], found.axes[1][2]]])
    assert found.mean[0, 1, 2] == pytest.approx(gp.predict_proba(point)[0, 1], rel=1e-6)
    diagnostics.plot_map(gp, tmp_path / "map.svg", resolution=4)
    assert "<!-- probability of True -->" in (tmp_path / "map.svg").read_text(encoding="utf-8")


@pytest.mark.few(1)
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_map_is_a_file_that_says_what_it_shows(tmp_path, d, ending):
    path = tmp_path / f"map.{ending}"
    diagnostics.plot_map(fitted(d), path, label="height", resolution=12)
    content = path.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[ending])
    if ending == "svg":
        text = content.decode()
        expected = {
            1: ["input 1", "height", "mean", "50 % of the function", "95 % of the function"],
            2: ["input 2", "height: mean", "height: uncertainty", "standard deviation of the function"],
            3: ["height: mean, input 3 = 1", "height: uncertainty, input 3 = 1"],
        }[d]
        found = text.replace(f"input 3 = {np.mean([X[:, 2].min(), X[:, 2].max()]):.4g}", "input 3 = 1")
        assert [word for word in expected if f"<!-- {word} -->" not in found] == []


@pytest.mark.parametrize(
    ("d", "options", "match"),
    [
        (2, {"target": 1}, "target of a picture must be from 0 to 0"),
        (2, {"resolution": 1}, "resolution of map_values"),
        (2, {"across": 0}, "only for maps of three inputs"),
        (2, {"at": [1.0]}, "only for maps of three inputs"),
        (2, {"lower": [0.0]}, "lower of a map must be 2 finite numbers"),
        (2, {"upper": [np.nan, 1]}, "upper of a picture must be finite numbers for input 1"),
        (2, {"lower": [9, 9]}, "must be below upper"),
        (3, {"across": "depth"}, "across of a map must be one of input 1, input 2, input 3"),
        (3, {"across": 3}, "across of a map"),
        (3, {"at": []}, "at of a map"),
        (3, {"at": [np.inf]}, "at of a map"),
    ],
)
def test_bad_arguments(d, options, match):
    with pytest.raises(InvalidInputError, match=match):
        diagnostics.map_values(fitted(d), **options)


def test_models_that_have_no_map(tmp_path):
    wide = GPRegressor(kernels.RBF(1.0), inference.Exact(), None).fit(np.tile(X, 2), Y)
    with pytest.raises(InvalidInputError, match="1 to 3 inputs; the model has 6"):
        diagnostics.map_values(wide)
    with pytest.raises(InvalidInputError, match="must be fitted"):
        diagnostics.map_values(GPRegressor())
    with pytest.raises(InvalidInputError, match=r"ends in \.png, \.pdf, \.svg; got"):
        diagnostics.plot_map(wide, tmp_path / "map.jpg")
