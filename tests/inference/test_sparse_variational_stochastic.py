"""SVGP: minibatches are unbiased, the gradient is correct, and the optimum is that of SGPR."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gigagp.inference import SparseVariational
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.sparse_variational.stochastic import Batches
from gigagp.kernels import Linear, Matern, White
from gigagp.model.means import ConstantMean, LinearMean
from gigagp.model.model import Model
from gigagp.optimization import LBFGS, Adam
from helpers import draw_targets, generator, largest_tensor, new_trace, points, within_standard_errors

KERNEL = (Matern(1.5, [0.8, 1.4], 1.3) + Linear(0.2) + White(0.05)).bind(2)
X = points(60, 2)
Y = draw_targets(Matern(1.5), X, 0.1, columns=2) + X[:, :1] + 3


def objective(batch_size, mean=None, table=(X, Y), seed=0, **settings):
    mean = LinearMean() if mean is None else mean
    chosen = SparseVariational(**{"n_inducing": 12, "jitter": 1e-6, "batch_size": batch_size, **settings})
    return chosen.objective(TrainingTable(*table, mean, 2**28), generator(seed))


def model_of(kernel=KERNEL, noise=0.1):
    return Model(kernel, LinearMean(), torch.as_tensor(noise, dtype=torch.float64))


def shaken(model, size=0.2):
    """Return the model with all free parameters perturbed; the root remains lower triangular."""
    free = {
        name: value + size * torch.randn(value.shape, generator=generator(7), dtype=torch.float64)
        for name, value in model.free.items()
    }
    free["whitened_root"] = free["whitened_root"].tril()
    return replace(model, free=free)


# The bound and its gradient -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.1, 0.05 + torch.rand(60, generator=generator(5), dtype=torch.float64)])
def test_it_starts_at_the_optimum_which_is_that_of_the_collapsed_bound(noise):
    ours, collapsed = objective(60), objective(None)
    model = ours.start(model_of(noise=noise))
    found, expected = ours.evaluate(model), collapsed.evaluate(collapsed.start(model_of(noise=noise)))
    assert found.value == pytest.approx(expected.value, rel=1e-10)
    for name, value in expected.gradient.items():  # by the envelope theorem
        torch.testing.assert_close(found.gradient[name], value, rtol=1e-7, atol=1e-7)
    for name in ("whitened_mean", "whitened_root", "coefficients"):
        assert float(found.gradient[name].abs().max()) < 1e-8
    moved = ours.evaluate(shaken(model))  # the control: elsewhere the bound is lower and has a slope
    assert moved.value < found.value - 1
    assert float(moved.gradient["whitened_mean"].abs().max()) > 0.1


@pytest.mark.parametrize("noise", [0.1, 0.05 + torch.rand(60, generator=generator(5), dtype=torch.float64)])
def test_the_gradient_agrees_with_differences_away_from_the_optimum(noise):
    ours = objective(60)
    model = shaken(ours.start(model_of(noise=noise)))
    gradient = ours.evaluate(model).gradient
    for name, value in {**model.parameters(), **model.free}.items():
        direction = torch.randn(value.shape, generator=generator(1), dtype=torch.float64)
        direction = direction.tril() if name == "whitened_root" else direction
        up, down = (ours.evaluate(model.replace({name: value + h * direction})).value for h in (1e-6, -1e-6))
        assert (up - down) / 2e-6 == pytest.approx(float((gradient[name] * direction).sum()), rel=1e-5, abs=1e-4)


@pytest.mark.slow
def test_a_minibatch_is_unbiased():
    ours, whole = objective(7), objective(60)
    model = shaken(whole.start(model_of()), 0.05)
    expected, points_, place = whole.evaluate(model), ours.points(model), ours.distribution(model)
    draws, slopes, unscaled = [], [], []
    for seed in range(300):
        rows = torch.randperm(60, generator=generator(seed))[:7]
        one = ours.evaluate_rows(model, points_, place, rows)
        draws.append(one.value)
        unscaled.append(one.value * 7 / 60)  # the control: not scaled to all rows
        slopes.append(torch.cat([one.gradient[name].reshape(-1) for name in expected.gradient]))
    assert within_standard_errors(torch.tensor(draws), expected.value)
    assert not within_standard_errors(torch.tensor(unscaled), expected.value)
    slope = torch.cat([value.reshape(-1) for value in expected.gradient.values()])
    found = torch.stack(slopes)
    moving = found.std(0) > 1e-12
    assert within_standard_errors(found[:, moving], slope[moving])
    assert not within_standard_errors(found[:, moving] * 7 / 60, slope[moving])


def test_an_epoch_of_equal_batches_averages_to_the_whole():
    ours, whole = objective(15), objective(60)
    model = shaken(whole.start(model_of()), 0.05)
    values = [ours.evaluate(model) for _ in range(4)]
    expected = whole.evaluate(model)
    assert sum(one.value for one in values) / 4 == pytest.approx(expected.value, rel=1e-10)
    for name, value in expected.gradient.items():
        torch.testing.assert_close(sum(one.gradient[name] for one in values) / 4, value, rtol=1e-7, atol=1e-7)
    assert len({one.value for one in values}) == 4


def test_the_optimum_for_fixed_hyperparameters_is_that_of_sgpr():
    kernel = Matern(1.5, [0.8, 1.4], 1.3, fixed=True).bind(2)
    model = Model(kernel, LinearMean(), torch.full((60,), 0.1, dtype=torch.float64))  # known: not learned
    ours = objective(60, learn_inducing_points=False)
    expected = objective(None, learn_inducing_points=False).posterior(model)
    start = shaken(ours.start(model), 0.5)
    new = points(20, 2, seed=9)
    assert not torch.allclose(ours.posterior(start).mean(new), expected.mean(new), atol=0.05)  # the control
    found = LBFGS(500, 1e-13, memory=100).run(ours, start, new_trace(), generator())
    fitted = ours.posterior(found)
    for left, right in zip(fitted.mean_and_variance(new), expected.mean_and_variance(new), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
    values = (one.log_marginal_likelihood(generator()).value for one in (fitted, expected))
    assert next(values) == pytest.approx(next(values), abs=1e-4)


@pytest.mark.slow
def test_minibatches_find_the_neighbourhood_of_the_optimum():
    """From a distant start, by Adam with a decreasing rate."""
    ours, collapsed = objective(20), objective(None)
    expected = collapsed.posterior(model_of()).log_marginal_likelihood(generator()).value
    start = shaken(ours.start(model_of()), 0.5)
    before = ours.posterior(start).log_marginal_likelihood(generator()).value
    found = Adam(0.05, 300, final_share=0.02).run(ours, start, new_trace(), generator())
    after = ours.posterior(found).log_marginal_likelihood(generator()).value
    assert before < expected - 50
    assert after > expected - 2


def test_the_bound_of_the_posterior_is_of_all_rows():
    ours = objective(7)
    model = shaken(ours.start(model_of()), 0.1)
    expected = objective(60).evaluate(model).value
    estimate = ours.posterior(model).log_marginal_likelihood(generator())
    assert estimate.value == pytest.approx(expected, rel=1e-11)
    assert estimate.standard_error == 0
    assert ours.current_posterior() is None
    ours.evaluate(model)
    torch.testing.assert_close(ours.current_posterior().mean(X), ours.posterior(model).mean(X))


def test_only_a_batch_of_all_rows_is_deterministic():
    assert objective(60).deterministic
    assert objective(100).deterministic  # larger batches than the table contain all rows
    assert objective(100).batch_size == 60
    assert not objective(59).deterministic
    assert not objective(59).is_likelihood


def test_the_memory_of_a_step_does_not_know_the_rows():
    n, m = 20_000, 10
    rows, targets = points(n, 2), points(n, 1, seed=1)
    ours = objective(50, ConstantMean(), (rows, targets), n_inducing=m)
    model = ours.start(Model(KERNEL, ConstantMean(), torch.tensor(0.1, dtype=torch.float64)))
    ours.evaluate(model)  # draws the order of the epoch, n numbers
    with largest_tensor() as spy:
        ours.evaluate(model)
    assert spy.elements <= 2 * 50 * (m + 4)
    with largest_tensor() as spy:
        ours.posterior(model)  # the control: a pass over all rows
    assert spy.elements > n


def test_steps_and_resumed_steps_are_the_same():
    first, second = objective(7), objective(7)
    model = first.start(model_of())
    values = [first.evaluate(model).value for _ in range(15)]  # nine batches per epoch
    assert [second.evaluate(model).value for _ in range(12)] == values[:12]
    third = objective(7)
    third.restore(model, *second.snapshot())
    assert [third.evaluate(model).value for _ in range(3)] == values[12:]
    assert objective(7, seed=1).evaluate(model).value != values[0]


# Minibatches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_rows", "batch_size", "sizes"), [(10, 4, {3, 4}), (12, 4, {4}), (5, 5, {5}), (5, 9, {5})])
def test_an_epoch_has_every_row_once(n_rows, batch_size, sizes):
    batches = Batches(n_rows, batch_size, 0)
    epochs = []
    for _ in range(3):
        epoch = [batches.next() for _ in range(batches.count)]
        assert {len(rows) for rows in epoch} == sizes
        assert sorted(torch.cat(epoch).tolist()) == list(range(n_rows))
        epochs.append(torch.cat(epoch).tolist())
    assert n_rows <= batch_size or len({tuple(epoch) for epoch in epochs}) == 3
