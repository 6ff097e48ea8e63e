"""Comparison of models on held-out rows: scores, simple methods, errors, and the command."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import gigagp
from gigagp import GPRegressor, compare, inference, kernels
from gigagp.commands.app import app
from gigagp.errors import InvalidInputError
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.settings.random import generator_from


def made_rows(n: int, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.uniform(-2, 2, size=(n, d))
    return X, np.sin(3 * X[:, 0]) + 0.5 * X[:, -1] + 0.05 * random.normal(size=n)


def test_scores_are_those_of_the_held_out_rows():
    X, y = made_rows(400)
    found = compare(X, y, {"exact": GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact())}, held_out=0.25)
    assert (found.n_rows, found.n_held_out) == (300, 100)
    scored = {one.name: one for one in found.models}
    assert scored["exact"].rmse == rmse(found.y, found.mean)
    assert scored["exact"].nll == gaussian_nll(found.y, found.mean, found.std)
    held_out = np.isin(y, found.y)
    assert held_out.sum() == 100
    assert found.model.posterior_.n_rows == 300
    again = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact()).fit(X[~held_out], y[~held_out])
    np.testing.assert_allclose(again.predict(X[held_out]), found.mean, rtol=1e-9)


@pytest.mark.slow
def test_simple_methods_are_what_they_say():
    X, y = made_rows(400)
    found = compare(X, y, {"exact": GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact())})
    scored = {one.name: one for one in found.models}
    train = ~np.isin(y, found.y)
    assert scored["mean"].rmse == pytest.approx(rmse(found.y, np.full(80, y[train].mean())))
    design = np.column_stack([np.ones(400), X])
    coefficients = np.linalg.lstsq(design[train], y[train], rcond=None)[0]
    assert scored["linear regression"].rmse == pytest.approx(rmse(found.y, design[~train] @ coefficients))
    assert scored["exact"].rmse < scored["linear interpolation"].rmse < scored["mean"].rmse
    assert {"nearest neighbours", "boosted trees"} <= set(scored)
    assert "linear interpolation" not in {one.name for one in compare(*made_rows(60, 5)).models}


def test_the_best_is_that_with_the_lowest_density_loss():
    X, y = made_rows(300)
    bad = GPRegressor(gigagp.kernels.RBF(100.0), noise_variance=1.0, optimizer=None)
    found = compare(X, y, {"bad": bad, "good": GPRegressor(kernels.Matern(nu=1.5))})
    assert found.best == "good"
    assert str(found).splitlines()[3].startswith("-> good")
    assert bad.time_budget is None


def test_a_model_that_fails_is_reported_beside_the_others():
    X, y = made_rows(300)
    small = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact(), memory_budget=1000)
    found = compare(X, y, {"small": small, "good": GPRegressor(kernels.Matern(nu=1.5))})
    assert found.models[0].rmse is None
    assert "memory budget" in found.models[0].note
    assert found.best == "good"
    with pytest.raises(InvalidInputError, match=r"could fit none of its models: small: .*memory"):
        compare(X, y, {"small": small})


@pytest.mark.parametrize("rows", [3, 9])
def test_too_few_rows_are_refused(rows):
    with pytest.raises(InvalidInputError, match="at least 10 rows"):
        compare(*made_rows(rows))


@pytest.mark.parametrize("change", [{"held_out": 0.0}, {"held_out": 1.0}, {"time_budget": "soon"}, {"encode": "yes"}])
def test_wrong_arguments_are_refused(change):
    with pytest.raises(InvalidInputError):
        compare(*made_rows(50), **change)


def test_degenerate_tables_are_compared():
    X = np.repeat(np.arange(20.0), 3)[:, None]
    y = np.tile([1.0, 2.0, 3.0], 20)
    assert compare(X, y, time_budget=5).n_rows == 48
    line = np.column_stack([np.arange(60.0), np.arange(60.0)])  # no triangle has an area
    assert compare(line, np.sin(line[:, 0]), {"exact": GPRegressor(kernels.Matern(nu=1.5))}).best == "exact"


def test_the_command_compares_a_table_of_any_columns(tmp_path):
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"x": random.normal(size=120), "colour": random.choice(["red", "blue"], size=120)})
    frame["y"] = frame.x + (frame.colour == "red") + 0.1 * random.normal(size=120)
    frame.to_csv(tmp_path / "table.csv", index=False)
    table, model, plot = (str(tmp_path / name) for name in ("table.csv", "model.gp", "plot.png"))
    arguments = ["compare", table, "--target", "y", "--time", "20s", "--out", model, "--plot", plot, "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[0])
    scores = {one["name"]: one["rmse"] for one in found["models"]}
    assert scores[found["best"]] < 0.2 < scores["mean"]
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert gigagp.load(model).posterior_.n_rows == 120


def test_targets_with_an_exposure():
    """Models and simple methods predict what is counted over the exposure of each row; left out, they miss by it."""
    draw = np.random.default_rng(0)
    X, effort = draw.uniform(-1, 1, (80, 1)), 10 ** draw.uniform(-1, 1, 80)
    counts = draw.poisson(3 * np.exp(X[:, 0]) * effort)
    model = GPRegressor(kernels.Matern(1.5), inference.Vecchia(), likelihood="poisson", optimizer=None)
    found = compare(X, counts, {"rates": model}, exposure=effort)
    without = compare(X, counts, {"rates": model})
    of_effort, of_counts = ({one.name: one for one in each.models} for each in (found, without))
    assert of_effort["rates"].rmse < 0.6 * of_counts["rates"].rmse
    order = np.random.default_rng(generator_from(0).initial_seed() % 2**63).permutation(80)
    test, train = np.sort(order[:16]), np.sort(order[16:])
    alone = clone(model).fit(X[train], counts[train], exposure=effort[train])
    density = alone.predictive_log_density(X[test], counts[test], exposure=effort[test])
    assert of_effort["rates"].nll == pytest.approx(-density.mean())
    assert of_effort["rates"].coverage_95 > 0.8
    mean = effort[test] * (counts[train] / effort[train]).mean()
    assert of_effort["mean"].rmse == pytest.approx(rmse(counts[test], mean))
    with pytest.raises(InvalidInputError, match="exposure must be positive; got 0 in row 0"):
        compare(X, counts, {"rates": model}, exposure=0 * effort)
