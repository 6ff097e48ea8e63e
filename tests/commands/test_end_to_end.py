"""The commands with the real estimator, as used by a person who has only a table."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from gigagp import load
from gigagp.estimators.saving.persistence import load_notes
from gigagp.tables.files import read_table

N = 60


@pytest.fixture
def awkward(tmp_path):
    """Write a table with integers, booleans, a constant column, duplicate rows and scales from 1e-6 to 1e6."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=N)
    x[N // 2 :] = x[: N // 2]
    count = np.tile(rng.integers(0, 5, size=N // 2), 2)
    flag = np.tile(rng.random(N // 2) < 0.5, 2)
    y = np.sin(3 * x) + 0.2 * count + 0.5 * flag + 0.05 * rng.normal(size=N)
    columns = {"tiny": 1e-6 * x, "count": count, "flag": flag, "same": np.ones(N), "huge": 1e6 * x, "y": y}
    path = tmp_path / "awkward.parquet"
    pa.parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("inference", ["exact", "iterative"])
def test_from_a_table_to_scores(run, awkward, tmp_path, inference):
    model, out = tmp_path / "model.gp", tmp_path / "p.csv"
    code, shown, error = run(
        *("fit", awkward, "--target", "y", "-o", model, "--inference", inference, "--steps", 15, "-q")
    )
    assert code == 0, error
    assert "lengthscale[huge]" in shown
    code, shown, error = run("evaluate", model, awkward, "--json")
    assert code == 0, error
    scores = json.loads(shown)
    assert scores["rmse"] < 0.2  # the target's own standard deviation is 0.7
    assert scores["coverage"]["0.95"] > 0.8
    assert run("predict", model, awkward, "-o", out, "--samples", 3)[0] == 0
    first = read_table(out)
    assert first.values.shape == (N, 5)
    assert np.all(first.column("std") > 0)
    run("predict", model, awkward, "-o", out, "--samples", 3)
    np.testing.assert_array_equal(read_table(out).values, first.values)


@pytest.mark.slow
def test_neighbours_take_whole_tables_some_rows_and_known_noise(run, awkward, tmp_path):
    """A method that reads tables in chunks and holds the rows takes all options of rows in memory."""
    model = tmp_path / "model.gp"
    fit = ("fit", awkward, "--target", "y", "-o", model, "--inference", "vecchia", "--steps", 2, "-q")
    for more, rows in (((), N), (("--rows", 40), 40), (("--noise-column", "same"), N)):
        code, shown, error = run(*fit, *more)
        assert code == 0, error
        assert f"Fitted {rows} rows and" in shown
        assert load_notes(model)["rows"] == rows
    assert load(model).noise_variance_.shape == (N,)


def test_the_progress_of_a_fit_is_on_standard_error(run, awkward, tmp_path):
    code, out, error = run("fit", awkward, "--target", "y", "-o", tmp_path / "m.gp", "--steps", 3, "-v")
    assert code == 0
    assert "3 of 3 steps" in error
    assert "3 of 3 steps" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dtype", "float16"), "float64"),
        (("--device", "moon"), "device"),
        (("--mean", "median"), "mean"),
        (("--memory", "lots"), "memory_budget"),
        (("--memory", "1KiB"), "memory"),
        (("--noise-column", "same", "--columns", "same"), "must not contain 'same'"),
        (("--noise-column", "tiny"), "noise_variance"),
    ],
)
def test_what_the_estimator_refuses_is_one_line(refused, awkward, tmp_path, arguments, message):
    assert message in refused("fit", awkward, "--target", "y", "-o", tmp_path / "m.gp", "-q", "--strict", *arguments)
    assert not (tmp_path / "m.gp").exists()


def test_a_constant_target_is_an_answer_or_one_line(run, tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},3\n" for i in range(10)), encoding="utf-8")
    code, _, error = run("fit", tmp_path / "t.csv", "--target", "y", "-o", tmp_path / "m.gp", "-q")
    if code == 2:
        assert error.count("\n") == 1
        return
    assert code == 0
    assert run("predict", tmp_path / "m.gp", tmp_path / "t.csv", "-o", tmp_path / "p.csv")[0] == 0
    np.testing.assert_allclose(read_table(tmp_path / "p.csv").column("mean"), 3.0, atol=1e-6)


def test_a_checkpoint_is_used_and_removed(run, tmp_path):
    table, file = tmp_path / "table.csv", tmp_path / "fit.checkpoint"
    rows = np.random.default_rng(0).normal(size=(40, 2))
    np.savetxt(table, np.c_[rows, rows.sum(1)], delimiter=",", header="a,b,y", comments="")
    file.write_text("not a checkpoint", encoding="utf-8")
    arguments = ("fit", table, "--target", "y", "-o", tmp_path / "m.gp", "--checkpoint", file, "-q")
    code, _, error = run(*arguments)
    assert code == 2
    assert "fit.checkpoint" in error
    file.unlink()
    assert run(*arguments)[0] == 0
    assert not file.exists()


@pytest.mark.slow
def test_every_command_that_may_take_long_shows_its_progress(run, tmp_path, monkeypatch):
    """In a log, lines begin after ten seconds, which are none here; --quiet writes nothing."""
    random = np.random.default_rng(0)
    table, model = tmp_path / "t.csv", tmp_path / "m.gp"
    np.savetxt(table, random.normal(size=(60, 2)), delimiter=",", header="a,y", comments="")
    out = ("-o", tmp_path / "p.csv")
    monkeypatch.setattr("gigagp.commands.blocks.HELD_ROWS", 25)
    for words, patience in (((), 1e-9), (("--quiet",), 1e-9), ((), 10.0)):
        monkeypatch.setattr("gigagp.runtime.progress.choice.PATIENCE", patience)
        monkeypatch.setattr("gigagp.runtime.progress.displays._FIRST_LINES", 0.0)
        shown = {
            "fit of t.csv": run("fit", table, "--target", "y", "-o", model, "--inference", "exact", *words),
            "prediction": run("predict", model, table, *out, *words),
            "evaluation": run("evaluate", model, table, *words),
        }
        for job, (code, output, error) in shown.items():
            assert code == 0, error
            assert f"{job}:" not in output
            assert (f"{job}: done in" in error) == (patience < 1 and not words)
        if patience < 1 and not words:
            assert "predicting, 25 of 60 rows" in shown["prediction"][2]
            assert len(read_table(tmp_path / "p.csv")) == 60
