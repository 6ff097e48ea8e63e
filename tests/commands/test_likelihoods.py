"""The command line with neighbours for counts, classes and gross outliers: fit, predict, evaluate."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import gigagp
from gigagp import likelihoods
from gigagp.commands import options
from gigagp.tables.files import read_table

RNG = np.random.default_rng(0)
N = 200
FRAME = pd.DataFrame(RNG.uniform(0, 3, (N, 2)), columns=["u", "v"])
TRUTH = np.sin(2 * FRAME.u) * np.cos(2 * FRAME.v)
FRAME["count"] = RNG.poisson(np.exp(1 + TRUTH))
FRAME["class"] = np.select([TRUTH > 0.3, TRUTH < -0.3], ["high", "low"], "middle")
FRAME["wrong"] = TRUTH + 0.1 * RNG.normal(size=N) + np.where(np.arange(N) % 10 == 0, 1e4, 0.0)
FAST = ("--columns", "u,v", "--neighbors", 10, "-q")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.parquet"
    FRAME.to_parquet(path)
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("target", "likelihood"),
    [("count", "poisson"), ("class", "logistic"), ("class", "probit"), ("wrong", "laplace"), ("wrong", "student-t")],
)
def test_each_likelihood(run, table, tmp_path, target, likelihood):
    model, out = tmp_path / "m.gp", tmp_path / "out.parquet"
    fit = ("fit", table, "--target", target, "--likelihood", likelihood, "--inference", "vecchia", *FAST)
    code, shown, error = run(*fit, "-o", model)
    assert code == 0, error
    assert "Vecchia (10 neighbours for each row, 60 to 200 for each new point)" in shown
    assert f"Fitted {N} rows and 2 inputs" in shown
    assert run("predict", model, table, "-o", out)[0] == 0
    predicted = read_table(out).values
    assert np.isfinite(predicted).all()
    code, shown, error = run("evaluate", model, table, "--json")
    assert code == 0, error
    scores = json.loads(shown)
    gp = gigagp.load(model)
    if target == "class":
        assert scores["accuracy"] > 0.85
        return
    places = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    y = FRAME[target].to_numpy()[:, None]
    if likelihood == "poisson":
        f, std = gp.predict_latent(FRAME[["u", "v"]], return_std=True)
        density = stats.poisson.pmf(y, np.exp(f[:, None] + std[:, None] * places))
        np.testing.assert_allclose(predicted[:, 0], np.exp(f + std**2 / 2))
        assert scores["rmse"] < FRAME["count"].std()
        assert scores["coverage"]["0.95"] > 0.93  # at least, because counts are whole
    else:
        f = predicted[:, :1] + predicted[:, 1:2] * places
        scale = np.sqrt(gp.noise_variance_ / 2)
        law = stats.t(4) if likelihood == "student-t" else stats.laplace
        density = law.pdf((y - f) / scale) / scale
        assert scores["rmse"] > 1000  # of the table, which has the outliers
    assert scores["nll"] == pytest.approx(-np.log(density.mean(1)).mean(), abs=1e-3)
    assert "negative log density" in run("evaluate", model, table)[1]
    if likelihood == "student-t":
        assert np.sqrt(np.mean((predicted[:, 0] - TRUTH) ** 2)) < 0.06


def test_the_default_inference_of_gross_outliers(run, refused, table, tmp_path):
    fit = ("fit", table, "--target", "wrong", "--columns", "u,v", "--likelihood", "student-t", "-q")
    code, shown, error = run(*fit, "--optimizer", "none", "-o", tmp_path / "m.gp")
    assert code == 0, error
    assert "inference     exact" in shown
    assert "rows of 200 have weights below 0.1" in shown
    code, shown, error = run("evaluate", tmp_path / "m.gp", table, "--json")
    assert code == 0, error
    assert json.loads(shown)["coverage"]["0.5"] > 0.4
    for other in ("quadruply-stochastic", "relevance-vectors"):
        message = 'student-t likelihood must be "auto", one that takes known noise variances'
        refused(message, *fit, "--inference", other, "-o", tmp_path / "m.gp")


@pytest.mark.slow
def test_the_choice_between_gaussian_and_heavy_tails(run, refused, table, tmp_path):
    fit = ("fit", table, "--target", "wrong", "--columns", "u,v", "--likelihood", "auto", "-q", "-o", tmp_path / "m.gp")
    code, shown, error = run(*fit)
    assert code == 0, error
    assert "auto: Student-t noise gains +" in shown
    assert gigagp.load(tmp_path / "m.gp").likelihood_.df < 10
    refused("--target-transform log does not apply to --likelihood auto", *fit, "--target-transform", "log")


# Likelihoods that neighbours alone take -------------------------------------------------------------------------------

FRAME["hours"] = RNG.uniform(0.5, 20, N).round(1)
FRAME["seen"] = RNG.poisson(FRAME.hours * np.exp(TRUTH))
FRAME["tries"] = RNG.integers(1, 20, N)
FRAME["wins"] = RNG.binomial(FRAME.tries, 1 / (1 + np.exp(-2 * TRUTH)))
FRAME["rain"] = RNG.gamma(3, np.exp(TRUTH) / 3)
TIME = 100 * np.exp(TRUTH) * RNG.weibull(1.5, N)
FRAME["from"] = np.minimum(TIME, 200)
FRAME["to"] = np.where(TIME < 200, TIME, np.nan)


def test_they_are_all_offered():
    assert set(options.LIKELIHOODS) == {*likelihoods.NAMES, "auto"}
    of_both = {one for one in likelihoods.NAMES if not likelihoods.resolve_likelihood(one).only_laplace}
    assert of_both - {"gaussian", "student-t"} == set(options.OF_BOTH)
    limits = {one for one in likelihoods.NAMES if likelihoods.resolve_likelihood(one).has_limits}
    assert limits == set(options.WITH_LIMITS)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("target", "likelihood", "more"),
    [
        ("seen", "negative-binomial", ("--exposure", "hours")),
        pytest.param("wins", "binomial", ("--exposure", "tries"), marks=pytest.mark.slow),
        ("rain", "gamma", ()),
        ("from", "weibull", ("--upper", "to")),
    ],
)
def test_each_likelihood_of_neighbours(run, table, tmp_path, target, likelihood, more):
    model, out = tmp_path / "m.gp", tmp_path / "out.csv"
    code, shown, error = run("fit", table, "--target", target, "--likelihood", likelihood, *more, *FAST, "-o", model)
    assert code == 0, error
    assert f"Fitted {N} rows and 2 inputs" in shown
    gp, X = gigagp.load(model), FRAME[["u", "v"]]
    known = {"exposure": FRAME[more[1]]} if "--exposure" in more else {}
    predict = ("predict", model, table, "--include-noise", "--samples", 2, "-o", out)
    assert run(*predict, *(more if known else ()))[0] == 0
    found = read_table(out).values
    np.testing.assert_allclose(found[:, 0], gp.predict(X, **known), rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], gp.predict(X, return_std=True, include_noise=True, **known)[1], rtol=1e-6)
    code, shown, error = run("evaluate", model, table, "--json")
    assert code == 0, error
    y = FRAME[target]
    if likelihood == "weibull":
        y = np.stack([y, FRAME["to"].fillna(np.inf)], 1)
    density = gp.predictive_log_density(X, y, **known)
    assert json.loads(shown)["nll"] == pytest.approx(-density.mean(), rel=1e-9)


def test_options_that_do_not_go_together(run, table, tmp_path):
    for given, match in (
        (
            ("--target", "rain", "--likelihood", "gamma", "--upper", "to"),
            "--upper is for --likelihood censored and",
        ),
        (
            ("--target", "from", "--likelihood", "weibull"),
            "--upper is for --likelihood censored and weibull",
        ),
        (("--target", "wrong", "--exposure", "hours"), "exposure must be None with the gaussian likelihood"),
        (
            ("--target", "class", "--likelihood", "logistic", "--exposure", "hours"),
            "does not apply to --likelihood",
        ),
    ):
        code, _, error = run("fit", table, *given, "--columns", "u,v", "-q", "-o", tmp_path / "m.gp")
        assert code != 0
        assert match in " ".join(error.split())


@pytest.mark.slow
def test_an_exposure_in_reports_and_comparisons(run, refused, table, tmp_path):
    """Both score counts over the hours of each row; the pictures show the rate."""
    model, page = tmp_path / "m.gp", tmp_path / "page.html"
    given = ("--target", "seen", "--columns", "u,v", "--exposure", "hours", "-q")
    fit = ("fit", table, *given, "--likelihood", "poisson", "--optimizer", "none", "--neighbors", 10, "-o", model)
    code, _, error = run(*fit)
    assert code == 0, error
    code, _, error = run("report", model, table, "-q", "-o", page)
    assert code == 0, error
    gp, X = gigagp.load(model), FRAME[["u", "v"]]
    density = gp.predictive_log_density(X, FRAME["seen"], exposure=FRAME["hours"])
    assert f"{-density.mean():.4g} ±" in page.read_text()
    compare = ("compare", table, *given, "--time", "20s", "--json")
    code, shown, error = run(*compare, "--likelihood", "poisson")
    assert code == 0, error
    found = json.loads(shown)["models"]
    assert found[0]["name"] == "poisson"
    assert found[0]["rmse"] < 0.7 * next(one["rmse"] for one in found if one["name"] == "mean")
    assert found[0]["coverage_95"] > 0.85
    refused("--likelihood of compare must be names among gaussian", *compare, "--likelihood", "weibull")
    refused("exposure must be None with the beta likelihood", *compare, "--likelihood", "beta")
