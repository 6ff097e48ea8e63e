"""Posteriors against dense algebra: variances from samples, solves and a factor, and bounds on their errors."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp import inference, kernels, solvers
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.gradients import Pathwise
from gigagp.model.means import LinearMean, ZeroMean
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from helpers import (
    RecordingSolver,
    dense_posterior,
    draw_targets,
    generator,
    largest_tensor,
    points,
    within_standard_errors,
)

FINISHED = solvers.ConjugateGradients(tolerance=1e-10)


def posterior_of(method, kernel, X, Y, noise, *, seed=0, mean=None, budget=2**30):
    mean = ZeroMean() if mean is None else mean
    model = Model(kernel.bind(X.shape[1]), mean, torch.as_tensor(noise, dtype=torch.float64))
    return method.objective(TrainingTable(X, Y, mean, budget), generator(seed)).posterior(model, generator(seed + 1))


def iterative(solver=FINISHED, n_samples=64, gradient="auto"):
    return inference.Iterative(solver=solver, n_samples=n_samples, gradient=gradient)


# Variances from samples -----------------------------------------------------------------------------------------------

#: with many rows and little noise in two dimensions, the posterior varies at high frequencies only
ROUGH = kernels.Matern(1.5, 2.0, 1.0).bind(2)
X, X_NEW = points(400, 2, seed=1), points(60, 2, seed=2)
LITTLE = 1e-4


@pytest.fixture(scope="module")
def exact_variance():
    return dense_posterior(ROUGH, X, X[:, :1], X_NEW, LITTLE).covariance.diagonal()


def variance_ratios(law, exact_variance, n_draws=25, n_samples=64):
    """Return ratios of the samples' variance to the exact one, averaged over points, for independent feature draws."""
    H = ROUGH.block(X, X) + LITTLE * torch.eye(len(X))
    update = torch.linalg.solve(H, ROUGH.block(X, X_NEW))
    ratios = []
    for seed in range(n_draws):
        prior = PriorSamples.new(ROUGH, 2, n_samples, 2000, generator(seed), law=law)
        noise = math.sqrt(LITTLE) * points(len(X), n_samples, seed=1000 + seed)
        right = prior.evaluate(ROUGH, X, 2**30) + noise
        deviations = prior.evaluate(ROUGH, X_NEW, 2**30) - update.T @ right
        ratios.append((deviations.square().mean(1) / exact_variance).mean())
    return torch.stack(ratios)


def test_balanced_features_give_honest_variances(exact_variance):
    """The default law gives correct variances in the mean, and within sampling error for a single feature draw."""
    ratios = variance_ratios("balanced", exact_variance)
    assert within_standard_errors(ratios, 1.0)
    assert float(ratios.median()) == pytest.approx(1.0, abs=0.1)
    assert float(ratios.min()) > 0.7


def test_plain_features_are_overconfident(exact_variance):
    """The control: the same number of features from the spectral density itself; most draws are overconfident."""
    ratios = variance_ratios("joint", exact_variance)
    assert float(ratios.median()) < 0.75
    assert float((ratios < 0.8).double().mean()) > 0.6


