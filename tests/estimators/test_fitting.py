"""Every setting has an effect: all inference methods score validation rows, and settings without effect are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization, solvers, truncation
from gigagp.errors import InvalidInputError
from gigagp.estimators.metrics import rmse
from gigagp.inference.vecchia.posterior import VecchiaPosterior

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (60, 2))
Y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_normal(60)
X_NEW = RNG.uniform(0.2, 0.8, (15, 2))
Y_NEW = np.sin(5 * X_NEW[:, 0]) + X_NEW[:, 1]
ADAM = optimization.Adam(0.05, 3, transform="log")
SAMPLED = {"n_basis": 60, "row_batch": 20, "start_rows": 20}
SERIES = truncation.OneOverJ(base=5, maximum=20, step=5)

#: Every inference method with an optimizer of a few steps.
CASES = {
    "exact": (inference.Exact(), ADAM),
    "iterative": (inference.Iterative(n_samples=8), ADAM),
    "aware iterative": (inference.Iterative(n_samples=8, computational_uncertainty=True), ADAM),
    "vecchia": (inference.Vecchia(10), ADAM),
    "features": (inference.RandomFeatures(100), ADAM),
    "truncated features": (inference.RandomFeatures(100, SERIES), ADAM),
    "truncated features, feature predictions": (inference.RandomFeatures(100, SERIES, prediction="features"), ADAM),
    "features, exact predictions": (inference.RandomFeatures(100, prediction=inference.Exact()), ADAM),
    "SGPR": (inference.SparseVariational(20), ADAM),
    "SVGP": (inference.SparseVariational(20, batch_size=20), ADAM),
    "computation-aware": (inference.ComputationAware(20), ADAM),
    "dense grid": (inference.Grid(size=14), ADAM),
    "grid": (inference.Grid(size=14, exact_nodes=0, n_samples=8), ADAM),
    "all weights": (inference.QuadruplyStochastic(100), ADAM),
    "sampled weights": (inference.QuadruplyStochastic(**SAMPLED), optimization.SparseAdam(steps=20)),
    "relevance vectors": (inference.RelevanceVectorMachine(), ADAM),
}


def fitted(case: str, **options):
    method, optimizer = CASES[case]
    return GPRegressor(kernels.Matern(), method, optimizer).fit(X, Y, **options)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES)
def test_every_inference_scores_validation_rows_and_learns_nothing_from_them(case):
    plain, scored = fitted(case), fitted(case, validation=(X_NEW, Y_NEW))
    scores = [step.validation_rmse for step in scored.history_]
    assert None not in scores
    assert np.isfinite([step.validation_log_likelihood for step in scored.history_]).all()
    assert scores[-1] < 3 * rmse(Y_NEW, scored.predict(X_NEW)) + 0.3  # from another step, but for this table
    assert scores[-1] < np.std(Y_NEW)
    np.testing.assert_array_equal(plain.predict(X_NEW, return_std=True), scored.predict(X_NEW, return_std=True))
    assert all(step.validation_rmse is None for step in plain.history_)


def test_a_step_of_a_grid_is_scored_by_the_posterior_there():
    """With steps too short to change anything, every step has the score of the fit's predictions."""
    still = optimization.Adam(1e-12, 2, transform="log")
    for method in (inference.Grid(size=14), inference.RandomFeatures(100, SERIES)):
        found = GPRegressor(kernels.Matern(), method, still).fit(X, Y, validation=(X_NEW, Y_NEW))
        expected = rmse(Y_NEW, found.predict(X_NEW))
        assert found.history_[-1].validation_rmse == pytest.approx(expected, rel=1e-6)


def test_validation_rows_beyond_the_grid_are_refused():
    far = (np.full((3, 2), 40.0), np.zeros(3))
    with pytest.raises(InvalidInputError, match="3 of 3 rows lie outside of the grid"):
        fitted("grid", validation=far)


def no_work(*arguments, **options):
    raise AssertionError("work was begun")


