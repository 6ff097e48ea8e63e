"""Steps that are not finite: the best state is kept with one warning, or an error explains the first step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import FitWarning, NonFiniteError, NotPositiveDefiniteError
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.iterative.iterative import IterativeObjective
from gigagp.optimization import LBFGS, Adam, Auto, Evaluation
from helpers import draw_targets, points

X = points(70, 2).numpy()
y = draw_targets(kernels.RBF(1.0), torch.from_numpy(X), 0.1)[:, 0].numpy()
OPTIMIZERS = [Adam(steps=8), LBFGS(), Auto(subset_sizes=(30,))]
CASES = [
    pytest.param(objective, method, optimizer, id=f"{type(method).__name__}-{optimizer!r:.30}")
    for objective, method in ((ExactObjective, inference.Exact()), (IterativeObjective, inference.Iterative()))
    for optimizer in OPTIMIZERS
]
# Tables of a few hundred rows are their own subset, whose steps are Fisher scoring.
CASES.append(pytest.param(ExactObjective, inference.Exact(), Auto(), id="Exact-Auto of all rows"))


def spoil(monkeypatch, objective, good, failure):
    """Make evaluations on all rows fail after some good ones; return the models of the good ones."""
    original, models = objective.evaluate, []

    def evaluate(self, model):
        outcome = original(self, model)
        if self.n_rows < len(X):
            return outcome
        if len(models) >= good:
            return failure(outcome)
        models.append(model)
        return outcome

    monkeypatch.setattr(objective, "evaluate", evaluate)
    return models


def nan_gradient(outcome):
    return Evaluation(outcome.value, {**outcome.gradient, "variance": torch.tensor(torch.nan).double()}, outcome.solve)


def infinite_value(outcome):
    return Evaluation(float("-inf"), outcome.gradient, outcome.solve)


def no_factor(outcome):
    raise NotPositiveDefiniteError("the kernel matrix is not positive definite (pivot 3 of 70).")


FAILURES = pytest.mark.parametrize("failure", [nan_gradient, infinite_value, no_factor])


@pytest.mark.pairs
@FAILURES
@pytest.mark.parametrize(("objective", "method", "optimizer"), CASES)
def test_the_best_state_is_kept(monkeypatch, objective, method, optimizer, failure):
    models = spoil(monkeypatch, objective, 2, failure)
    with pytest.warns(FitWarning, match=r"The fit stopped at step \d+ .*The best state before it was kept") as caught:
        gp = GPRegressor(kernels.RBF(), method, optimizer).fit(X, y)
    assert len(caught) == 1
    assert ("not positive definite" if failure is no_factor else "not finite") in str(caught[0].message)
    kept = gp.posterior_.model
    assert any(kept.parameters().keys() == m.parameters().keys() for m in models)
    assert any(all(torch.equal(kept.parameters()[k], v) for k, v in m.parameters().items()) for m in models)
    assert np.isfinite(gp.predict(X)).all()
    assert len(gp.history_) > 2  # the failed steps are recorded
    gp.history_.to_dict()


@FAILURES
@pytest.mark.parametrize("optimizer", [Adam(), LBFGS(), Auto()])
def test_the_first_step_says_what_is_wrong(monkeypatch, optimizer, failure):
    spoil(monkeypatch, ExactObjective, 0, failure)
    gp = GPRegressor(kernels.RBF(), inference.Exact(), optimizer)
    if failure is no_factor:
        with pytest.raises(NotPositiveDefiniteError, match="pivot 3 of 70"):
            gp.fit(X, y)
    else:
        with pytest.raises(NonFiniteError, match=r"The first step of the fit .* failed.*larger noise_variance"):
            gp.fit(X, y)
    assert not hasattr(gp, "posterior_")


@pytest.mark.parametrize("transform", ["log", "softplus"])
@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative()])
def test_steps_out_of_the_range_of_numbers(transform, method):
    optimizer = Adam(learning_rate=1e4, steps=5, transform=transform)
    with pytest.warns(FitWarning, match=r"step 2 \(adam\): hyperparameter \S+ left the range of float64"):
        gp = GPRegressor(kernels.RBF(), method, optimizer).fit(X, y)
    assert gp.posterior_.model.kernel == kernels.RBF().bind(2)
    with pytest.warns(FitWarning, match="left the range"):  # the last step is not evaluated, but its values are checked
        last = GPRegressor(kernels.RBF(), method, Adam(1e4, 1, transform=transform)).fit(X, y)
    assert last.kernel_ == gp.kernel_


@pytest.mark.few(1)
@pytest.mark.parametrize("optimizer", [LBFGS(steps=100, tolerance=1e-9), Adam(0.5, 80)])
@pytest.mark.filterwarnings("ignore::gigagp.errors.FitWarning")
def test_data_without_noise_end_in_a_fit(optimizer):
    """The likelihood has no maximum there: the noise falls until the matrix cannot be factored."""
    rows = np.repeat(X[:25, :1], 3, axis=0)
    gp = GPRegressor(kernels.RBF(), inference.Exact(), optimizer).fit(rows, np.sin(rows[:, 0]))
    assert gp.noise_variance_ > 0
    assert gp.score(rows, np.sin(rows[:, 0])) > 0.999


def test_a_last_step_without_factor_falls_back_to_the_one_before(monkeypatch):
    """Optimizers do not evaluate their last step, but the posterior does."""
    original, calls = ExactObjective.posterior, []

    def posterior(self, model, generator):
        calls.append(model)
        if len(calls) == 1:
            raise NotPositiveDefiniteError("no factor")
        return original(self, model, generator)

    monkeypatch.setattr(ExactObjective, "posterior", posterior)
    gp = GPRegressor(kernels.RBF(), optimizer=Adam(steps=3)).fit(X, y)
    assert calls[1].noise_variance == gp.posterior_.model.noise_variance
    assert gp.history_[-1].hyperparameters["noise_variance"] == pytest.approx(gp.noise_variance_, rel=1e-12)
    assert calls[0].noise_variance != calls[1].noise_variance
    calls.clear()
    with pytest.raises(NotPositiveDefiniteError):
        GPRegressor(kernels.RBF(), optimizer=None).fit(X, y)
