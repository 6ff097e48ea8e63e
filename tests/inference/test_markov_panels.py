"""`inference.Markov` on panels of few entities against dense float64 algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov import objective as markov_objective
from gigagp.inference.markov.objective import MarkovObjective
from gigagp.inference.markov.states import Axis, States
from gigagp.kernels import RBF, Constant, Cosine, Group, Linear, Matern, Outputs, White
from gigagp.model.means import ConstantMean, LinearMean
from gigagp.model.model import Model
from gigagp.optimization.space import ParameterSpace
from gigagp.products.filtering import Blocks
from gigagp.products.program import Term
from helpers import close, generator

N, T = 5, 30
PLACES, TIME = [2, 3], [1]
KERNELS = {
    "panel": (Group(0, variance=0.3) + Matern(1.5, [0.8, 1.3], 0.5, columns=PLACES))
    * Matern(1.5, 0.7, 1.0, columns=TIME, fixed=["variance"])
    + (Group(0, variance=0.2) + RBF([1.5, 2.0], 0.4, columns=PLACES))
    + Matern(2.5, 1.4, 0.6, columns=TIME)
    + White(0.1, fixed=True) * Group(0, variance=0.5),
    "outputs": Outputs(N, columns=[0], variance=np.linspace(0.5, 2, N), agreement=np.linspace(0.6, 2.5, 10))
    * Matern(0.5, 0.9, columns=TIME, fixed=["variance"])
    + Outputs(N, columns=[0], rank=1) * Matern(1.5, 3.0, columns=TIME, fixed=["variance"]),
    "of times": Constant(0.3) * Cosine(1.2, 2.0, columns=TIME) + Matern(1.5, columns=TIME),
    "trend": Matern(0.5, columns=PLACES) * (Linear(0.4, columns=TIME) + Constant(0.2)) + Matern(0.5, columns=TIME),
}
GAPS = ["complete", "at random", "ends", "one cell of an entity", "repeated", "clumped"]


def cells(how: str) -> torch.Tensor:
    """Return the rows of a panel in no order: entity, time and two inputs of the entity."""
    draw = np.random.default_rng(1)
    places, times = draw.uniform(0, 2, (N, 2)), np.sort(draw.uniform(0, 9, T))
    if how == "clumped":
        times = np.sort(np.concatenate([times[:5] + 1e-6 * k for k in range(6)]))
    e, t = np.repeat(np.arange(N), T), np.tile(np.arange(T), N)
    kept = {
        "at random": draw.random(N * T) < 0.6,
        "ends": t < draw.integers(8, T, N)[e],
        "one cell of an entity": (e > 0) | (t == 7),
    }.get(how, np.ones(N * T, bool))
    found = np.c_[e, times[t], places[e]][kept]
    found = np.concatenate([found, found[:20]]) if how == "repeated" else found
    return torch.from_numpy(draw.permutation(found))


def points(X: torch.Tensor, *, unknown: bool) -> torch.Tensor:
    """Return points of the entities of rows at any times, in the order of no time, and of entities with no row."""
    draw = np.random.default_rng(2)
    found = X[torch.from_numpy(draw.integers(0, len(X), 16))].clone()
    found[4:, 1] = torch.from_numpy(draw.uniform(-2, 14, 12))
    if unknown:  # two points of one of them, and one that is nearly another's
        found[:3, 0], found[:3, 2:] = N + 1, torch.tensor([0.3, 1.1], dtype=torch.float64)
        found[8, 0], found[8, 2] = N + 2, found[8, 2] + 1e-5
    return found


def both(kernel, X, mean, targets=2, noise=0.1):
    draw = np.random.default_rng(3)
    Y = torch.from_numpy(np.sin(X[:, 1:2].numpy()) + draw.normal(size=(len(X), targets)))
    table, model = TrainingTable(X, Y, mean, 2**30), Model(kernel.bind(4), mean, torch.tensor(noise).double())
    return model, ExactObjective(table), MarkovObjective(table, model)


def condition(model, X) -> float:
    values = torch.linalg.eigvalsh(model.kernel.block(X, X) + torch.diag(model.noise_of_rows(slice(None), X)))
    return float(values[-1] / values[0])


@pytest.mark.each
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean((1,))], ids=["constant", "linear"])
def test_answers_are_those_of_dense_algebra(name, gaps, mean, monkeypatch):
    X = cells(gaps)
    model, exact, markov = both(KERNELS[name], X, mean)
    factor = condition(model, X)
    found = markov.evaluate(model)
    with monkeypatch.context() as patch:
        # dense gradients from differences of inputs: sums of squares lose digits where times are nearly the same
        patch.setattr(Term, "is_apart", property(lambda term: True))
        expected = exact.evaluate(model)
    assert found.value == pytest.approx(expected.value, rel=1e-14 * factor)
    scale = max(float(one.abs().max()) for one in expected.gradient.values())
    assert found.gradient.keys() == expected.gradient.keys()
    for key, value in found.gradient.items():
        assert torch.allclose(value, expected.gradient[key], rtol=1e-12 * factor, atol=1e-13 * factor * scale), key
    dense, ours = exact.posterior(model), markov.posterior(model, generator())
    for unknown in (False, True) if name in ("panel", "of times") else (False,):
        new = points(X, unknown=unknown)
        for one, other in zip(ours.mean_and_variance(new), dense.mean_and_variance(new), strict=True):
            close(one, other, condition=factor)
        close(ours.covariance(new), dense.covariance(new), condition=factor)
        for part in range(len(model.kernel.parts) - (name == "panel")):
            for one, other in zip(ours.moments_of_part(new, part), dense.moments_of_part(new, part), strict=True):
                assert torch.allclose(one, other, atol=1e-13 * factor)
    close(ours.left_out().log_density, dense.left_out().log_density, condition=factor)
    # an entity that is taken for another one is seen
    swapped = points(X, unknown=False)
    swapped[:, 0], swapped[:, 2:] = X[0, 0], X[0, 2:]
    differ = (ours.mean(swapped) - ours.mean(points(X, unknown=False))).abs().max()
    assert float(differ) > 0.01 or name == "of times"


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-4])
def test_entities_that_are_alike_have_a_gradient(gap):
    """Their covariance is singular, or nearly so."""
    X = cells("at random")
    X[X[:, 0] == 1, 2:] = X[X[:, 0] == 0][0, 2:] + gap
    kernel = RBF([0.8, 1.3], 0.5, columns=PLACES) * Matern(1.5, 0.7, 1.0, columns=TIME, fixed=["variance"])
    model, exact, markov = both(kernel, X, ConstantMean())
    expected, found = exact.evaluate(model), markov.evaluate(model)
    assert found.value == pytest.approx(expected.value, rel=1e-10)
    for key, value in found.gradient.items():
        assert torch.allclose(value, expected.gradient[key], rtol=1e-6, atol=1e-6), key
    new = points(X, unknown=True)
    assert torch.allclose(markov.posterior(model, generator()).mean(new), exact.posterior(model).mean(new), atol=1e-6)


def test_samples_have_the_covariance_of_the_posterior():
    X, draws = cells("at random"), 4000
    model, exact, markov = both(KERNELS["panel"], X, ConstantMean(), targets=1)
    new = points(X, unknown=True)
    expected, ours = exact.posterior(model).covariance(new), markov.posterior(model, generator())
    found = ours.sample_at(new, draws, generator(1))[:, 0]
    deviation = (expected.diagonal()[:, None] * expected.diagonal() + expected.square()).div(draws).sqrt()
    assert float(((torch.cov(found) - expected) / deviation).abs().max()) < 5.5
    error = (found.mean(1) - ours.mean(new)[:, 0]) / (expected.diagonal() / draws).sqrt()
    assert float(error.abs().max()) < 5.5
    function = ours.sample_functions(200, generator(2))(new)[:, 0]  # random features have an error of their own
    assert torch.allclose(function.var(1), expected.diagonal(), rtol=0.6)


def test_gradients_by_points_are_those_of_exact_inference():
    X = cells("ends")
    model, exact, markov = both(KERNELS["panel"], X, ConstantMean())
    found = []
    for posterior in (exact.posterior(model), markov.posterior(model, generator())):
        new = points(X, unknown=True)[4:].requires_grad_()
        mean, variance = posterior.mean_and_variance(new)
        found.append(torch.autograd.grad(mean.sum() + variance.sum(), new)[0][:, 1:])
    close(*found, condition=condition(model, X))


def test_without_the_extension_answers_are_the_same(monkeypatch):
    X, found = cells("repeated"), []
    for engine in (Blocks(()).instruction_set, None):
        monkeypatch.setattr("gigagp.inference.markov.states.Blocks", lambda sizes, use=engine: Blocks(sizes, use))
        model, _, markov = both(KERNELS["panel"], X, ConstantMean())
        found.append(torch.cat([one.reshape(-1) for one in markov.evaluate(model).gradient.values()]))
    close(*found, condition=1e4)


def test_the_information_of_a_run_is_near_that_of_all_rows(monkeypatch):
    """And twice that of half as many rows is not: more rows of the same entities tell no more of their effects."""
    X = torch.from_numpy(np.c_[np.tile(np.arange(6.0), 400), np.repeat(np.arange(400.0), 6)])
    kernel = Group(0, variance=0.5) + Matern(0.5, 2.0, columns=[1])
    model = Model(kernel.bind(2), ConstantMean(), torch.tensor(0.3).double())
    H = model.kernel.block(X, X) + 0.3 * torch.eye(len(X), dtype=torch.float64)
    Y = torch.linalg.cholesky(H) @ torch.randn(len(X), 50, generator=generator(), dtype=torch.float64)
    space = ParameterSpace(model, "log")
    vector, none = space.encode(model), torch.zeros(0, 1)

    def information(rows):
        table = TrainingTable(X[rows], Y[rows], ConstantMean(), 2**30)
        return MarkovObjective(table, model).fisher(space, vector, none).diagonal()

    every, half = slice(None), slice(600, 1800)
    whole, twice = information(every), 2 * information(half)
    monkeypatch.setattr(markov_objective, "_FEWEST_ROWS", 1200)
    monkeypatch.setattr(markov_objective, "_INFORMATION", 0.0)
    assert torch.allclose(information(every), whole, rtol=0.15)
    assert float(twice[0] / whole[0]) > 1.5


# Fits -----------------------------------------------------------------------------------------------------------------


def panel(n_times=800, n_entities=5, seed=0):
    draw = np.random.default_rng(seed)
    t = np.arange(n_times)
    shared, own = np.sin(t / 9.0), np.cumsum(draw.normal(size=(n_times, n_entities)), 0) / 6
    Y = shared[:, None] + own + draw.normal(size=n_entities) + 0.1 * draw.normal(size=(n_times, n_entities))
    Y[draw.random(Y.shape) < 0.2] = np.nan
    return t, Y


def long_table(t, Y):
    import pandas as pd

    seen = ~np.isnan(Y)
    day, who = np.nonzero(seen)
    return pd.DataFrame({"who": np.array(list("abcdefgh"))[who], "day": t[day]}), Y[seen]


def test_auto_takes_it_for_panels_and_correlated_outputs_of_few_entities(tmp_path):
    t, Y = panel()
    X, y = long_table(t, Y)
    gp = GPRegressor(panel=("who", "day"), random_state=0).fit(X, y)
    assert isinstance(gp.inference_, inference.Markov)
    exact = GPRegressor(gp.kernel_, inference.Exact(), panel=("who", "day"), optimizer=None)
    exact.set_params(noise_variance=gp.noise_variance_).fit(X, y)
    assert gp.log_marginal_likelihood() == pytest.approx(exact.log_marginal_likelihood(), rel=1e-9)
    new = X.iloc[:6].assign(who=["a", "b", "z", "z", "y", "e"], day=[900, 3.5, 20, 470, 20, -4])
    for one, other in zip(gp.predict(new, return_cov=True), exact.predict(new, return_cov=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)
    gp.save(tmp_path / "model.giga")
    np.testing.assert_array_equal(gigagp.load(tmp_path / "model.giga").predict(new), gp.predict(new))
    more = gp.condition_on(new.iloc[2:3], [1.0])
    again = exact.condition_on(new.iloc[2:3], [1.0])
    np.testing.assert_allclose(more.predict(new), again.predict(new), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_learning_finds_the_optimum_of_exact_inference_and_correlated_outputs_take_it_too():
    t, Y = panel(n_times=1000, n_entities=4)
    gp, exact = (
        GPRegressor(outputs="correlated", inference=one, random_state=0).fit(t[:, None].astype(float), Y)
        for one in ("auto", inference.Exact())
    )
    assert isinstance(gp.inference_, inference.Markov)
    assert gp.log_marginal_likelihood().value > exact.log_marginal_likelihood().value - 0.5


def test_what_has_no_time_is_refused():
    X, y = np.random.default_rng(0).normal(size=(30, 2)), np.zeros(30)
    for kernel in (Matern(), RBF(columns=[0]) + RBF(columns=[1])):
        with pytest.raises(InvalidInputError, match="state-space form"):
            GPRegressor(kernel, inference.Markov()).fit(X, y)
    with pytest.raises(InvalidInputError, match="one column of times"):
        GPRegressor(kernels.Matern(), inference.Markov()).fit(X, y)
    apart = Matern(0.5, columns=[0]) * Matern(0.5, columns=[1])
    for budget, what in ((20_000, "covariance of 30 entities"), (200_000, "states of 30 times, of 30 numbers")):
        with pytest.raises(MemoryBudgetError, match=what):
            GPRegressor(apart, inference.Markov(), memory_budget=budget).fit(X, y)


def test_the_axis_with_the_fewest_entities_is_taken():
    X = torch.from_numpy(np.c_[np.repeat(np.arange(3.0), 8), np.tile(np.arange(8.0), 3)])
    kernel = (Matern(0.5, columns=[0]) * Matern(1.5, columns=[1])).bind(2)
    axis = Axis.of(kernel, X)
    assert (axis.time, axis.columns, len(axis.entities)) == (1, (0,), 3)
    assert States(kernel, axis).size == 6
    assert axis.number(torch.tensor([[2.0, 0.3], [7.0, 1.0]])).tolist() == [2, -1]
