"""Anchors: they bias nothing, remove the noise of sampled functions where they are, and move as often as pays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gigagp import GPRegressor, kernels, optimization
from gigagp.errors import MemoryBudgetError
from gigagp.inference import QuadruplyStochastic
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic import anchor
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import (
    Origin,
    SampledRows,
    column_terms,
    mean_term,
    prior_term,
)
from gigagp.inference.quadruply_stochastic.newton import chevron_of
from gigagp.model.likelihoods import Gaussian, Laplace, Logistic, Poisson, Probit
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization.sparse_ascent import SparseRun
from helpers import draw_targets, generator, killed_before, new_trace, points, within_standard_errors
from inference.quadruply_stochastic.reference import pairs, sampled, small
from weight_bounds import best_chevron, bound_terms, exact_weights

KERNEL = kernels.RBF([0.8, 0.8], 1.3).bind(2)


def make(settings, n=60, likelihood=None, targets=None, noise=0.2):
    X = points(n, 2)
    Y = draw_targets(kernels.RBF(0.8), X, 0.1) if targets is None else targets(X)
    table = TrainingTable(X, Y, ZeroMean(), 2**28)
    objective = sampled(settings.objective(table, generator(0), likelihood or Gaussian()))
    return objective, objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(noise, dtype=torch.float64)))


def everything(objective):
    index, n_head = torch.arange(objective.state.basis.size), objective.state.weights.n_columns
    return torch.arange(objective.n_rows), BasisSample.from_indices(index, index, len(index), n_head=n_head)


@pytest.mark.parametrize("moved", [False, True], ids=["present features", "features of its own"])
def test_the_fit_at_the_anchor_has_no_noise_of_functions(moved):
    case = small()
    targets = (case.y - case.Phi @ case.mean)[:, None]
    rows = SampledRows(case.Phi, targets, torch.full((6,), case.noise, dtype=torch.float64), 1.0)
    found = {True: [], False: []}
    for sample in pairs(4, 2, False):
        at, nothing = sample.index, torch.zeros(len(sample.index), dtype=torch.float64)
        some, features = rows._replace(features=rows.features[:, at]), rows.features[:, at] if moved else None
        for known in found:
            mean, root = case.mean[:, None], case.root[:, :2]
            of_mean = Origin(mean[at], case.Phi @ mean, features) if known else None
            of_root = Origin(root[at], case.Phi @ root, features) if known else None
            columns = column_terms(some, root[at], sample, nothing, origin=of_root)
            found[known].append(torch.stack([mean_term(some, mean[at], sample, nothing, origin=of_mean), *columns]))
    exact = (case.Phi @ case.root[:, :2]).square().sum(0) / case.noise
    expected = torch.cat([torch.zeros(1, dtype=torch.float64), exact]).expand(len(found[True]), 3)
    torch.testing.assert_close(torch.stack(found[True]), expected)
    assert float(torch.stack(found[False]).std(0).min()) > 10


def test_the_dense_prior_term_at_the_anchor_is_known():
    case = small()
    vectors, S = case.root[:, :2], case.S
    squares = (vectors * (S @ vectors)).sum(0)
    found = {True: [], False: []}
    for sample in pairs(4, 2, False):
        at = sample.index
        for known in found:
            origin = Origin(vectors[at], case.Phi @ vectors, None, (S @ vectors)[at], squares) if known else None
            found[known].append(prior_term(vectors[at], sample, case.prior(at), origin))
    torch.testing.assert_close(torch.stack(found[True]), squares.expand(len(found[True]), 2))
    assert float(torch.stack(found[False]).std(0).min()) > 1


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("share", [1.0, 1.3])
def test_away_from_the_anchor_and_its_kernel_nothing_is_biased(share):
    objective, model = make(QuadruplyStochastic(n_basis=40, basis_batch=8, row_batch=30, n_columns=2))
    objective.state.weights.mean += 0.3 * torch.randn(40, 1, generator=generator(3), dtype=torch.float64)
    objective.state.weights.columns += 0.1 * torch.randn(40, 2, generator=generator(4), dtype=torch.float64)
    moved = model.replace({"lengthscale": share * model.kernel.parameters()["lengthscale"]})
    for known in (True, False):
        if not known:  # the control: functions that are not those of the weights
            objective.state.anchor = replace(objective.state.anchor, fitted=objective.state.anchor.fitted + 1)
        whole = objective.evaluate_sample(moved, *everything(objective), hyperparameters=True)
        plain, anchored = objective.state.anchor, []
        for _ in range(600):
            rows, sample = objective.draw()
            one = objective.evaluate_sample(moved, rows, sample, hyperparameters=True)
            anchored.append(torch.tensor([one.value, *(float(g.sum()) for g in one.hyperparameters.values())]))
        objective.state.anchor = None
        truth = objective.evaluate_sample(moved, *everything(objective), hyperparameters=True)
        objective.state.anchor = plain
        expected = torch.tensor([truth.value, *(float(g.sum()) for g in truth.hyperparameters.values())]).double()
        assert within_standard_errors(torch.stack(anchored).double(), expected) == known
        assert (whole.value == pytest.approx(truth.value, rel=1e-10)) == known


@pytest.mark.slow
def test_an_anchor_takes_the_noise_of_functions_out_of_steps():
    deviations = {}
    for on in (True, False):
        settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=60, n_columns=2, anchor=on)
        objective, model = make(settings)
        draws = [objective.sample(model, hyperparameters=False) for _ in range(200)]
        dense = torch.zeros(200, 400, 3, dtype=torch.float64)
        for place, one in enumerate(draws):
            dense[place, one.index] = torch.cat([one.gradient["mean"], one.gradient["columns"]], 1)
        deviations[on] = dense.var(0).sum(0)
        assert (objective.state.anchor is not None) == on
    assert float((deviations[True] / deviations[False]).max()) < 0.1


@pytest.mark.slow
def test_an_anchor_closes_the_gap_of_the_bound_of_labels():
    """Theorem 3's gap has two causes here: the sampling of the mean, and that of dense columns."""
    settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=60, n_columns=3)
    objective, model = make(settings, likelihood=Logistic(), targets=lambda X: (3 * X[:, :1]).sin().sign())
    objective.state.weights.log_scale[3:] = -12.0  # all spread is that of the columns
    whole, rows = objective.evaluate_sample(model, *everything(objective)).value, torch.arange(60)
    known = objective.state.anchor
    of_mean = replace(known, **{name: getattr(known, name).clone() for name in ("vectors", "fitted")})
    of_mean.vectors[:, 1:] = of_mean.fitted[:, 1:] = 0
    values = {"both": [], "mean": [], "none": []}
    for _ in range(300):
        sample = objective.draw()[1]
        for name, objective.state.anchor in (("both", known), ("mean", of_mean), ("none", None)):
            values[name].append(objective.evaluate_sample(model, rows, sample).value)
    both, mean, none = (torch.tensor(found, dtype=torch.float64) for found in values.values())
    # divergences are estimated without bias; what differs from zero is their noise, the same for all three
    assert within_standard_errors(both[:, None], whole)
    for gap in (mean - both, none - mean):
        assert float(gap.mean()) < -4 * float(gap.std()) / 300**0.5


