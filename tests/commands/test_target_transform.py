"""The command line with a transform of the target: fit, predict, evaluate."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp.tables.files import read_table

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.uniform(-2, 2, (120, 2)), columns=["u", "v"])
FRAME["price"] = np.exp(np.sin(2 * FRAME.u) + 0.5 * FRAME.v + 0.2 * RNG.normal(size=120))


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    FRAME.to_csv(path, index=False)
    return path


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("inference", ["auto", "grid"])
def test_predictions_and_scores_are_in_the_targets_units(run, table, tmp_path, inference):
    model, out = tmp_path / "m.gp", tmp_path / "out.csv"
    fit = ("fit", table, "--target", "price", "--target-transform", "log", "--inference", inference, "-q", "-o", model)
    code, shown, error = run(*fit)
    assert code == 0, error
    assert "target        log(y)" in shown
    assert run("predict", model, table, "-o", out)[0] == 0
    gp = gigagp.load(model)
    X, y = FRAME[["u", "v"]], FRAME.price.to_numpy()
    assert np.allclose(read_table(out).values[:, 0], gp.predict(X), rtol=1e-6)
    code, shown, error = run("evaluate", model, table, "--json")
    assert code == 0, error
    scores = json.loads(shown)
    assert np.isclose(scores["nll"], -gp.predictive_log_density(X, y).mean())
    assert np.isclose(scores["rmse"], np.sqrt(np.mean((gp.predict(X) - y) ** 2)))
    for level in (0.5, 0.8, 0.95):
        low, high = gp.predict_quantile(X, [0.5 - level / 2, 0.5 + level / 2]).T
        assert scores["coverage"][str(level)] == np.mean((low < y) & (y <= high))
    assert run("evaluate", model, table)[0] == 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--target-transform", "square"), "--target-transform must be one of none, log"),
        (("--target-transform", "log", "--likelihood", "poisson"), "does not apply to --likelihood poisson"),
        (("--target-transform", "log", "--target", "u"), "y must be positive"),
    ],
)
def test_what_has_no_meaning_is_refused(run, table, tmp_path, options, match):
    code, _, error = run("fit", table, "--target", "price", *options, "-q", "-o", tmp_path / "m.gp")
    assert code != 0
    assert match in " ".join(error.split())
