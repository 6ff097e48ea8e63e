"""Fits with randomly truncated solves: their records, and predictions from converged solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError, SolverWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.solvers.truncation import ExponentialDecay, Fixed, OneOverJ
from helpers import draw_targets, generator, points

X = points(150, 2).numpy()
y = 3 + 2 * draw_targets(kernels.Matern(1.5, 1.0), torch.from_numpy(X), 0.05)[:, 0].numpy()
X_NEW = points(20, 2, seed=1).numpy()
LAW = ExponentialDecay(0.2, 8)


def fitted(truncation=LAW, optimizer=None, gradient=None, warm_start=False, validation=None, **solver):
    method = inference.Iterative(
        solver=solvers.ConjugateGradients(preconditioner=None, truncation=truncation, **solver),
        gradient=gradient or gradients.Pathwise(8, 200),
        warm_start=warm_start,
        n_samples=16,
    )
    optimizer = optimizer or optimization.Adam(steps=12)
    return GPRegressor(kernels.Matern(nu=1.5), inference=method, optimizer=optimizer).fit(X, y, validation)


@pytest.mark.parametrize("warm_start", [False, True, "previous"])
def test_a_truncated_fit_warns_of_nothing_and_says_what_ran(warm_start):
    gp = fitted(warm_start=warm_start)
    for step in gp.history_:
        first, second = step.solve.lengths
        assert step.solve.status in ("TRUNCATED", "CONVERGED")
        assert step.solve.iterations <= max(first, second)
        assert step.solve.ended_early == (step.solve.iterations < max(first, second))
        assert step.solve.epochs == step.solve.iterations
    assert len({tuple(step.solve.lengths) for step in gp.history_}) > 3
    columns = gp.history_.to_dict()
    assert columns["lengths"][0] == gp.history_[0].solve.lengths
    text = gp.describe()
    assert "truncation=ExponentialDecay(rate=0.2, minimum=8" in text
    assert "12 solves cut at random" in text
    assert f"{sum(columns['ended_early'])} converged before" in text
    assert "cut at random" not in GPRegressor(optimizer=None).fit(X, y).describe()


def test_predictions_come_from_an_ordinary_solve():
    gp = fitted(tolerance=1e-8)
    assert gp.solver_.truncation is None
    final = gp.posterior_.final_solve
    assert final.status == "CONVERGED"
    assert final.lengths is None
    assert final.relative_residual_targets <= 1e-8
    same = GPRegressor(gp.kernel_, inference.Exact(), None, noise_variance=gp.noise_variance_).fit(X, y)
    np.testing.assert_allclose(gp.predict(X_NEW), same.predict(X_NEW), atol=1e-6)
    exact = same.log_marginal_likelihood().value
    found = gp.log_marginal_likelihood()
    assert abs(found.value - exact) < 4 * found.standard_error


def test_what_is_shown_on_the_way_are_the_unweighted_solutions():
    """Reweighted solutions scatter by many times the noise; the unweighted iterate at the end of the run predicts."""
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**30)
    solver = solvers.ConjugateGradients(preconditioner=None, truncation=ExponentialDecay(0.5, 3))
    objective = inference.Iterative(solver=solver, gradient=gradients.Pathwise(4, 100)).objective(table, generator())
    model = Model(kernels.Matern(1.5, 1.0).bind(2), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
    weighted = 0
    for _ in range(6):
        objective.evaluate(model)
        posterior, solution = objective.current_posterior(), objective.last_solution
        plain = solution.truncated.plain.value
        assert torch.equal(posterior.target_solutions, plain[:, :1])
        assert torch.equal(posterior.update.probe_solutions, plain[:, 1:])
        weighted += not torch.equal(plain, solution.value)
        assert torch.equal(objective._warm.blocks[-1], plain)
        assert posterior.solver.truncation is None
    assert weighted  # the control: lengths above the smallest have different values


@pytest.mark.slow
def test_the_default_optimizer_and_subsets_work():
    auto = optimization.Auto(subset_sizes=(30,), middle_size=60, polish_steps=3, polish_tolerance=1e-9)
    gp = fitted(optimizer=auto)
    stages = [step.stage for step in gp.history_ if step.solve is not None]
    assert set(stages) == {"subset 60", "all rows"}
    assert gp.score(X, y) > 0.7


def test_what_cannot_work_is_refused():
    with pytest.raises(InvalidInputError, match="minimum of ExponentialDecay must be at most the number of rows, 150"):
        fitted(ExponentialDecay(0.1, 200))
    with pytest.raises(InvalidInputError, match="maximum of OneOverJ must be at most the number of rows, 150; got 400"):
        fitted(OneOverJ(1, 400))
    with pytest.raises(InvalidInputError, match="LBFGS needs a deterministic objective"):
        fitted(optimizer=optimization.LBFGS(), warm_start=True)
    fitted(Fixed(30), optimization.LBFGS(steps=2), warm_start=True)  # no part of it is random


def test_a_budget_below_the_lengths_is_warned_of():
    with pytest.warns(SolverWarning, match="12 of 13 linear solves of this fit stopped before their tolerance"):
        fitted(ExponentialDecay(1e-4, 8), max_epochs=9, tolerance=0.5)


@pytest.mark.slow
def test_the_default_optimizer_averages_what_random_lengths_do_to_the_gradient(monkeypatch):
    """The control: steps that use each gradient alone follow the noise."""
    inputs = points(600, 3)
    targets = draw_targets(kernels.RBF([0.8, 1.5, 3.0]), inputs, 0.05)[:, 0].numpy()
    inputs = inputs.numpy()

    def loss(seed):
        """Return the nats below the optimum."""
        solver = solvers.ConjugateGradients(preconditioner=None, truncation=ExponentialDecay(0.1, 15))
        method = inference.Iterative(solver, gradients.Hutchinson(8), warm_start=False, n_samples=4)
        gp = GPRegressor(kernels.RBF(), method, random_state=seed).fit(inputs, targets)
        same = GPRegressor(gp.kernel_, inference.Exact(), None, noise_variance=gp.noise_variance_)
        return best - same.fit(inputs, targets).log_marginal_likelihood().value

    best = GPRegressor(kernels.RBF(), inference.Exact()).fit(inputs, targets).log_marginal_likelihood().value
    assert max(loss(seed) for seed in range(2)) < 3
    monkeypatch.setattr(type(method_objective()), "deterministic", True)
    assert max(loss(seed) for seed in range(2)) > 3


def method_objective():
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], ZeroMean(), 2**30)
    return inference.Iterative().objective(table, generator())