def test_an_anchor_moves_as_often_as_costs_what_the_steps_do():
    settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10)
    objective, model = make(settings)
    assert objective._steps_between(objective.state.basis) == 60  # 60 rows times 400 functions over 10 times 40
    for step in range(1, 121):
        before = objective.state.anchor
        found = objective.sample(model, hyperparameters=False)
        changes = {name: 1e-4 * gradient for name, gradient in found.gradient.items()}
        for name, change in changes.items():
            objective.arrays()[name].index_add_(0, found.index, change)
        objective.moved(found, changes)
        assert (objective.state.anchor is before) == (step % 60 != 0)
    assert torch.equal(objective.state.anchor.mean, objective.state.weights.mean)
    Phi = objective.state.basis.columns(objective.table.X, torch.arange(400))
    torch.testing.assert_close(objective.state.anchor.fitted, Phi @ objective.state.weights.mean)


def test_a_short_fit_of_a_large_table_does_not_pay_for_one(monkeypatch):
    monkeypatch.setattr(anchor, "_EARLY", 59)
    objective, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10))
    assert objective.state.anchor is None
    monkeypatch.setattr(anchor, "_EARLY", 60)
    objective, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10))
    assert objective.state.anchor is not None
    whole, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=400, row_batch=10))
    assert whole.state.anchor is None  # nothing is left out of a step


