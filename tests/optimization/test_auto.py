"""The default outer loop: it recovers the hyperparameters of simulated data, and never lets the noise collapse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPClassifier, GPRegressor, inference, kernels, optimization
from gigagp.errors import FitWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.vecchia.laplace import LaplaceObjective
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import Auto, ParameterSpace
from gigagp.optimization.auto import _Stages
from helpers import draw_targets, generator, new_trace, points

PLAIN = {"standardize": False, "mean": "zero"}


@pytest.mark.few(2)
@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()], ids=["exact", "iterative"])
@pytest.mark.parametrize(
    "kernel", [kernels.Matern(1.5, [0.6, 2.5], 1.5), kernels.RBF([1.5, 0.7], 0.5)], ids=["matern", "rbf"]
)
def test_hyperparameters_that_drew_the_data_are_recovered(kernel, method):
    """The estimates lie within four standard errors from the Fisher information."""
    X, noise = points(700, 2) * 1.5, 0.04
    truth = Model(kernel.bind(2), ZeroMean(), torch.tensor(noise, dtype=torch.float64))
    y = draw_targets(kernel, X, noise, seed=1)
    space = ParameterSpace(truth, "log")
    objective = ExactObjective(TrainingTable(X, y, ZeroMean(), 2**30))
    objective.evaluate(truth)
    information = objective.fisher(space, space.encode(truth), points(700, 100, seed=5))
    standard_errors = torch.linalg.inv(information).diagonal().sqrt()
    blank = type(kernel)(1.5) if isinstance(kernel, kernels.Matern) else kernels.RBF()
    gp = GPRegressor(blank, method, **PLAIN).fit(X.numpy(), y[:, 0].numpy())
    found = space.encode(gp.posterior_.model)
    # Sixteen probes add their own error to the gradient of iterative inference.
    widening = 1.0 if method == inference.Exact() else (1 + 1 / 16) ** 0.5
    assert bool(((found - space.encode(truth)).abs() <= 4 * widening * standard_errors).all())
    start = space.encode(Model(blank.bind(2), ZeroMean(), torch.tensor(0.09, dtype=torch.float64)))
    assert bool(((start - space.encode(truth)).abs() > 4 * widening * standard_errors).any())  # learning was necessary


def test_it_needs_few_gradients_and_reaches_what_lbfgs_reaches():
    X = points(400, 3)
    y = draw_targets(kernels.Matern(1.5, [0.7, 1.5, 4.0]), X, 0.05)[:, 0]
    auto = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Exact()).fit(X.numpy(), y.numpy())
    lbfgs = GPRegressor(inference=inference.Exact(), optimizer=optimization.LBFGS(tolerance=1e-7)).fit(
        X.numpy(), y.numpy()
    )
    gap = lbfgs.log_marginal_likelihood().value - auto.log_marginal_likelihood().value
    assert gap < 0.005 * 400
    assert len(auto.history_) <= 25
    assert {step.stage for step in auto.history_} == {"subset 400", "all rows"}


def discrete_table(n, d=8, seed=0):
    """A table like pol: eleven levels, most rows at the lowest, exactly repeated targets, irrelevant inputs."""
    X = points(n, d, seed=seed)
    score = X[:, 0] * 1.5 + torch.sin(2 * X[:, 1]) + 0.5 * X[:, 2]
    return X.numpy(), (10 * torch.clamp(torch.round(2 * score), 0, 10)).numpy()


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [40, 300])
def test_the_noise_never_collapses_on_discrete_targets(n, seed):
    X, y = discrete_table(n, seed=seed)
    gp = GPRegressor(kernels.Matern(nu=1.5), random_state=seed).fit(X, y)
    assert gp.noise_variance_ > 1e-3
    assert np.all(gp.kernel_.lengthscale.numpy() < 1e3)
    X_test, y_test = discrete_table(500, seed=100 + seed)
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    nll = 0.5 * np.mean(((y_test - mean) / std) ** 2 + 2 * np.log(std / y.std()) + np.log(2 * np.pi))
    assert nll < 1.5  # predicting the training mean with its deviation is 1.42


@pytest.mark.slow
def test_the_likelihood_alone_does_collapse():
    """Control: without the prior, the noise (or its substitute) runs away on few rows."""
    collapsed = []
    for seed in range(4):
        X, y = discrete_table(40, seed=seed)
        found = GPRegressor(optimizer=optimization.LBFGS(steps=200, tolerance=1e-9)).fit(X, y)
        collapsed.append(found.noise_variance_ < 1e-3 or bool((found.kernel_.lengthscale > 1e3).any()))
    assert any(collapsed)


def test_subsets_are_used_on_larger_tables():
    X = points(260, 2)
    y = draw_targets(kernels.RBF(1.0), X, 0.1)[:, 0]
    auto = Auto(subset_sizes=(50, 100, 200), middle_size=120, polish_steps=3)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative(), optimizer=auto).fit(X.numpy(), y.numpy())
    stages = list(dict.fromkeys(step.stage for step in gp.history_))
    # 200 rows are more than half of the table, and such a subset would cost as much as all rows.
    assert stages == ["subset 50", "subset 100", "subset 120", "all rows"]
    assert all((step.objective is None) == (step.stage in ("subset 120", "all rows")) for step in gp.history_)
    assert all((step.solve is None) == (step.objective is not None) for step in gp.history_)
    subset_only = GPRegressor(
        kernels.Matern(nu=1.5), inference=inference.Iterative(), optimizer=Auto((50,), polish_steps=0)
    ).fit(X.numpy(), y.numpy())
    assert {step.stage for step in subset_only.history_} == {"subset 50"}


def test_known_noise_goes_with_its_rows():
    """Each subset has the noise of its own rows, so rows with known large noise do not spoil the fit."""
    X = points(240, 1)
    noise = torch.full((240,), 1e-2).double()
    noise[::2] = 25.0
    y = torch.sin(2 * X[:, 0]) + noise.sqrt() * torch.randn(240, generator=generator(3), dtype=torch.float64)
    optimizer = Auto(subset_sizes=(60, 100))
    gp = GPRegressor(kernels.RBF(), noise_variance=noise.numpy(), optimizer=optimizer).fit(X.numpy(), y.numpy())
    grid = np.linspace(-1.5, 1.5, 50)[:, None]
    assert np.abs(gp.predict(grid) - np.sin(2 * grid[:, 0])).max() < 0.2
    blind = GPRegressor(kernels.RBF(), optimizer=optimizer).fit(X.numpy(), y.numpy())  # control
    assert np.abs(blind.predict(grid) - np.sin(2 * grid[:, 0])).max() > 0.4


def test_several_targets_weigh_as_observations():
    """Five copies of a column are five times the data; the maximum is nearly the same."""
    X = points(150, 2)
    y = draw_targets(kernels.RBF(1.0), X, 0.1)
    alone = GPRegressor(kernels.RBF(), **PLAIN).fit(X.numpy(), y[:, 0].numpy())
    repeated = GPRegressor(kernels.RBF(), **PLAIN, outputs="shared").fit(X.numpy(), y.expand(-1, 5).numpy())
    for name, value in alone.posterior_.model.parameters().items():
        torch.testing.assert_close(repeated.posterior_.model.parameters()[name], value, rtol=0.15, atol=0)


def test_the_same_generator_gives_the_same_path():
    X = points(120, 2)
    y = draw_targets(kernels.RBF(1.0), X, 0.1)
    objective = ExactObjective(TrainingTable(X, y, ZeroMean(), 2**30))
    start = Model(kernels.RBF(1.0).bind(2), ZeroMean(), torch.tensor(0.3).double())
    space = ParameterSpace(start, "log")

    def path(seed):
        return space.encode(Auto((40,)).run(objective, start, new_trace(), generator(seed)))

    assert torch.equal(path(1), path(1))
    assert not torch.equal(path(1), path(2))


@pytest.mark.slow
def test_learning_goes_on_while_it_gains():
    """Rows in groups that differ in one quickly varying input. Ten gradients after the subsets were not enough."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.uniform(-2, 2, (60, 5)), 8, axis=0) + 1e-3 * rng.standard_normal((480, 5))
    levels = np.repeat(rng.standard_normal(60), 8)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * levels + 0.3 * np.sin(30 * X[:, 3])
    y += 1e-3 * rng.standard_normal(480)

    def value(optimizer):
        return (
            GPRegressor(kernels.Matern(nu=1.5), random_state=0, optimizer=optimizer)
            .fit(X, y)
            .log_marginal_likelihood()
            .value
        )

    best = value(optimization.LBFGS(300))
    assert value("auto") > best - 5  # the default has a weak prior
    with pytest.warns(FitWarning, match="stopped after 10 gradients"):
        assert value(Auto(polish_steps=10)) < best - 50  # the control


