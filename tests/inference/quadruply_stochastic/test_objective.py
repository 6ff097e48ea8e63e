"""The bound on samples: exact on all rows and functions, unbiased on fewer, at a cost that depends on neither."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from gigagp import kernels
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.controls import support_weights
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.model.likelihoods import Gaussian, Laplace, Logistic
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, largest_tensor, points, within_standard_errors
from inference.quadruply_stochastic.reference import pairs, sampled, samples
from weight_bounds import best_scale, bound_terms

KERNEL = (kernels.RBF([0.8], 1.3) + kernels.White(0.05)).bind(1)
X = points(6, 1)
Y = draw_targets(kernels.RBF(0.8), X, 0.1, columns=2)


def shaken(objective, seed=5):
    """Move all weights, and the running vectors of the controls with them."""
    g = generator(seed)
    index = torch.arange(objective.state.basis.size)
    changes = {
        name: 0.5 * torch.randn(value.shape, generator=g, dtype=torch.float64).to(value)
        for name, value in objective.arrays().items()
    }
    objective.state.controls.forget()
    for name, change in changes.items():
        objective.arrays()[name] += change
    objective.state.controls.moved(objective.state.weights, index, changes)
    for coefficient in objective.state.controls.coefficients.values():  # a fixed multiple, in use from the beginning
        coefficient.steps, coefficient.covariance, coefficient.control_variance = 10**18, -0.7, 1.0
        coefficient.memory = 1.0
    return objective


def make(settings, *, Y=Y[:, :1], X=X, kernel=KERNEL, noise=0.3, likelihood=None, mean=None, shake=True):
    table = TrainingTable(X, Y, mean or ZeroMean(), 2**28)
    objective = sampled(settings.objective(table, generator(0), likelihood or Gaussian()))
    model = objective.begin(Model(kernel, table.mean, torch.as_tensor(noise, dtype=torch.float64)))
    return (shaken(objective) if shake else objective), model


def everything(objective):
    index = torch.arange(objective.state.basis.size)
    sample = BasisSample.from_indices(
        index, index, objective.state.basis.size, n_head=objective.state.weights.n_columns
    )
    return torch.arange(objective.n_rows), sample


def dense_bound(objective, model):
    """The bound by dense algebra, up to the determinant of a dense prior, which the objective leaves out."""
    index = torch.arange(objective.state.basis.size)
    Phi = objective.state.basis.with_kernel(model.kernel).columns(objective.table.X, index)
    S = torch.diag(objective.state.weights.prior_diagonal(objective.state.basis, index))
    constant = 0.0
    if not objective.state.basis.has_diagonal_prior:
        S = objective.state.basis.prior_block(index, index)
        constant = -0.5 * float(torch.linalg.slogdet(S).logabsdet)
    noise = float(model.noise_variance) + float(model.kernel.white(objective.table.X)[0])
    weights = objective.state.weights
    return sum(
        bound_terms(Phi, S, objective.state.targets[:, one], noise, weights.mean[:, one], weights.root()).bound
        + constant
        for one in range(objective.state.targets.shape[1])
    )


SETTINGS = {
    "mean-field": QuadruplyStochastic(n_basis=8),
    "anchored": QuadruplyStochastic(n_basis=8, basis_batch=2, n_support=3),
    "controlled": QuadruplyStochastic(n_basis=8, n_support=3),
    "quadratic controls": QuadruplyStochastic(n_basis=8, n_support=3, control="quadratic"),
    "controlled as printed": QuadruplyStochastic(n_basis=8, n_support=3, n_columns=2, control="as_printed"),
    "controlled targets": QuadruplyStochastic(n_basis=8, linear_control=True),
    "chevron": QuadruplyStochastic(n_basis=8, n_columns=2),
    "controlled chevron": QuadruplyStochastic(n_basis=8, n_columns=3, n_support=4),
    "full": QuadruplyStochastic(n_basis=8, n_columns=8),
    "inducing": QuadruplyStochastic(n_basis=5, basis="inducing"),
    "inducing, anchored": QuadruplyStochastic(n_basis=5, basis="inducing", basis_batch=2, n_columns=2),
    "inducing chevron": QuadruplyStochastic(n_basis=5, basis="inducing", n_columns=2, n_support=3, prior_control=True),
    "grid": QuadruplyStochastic(n_basis=6, basis="grid"),
    "relevance": RelevanceVectorMachine(n_basis=6, n_columns=2, n_support=2),
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("targets", [1, 2])
def test_on_all_rows_and_functions_it_is_the_bound(name, targets):
    kernel = kernels.RBF([0.8], 1.3).bind(1) if name == "grid" else KERNEL
    objective, model = make(SETTINGS[name], Y=Y[:, :targets], kernel=kernel, noise=0.3)
    found = objective.evaluate_sample(model, *everything(objective), hyperparameters=True)
    assert found.value == pytest.approx(dense_bound(objective, model), rel=1e-10)
    for key, gradient in found.gradient.items():  # against differences, one random direction each
        direction = torch.randn(gradient.shape, generator=generator(2), dtype=torch.float64)
        values = []
        for h in (1e-5, -2e-5, 1e-5):  # there, beyond, and back
            objective.arrays()[key] += h * direction
            values.append(dense_bound(objective, model))
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(float((gradient * direction).sum()), rel=1e-5, abs=1e-5)
    for key, gradient in found.hyperparameters.items():
        value = model.parameters()[key]
        up, down = (dense_bound(objective, model.replace({key: value + h})) for h in (1e-5, -1e-5))
        assert (up - down) / 2e-5 == pytest.approx(float(gradient), rel=1e-5, abs=1e-6)


def test_only_hyperparameters_with_a_gradient_are_learned():
    learned = {name: make(chosen, kernel=kernels.RBF([0.8], 1.3).bind(1))[0] for name, chosen in SETTINGS.items()}
    model = Model(kernels.RBF([0.8], 1.3).bind(1), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))
    for name in ("mean-field", "full"):
        assert learned[name].learned_names(model) == ("lengthscale", "variance", "noise_variance")
    for name in ("inducing", "grid", "relevance"):
        assert learned[name].learned_names(model) == ("noise_variance",)
    logistic, _ = make(SETTINGS["chevron"], Y=Y[:, :1].sign(), likelihood=Logistic())
    assert "noise_variance" not in logistic.learned_names(model)


def scattered(objective, found):
    """A sparse gradient as one dense vector, with that by the hyperparameters at its end."""
    parts = []
    for name in found.gradient:
        dense = torch.zeros_like(objective.arrays()[name])
        dense[found.index] = found.gradient[name]
        parts.append(dense.reshape(-1))
    return torch.cat([*parts, *(value.reshape(-1) for value in found.hyperparameters.values())])


ENUMERATED = {
    "mean-field": QuadruplyStochastic(n_basis=4),
    "anchored": QuadruplyStochastic(n_basis=4, basis_batch=2),
    "anchored, all controls": QuadruplyStochastic(
        n_basis=4, basis_batch=2, n_columns=2, n_support=3, linear_control=True
    ),
    "controlled": QuadruplyStochastic(n_basis=4, n_support=3),
    "quadratic controls": QuadruplyStochastic(n_basis=4, n_support=3, control="quadratic"),
    "controlled as printed": QuadruplyStochastic(n_basis=4, n_support=3, n_columns=2, control="as_printed"),
    "controlled chevron": QuadruplyStochastic(n_basis=4, n_columns=2, n_support=3),
    "all controls": QuadruplyStochastic(n_basis=4, n_columns=2, n_support=3, linear_control=True),
    "inducing chevron": QuadruplyStochastic(n_basis=4, basis="inducing", n_columns=1, n_support=2, prior_control=True),
    "inducing chevron, anchored": QuadruplyStochastic(
        n_basis=4, basis="inducing", basis_batch=2, n_columns=1, n_support=2, prior_control=True
    ),
    "relevance": RelevanceVectorMachine(n_basis=4, n_columns=1, n_support=2),
}


def enumerate_all(objective, model, replacement, sample_pairs):
    values, gradients = [], []
    for sample, rows in itertools.product(sample_pairs, samples(6, 2, replacement)[:: 1 if not replacement else 5]):
        found = objective.evaluate_sample(model, rows, sample, hyperparameters=True)
        values.append(found.value)
        gradients.append(scattered(objective, found))
    return sum(values) / len(values), torch.stack(gradients).mean(0)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ENUMERATED)
def test_value_and_gradient_are_unbiased_over_all_samples(name):
    """T2, T6 and T8a, for the whole objective with its control variates."""
    objective, model = make(ENUMERATED[name])
    whole = objective.evaluate_sample(model, *everything(objective), hyperparameters=True)
    head = objective.state.weights.n_columns
    value, gradient = enumerate_all(objective, model, False, list(pairs(4, 2, False, n_head=head)))
    assert value == pytest.approx(whole.value, rel=1e-10)
    torch.testing.assert_close(gradient, scattered(objective, whole), rtol=1e-9, atol=1e-9)
    # the control: one sample for both factors
    shared = [BasisSample.from_indices(one, one, 4, n_head=head) for one in samples(4, 2, False)]
    value, _ = enumerate_all(objective, model, False, shared)
    assert abs(value - whole.value) > 0.05


def test_the_printed_control_is_equation_3():
    """Against the paper's formula: equal weights, the multiple 1 from the first step, nothing of the targets."""
    settings = QuadruplyStochastic(n_basis=8, n_support=3, control="as_printed", anchor=False)
    objective, model = make(settings)
    controls = objective.state.controls
    assert {one.fixed for one in controls.coefficients.values()} == {1.0}
    P, mean = objective.state.basis.columns(X[controls.rows], torch.arange(8)), objective.state.weights.mean
    noise = float(model.noise_variance) + 0.05
    sample = BasisSample.draw(8, 3, generator(0))
    controls.forget()
    added = controls.mean(torch.tensor(2.0), model, mean[sample.index], sample, None) - 2.0
    left, right = (
        P[:, sample.index] @ (weights[:, None] * mean[sample.index]) for weights in (sample.left, sample.right)
    )
    expected = 6 / (3 * noise) * ((P @ mean).square().sum() - (left * right).sum())
    torch.testing.assert_close(added, expected)
    assert abs(float(expected)) > 0.1


