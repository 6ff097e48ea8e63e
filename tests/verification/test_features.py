"""Notes on Lin et al. 2024, section 10, tests 16 and 17: the law of the frequencies and what a wrong one does."""

from __future__ import annotations

import pytest
import torch

from gigagp import inference, kernels, optimization, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import Pathwise
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, new_trace, points


def root_mean_square_error(d, n_frequencies, law):
    """Return the error of the feature covariance on 100 normal points, lengthscale the root of d."""
    X = points(100, d)
    kernel = kernels.Matern(1.5, d**0.5, 1.0).bind(d)
    parts = 10
    total = torch.zeros(100, 100).double()
    for seed in range(parts):
        features = kernel.features(X, kernel.draw_features(2 * n_frequencies // parts, d, generator(seed), law=law))
        total += features @ features.T / parts
    return float((total - kernel.block(X, X)).square().mean().sqrt())


@pytest.mark.few(2)
@pytest.mark.parametrize("law", ["joint", "balanced"])
@pytest.mark.parametrize("d", [1, 4, 9, 17])
def test_16_the_multivariate_t_is_the_kernel(d, law):
    assert root_mean_square_error(d, 100_000, law) < 0.004
    assert root_mean_square_error(d, 1000, law) < 0.035


@pytest.mark.few(1)
@pytest.mark.parametrize(("d", "measured"), [(4, 0.069), (9, 0.116), (17, 0.149)])
def test_16_independent_coordinates_are_not(d, measured):
    many = root_mean_square_error(d, 100_000, "independent")
    assert many == pytest.approx(measured, rel=0.15)
    assert many > 0.8 * root_mean_square_error(d, 10_000, "independent")  # it does not shrink


@pytest.mark.slow
def test_17_hyperparameters_learned_with_the_right_and_the_wrong_law():
    """Cold runs: exact draws and right features end at the exact maximum, the published law below it."""
    d, steps = 9, 60
    X = points(250, d)
    lengthscale = torch.linspace(1.5, 9, d).double()
    y = draw_targets(kernels.Matern(1.5, lengthscale, 1.0), X, 0.05**2, seed=2)
    table = TrainingTable(X, (y - y.mean()) / y.std(), ZeroMean(), 2**30)
    start = Model(kernels.Matern(1.5, 1.0, 1.0).bind(d), ZeroMean(), torch.tensor(1.0, dtype=torch.float64))
    adam = optimization.Adam(0.1, steps)
    exact_objective = ExactObjective(table)
    exact = adam.run(exact_objective, start, new_trace(), generator())
    best = exact_objective.evaluate(exact).value
    gaps, noises = {}, {}
    for name, estimator in {
        "exact": Pathwise(64, prior="exact"),
        "joint": Pathwise(64, 2000, law="joint"),
        "balanced": Pathwise(64, 2000),
        "independent": Pathwise(64, 2000, law="independent"),
    }.items():
        settings = inference.Iterative(solver=solvers.Cholesky(), gradient=estimator, warm_start=False)
        model = adam.run(settings.objective(table, generator(3)), start, new_trace(), generator())
        gaps[name] = best - exact_objective.evaluate(model).value
        noises[name] = float((model.noise_variance / exact.noise_variance).sqrt())
    for name in ("exact", "joint", "balanced"):
        assert abs(gaps[name]) < 0.5, gaps
        assert noises[name] == pytest.approx(1, abs=0.1)
    assert gaps["independent"] > 3 * max(abs(gaps[name]) for name in ("exact", "joint", "balanced"))
    assert gaps["independent"] > 1.5
