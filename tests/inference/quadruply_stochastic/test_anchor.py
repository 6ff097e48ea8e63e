"""Functions known at all rows: nothing biased, no noise of functions at the anchor, moved as often as it is worth."""

from __future__ import annotations

import pytest
import torch

from gigagp import GPRegressor, kernels, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference import QuadruplyStochastic
from gigagp.inference.quadruply_stochastic import anchor
from gigagp.inference.quadruply_stochastic.estimators import Origin, RowSample, mean_term
from gigagp.inference.quadruply_stochastic.sampling import BasisSample
from gigagp.inference.table import TrainingTable
from gigagp.likelihoods import Gaussian, Laplace, Logistic, Poisson, Probit
from gigagp.means import ZeroMean
from gigagp.model import Model
from gigagp.optimization.sparse import _Run
from helpers import draw_targets, generator, points, within_standard_errors
from inference.quadruply_stochastic.reference import pairs, small

KERNEL = kernels.RBF([0.8, 0.8], 1.3).bind(2)


def make(settings, n=60, likelihood=None, targets=None, noise=0.2):
    X = points(n, 2)
    Y = draw_targets(kernels.RBF(0.8), X, 0.1) if targets is None else targets(X)
    objective = settings.objective(TrainingTable(X, Y, ZeroMean(), 2**28), generator(0), likelihood or Gaussian())
    return objective, objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(noise, dtype=torch.float64)))


def everything(objective):
    index = torch.arange(objective.basis.size)
    return torch.arange(objective.n_rows), BasisSample.from_indices(index, index, objective.basis.size)


def test_the_fit_at_the_anchor_has_no_noise_of_functions():
    case = small()
    targets = (case.y - case.Phi @ case.mean)[:, None]
    rows = RowSample(case.Phi, targets, torch.full((6,), case.noise, dtype=torch.float64), 1.0)
    found = {True: [], False: []}
    for sample in pairs(4, 2, False):
        at = sample.index
        some, mean = rows._replace(features=rows.features[:, at]), case.mean[at][:, None]
        for known in found:
            origin = Origin(some.features, mean, case.Phi @ case.mean[:, None]) if known else None
            found[known].append(mean_term(some, mean, sample, torch.zeros(len(at)).double(), origin=origin))
    assert float(torch.stack(found[True]).abs().max()) == 0
    assert float(torch.stack(found[False]).std()) > 10


def test_away_from_the_anchor_and_its_kernel_nothing_is_biased():
    objective, model = make(QuadruplyStochastic(n_basis=40, basis_batch=8, row_batch=30))
    objective.weights.mean += 0.3 * torch.randn(40, 1, generator=generator(3), dtype=torch.float64)
    moved = model.replace({"lengthscale": 1.3 * model.kernel.parameters()["lengthscale"]})
    for known in (True, False):
        if not known:  # the control: a function that is not that of the weights
            wrong = objective.anchor.fitted + 1
            objective.anchor = anchor.Anchor(objective.anchor.basis, objective.anchor.mean, wrong)
        whole = objective.evaluate_sample(moved, *everything(objective), hyperparameters=True)
        plain, anchored = objective.anchor, []
        for _ in range(600):
            rows, sample = objective.draw()
            one = objective.evaluate_sample(moved, rows, sample, hyperparameters=True)
            anchored.append(torch.tensor([one.value, *(float(g.sum()) for g in one.hyperparameters.values())]))
        objective.anchor = None
        truth = objective.evaluate_sample(moved, *everything(objective), hyperparameters=True)
        objective.anchor = plain
        expected = torch.tensor([truth.value, *(float(g.sum()) for g in truth.hyperparameters.values())]).double()
        assert within_standard_errors(torch.stack(anchored).double(), expected) == known
        assert (whole.value == pytest.approx(truth.value, rel=1e-10)) == known


def test_an_anchor_takes_the_noise_of_functions_out_of_steps():
    deviations = {}
    for on in (True, False):
        settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=60, anchor=on)
        objective, model = make(settings)
        draws = [objective.sample(model, hyperparameters=False) for _ in range(200)]
        dense = torch.zeros(200, 400, dtype=torch.float64)
        for place, one in enumerate(draws):
            dense[place, one.index] = one.gradient["mean"][:, 0]
        deviations[on] = float(dense.var(0).sum())
        assert (objective.anchor is not None) == on
    assert deviations[True] < 0.1 * deviations[False]


def test_an_anchor_closes_the_gap_of_the_bound_of_labels():
    """Theorem 3's gap has one cause where the spread is known: what is sampled of the mean."""
    gaps = {}
    for on in (True, False):
        settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=60, anchor=on)
        objective, model = make(settings, likelihood=Logistic(), targets=lambda X: (3 * X[:, :1]).sin().sign())
        objective.weights.log_scale.fill_(-12.0)  # no spread to speak of
        whole = objective.evaluate_sample(model, *everything(objective)).value
        rows = torch.arange(60)
        drawn = [objective.evaluate_sample(model, rows, objective.draw()[1]).value for _ in range(300)]
        drawn = torch.tensor(drawn, dtype=torch.float64)
        # divergences are estimated without bias; their noise is what is left
        gaps[on] = float(drawn.mean() - whole), float(drawn.std() / 300**0.5)
    assert abs(gaps[True][0]) < 4 * gaps[True][1]
    assert gaps[False][0] < -10 * gaps[False][1]


