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


def test_wrong_durations_are_refused(refused, table, tmp_path):
    for command in (("plan", table), ("fit", table, "--out", tmp_path / "model.gp")):
        assert 'a string like "90s"' in refused(*command, "--target", "y", "--time", "soon", "--quiet")
    assert not (tmp_path / "model.gp").exists()


def test_a_fit_keeps_its_time_budget(run, table, tmp_path):
    arguments = ("fit", table, "--target", "y", "--time", "2min", "--quiet", "--out", tmp_path / "model.gp")
    assert run(*arguments)[0] == 0
    assert gigagp.load(tmp_path / "model.gp").time_budget == "2min"
