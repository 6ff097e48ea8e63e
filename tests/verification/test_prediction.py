"""Notes on Lin et al. 2024, section 10, test 18: predictions from the solutions that training has made."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp import inference, kernels, solvers
from gigagp.errors import GigaGPWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.gradients import Pathwise
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from helpers import RecordingSolver, dense_posterior, draw_targets, generator, points

X, X_NEW, NOISE_VARIANCE = points(250, 2), points(40, 2, seed=3), 0.09
KERNEL = kernels.Matern(1.5, 1.0, 1.0).bind(2)
Y = draw_targets(KERNEL, X, NOISE_VARIANCE, seed=4)
EXACT = dense_posterior(KERNEL, X, Y, X_NEW, NOISE_VARIANCE)


def trained(tolerance, n_samples, seed=0):
    """Return the posterior after one step of training with as many probes as samples, and the solver's record."""
    solver = RecordingSolver(solvers.ConjugateGradients(tolerance=tolerance))
    settings = inference.Iterative(solver=solver, gradient=Pathwise(n_samples, 2000), n_samples=n_samples)
    model = Model(KERNEL, ZeroMean(), torch.tensor(NOISE_VARIANCE, dtype=torch.float64))
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**30), generator(seed))
    objective.evaluate(model)
    return objective.posterior(model, generator(seed)), solver


@pytest.mark.slow
def test_18_mean_and_variance_of_many_samples():
    s = 3000
    posterior, solver = trained(1e-6, s)
    calls = len(solver.calls)
    samples = posterior.update(X_NEW)[:, 0]
    mean, variance = posterior.mean_and_variance(X_NEW)
    assert len(solver.calls) == calls  # no solver call is made
    # points are correlated, features shared: four standard errors each, forty points
    deviation = EXACT.covariance.diagonal().sqrt()
    assert bool(((samples.mean(1) - EXACT.mean[:, 0]).abs() <= 4 * deviation / math.sqrt(s)).all())
    relative = variance / deviation.square() - 1
    assert float(relative.square().mean().sqrt()) < 3 * math.sqrt(2 / s) + 0.05  # 0.05: two thousand features
    torch.testing.assert_close(mean, EXACT.mean, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_18_the_relative_error_of_64_samples_is_18_percent():
    errors = []
    for seed in range(12):
        _, variance = trained(1e-4, 64, seed)[0].mean_and_variance(X_NEW, "samples")
        errors.append(variance / EXACT.covariance.diagonal() - 1)
    errors = torch.stack(errors)
    assert float(errors.square().mean().sqrt()) == pytest.approx(math.sqrt(2 / 64), rel=0.25)
    assert abs(float(errors.mean())) < 4 * float(errors.mean(1).std()) / math.sqrt(12)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-8])
def test_18_the_mean_is_right_to_the_tolerance(tolerance):
    posterior, _ = trained(tolerance, 8)
    error = (posterior.mean(X_NEW) - EXACT.mean).abs().max()
    assert float(error) < 20 * tolerance
    # at the training inputs K v = y - noise v, to the accuracy of the residual
    solved = posterior.target_solutions
    difference = posterior.mean(X) - (Y - NOISE_VARIANCE * solved)
    H = KernelMatrix(KERNEL, X, NOISE_VARIANCE)
    torch.testing.assert_close(difference, H @ solved - Y, rtol=0, atol=1e-10)
    assert float(difference.norm()) <= tolerance * float(Y.norm()) * (1 + 1e-6)


def test_18_samples_come_from_the_same_functions_as_the_right_hand_sides():
    """The control: with other prior functions than those behind the solutions the variance is far too large."""
    posterior, _ = trained(1e-6, 256)
    other, _ = trained(1e-6, 256, seed=1)
    posterior.update.prior = other.update.prior
    with pytest.warns(GigaGPWarning, match="times the prior's variance"):
        _, variance = posterior.mean_and_variance(X_NEW)
    assert float((variance / EXACT.covariance.diagonal()).mean()) > 3
