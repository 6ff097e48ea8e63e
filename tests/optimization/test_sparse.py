"""Sparse ascent: only sampled entries move, it converges, and a divergence ends at the best state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import FitWarning, InvalidInputError, NonFiniteError
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import LBFGS, Adam, SparseAdaGrad, SparseAdam, SparseSGD, sparse_ascent
from helpers import generator, new_trace, points
from inference.quadruply_stochastic.reference import sampled
from weight_bounds import best_chevron, bound_terms, exact_weights


def sine(n=300, noise=0.1, seed=0):
    g = generator(seed)
    X = torch.rand(n, 1, generator=g, dtype=torch.float64) * 2 - 1
    return X, torch.sin(6 * X) + noise**0.5 * torch.randn(n, 1, generator=g, dtype=torch.float64)


def objective_of(settings, table=None, noise=0.1, lengthscale=0.3):
    X, Y = table or sine()
    made = sampled(settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0)))
    kernel = kernels.RBF([lengthscale], 1.0).bind(1)
    return made, Model(kernel, ZeroMean(), torch.tensor(noise, dtype=torch.float64))


def from_nothing(**settings):
    """The paper's start: a mean of zero, without anchors."""
    return inference.QuadruplyStochastic(start_rows=0, anchor=False, **settings)


def exact_of(objective, model):
    index = torch.arange(objective.state.basis.size)
    Phi = objective.state.basis.columns(objective.table.X, index)
    S = objective.state.basis.prior_block(index, index)
    mean, root = exact_weights(Phi, S, objective.state.targets[:, 0], float(model.noise_variance))
    return Phi, S, mean, root


@pytest.mark.slow
def test_it_reaches_the_exact_posterior_mean():
    """T11 at a smaller size. The data determine the predictions, not every weight."""
    settings = from_nothing(n_basis=100, basis_batch=25, row_batch=60)
    objective, model = objective_of(settings)
    SparseAdaGrad(steps=2500, hyper_learning_rate=0).run(objective, model, new_trace(), generator(0))
    Phi, _, mean, _ = exact_of(objective, model)
    signal = float((Phi @ mean).std())
    assert float((Phi @ (objective.state.weights.mean[:, 0] - mean)).square().mean().sqrt()) < 0.05 * signal / 0.738
    assert float((Phi @ mean).square().mean().sqrt()) > 0.5  # the control: where it starts


@pytest.mark.slow
def test_full_batches_reach_the_best_chevron_and_the_evidence():
    X, Y = sine(60)
    settings = inference.QuadruplyStochastic(n_basis=12, n_columns=4)
    objective, model = objective_of(settings, (X, Y), noise=0.3)
    SparseAdam(steps=1500, final_share=0.003, hyper_learning_rate=0).run(objective, model, new_trace(), generator(0))
    Phi, S, mean, _ = exact_of(objective, model)
    root = best_chevron(Phi, S, 0.3, 4)
    torch.testing.assert_close(Phi @ objective.state.weights.mean[:, 0], Phi @ mean, atol=2e-3, rtol=0)
    torch.testing.assert_close(Phi @ objective.state.weights.root(), Phi @ root, atol=2e-3, rtol=0)


@pytest.mark.slow
def test_a_full_covariance_is_learned_a_few_columns_at_a_time():
    """It starts mean-field; the bound of its covariance ends near the best one, and far above mean-field's."""
    X, Y = sine(60)
    settings = from_nothing(n_basis=12, n_columns=12, column_batch=3)
    objective, model = objective_of(settings, (X, Y), noise=0.3)
    SparseAdam(0.05, steps=4000, final_share=0.003, hyper_learning_rate=0).run(
        objective, model, new_trace(), generator(0)
    )
    Phi, S, mean, exact = exact_of(objective, model)
    roots = {"learned": objective.state.weights.root(), "mean-field": best_chevron(Phi, S, 0.3, 0), "exact": exact}
    bound = {name: bound_terms(Phi, S, Y[:, 0], 0.3, mean, root).bound for name, root in roots.items()}
    assert bound["exact"] - bound["learned"] < 0.02 * (bound["exact"] - bound["mean-field"])
    assert bound["exact"] - bound["mean-field"] > 3


@pytest.mark.slow
def test_sgd_on_everything_is_gradient_descent():
    """The error of the mean is multiplied by ``I - rate (Phi' Phi / noise + S)`` in every step, to rounding."""
    objective, model = objective_of(from_nothing(n_basis=20), sine(60), noise=0.3)
    optimizer = SparseSGD(learning_rate=2e-3, steps=1500, final_share=0.5, hyper_learning_rate=0, tail_share=0)
    optimizer.run(objective, model, new_trace(), generator(0))
    Phi, S, mean, _ = exact_of(objective, model)
    values, vectors = torch.linalg.eigh(Phi.T @ Phi / 0.3 + S)
    rates = torch.tensor([2e-3 * optimizer.rate(step) for step in range(1, 1501)], dtype=torch.float64)
    left = vectors @ ((1 - rates[:, None] * values).prod(0) * (vectors.T @ mean))
    torch.testing.assert_close(objective.state.weights.mean[:, 0], mean - left, rtol=1e-8, atol=1e-8)
    assert float(left.norm()) < 0.2 * float(mean.norm())  # most of it is gone


