"""The quasi-Newton loop on functions with known minima, with and without values, and L-BFGS on the likelihood."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from gigagp import inference, optimization
from gigagp.errors import InvalidInputError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.kernels import RBF, Matern
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import LBFGS, ParameterSpace
from gigagp.optimization.quasi_newton import QuasiNewton, minimise
from helpers import FunctionObjective, draw_targets, generator, new_trace, points, spd_matrix


class Counted:
    """A function to minimise that counts and records its evaluations."""

    def __init__(self, function, *, with_values):
        self.function, self.with_values, self.places = function, with_values, []

    def __call__(self, x):
        self.places.append(x)
        x = x.detach().clone().requires_grad_()
        value = self.function(x)
        (gradient,) = torch.autograd.grad(value, x)
        return float(value.detach()) if self.with_values else None, gradient


CURVATURE = spd_matrix(torch.logspace(-1, 1, 6).double())


def quadratic(x):
    return 0.5 * (x - 3) @ CURVATURE @ (x - 3)


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("with_values", [True, False])
def test_a_quadratic(with_values):
    function = Counted(quadratic, with_values=with_values)
    found, _, finite = minimise(function, torch.zeros(6).double(), QuasiNewton(100, 1e-16, max_change=2.0))
    assert finite
    torch.testing.assert_close(found, torch.full((6,), 3.0).double(), rtol=0, atol=1e-6)
    assert len(function.places) < 60


@pytest.mark.parametrize("with_values", [True, False])
def test_the_right_metric_needs_one_step(with_values):
    function = Counted(quadratic, with_values=with_values)
    settings = QuasiNewton(100, 1e-16, max_change=10.0)
    found, _, _ = minimise(function, torch.zeros(6).double(), settings, lambda g: torch.linalg.solve(CURVATURE, g))
    torch.testing.assert_close(found, torch.full((6,), 3.0).double(), rtol=0, atol=1e-9)
    assert len(function.places) == 2


def test_rosenbrock_with_values():
    function = Counted(rosenbrock, with_values=True)
    start = torch.tensor([-1.2, 1.0, -0.5]).double()
    found, _, finite = minimise(function, start, QuasiNewton(200, 1e-14))
    assert finite
    torch.testing.assert_close(found, torch.ones(3).double(), rtol=0, atol=1e-5)
    assert len(function.places) < 120  # steepest descent takes thousands


def test_rosenbrock_without_values():
    """Full steps under a cap are less robust, but they converge from nearby."""
    function = Counted(rosenbrock, with_values=False)
    found, _, finite = minimise(function, torch.tensor([0.6, 0.5]).double(), QuasiNewton(200, 1e-14, max_change=0.3))
    assert finite
    torch.testing.assert_close(found, torch.ones(2).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("with_values", [True, False])
def test_no_step_is_larger_than_the_cap(with_values):
    function = Counted(quadratic, with_values=with_values)
    minimise(function, torch.zeros(6).double(), QuasiNewton(30, 1e-12, max_change=0.4))
    moves = [float((b - a).abs().max()) for a, b in zip(function.places, function.places[1:], strict=False)]
    # A backtracked trial lies between the last point and the one before, so never farther than the cap.
    assert max(moves) <= 0.4 + 1e-12
    assert max(moves) == pytest.approx(0.4)


def test_patience_and_tolerance_end_the_loop():
    def evaluations(**settings):
        function = Counted(quadratic, with_values=True)
        minimise(function, torch.zeros(6).double(), QuasiNewton(steps=100, **settings))
        return len(function.places)

    assert evaluations(tolerance=1.0) < evaluations(tolerance=1e-3) < evaluations(tolerance=1e-9)
    assert evaluations(tolerance=1.0, patience=2) == evaluations(tolerance=1.0) + 1
    assert evaluations(tolerance=1e9) == 1


def test_the_next_step_is_offered():
    function = Counted(quadratic, with_values=False)
    settings = QuasiNewton(0, 1e-12, max_change=100.0)
    found, step, _ = minimise(function, torch.zeros(6).double(), settings, lambda g: torch.linalg.solve(CURVATURE, g))
    assert torch.equal(found, torch.zeros(6).double())
    torch.testing.assert_close(found + step, torch.full((6,), 3.0).double(), rtol=0, atol=1e-9)


def test_walls_are_backed_away_from():
    """For a function that is not finite beyond a wall, shorter steps are tried until the minimum is found."""

    def evaluate(x):
        return None if float(x.max()) > 1.2 else (float(((x - 1) ** 2).sum()), 2 * (x - 1))

    found, _, finite = minimise(evaluate, torch.full((2,), -4.0).double(), QuasiNewton(50, 1e-14, max_change=4.0))
    assert finite
    torch.testing.assert_close(found, torch.ones(2).double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("with_values", [True, False])
def test_nothing_finite_left_is_told(with_values):
    calls = []

    def evaluate(x):
        calls.append(x)
        return None if len(calls) > 1 else (float(x @ x) if with_values else None, 2 * x)

    start = torch.ones(2).double()
    found, step, finite = minimise(evaluate, start, QuasiNewton(10, 1e-12))
    assert not finite
    assert torch.equal(found, start)
    assert not step.any()
    assert not minimise(lambda x: None, start, QuasiNewton(10, 1e-12))[2]


def test_no_coordinates_is_no_work():
    found, step, finite = minimise(lambda x: (0.0, x), torch.zeros(0).double(), QuasiNewton(5, 1e-3))
    assert finite
    assert found.shape == step.shape == (0,)


# L-BFGS on the likelihood ---------------------------------------------------------------------------------------------


def exact_objective(n=80):
    X = points(n, 2)
    return ExactObjective(TrainingTable(X, draw_targets(Matern(1.5, [0.8, 1.5]), X, 0.05), ZeroMean(), 2**30))


START = Model(Matern(1.5, 1.0, 1.0).bind(2), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))


@pytest.mark.parametrize("transform", ["log", "softplus"])
def test_lbfgs_finds_the_maximum_that_scipy_finds(transform):
    objective = exact_objective()
    space = ParameterSpace(START, "log")

    def negative(vector):
        evaluation = objective.evaluate(space.decode(torch.from_numpy(vector)))
        return -evaluation.value, -space.pull_back(evaluation.gradient, torch.from_numpy(vector)).numpy()

    theirs = scipy.optimize.minimize(negative, space.encode(START).numpy(), jac=True, method="BFGS", tol=1e-7)
    found = LBFGS(tolerance=1e-9, transform=transform).run(objective, START, new_trace(), generator())
    np.testing.assert_allclose(space.encode(found), theirs.x, atol=2e-3)
    assert objective.evaluate(found).value == pytest.approx(-theirs.fun, abs=1e-4)


def test_lbfgs_refuses_redrawn_probes():
    table = exact_objective().table
    redrawn = inference.Iterative(warm_start=False).objective(table, generator())
    with pytest.raises(InvalidInputError, match="LBFGS needs a deterministic objective"):
        LBFGS().run(redrawn, START, new_trace(), generator())


def test_lbfgs_with_frozen_probes_and_no_values():
    """It ends at the zero of the gradient with fixed probes, from which the exact maximum differs by their error."""
    table = exact_objective().table
    frozen = inference.Iterative(gradient=optimization_probes(), warm_start=True).objective(table, generator(1))
    trace = new_trace()
    found = LBFGS(tolerance=1e-8, max_change=0.5).run(frozen, START, trace, generator())
    assert trace.history[-1].objective is None
    assert trace.history[-1].gradient_norm < 1e-2 * trace.history[0].gradient_norm
    space = ParameterSpace(START, "log")
    exact = LBFGS(tolerance=1e-9).run(exact_objective(), START, new_trace(), generator())
    assert float((space.encode(found) - space.encode(exact)).abs().max()) < 0.3


def optimization_probes():
    from gigagp.inference.gradients import Pathwise

    return Pathwise(n_probes=64, prior="exact")


def test_rbf_of_a_plain_function_is_not_touched_beyond_its_maximum():
    """With values, no accepted step goes downhill."""
    objective = FunctionObjective(lambda v: -(v["lengthscale"].log() ** 4).sum() - (v["variance"].log() - 1) ** 2)
    trace = new_trace()
    optimization.LBFGS(steps=40, tolerance=1e-10).run(
        objective, Model(RBF([3.0, 0.2]).bind(2), ZeroMean(), torch.tensor(0.1).double()), trace, generator()
    )
    values = [step.objective for step in trace.history]
    assert values[-1] == pytest.approx(0.0, abs=1e-4)
    best = np.maximum.accumulate(values)
    assert (np.diff(best) >= 0).all()
    assert values[-1] == best[-1]
