"""``gigagp plan``, and ``gigagp fit --time``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gigagp
from engines import needs_extension


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(0)
    x = random.uniform(0, 6, size=(300, 2))
    y = np.sin(x[:, 0]) + 0.1 * random.normal(size=300)
    path = tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([x, y]), delimiter=",", header="a,b,y", comments="")
    return path


@needs_extension
def test_a_plan_is_words_or_json(run, table):
    code, out, _ = run("plan", table, "--target", "y", "--quiet")
    assert code == 0
    assert out.startswith("-> inference.Exact of 300 rows")
    assert "expected NLL" in out
    code, out, _ = run("plan", table, "--target", "y", "--quiet", "--json")
    found = json.loads(out)
    assert [one["inference"] for one in found["options"]] == ["exact"]
    assert found["options"][0]["chosen"] is True
    assert 0.09 < found["options"][0]["rmse"] < 0.13
    assert found["in_gaps"] is None


@needs_extension
def test_points_to_predict_reach_the_forecast_and_the_choice(run, refused, table, tmp_path):
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    apart = np.linalg.norm(rows[:, :2] - 3, axis=1) > 1.5
    rows[:, 2] += np.cos(rows[:, 1])
    known, points = tmp_path / "known.csv", tmp_path / "points.csv"
    np.savetxt(known, rows[apart], delimiter=",", header="a,b,y", comments="")
    np.savetxt(points, rows[~apart][:, [1, 0]], delimiter=",", header="b,a", comments="")  # by name
    code, out, _ = run("plan", known, "--target", "y", "--predict-at", points, "--quiet", "--json")
    assert code == 0
    assert json.loads(out)["in_gaps"]["rmse"] > 0.1
    command = "fit", known, "--target", "y", "--quiet", "--out", tmp_path / "model.gp"
    code, out, _ = run(*command, "--predict-at", points)
    assert code == 0
    assert "in gaps" in out
    assert "'b'" in refused(*command, "--predict-at", _one_column(points, tmp_path / "a.csv"))
    assert "--predict-at" in refused(*command, "--predict-at", points, "--likelihood", "logistic")


def _one_column(points, path):
    np.savetxt(path, np.loadtxt(points, delimiter=",", skiprows=1)[:, 1:], header="a", comments="")
    return path


def test_wrong_durations_are_refused(refused, table, tmp_path):
    for command in (("plan", table), ("fit", table, "--out", tmp_path / "model.gp")):
        assert 'a string like "90s"' in refused(*command, "--target", "y", "--time", "soon", "--quiet")
    assert not (tmp_path / "model.gp").exists()


@pytest.mark.slow
def test_a_fit_keeps_its_time_budget(run, table, tmp_path):
    arguments = ("fit", table, "--target", "y", "--time", "2min", "--quiet", "--out", tmp_path / "model.gp")
    assert run(*arguments)[0] == 0
    assert gigagp.load(tmp_path / "model.gp").time_budget == "2min"
