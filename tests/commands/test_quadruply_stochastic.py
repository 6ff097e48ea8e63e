"""The command line with quadruply stochastic inference: folders, classes, likelihoods."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp.tables.files import read_table

RNG = np.random.default_rng(0)
N = 300
FRAME = pd.DataFrame(RNG.uniform(0, 3, (N, 2)), columns=["u", "v"])
FRAME["y"] = np.sin(2 * FRAME.u) * np.cos(2 * FRAME.v) + 0.1 * RNG.normal(size=N)
FRAME["sign"] = np.where(FRAME.y > 0, "plus", "minus")
FAST = ("--functions", 60, "--kernel", "rbf", "-q")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "parts"
    path.mkdir()
    FRAME.iloc[:170].to_parquet(path / "0.parquet")
    FRAME.iloc[170:].to_parquet(path / "1.parquet")
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("likelihood", ["gaussian", "laplace"])
def test_a_folder_is_fitted_and_evaluated(run, folder, tmp_path, likelihood):
    model, options = tmp_path / "m.gp", ("--target", "y", "--columns", "u,v", "--likelihood", likelihood)
    code, out, error = run("fit", folder, *options, "--inference", "quadruply-stochastic", *FAST, "-o", model)
    assert code == 0, error
    assert "inference     quadruply stochastic (at most 60 fourier functions" in out
    assert "Fitted 300 rows and 2 inputs" in out
    code, out, error = run("evaluate", model, folder, "--json")
    assert code == 0, error
    assert json.loads(out)["rmse"] < 0.15
    assert gigagp.load(model).likelihood == likelihood
    code, out, error = run(
        "fit", folder, *options, "--inference", "quadruply-stochastic", *FAST, "--steps", 9, "-o", model
    )
    assert code == 0, error
    assert "optimizer     SparseAdam" in out


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_classes(run, refused, folder, tmp_path, kind):
    table, model = folder, tmp_path / "m.gp"
    if kind == "csv":
        table = tmp_path / "t.csv"
        FRAME.assign(sign=np.where(FRAME.y > 0, 7, 3)).to_csv(table, index=False)
    classes = [3, 7] if kind == "csv" else ["minus", "plus"]
    fit = ("fit", table, "--target", "sign", "--columns", "u,v", "--likelihood", "logistic", *FAST, "-o", model)
    code, out, error = run(*fit)
    assert code == 0, error
    assert f"classes       {classes[0]}, {classes[1]}" in out
    assert gigagp.load(model).classes_.tolist() == classes
    code, out, error = run("evaluate", model, table, "--json")
    assert code == 0, error
    scores = json.loads(out)
    assert scores["accuracy"] > 0.85
    assert scores["accuracy"] == pytest.approx(
        gigagp.load(model).score(FRAME[["u", "v"]], np.where(FRAME.y > 0, classes[1], classes[0]))
    )
    assert 0 < scores["calibration_error"] < 0.3
    assert scores["log_loss"] < 0.6
    assert "most probable class" in run("evaluate", model, table)[1]
    assert run("predict", model, table, "-o", tmp_path / "p.parquet")[0] == 0
    found = read_table(tmp_path / "p.parquet")
    assert found.names == (f"p_{classes[0]}", f"p_{classes[1]}")
    np.testing.assert_allclose(found.values, gigagp.load(model).predict_proba(FRAME[["u", "v"]]))
    assert "do not apply to" in refused("predict", model, table, "--samples", 2)
    other = FRAME.assign(sign="zero").to_csv(tmp_path / "other.csv", index=False)
    assert other is None
    assert "the label 'zero' is not one of the classes" in refused("evaluate", model, tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--likelihood", "student"), "--likelihood must be one of gaussian, student-t"),
        (("--likelihood", "logistic", "--mean", "linear"), "--mean linear does not apply"),
        (("--likelihood", "logistic"), "is not a class label"),
        (
            ("--likelihood", "laplace", "--rows", 50),
            "--panel, --groups and --predict-at do not apply",
        ),
        (("--likelihood", "laplace", "--inference", "exact"), 'inference for the laplace likelihood must be "auto"'),
        (("--functions", 9), "--functions does not apply to --inference auto"),
        (("--inference", "quadruply-stochastic", "--functions", 1), "n_basis of QuadruplyStochastic must be an int"),
        (("--inference", "quadruply-stochastic", "--truncation", 40), "quadruply-stochastic inference has nothing to"),
        (("--inference", "quadruply-stochastic", "--optimizer", "sgd"), "--optimizer must be one of"),
    ],
)
def test_one_line_says_what_is_wrong(refused, folder, tmp_path, arguments, message):
    call = ("fit", folder, "--target", "y", "--columns", "u,v", "-q", "-o", tmp_path / "m.gp")
    assert message in refused(*call, *arguments)


def test_diagnose_has_no_use_for_it(refused, folder):
    words = ("diagnose", "bias", folder / "0.parquet", "--target", "y", "--inference", "quadruply-stochastic")
    assert "whose model is another one" in refused(*words)
