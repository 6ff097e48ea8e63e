"""Patches that are left out: their predictions, and what a fit and its forecast make of them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.estimators.choices import kernel_rules
from gigagp.inference.automatic.plan import InGaps, Plan
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.left_out import LeftOutRows
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.folds import folds_like_gaps


def with_hole(n: int, radius: float = 0.25, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Return rows of a wavy function outside a disc, and those in it."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    y = np.sin(12 * X[:, 0]) * np.cos(9 * X[:, 1]) + 0.01 * rng.normal(size=n)
    hole = np.linalg.norm(X - [0.45, 0.55], axis=1) <= radius
    return X[~hole], y[~hole], X[hole], y[hole]


@pytest.mark.parametrize("own_noise", [False, True])
def test_from_all_other_rows_they_are_the_exact_predictions(own_noise):
    X, y, *_ = with_hole(500)
    X, y = torch.from_numpy(X), torch.from_numpy(y)[:, None]
    kernel = kernels.Matern(nu=2.5, lengthscale=[0.3, 0.2], variance=1.5).bind(2)
    noise = torch.full((), 0.01).double()
    if own_noise:
        noise = 0.01 * (1 + torch.arange(len(X)) % 3).double()
    model = Model(kernel, resolve_mean("constant"), noise)
    table = TrainingTable(X, y, model.mean, 2**30)
    folds = folds_like_gaps(kernel, X).folds
    found = LeftOutRows.in_folds(model, table, folds, len(X), len(X))
    kept = np.setdiff1d(np.arange(len(X)), np.concatenate([one.rows for one in folds]))
    per_row = noise.expand(len(X))
    H = kernel.block(X[kept], X[kept]) + torch.diag(per_row[kept])
    ones = torch.ones(len(kept), 1, dtype=torch.float64)
    solved = torch.linalg.solve(H, torch.cat([y[kept], ones], 1))
    level = float(ones.T @ solved[:, :1]) / float(ones.T @ solved[:, 1:])
    cross = kernel.block(X[found.rows], X[kept])
    mean = level + cross @ torch.linalg.solve(H, y[kept] - level)
    slack = 1 - (cross @ solved[:, 1])
    variance = kernel.diagonal(X[found.rows]) - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    variance += slack.square() / float(ones.T @ solved[:, 1:]) + per_row[found.rows]
    np.testing.assert_allclose(found.residual, y[found.rows] - mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-7)
    near = LeftOutRows.in_folds(model, table, folds, 20, 40)  # the control: fewer neighbours say less
    assert float((near.variance / found.variance).log().mean()) > 1e-4


def test_a_fit_says_what_kernels_gain_in_gaps(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_rules, "CHOICE_ROWS", 100)
    monkeypatch.setattr(kernel_rules, "NEIGHBOUR_ROWS", 300)
    X, y, *_ = with_hole(300)
    gp = GPRegressor("choose", inference.Vecchia()).fit(X, y)
    first, *others = gp.kernel_choice_.tried
    assert first.gap_gain == 0
    assert all(one.gap_error > 0 for one in others)
    assert "in gaps" in gp.describe()
    gp.save(tmp_path / "m.gp")
    assert gigagp.load(tmp_path / "m.gp").kernel_choice_ == gp.kernel_choice_
    rng = np.random.default_rng(1)
    everywhere = rng.uniform(size=(200, 2))
    without = GPRegressor("choose", inference.Vecchia()).fit(everywhere, np.sin(9 * everywhere[:, 0]))
    assert all(one.gap_gain is None for one in without.kernel_choice_.tried)
    assert "in gaps" not in without.describe()


@pytest.mark.slow
def test_points_to_predict_decide_which_gaps_count():
    X, y, X_new, _ = with_hole(300)
    near = GPRegressor("average").fit(X, y, predict_at=X + 1e-3)
    far = GPRegressor("average").fit(X, y, predict_at=X_new)
    assert all(one.gap_gain is None for one in near.kernel_choice_.tried)
    assert all(one.gap_gain is not None for one in far.kernel_choice_.tried)
    for bad, what in ((X_new[:, :1], "1 features"), (X_new[0], "2D"), (np.full((3, 2), np.nan), "NaN|nan|missing")):
        with pytest.raises(InvalidInputError, match=what):
            GPRegressor("average").fit(X, y, predict_at=bad)


@pytest.mark.slow
def test_the_forecast_in_gaps_is_that_of_the_points_in_them():
    X, y, X_new, y_new = with_hole(2600, 0.17, seed=2)
    gp = GPRegressor(kernels.Matern(nu=1.5))
    plan = gp.plan(X, 100 * y, predict_at=X_new)
    assert "In gaps like these" in str(plan)
    errors = gp.set_params(inference=inference.Vecchia()).fit(X, y).predict(X_new) - y_new
    actual = 100 * float(np.sqrt(np.mean(errors**2)))
    assert 0.4 * actual < plan.in_gaps.rmse < 2.5 * actual
    assert plan.in_gaps.rmse > 1.5 * plan.chosen.rmse  # which is of new rows among these
    assert plan.in_gaps.nll > plan.chosen.nll
    again = Plan.from_plain(json.loads(json.dumps(plan.to_plain(lambda one: one.label))), lambda _: inference.Exact())
    assert again.in_gaps == plan.in_gaps
    assert GPRegressor(kernels.Matern(nu=1.5)).plan(X, y, predict_at=X + 1e-3).in_gaps is None


def test_units_of_the_forecast():
    found = InGaps(2.0, 1.0, 0.1, 0.9).in_units(10.0)
    assert found == InGaps(20.0, pytest.approx(1.0 + np.log(10), rel=4 * np.finfo(float).eps), 0.1, 0.9)
    assert "or more" not in str(found)
    assert "RMSE 20, or more: the table has room for patches 50 % as deep" in str(replace(found, reach=0.5))
