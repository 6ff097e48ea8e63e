"""``gigagp diagnose bias``: the real estimator on a small table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gigagp import GPRegressor, inference
from gigagp.estimators.saving import persistence

SMALL = ("--draws", 30, "--rows", 40, "-q")


def test_a_biased_configuration_is_called_so(run, csv, tmp_path):
    plot = tmp_path / "bias.png"
    arguments = ("--target", "y", "--solver", "cg", "--preconditioner", "none", "--max-epochs", 2, "--plot", plot)
    code, out, error = run("diagnose", "bias", csv, *arguments, "--gradient", "hutchinson", *SMALL)
    assert code == 0, error
    assert "30 draws, 40 rows" in out
    assert "noise_variance" in out
    assert "bias / s.e." in out
    assert "Biased by more than 4 standard errors: log likelihood" in out
    assert "2 epochs; the exact one" in out
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_an_unbiased_one_is_not(run, csv):
    code, out, error = run(
        "diagnose", "bias", csv, "--target", "-1", "--truncation", "6,3", "--preconditioner", "none", *SMALL
    )
    assert code == 0, error
    assert "No bias of more than 4 standard errors in 30 draws." in out


@pytest.mark.slow
def test_numbers_as_json(run, csv):
    words = (
        "--inference",
        "random-features",
        "--features",
        4,
        "--json",
        "--start",
        "--kernel",
        "rbf",
        "--mean",
        "zero",
    )
    code, out, error = run("diagnose", "bias", csv, "--target", "y", *words, *SMALL)
    assert code == 0, error
    report = json.loads(out)
    assert report["n_rows"] == 40
    assert report["method"] == "random features (4, joint, frozen)"
    assert [row["name"] for row in report["rows"]] == [
        "log likelihood",
        "lengthscale[0]",
        "lengthscale[1]",
        "variance",
        "noise_variance",
    ]
    assert report["rows"][0]["bias"] == report["rows"][0]["mean"] - report["rows"][0]["exact"] != 0
    code, again, _ = run("diagnose", "bias", csv, "--target", "y", *words, *SMALL)
    assert json.loads(again)["rows"] == report["rows"]  # the same seed
    _, fewer, _ = run("diagnose", "bias", csv, "--target", "y", *words, *SMALL, "--columns", "a", "--no-values")
    assert [row["name"] for row in json.loads(fewer)["rows"]] == ["lengthscale[0]", "variance", "noise_variance"]


@pytest.mark.parametrize("names", [True, False])
def test_at_the_hyperparameters_of_a_saved_model(run, csv, tmp_path, names):
    table = np.loadtxt(csv, delimiter=",", skiprows=1)
    gp = GPRegressor(inference=inference.Exact(), optimizer=None, noise_variance=0.3)
    if names:
        assert run("fit", csv, "--target", "y", "-o", tmp_path / "model.gp", "-q", "--optimizer", "none")[0] == 0
        words = ()
    else:
        persistence.save(gp.fit(table[:, :2], table[:, 2]), tmp_path / "model.gp")
        words = ("--target", "y", "--columns", "a,b")
    words = ("--model", tmp_path / "model.gp", "--inference", "exact", "--json", *words)
    code, out, error = run("diagnose", "bias", csv, *words, "--draws", 2, "-q")
    assert code == 0, error
    report = json.loads(out)
    noise = None if names else 0.3
    expected = GPRegressor(inference=inference.Exact(), optimizer=None, noise_variance=noise)
    value = expected.fit(table[:, :2], table[:, 2]).log_marginal_likelihood(standardized=True).value
    assert report["rows"][0]["exact"] == pytest.approx(value)
    assert all(row["errors"] == 0 for row in report["rows"])


def test_help_without_a_command(run):
    code, out, _ = run("diagnose")
    assert code == 0
    assert "bias" in out


def test_what_is_wrong_is_said_in_a_line(refused, csv, tmp_path):
    assert "--target must name the column" in refused("diagnose", "bias", csv)
    assert "--start and --model cannot be combined" in refused("diagnose", "bias", csv, "--start", "--model", "m.gp")
    assert "does not exist" in refused("diagnose", "bias", csv, "--target", "y", "--plot", tmp_path / "no" / "p.png")
    assert "ends in .png" in refused("diagnose", "bias", csv, "--target", "y", "--plot", tmp_path / "p.txt")
    assert "n_draws" in refused("diagnose", "bias", csv, "--target", "y", "--draws", 1, "--start", "-q")
    assert "--rows must be at least 2" in refused("diagnose", "bias", csv, "--target", "y", "--rows", 1)
    known = np.full(40, 0.1)
    table = np.loadtxt(csv, delimiter=",", skiprows=1)
    gp = GPRegressor(inference=inference.Exact(), optimizer=None, noise_variance=known).fit(table[:, :2], table[:, 2])
    persistence.save(gp, tmp_path / "known.gp")
    assert "a learned noise variance" in refused("diagnose", "bias", csv, "--model", tmp_path / "known.gp")
    gp = GPRegressor(inference=inference.Exact(), optimizer=None).fit(table[:, :2], table[:, 2])
    persistence.save(gp, tmp_path / "nameless.gp")
    assert "name the column with --target" in refused("diagnose", "bias", csv, "--model", tmp_path / "nameless.gp")


@pytest.mark.parametrize("outputs", ["independent", "shared"])
def test_models_of_several_targets_are_refused(refused, csv, tmp_path, outputs):
    table = np.loadtxt(csv, delimiter=",", skiprows=1)
    gp = GPRegressor(inference=inference.Exact(), optimizer=None, outputs=outputs).fit(table[:, :2], table[:, 1:])
    persistence.save(gp, tmp_path / "two.gp")
    for words in (("diagnose", "bias", csv, "--model", tmp_path / "two.gp"), ("evaluate", tmp_path / "two.gp", csv)):
        assert "must have one target; " in refused(*words, "--target", "y")
