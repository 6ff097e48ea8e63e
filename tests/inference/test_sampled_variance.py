"""Variances from posterior samples and nearest neighbours together."""

from __future__ import annotations

import pytest
import torch

from engines import needs_extension
from gigagp import gradients, inference, kernels, solvers
from gigagp.errors import GigaGPWarning
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative.sampled_variance import (
    error_with_neighbours,
    variance_from_samples,
    variance_from_samples_and_neighbours,
)
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import dense_posterior, draw_targets, generator, points, reference_block, reference_matrix

KERNEL = kernels.Matern(1.5, [0.5, 0.9], 1.3).bind(2)
TABLES = {
    "Gaussian": lambda n: points(n, 2),
    "clumps": lambda n: torch.cat([points(n - n // 3, 2), 1e-2 * points(n // 3, 2, seed=1) + 2.0]),
    "duplicates": lambda n: points(n // 2, 2).repeat(2, 1),
    "a gap": lambda n: points(n, 2) + torch.tensor([3.0, 0.0]) * torch.sign(points(n, 1, seed=3)),
    "one far row": lambda n: torch.cat([points(n - 1, 2), torch.full((1, 2), 1e4, dtype=torch.float64)]),
}
NEW = torch.cat([points(30, 2, seed=2), torch.tensor([[9.0, -9.0], [2.0, 2.0]], dtype=torch.float64)])
TIGHT = solvers.ConjugateGradients(tolerance=1e-10, max_epochs=2000)


def posterior(X, noise, n_samples, seed=0):
    Y = draw_targets(KERNEL, X, noise)
    model = Model(KERNEL, ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))
    probes = gradients.Pathwise(n_samples)
    settings = inference.Iterative(solver=TIGHT, gradient=probes, n_samples=n_samples)
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(seed))
    return objective.posterior(model, generator(seed)), Y


def simulated(ratio, s, m=20_000):
    """Deviations and differences of m points whose neighbours leave the variance 1 and the rows leave ``ratio``."""
    return ratio**0.5 * points(m, s), (1 - ratio) ** 0.5 * points(m, s, seed=1), torch.ones(m, dtype=torch.float64)


@pytest.mark.parametrize("ratio", [0.05, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("s", [16, 64])
def test_the_combination_is_more_certain_than_either_part(ratio, s):
    """Its mean squared error is at most that of the best average of both estimates, up to its weights' own errors."""
    deviations, differences, bound = simulated(ratio, s)
    found = variance_from_samples_and_neighbours(deviations, differences, bound, 2 * bound)
    assert bool(((found >= 0) & (found <= bound)).all())
    best = 2 / s * (ratio * (1 - ratio)) ** 2 / (ratio**2 + (1 - ratio) ** 2)
    assert float((found - ratio).square().mean()) < 1.35 * best + 1e-12
    alone = float((variance_from_samples(deviations, 10 * bound) - ratio).square().mean())
    assert float((found - ratio).square().mean()) < 1.15 * alone
    assert abs(float(found.mean()) - ratio) < 2 / s  # its bias is of second order


@pytest.mark.parametrize("ratio", [0.05, 0.5, 0.95])
def test_the_stated_error_is_the_true_one(ratio):
    deviations, differences, bound = simulated(ratio, 64)
    found = variance_from_samples_and_neighbours(deviations, differences, bound, 2 * bound)
    true = float((found / ratio - 1).square().mean().sqrt())
    stated = float(error_with_neighbours(deviations, differences).square().mean().sqrt())
    assert stated == pytest.approx(true, rel=0.15)


@pytest.mark.few(1)
@needs_extension
@pytest.mark.parametrize(("lengthscale", "noise", "enough"), [(0.3, 1e-3, True), (10.0, 3.0, False)])
def test_samples_are_added_where_neighbours_do_not_help(lengthscale, noise, enough):
    """A smooth function under much noise is an average of all rows, of which neighbours are a small part."""
    X, kernel = points(1000, 2), kernels.Matern(1.5, lengthscale).bind(2)
    model = Model(kernel, ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))
    Y = draw_targets(kernel, X, noise)
    few, found = (
        inference.Iterative(n_samples=s)
        .objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator())
        .posterior(model, generator())
        for s in (16, "auto")
    )
    wanted = (2 / 64) ** 0.5
    assert (few.variance_error <= wanted) == enough
    assert (found.n_samples == 16) == enough
    assert found.variance_error < 1.1 * wanted
    assert "standard error between rows" in found.notes()["variances"]
    assert found.update.probe_solutions.shape == found.probe_values.shape
    assert torch.equal(found.update.probe_solutions[:, :16], few.update.probe_solutions)
    exact = dense_posterior(kernel, X, Y, NEW[:30], noise, ZeroMean().basis)
    errors = [
        float((p.mean_and_variance(NEW[:30])[1] / exact.covariance.diagonal() - 1).square().mean().sqrt())
        for p in (few, found)
    ]
    assert errors[1] < 2 * wanted
    residual = found.matrix() @ found.update.probe_solutions - found.probe_values
    assert float((residual.norm(dim=0) / found.probe_values.norm(dim=0)).max()) < 0.02


def test_samples_without_deviation_or_difference_leave_the_ends_of_the_range():
    none, some = torch.zeros(3, 4, dtype=torch.float64), points(3, 4)
    bound = torch.tensor([1e-300, 1.0, 1e300], dtype=torch.float64)
    some = some * bound.sqrt()[:, None]
    prior = 100 * bound
    assert torch.equal(variance_from_samples_and_neighbours(some, none, bound, prior), bound)
    assert torch.equal(variance_from_samples_and_neighbours(none, some, bound, prior), 0 * bound)
    assert torch.equal(variance_from_samples_and_neighbours(none, none, bound, prior), bound)


def test_wrong_samples_warn_and_leave_the_prior():
    deviations, differences, bound = simulated(0.5, 16, m=3)
    deviations[1] *= 1e3
    with pytest.warns(GigaGPWarning, match="times the prior's variance, at 1 of 3 points"):
        found = variance_from_samples_and_neighbours(deviations, differences, bound, 2 * bound)
    assert float(found[1]) == 2.0
    assert bool((found[[0, 2]] <= 1).all())


@needs_extension
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
@pytest.mark.parametrize("noise", [1e-3, 0.3])
def test_differences_of_predictions_account_for_what_neighbours_leave_too_much(table, noise):
    """``v = D - E[d^2]`` by dense algebra: ``d = (w - H^-1 k)' xi`` with ``xi ~ N(0, H)``."""
    X = table(150)
    found, Y = posterior(X, noise, 4)
    found.neighbours.n_neighbours = 3
    local = found.neighbours.weights(NEW)
    weights = torch.zeros(len(X), len(NEW), dtype=torch.float64)
    for row, chosen in enumerate(local.rows):
        weights[chosen] = (local.weights * (local.places == row)).sum(1)
    H = reference_matrix(KERNEL, X, noise)
    gap = weights - torch.linalg.solve(H, reference_block(KERNEL, X, NEW))
    removed = (gap * (H @ gap)).sum(0)
    exact = dense_posterior(KERNEL, X, Y, NEW, noise).covariance.diagonal()
    assert torch.allclose(local.variance - removed, exact, rtol=1e-7, atol=1e-10)
    assert float((removed / local.variance).max()) > 0.05  # neighbours alone would be wrong
    values = found.probe_values  # the stored values are those that the stored solutions belong to
    assert torch.allclose(H @ found.update.probe_solutions, values, atol=1e-6)


@pytest.mark.slow
@needs_extension
@pytest.mark.few(1)
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES.keys())
def test_sixteen_samples_with_neighbours_are_as_certain_as_sixty_four_without(table):
    X = table(300)
    errors = {"auto": [], "samples": []}
    for seed in range(6):
        for method, count in (("auto", 16), ("samples", 64)):
            found, Y = posterior(X, 0.01, count, seed)
            exact = dense_posterior(KERNEL, X, Y, NEW, 0.01).covariance.diagonal()
            ratio = found.mean_and_variance(NEW, method)[1] / exact
            errors[method].append(float((ratio.log().square()).mean()))
    assert sum(errors["auto"]) < sum(errors["samples"])


def test_variances_do_not_depend_on_which_points_are_predicted_together():
    found, _ = posterior(points(200, 2), 0.1, 8)
    whole = found.mean_and_variance(NEW)[1]
    parts = torch.cat([found.mean_and_variance(block)[1] for block in NEW.split(7)])
    assert torch.allclose(whole, parts, rtol=1e-9)


@pytest.mark.parametrize(
    "kernel", [KERNEL, (KERNEL * kernels.Cosine(period=9.0)).bind(2)], ids=["compiled", "samples alone"]
)
def test_an_unfinished_solve_is_part_of_the_variance(kernel):
    """A prediction of a solve that stopped early has the mean square of its residual added to its variance."""
    X = points(200, 2)
    noise, Y = 0.1, 3 * draw_targets(KERNEL, X, 0.1)  # larger than the samples, which have residuals of their own
    model = Model(kernel, ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))
    early = solvers.ConjugateGradients(max_epochs=2, preconditioner=None)
    settings = inference.Iterative(solver=early, gradient=gradients.Pathwise(8, 200), n_samples=8)
    with pytest.warns(Warning, match="stopped before their tolerance"):
        found = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator()).posterior(model, generator())
    residual = float(found.final_solve.relative_residual_targets * Y.norm() / 200**0.5)
    assert residual > 0.05
    assert float(found.mean_and_variance(NEW)[1].min()) >= residual**2 * (1 - 1e-6)
    assert float(found.mean_and_variance(NEW, "samples")[1].max()) < residual**2  # the control
