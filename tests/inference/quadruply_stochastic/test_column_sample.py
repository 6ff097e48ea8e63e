"""Theorem 2's third sample: steps that see some of the dense columns, unbiased and free of their number."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gigagp import kernels
from gigagp.errors import InvalidInputError
from gigagp.inference import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, ColumnSample
from gigagp.inference.quadruply_stochastic.estimators.terms import column_terms
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_SCALE, MEAN, Weights, touched_root
from gigagp.model.likelihoods import Gaussian, Logistic
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import draw_targets, generator, points, within_standard_errors
from inference.quadruply_stochastic.reference import pairs, sampled, small

KERNEL = kernels.Matern(1.5, 0.7).bind(2)


def groups(n_columns, size):
    """Return every group that a step can see."""
    return [ColumnSample.group(n_columns, size, number) for number in range(-(-n_columns // size))]


def make(settings, X, Y, *, likelihood=None, noise=0.3, seed=5):
    """Return an objective whose weights have been moved, and its model."""
    table = TrainingTable(X, Y, ZeroMean(), 2**28)
    objective = sampled(settings.objective(table, generator(0), likelihood or Gaussian()))
    model = objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(noise, dtype=torch.float64)))
    g, index = generator(seed), torch.arange(objective.state.basis.size)
    changes = {
        name: 0.3 * torch.randn(value.shape, generator=g, dtype=torch.float64).to(value)
        for name, value in objective.arrays().items()
    }
    for name, change in changes.items():
        objective.arrays()[name] += change
    objective.state.controls.forget()
    objective.state.controls.moved(objective.state.weights, index, changes)
    for coefficient in objective.state.controls.coefficients.values():  # a fixed multiple, in use from the beginning
        coefficient.steps, coefficient.covariance, coefficient.control_variance = 10**18, -0.7, 1.0
        coefficient.memory = 1.0
    return objective, model


def everything(objective):
    index = torch.arange(objective.state.basis.size)
    sample = BasisSample.from_indices(index, index, len(index), n_head=objective.state.weights.n_columns)
    return torch.arange(objective.n_rows), sample


def scattered(objective, found):
    """A sparse gradient as one dense vector."""
    parts = []
    for name, gradient in found.gradient.items():
        dense = torch.zeros_like(objective.arrays()[name])
        found.place(name).write(dense, gradient)
        parts.append(dense.reshape(-1))
    return torch.cat(parts)


def dense_bound(Phi, S, y, noise, arrays):
    """Eq. 2 by dense algebra, differentiable in the arrays of the weights, without the constant."""
    columns = arrays[COLUMNS]
    m, k = columns.shape
    root = torch.diag(arrays[LOG_SCALE].exp()) + torch.nn.functional.pad(columns.tril(-1), (0, m - k))
    fit, mean = Phi @ arrays[MEAN][:, 0], arrays[MEAN][:, 0]
    terms = ((fit - y).square().sum() + (Phi @ root).square().sum()) / noise + mean @ S @ mean
    return -0.5 * (terms + (root * (S @ root)).sum()) + arrays[LOG_SCALE].sum()


# Estimators -----------------------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("replacement", [False, True])
def test_theorem_2_is_unbiased_over_all_three_samples(size, replacement):
    case = small()
    found, unweighted, all_pinned = [], [], []
    for seen in groups(4, size):
        for sample in pairs(4, 2, replacement, n_head=4, columns=seen):
            i, columns = sample.index, sample.columns.index
            root, mine = case.root[i][:, columns], sample.for_columns()
            logs = -2 * case.root.diagonal()[columns].log()
            terms = column_terms(case.rows(None, i), root, mine, case.prior(i)) + logs
            found.append(float(mine.sum_of_columns(terms)))
            unweighted.append(float(terms.sum()))
            ones = replace(sample, left=torch.ones_like(sample.left), right=torch.ones_like(sample.right))
            pinned = column_terms(case.rows(None, i), root, ones, case.prior(i)) + logs
            all_pinned.append(float(mine.sum_of_columns(pinned)))
    mean = sum(found) / len(found)
    assert mean == pytest.approx(case.terms.covariance, rel=1e-11)
    # the controls: columns without their weight, and a weight of one for every function that happens to be there
    for biased in (unweighted, all_pinned):
        assert abs(sum(biased) / len(found) - mean) > 0.01 * mean


def test_the_groups_divide_the_columns():
    for k, size in itertools.product((1, 2, 7, 100, 1000), (1, 2, 3, 7, 64)):
        found = groups(k, min(size, k))
        assert torch.equal(torch.cat([one.index for one in found]), torch.arange(k))
        sizes = [one.last - one.first for one in found]
        assert max(sizes) <= min(size, k)
        assert max(sizes) - min(sizes) <= 1
        assert {one.weight for one in found} == {float(len(found))}
    drawn = [ColumnSample.draw(7, 3, generator(seed)).first for seed in range(200)]
    assert set(drawn) == {0, 2, 4}


@pytest.mark.slow
def test_the_touched_part_of_the_root_is_that_of_the_root():
    weights = Weights(
        torch.zeros(9, 1), torch.randn(9, generator=generator(0)), torch.randn(9, 6, generator=generator(1))
    )
    for seen in groups(6, 2):
        for one in pairs(9, 2, False, n_head=6, columns=seen):
            place = weights.columns.index_select(0, one.index)[:, seen.slice]
            found = touched_root(weights.log_scale[one.index], place, one.index, seen.slice)
            assert torch.equal(found, weights.root_rows(one.index)[:, seen.slice])


# Objectives -----------------------------------------------------------------------------------------------------------

X, Y = points(6, 2), draw_targets(kernels.RBF(0.8), points(6, 2), 0.1)[:, :1]
ENUMERATED = {
    "chevron": QuadruplyStochastic(n_basis=4, n_columns=3, column_batch=1),
    "full": QuadruplyStochastic(n_basis=4, n_columns=4, column_batch=3),
    "anchored": QuadruplyStochastic(n_basis=4, n_columns=4, column_batch=2, basis_batch=2),
    "controlled": QuadruplyStochastic(n_basis=4, n_columns=3, column_batch=2, n_support=3, anchor=False),
    "anchored, all controls": QuadruplyStochastic(
        n_basis=4, n_columns=4, column_batch=2, basis_batch=2, n_support=3, linear_control=True
    ),
    "inducing": QuadruplyStochastic(
        n_basis=4, basis="inducing", n_columns=3, column_batch=2, n_support=2, prior_control=True, basis_batch=2
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ENUMERATED)
def test_value_and_gradient_are_unbiased_over_all_samples(name):
    settings = ENUMERATED[name]
    objective, model = make(settings, X, Y)
    whole = objective.evaluate_sample(model, *everything(objective))
    k, rows = settings.n_columns, torch.arange(6)
    values, gradients, shared = [], [], []
    for seen in groups(k, settings.column_batch):
        for sample in pairs(4, 2, False, n_head=k, columns=seen):
            found = objective.evaluate_sample(model, rows, sample)
            values.append(found.value)
            gradients.append(scattered(objective, found))
            shared.append(
                objective.evaluate_sample(model, rows, replace(sample, columns=replace(seen, weight=1.0))).value
            )
    assert sum(values) / len(values) == pytest.approx(whole.value, rel=1e-10)
    torch.testing.assert_close(torch.stack(gradients).mean(0), scattered(objective, whole), rtol=1e-9, atol=1e-9)
    assert abs(sum(shared) / len(shared) - whole.value) > 0.05  # the control: columns without their weight


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("n_columns", [20, 80])
def test_random_draws_agree_with_the_gradient_by_dense_algebra(n_columns):
    """Within four standard errors, in random directions of mean, diagonal and dense columns."""
    x = torch.cat([points(40, 2), points(10, 2, seed=3) * 0.01, points(10, 2)])  # clumped and repeated rows
    y = draw_targets(KERNEL, x, 0.1)[:, :1]
    settings = QuadruplyStochastic(
        n_basis=80, basis_batch=15, row_batch=20, n_columns=n_columns, column_batch=7, n_support=10
    )
    objective, model = make(settings, x, y)
    index = torch.arange(80)
    Phi, S = objective.state.basis.columns(x, index), objective.state.basis.prior_block(index, index)
    leaves = {name: value.clone().requires_grad_() for name, value in objective.arrays().items()}
    dense_bound(Phi, S, objective.state.targets[:, 0], 0.3, leaves).backward()
    exact = torch.cat([leaf.grad.reshape(-1) for leaf in leaves.values()])
    directions = torch.randn(12, len(exact), generator=generator(1), dtype=torch.float64)
    draws, shared, unweighted = [], [], []
    for _ in range(500):
        rows, sample = objective.draw()
        assert sample.columns.last - sample.columns.first <= 7
        same = replace(sample, right=sample.left)
        bare = replace(sample, columns=replace(sample.columns, weight=1.0))
        for kept, one in ((draws, sample), (shared, same), (unweighted, bare)):
            found = objective.evaluate_sample(model, rows, one)
            assert set(found.gradient) == set(leaves)
            kept.append(directions @ scattered(objective, found))
    expected = directions @ exact
    assert within_standard_errors(torch.stack(draws), expected)
    assert not within_standard_errors(torch.stack(shared), expected)  # the controls
    assert not within_standard_errors(torch.stack(unweighted), expected)


@pytest.mark.parametrize("form", ["sqrt", "linear", "as_printed"])
def test_other_likelihoods_see_some_columns_too(form):
    """The linear form stays a certain bound; all forms stay what they are where all functions and columns are seen."""
    labels = Y.sign()
    settings = QuadruplyStochastic(n_basis=4, n_columns=4, column_batch=2, bound=form, anchor=False)
    objective, model = make(settings, X, labels, likelihood=Logistic())
    whole = objective.evaluate_sample(model, *everything(objective)).value
    every = torch.arange(4)
    found = {"columns": [], "all": []}
    for seen in groups(4, 2):
        over_columns = BasisSample.from_indices(every, every, 4, n_head=4, columns=seen)
        found["columns"].append(objective.evaluate_sample(model, torch.arange(6), over_columns).value)
        for one in pairs(4, 2, False, n_head=4, columns=seen):
            found["all"].append(objective.evaluate_sample(model, torch.arange(6), one).value)
    if form == "linear":
        exact = QuadruplyStochastic(n_basis=4, n_columns=4, column_batch=2, anchor=False)
        truth, _ = make(exact, X, labels, likelihood=Logistic())
        assert whole == pytest.approx(truth.evaluate_sample(model, *everything(truth)).value, rel=1e-12)
        assert all(sum(values) / len(values) < whole for values in found.values())
    assert all(torch.tensor(values).isfinite().all() for values in found.values())


def test_running_vectors_follow_steps_on_some_columns():
    x = points(60, 2)
    settings = QuadruplyStochastic(
        n_basis=50, basis_batch=8, row_batch=30, n_columns=50, column_batch=6, n_support=9, start_rows=20
    )
    objective, model = make(settings, x, x[:, :1])
    assert objective.state.anchor is not None
    assert not objective.state.anchor.has_columns
    for _ in range(300):
        found = objective.sample(model, hyperparameters=False)
        changes = {name: 1e-4 * gradient.clamp(-5, 5) for name, gradient in found.gradient.items()}
        for name, change in changes.items():
            place, array = found.place(name), objective.arrays()[name]
            place.write(array, place.read(array) + change)
        objective.moved(found, changes)
    control = objective.state.controls.quadratic[COLUMNS]
    features = control.features(torch.arange(50))
    torch.testing.assert_close(control.running, features @ objective.state.weights.root()[:, :50], rtol=1e-9, atol=1e-9)


class _LargestNew(TorchDispatchMode):
    """Record the number of elements of the largest tensor that is made; parts of what there was do not count."""

    def __init__(self, known):
        super().__init__()
        self.elements, self.known = 0, {one.untyped_storage().data_ptr() for one in known}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self.known:
                self.elements = max(self.elements, one.numel())
        return result


@pytest.mark.parametrize("seen", [5, None])
def test_a_step_with_a_full_covariance_is_free_of_functions(seen):
    """By counting: no tensor of a step grows with m, whose square is the number of the root's entries."""
    counts = {}
    for m in (200, 2000):
        x = points(300, 2)
        settings = QuadruplyStochastic(
            n_basis=m, basis_batch=20, row_batch=50, n_columns=m, column_batch=seen or m, start_rows=0, anchor=False
        )
        table = TrainingTable(x, x[:, :1], ZeroMean(), 2**30)
        objective = sampled(settings.objective(table, generator(0), Gaussian()))
        model = objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(0.3, dtype=torch.float64)))
        with _LargestNew(objective.arrays().values()) as spy:
            for _ in range(3):
                found = objective.sample(model, hyperparameters=False)
                objective.moved(found, found.gradient)
        counts[m] = spy.elements
        assert len(found.index) <= 45 or seen is None
        assert found.gradient[COLUMNS].shape == (len(found.index), seen or m)
    if seen is None:  # the control: all columns at every step
        assert counts[2000] >= 2000**2
    else:
        assert counts[2000] <= 1.2 * counts[200] <= 1.2 * 50 * 45 * 2


