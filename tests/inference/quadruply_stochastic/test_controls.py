"""The control variates of a fit with their fitted multiples: they move no estimate's mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gigagp.inference import QuadruplyStochastic
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.controls import LINEAR
from gigagp.inference.quadruply_stochastic.estimators.control_variate import Coefficient
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, MEAN
from gigagp.kernels import RBF
from gigagp.model.likelihoods import Gaussian
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from helpers import generator, points
from inference.quadruply_stochastic.reference import pairs, sampled

M, COUNT = 6, 3
MODEL = Model(RBF([0.8, 1.1], 1.2).bind(2), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))
#: a multiple in use, which the next step changes much
LEARNED = Coefficient(memory=0.4, warm_up=2, steps=30, covariance=-2.0, control_variance=2.5, variance=3.0)
SETTINGS = {
    MEAN: QuadruplyStochastic(n_basis=M, basis_batch=2, n_columns=2, n_support=COUNT, anchor=False),
    COLUMNS: QuadruplyStochastic(n_basis=M, basis_batch=2, n_columns=2, n_support=COUNT, anchor=False),
    LINEAR: QuadruplyStochastic(n_basis=M, basis_batch=2, n_columns=2, linear_control=True, anchor=False),
}


def controls_of(settings):
    """Controls at arbitrary weights, and the objective that they belong to."""
    table = TrainingTable(points(12, 2), points(12, 1, seed=1), ZeroMean(), 2**28)
    objective = sampled(settings.objective(table, generator(0), Gaussian()))
    objective.begin(MODEL)
    objective.state.weights.mean.copy_(points(M, 1, seed=2))
    objective.state.weights.columns.copy_(points(M, 2, seed=3))
    objective.state.restart_controls()
    return objective, objective.state.controls


def differences(name: str) -> torch.Tensor:
    """Return what the controls add to an estimate, for every sample that there is."""
    objective, controls = controls_of(SETTINGS[name])
    vectors = objective.state.weights.root_rows(torch.arange(M)) if name == COLUMNS else objective.state.weights.mean
    added = []
    for sample in pairs(M, 2, False):
        controls.forget()
        controls.coefficients = {one: replace(LEARNED) for one in controls.coefficients}
        touched = vectors[sample.index]
        estimate = (sample.left[:, None] * touched).sum() * (sample.right[:, None] * touched).sum()  # any at all
        follow = controls.columns if name == COLUMNS else controls.mean
        added.append(follow(estimate, MODEL, touched, sample, None) - estimate)
        assert controls.coefficients[name].steps == LEARNED.steps + 1
    return torch.stack(added).detach()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_multiple_that_goes_on_learning_adds_nothing_in_the_mean(name):
    """Over all samples: earlier steps decide the multiple of a step, so it is a constant there."""
    added = differences(name)
    assert float(added.abs().max()) > 0.1  # it does something
    assert abs(float(added.mean())) < 1e-10 * float(added.abs().max())


@pytest.mark.parametrize("name", SETTINGS)
def test_a_multiple_that_knows_its_own_step_is_biased(name, monkeypatch):
    """The control: every multiple after it has learned from its own step."""
    learn, value = Coefficient.learn, Coefficient.value.fget
    steps: list[tuple[float, float]] = []

    def note(self: Coefficient, *numbers: float) -> None:
        steps.append(numbers)
        learn(self, *numbers)

    monkeypatch.setattr(Coefficient, "learn", note)
    differences(name)
    monkeypatch.setattr(Coefficient, "learn", learn)
    coming = iter(steps)

    def knowing(self: Coefficient) -> float:
        after = replace(self)
        after.learn(*next(coming))
        return value(after)

    monkeypatch.setattr(Coefficient, "value", property(knowing))
    added = differences(name)
    assert abs(float(added.mean())) > 1e-3 * float(added.abs().max())


def test_the_targets_control_follows_a_noise_that_is_learned():
    """With the multiple 1 the targets' term is not random, also after the noise has moved."""
    objective, controls = controls_of(SETTINGS[LINEAR])
    index = torch.arange(M)
    Phi, mean = objective.state.basis.columns(objective.table.X, index), objective.state.weights.mean
    known = replace(LEARNED, covariance=-1.0, control_variance=1.0)
    assert known.value == 1.0
    for noise in (0.3, 0.9):
        model = replace(MODEL, noise_variance=torch.tensor(noise, dtype=torch.float64))
        values, plain = [], []
        for sample in pairs(M, 2, False):
            controls.forget()
            controls.coefficients = {LINEAR: replace(known)}
            touched = mean[sample.index]
            fitted = Phi[:, sample.index] @ (sample.linear[:, None] * touched)
            plain.append(-2 / noise * (objective.table.Y * fitted).sum())
            values.append(controls.mean(plain[-1], model, touched, sample, None))
        expected = -2 / noise * (objective.table.Y * (Phi @ mean)).sum()
        torch.testing.assert_close(torch.stack(values), expected.expand(len(values)))
        assert float(torch.stack(plain).std()) > 0.1 * abs(float(expected))
