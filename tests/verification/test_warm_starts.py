"""Notes on Lin et al. 2024, section 10, tests 12 to 15: warm starts over an outer loop."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gigagp import GPRegressor, inference, kernels, optimization, solvers
from gigagp.diagnostics import squared_distance
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import Hutchinson, Pathwise
from gigagp.inference.iterative.iterative import WarmStart
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.operators import KernelMatrix
from gigagp.optimization import ParameterSpace
from gigagp.solvers.base import Problem
from helpers import RecordingSolver, draw_targets, generator, new_trace, points

ESTIMATORS = {"standard": Hutchinson(64), "pathwise": Pathwise(64, prior="exact")}
SETTINGS = list(itertools.product(ESTIMATORS, ("cold", "warm")))


def table(n, d=4, sigma=0.1):
    X = points(n, d)
    y = draw_targets(kernels.Matern(1.5, 1.5, 1.0), X, sigma**2, seed=1)
    return TrainingTable(X, (y - y.mean()) / y.std(), ZeroMean(), 2**30)


def start(d=4):
    return Model(kernels.Matern(1.5, 1.0, 1.0).bind(d), ZeroMean(), torch.tensor(1.0, dtype=torch.float64))


def run(rows, estimator, warm, steps, solver, seed=0):
    """Adam from unit scales; return the last model, what the solver saw, and the trace."""
    recorder = RecordingSolver(solver)
    settings = inference.Iterative(
        solver=recorder, gradient=estimator, warm_start="previous" if warm == "warm" else False
    )
    trace = new_trace()
    adam = optimization.Adam(0.1, steps)
    model = adam.run(settings.objective(rows, generator(seed)), start(rows.n_inputs), trace, generator())
    return model, recorder.calls, trace


def root_mean_square_distance(call):
    """Return the mean over the probes' distances from the start of a solve to its exact solution, in the H-norm."""
    exact = torch.linalg.solve(call.matrix.to_dense(), call.right_hand_sides)
    begin = torch.zeros_like(exact) if call.initial is None else call.initial.value
    return math.sqrt(float(squared_distance(call.matrix, begin, exact)[1:].mean()))


# 12 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_12_iterations_and_distances_with_conjugate_gradients():
    rows, steps = table(300), 30
    solver = solvers.ConjugateGradients(tolerance=0.01, preconditioner=solvers.PivotedCholesky(rank=20))
    iterations, distances = {}, {}
    for name, warm in SETTINGS:
        _, calls, _ = run(rows, ESTIMATORS[name], warm, steps, solver)
        iterations[name, warm] = sum(call.solution.iterations for call in calls)
        distances[name, warm] = [root_mean_square_distance(calls[step]) for step in (0, 9, steps - 1)]
    assert iterations["standard", "warm"] <= 0.6 * iterations["standard", "cold"]
    assert iterations["pathwise", "warm"] <= 0.6 * iterations["pathwise", "cold"]
    assert iterations["pathwise", "cold"] < iterations["standard", "cold"]
    # cold pathwise starts are the root of n away at every step; cold standard ones move away as the noise falls
    assert distances["pathwise", "cold"] == pytest.approx([math.sqrt(300)] * 3, rel=0.05)
    assert distances["standard", "cold"][2] > 1.5 * distances["standard", "cold"][0]
    for name in ESTIMATORS:
        assert distances[name, "warm"][0] == pytest.approx(distances[name, "cold"][0], rel=0.1)
        assert distances[name, "warm"][1] < 0.5 * distances[name, "cold"][1]
        assert distances[name, "warm"][2] < 0.2 * distances[name, "cold"][2]


