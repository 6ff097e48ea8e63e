"""Panels on the command line: the same model as that of the estimator, from files."""

from __future__ import annotations

import numpy as np
import pytest

import gigagp
from gigagp import GPRegressor
from gigagp.tables.files import read_columns


@pytest.fixture
def sensors(tmp_path):
    draw = np.random.default_rng(0)
    who, hour = np.nonzero(draw.random((5, 14)) < 0.7)
    y = np.sin(hour / 4) + np.arange(5)[who] + 0.1 * draw.normal(size=len(who))
    path = tmp_path / "sensors.csv"
    rows = [f"{h},site {e},{value:.4f}" for e, h, value in zip(who, hour, y, strict=True)]
    path.write_text("\n".join(["hour,sensor,y", *rows]) + "\n", encoding="utf-8")
    return path


def test_fit_and_predict_new_cells(run, sensors, tmp_path):
    model, out, asked = tmp_path / "m.gp", tmp_path / "p.csv", tmp_path / "asked.csv"
    code, text, error = run(
        "fit", sensors, "--target", "y", "--panel", "sensor,hour", "--optimizer", "none", "-q", "-o", model
    )
    assert (code, error) == (0, "")
    assert "5 entities (sensor) by 14 times (hour)" in text
    asked.write_text("sensor,hour\nsite 1,20\nsite 9,20\n", encoding="utf-8")
    code, _, error = run("predict", model, asked, "-o", out)
    assert (code, error) == (0, "")
    found = read_columns(out)
    table = read_columns(sensors)
    gp = GPRegressor(panel=("sensor", "hour"), optimizer=None)
    gp.fit(table.select(["hour", "sensor"]), table.column("y").to_numpy())
    mean, std = gp.predict(read_columns(asked).select(["hour", "sensor"]), return_std=True)
    np.testing.assert_allclose(found.column("mean").to_numpy(), mean, rtol=1e-6)
    np.testing.assert_allclose(found.column("std").to_numpy(), std, rtol=1e-6)
    assert gigagp.load(model).panel == ("sensor", "hour")


def test_a_panel_that_cannot_be_is_refused(refused, sensors, tmp_path):
    given = ("fit", sensors, "--target", "y", "-o", tmp_path / "m.gp", "-q")
    assert "two columns" in refused(*given, "--panel", "sensor")
    assert "minute" in refused(*given, "--panel", "sensor,minute")
    assert "name the columns" in refused(*given, "--panel", "sensor,hour", "--kernel", "matern32")
    assert "--panel does not apply" in refused(*given, "--panel", "sensor,hour", "--likelihood", "logistic")
    assert "--groups and --predict-at do not apply" in refused(*given, "--panel", "sensor,hour", "--inference", "grid")