@pytest.mark.few(1)
@pytest.mark.parametrize(("steps", "column_batch"), [(None, None), (200, None), (200, 2)])
def test_the_result_is_the_mean_of_the_last_steps(monkeypatch, steps, column_batch):
    """Against the mean of all entries at every step; the control is the result of the last step."""
    settings = inference.QuadruplyStochastic(
        n_basis=100, basis_batch=25, row_batch=60, n_columns=3, column_batch=column_batch
    )
    objective, model = objective_of(settings)
    seen, original = [], sparse_ascent.SparseRun._take_step

    def take_step(self):
        if self.plateau is not None and self.plateau.fresh:
            seen.clear()
        found = original(self)
        seen.append({name: array.clone() for name, array in objective.arrays().items()})
        return found

    monkeypatch.setattr(sparse_ascent.SparseRun, "_take_step", take_step)
    SparseAdam(0.01, steps=steps, hyper_learning_rate=0, final_share=0.3).run(
        objective, model, new_trace(), generator(0)
    )
    last = seen if steps is None else seen[-50:]
    for name, array in objective.arrays().items():
        mean = torch.stack([one[name] for one in last]).mean(0)
        torch.testing.assert_close(array, mean, rtol=1e-9, atol=1e-12)
        assert float((array - seen[-1][name]).abs().max()) > 1e-4


@pytest.mark.slow
def test_at_a_constant_rate_the_mean_of_the_last_steps_is_nearer_than_the_last():
    errors = {}
    for share in (0.0, 0.25):
        objective, model = objective_of(inference.QuadruplyStochastic(n_basis=100, row_batch=20))
        SparseAdam(0.02, steps=2000, final_share=1.0, hyper_learning_rate=0, tail_share=share).run(
            objective, model, new_trace(), generator(0)
        )
        Phi, _, mean, _ = exact_of(objective, model)
        errors[share] = float((Phi @ (objective.state.weights.mean[:, 0] - mean)).square().mean().sqrt())
    assert errors[0.25] < 0.5 * errors[0.0]


def test_only_touched_entries_move():
    settings = from_nothing(n_basis=1000, basis_batch=10, row_batch=20, n_columns=2)
    objective, model = objective_of(settings)
    SparseAdaGrad(steps=3).run(objective, model, new_trace(), generator(0))
    moved = (objective.state.weights.mean[:, 0] != 0).nonzero()[:, 0]
    assert 20 < len(moved) <= 60
    started, _ = objective_of(settings)
    started.begin(model)
    changed = (objective.state.weights.log_scale != started.state.weights.log_scale).nonzero()[:, 0]
    assert set(changed.tolist()) == set(moved.tolist()) | {0, 1}


@pytest.mark.parametrize("kind", [SparseAdaGrad, SparseAdam])
def test_dense_columns_leave_the_mean_alone(kind):
    """T17: every step touches their functions, but the mean of these moves only when they are drawn."""
    means = []
    for n_columns in (0, 5):
        settings = inference.QuadruplyStochastic(n_basis=100, basis_batch=10, row_batch=20, n_columns=n_columns)
        objective, model = objective_of(settings)
        kind(steps=40, hyper_learning_rate=0).run(objective, model, new_trace(), generator(0))
        means.append(objective.state.weights.mean)
    torch.testing.assert_close(means[0], means[1], rtol=1e-9, atol=1e-12)
    assert float(means[0][:5].abs().max()) > 0


def test_the_last_steps_are_in_the_history():
    objective, model = objective_of(inference.QuadruplyStochastic(n_basis=20, basis_batch=5, row_batch=20))
    trace = new_trace()
    SparseAdam(steps=103, hyper_learning_rate=0).run(objective, model, trace, generator(0))
    assert len(trace.history) == 53  # the start, 51 windows of two steps, and one of one
    assert all(step.objective is not None for step in list(trace.history)[1:])


