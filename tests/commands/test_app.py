from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gigagp
from gigagp import commands
from gigagp.commands import app, fit


def test_help_and_version(run):
    code, out, _ = run("--help")
    assert code == 0
    for command in ("fit", "predict", "evaluate", "demo"):
        assert f"  {command}  " in out
    assert run()[:2] == (0, out)
    assert run("--version") == (0, f"gigagp {gigagp.__version__}\n", "")


@pytest.mark.parametrize("given", [None, "active"])
def test_threads_that_wait_sleep_unless_told_otherwise(given, monkeypatch):
    monkeypatch.setattr(app, "main", lambda arguments: None)
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    commands.main([])
    assert os.environ["OMP_WAIT_POLICY"] == (given or "passive")


def test_it_is_set_before_torch_is_loaded():
    code = "import sys, gigagp.commands; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "demo"])
def test_every_command_has_help(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"gigagp {command} [OPTIONS]" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bogus",), "No such command 'bogus'"),
        (("fit",), "Missing argument 'TABLE'"),
        (("fit", "t.csv"), "Missing option '--target'"),
        (("fit", "t.csv", "--target", "y", "--steps", "many"), "--steps"),
        (("fit", "t.csv", "--target", "y", "--bogus"), "--bogus"),
    ],
)
def test_a_wrong_command_is_one_line(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.slow
def test_python_m_runs_the_same(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1])}
    command = [sys.executable, "-m", "gigagp", "predict", "absent.gp", "absent.csv"]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "gigagp: absent.gp does not exist.\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "gigagp: stopped.\n"),
        (MemoryError(), 2, "gigagp: out of memory. Give a lower --memory, or fewer rows with --rows.\n"),
        (OSError(28, "No space left on device"), 2, "gigagp: No space left on device.\n"),
    ],
)
def test_what_interrupts_a_command_is_one_line(run, csv, tmp_path, monkeypatch, error, code, line):
    def interrupted(*_, **__):
        raise error

    monkeypatch.setattr(fit, "read_columns", interrupted)
    assert run("fit", csv, "--target", "y", "--out", tmp_path / "m.gp") == (code, "", line)


def test_a_bug_keeps_its_traceback(monkeypatch, csv, tmp_path):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(fit, "read_columns", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        app.main(["fit", str(csv), "--target", "y", "--out", str(tmp_path / "m.gp")])
