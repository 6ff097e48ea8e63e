"""Pictures show what they should: artists on the axes, not pixels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigagp import GPRegressor, inference, kernels, plots
from gigagp.plots.surfaces import colour_limits
from gigagp.storage.figures import new_figure

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)


def axes():
    return new_figure(5, 4).add_subplot()


def fitted(X, y, lengthscale=1.0) -> GPRegressor:
    return GPRegressor(kernels.RBF(lengthscale), inference.Exact(), None, noise_variance=0.01).fit(X, y)


def words(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_a_forecast_is_apart_from_the_fit():
    X = np.linspace(0, 10, 50)[:, None]
    gp = fitted(pd.DataFrame(X, columns=["t"]), np.sin(X[:, 0]))
    ax = plots.curve(gp, ax=axes(), upper=14, label="height (m)")
    inside, beyond = ax.lines[:2]
    assert inside.get_xdata().max() == pytest.approx(10)
    assert (beyond.get_xdata().min(), beyond.get_xdata().max()) == (pytest.approx(10), 14)
    assert inside.get_color() != beyond.get_color()
    assert inside.get_linestyle() != beyond.get_linestyle()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("t", "height (m)")
    assert "data" in words(ax)
    assert "beyond the data: mean" in words(ax)
    assert not any("beyond" in one for one in words(plots.curve(gp, ax=axes())))
    np.testing.assert_allclose(inside.get_ydata()[[0, -1]], gp.predict(pd.DataFrame({"t": [0.0, 10.0]})), rtol=1e-8)


def test_bands_contain_their_share_of_the_function():
    X = RNG.uniform(0, 10, 30)[:, None]
    gp = fitted(X, np.sin(X[:, 0]))
    ax = plots.curve(gp, ax=axes(), resolution=50)
    wide, narrow = (band.get_paths()[0].get_extents().height for band in ax.collections[1:3])
    assert wide > narrow
    _, std = gp.predict(X[:1], return_std=True)
    x = ax.lines[0].get_xdata()
    mean, std = gp.predict(x[:, None], return_std=True)
    vertices = ax.collections[1].get_paths()[0].vertices
    top = [vertices[np.isclose(vertices[:, 0], one), 1].max() for one in x]
    np.testing.assert_allclose(top, mean + 1.959964 * std, rtol=1e-5)


def test_dates_are_dates():
    days = pd.date_range("2020-01-01", periods=60)
    frame = pd.DataFrame({"day": days})
    gp = GPRegressor(encode="auto", optimizer=None, inference=inference.Exact()).fit(frame, np.arange(60.0))
    ax = plots.curve(gp, ax=axes(), upper="2020-04-01")
    ax.figure.canvas.draw()
    labels = [tick.get_text() for tick in ax.get_xticklabels()]
    assert {"Feb", "Mar", "Apr"} <= set(labels)
    assert gp.plot(upper=["2020-04-01"], path=None) is not None


def test_a_series_that_is_too_dense_shows_its_range():
    X = np.arange(3000.0)[:, None]
    gp = GPRegressor(kernels.RBF(1.0), inference.Vecchia(), None, noise_variance=0.01).fit(X, np.sin(X[:, 0] * 2.1))
    ax = plots.curve(gp, ax=axes())
    assert "mean (its range within a pixel)" in words(ax)
    extents = ax.collections[-1].get_paths()[0].get_extents()
    assert (extents.y0, extents.y1) == (pytest.approx(-1, abs=0.1), pytest.approx(1, abs=0.1))


def test_maps_are_in_proportion():
    X = np.column_stack([RNG.uniform(45, 55, 40), RNG.uniform(0, 10, 40)])
    gp = fitted(pd.DataFrame(X, columns=["lat", "lon"]), X[:, 0])
    ax = plots.surface(gp, ax=axes(), resolution=8)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("lon (°)", "lat (°)")  # east is to the right
    middle = np.radians(X[:, 0].min() + np.ptp(X[:, 0]) / 2)
    assert ax.get_aspect() == pytest.approx(1 / np.cos(middle))
    assert ax.collections[0].get_array().reshape(8, 8)[0, 0] < ax.collections[0].get_array().reshape(8, 8)[-1, 0]
    points = ax.collections[1]
    assert len(points.get_offsets()) == 40
    np.testing.assert_allclose(np.sort(points.get_array()), np.sort(X[:, 0]), rtol=1e-6)
    assert points.norm is ax.collections[0].norm  # in the colours of the map
    plane = fitted(pd.DataFrame(X, columns=["x", "y"]), X[:, 0])
    assert plots.surface(plane, ax=axes(), resolution=4).get_aspect() == 1.0
    assert plots.surface(plane, ax=axes(), resolution=4, aspect="free").get_aspect() == "auto"
    other = fitted(pd.DataFrame(X * [1, 1000], columns=["p", "q"]), X[:, 0], [1.0, 1000.0])
    assert plots.surface(other, ax=axes(), resolution=4).get_aspect() == "auto"


def test_colours_are_robust():
    values = np.concatenate([np.linspace(0, 1, 1000), [1e6]])
    low, high = colour_limits(values)
    assert (low, high) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    low, high = colour_limits(np.full(9, 3.0))
    assert low < 3 < high


def test_more_inputs_have_dependences():
    X = RNG.normal(size=(40, 5))
    gp = fitted(X, X[:, 2] + 0.5 * X[:, 0], [3.0, 9.0, 2.0, 9.0, 9.0])
    figure = gp.plot(label="y", resolution=5)
    bars, *others = figure.axes
    assert [one.get_xlabel() for one in others[:2]] == ["input 3", "input 1"]
    assert bars.get_yticklabels()[-1].get_text() == "input 3"
    limits = {one.get_ylim() for one in others[:5]}
    assert len(limits) == 1  # so that sizes compare


def test_residuals_calibration_and_history():
    X = RNG.uniform(0, 10, (200, 1))
    y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=200)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact()).fit(X[:100], y[:100])
    ax = plots.residuals(gp, X[100:], y[100:], ax=axes(), label="$y$")
    np.testing.assert_allclose(
        np.asarray(ax.collections[0].get_offsets())[:, 1], y[100:] - gp.predict(X[100:]), atol=1e-9
    )
    assert ax.get_xlabel() == r"predicted \$y\$"
    ax = plots.calibration(gp, X[100:], y[100:], ax=axes())
    assert ax.lines[-1].get_ydata()[[0, -1]].tolist() == [0, 100]
    for quantity in ("hyperparameters", "gradient", "objective"):
        assert gp.history_.plot(quantity, ax=axes()).lines
    assert len(repr(gp.history_)) < 120


def test_the_same_picture_is_the_same_file(tmp_path):
    X = RNG.uniform(0, 10, (20, 1))
    gp = fitted(X, X[:, 0])
    for name in ("a.svg", "b.svg"):
        gp.plot(path=tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.svg", "b.svg"]


@pytest.fixture(autouse=True)
def no_open_figures():
    import matplotlib

    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")
