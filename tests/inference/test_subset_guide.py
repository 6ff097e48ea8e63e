"""Learning on an exact subset where neighbours miss much: its likelihood, when it is taken, and what follows it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gigagp import GPRegressor
from gigagp.inference import Iterative, Vecchia
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative.subset_guide import SubsetGuide, guide_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.kernels import Matern
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.metric import Metric
from gigagp.operators import KernelMatrix
from gigagp.optimization import Auto, ParameterSpace
from gigagp.products.native_tiles import NativeTiles
from helpers import generator, points

native = pytest.mark.skipif(not NativeTiles.available(), reason="neighbours guide where they are compiled")


def waves(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return clumped inputs with duplicates and a smooth function of all of them, with much noise."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * random.uniform(0.5, 1.5, size=(n, 1))
    X[:20] = X[20:40]
    y = np.sin(X @ random.normal(size=(d, 8)) / 2).sum(1) + 0.2 * random.normal(size=n)
    return X, (y - y.mean()) / y.std()


def problem(n: int, d: int, lengthscale: float, budget: int = 2**30) -> tuple[Model, TrainingTable]:
    X, y = waves(n, d)
    kernel = Matern(1.5, [lengthscale] * d, 4.0).bind(d)
    model = Model(kernel, resolve_mean("constant"), torch.tensor(0.01, dtype=torch.float64))
    return model, TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], model.mean, budget)


@pytest.mark.parametrize("known_noise", [False, True])
def test_it_is_the_exact_likelihood_of_its_rows(known_noise):
    model, table = problem(400, 3, 2.0)
    if known_noise:
        model = replace(model, noise_variance=torch.linspace(0.01, 0.3, 400, dtype=torch.float64))
    guide = SubsetGuide(table, model, 90)
    rows = torch.tensor([int((row == table.X).all(1).nonzero()[0, 0]) for row in guide.table.X])
    rows = guide._rows if known_noise else rows  # a duplicate may have another noise
    exact = ExactObjective(TrainingTable(table.X[rows], guide.table.Y, model.mean, table.budget))
    found, expected = guide.evaluate(model), exact.evaluate(model.take_rows(rows))
    assert guide.n_observations == 90
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert found.gradient.keys() == expected.gradient.keys()
    for name, value in expected.gradient.items():
        torch.testing.assert_close(found.gradient[name], value)
    space = ParameterSpace(model, "log")
    information = guide.fisher(space, space.encode(model), torch.zeros(0, 8))
    assert float(torch.linalg.eigvalsh(information)[0]) > 0
    assert (guide.refresh(model), guide.refresh(model)) == (True, False)


def test_half_of_its_rows_are_in_clusters_of_the_kernels_metric():
    model, table = problem(2000, 3, 2.0)
    lengths = torch.tensor([0.5, 5.0, 50.0], dtype=torch.float64)
    model = replace(model, kernel=model.kernel.replace({"lengthscale": lengths}))

    def nearest(X):
        distances = torch.cdist(X, X).fill_diagonal_(torch.inf)
        return float(distances.min(1).values.median())

    metric = Metric(model.kernel, table.X)
    assert nearest(metric(SubsetGuide(table, model, 400).table.X)) < 0.8 * nearest(metric(table.X[::5]))


@native
def test_neighbours_guide_where_they_miss_little():
    smooth, table = problem(2500, 6, 8.0)
    assert isinstance(guide_of(VecchiaObjective.for_learning(table), smooth), SubsetGuide)
    rough = replace(smooth, kernel=smooth.kernel.replace({"lengthscale": torch.full((6,), 0.5).double()}))
    assert isinstance(guide_of(VecchiaObjective.for_learning(table), rough), VecchiaObjective)
    few, table = problem(2500, 1, 1.0)
    assert isinstance(guide_of(VecchiaObjective.for_learning(table), few), VecchiaObjective)


@native
def test_a_small_memory_budget_leaves_the_neighbours():
    model, table = problem(2500, 6, 8.0, budget=2**25)
    assert isinstance(guide_of(VecchiaObjective.for_learning(table), model), VecchiaObjective)


@pytest.mark.slow
@native
def test_neighbours_learn_what_they_end_with(monkeypatch):
    """Where the forecast chooses neighbours after all, their own likelihood has the last word."""
    X, y = waves(3200, 6)
    exact = GPRegressor(Matern(nu=1.5)).fit(X, y)
    assert "subset 2000" in {step.stage for step in exact.history_}
    assert "neighbours" not in {step.stage for step in exact.history_}
    monkeypatch.setattr("gigagp.inference.automatic.objective.registered", lambda: {"vecchia": Vecchia})
    gp = GPRegressor(Matern(nu=1.5)).fit(X, y)
    assert isinstance(gp.inference_, Vecchia)
    stages = [step.stage for step in gp.history_]
    assert stages.index("neighbours") > stages.index("subset 2000")
    assert "all rows" not in stages


@pytest.mark.parametrize("kind", ["exact", "neighbours"])
def test_a_quick_value_is_that_of_the_evaluation_and_is_not_computed_twice(kind, monkeypatch):
    model, table = problem(300, 2, 1.0)
    objective = ExactObjective(table) if kind == "exact" else VecchiaObjective(table, 10, None, None)
    other = model.replace({"variance": torch.tensor(2.0, dtype=torch.float64)})
    objective.evaluate(other)
    quick = objective.quick_value(model)
    count = []
    for name in (
        "gigagp.inference.contract.objective.Factorised.of",
        "gigagp.inference.vecchia.minibatch.Regression.of",
    ):
        monkeypatch.setattr(name, lambda *_: count.append(1))
    found = objective.evaluate(model)
    monkeypatch.undo()
    assert count == []
    fresh = type(objective)(table) if kind == "exact" else VecchiaObjective(table, 10, None, None)
    expected = fresh.evaluate(model)
    assert quick == pytest.approx(expected.value, rel=1e-12)
    assert found.value == expected.value
    for name, value in expected.gradient.items():
        assert torch.equal(found.gradient[name], value)


def test_a_factor_is_not_that_of_another_known_noise():
    model, table = problem(60, 2, 1.0)
    low, high = (replace(model, noise_variance=torch.full((60,), size, dtype=torch.float64)) for size in (0.1, 0.5))
    objective = ExactObjective(table)
    first = objective.evaluate(low).value
    assert objective.evaluate(high).value == ExactObjective(table).evaluate(high).value != first
    assert not low.equals(high)
    assert low.equals(replace(low, noise_variance=low.noise_variance.clone()))
    assert not low.equals(model)


@pytest.mark.few(1)
@pytest.mark.parametrize("factor", [1.3, 1.7])
def test_a_preconditioner_is_kept_while_hyperparameters_hardly_move(factor):
    X = points(1500, 4)
    y = X.sin().sum(1, keepdim=True) + 0.1 * points(1500, 1, seed=1)
    table = TrainingTable(X, y, resolve_mean("zero"), 2**30)
    model = Model(Matern(1.5, [2.0] * 4).bind(4), table.mean, torch.tensor(0.02, dtype=torch.float64))
    other = model.replace({"noise_variance": model.noise_variance * factor})

    def gradients(objective, models):
        return [objective.evaluate(one).gradient for one in models]

    kept = Iterative().objective(table, generator())
    found = gradients(kept, [model, other])[-1]
    setup = kept.solves[-1].setup_epochs
    assert (setup == 1.0) == (factor < 1.5)  # the warm start alone, or a build too
    H = KernelMatrix(other.kernel, X, other.noise_variance).to_dense()
    residual = y - H @ kept.last_solution.value[:, :1]
    assert float(residual.norm() / y.norm()) <= 0.01
    assert float((residual * torch.linalg.solve(H, residual)).sum()) / 2 <= kept.solves[-1].nats_targets
    new = Iterative().objective(table, generator())
    new.evaluate(model)
    new._state = None
    expected = gradients(new, [other])[-1]
    size = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0.05, atol=0.02 * size)


def test_steps_that_gain_nothing_cost_no_gradient(monkeypatch):
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 4))
    y = np.sin(1.5 * X @ random.normal(size=(4, 4))).sum(1)  # rough, so that some steps are too long
    optimizer = Auto(rougher_starts=False)
    first = GPRegressor(Matern(nu=1.5), optimizer=optimizer).fit(X, y)
    monkeypatch.setattr(ExactObjective, "quick_value", lambda objective, model: None)
    second = GPRegressor(Matern(nu=1.5), optimizer=optimizer).fit(X, y)
    assert len(first.history_) < len(second.history_)
    for name, value in first.posterior_.model.parameters().items():
        torch.testing.assert_close(value, second.posterior_.model.parameters()[name], rtol=1e-9, atol=0)
