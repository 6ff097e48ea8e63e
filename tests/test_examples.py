"""The examples run; those that need packages beyond the test extra are skipped without them."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gigagp.commands.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(("name", "needs"), [("search", "numpy"), ("optuna_sampler", "optuna")])
def test_a_search_ends_near_its_optimum(name, needs, tmp_path, monkeypatch, capsys):
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)  # it may write a file
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    (line,) = capsys.readouterr().out.splitlines()
    assert float(re.search(r"best value (\S+) at", line)[1]) < 0.05
    assert "'layers': 3" in line
    assert "'kind': 'b'" in line


@pytest.mark.parametrize(
    ("name", "words", "files"),
    [
        ("krige_points", "Bern POINT (7.45 46.95)", []),
        ("krige_covariates", "", ["temperature.tif", "temperature.png"]),
        ("krige_blocks", "5 folds of 120 rows: RMSE", ["folds.png"]),
    ],
)
def test_maps(name, words, files, capsys, tmp_path, monkeypatch):
    for package in ("geopandas", "rioxarray", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert words in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_the_map_of_the_command_line(tmp_path, monkeypatch):
    for package in ("geopandas", "rioxarray", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    source = np.random.default_rng(0)
    table = np.c_[source.uniform([178e3, 329e3], [181e3, 333e3], (60, 2)), source.normal(size=60)]
    np.savetxt("stations.csv", table, delimiter=",", header="x,y,zinc", comments="")
    command = (EXAMPLES / "krige.sh").read_text(encoding="utf-8").splitlines()[-1]
    found = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
    assert found.output.splitlines()[-1].startswith("Wrote mean and std of 20 x 15 cells to map.tif, and map.png")


def test_the_launcher_of_slurm_is_a_script():
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not there")
    subprocess.run([bash, "-n", str(EXAMPLES / "slurm.sbatch")], check=True)


def test_the_launcher_of_kubernetes_starts_the_command():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8"))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"
    assert all(isinstance(word, str) for word in container["command"])


@pytest.mark.parametrize("name", ["slurm.sbatch", "kubernetes.yaml"])
def test_launchers_use_options_that_the_command_has(name):
    """The words of ``gigagp fit`` that begin with dashes, in both files."""
    command = re.split(r"gigagp,? fit", (EXAMPLES / name).read_text(encoding="utf-8"))[-1]
    options = set(re.findall(r"--[a-z]+", command))
    assert options == {"--target", "--inference", "--distributed", "--checkpoint", "--out"}
    found = CliRunner().invoke(app, ["fit", "--help"], env={"COLUMNS": "300", "TERM": "dumb"}).output
    assert all(option in found for option in options)


def test_the_trainer_of_ray(tmp_path):
    source = (EXAMPLES / "ray_train.py").read_text(encoding="utf-8")
    compile(source, "ray_train.py", "exec")
    pytest.importorskip("ray.train", reason="Ray is not installed")
    out = tmp_path / "model.gp"
    runpy.run_path(str(EXAMPLES / "ray_train.py"))["train"](str(out), rows=500)
    assert out.exists()
