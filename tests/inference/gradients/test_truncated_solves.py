"""Gradients and values from randomly truncated solves, through the objective of a fit."""

from __future__ import annotations

import pytest
import torch

from gigagp.inference import Iterative
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import Exact, Hutchinson, Pathwise
from gigagp.kernels import Matern
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.solvers import AlternatingProjections, Cholesky, ConjugateGradients, PivotedCholesky
from gigagp.solvers.truncation import ExponentialDecay, Fixed, SingleSample
from helpers import draw_targets, generator, points, within_standard_errors

X = points(60, 2)
Y = draw_targets(Matern(1.5, 1.0), X, 0.1, columns=2) + 1 + X[:, :1]
LAW, STOPPED = ExponentialDecay(0.15, 7), Fixed(7)


def model_of(mean):
    return Model(Matern(1.5, 1.0, 1.0).bind(2), resolve_mean(mean), torch.tensor(0.1, dtype=torch.float64))


def objective_of(truncation, estimator, mean="constant", preconditioner=None, warm_start=False, solver=None):
    solver = solver or ConjugateGradients(preconditioner=preconditioner, truncation=truncation)
    settings = Iterative(solver=solver, gradient=estimator, warm_start=warm_start)
    return settings.objective(TrainingTable(X, Y, resolve_mean(mean), 2**30), generator(1))


def flat(gradient):
    return torch.cat([value.reshape(-1) for value in gradient.values()])


def draws(repeats, mean="constant", **settings):
    objective, model = objective_of(mean=mean, **settings), model_of(mean)
    return torch.stack([flat(objective.evaluate(model).gradient) for _ in range(repeats)])


def exact(mean="constant"):
    return flat(ExactObjective(TrainingTable(X, Y, resolve_mean(mean), 2**30)).evaluate(model_of(mean)).gradient)


ESTIMATORS = [Hutchinson(8), Pathwise(8, prior="exact"), Pathwise(8, 100), Exact()]


@pytest.mark.few(2)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=["hutchinson", "pathwise", "features", "exact"])
@pytest.mark.parametrize("preconditioner", [None, PivotedCholesky(3)], ids=repr)
def test_every_estimator_is_unbiased_with_two_targets_and_a_trend(estimator, preconditioner):
    settings = {"estimator": estimator, "preconditioner": preconditioner}
    assert within_standard_errors(draws(100, truncation=LAW, **settings), exact())
    # Control: as many iterations as the random runs take at least.
    stopped = draws(1 if estimator == Exact() else 40, truncation=STOPPED, **settings)
    if estimator == Exact():
        assert float((stopped[0] - exact()).abs().max()) > 0.01 * float(exact().abs().max())
    else:
        assert not within_standard_errors(stopped, exact())


@pytest.mark.few(1)
@pytest.mark.parametrize("mean", ["zero", "linear"])
def test_the_mean_does_not_matter(mean):
    """Coefficients come from the unweighted iterate, in products that are accurate to second order."""
    found = draws(100, mean, truncation=LAW, estimator=Exact())
    assert within_standard_errors(found, exact(mean))
    assert not within_standard_errors(found, exact("constant"))


@pytest.mark.slow
def test_a_single_sample_is_unbiased_too_and_varies_more():
    roulette = draws(80, truncation=LAW, estimator=Exact())
    single = draws(80, truncation=SingleSample(LAW), estimator=Exact())
    assert within_standard_errors(single, exact())
    assert bool((single.std(0) > 2 * roulette.std(0)).all())


def test_the_two_lengths_of_a_trace_are_averaged():
    """Hutchinson's trace is linear in the solution, so the mean of two has the same mean and a smaller variance."""
    first, second, z = points(60, 3, seed=1), points(60, 3, seed=2), points(60, 3, seed=3)
    left, right = Hutchinson(3).trace_pair(first, z, second)
    torch.testing.assert_close(left, (first + second) / 2)
    assert right is z
    left, right = Pathwise(3).trace_pair(first, z, second)
    assert left is first
    assert right is second


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", [Hutchinson(8), Pathwise(8, prior="exact")], ids=repr)
def test_warm_starts_stay_unbiased_over_the_lengths(estimator):
    """With fixed probes, the mean is their estimate with converged solves, for all starts."""
    for warm_start in ("previous", "subspace"):
        model, objective = model_of("constant"), objective_of(LAW, estimator, warm_start=warm_start)
        objective.evaluate(model)
        assert not objective.deterministic
        right = objective._probes.right_hand_sides(model, objective.matrix(model), 2**30)
        found = []
        for _ in range(80):
            objective._warm.blocks = [0.5 * torch.cat([Y, torch.ones(60, 1), right], 1)]  # a poor start each time
            found.append(flat(objective.evaluate(model).gradient))
        finished = objective_of(None, estimator, warm_start=warm_start, solver=Cholesky())
        finished._probes = objective._probes
        expected = flat(finished.evaluate(model).gradient)
        assert within_standard_errors(torch.stack(found), expected)
        assert not within_standard_errors(torch.stack(found), exact())  # fixed probes give a single estimate


def test_values_are_unbiased_with_a_trend_and_stopped_ones_are_not():
    expected = ExactObjective(TrainingTable(X, Y, resolve_mean("linear"), 2**30)).evaluate(model_of("linear")).value
    for truncation, unbiased in ((LAW, True), (Fixed(3), False)):
        objective = objective_of(truncation, Hutchinson(8), "linear")
        values = torch.tensor([objective.value(model_of("linear")).value for _ in range(60)], dtype=torch.float64)
        assert within_standard_errors(values, expected) == unbiased
        assert objective.solves == []
    objective = objective_of(None, Hutchinson(64), "linear", solver=AlternatingProjections(tolerance=1e-8))
    estimate = objective.value(model_of("linear"))
    assert abs(estimate.value - expected) < 4 * estimate.standard_error
