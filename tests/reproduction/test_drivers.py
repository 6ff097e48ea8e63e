"""The drivers of iterative and computation-aware inference run on a few dozen made rows."""

import argparse
import importlib
import json
import sys
import types
import warnings

import pytest
from benchmarks import computation_aware_checks, computation_aware_memory
from benchmarks.papers.experiment import made_table


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder whose tables are made."""
    module = types.ModuleType("load")
    module.uci = lambda name, split=0, scale=True: made_table(60, split)
    monkeypatch.setitem(sys.modules, "load", module)
    (tmp_path / "load.py").write_text("", encoding="utf-8")
    (tmp_path / "uci").mkdir()
    scales = {"dataset": "pol", "split": 0, "length_scale": [1.0] * 3, "signal_scale": 1.0, "noise_scale": 0.1}
    (tmp_path / "uci" / "tuned-matern32-hyperparameters.json").write_text(json.dumps([scales]), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "arguments", "count"),
    [
        (
            "iterative_table",
            "--table pol --rows 40 --steps 2 --probes 4 --block-size 10 --max-epochs 20 --defaults",
            14,
        ),
        ("computation_aware_table", "--rows 40 --actions 5 --inducing 6 --epochs 3 --lbfgs-steps 3", 10),
        ("computation_aware_table", "--methods CaGP-default SVGP --same-seconds CaGP-default --actions 5", 2),
        ("computational_uncertainty", "--budget 2 --block-size 10 --capacity 30 --exact", 13),
    ],
)
def test_a_driver_writes_its_rows(name, arguments, count, folder, monkeypatch, capsys):
    out = folder / "out.json"
    monkeypatch.setattr(sys, "argv", [name, *arguments.split(), "--data", str(folder), "--json", str(out)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # solves that stop early are what a few steps leave
        importlib.import_module(f"benchmarks.{name}").main()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == count
    assert all(0 < row["rmse"] < 3 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) >= count


def test_the_checks_of_computation_aware_inference_run(capsys):
    smallest, median = computation_aware_checks.smallest_difference(3)
    assert -1e-9 < smallest <= median
    computation_aware_checks.coverage([4], 1)
    assert "exact" in capsys.readouterr().out


def test_the_memory_of_a_step_is_measured():
    settings = argparse.Namespace(actions=4, inputs=3, dtype="float64", budget="64MiB")
    found = computation_aware_memory.step(60, settings)
    assert found["rows"] == 60
    assert found["step_seconds"] > 0