@pytest.mark.slow
def test_the_running_value_of_the_targets_control_follows_steps():
    """Prop. 3 for F2c: after many sparse steps it is still ``b . v``, and it removes noise from the value alone."""
    x, y = points(60, 2), draw_targets(kernels.RBF(0.8), points(60, 2), 0.1)
    kernel, slopes = kernels.RBF([0.8, 0.8]).bind(2), {}
    for on in (False, True):
        settings = QuadruplyStochastic(
            n_basis=80, basis_batch=8, row_batch=60, linear_control=on, anchor=False, start_rows=0
        )
        objective, model = make(settings, X=x, Y=y, kernel=kernel, shake=False)
        for _ in range(200):
            found = objective.sample(model, hyperparameters=False)
            # short steps: the mean's term is then nearly linear
            changes = {name: 1e-6 * gradient for name, gradient in found.gradient.items()}
            for name, change in changes.items():
                objective.arrays()[name].index_add_(0, found.index, change)
            objective.moved(found, changes)
        draws = [objective.sample(model, hyperparameters=False) for _ in range(200)]
        slopes[on] = torch.stack([one.gradient["mean"].norm() for one in draws])
    index = torch.arange(80)
    Phi = objective.state.basis.columns(x, index)
    expected = (Phi.T @ objective.state.targets / 0.3 * objective.state.weights.mean).sum()
    torch.testing.assert_close(objective.state.controls.linear.running, expected, rtol=1e-9, atol=1e-9)
    assert objective.state.controls.variance_removed()["targets"] > 0.5  # most of it
    torch.testing.assert_close(slopes[True], slopes[False])