def test_the_posterior_has_the_honest_variances(exact_variance):
    Y = draw_targets(ROUGH, X, LITTLE)
    found = posterior_of(iterative(n_samples=256), ROUGH, X, Y, LITTLE)
    mean, variance = found.mean_and_variance(X_NEW)
    ratio = variance / exact_variance
    # 256 samples at 60 correlated points: the error of one point bounds that of their mean; features add their own
    assert float(ratio.mean()) == pytest.approx(1.0, abs=4 * (math.sqrt(2 / 256) / math.sqrt(10) + 0.075))
    assert float((ratio - 1).square().mean().sqrt()) < 2.5 * math.sqrt(2 / 256)
    torch.testing.assert_close(mean, dense_posterior(ROUGH, X, Y, X_NEW, LITTLE).mean, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_variances_of_several_samplings_average_to_the_exact_ones(exact_variance):
    """Through the whole posterior, with new features each time, a white part and several targets."""
    kernel = kernels.Matern(1.5, 1.0) + kernels.Linear(0.3) + kernels.White(0.1)
    rows, new = X[:80], X_NEW[:5]
    Y = draw_targets(kernel, rows, 0.05, columns=2)
    exact = dense_posterior(kernel, rows, Y, new, 0.05)
    found = torch.stack(
        [
            posterior_of(iterative(n_samples=8), kernel, rows, Y, 0.05, seed=10 * seed).mean_and_variance(new)[1]
            for seed in range(60)
        ]
    )
    assert within_standard_errors(found, exact.covariance.diagonal())
    assert not within_standard_errors(found, 1.3 * exact.covariance.diagonal())


def test_the_error_of_a_likelihood_is_that_of_all_targets():
    """Targets share one determinant, so their errors add up and do not average out."""
    rows = X[:120]
    Y = draw_targets(ROUGH, rows, 0.05)
    one, two = (
        posterior_of(iterative(n_samples=4), ROUGH, rows, targets, 0.05).log_marginal_likelihood(generator(3))
        for targets in (Y, torch.cat([Y, Y], 1))
    )
    assert one.standard_error > 0
    assert two.standard_error == pytest.approx(2 * one.standard_error, rel=1e-6)
    assert two.value == pytest.approx(2 * one.value, rel=1e-3)


@pytest.mark.slow
def test_samples_have_the_posterior_covariance():
    rows, new = X[:60], X_NEW[:4]
    Y = draw_targets(ROUGH, rows, 0.05)
    exact = dense_posterior(ROUGH, rows, Y, new, 0.05)
    for method in (iterative(n_samples=8), inference.Exact()):
        products = []
        for seed in range(100):
            posterior = posterior_of(method, ROUGH, rows, Y, 0.05, seed=seed)
            samples = posterior.sample_functions(8, generator(seed))(new)[:, 0, :] - exact.mean
            products.append((samples @ samples.T) / 8)
        assert within_standard_errors(torch.stack(products), exact.covariance)
        assert not within_standard_errors(torch.stack(products), 0.7 * exact.covariance)


@pytest.mark.parametrize("method", [iterative(n_samples=600), inference.Exact()], ids=["iterative", "exact"])
def test_samples_of_several_targets_are_independent(method):
    rows, new = X[:60], X_NEW[:3]
    Y = draw_targets(ROUGH, rows, 0.05, columns=2)
    posterior = posterior_of(method, ROUGH, rows, Y, 0.05)
    samples = posterior.sample_functions(300, generator(3))(new) - posterior.mean(new)[:, :, None]
    assert samples.shape == (3, 2, 300)
    assert within_standard_errors((samples[:, 0] * samples[:, 1]).T, 0.0)
    assert not within_standard_errors((samples[:, 0] * samples[:, 0]).T, 0.0)
    assert posterior.sample_functions(350, generator(3))(new).shape == (3, 2, 350)  # more than are stored


@pytest.mark.parametrize(
    "method",
    [inference.Exact(), iterative(), inference.ComputationAware(n_actions=20)],
    ids=["exact", "iterative", "computation-aware"],
)
def test_samples_have_their_own_coefficients_of_the_mean(method):
    """They are folded into the solutions; the definition adds the root of their covariance times the same draws."""
    rows, new = points(60, 2, seed=4), points(9, 2, seed=5)
    targets = draw_targets(ROUGH, rows, 0.1, columns=2)
    posterior = posterior_of(method, ROUGH, rows, targets, 0.1, mean=LinearMean())
    folded = posterior.sample_functions(5, generator(6))(new)
    by_definition = Posterior.sample_functions(posterior, 5, generator(6))(new)
    torch.testing.assert_close(folded, by_definition, rtol=1e-7, atol=1e-7)
    given_trend = posterior.sample_functions_given_trend(5, generator(6))(new)  # the control
    assert float((folded - given_trend).abs().max()) > 1e-3


def test_the_settings_of_the_features_reach_the_posterior():
    rows = X[:50]
    given = Pathwise(n_probes=4, n_features=60, law="joint", prior="exact")
    posterior = posterior_of(iterative(n_samples=8, gradient=given), ROUGH, rows, rows[:, :1], 0.1)
    assert (posterior.update.prior.draw.n_features, posterior.update.prior.draw.law) == (60, "joint")
    more = posterior.sample_functions(20, generator())
    assert (more.prior.draw.n_features, more.prior.draw.law) == (60, "joint")


# Variances and covariances from solves --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [iterative(), inference.Exact()], ids=["iterative", "exact"])
def test_covariances_and_variances_are_those_of_dense_algebra(method):
    kernel = kernels.RBF([1.0, 2.0], 1.5) + kernels.White(0.2)
    rows, new = X[:120], torch.cat([X_NEW[:20], X[:5]])
    Y = draw_targets(kernel, rows, 0.1, columns=2)
    exact = dense_posterior(kernel, rows, Y, new, 0.1)
    posterior = posterior_of(method, kernel, rows, Y, 0.1)
    mean, variance = posterior.mean_and_variance(new, method="solve")
    torch.testing.assert_close(mean, exact.mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(variance, exact.covariance.diagonal(), rtol=0, atol=1e-7)
    torch.testing.assert_close(posterior.covariance(new), exact.covariance, rtol=0, atol=1e-7)


UNFINISHED = [
    solvers.ConjugateGradients(tolerance=1e-12, max_epochs=1, preconditioner=None),
    solvers.ConjugateGradients(tolerance=1e-12, max_epochs=5, preconditioner=None),
    solvers.ConjugateGradients(tolerance=0.5),
    solvers.AlternatingProjections(block_size=30, tolerance=1e-12, max_epochs=2, partition="contiguous", coarse_rank=0),
    solvers.StochasticGradientDescent(batch_size=50, tolerance=1e-12, max_epochs=3),
]


@pytest.mark.parametrize("solver", UNFINISHED, ids=lambda s: f"{type(s).__name__} {s.max_epochs:g} {s.tolerance:g}")
@pytest.mark.filterwarnings("ignore::gigagp.errors.SolverWarning")
def test_unfinished_solves_give_too_much_variance_never_too_little(solver):
    """The covariance of predicting f(X*) by S' y, for any S: exact plus that of the error, positive semi-definite."""
    rows, new = X[:200], X_NEW[:30]
    Y = draw_targets(ROUGH, rows, 0.01)
    exact = dense_posterior(ROUGH, rows, Y, new, 0.01).covariance
    posterior = posterior_of(iterative(solver), ROUGH, rows, Y, 0.01)
    excess = torch.linalg.eigvalsh(posterior.covariance(new) - exact)
    assert float(excess.min()) > -1e-8
    assert float(excess.max()) > 1e-6  # the solves did not converge
    _, variance = posterior.mean_and_variance(new, method="solve")
    assert bool((variance >= exact.diagonal() - 1e-8).all())


def test_plugging_in_an_unfinished_solve_would_not_be_honest():
    """The control: k** - k' s for s from an unfinished solve can be below the exact variance, and even negative."""
    rows, new = X[:200], X_NEW[:30]
    cross = ROUGH.block(rows, new)
    H = ROUGH.block(rows, rows) + 0.01 * torch.eye(200)
    exact = dense_posterior(ROUGH, rows, rows[:, :1], new, 0.01).covariance.diagonal()
    overshot = 1.05 * torch.linalg.solve(H, cross)
    naive = ROUGH.diagonal(new) - (cross * overshot).sum(0)
    assert bool((naive < exact - 1e-8).any())
    honest = ROUGH.diagonal(new) - (overshot * (2 * cross - H @ overshot)).sum(0)
    assert bool((honest >= exact - 1e-12).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", [kernels.RBF(2.0, 1.0), kernels.Matern(0.5, 1.0, 1.0), kernels.Linear(1.0)])
@pytest.mark.filterwarnings("ignore::gigagp.errors.SolverWarning")
def test_variances_are_never_negative(kernel, dtype):
    """With little noise, at training rows, where the variance is zero up to rounding."""
    rows = X[:150].to(dtype)
    noise = 1e-8 if dtype == torch.float64 else 1e-4
    for method in (inference.Exact(), inference.Iterative(solver=solvers.ConjugateGradients(tolerance=1e-3))):
        posterior = posterior_of(method, kernel, rows, rows[:, :1], noise)
        for how in ("auto", "samples", "solve"):
            variance = posterior.mean_and_variance(torch.cat([rows[:20], X_NEW]).to(posterior.dtype), method=how)[1]
            assert variance.dtype == posterior.dtype
            assert bool((variance >= 0).all())


# What costs a solve and what does not ---------------------------------------------------------------------------------


def test_predictions_cost_no_solve():
    rows, Y = X[:100], X[:100, :1]
    solver = RecordingSolver(FINISHED)
    posterior = posterior_of(iterative(solver, n_samples=16), ROUGH, rows, Y, 0.1)
    assert len(solver.calls) == 1
    posterior.mean(X_NEW)
    posterior.mean_and_variance(X_NEW)
    posterior.sample_functions(16, generator())(X_NEW)
    assert len(solver.calls) == 1
    for costly in (
        lambda: posterior.mean_and_variance(X_NEW, method="solve"),
        lambda: posterior.covariance(X_NEW),
        lambda: posterior.sample_functions(17, generator()),
    ):
        before = len(solver.calls)
        costly()
        assert len(solver.calls) == before + 1


@pytest.mark.parametrize("reuse", [True, False])
def test_the_last_solve_starts_from_training(reuse):
    """Frozen pathwise probes are used again if there are enough; otherwise new ones are drawn for more samples."""
    rows = X[:100]
    Y = draw_targets(ROUGH, rows, 0.1)
    solver = RecordingSolver(FINISHED)
    settings = iterative(solver, n_samples=8, gradient=Pathwise(n_probes=8 if reuse else 3))
    model = Model(ROUGH, ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
    objective = settings.objective(TrainingTable(rows, Y, ZeroMean(), 2**30), generator())
    objective.evaluate(model)
    posterior = objective.posterior(model, generator(1))
    first, last = solver.calls
    assert posterior.n_samples == 8
    if reuse:
        assert torch.equal(first.right_hand_sides, last.right_hand_sides)
        assert last.solution.iterations == 0
    else:
        assert last.right_hand_sides.shape[1] == 1 + 8
        assert last.initial is not None  # the solutions for the targets are known
        assert float(last.initial.residual[:, 0].norm()) < 1e-8 * float(Y.norm())


def test_the_likelihood_finishes_what_the_solve_left_undone():
    """``2 r'v - v'Hv`` of an unfinished solve is too small by ``e'He``, which the standard error does not include."""
    rows = X[:150]
    Y = draw_targets(ROUGH, rows, 0.05) * 5
    exact = dense_posterior(ROUGH, rows, Y, X_NEW, 0.05).log_likelihood
    H = ROUGH.block(rows, rows) + 0.05 * torch.eye(150)
    posterior = posterior_of(iterative(), ROUGH, rows, Y, 0.05)
    value, standard_error = posterior.log_marginal_likelihood(generator(2))
    assert abs(value - exact) <= 4 * standard_error + 0.01
    solved = posterior.target_solutions
    error = 1e-2 * solved.norm() / 150**0.5 * points(150, 1, seed=6)
    posterior.target_solutions = solved - error
    moved = posterior.log_marginal_likelihood(generator(2)).value
    assert abs(moved - value) <= 0.01
    assert 0.5 * float((error * (H @ error)).sum()) > 0.5  # the control: the error without this


@pytest.mark.slow
def test_nothing_of_the_size_of_all_pairs_is_allocated_for_predictions():
    rows, Y = X, draw_targets(ROUGH, X, 0.1)
    method = iterative(n_samples=8, gradient=Pathwise(n_features=100))
    posterior = posterior_of(method, ROUGH, rows, Y, 0.1, mean=LinearMean(), budget=2**21)
    many = points(5000, 2, seed=8)
    with largest_tensor() as spy:
        posterior.mean_and_variance(many)
        posterior.sample_functions(8, generator())(many)
    assert spy.elements * 8 <= 2**21  # all pairs would take 2**24
