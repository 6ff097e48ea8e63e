"""Predictions in blocks against dense algebra, the bound, augmentation, model files, and the estimator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.errors import InvalidInputError
from gigagp.estimators import checkpoint
from gigagp.inference import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic import posterior as posterior_module
from gigagp.inference.quadruply_stochastic.weights import Weights
from gigagp.kernels import RBF
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from helpers import dense_posterior, draw_targets, generator, largest_tensor, points, within_standard_errors
from inference.quadruply_stochastic.reference import sampled
from weight_bounds import exact_weights, log_evidence

X, NEW = points(40, 2), points(30, 2, seed=1)
KERNEL = RBF([0.8, 1.4], 1.3).bind(2)
Y = draw_targets(RBF([0.8, 1.4], 1.3), X, 0.1, columns=2)


def exact_posterior(settings, *, Y=Y, X=X, kernel=KERNEL, noise=0.2, mean=None, root=True):
    """A posterior with the exact weights, where full batches would end."""
    table = TrainingTable(X, Y, mean or ZeroMean(), 2**28)
    objective = sampled(settings.objective(table, generator(0), Gaussian()))
    model = objective.begin(Model(kernel, table.mean, torch.tensor(noise, dtype=torch.float64)))
    index = torch.arange(objective.state.basis.size)
    Phi, S = objective.state.basis.columns(X, index), objective.state.basis.prior_block(index, index)
    found = [exact_weights(Phi, S, one, noise) for one in objective.state.targets.T]
    weights = objective.state.weights
    weights.mean.copy_(torch.stack([mean for mean, _ in found], 1))
    if root:
        exact = found[0][1]
        weights.log_scale.copy_(exact.diagonal().log())
        weights.columns.copy_(exact)
    else:
        weights.log_scale.copy_(-0.5 * (Phi.square().sum(0) / noise + S.diagonal()).log())
    made = objective.posterior(model, generator(0))
    return made, (Phi, S, objective)


def test_with_the_full_root_it_is_the_exact_posterior_and_evidence(monkeypatch):
    monkeypatch.setattr(posterior_module, "_CPU_ENTRIES", 512)  # many blocks of rows and functions
    settings = QuadruplyStochastic(n_basis=24, n_columns=24)
    posterior, (Phi, S, _) = exact_posterior(settings, mean=ConstantMean())
    index = torch.arange(24)
    features = posterior.basis.columns(NEW, index)
    H = Phi @ torch.linalg.solve(S, Phi.T) + 0.2 * torch.eye(40, dtype=torch.float64)
    trend = torch.linalg.solve(H, Y).sum(0) / torch.linalg.inv(H).sum()
    residual = Y - trend
    P = torch.linalg.inv(Phi.T @ Phi / 0.2 + S)
    mean, variance = posterior.mean_and_variance_given_trend(NEW)
    torch.testing.assert_close(mean, trend + features @ (P @ Phi.T @ residual / 0.2))
    covariance = features @ P @ features.T
    torch.testing.assert_close(variance, covariance.diagonal())
    torch.testing.assert_close(posterior.mean(NEW), mean)
    torch.testing.assert_close(posterior.covariance_given_trend(NEW), covariance)
    root = posterior.trend_root(NEW)
    torch.testing.assert_close(posterior.covariance(NEW), covariance + root @ root.T)
    assert float(root.abs().min()) > 0
    value, error = posterior.log_marginal_likelihood(generator())
    assert error == 0.0
    assert value == pytest.approx(sum(log_evidence(Phi, S, one, 0.2) for one in residual.T), rel=1e-10)
    samples = posterior.sample_functions_given_trend(2000, generator(1))(NEW[:4])
    assert samples.shape == (4, 2, 2000)
    assert within_standard_errors(samples[:, 0].T, mean[:4, 0])
    spread = samples[:, 1].T - mean[:4, 1]
    assert within_standard_errors(spread[:, :, None] * spread[:, None, :], covariance[:4, :4])


def test_mean_field_and_chevron_variances_are_those_of_their_root():
    for n_columns in (0, 3):
        settings = QuadruplyStochastic(n_basis=24, n_columns=n_columns)
        posterior, _ = exact_posterior(settings, root=False)
        if n_columns:
            posterior.weights.columns.copy_(torch.randn(24, 3, generator=generator(2), dtype=torch.float64))
        index = torch.arange(24)
        spread = posterior.basis.columns(NEW, index) @ posterior.weights.root()
        torch.testing.assert_close(posterior.mean_and_variance(NEW)[1], spread.square().sum(1))
        torch.testing.assert_close(posterior.covariance(NEW), spread @ spread.T)
        assert bool((posterior.weights.root().triu(1) == 0).all())
        rows = torch.tensor([1, 20, 0])
        if n_columns:
            torch.testing.assert_close(posterior.weights.root_rows(rows), posterior.weights.root()[rows][:, :3])


def test_the_bound_of_a_large_table_has_a_standard_error():
    x = points(2000, 2)
    y = draw_targets(KERNEL, x[:200], 0.2).repeat(10, 1)
    posterior, (_, _, objective) = exact_posterior(
        QuadruplyStochastic(n_basis=24), X=x[:200].repeat(10, 1), Y=y, root=False
    )
    value, error = posterior.log_marginal_likelihood(generator())
    index = torch.arange(24)
    from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample

    whole = objective.evaluate_sample(posterior.model, torch.arange(2000), BasisSample.from_indices(index, index, 24))
    assert error > 0
    assert abs(value - whole.value) < 4 * error


def test_inducing_points_at_the_rows_give_the_exact_mean():
    """T10: and with the full root and the rest of the prior, the exact variance."""
    posterior, _ = exact_posterior(QuadruplyStochastic(n_basis=40, n_columns=40, basis="inducing"), Y=Y[:, :1])
    exact = dense_posterior(KERNEL, X, Y[:, :1], NEW, 0.2)
    torch.testing.assert_close(posterior.mean(NEW), exact.mean, rtol=0, atol=1e-5)
    cross = KERNEL.block(NEW, posterior.basis.points)
    K = KERNEL.block(posterior.basis.points, posterior.basis.points)
    left = 1.3 - (cross * torch.linalg.solve(K + 1.3e-8 * torch.eye(40), cross.T).T).sum(1)
    variance = posterior.mean_and_variance(NEW)[1]
    torch.testing.assert_close(variance + left, exact.covariance.diagonal(), rtol=0, atol=1e-5)
    assert posterior.log_marginal_likelihood(generator()).value == pytest.approx(exact.log_likelihood, abs=1e-4)


def test_augmented_variances_have_the_golden_numbers():
    """T10."""
    x, new = torch.tensor([[0.0], [1.0]]).double(), torch.tensor([[2.0], [30.0]]).double()
    kernel = RBF([1.0], 1.0).bind(1)
    found = {}
    for name, settings in {
        "mean-field": QuadruplyStochastic(n_basis=2, basis="inducing", augment=True),
        "full": QuadruplyStochastic(n_basis=2, basis="inducing", augment=True, n_columns=2),
    }.items():
        made, _ = exact_posterior(settings, X=x, Y=x * 0, kernel=kernel, noise=0.1, root=name == "full")
        augmented = made.mean_and_variance(new)[1]
        torch.testing.assert_close(made.covariance(new).diagonal(), augmented)
        made.augment = False
        found[name] = made.mean_and_variance(new)[1], augmented
    assert float(found["mean-field"][0][0]) == pytest.approx(0.0263097274, abs=1e-7)
    assert float(found["mean-field"][1][0]) == pytest.approx(0.2319884850, abs=1e-7)
    assert float(found["full"][0][0]) == pytest.approx(0.0672116352, abs=1e-7)
    assert float(found["full"][1][0]) == pytest.approx(0.0672116352 + 0.2056787576, abs=1e-7)
    for plain, augmented in found.values():  # far away: nothing, and the prior
        assert float(plain[1]) == pytest.approx(0, abs=1e-12)
        assert float(augmented[1]) == pytest.approx(1)


def test_predictions_are_made_in_blocks():
    table = TrainingTable(X, Y, ZeroMean(), 2**24)
    objective = QuadruplyStochastic(n_basis=50_000, basis_batch=500).objective(table, generator(0))
    objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64)))
    posterior = objective.current_posterior()
    with largest_tensor() as spy:
        posterior.mean_and_variance(NEW)
    assert spy.elements <= 2**24 // 64 + 64


# The estimator ------------------------------------------------------------------------------------------------------


def table_of(n=300, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, 2))
    return x, np.sin(4 * x[:, 0]) + x[:, 1] + 0.1 * rng.normal(size=n)


QUICK = optimization.SparseAdam(0.05, steps=300)


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:Squared errors of the latent function")  # of few steps
@pytest.mark.parametrize(
    "settings",
    [
        QuadruplyStochastic(n_basis=200, basis_batch=50, row_batch=100, n_support=30, n_columns=3),
        QuadruplyStochastic(n_basis=100, basis="inducing", basis_batch=50, row_batch=100, augment=True),
        QuadruplyStochastic(n_basis=64, basis="grid", row_batch=250, diagonal="closed_form"),
        RelevanceVectorMachine(n_basis=150, basis_batch=75),
    ],
    ids=("fourier", "inducing", "grid", "relevance"),
)
def test_the_regressor_fits_predicts_and_comes_back_from_a_file(settings, tmp_path):
    x, y = table_of()
    gp = GPRegressor(RBF([0.5, 1.0], 1.0), settings, QUICK, noise_variance=0.02).fit(x[:250], y[:250])
    mean, std = gp.predict(x[250:], return_std=True, include_noise=True)
    # 300 steps are few; all rows at once end at the noise, see test_whole.py
    assert np.sqrt(np.mean((mean - y[250:]) ** 2)) < 0.25 * y.std()
    assert bool((std > 0).all())
    assert gp.history_.to_dict()["objective"][-1] > gp.history_.to_dict()["objective"][1]
    assert "quadruply stochastic" in gp.describe() or "relevance" in gp.describe()
    assert np.isfinite(gp.log_marginal_likelihood().value)
    again = GPRegressor(RBF([0.5, 1.0], 1.0), settings, QUICK, noise_variance=0.02).fit(x[:250], y[:250])
    assert np.array_equal(again.predict(x[250:]), mean)
    gp.save(tmp_path / "m.gp")
    loaded = gigagp.load(tmp_path / "m.gp")
    for one, other in zip(gp.predict(x[250:], return_std=True), loaded.predict(x[250:], return_std=True), strict=True):
        assert np.array_equal(one, other)
    assert loaded.inference_ == settings
    assert loaded.log_marginal_likelihood() == gp.log_marginal_likelihood()


@pytest.mark.slow
def test_without_an_optimizer_the_weights_are_learned_and_the_hyperparameters_kept(monkeypatch):
    x, y = table_of(120)
    monkeypatch.setattr(
        "gigagp.inference.quadruply_stochastic.sampled.SparseAdam", lambda **given: replace(QUICK, **given)
    )
    settings = QuadruplyStochastic(n_basis=60, row_batch=128)
    gp = GPRegressor(RBF([0.5, 1.0], 1.0), settings, None, noise_variance=0.02).fit(x, y)
    assert gp.kernel_ == RBF([0.5, 1.0], 1.0).bind(2)
    assert np.sqrt(np.mean((gp.predict(x) - y) ** 2)) < 0.2


def test_a_posterior_runs_no_optimizer(monkeypatch):
    """Weights that no optimizer has learned are learned by a step of their own, which a fit takes first."""
    taken = []
    monkeypatch.setattr(
        "gigagp.inference.quadruply_stochastic.sampled.SparseAdam",
        lambda **given: taken.append(1) or replace(QUICK, steps=5, **given),
    )
    settings = QuadruplyStochastic(n_basis=60, row_batch=10)
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0))
    model = Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64))
    assert objective.current_posterior() is None
    with pytest.raises(RuntimeError, match="no state before begin"):
        objective.posterior(model, generator(0))
    assert not taken
    objective.learn_remaining(model, generator(0))
    assert len(taken) == 1
    found = objective.posterior(model, generator(0))
    objective.learn_remaining(model, generator(0))  # there is nothing left to learn at this model
    assert len(taken) == 1
    assert found.weights is objective.state.weights


@pytest.mark.slow
def test_auto_starts_from_the_likelihood_of_a_few_rows(monkeypatch):
    x = table_of(400)[0]
    y = np.sin(4 * x[:, 0]) + np.cos(5 * x[:, 1]) + 0.3 * np.random.default_rng(1).normal(size=400)
    monkeypatch.setattr(
        "gigagp.inference.quadruply_stochastic.sampled.MinibatchObjective.own_optimizer", lambda self: QUICK
    )
    gp = GPRegressor(inference=QuadruplyStochastic(n_basis=400, row_batch=128)).fit(x, y)
    stages = gp.history_.to_dict()["stage"]
    assert stages[0].startswith("subset")
    assert stages[-1] == "sparse"
    # the residuals of 400 targets are no larger than their noise of 0.3, up to four standard errors
    assert np.sqrt(np.mean((gp.predict(x) - y) ** 2)) < 0.3 * (1 + 4 / np.sqrt(2 * 400))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
def test_a_sampled_fit_takes_its_hyperparameters_from_the_likelihood_and_not_from_the_bound():
    """The bound of independent weights counts as noise what it cannot explain."""
    x, y = table_of(400)
    settings = QuadruplyStochastic(n_basis=400, row_batch=60)
    likely = GPRegressor(kernels.Matern(nu=1.5)).fit(x, y)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=settings).fit(x, y)
    stages = gp.history_.to_dict()["stage"]
    assert "likelihood, 400 rows" in stages
    assert "sparse" in stages[-1]
    assert gp.noise_variance_ == pytest.approx(likely.noise_variance_, rel=0.1)
    whole = GPRegressor(gp.kernel_, QuadruplyStochastic(n_basis=400), None, noise_variance=gp.noise_variance_).fit(x, y)
    assert np.sqrt(np.mean((gp.predict(x) - whole.predict(x)) ** 2)) < 0.03 * y.std()
    ascent = optimization.SparseAdam(steps=1500, hyper_learning_rate=0.01)
    together = GPRegressor(likely.kernel_, settings, ascent, noise_variance=likely.noise_variance_).fit(x, y)
    assert together.noise_variance_ > 1.5 * likely.noise_variance_  # the control


@pytest.mark.slow
def test_a_killed_fit_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    x, y = table_of(100)
    settings = QuadruplyStochastic(n_basis=60, basis_batch=10, row_batch=30, n_columns=2, n_support=10)
    optimizer = optimization.SparseAdam(steps=100, hyper_learning_rate=0.01)

    def fit(**arguments):
        return GPRegressor(RBF([0.5, 1.0], 1.0), settings, optimizer, noise_variance=0.1).fit(x, y, **arguments)

    straight = fit()
    taken, kept = 0, optimization.sparse_ascent.SparseRun._take_step

    def dying(self):
        nonlocal taken
        taken += 1
        if taken == 63:
            raise KeyboardInterrupt
        return kept(self)

    monkeypatch.setattr(optimization.sparse_ascent.SparseRun, "_take_step", dying)
    with pytest.raises(KeyboardInterrupt):
        fit(checkpoint=tmp_path / "c")
    resumed = fit(checkpoint=tmp_path / "c")
    assert taken == 63 + 100 - 62
    assert np.array_equal(resumed.predict(x), straight.predict(x))
    assert resumed.kernel_ == straight.kernel_
    assert len(resumed.history_) == len(straight.history_)
    assert resumed.history_.to_dict()["objective"] == straight.history_.to_dict()["objective"]


@pytest.mark.slow
def test_float32_and_several_targets():
    x, y = table_of(200)
    Y = np.stack([y, -2 * y], 1)
    settings = QuadruplyStochastic(n_basis=100, basis_batch=50, row_batch=100, n_support=20)
    options = {"noise_variance": 0.02, "dtype": "float32", "outputs": "shared"}
    gp = GPRegressor(RBF([0.5, 1.0], 1.0), settings, QUICK, **options).fit(x, Y)
    mean = gp.predict(x)
    assert mean.shape == (200, 2)
    np.testing.assert_allclose(mean[:, 1], -2 * mean[:, 0], atol=0.01)
    assert gp.posterior_.weights.mean.dtype == torch.float32


@pytest.mark.slow
def test_relevance_vectors():
    """T15: a noisy sinc keeps a few of its rows."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-10, 10, (100, 1)), 0)
    truth = np.sinc(x[:, 0] / np.pi)
    y = truth + 0.1 * rng.normal(size=100)
    gp = GPRegressor(
        RBF([1.5], 1.0),
        RelevanceVectorMachine(n_basis=100, n_columns=5, row_batch=100),
        optimization.SparseAdam(0.02, steps=1000, final_share=0.1),
        noise_variance=0.01,
        mean="zero",
        standardize=False,
    ).fit(x, y)
    kept = gp.posterior_.relevance_vectors
    assert 3 <= len(kept) <= 40
    # least squares with so many functions has a mean squared error of 0.1^2 k / n, chi-squared of k degrees
    share = len(kept) / 100
    assert np.mean((gp.predict(x) - truth) ** 2) < 0.1**2 * share * (1 + 4 * np.sqrt(2 / len(kept)))
    weights = gp.posterior_.weights
    variance = weights.root().square().sum(1)
    index = gp.posterior_.kept
    balance = weights.log_precision[index].exp() * (weights.mean[index, 0].square() + variance[index])
    assert float((balance - 1).abs().max()) < 1e-6
    with pytest.raises(InvalidInputError, match=r"relevance_vectors are those of inference\.RelevanceVectorMachine"):
        _ = exact_posterior(QuadruplyStochastic(n_basis=24), root=False)[0].relevance_vectors


def test_weights_come_back_from_their_arrays():
    weights = Weights(torch.zeros(4, 1), torch.ones(4), torch.ones(4, 2))
    copy = weights.copy()
    copy.mean += 1
    assert float(weights.mean.sum()) == 0
    weights.take_over(copy)
    assert float(weights.mean.sum()) == 4
    assert Weights.from_arrays(weights.arrays()).n_columns == 2


@pytest.mark.slow
def test_known_noise_is_kept():
    x, y = table_of(100)
    noise = np.full(100, 0.02)
    gp = GPRegressor(RBF([0.5, 1.0], 1.0), QuadruplyStochastic(n_basis=60), QUICK, noise_variance=noise).fit(x, y)
    assert gp.noise_variance_.shape == (100,)
    assert np.sqrt(np.mean((gp.predict(x) - y) ** 2)) < 0.2


def test_the_names_are_exported():
    assert inference.QuadruplyStochastic is QuadruplyStochastic
    assert kernels.RBF is RBF
