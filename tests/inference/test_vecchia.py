"""Vecchia inference with fewer neighbours than rows: bounds, exact limits, consistency, files and learning."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia import cost
from gigagp.inference.vecchia import objective as objective_module
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.means import ConstantMean, LinearMean, ZeroMean
from gigagp.model.model import Model
from gigagp.optimization.space import ParameterSpace
from gigagp.runtime import interruption
from helpers import (
    dense_posterior,
    draw_targets,
    generator,
    points,
    reference_block,
    reference_matrix,
    relative_error,
    within_standard_errors,
)
from vecchia_cases import NEW, clumps, duplicates, gradients, killed_at_write, model_of, objective_of, tables

KERNEL = (kernels.Matern(1.5, [0.8, 1.7], 1.3) + kernels.White(0.02)).bind(2)
NOISE = 0.05
N = 120


def at_model(mean=None, kernel=KERNEL):
    return model_of(kernel, NOISE, mean)


def posterior(method, X, Y, mean=None, noise=NOISE, kernel=KERNEL):
    mean = mean or ZeroMean()
    model = Model(kernel, mean, torch.as_tensor(noise, dtype=torch.float64))
    objective = method.objective(TrainingTable(X, Y, mean, 2**28), generator())
    return objective.posterior(objective.start(model), generator(1))


# Predictions -------------------------------------------------------------------------------------------------------


@tables
@pytest.mark.parametrize("neighbours", [1, 4, 20])
def test_variances_are_above_the_exact_ones_and_fall_with_neighbours(table, neighbours):
    X = table(N)
    Y = draw_targets(KERNEL, X, NOISE)
    exact = dense_posterior(KERNEL, X, Y, NEW, NOISE).covariance.diagonal()
    variances = [posterior(inference.Vecchia(9, m), X, Y).mean_and_variance(NEW)[1] for m in (neighbours, N)]
    assert bool((variances[0] >= exact - 1e-10).all())
    assert bool((variances[0] <= KERNEL.diagonal(NEW) + 1e-12).all())
    torch.testing.assert_close(variances[1], exact, rtol=1e-7, atol=1e-9)
    assert bool((variances[0] > exact + 1e-6).any())  # the control


@tables
def test_the_variance_is_that_of_the_error_of_the_prediction(table):
    """Over draws of the function and the rows: the predictor and its variance from dense covariances."""
    X = table(N)
    found = posterior(inference.Vecchia(9, 12), X, draw_targets(KERNEL, X, NOISE))
    H, cross = reference_matrix(KERNEL, X, NOISE), reference_block(KERNEL, X, NEW)
    local = found._predictor.weights(NEW)
    weights = torch.zeros(len(NEW), N, dtype=torch.float64).scatter_add(1, local.rows[local.places], local.weights)
    error = reference_block(KERNEL, NEW, NEW) - weights @ cross - cross.T @ weights.T + weights @ H @ weights.T
    assert relative_error(found.covariance(NEW), error) < 1e-9
    torch.testing.assert_close(found.mean_and_variance(NEW)[1], error.diagonal(), rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.mean(NEW), weights @ found.table.Y, rtol=1e-9, atol=1e-10)
    assert relative_error(found.covariance(NEW).diagonal(), error.diagonal() * 1.01) > 1e-3


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean()], ids=repr)
def test_the_uncertainty_of_the_mean_is_in_every_answer(mean):
    """With weights W and B of predictions and rows, the mean's coefficients are those of universal kriging."""
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE, columns=2) + 3.0 * X[:, :1]
    found = posterior(inference.Vecchia(N, 12), X, Y, mean)
    H, Phi = reference_matrix(KERNEL, X, NOISE), mean.basis(X)
    precision = Phi.T @ torch.linalg.solve(H, Phi)
    local = found._predictor.weights(NEW)
    weights = torch.zeros(len(NEW), N, dtype=torch.float64).scatter_add(1, local.rows[local.places], local.weights)
    rest = mean.basis(NEW) - weights @ Phi
    coefficients = torch.linalg.solve(precision, Phi.T @ torch.linalg.solve(H, Y))
    more = rest @ torch.linalg.solve(precision, rest.T)
    torch.testing.assert_close(found.coefficients, coefficients, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.mean(NEW), weights @ Y + rest @ coefficients, rtol=1e-7, atol=1e-8)
    given, whole = found.covariance_given_trend(NEW), found.covariance(NEW)
    torch.testing.assert_close(whole - given, more, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.mean_and_variance(NEW)[1], whole.diagonal(), rtol=1e-8, atol=1e-10)
    assert float(more.diagonal().max()) > 1e-3


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["functions", "at"])
def test_samples_have_the_covariance_of_the_predictions(kind):
    kernel = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)
    X = clumps(N)
    found = posterior(inference.Vecchia(9, 8), X, draw_targets(kernel, X, NOISE), ConstantMean(), kernel=kernel)
    new, count = NEW[:6], 4000
    mean, covariance = found.mean(new)[:, 0], found.covariance(new)
    if kind == "at":
        drawn = found.sample_at(new, count, generator(3))[:, 0].T
    else:  # many draws of features, so that their own error averages out
        drawn = torch.cat([found.sample_functions(50, generator(k))(new)[:, 0].T for k in range(count // 50)])
    assert drawn.shape == (count, 6)
    # the draws of a set of features are not independent given it: means over the sets are
    squares = (drawn - mean)[:, :, None] * (drawn - mean)[:, None, :]
    groups = 80
    assert within_standard_errors(drawn.view(groups, -1, 6).mean(1), mean, errors=4.5)
    assert within_standard_errors(squares.view(groups, -1, 6, 6).mean(1), covariance, errors=4.5)
    assert not within_standard_errors(squares.view(groups, -1, 6, 6).mean(1), 1.3 * covariance, errors=4.5)


@pytest.mark.slow
def test_predictions_do_not_depend_on_the_batch():
    X = clumps(N)
    found = posterior(inference.Vecchia(9, 12), X, draw_targets(KERNEL, X, NOISE, columns=2), LinearMean())
    crowd = torch.cat([NEW, points(9000, 2, seed=4) * 3])
    mean, variance = found.mean_and_variance(crowd)
    functions = found.sample_functions(2, generator(3))
    for place in (0, 7, 16):
        one = crowd[place : place + 1]
        alone = found.mean_and_variance(one)
        torch.testing.assert_close(alone[0], mean[place : place + 1], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(alone[1], variance[place : place + 1], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(functions(one), functions(crowd)[place : place + 1], rtol=1e-10, atol=1e-11)
    none = found.mean_and_variance(NEW[:0])
    assert none[0].shape == (0, 2)
    assert none[1].shape == (0,)


def test_known_noise_of_each_row():
    X = clumps(N)
    noise = 0.01 + torch.rand(N, generator=generator(5), dtype=torch.float64)
    Y = draw_targets(KERNEL, X, NOISE)
    found = posterior(inference.Vecchia(N, N), X, Y, noise=noise)
    exact = dense_posterior(KERNEL, X, Y, NEW, noise)
    torch.testing.assert_close(found.mean(NEW), exact.mean, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(found.covariance(NEW), exact.covariance, rtol=1e-7, atol=1e-8)
    assert found.log_marginal_likelihood(generator()).value == pytest.approx(exact.log_likelihood, rel=1e-9)


@pytest.mark.parametrize("noise", [0.05, 0.0])
@pytest.mark.parametrize(
    "kernel", [kernels.Matern(0.5, 1.0, 1.3), kernels.Matern(2.5, 1.0, 1.3), kernels.Linear(1.0) + 0.5], ids=repr
)
def test_gradients_at_rows_and_duplicates_are_finite(kernel, noise):
    """Without noise some neighbours, and the row itself, are determined by others."""
    X = duplicates(40)
    found = posterior(inference.Vecchia(9, 12), X, points(40, 1, seed=1), kernel=kernel.bind(2), noise=noise)
    at = torch.cat([X[:4], NEW[:3]]).requires_grad_()
    mean, variance = found.mean_and_variance(at)
    plain = found.mean_and_variance(at.detach())
    torch.testing.assert_close(mean.detach(), plain[0], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(variance.detach(), plain[1], rtol=1e-7, atol=1e-9)
    for answer in (mean, variance):
        (slope,) = torch.autograd.grad(answer.sum(), at, retain_graph=True)
        assert bool(torch.isfinite(slope).all())


# Small, large and awkward tables -------------------------------------------------------------------------------------


def test_a_single_row_is_exact():
    X, Y = points(1, 2), points(1, 2, seed=1)
    found, exact = posterior(inference.Vecchia(), X, Y), dense_posterior(KERNEL, X, Y, NEW, NOISE)
    torch.testing.assert_close(found.mean(NEW), exact.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.covariance(NEW), exact.covariance, rtol=1e-9, atol=1e-10)
    assert found.log_marginal_likelihood(generator()).value == pytest.approx(exact.log_likelihood, rel=1e-10)
    assert math.isfinite(objective_of(X, Y).evaluate(at_model()).value)


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_fewer_rows_than_neighbours_are_exact(n, mean):
    X, y = points(n, 2).numpy(), points(n, 1, seed=1)[:, 0].numpy()
    given = {"kernel": kernels.Matern(1.5, [0.8, 1.7], 1.3), "noise_variance": 0.1, "optimizer": None, "mean": mean}
    found, exact = (
        GPRegressor(inference=method, standardize=False, **{"kernel": kernels.Matern(nu=1.5)} | given).fit(X, y)
        for method in (inference.Vecchia(), inference.Exact())
    )
    for one, other in zip(*(gp.predict(NEW.numpy(), return_cov=True) for gp in (found, exact)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)
    assert found.log_marginal_likelihood().value == pytest.approx(exact.log_marginal_likelihood().value, rel=1e-10)
    assert found.sample_y(NEW.numpy(), 3, random_state=0).shape == (len(NEW), 3)


@pytest.mark.parametrize("noise", [1e-4, 1e-10])
def test_duplicates_with_tiny_noise(noise):
    X = duplicates(N).numpy()
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    given = {"kernel": kernels.Matern(1.5, 1.0, 1.3), "noise_variance": noise, "optimizer": None}
    found = GPRegressor(inference=inference.Vecchia(10, 20), **{"kernel": kernels.Matern(nu=1.5)} | given).fit(X, y)
    mean, std = found.predict(NEW.numpy(), return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert np.isfinite(found.log_marginal_likelihood().value)
    np.testing.assert_allclose(found.predict(X), y, atol=0.01)


def test_a_description_says_how_many_rows_float64_cannot_tell_from_their_neighbours(tmp_path):
    X = duplicates(N).numpy()
    given = {"kernel": kernels.RBF(1.0, 1.3), "optimizer": None, "inference": inference.Vecchia(10, 20)}
    few = GPRegressor(noise_variance=1e-13, **{"kernel": kernels.Matern(nu=1.5)} | given).fit(X, np.sin(X[:, 0]))
    few.save(tmp_path / "few.gp")
    for gp in (few, gigagp.load(tmp_path / "few.gp")):
        raised = next(line for line in gp.describe().splitlines() if line.startswith("floor"))
        assert int(raised.split(" rows")[0].split()[-1]) >= N // 2
    assert (
        "floor"
        not in GPRegressor(noise_variance=1e-6, **{"kernel": kernels.Matern(nu=1.5)} | given)
        .fit(X, np.sin(X[:, 0]))
        .describe()
    )


def test_the_history_has_the_gap(tmp_path):
    """The mean divergence of a row's density from that with eight times the neighbours, here all."""
    X = clumps(N).numpy()
    given = {"optimizer": None, "noise_variance": 0.01, "standardize": False, "kernel": kernels.Matern(1.5, 1.0, 1.3)}
    values = []
    for neighbours in (2, 16, N):
        gp = GPRegressor(
            inference=inference.Vecchia(neighbours, 20), mean="zero", **{"kernel": kernels.Matern(nu=1.5)} | given
        ).fit(X, X[:, 0])
        gap, line = gp.history_.gap, next(one for one in gp.describe().splitlines() if one.startswith("neighbours"))
        assert f"{gap.value:.2g} nats" in line
        gp.save(tmp_path / "model.gp")
        assert gigagp.load(tmp_path / "model.gp").history_.gap == gap
        values.append(gap.value)
    assert values[0] > 3 * values[1] > 0
    assert abs(values[2]) < 1e-12
    # the expected difference of the log likelihoods, from determinants alone: the rows are those of the model
    model = model_of(kernels.Matern(1.5, 1.0, 1.3).bind(2), 0.01)
    own, zeros = [], torch.zeros(N, 1, dtype=torch.float64)
    for neighbours in (2, 16):
        own.append(objective_of(clumps(N), zeros, neighbours=neighbours).evaluate(model).value)
    gap = (
        GPRegressor(inference=inference.Vecchia(2, 20), mean="zero", **{"kernel": kernels.Matern(nu=1.5)} | given)
        .fit(X, X[:, 0])
        .history_.gap
    )
    assert gap.value == pytest.approx((own[1] - own[0]) / N, abs=1e-9 + 4 * gap.standard_error)
    assert (
        GPRegressor(inference=inference.Exact(), **{"kernel": kernels.Matern(nu=1.5)} | given)
        .fit(X, X[:, 0])
        .history_.gap
        is None
    )


def test_a_memory_budget_without_room_for_the_gap():
    X = points(900, 2).numpy()
    gp = GPRegressor(inference=inference.Vecchia(40, 40), optimizer=None, memory_budget=2**22).fit(X, X[:, 0])
    assert "the memory budget has no room for more of them" in gp.describe()
    assert gp.history_.gap is None


def test_learning_on_uneven_rows_finds_what_exact_learning_does():
    X = clumps(300)
    y = draw_targets(KERNEL, X, NOISE, seed=3)[:, 0].numpy()
    method = inference.Vecchia(20)
    auto = optimization.Auto(subset_sizes=(60,))
    found, exact = (
        GPRegressor(kernels.Matern(nu=1.5), inference=one, optimizer=auto).fit(X.numpy(), y)
        for one in (method, inference.Exact())
    )
    model = {"kernel": found.kernel_, "noise_variance": found.noise_variance_, "optimizer": None}
    there = (
        GPRegressor(inference=inference.Exact(), **{"kernel": kernels.Matern(nu=1.5)} | model)
        .fit(X.numpy(), y)
        .log_marginal_likelihood()
        .value
    )
    assert there > exact.log_marginal_likelihood().value - 1.0
    assert found.history_[-1].stage == "neighbours"


def test_float32_answers_are_close_to_those_of_float64():
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    answers = []
    for dtype in ("float32", "float64"):
        gp = GPRegressor(KERNEL, inference.Vecchia(9, 12), None, noise_variance=NOISE, dtype=dtype)
        gp.fit(X.numpy(), Y[:, 0].numpy())
        assert gp.posterior_.dtype == getattr(torch, dtype)
        answers.append([*gp.predict(NEW.numpy(), return_cov=True), gp.log_marginal_likelihood().value])
    for one, other in zip(*answers, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_more_neighbours_than_memory_are_refused_before_the_work():
    X = points(900, 2)
    method = inference.Vecchia(800)
    with pytest.raises(MemoryBudgetError, match="fewer neighbours"):
        GPRegressor(inference=method, optimizer=None, memory_budget=2**24).fit(X.numpy(), X[:, 0].numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("far", [1e4, 1e100, -1e300])
def test_far_points_change_nothing_for_others(dtype, far):
    """Some of them are infinite in the units of the fit."""
    X = clumps(N).numpy()
    gp = GPRegressor(KERNEL, inference.Vecchia(9, 12), None, noise_variance=NOISE, dtype=dtype)
    gp.fit(1e-9 * X, X[:, 0])
    new = 1e-9 * NEW.numpy()
    alone = gp.predict(new, return_std=True)
    together = gp.predict(np.concatenate([new, np.full((1, 2), far)]), return_std=True)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other[:-1], rtol=1e-6)
    assert together[1][-1] == pytest.approx(together[1].max())


def test_functions_need_a_spectrum_and_other_samples_do_not():
    class Own(kernels.StationaryKernel):
        def profile(self, q):
            return 1 / (1 + q)

    found = posterior(inference.Vecchia(9, 12), points(N, 2), points(N, 1), kernel=Own([1.0, 2.0], 1.0).bind(2))
    with pytest.raises(InvalidInputError, match="random features"):
        found.sample_functions(2, generator())
    assert found.sample_at(NEW, 2, generator()).shape == (len(NEW), 1, 2)


@pytest.mark.parametrize("number", [0, -1, 2.5, "all"])
@pytest.mark.parametrize("name", ["n_neighbors", "prediction_neighbors", "learning_rows"])
def test_settings_are_counts(name, number):
    with pytest.raises(InvalidInputError, match=f"{name} of Vecchia"):
        inference.Vecchia(**{name: number})


# Files and checkpoints ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_model_that_was_learned_comes_back_to_the_bit(tmp_path, dtype):
    X = clumps(N).numpy()
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    optimizer = optimization.Adam(0.1, steps=6)  # which moves the kernel less than the neighbours are kept for
    gp = GPRegressor(
        kernels.Matern(nu=1.5), inference=inference.Vecchia(6, 9), optimizer=optimizer, dtype=dtype, mean="linear"
    ).fit(X, y)
    gp.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    new = NEW.numpy()
    for answer in (
        lambda gp: gp.predict(new, return_std=True),
        lambda gp: gp.predict(new, return_cov=True)[1],
        lambda gp: gp.sample_y(new, 2, random_state=1),
        lambda gp: gp.sample_functions(2, random_state=1)(new),
        lambda gp: gp.log_marginal_likelihood().value,
        lambda gp: gp.posterior_.solver_name(),
    ):
        np.testing.assert_array_equal(answer(gp), answer(loaded))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("kill_at", [1, 3, 5])
@pytest.mark.parametrize(
    "optimizer",
    [
        optimization.Auto(subset_sizes=(20,), subset_steps=4),
        optimization.Adam(0.3, steps=8),
        optimization.LBFGS(steps=6),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_killed_fit_resumes_to_the_same_bits(optimizer, kill_at, tmp_path):
    X, path = clumps(N).numpy(), tmp_path / "fit.checkpoint"
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]

    def estimator():
        return GPRegressor(
            kernels.Matern(nu=1.5), inference=inference.Vecchia(6, 9, learning_rows=70), optimizer=optimizer
        )

    whole = estimator().fit(X, y)
    with killed_at_write(kill_at):
        estimator().fit(X, y, checkpoint=path)
    resumed = estimator().fit(X, y, checkpoint=path)
    np.testing.assert_array_equal(
        whole.predict(NEW.numpy(), return_std=True), resumed.predict(NEW.numpy(), return_std=True)
    )
    assert [step.objective for step in whole.history_] == [step.objective for step in resumed.history_]


# The objective ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [ZeroMean(), LinearMean()], ids=repr)
def test_the_gradient_is_that_of_differences(mean):
    X = clumps(N)
    objective = objective_of(X, draw_targets(KERNEL, X, NOISE, columns=2) + X[:, :1], mean=mean)
    found, expected = gradients(objective, at_model(mean))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_the_information_is_the_slope_of_the_expected_gradient():
    """The columns of a root of H are targets whose sums over squares are expectations under the model."""
    X = clumps(60)
    root = torch.linalg.cholesky(reference_matrix(KERNEL, X, NOISE))
    model, t = at_model(), len(X)
    drawn, none = objective_of(X, root), objective_of(X, torch.zeros_like(root))
    space = ParameterSpace(model, "log")
    at = space.encode(model)
    for objective in (drawn, none):
        objective.start(model)

    def expected_gradient(vector):
        there = space.decode(vector)
        squares, traces = (space.pull_back(one.evaluate(there).gradient, vector) for one in (drawn, none))
        return squares - traces + traces / t

    drawn.evaluate(model)
    information = drawn.fisher(space, at, torch.zeros(0)) / t
    slopes = torch.zeros_like(information)
    for k in range(len(at)):
        move = torch.zeros_like(at)
        move[k] = 1e-4
        slopes[k] = -(expected_gradient(at + move) - expected_gradient(at - move)) / 2e-4
    assert float(expected_gradient(at).abs().max()) < 1e-8 * float(information.abs().max())
    assert relative_error(slopes, information) < 1e-5


def test_the_information_does_not_need_the_evaluation_before():
    X = clumps(N)
    objective, model = objective_of(X, draw_targets(KERNEL, X, NOISE)), at_model()
    space = ParameterSpace(model, "log")
    at = space.encode(model)
    objective.start(model)
    alone = objective.fisher(space, at, torch.zeros(0))
    objective.evaluate(space.decode(at + 0.1))
    assert torch.equal(objective.fisher(space, at, torch.zeros(0)), alone)
    objective.evaluate(model)
    assert torch.equal(objective.fisher(space, at, torch.zeros(0)), alone)


def test_enough_learning_rows_are_the_whole():
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    one, other = (objective_of(X, Y, rows=rows) for rows in (N, 10_000))
    assert one.evaluate(at_model()).value == other.evaluate(at_model()).value
    assert one.share == other.share == 1
    assert one.evaluate(at_model()).value == pytest.approx(
        one.posterior(at_model(), generator()).log_marginal_likelihood(generator()).value, rel=1e-12
    )


@pytest.mark.slow
def test_some_learning_rows_estimate_the_whole_without_bias(monkeypatch):
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    whole = objective_of(X, Y).evaluate(at_model())
    found = []
    for seed in range(120):
        monkeypatch.setattr(objective_module, "_SEED", seed)
        part = objective_of(X, Y, rows=30).evaluate(at_model())
        found.append(torch.cat([torch.tensor([part.value]).double(), *(g.reshape(-1) for g in part.gradient.values())]))
    expected = torch.cat([torch.tensor([whole.value]).double(), *(g.reshape(-1) for g in whole.gradient.values())])
    drawn = torch.stack(found)
    assert within_standard_errors(drawn, expected)
    assert not within_standard_errors(drawn, expected + 0.5 * drawn.std(0))


def test_known_noise_has_no_gradient():
    X = clumps(N)
    noise = torch.full((N,), 0.1, dtype=torch.float64)
    model = Model(KERNEL, ZeroMean(), noise)
    found = objective_of(X, draw_targets(KERNEL, X, NOISE)).evaluate(model)
    assert set(found.gradient) == set(KERNEL.parameters())


def test_neighbours_are_found_anew_when_lengthscales_have_moved():
    X = clumps(N)
    objective = objective_of(X, draw_targets(KERNEL, X, NOISE))
    assert objective.refresh(at_model())
    assert not objective.refresh(at_model())
    value = KERNEL.parameters()["0.lengthscale"]
    moved = at_model(kernel=KERNEL.replace({"0.lengthscale": value * torch.tensor([1.0, 4.0])}))
    before = objective.evaluate(moved).value
    assert objective.refresh(moved)
    assert objective.evaluate(moved).value != before
    final = objective.posterior(moved, generator())
    assert final.log_marginal_likelihood(generator()).value == pytest.approx(objective.evaluate(moved).value, rel=1e-10)


def test_the_likelihood_approaches_the_exact_one():
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    exact = dense_posterior(KERNEL, X, Y, NEW, NOISE).log_likelihood
    gaps = [abs(objective_of(X, Y, neighbours=m).evaluate(at_model()).value - exact) for m in (1, 5, 20, 119)]
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3]
    assert gaps[2] < 1.0
    assert gaps[3] < 1e-8 * abs(exact)
    assert math.isfinite(gaps[0])


def test_a_guide_takes_more_neighbours_where_they_are_worth_much(monkeypatch):
    """A smooth function with little noise wants many neighbours; a noisy one does not."""
    X = points(400, 4)
    kernel = kernels.RBF(3.0).bind(4)
    Y = draw_targets(kernel, X, 1e-4)
    table = TrainingTable(X, Y, ZeroMean(), 2**28)
    for noise, most, wanted in ((1e-4, 40, 40), (1e-4, None, 10), (1.0, 40, 10)):
        model = Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))
        guide = VecchiaObjective(table, 10, None, None, most)
        values = []
        while guide.refresh(model):
            values.append(guide.evaluate(model).value)
        neighbours = guide._batch.neighbours.shape[1]
        assert neighbours == wanted, (noise, most)
        expected = VecchiaObjective(table, neighbours, None, None).evaluate(model)
        assert values[-1] == pytest.approx(expected.value, rel=1e-12)
    monkeypatch.setattr(objective_module, "_WIDE_GAP", -1.0)
    guide = VecchiaObjective(table, 10, None, None, 25)
    sizes = [guide._batch.neighbours.shape[1] for _ in range(5) if guide.refresh(model)]
    assert sizes == [10, 20, 25]


def test_learning_looks_at_more_rows_once_it_has_settled(monkeypatch):
    monkeypatch.setattr(objective_module, "_LEARNING_ROWS", 30)
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    guide = objective_of(X, Y, rows=None)
    assert guide.refresh(at_model())
    few = guide._batch.rows
    assert len(few) == 30
    assert guide.refresh(at_model())
    assert len(guide._batch.rows) == N
    assert torch.isin(few, guide._batch.rows).all()
    assert guide.evaluate(at_model()).value == objective_of(X, Y, rows=N).evaluate(at_model()).value
    assert not guide.refresh(at_model())
    chosen = objective_of(X, Y, rows=30)
    chosen.refresh(at_model())
    assert not chosen.refresh(at_model())  # a number of your own stays


def test_the_finest_function_that_rows_can_show_is_that_of_neighbouring_rows():
    """Two steps of a lattice for each lengthscale; rows that repeat others say nothing."""
    lattice = 0.05 * torch.arange(300, dtype=torch.float64)[:, None]
    kernel = kernels.RBF(4.0).bind(1)
    for X in (lattice, torch.cat([lattice, lattice, lattice])):
        objective = VecchiaObjective(TrainingTable(X, torch.sin(X), ZeroMean(), 2**28), 10, None, None)
        assert objective.finest(model_of(kernel, NOISE)) == pytest.approx(2 * 0.05 / 4.0)
        assert objective.finest(model_of(kernels.RBF(0.01).bind(1), NOISE)) == 1.0  # already finer than the rows
    same = torch.zeros(30, 1, dtype=torch.float64)
    repeated = VecchiaObjective(TrainingTable(same, same, ZeroMean(), 2**28), 10, None, None)
    assert repeated.finest(model_of(kernel, NOISE)) == 1.0


def test_a_deadline_that_leaves_no_time_for_all_rows_regresses_some_of_them(monkeypatch):
    """The mean's coefficients are then those of some rows; predictions still use all rows."""
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE) + 3.0
    model = at_model(ConstantMean())

    def ended(deadline):
        objective = VecchiaObjective(TrainingTable(X, Y, ConstantMean(), 2**28), 20, None, None)
        with interruption.interruptible(deadline) as interrupted:
            objective.refresh(model)
            found = objective.posterior(model, generator())
        return objective, found, interrupted.reserve

    asked = objective_of(X, Y).ending_seconds()
    whole, of_all, reserve = ended(math.inf)
    assert whole.ending.takes_all
    assert reserve == 0
    monkeypatch.setattr(cost, "SOME_ROWS", 40)
    hurried, of_some, reserve = ended(0.0)  # long past
    assert not hurried.ending.takes_all
    assert reserve == hurried.ending_seconds() > 0
    assert float(of_some.coefficient_root.abs()) > float(of_all.coefficient_root.abs())
    assert relative_error(of_some.mean(X), of_all.mean(X)) < 0.05
    in_time, also_of_all, reserve = ended(1e300)  # the control
    assert in_time.ending.takes_all
    assert 0 < asked < 1  # what a fit keeps first does not end the learning of a large table before it begins
    assert torch.equal(also_of_all.mean(X), of_all.mean(X))


def test_a_short_time_left_looks_at_fewer_rows(monkeypatch):
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    monkeypatch.setattr(objective_module, "_LEARNING_ROWS", 30)
    monkeypatch.setattr(objective_module, "_FEWEST_IN_TIME", 20)
    for deadline, first, last in ((0.0, 20, 20), (1e300, 30, N), (math.inf, 30, N)):
        guide = objective_of(X, Y, rows=None)
        with interruption.interruptible(deadline):
            guide.refresh(at_model())
            assert len(guide._batch.rows) == first
            while guide.refresh(at_model()):
                pass
        assert len(guide._batch.rows) == last


# Sixty rows in clumps end with noise alone, whose amplitude is that of all rows too.
@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:The fit explains the targets as noise:gigagp.errors.FitWarning")
@tables
def test_learning_from_some_rows_ends_with_the_amplitude_of_all(table, tmp_path):
    X = table(400)
    y = draw_targets(KERNEL, X, NOISE)[:, 0].numpy()
    # Rows that learning does not see vary twice as much.
    drawn = torch.randperm(len(X), generator=torch.Generator().manual_seed(objective_module._SEED))
    y[drawn[60:]] *= 2.0

    def fitted(**settings):
        method = inference.Vecchia(n_neighbors=399, learning_rows=60)
        settings |= {"optimizer": optimization.LBFGS(steps=20), "standardize": False}  # "auto" learns 400 rows exactly
        return GPRegressor(kernels.Matern(1.5, [0.8, 1.7]), inference=method, **settings).fit(X, y)

    gp = fitted(mean=ZeroMean())
    model = gp.posterior_.model
    H = reference_matrix(model.kernel, X, model.noise_variance)
    Y = torch.from_numpy(y)[:, None]
    assert float((Y * torch.linalg.solve(H, Y)).sum()) / len(X) == pytest.approx(1, rel=1e-9)  # r' H^-1 r / n
    low, chosen, high = (
        float(torch.distributions.MultivariateNormal(torch.zeros(400).double(), factor * H).log_prob(Y[:, 0]))
        for factor in (0.9, 1.0, 1.1)
    )
    assert gp.log_marginal_likelihood().value == pytest.approx(chosen, rel=1e-9)
    assert chosen > max(low, high)

    with_mean = fitted()
    assert float(with_mean.posterior_._regression.amplitude) == pytest.approx(1, rel=1e-12)
    with_mean.save(tmp_path / "model.gp")
    loaded = gigagp.load(tmp_path / "model.gp")
    for one, other in zip(
        with_mean.predict(NEW.numpy(), return_std=True), loaded.predict(NEW.numpy(), return_std=True), strict=True
    ):
        assert np.array_equal(one, other)

    fixed = fitted(noise_variance=np.full(400, 0.3))  # known, so that nothing may be multiplied
    assert abs(fixed.posterior_._regression.amplitude - 1) > 0.01


def test_given_hyperparameters_are_not_amplified():
    X = clumps(N)
    y = 5 * draw_targets(KERNEL, X, NOISE)[:, 0].numpy()
    method = inference.Vecchia(n_neighbors=8, learning_rows=30)
    given = kernels.Matern(1.5, [0.8, 1.7], 1.3)
    gp = GPRegressor(given, inference=method, noise_variance=NOISE, optimizer=None, standardize=False).fit(X, y)
    assert repr(gp.kernel_) == repr(given.bind(2))
    assert gp.posterior_._regression.amplitude > 2


@pytest.mark.parametrize("kernel", [KERNEL, kernels.Matern(0.5).bind(2) + kernels.Linear(3.0).bind(2)])
def test_an_amplified_posterior_is_that_of_the_amplified_model(kernel):
    X = clumps(N)
    Y = draw_targets(KERNEL, X, NOISE)
    found = objective_of(X, Y, mean=ConstantMean()).posterior(model_of(kernel, NOISE, ConstantMean()), generator())
    amplified = found.amplified()
    assert amplified is not found
    anew = objective_of(X, Y, mean=ConstantMean()).posterior(amplified.model, generator())
    assert torch.equal(amplified._graph.neighbours, anew._graph.neighbours)
    for one, other in zip(amplified.mean_and_variance(NEW), anew.mean_and_variance(NEW), strict=True):
        assert relative_error(one, other) < 1e-9
    assert relative_error(amplified.coefficient_root.abs(), anew.coefficient_root.abs()) < 1e-9
    value = anew.log_marginal_likelihood(generator()).value
    assert amplified.log_marginal_likelihood(generator()).value == pytest.approx(value, rel=1e-9)
    assert value > found.log_marginal_likelihood(generator()).value
    assert amplified.amplified() is amplified