def test_an_anchor_moves_as_often_as_costs_what_the_steps_do():
    settings = QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10)
    objective, model = make(settings)
    assert anchor.steps_between(objective) == 60  # 60 rows times 400 functions over 10 times 40
    for step in range(1, 121):
        before = objective.anchor
        found = objective.sample(model, hyperparameters=False)
        changes = {name: 1e-4 * gradient for name, gradient in found.gradient.items()}
        for name, change in changes.items():
            objective.arrays()[name].index_add_(0, found.index, change)
        objective.moved(found, changes)
        assert (objective.anchor is before) == (step % 60 != 0)
    assert torch.equal(objective.anchor.mean, objective.weights.mean)
    Phi = objective.basis.columns(objective.table.X, torch.arange(400))
    torch.testing.assert_close(objective.anchor.fitted, Phi @ objective.weights.mean)


def test_a_short_fit_of_a_large_table_does_not_pay_for_one(monkeypatch):
    monkeypatch.setattr(anchor, "_EARLY", 59)
    objective, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10))
    assert objective.anchor is None
    monkeypatch.setattr(anchor, "_EARLY", 60)
    objective, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=20, row_batch=10))
    assert objective.anchor is not None
    whole, _ = make(QuadruplyStochastic(n_basis=400, basis_batch=400, row_batch=10))
    assert whole.anchor is None  # nothing is left out of a step


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
def test_the_mean_starts_at_the_posterior_of_the_rows(likelihood, labels):
    """With all rows and all functions it is the best mean, found another way."""
    sampled, model = make(QuadruplyStochastic(n_basis=100, row_batch=20), likelihood=likelihood, targets=labels)
    exact = QuadruplyStochastic(n_basis=100).objective(sampled.table, generator(0), likelihood)
    exact.start(model)
    exact.evaluate(model)
    Phi = sampled.basis.columns(sampled.table.X, torch.arange(100))
    torch.testing.assert_close(exact.basis.columns(sampled.table.X, torch.arange(100)), Phi)
    torch.testing.assert_close(Phi @ sampled.weights.mean, Phi @ exact.weights.mean, rtol=2e-3, atol=2e-3)
    nothing, _ = make(
        QuadruplyStochastic(n_basis=100, row_batch=20, start_rows=0), likelihood=likelihood, targets=labels
    )
    assert float(nothing.weights.mean.abs().max()) == 0


def test_some_rows_start_nearer_than_none_and_too_many_do_not_fit():
    errors = []
    for rows in (0, 30, 300):
        objective, _ = make(QuadruplyStochastic(n_basis=200, row_batch=20, start_rows=rows), n=400)
        Phi = objective.basis.columns(objective.table.X, torch.arange(200))
        errors.append(float((Phi @ objective.weights.mean - objective.targets).square().mean()))
    assert errors[0] > 2 * errors[1] > 2 * errors[2]
    X = points(4000, 2)
    table = TrainingTable(X, X[:, :1], ZeroMean(), 2**28)
    objective = QuadruplyStochastic(n_basis=200, row_batch=20, start_rows=4000).objective(table, generator(0))
    with pytest.raises(MemoryBudgetError, match=r"posterior of 4,000 rows .* fewer start_rows"):
        objective.begin(Model(KERNEL, ZeroMean(), torch.tensor(0.2, dtype=torch.float64)))
    with pytest.raises(InvalidInputError, match="start_rows of QuadruplyStochastic must be an int of at least 0"):
        QuadruplyStochastic(start_rows=-1)
    with pytest.raises(InvalidInputError, match="anchor of QuadruplyStochastic must be a bool"):
        QuadruplyStochastic(anchor=1)


@pytest.mark.parametrize("changes", [{}, {"n_support": 20, "linear_control": True}], ids=["plain", "controls"])
def test_a_killed_fit_goes_on_with_its_anchor(tmp_path, monkeypatch, changes):
    X = points(400, 2)
    y = draw_targets(kernels.RBF(0.8), X, 0.1)[:, 0].numpy()
    settings = QuadruplyStochastic(n_basis=300, basis_batch=30, row_batch=40, **changes)  # an anchor every 50 steps

    def fit(**call):
        ascent = optimization.SparseAdam(0.01, steps=130, hyper_start=0.2)
        return GPRegressor(kernels.RBF(1.0), settings, ascent, noise_variance=0.1).fit(X.numpy(), y, **call)

    whole, original = fit(), _Run._take_step

    class Killed(BaseException):
        pass

    def take_step(self):
        if self.step == 80:
            self.step -= 1  # it has not been taken
            self._save()
            raise Killed
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_take_step", take_step)
        with pytest.raises(Killed):
            fit(checkpoint=tmp_path / "fit.state")
    steps = []
    monkeypatch.setattr(_Run, "_take_step", lambda self: steps.append(self.step) or original(self))
    resumed = fit(checkpoint=tmp_path / "fit.state")
    assert steps[0] == 80
    for name, value in whole.posterior_.weights.arrays().items():
        assert torch.equal(resumed.posterior_.weights.arrays()[name], value)
    assert whole.posterior_.variance_removed == resumed.posterior_.variance_removed