def test_a_limit_that_ends_learning_too_early_is_said():
    X = points(60, 2)
    y = draw_targets(kernels.Matern(1.5, [0.3, 4.0]), X, 1e-4)[:, 0].numpy()
    with pytest.warns(FitWarning, match=r"stopped after 1 gradients, where another step promised .* polish_steps"):
        GPRegressor(kernels.Matern(nu=1.5), optimizer=Auto(subset_steps=1, polish_steps=1)).fit(X.numpy(), y)
    GPRegressor(kernels.Matern(nu=1.5)).fit(X.numpy(), y)  # the control


def labels_of_a_wave(seed, n=100, d=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (1000 + n, d))
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-3 * (np.sin(2 * X[:, 0]) + X[:, -1])))).astype(int)
    return X[:n], y[:n]


@pytest.mark.slow
def test_a_second_start_finds_what_the_first_one_misses(monkeypatch):
    X, y = labels_of_a_wave(1)

    def evidence(kernel=None):
        kernel = kernels.RBF() if kernel is None else kernel
        classifier = GPClassifier(kernel, random_state=0, inference=inference.Vecchia(60)).fit(X, y)
        return classifier.latent_.log_marginal_likelihood().value

    found = evidence()
    kernel = kernels.RBF(list(0.4 * 3**0.5 * X.std(0)), 4.0)
    assert found > evidence(kernel) - 0.5
    monkeypatch.setattr(LaplaceObjective, "has_distant_optima", False)
    assert found > evidence() + 3  # the control