@pytest.mark.parametrize(
    ("likelihood", "labels"),
    [
        (Gaussian(), lambda X: torch.cat([X.sin(), X.cos()], 1)),
        (Logistic(), lambda X: (3 * X[:, :1]).sin().sign()),
        (Probit(), lambda X: (3 * X).sin().sign()),
        (Laplace(), lambda X: X[:, :1]),
        (Poisson(), lambda X: (X[:, :1].exp()).round()),
    ],
    ids=lambda one: type(one).__name__ if not callable(one) else "",
)
def test_weights_start_at_the_posterior_of_the_rows(likelihood, labels):
    """With all rows and all functions they are the best mean and the best columns, which another algorithm finds."""
    settings = QuadruplyStochastic(n_basis=100, row_batch=20, n_columns=100)
    started, model = make(settings, likelihood=likelihood, targets=labels)
    exact = QuadruplyStochastic(n_basis=100, n_columns=100).objective(started.table, generator(0), likelihood)
    exact.start(model)
    best = exact.posterior(model, generator(0))
    Phi = started.state.basis.columns(started.table.X, torch.arange(100))
    torch.testing.assert_close(best.basis.columns(started.table.X, torch.arange(100)), Phi)
    torch.testing.assert_close(Phi @ started.state.weights.mean, Phi @ best.weights.mean, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(started.state.weights.root(), best.weights.root(), rtol=2e-3, atol=2e-3)
    nothing, _ = make(
        QuadruplyStochastic(n_basis=100, row_batch=20, start_rows=0), likelihood=likelihood, targets=labels
    )
    assert float(nothing.state.weights.mean.abs().max()) == 0


def test_some_rows_start_nearer_than_none_and_too_many_do_not_fit():
    errors = []
    for rows in (0, 30, 300):
        objective, _ = make(QuadruplyStochastic(n_basis=200, row_batch=20, start_rows=rows), n=400)
        Phi = objective.state.basis.columns(objective.table.X, torch.arange(200))
        errors.append(float((Phi @ objective.state.weights.mean - objective.state.targets).square().mean()))
    assert errors[0] > 2 * errors[1] > 2 * errors[2]
    X = points(4000, 2)
    table = TrainingTable(X, X[:, :1], ZeroMean(), 2**28)
    objective = QuadruplyStochastic(n_basis=200, row_batch=20, start_rows=4000).objective(table, generator(0))
    with pytest.raises(MemoryBudgetError, match=r"posterior of 4,000 rows .* fewer start_rows"):
        objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64)))


def test_dense_columns_start_at_those_of_some_rows_as_long_as_all_rows_want_them():
    settings = QuadruplyStochastic(n_basis=300, basis_batch=40, row_batch=20, n_columns=5, start_rows=60)
    objective, _ = make(settings, n=1000)
    Phi = objective.state.basis.columns(objective.table.X, torch.arange(300))
    precision = Phi.T @ Phi / 0.2 + torch.eye(300, dtype=torch.float64)

    def loss(columns):  # of eq. 2
        return float(((columns * (precision @ columns)).sum(0) - 2 * columns[:5].diagonal().log()).sum())

    columns = objective.state.weights.root()[:, :5]
    best, apart = chevron_of(precision, 5)[:, :5], torch.diag(precision.diagonal().rsqrt())[:, :5]
    assert loss(best) < loss(columns) < loss(best) + 0.25 * (loss(apart) - loss(best))
    lengths = (columns * (precision @ columns)).sum(0)
    torch.testing.assert_close(lengths, torch.ones(5, dtype=torch.float64))  # its 1,000 rows are all there are
    few = objective.state.basis.columns(objective.table.X[::17], torch.arange(300))
    unaware = chevron_of(17 * few.T @ few / 0.2 + torch.eye(300, dtype=torch.float64), 5)[:, :5]
    assert float((unaware * (precision @ unaware)).sum(0).min()) > 1.1  # the control


@pytest.mark.slow
def test_dense_columns_of_a_sampled_fit_are_worth_having():
    """They raise the bound as much as the best columns do; from zero, with steps in other units, they lower it."""
    bounds, bests = {}, {}
    for name, n_columns, start, unit in [("none", 0, None, 1), ("some", 20, None, 1), ("as before", 20, 0, 300**0.5)]:
        settings = QuadruplyStochastic(n_basis=300, basis_batch=60, row_batch=40, n_columns=n_columns, start_rows=start)
        objective, model = make(settings, n=5000)
        units = {name: unit * size for name, size in objective.units().items()}
        objective.units = lambda units=units: units
        ascent = optimization.SparseAdam(steps=1000, hyper_learning_rate=0.0)
        ascent.run(objective, model, new_trace(), generator(0))
        Phi = objective.state.basis.columns(objective.table.X, torch.arange(300))
        S, y, weights = torch.eye(300, dtype=torch.float64), objective.state.targets[:, 0], objective.state.weights
        bounds[name] = bound_terms(Phi, S, y, 0.2, weights.mean[:, 0], weights.root()).bound
        best = bound_terms(Phi, S, y, 0.2, exact_weights(Phi, S, y, 0.2)[0], best_chevron(Phi, S, 0.2, n_columns))
        bests[name] = best.bound
    assert bounds["some"] - bounds["none"] > 0.9 * (bests["some"] - bests["none"]) > 30
    assert bounds["as before"] < bounds["none"] - 30