@pytest.fixture
def idle(monkeypatch):
    for kind in (
        inference.Exact,
        inference.Grid,
        inference.Iterative,
        inference.RandomFeatures,
        inference.Vecchia,
        inference.SparseVariational,
        inference.ComputationAware,
        inference.QuadruplyStochastic,
    ):
        monkeypatch.setattr(kind, "objective", no_work)
        if hasattr(kind, "stream"):
            monkeypatch.setattr(kind, "stream", no_work)


@pytest.mark.parametrize("dtype", ["float32", "mixed"])
@pytest.mark.parametrize("way", ["fit", "fit_table"])
def test_a_grid_is_float64(dtype, way, idle):
    gp = GPRegressor(inference=inference.Grid(), dtype=dtype)
    with pytest.raises(InvalidInputError, match=rf'dtype of GPRegressor must be "float64" .*; got .{dtype}'):
        gp.fit(X, Y) if way == "fit" else gp.fit_table((X, Y))


def test_a_grid_is_on_the_cpu(idle, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("gigagp.estimators.arguments.resolve_budget", lambda *arguments: 2**30)
    with pytest.raises(InvalidInputError, match=r'device of GPRegressor must be "auto" or "cpu" .*; got .cuda'):
        GPRegressor(inference=inference.Grid(), device="cuda").fit(X, Y)


@pytest.mark.parametrize(
    "method",
    [
        inference.Exact(),
        inference.SparseVariational(20),
        inference.ComputationAware(20),
        inference.Vecchia(20),
        inference.RandomFeatures(100),
        inference.RandomFeatures(100, prediction=inference.Exact()),
        inference.QuadruplyStochastic(100),
        inference.Iterative(solver=solvers.Cholesky()),
    ],
    ids=repr,
)
def test_mixed_precision_is_of_iterative_solvers(method, idle):
    with pytest.raises(InvalidInputError, match=r'dtype of GPRegressor must be "float64" or "float32" with .*mixed'):
        GPRegressor(inference=method, dtype="mixed").fit(X, Y)


@pytest.mark.parametrize(
    ("gp", "options", "message"),
    [
        (GPRegressor(inference=inference.Grid(distributed=True)), {}, "distributed of inference.Grid must be False"),
        (GPRegressor(optimizer=None), {"validation": (X_NEW, Y_NEW)}, "validation .* optimizer is None"),
        (GPRegressor(likelihood="laplace"), {"validation": (X_NEW, Y_NEW)}, "got the laplace likelihood"),
        (
            GPRegressor(likelihood="poisson", noise_variance=0.1),
            {},
            "noise_variance of GPRegressor must be None with the poisson likelihood",
        ),
    ],
)
def test_what_has_no_effect_is_refused_before_any_work(gp, options, message, idle):
    with pytest.raises(InvalidInputError, match=message):
        gp.fit(X, np.round(Y + 3), **options)


def test_bounds_are_those_of_a_grid(idle):
    gp = GPRegressor(inference=inference.QuadruplyStochastic())
    with pytest.raises(InvalidInputError, match=r"bounds of GPRegressor\.fit_table must be None with inference\.Quad"):
        gp.fit_table((X, Y), bounds=([0, 0], [1, 1]))


def test_classes_have_no_mixed_precision(idle):
    with pytest.raises(InvalidInputError, match='dtype of GPClassifier must be "float64" or "float32"'):
        GPClassifier(dtype="mixed").fit(X, Y > 1)


@pytest.mark.parametrize(("budget", "rows"), [(None, 60), (1e-9, 16), (1e9, 60)])
def test_the_check_after_the_learning_looks_at_the_clock(budget, rows, monkeypatch):
    """With 133 inputs and no compiled engine it took most of 156 s, after a time budget of 2 s."""
    looked_at, own = [], VecchiaPosterior.check_variances

    def check(self, X):
        looked_at.append(len(X))
        return own(self, X)

    monkeypatch.setattr(VecchiaPosterior, "check_variances", check)
    GPRegressor(inference=inference.Vecchia(10), time_budget=budget).fit(X, Y)
    assert sum(looked_at) == rows


# Error bars that are too small ----------------------------------------------------------------------------------------