@pytest.mark.slow
def test_12_epochs_with_alternating_projections():
    rows = table(160)
    solver = solvers.AlternatingProjections(block_size=16, tolerance=0.01, partition="contiguous", coarse_rank=0)
    epochs = {
        (name, warm): sum(call.solution.epochs for call in run(rows, ESTIMATORS[name], warm, 15, solver)[1])
        for name, warm in SETTINGS
    }
    order = [("standard", "cold"), ("pathwise", "cold"), ("standard", "warm"), ("pathwise", "warm")]
    found = [epochs[key] for key in order]
    assert found[0] > found[1] > found[3]
    assert found[0] > found[2] > found[3]
    assert found[2] <= 0.6 * found[0]
    assert found[3] <= 0.6 * found[1]


# 13 -----------------------------------------------------------------------------------------------------------------


def matrices(step):
    """Return H at two outer steps, the second ``step`` away in every logarithm."""
    X = points(120, 3)
    scales = [1.0, math.exp(step)]
    return [KernelMatrix(kernels.Matern(1.5, 1.2 * s, 1.0 * s), X, 0.05 / s) for s in scales]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_13_the_first_residual_of_a_warm_start(estimator):
    """r0 = (b' - b) - Delta v, and for a fixed right-hand side |v - v'|_H'^2 = (Delta v)' H'^-1 (Delta v)."""
    before, after = matrices(0.1)
    model = Model(before.kernel, ZeroMean(), torch.tensor(0.05, dtype=torch.float64))
    probes = estimator.draw(model, before.X, generator())
    moved = Model(after.kernel, ZeroMean(), torch.tensor(0.05 / math.exp(0.1), dtype=torch.float64))
    old = probes.right_hand_sides(model, before, 2**30)
    new = probes.right_hand_sides(moved, after, 2**30)
    solved = torch.linalg.solve(before.to_dense(), old)
    change = after.to_dense() - before.to_dense()
    warm = WarmStart("previous")
    warm.remember(solved)
    problem = Problem(after, new, warm.start(after, new))
    expected = new - old - change @ solved
    torch.testing.assert_close(problem.residual * problem.scale, expected, rtol=0, atol=1e-10 * float(new.norm()))
    if isinstance(estimator, Hutchinson):
        assert torch.equal(old, new)
        exact = torch.linalg.solve(after.to_dense(), old)
        product = change @ solved
        energy = (product * torch.linalg.solve(after.to_dense(), product)).sum(0)
        torch.testing.assert_close(squared_distance(after, solved, exact), energy, rtol=1e-8, atol=1e-10)


def test_13_the_first_order_prediction_is_of_second_order():
    """v' = v - H^-1 Delta v + O(Delta^2): halving the step quarters what is left; without the term it only halves."""
    b = points(120, 4, seed=8)
    errors, plain = [], []
    for step in (0.02, 0.01):
        before, after = (matrix.to_dense() for matrix in matrices(step))
        solved, exact = torch.linalg.solve(before, b), torch.linalg.solve(after, b)
        predicted = solved - torch.linalg.solve(before, (after - before) @ solved)
        errors.append(float((predicted - exact).norm()))
        plain.append(float((solved - exact).norm()))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert plain[0] / plain[1] == pytest.approx(2, rel=0.1)


# 14 -----------------------------------------------------------------------------------------------------------------

FAST = solvers.ConjugateGradients(tolerance=0.01)
FEATURES = Pathwise(8, 100)