def test_inducing_points_start_at_the_exact_process_of_some_of_them():
    """With repeated rows among them; the mean of the other points' rows is predicted as the exact process would."""
    settings = QuadruplyStochastic(
        n_basis=60, basis="inducing", basis_batch=10, row_batch=20, start_rows=25, n_columns=2
    )
    X = points(60, 2)
    X = torch.cat([X, X[:20]])
    Y = draw_targets(kernels.RBF(0.8), X[:60], 0.1)
    Y = torch.cat([Y, Y[:20]])
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0))
    objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64)))
    mean = objective.state.weights.mean
    used = mean[:, 0].nonzero()[:, 0]
    assert len(used) == 25
    at = objective.state.basis.columns(X, used)  # covariances with the rows of the start
    match = (at == at.amax(0)).int().argmax(0)
    assert float(at[match, torch.arange(25)].min()) == pytest.approx(1.3)  # each is a row
    K = KERNEL.block(X[match], X[match])
    exact = at @ torch.linalg.solve(K + 0.2 * torch.eye(25, dtype=torch.float64), Y[match])
    index = torch.arange(60)
    torch.testing.assert_close(objective.state.basis.columns(X, index) @ mean, exact, rtol=1e-6, atol=1e-6)
    assert objective.state.anchor is not None
    torch.testing.assert_close(objective.state.anchor.fitted_mean, exact, rtol=1e-6, atol=1e-6)
    S = objective.state.basis.prior_block(index, index)
    vectors = torch.cat([mean, objective.state.weights.root()[:, :2]], 1)
    torch.testing.assert_close(objective.state.anchor.images, S @ vectors)


@pytest.mark.slow
def test_many_inducing_points_gain_on_their_start():
    """With steps in units that account for their similarity; 400 steps from zero in plain units end below the start."""
    X = points(1500, 2)
    y, errors = draw_targets(kernels.RBF(0.5), X, 0.1), {}
    K = kernels.RBF([0.5, 0.5]).bind(2).block(X, X)
    exact = K @ torch.linalg.solve(K + 0.01 * torch.eye(1500, dtype=torch.float64), y)
    for name, start, steps in [("start", 100, None), ("end", 100, 400), ("plain", 0, 400)]:
        settings = QuadruplyStochastic(n_basis=1500, basis="inducing", basis_batch=100, row_batch=100, start_rows=start)
        objective = settings.objective(TrainingTable(X, y, ZeroMean(), 2**28), generator(0))
        model = Model(kernels.RBF([0.5, 0.5]).bind(2), ZeroMean(), torch.tensor(0.01, dtype=torch.float64))
        objective.begin(model)
        if name == "plain":
            objective.units = dict
        if steps is not None:
            ascent = optimization.SparseAdam(steps=steps, hyper_learning_rate=0.0)
            ascent.run(objective, model, new_trace(), generator(0))
        Phi = objective.state.basis.columns(X, torch.arange(1500))
        errors[name] = float((Phi @ objective.state.weights.mean - exact).square().mean().sqrt())
    assert errors["end"] < 0.9 * errors["start"]
    assert errors["plain"] > errors["start"]


@pytest.mark.few(1)
@pytest.mark.parametrize("changes", [{}, {"n_support": 20, "linear_control": True}], ids=["plain", "controls"])
def test_a_killed_fit_goes_on_with_its_anchor(tmp_path, monkeypatch, changes):
    X = points(400, 2)
    y = draw_targets(kernels.RBF(0.8), X, 0.1)[:, 0].numpy()
    settings = QuadruplyStochastic(n_basis=300, basis_batch=30, row_batch=40, **changes)  # an anchor every 50 steps

    def fit(**call):
        ascent = optimization.SparseAdam(0.01, steps=130, hyper_start=0.2)
        return GPRegressor(kernels.RBF(1.0), settings, ascent, noise_variance=0.1).fit(X.numpy(), y, **call)

    whole, original = fit(), SparseRun._take_step
    with killed_before(80):
        fit(checkpoint=tmp_path / "fit.state")
    steps = []
    monkeypatch.setattr(SparseRun, "_take_step", lambda self: steps.append(self.step) or original(self))
    resumed = fit(checkpoint=tmp_path / "fit.state")
    assert steps[0] == 80
    for name, value in whole.posterior_.weights.arrays().items():
        assert torch.equal(resumed.posterior_.weights.arrays()[name], value)
    assert whole.posterior_.variance_removed == resumed.posterior_.variance_removed