def test_fitted_support_weights_leave_less_of_the_whole_product():
    x, kernel = points(400, 3), kernels.RBF(1.0).bind(3)
    support = x[:40]
    weights = support_weights(kernel, support, x, 400)
    whole = kernel.block(x, x).square().sum()

    def left(w):
        cross = kernel.block(support, x).square().sum(1)
        return float(whole - 2 * w @ cross + w @ kernel.block(support, support).square() @ w)

    equal = torch.full((40,), 10.0, dtype=torch.float64)
    assert left(weights) < 0.7 * left(equal)
    for direction in torch.randn(5, 40, generator=generator(1), dtype=torch.float64):  # it is the least
        assert left(weights + 0.1 * direction) > left(weights)


@pytest.mark.slow
def test_samples_with_replacement_are_unbiased_too():
    objective, model = make(QuadruplyStochastic(n_basis=4, n_columns=1, n_support=3))
    whole = objective.evaluate_sample(model, *everything(objective), hyperparameters=True)
    found = []
    for sample in pairs(4, 2, True, n_head=1):
        one = objective.evaluate_sample(model, torch.arange(6), sample, hyperparameters=True)
        found.append(torch.cat([torch.tensor([one.value], dtype=torch.float64), scattered(objective, one)]))
    expected = torch.cat([torch.tensor([whole.value], dtype=torch.float64), scattered(objective, whole)])
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("replacement", [False, True])
def test_random_draws_are_unbiased_within_four_standard_errors(replacement):
    X, Y = points(60, 2), draw_targets(kernels.Matern(1.5), points(60, 2), 0.1)
    settings = QuadruplyStochastic(
        n_basis=80, basis_batch=15, row_batch=20, n_columns=4, n_support=20, replacement=replacement
    )
    kernel = kernels.Matern(1.5).bind(2)
    objective, model = make(settings, X=X, Y=Y, kernel=kernel)
    whole = objective.evaluate_sample(model, *everything(objective), hyperparameters=True)
    draws, shared = [], []
    for _ in range(400):
        rows, sample = objective.draw()
        one = objective.evaluate_sample(model, rows, sample, hyperparameters=True)
        draws.append(torch.tensor([one.value, *(float(g.sum()) for g in one.hyperparameters.values())]))
        same = replace(sample, right=sample.left)
        shared.append(torch.tensor([objective.evaluate_sample(model, rows, same).value]))
    expected = [whole.value, *(float(g.sum()) for g in whole.hyperparameters.values())]
    assert within_standard_errors(torch.stack(draws).double(), torch.tensor(expected).double())
    assert not within_standard_errors(torch.stack(shared).double(), whole.value)  # the control


