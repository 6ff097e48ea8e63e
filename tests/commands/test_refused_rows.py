"""Rows that a likelihood excludes: each command names the file, the column and the row, and leaves nothing behind."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp import GPRegressor, inference
from gigagp.errors import InvalidInputError, RowError
from gigagp.estimators.saving import persistence

N, ROW = 40, 7  # of the bad row, counted from 0
DRAW = np.random.default_rng(0)
FRAME = pd.DataFrame(DRAW.uniform(0, 3, (N, 2)), columns=["u", "v"])
RATE = np.exp(np.sin(FRAME.u))
FRAME["count"] = DRAW.poisson(RATE)
FRAME["hours"] = DRAW.uniform(0.5, 20, N).round(1)
FRAME["share"] = DRAW.uniform(0.1, 0.9, N)
FRAME["rain"] = DRAW.gamma(3, RATE)
FRAME["tries"] = DRAW.integers(3, 9, N)
FRAME["wins"] = DRAW.binomial(FRAME.tries, 0.5)
FRAME["low"] = np.maximum(RATE, 1.0).round(3)
FRAME["high"] = FRAME.low
FRAME["class"] = np.where(RATE > 1, "a", "b")
#: Likelihood, target, further options, the column and the value that are bad, and words of the refusal.
CASES = [
    ("poisson", "count", {}, "count", -1, "whole numbers from 0 to 2^53 (9e15); got -1."),
    ("poisson", "count", {}, "count", 2.5, "got 2.5."),
    ("negative-binomial", "count", {}, "count", -1, "got -1."),
    ("zero-inflated-poisson", "count", {}, "count", 0.5, "got 0.5."),
    ("hurdle-poisson", "count", {}, "count", -3, "got -3."),
    ("poisson", "count", {"exposure": "hours"}, "hours", 0, "exposure must be positive; got 0."),
    ("poisson", "count", {"exposure": "hours"}, "hours", -2, "exposure must be positive; got -2."),
    ("beta", "share", {}, "share", 1.2, "above 0 and below 1; got 1.2."),
    ("gamma", "rain", {}, "rain", 0, "must be positive, from 1e-15 to 1e15 (give them in other units); got 0."),
    ("binomial", "wins", {"exposure": "tries"}, "tries", 0, "exposure must be positive; got 0."),
    ("binomial", "wins", {"exposure": "tries"}, "tries", 2.5, "whole numbers of trials"),
    ("binomial", "wins", {"exposure": "tries"}, "wins", 99, "from 0 to the number of trials"),
    ("censored", "low", {"upper": "high"}, "high", -1, "a larger or equal one"),
]


@pytest.fixture
def table(tmp_path):
    """Return a function that writes the table with a value in the bad row."""

    def write(column: str, value: float) -> Path:
        frame = FRAME.copy()
        frame[column] = frame[column].astype(float)
        frame.loc[ROW, column] = value
        path = tmp_path / "table.csv"
        frame.to_csv(path, index=False)
        return path

    return write


@pytest.mark.few(12)
@pytest.mark.parametrize("name", ["csv", "parquet"])
@pytest.mark.parametrize(("likelihood", "target", "more", "column", "value", "words"), CASES)
def test_a_fit(refused, table, tmp_path, likelihood, target, more, column, value, words, name):
    path = table(column, value)
    if name == "parquet":
        path = tmp_path / "table.parquet"
        pd.read_csv(tmp_path / "table.csv").to_parquet(path)
    options = [part for option, given in more.items() for part in (f"--{option}", given)]
    fit = ("fit", path, "--target", target, "--likelihood", likelihood, *options, "--columns", "u,v", "-q")
    error = refused(*fit, "-o", tmp_path / "m.gp")
    assert f"{path}: column '{'low' if column == 'high' else column}" in error
    assert f"row {ROW + 1}: " in error  # as in messages about cells
    assert words in error
    assert not (tmp_path / "m.gp").exists()


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("likelihood", "target", "more", "column", "value", "words"), [one for one in CASES if "upper" not in one[2]]
)
def test_a_comparison(refused, table, likelihood, target, more, column, value, words):
    """Rows are counted in the whole table, not among those that models learn from."""
    options = [part for option, given in more.items() for part in (f"--{option}", given)]
    compare = ("compare", table(column, value), "--target", target, "--likelihood", likelihood, *options)
    error = refused(*compare, "--columns", "u,v", "-q")
    assert f"column '{column}', row {ROW + 1}: " in error
    assert words in error


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return files with models of counts, of successes and of limits."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for likelihood, target, column in (("poisson", "count", "hours"), ("binomial", "wins", "tries")):
        gp = GPRegressor(likelihood=likelihood, inference=inference.Vecchia(10), optimizer=None)
        gp.fit(FRAME[["u", "v"]], FRAME[target], exposure=FRAME[column])
        found[likelihood] = folder / f"{likelihood}.gp"
        persistence.save(gp, found[likelihood], notes={"target": target, "exposure": column, "rows": N})
    gp = GPRegressor(likelihood="censored", optimizer=None).fit(FRAME[["u", "v"]], FRAME[["low", "high"]])
    found["censored"] = folder / "censored.gp"
    persistence.save(gp, found["censored"], notes={"target": "low", "upper": "high", "rows": N})
    return found


SAVED = [
    one for one in CASES if one[0] in ("poisson", "binomial", "censored") and not (one[0] == "poisson" and not one[2])
]


@pytest.mark.parametrize(("likelihood", "target", "more", "column", "value", "words"), [*SAVED, CASES[0]])
@pytest.mark.parametrize("command", ["predict", "evaluate", "report"])
def test_commands_for_a_saved_model(
    refused, table, models, tmp_path, command, likelihood, target, more, column, value, words
):
    if command == "report" and likelihood == "censored":
        words = "A picture cannot show rows with offset or limits"
    is_target = column not in more.values() or "upper" in more
    if command == "predict" and is_target:
        return  # it reads no targets
    out = tmp_path / {"predict": "out.csv", "report": "r.html", "evaluate": "none"}[command]
    options = {"predict": ("--exposure", more.get("exposure"), "-o", out), "report": ("-o", out), "evaluate": ()}
    error = refused(command, models[likelihood], table(column, value), *options[command], "-q")
    if not words.startswith("A picture"):
        assert f"column '{'low' if column == 'high' else column}" in error
        assert f"row {ROW + 1}: " in error
    assert words in error
    assert not out.exists()


@pytest.mark.parametrize("command", ["predict", "evaluate", "report"])
def test_an_exposure_that_is_not_there(refused, models, tmp_path, command):
    path = tmp_path / "table.csv"
    FRAME.drop(columns="hours").to_csv(path, index=False)
    options = {"predict": ("--exposure", "hours")}.get(command, ())
    assert "has no column 'hours'" in refused(command, models["poisson"], path, *options, "-q")


def test_one_class_and_successes_without_trials(refused, tmp_path):
    path = tmp_path / "table.csv"
    FRAME.assign(**{"class": "a"}).to_csv(path, index=False)
    fit = ("fit", path, "--columns", "u,v", "-q")
    assert "labels of only one class, 'a'" in refused(*fit, "--target", "class", "--likelihood", "logistic")
    first = int(np.argmax(FRAME.wins > 1)) + 1
    error = refused(*fit, "--target", "wins", "--likelihood", "binomial")
    assert f"row {first}: successes must be from 0 to the number of trials, which is the exposure, or 1" in error


def test_errors_of_rows_reach_other_processes_and_comparisons_count_all_rows():
    error = RowError("y must be positive", "-1", 3)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "y must be positive; got -1 in row 3."
    assert (again.row, again.name) == (3, "y")
    y = FRAME["count"].to_numpy(dtype=float, copy=True)
    y[ROW] = -1
    models = {"counts": GPRegressor(likelihood="negative-binomial")}
    with pytest.raises(InvalidInputError, match=f"counts: .* got -1 in row {ROW}"):
        gigagp.compare(FRAME[["u", "v"]], y, models, time_budget="5s")