@pytest.mark.slow
def test_all_rows_choose_between_the_starts_that_a_subset_tried(monkeypatch):
    X, y = labels_of_a_wave(2, 600)

    def fitted():
        optimizer = Auto(subset_sizes=(40,))
        return GPClassifier(kernels.RBF(), random_state=0, inference=inference.Vecchia(20), optimizer=optimizer).fit(
            X, y
        )

    gp = fitted()
    found = gp.log_marginal_likelihood().value
    tried = [step.objective for step in gp.latent_.history_ if step.stage == "all rows"]
    assert len(tried) > 5
    assert found > max(tried) - 2  # about four standard errors of a value, and other neighbours
    monkeypatch.setattr(_Stages, "_highest", lambda self, evaluate, vector: (vector, None))
    assert found > fitted().log_marginal_likelihood().value + 10  # the control


def waves(seed, n=100):
    """A trend in one input and eight short waves in the other, which the usual start takes for noise."""
    rng = np.random.default_rng([seed, n])
    U = rng.uniform(size=(n, 2))
    y = 3 * U[:, 0] + np.sin(2 * np.pi * 8 * U[:, 1])
    return U, y + 0.01 * y.std() * rng.normal(size=n)


def test_many_waves_are_not_taken_for_noise():
    X, y = waves(0)
    found = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    alone = GPRegressor(kernels.Matern(nu=1.5), optimizer=Auto(rougher_starts=False)).fit(X, y)  # the control
    assert found.noise_variance_ < 0.01 * y.var() < 0.1 * y.var() < alone.noise_variance_
    assert found.log_marginal_likelihood().value > alone.log_marginal_likelihood().value + 50


@pytest.mark.slow
def test_waves_that_only_neighbours_can_see_are_not_taken_for_noise():
    """A long series: random rows of it lie many lengthscales apart, and its nearest rows do not."""
    n = 18_000
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0, n, size=n))[:, None]
    y = draw_series(X[:, 0], lengthscale=2.5, seed=1) + 0.1 * rng.normal(size=n)
    train, test = np.flatnonzero(np.arange(n) % 9), np.arange(0, n, 9)

    def left_out_error(optimizer):
        gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(), optimizer=optimizer).fit(
            X[train], y[train]
        )
        return ((gp.predict(X[test]) - y[test]) ** 2).mean() / y.var()

    assert left_out_error("auto") < 0.1
    with pytest.warns(FitWarning, match="noise of this fit has structure"):
        assert left_out_error(Auto(rougher_starts=False)) > 0.8  # the control


def draw_series(x, lengthscale, seed):
    """A function with about the spectrum of a Matern-3/2 kernel."""
    rng = np.random.default_rng(seed)
    frequencies = rng.standard_t(3, size=2000) / lengthscale
    phases = rng.uniform(0, 2 * np.pi, size=2000)
    return sum(np.cos(f * x + p) for f, p in zip(frequencies, phases, strict=True)) * (2 / 2000) ** 0.5


@pytest.mark.slow
def test_rougher_starts_cost_little_where_they_find_nothing():
    """Noise is noise: a few likelihoods and steps, and the same answer to the bit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    y = X[:, 0] + rng.normal(size=80)
    found = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y)
    alone = GPRegressor(kernels.Matern(nu=1.5), optimizer=Auto(rougher_starts=False)).fit(X, y)
    assert found.log_marginal_likelihood().value == alone.log_marginal_likelihood().value
    assert len(found.history_) <= len(alone.history_) + 4
    y = X[:, 0] + 0.01 * rng.normal(size=80)  # little noise: nothing is tried
    lengths = {
        len(GPRegressor(kernels.Matern(nu=1.5), optimizer=Auto(rougher_starts=tries)).fit(X, y).history_)
        for tries in (True, False)
    }
    assert len(lengths) == 1