def test_the_chevron_leaves_the_mean_alone():
    """T17: with a fixed prior and the same samples the mean's gradient does not see the covariance."""
    found = []
    for n_columns in (0, 3):
        objective, model = make(QuadruplyStochastic(n_basis=20, basis_batch=5, row_batch=4, n_columns=n_columns))
        objective.state.weights.mean.copy_(torch.linspace(-1, 1, 20)[:, None])
        one = objective.sample(model, hyperparameters=False)
        dense = torch.zeros(20, 1).double()
        dense[one.index] = one.gradient["mean"]
        found.append(dense)
    # the anchor is computed for mean and columns together, which rounds differently
    torch.testing.assert_close(found[0], found[1], rtol=1e-11, atol=1e-11)
    assert float(found[0].abs().max()) > 1


def test_a_step_is_free_of_rows_and_functions():
    """T13, by counting: no tensor of a step grows with n or m."""
    counts = {}
    for n, m, columns in [(300, 200, 2), (3000, 200, 2), (300, 20_000, 2), (300, 200, 0), (300, 20_000, 0)]:
        x = points(n, 2)
        settings = QuadruplyStochastic(n_basis=m, basis_batch=40, row_batch=50, n_columns=columns, n_support=20)
        kernel = kernels.Matern(1.5).bind(2)
        objective, model = make(settings, X=x, Y=x[:, :1], kernel=kernel, shake=False)
        with largest_tensor() as spy:
            for _ in range(3):
                found = objective.sample(model, hyperparameters=True)
                objective.moved(found, found.gradient)
        counts[n, m, columns] = spy.elements
        assert len(found.index) <= 80 + columns
    # indexing reads the arrays of all functions without copying them
    assert max(counts.values()) <= 2 * 82 * 50
    assert max(counts.values()) <= 1.3 * min(counts.values())