def test_14_frozen_right_hand_sides():
    rows = table(80)
    _, calls, _ = run(rows, Hutchinson(8), "warm", 4, FAST)
    assert all(torch.equal(call.right_hand_sides, calls[0].right_hand_sides) for call in calls)
    _, calls, trace = run(rows, FEATURES, "warm", 4, FAST)
    assert not torch.equal(calls[0].right_hand_sides, calls[1].right_hand_sides)
    # they are functions of the hyperparameters alone: made again from the same draws they are the same
    settings = inference.Iterative(solver=FAST, gradient=FEATURES, warm_start="previous")
    objective = settings.objective(rows, generator(0))
    objective.evaluate(start())
    for call, step in zip(calls, trace.history, strict=True):
        values = {name: torch.tensor(value, dtype=torch.float64) for name, value in step.hyperparameters.items()}
        model = start().replace(values)
        again = objective._probes.right_hand_sides(model, objective.matrix(model), 2**30)
        torch.testing.assert_close(call.right_hand_sides[:, 1:], again, rtol=1e-12, atol=1e-12)
    doubled = start().replace({NOISE: 4 * start().noise_variance})  # sigma doubled
    difference = objective._probes.right_hand_sides(
        doubled, objective.matrix(doubled), 2**30
    ) - objective._probes.right_hand_sides(start(), objective.matrix(start()), 2**30)
    torch.testing.assert_close(difference, objective._probes.noise, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", [Hutchinson(8), FEATURES], ids=ESTIMATORS)
def test_14_cold_runs_redraw(estimator):
    _, calls, _ = run(table(80), estimator, "cold", 4, FAST)
    for one, other in itertools.combinations(calls, 2):
        products = (one.right_hand_sides[:, 1:] * other.right_hand_sides[:, 1:]).sum(0)
        sizes = one.right_hand_sides[:, 1:].norm(dim=0) * other.right_hand_sides[:, 1:].norm(dim=0)
        assert float((products / sizes).abs().mean()) < 0.5  # nothing in common but chance


@pytest.mark.parametrize("warm", ["warm", "cold"])
@pytest.mark.parametrize("estimator", [Hutchinson(8), FEATURES], ids=ESTIMATORS)
def test_14_the_same_seed_is_the_same_trajectory(estimator, warm):
    rows = table(80)

    def trajectory(seed):
        return [step.hyperparameters for step in run(rows, estimator, warm, 4, FAST, seed)[2].history]

    assert trajectory(1) == trajectory(1)
    assert trajectory(1) != trajectory(2)


# 15 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_15_the_bias_of_frozen_probes_is_small_and_falls(name):
    rows, steps = table(150), 40
    exact_objective = ExactObjective(rows)
    exact_trace = new_trace()
    exact = optimization.Adam(0.1, steps).run(exact_objective, start(), exact_trace, generator())
    best = exact_objective.evaluate(exact).value

    def largest_change(probes, seed):
        estimator = Hutchinson(probes) if name == "standard" else Pathwise(probes, prior="exact")
        model, _, trace = run(rows, estimator, "warm", steps, solvers.Cholesky(), seed)
        if probes == 64:
            assert abs(exact_objective.evaluate(model).value - best) < 0.01 * abs(best)
        space = ParameterSpace(start(), "softplus")
        paths = [
            [torch.cat([torch.as_tensor(v).double().reshape(-1) for v in step.hyperparameters.values()]) for step in t]
            for t in (trace.history, exact_trace.history)
        ]
        assert len(paths[0][0]) == space.size
        return max(float((a.sqrt() - b.sqrt()).abs().max()) for a, b in zip(*paths, strict=True))

    changes = {probes: sum(largest_change(probes, seed) for seed in range(3)) / 3 for probes in (4, 64, 256)}
    assert changes[4] > 1.5 * changes[64]
    assert changes[256] < 0.45 * changes[4]  # one over the root would be 0.125


@pytest.mark.slow
def test_a_fit_with_the_estimator_keeps_to_this():
    """The same through the front door: warm starts of the paper take at most 0.6 of the cold iterations."""
    rows = table(200)
    totals = {}
    for warm in (False, "previous"):
        settings = inference.Iterative(solver=FAST, gradient=Pathwise(16, 200), warm_start=warm, n_samples=16)
        gp = GPRegressor(
            kernels.Matern(1.5, 1.0),
            settings,
            optimization.Adam(steps=15),
            "zero",
            noise_variance=1.0,
            standardize=False,
        ).fit(rows.X.numpy(), rows.Y[:, 0].numpy())
        totals[warm] = sum(step.solve.iterations for step in gp.history_)
    assert totals["previous"] <= 0.6 * totals[False]