# Settings -------------------------------------------------------------------------------------------------------------


def test_which_columns_a_step_sees():
    def of(**settings):
        return QuadruplyStochastic(n_basis=1000, **settings).sampled_columns

    assert of() is None
    assert of(n_columns=128) is None
    assert of(n_columns=129) == 64
    assert of(n_columns=1000, column_batch=1000) is None
    assert of(n_columns=100, column_batch=10) == 10
    assert RelevanceVectorMachine(n_basis=1000, n_columns=1000).sampled_columns is None
    with pytest.raises(
        InvalidInputError, match="column_batch of QuadruplyStochastic must be at most n_columns, 5; got 6"
    ):
        of(n_columns=5, column_batch=6)
    with pytest.raises(InvalidInputError, match="column_batch of QuadruplyStochastic must be at most n_columns, 0"):
        of(column_batch=6)
    with pytest.raises(InvalidInputError, match="column_batch of RelevanceVectorMachine must be left out"):
        RelevanceVectorMachine(n_basis=100, n_columns=5, column_batch=2)


def test_columns_of_a_basis_smaller_than_asked_are_all_seen():
    settings = QuadruplyStochastic(n_basis=50, basis="inducing", n_columns=50, column_batch=8, basis_batch=3)
    objective, _ = make(settings, X, Y)  # six distinct rows
    _, sample = objective.draw()
    assert sample.columns is None
    assert sample.n_head == 6
