"""The covariance of a sampled fit: that of the exact process given some rows, never smaller than given all rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, kernels, optimization
from gigagp.inference import Exact, QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.latent import LatentObjective, best_latent
from gigagp.inference.quadruply_stochastic.rows_covariance import RowsCovariance
from gigagp.model.likelihoods import Gaussian, Laplace, Logistic, Poisson, Probit
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, killed_before, new_trace, points, within_standard_errors

KERNEL = kernels.RBF([0.8, 0.8], 1.3).bind(2)
X, NEW = points(60, 2), torch.cat([points(30, 2, seed=1), 40 + points(5, 2, seed=2)])
Y = draw_targets(kernels.RBF([0.8, 0.8], 1.3), X, 0.1)
MODEL = Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64))
KEPT = optimization.SparseAdam(steps=100, hyper_learning_rate=0.0)


def fitted(settings, likelihood=None, Y=Y, ascent=KEPT):
    """An objective after a short ascent, and its posterior."""
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0), likelihood or Gaussian())
    model = ascent.run(objective, MODEL, new_trace(), generator(0))
    return objective, objective.posterior(model, generator(0))


def dense(A, B, curvature, rows=X):
    inner = KERNEL.block(rows, rows) + torch.diag(1 / curvature)
    return KERNEL.block(A, B) - KERNEL.block(A, rows) @ torch.linalg.solve(inner, KERNEL.block(rows, B))


def test_it_is_the_exact_process_given_the_rows(monkeypatch):
    monkeypatch.setattr("gigagp.inference.quadruply_stochastic.rows_covariance._ENTRIES", 600)  # blocks of points
    curvature = 0.5 + torch.rand(60, generator=generator(3), dtype=torch.float64)
    known = RowsCovariance(KERNEL, X, curvature)
    expected = dense(NEW, NEW, curvature)
    torch.testing.assert_close(known.covariance(NEW), expected)
    torch.testing.assert_close(known.variance(NEW), expected.diagonal())
    torch.testing.assert_close(known.variance(NEW)[30:], torch.full((5,), 1.3, dtype=torch.float64))
    values = torch.randn(60, 2, generator=generator(4), dtype=torch.float64)
    update = torch.linalg.solve(KERNEL.block(X, X) + torch.diag(1 / curvature), values)
    torch.testing.assert_close(known.update(values), update)
    torch.testing.assert_close(known.taken(NEW, update), KERNEL.block(NEW, X) @ update)
    # the divergence of two Gaussian distributions at the rows
    prior = KERNEL.block(X, X) + 1e-10 * torch.eye(60, dtype=torch.float64)
    found = dense(X, X, curvature)
    ratio = torch.linalg.solve(prior, found)
    divergence = 0.5 * float(ratio.trace() - 60 - torch.linalg.slogdet(ratio).logabsdet)
    assert known.divergence == pytest.approx(divergence, rel=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("basis", ["fourier", "inducing"])
@pytest.mark.parametrize("count", [15, 60])
def test_it_is_never_below_that_of_all_rows(basis, count):
    settings = QuadruplyStochastic(n_basis=60, basis=basis, row_batch=20, start_rows=count)
    _, posterior = fitted(settings)
    variance = posterior.mean_and_variance(NEW)[1]
    exact = dense(NEW, NEW, torch.full((60,), 5.0, dtype=torch.float64)).diagonal()
    assert bool((variance > exact - 1e-10).all())
    assert torch.allclose(variance, exact) == (count == 60)
    torch.testing.assert_close(variance[30:], torch.full((5,), 1.3, dtype=torch.float64))
    assert posterior.solver_name().endswith(f"; covariance of {count} rows")
    torch.testing.assert_close(posterior.covariance(NEW).diagonal(), variance)
    # the control: independent weights have less than a third of it far from the rows
    _, mean_field = fitted(QuadruplyStochastic(n_basis=60, basis=basis, row_batch=20, n_columns=0))
    assert float(mean_field.mean_and_variance(NEW)[1][30:].max()) < 1.3 / 3


@pytest.mark.slow
def test_who_asks_for_a_covariance_of_the_weights_gets_one():
    for settings in (
        QuadruplyStochastic(n_basis=60, row_batch=20, n_columns=0),
        QuadruplyStochastic(n_basis=60, row_batch=20, n_columns=3),
        QuadruplyStochastic(n_basis=60, row_batch=20, start_rows=0),
        QuadruplyStochastic(n_basis=60, row_batch=20, diagonal="closed_form"),
        QuadruplyStochastic(n_basis=60, basis="inducing", row_batch=20, augment=True),
        RelevanceVectorMachine(n_basis=60, row_batch=20),
    ):
        _, posterior = fitted(settings)
        assert posterior.covariance_of is None
        assert "covariance" not in posterior.solver_name()
    labels, settings = Y.sign(), QuadruplyStochastic(n_basis=60, row_batch=20)
    learned = optimization.SparseAdam(steps=20, hyper_learning_rate=1e-3)
    assert fitted(settings, Logistic(), labels, learned)[1].covariance_of is None
    assert fitted(settings, Logistic(), labels)[1].covariance_of is not None
    assert fitted(settings, ascent=learned)[1].covariance_of is not None  # at the final hyperparameters
    certified = QuadruplyStochastic(n_basis=60, row_batch=20, bound="linear")
    assert fitted(certified, Logistic(), labels)[1].covariance_of is None


LABELS = [
    (Gaussian(), lambda X: Y),
    (Logistic(), lambda X: (3 * X[:, :1]).sin().sign()),
    (Probit(), lambda X: (3 * X).sin().sign()),
    (Laplace(), lambda X: X[:, :1]),
    (Poisson(), lambda X: X[:, :1].exp().round()),
]


@pytest.mark.parametrize(("likelihood", "labels"), LABELS, ids=lambda one: getattr(one, "name", ""))
def test_with_points_at_all_rows_the_bound_is_the_best_there_is(likelihood, labels):
    """The likelihood itself where it is Gaussian; otherwise the maximum over all distributions of the latent values."""
    targets, index = labels(X), torch.arange(60)
    settings = QuadruplyStochastic(n_basis=60, basis="inducing", row_batch=20)
    objective = settings.objective(TrainingTable(X, targets, ZeroMean(), 2**28), generator(0), likelihood)
    model = objective.begin(MODEL, moves_hyperparameters=False)
    posterior = objective.current_posterior()
    posterior.estimate_bound(X, objective.state.targets, generator(0))
    K = KERNEL.block(X, X) + 1e-8 * 1.3 * torch.eye(60, dtype=torch.float64)
    noise = torch.full((60,), 0.2, dtype=torch.float64)
    if isinstance(likelihood, Gaussian):
        normal = torch.distributions.MultivariateNormal(torch.zeros(60).double(), K + torch.diag(noise))
        best = float(normal.log_prob(targets[:, 0]))
    else:
        best = best_latent(K, targets.new_zeros(60, 0), noise, targets, likelihood, 101).value
        assert LatentObjective(objective.table, likelihood, 101).evaluate(model).value == pytest.approx(best, rel=1e-4)
    assert posterior.bound.value == pytest.approx(best, rel=1e-4)
    whole = BasisSample.from_indices(index, index, 60)
    if not isinstance(likelihood, Gaussian):
        # the ascent sees the same number, and its slope is zero
        found = objective.evaluate_sample(model, index, whole)
        assert found.value == pytest.approx(best, rel=1e-4)
        assert set(found.gradient) == {"mean"}
        assert float(found.gradient["mean"].abs().max()) < 1e-3 * 60
    objective.state.weights.mean.mul_(1.1)  # the control
    posterior.estimate_bound(X, objective.state.targets, generator(0))
    assert posterior.bound.value < best - 0.01


@pytest.mark.slow
def test_samples_of_rows_and_functions_see_the_spread_of_the_rows_without_bias():
    settings = QuadruplyStochastic(n_basis=80, basis_batch=20, row_batch=20, start_rows=30)
    labels = (3 * X[:, :1]).sin().sign()
    objective = settings.objective(TrainingTable(X, labels, ZeroMean(), 2**28), generator(0), Logistic())
    model = objective.begin(MODEL, moves_hyperparameters=False)
    index = torch.arange(80)
    whole = objective.evaluate_sample(model, torch.arange(60), BasisSample.from_indices(index, index, 80))
    found = [objective.sample(model, hyperparameters=False).value for _ in range(400)]
    assert within_standard_errors(torch.tensor(found, dtype=torch.float64)[:, None], whole.value)
    latent = objective.state.basis.columns(X, index) @ objective.state.weights.mean
    std = objective.covariance_of_rows(model).variance(X).sqrt()[:, None]
    fit = float(Logistic().expected_log_density(labels, latent, std, torch.ones(60, 1).double(), 101).sum())
    mean = float(objective.state.weights.mean.square().sum())
    expected = fit - 0.5 * mean - objective.covariance_of_rows(model).divergence
    assert whole.value == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
def test_samples_have_mean_and_covariance():
    _, posterior = fitted(QuadruplyStochastic(n_basis=400, row_batch=20, start_rows=30))
    functions = posterior.sample_functions(4000, generator(1))
    there = NEW[25:35]
    drawn = functions(there)[:, 0].T
    mean, _ = posterior.mean_and_variance(there)
    assert within_standard_errors(drawn, mean[:, 0])
    covariance = posterior.covariance(there)
    products = (drawn - mean[:, 0])[:, :, None] * (drawn - mean[:, 0])[:, None, :]
    # the features of the prior add an error of one over the root of 4,000
    assert float((products.mean(0) - covariance).abs().max()) < 1.3 * (5 / 4000**0.5 + 3 / 4000**0.5)
    torch.testing.assert_close(functions(there[:3]), functions(there)[:3])


@pytest.mark.slow
def test_the_estimators_have_it_and_files_too(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 2))
    y = np.sin(4 * x[:, 0]) + 0.1 * rng.normal(size=300)
    settings = QuadruplyStochastic(n_basis=400, row_batch=50)
    gp = GPRegressor(kernels.RBF(0.5), settings, KEPT, noise_variance=0.02).fit(x, y)
    exact = GPRegressor(gp.kernel_, Exact(), None, noise_variance=gp.noise_variance_).fit(x, y)
    far = np.array([[0.0, 0.0], [0.5, -0.5], [30.0, 30.0]])
    # the start has all 300 rows, so the covariance is that of the exact process
    np.testing.assert_allclose(gp.predict(far, return_std=True)[1], exact.predict(far, return_std=True)[1], rtol=1e-5)
    gp.save(tmp_path / "m.gp")
    loaded = gigagp.load(tmp_path / "m.gp")
    for one, other in zip(gp.predict(far, return_std=True), loaded.predict(far, return_std=True), strict=True):
        assert np.array_equal(one, other)
    assert loaded.log_marginal_likelihood() == gp.log_marginal_likelihood()
    assert gp.log_marginal_likelihood().value == pytest.approx(exact.log_marginal_likelihood().value, abs=15)
    up = y > 0
    classifier = GPClassifier(kernels.RBF(0.5, 4.0), settings, KEPT).fit(x, up)
    near, away = classifier.predict_proba(np.array([[0.4, 0.0], [300.0, 300.0]]))[:, 1]
    assert near > 0.85
    mean_field = GPClassifier(
        kernels.RBF(0.5, 4.0), QuadruplyStochastic(n_basis=400, row_batch=50, n_columns=0), KEPT
    ).fit(x, up)
    other = mean_field.predict_proba(np.array([[300.0, 300.0]]))[0, 1]
    assert abs(away - 0.5) < abs(other - 0.5)


@pytest.mark.slow
def test_a_killed_classifier_goes_on_with_the_spread_of_its_rows(tmp_path):
    labels = (3 * X[:, 0]).sin().numpy() > 0
    settings = QuadruplyStochastic(n_basis=80, basis_batch=20, row_batch=20, start_rows=30)

    def fit(**call):
        return GPClassifier(kernels.RBF(1.0), settings, KEPT).fit(X.numpy(), labels, **call)

    whole = fit()
    with killed_before(60):
        fit(checkpoint=tmp_path / "fit.state")
    resumed = fit(checkpoint=tmp_path / "fit.state")
    assert np.array_equal(resumed.predict_proba(NEW.numpy()), whole.predict_proba(NEW.numpy()))