@pytest.mark.parametrize(
    "optimizer", [SparseAdaGrad(1000.0, steps=400), SparseAdam(1000.0, steps=400), SparseSGD(1.0, steps=400)]
)
def test_a_divergent_learning_rate_ends_at_the_best_state(optimizer):
    objective, model = objective_of(from_nothing(n_basis=100, basis_batch=25, row_batch=60))
    trace = new_trace()
    with pytest.warns(FitWarning, match="smaller learning_rate of Sparse"):
        found = optimizer.run(objective, model, trace, generator(0))
    assert trace.stopped
    assert len(trace.history) < 20
    assert float(objective.state.weights.mean.abs().max()) == 0  # where it started
    assert float(found.noise_variance) == pytest.approx(0.1)
    posterior = objective.posterior(found, generator(0))
    assert np.isfinite(posterior.log_marginal_likelihood(generator(0)).value)


@pytest.mark.slow
def test_a_sensible_learning_rate_is_not_stopped():
    for rate in (0.01, 0.1, 1.0):
        objective, model = objective_of(from_nothing(n_basis=100, basis_batch=25, row_batch=60))
        trace = new_trace()
        SparseAdaGrad(rate, steps=300).run(objective, model, trace, generator(0))
        assert not trace.stopped
        assert len(trace.history) == 51


def test_a_start_without_a_finite_bound_is_an_error():
    X, Y = sine(50)
    objective, model = objective_of(inference.QuadruplyStochastic(n_basis=20), (X, Y * 1e200))
    with pytest.raises(NonFiniteError, match="not finite where the fit starts"):
        SparseAdaGrad(steps=5).run(objective, model, new_trace(), generator(0))


@pytest.mark.slow
def test_hyperparameters_move_after_their_start_and_towards_the_data():
    X, Y = sine(300, noise=0.02)
    settings = inference.QuadruplyStochastic(n_basis=100, basis_batch=50, row_batch=100)
    objective, model = objective_of(settings, (X, Y), noise=0.5)
    trace = new_trace()
    optimizer = SparseAdaGrad(steps=800, hyper_learning_rate=0.02, hyper_start=0.25, final_share=0.1)
    found = optimizer.run(objective, model, trace, generator(0))
    noises = [step.hyperparameters["noise_variance"] for step in trace.history]
    assert noises[0] == noises[12] == pytest.approx(0.5)
    assert 0.01 < float(found.noise_variance) < 0.1
    kept, _ = objective_of(settings, (X, Y), noise=0.5)
    same = SparseAdaGrad(steps=100, hyper_learning_rate=0).run(kept, model, new_trace(), generator(0))
    assert float(same.noise_variance) == 0.5


def test_other_optimizers_and_objectives_are_refused():
    X, y = points(40, 1).numpy(), points(40, 1)[:, 0].numpy()
    settings = inference.QuadruplyStochastic(n_basis=20, row_batch=10)
    with pytest.raises(InvalidInputError, match=r'inference\.QuadruplyStochastic must be "auto", None'):
        GPRegressor(inference=settings, optimizer=Adam(steps=2)).fit(X, y)
    with pytest.raises(InvalidInputError, match=r"SparseAdaGrad\(\.\.\.\) is for inference.QuadruplyStochastic"):
        GPRegressor(inference=inference.Exact(), optimizer=SparseAdaGrad()).fit(X, y)


def test_other_optimizers_say_which_one_to_use():
    X, Y = sine(60)
    settings = inference.QuadruplyStochastic(n_basis=20, row_batch=10)
    for other in (LBFGS(), Adam()):
        with pytest.raises(InvalidInputError, match="SparseAdam"):
            GPRegressor(kernels.RBF(), settings, other).fit(X.numpy(), Y[:, 0].numpy())


def test_without_a_number_of_steps_a_small_table_has_its_optimum_at_once(monkeypatch):
    """Where all rows and functions can be used at once, steps on samples gain nothing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (24, 2))
    y = np.sin(5 * X[:, 0]) + 0.1 * rng.standard_normal(24)
    monkeypatch.setattr(sparse_ascent, "_MOST_STEPS", 0)  # any ascent would end with a FitWarning or at its start
    settings = inference.QuadruplyStochastic(200)
    for kind in (SparseAdam, SparseAdaGrad, SparseSGD):
        found = GPRegressor(kernels.Matern(), settings, kind()).fit(X, y)
        auto = GPRegressor(kernels.Matern(), settings, "auto").fit(X, y)
        np.testing.assert_array_equal(found.predict(X), auto.predict(X))
        assert found.log_marginal_likelihood().value == auto.log_marginal_likelihood().value
    kept = GPRegressor(kernels.Matern(), settings, SparseAdam(hyper_learning_rate=0.0), noise_variance=0.02).fit(X, y)
    plain = GPRegressor(kernels.Matern(), settings, None, noise_variance=0.02).fit(X, y)
    np.testing.assert_array_equal(kept.predict(X), plain.predict(X))
    assert kept.noise_variance_ == 0.02
    asked = GPRegressor(kernels.Matern(), settings, SparseAdam(steps=3)).fit(X, y)
    assert asked.history_[-1].stage == "sparse"  # a number of steps is taken
