"""The examples run; those that need packages beyond the test extra are skipped without them."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from typer.testing import CliRunner

from gigagp import GPRegressor, kernels
from gigagp.commands.app import app

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "needs"), [("search", "numpy"), ("optuna_sampler", "optuna")])
def test_a_search_ends_near_its_optimum(name, needs, tmp_path, monkeypatch, capsys):
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)  # it may write a file
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    (line,) = capsys.readouterr().out.splitlines()
    assert float(re.search(r"best value (\S+) at", line)[1]) < 0.05
    assert "'layers': 3" in line
    assert "'kind': 'b'" in line


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "words", "files"),
    [
        ("krige_points", "Bern POINT (7.45 46.95)", []),
        ("krige_covariates", "", ["temperature.tif", "temperature.png"]),
        pytest.param("krige_blocks", "5 folds of 120 rows: RMSE", ["folds.png"], marks=pytest.mark.slow),
    ],
)
def test_maps(name, words, files, capsys, tmp_path, monkeypatch):
    for package in ("geopandas", "rioxarray", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert words in " ".join(capsys.readouterr().out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_a_forecast(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "forecast.py"))
    assert "2024-12: " in capsys.readouterr().out
    assert (tmp_path / "visits.png").is_file()


@pytest.mark.slow
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


def test_a_graph_predicts_as_the_model(tmp_path, monkeypatch, capsys):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "onnx_model.py"))
    assert float(capsys.readouterr().out.split()[-1]) < 1e-6


def test_the_service_answers_rows_and_refuses_others(tmp_path):
    X = np.linspace(0, 1, 20)[:, None]
    gp = GPRegressor(kernels.Matern(nu=1.5)).fit(X, np.sin(5 * X[:, 0]))
    handler = runpy.run_path(str(EXAMPLES / "http_service.py"))["Handler"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.model = gp
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with urlopen(Request(url, b"[[0.3], [0.7]]"), timeout=60) as answer:
            found = json.load(answer)
        mean, std = gp.predict([[0.3], [0.7]], return_std=True)
        assert found == {"mean": mean.tolist(), "std": std.tolist()}
        for wrong in (b"[[1, 2]]", b"no JSON"):
            with pytest.raises(HTTPError) as error:
                urlopen(Request(url, wrong), timeout=60)
            with error.value:
                assert error.value.code == 400
                assert json.load(error.value)["error"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
