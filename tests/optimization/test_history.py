"""The history of a fit, and its conversion to plain data and back."""

from __future__ import annotations

import json

import pytest
import torch

from gigagp import GPRegressor, gradients, inference, kernels, optimization
from gigagp.optimization import History, SolveRecord, Step
from helpers import draw_targets, points

X = points(80, 2)
Y = draw_targets(kernels.RBF(1.0), X, 0.1)[:, 0]


def fitted(method, optimizer):
    return GPRegressor(kernels.RBF(), method, optimizer).fit(X.numpy(), Y.numpy())


def test_one_record_an_outer_step():
    gp = fitted(inference.Iterative(gradient=gradients.Pathwise(5)), optimization.Adam(steps=4))
    history = gp.history_
    assert len(history) == len(list(history)) == 4
    assert [step.seconds for step in history] == sorted(step.seconds for step in history)
    for step in history:
        assert step.objective is None
        assert step.gradient_norm > 0
        assert set(step.hyperparameters) == {"lengthscale", "variance", "noise_variance"}
        assert len(step.hyperparameters["lengthscale"]) == 2
        assert step.solve.status == "CONVERGED"
        assert step.solve.relative_residual_targets >= 0
        assert step.solve.relative_residual_probes > 0
        assert step.solve.nats_targets <= 1
        assert 0 <= step.solve.nats_probes <= 10
    assert history[0].hyperparameters["noise_variance"] == pytest.approx(
        0.09 * float(Y.var(correction=0))
    )  # it was evaluated at the start
    assert history.epochs == sum(step.solve.epochs + step.solve.setup_epochs for step in history) > 0
    exact = fitted(inference.Exact(), optimization.Adam(steps=2)).history_
    assert exact[0].solve is None
    assert exact.epochs == 0
    assert exact[1].objective > exact[0].objective


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative(gradient=gradients.Exact())])
def test_to_dict_and_back(method):
    history = fitted(method, optimization.Adam(steps=3)).history_
    columns = history.to_dict()
    assert all(isinstance(column, list) and len(column) == 3 for column in columns.values())
    again = History.from_dict(json.loads(json.dumps(columns)))
    assert again.to_dict() == columns
    assert again.steps == history.steps


def test_a_history_of_nothing():
    assert len(History.from_dict(History().to_dict())) == 0
    assert History().epochs == 0


def test_mixed_steps():
    record = SolveRecord(3, 3.0, 1.5, 0.01, None, "CONVERGED")
    history = History([Step("a", 0.1, -2.0, 1.0, {"variance": 1.0}), Step("b", 0.2, None, 0.5, {}, record)])
    columns = history.to_dict()
    assert columns["iterations"] == [None, 3]
    assert columns["relative_residual_probes"] == [None, None]
    assert History.from_dict(columns).steps == history.steps
    assert history.epochs == 4.5
    assert torch.isfinite(torch.tensor(history.elapsed()))