def test_the_closed_form_diagonal_is_proposition_1():
    objective, model = make(QuadruplyStochastic(n_basis=8, diagonal="closed_form"))
    before = objective.state.weights.log_scale.clone()
    assert "log_scale" not in objective.sample(model, hyperparameters=False).gradient
    objective.settle(model)
    index = torch.arange(8)
    gram = objective.state.basis.columns(X, index).square().sum(0)
    expected = best_scale(gram, torch.ones(8).double(), float(model.noise_variance) + 0.05)
    torch.testing.assert_close(objective.state.weights.log_scale.exp(), expected)
    assert not torch.allclose(before, objective.state.weights.log_scale)
    learned, model = make(QuadruplyStochastic(n_basis=8))
    learned.state.weights.log_scale.copy_(expected.log())
    slope = learned.evaluate_sample(model, *everything(learned)).gradient["log_scale"]
    assert float(slope.abs().max()) < 1e-10


def test_known_noise_and_a_trend():
    noise = 0.1 + torch.rand(6, generator=generator(3), dtype=torch.float64)
    shifted = Y[:, :1] + 7
    objective, model = make(QuadruplyStochastic(n_basis=8), noise=noise, Y=shifted, mean=ConstantMean())
    found = objective.evaluate_sample(model, *everything(objective), hyperparameters=True)
    assert "noise_variance" not in found.hyperparameters
    Phi, root = objective.state.basis.columns(X, torch.arange(8)), objective.state.weights.root()
    y, mean, variances = objective.state.targets[:, 0], objective.state.weights.mean[:, 0], noise + 0.05
    # generalised least squares: a weighted sum
    assert float(torch.linalg.solve(Phi @ Phi.T + variances.diag(), y).sum()) == pytest.approx(0, abs=1e-10)
    assert abs(float(y.mean())) > 1e-3
    squared = (y - Phi @ mean).square() + (Phi @ root).square().sum(1)
    fit = -0.5 * (squared / variances + (2 * torch.pi * variances).log()).sum()
    divergence = 0.5 * (mean @ mean + root.square().sum() - 8) - root.diagonal().log().sum()
    assert found.value == pytest.approx(float(fit - divergence), rel=1e-10)


def test_bad_input():
    table = TrainingTable(X, Y[:, :1], ZeroMean(), 2**28)
    with pytest.raises(InvalidInputError, match="targets of the logistic likelihood must be -1 and 1"):
        QuadruplyStochastic().objective(table, generator(), Logistic())
    with pytest.raises(InvalidInputError, match='diagonal of QuadruplyStochastic must be "learned"'):
        QuadruplyStochastic(diagonal="closed_form").objective(table, generator(), Laplace())
    with pytest.raises(MemoryBudgetError, match="1,000,000,000 basis functions"):
        QuadruplyStochastic(n_basis=10**9).objective(table, generator())
    for settings, message in [
        (
            {"n_basis": 100, "basis_batch": 200},
            "basis_batch of QuadruplyStochastic must be at most n_basis, 100; got 200",
        ),
        ({"n_basis": 100, "n_columns": 101}, "n_columns of QuadruplyStochastic must be at most n_basis"),
        ({"augment": True}, 'are for basis="inducing"'),
        ({"basis": "inducing", "prior_control": True}, "needs support rows"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            QuadruplyStochastic(**settings)
