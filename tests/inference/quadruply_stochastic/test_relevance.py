"""Relevance vectors: how few updates of the precisions there are, and that nothing is lost by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPClassifier, GPRegressor, kernels
from gigagp.inference import RelevanceVectorMachine
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic import whole
from gigagp.inference.quadruply_stochastic.newton import WeightSearch
from gigagp.inference.quadruply_stochastic.whole import relevant_weights
from gigagp.model.likelihoods import Gaussian, Laplace, Likelihood, Probit
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

NOISE, FAR = 0.01, 1e6


def problem(seed: int, copies: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return a function at every one of 40 rows, several times if wanted, and targets."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (40, 1))
    Phi = np.exp(-2 * (X - X.T) ** 2)
    return np.tile(Phi, copies), np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=40)


def updated(Phi: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the functions that MacKay's updates keep, their precisions, and the updates until none moves."""
    precision, kept = np.full(Phi.shape[1], (Phi**2).sum() / len(Phi)), np.arange(Phi.shape[1])
    count, moving = 0, True
    while moving:
        used = Phi[:, kept]
        covariance = np.linalg.inv(np.diag(precision[kept]) + used.T @ used / NOISE)
        known = np.clip(1 - precision[kept] * covariance.diagonal(), 1e-12, None)
        new = np.clip(known / (covariance @ used.T @ y / NOISE) ** 2, 1e-8, FAR)
        change = np.abs(np.log(new / precision[kept])).max()
        precision[kept] = new
        left = new < FAR
        kept, count, moving = kept[left], count + 1, change >= 1e-3 or not left.all()
    return kept, precision, count


def evidence(Phi: np.ndarray, y: np.ndarray, kept: np.ndarray, precision: np.ndarray) -> float:
    """Return the log density of the targets, by the dense covariance."""
    H = NOISE * np.eye(len(y)) + Phi[:, kept] @ (Phi[:, kept] / precision[kept]).T
    return float(-0.5 * (y @ np.linalg.solve(H, y) + np.linalg.slogdet(H)[1] + len(y) * np.log(2 * np.pi)))


def learned(Phi: np.ndarray, y: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the same as `updated`, from the package."""
    calls, maximise = [], WeightSearch.maximise
    monkeypatch.setattr(WeightSearch, "maximise", lambda *given: calls.append(1) or maximise(*given))
    n, m = Phi.shape
    ones = torch.ones(n).double()
    parts = torch.tensor(Phi), torch.ones(m).double(), NOISE * ones, torch.tensor(y)[:, None], ones[:, None][:, :0]
    found = relevant_weights(WeightSearch(*parts, Gaussian(), None, 20), 1.0, 1e4, 1e-7)
    return found.kept.numpy(), found.precision.numpy(), len(calls)


def coming_back(Phi: np.ndarray, y: np.ndarray, kept: np.ndarray, precision: np.ndarray) -> float:
    """Return the most nats that a function that was taken out gains at its best precision (Faul and Tipping 2002)."""
    H = NOISE * np.eye(len(y)) + Phi[:, kept] @ (Phi[:, kept] / precision[kept]).T
    out = np.delete(Phi, kept, axis=1)
    ratio = (out.T @ np.linalg.solve(H, y)) ** 2 / (out * np.linalg.solve(H, out)).sum(0)
    return float(np.where(ratio > 1, 0.5 * (ratio - 1 - np.log(np.maximum(ratio, 1))), 0.0).max())


@pytest.mark.parametrize("seed", [4, 6])
def test_functions_that_creep_away_are_taken_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Phi, y = problem(seed)
    assert updated(Phi, y)[2] > 1000  # the control: waiting until no precision moves takes very long
    *found, count = learned(Phi, y, monkeypatch)
    assert count < 75
    reached, enough = evidence(Phi, y, *found), 1e-4 * len(y)
    for one in range(len(found[0])):
        assert evidence(Phi, y, np.delete(found[0], one), found[1]) < reached - enough
        for factor in (0.9, 1.1):
            moved = found[1].copy()
            moved[found[0][one]] *= factor
            assert evidence(Phi, y, found[0], moved) < reached + enough
    assert coming_back(Phi, y, *found) < enough
    assert coming_back(Phi, y, found[0][1:], found[1]) > enough  # the control


@pytest.mark.slow
def test_leaps_end_at_optima_as_high_as_those_of_single_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are several optima, and updates of other lengths lead to others: higher ones as often as lower ones."""
    higher = []
    for seed in range(16):
        Phi, y = problem(seed)
        higher.append(evidence(Phi, y, *learned(Phi, y, monkeypatch)[:2]) - evidence(Phi, y, *updated(Phi, y)[:2]))
    assert np.mean(higher) > -2 * np.std(higher) / len(higher) ** 0.5 - 1e-4 * len(Phi)
    assert np.median(np.abs(higher)) < 1e-4 * len(Phi)


def test_of_two_equal_functions_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    Phi, y = problem(4)
    twice = problem(4, copies=2)[0]
    *found, count = learned(twice, y, monkeypatch)
    assert count < 100
    assert evidence(twice, y, *found) == pytest.approx(evidence(Phi, y, *updated(Phi, y)[:2]), abs=0.1)


def test_constant_targets_end_at_one_function_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its precision is as large as it may be, and would go on if it could."""
    Phi, y = problem(4)
    kept, precision, count = learned(Phi, 0 * y, monkeypatch)
    assert len(kept) == 1
    assert precision[kept[0]] >= 1e6
    assert count < 10


def test_the_weights_are_the_posterior_of_their_precisions() -> None:
    X = np.random.default_rng(4).uniform(-2, 2, (40, 1))
    y = problem(4)[1]
    gp = GPRegressor(
        kernels.RBF([0.5], 1.0), RelevanceVectorMachine(), None, noise_variance=NOISE, mean="zero", standardize=False
    ).fit(X, y)
    weights, index = gp.posterior_.weights, gp.posterior_.kept
    Phi = gp.posterior_.basis.columns(torch.tensor(X), index).numpy()
    precision = weights.log_precision[index].exp().numpy()
    covariance = np.linalg.inv(np.diag(precision) + Phi.T @ Phi / NOISE)
    # The bound is within 1e-6 nats a row of its maximum, and moving a weight by t deviations costs t^2 / 2.
    error = np.abs(weights.mean[index, 0].numpy() - covariance @ Phi.T @ y / NOISE)
    tolerance = np.sqrt(2e-6 * len(y))
    assert (error < tolerance * np.sqrt(covariance.diagonal())).all()
    np.testing.assert_allclose(weights.root().square().sum(1)[index], covariance.diagonal(), rtol=tolerance)


@pytest.mark.parametrize("likelihood", [Gaussian(), Laplace()], ids=lambda one: one.name)
def test_the_derivative_by_little_noise_is_that_of_the_functions_that_are_kept(likelihood: Likelihood) -> None:
    """It counted the others with the variances of their last precisions, which are as large as such a noise."""
    rng, noise = np.random.default_rng(7), 1e-5
    X = rng.uniform(-2, 2, (40, 1))
    Phi = np.exp(-2 * (X - X[[3, 8, 20]].T) ** 2)
    y = Phi @ [1.0, -2.0, 1.5] + noise**0.5 * rng.normal(size=40)
    table = TrainingTable(torch.tensor(X), torch.tensor(y)[:, None], ZeroMean(), 2**28)
    objective = RelevanceVectorMachine().objective(table, torch.Generator().manual_seed(0), likelihood)
    model = objective.start(
        Model(kernels.RBF([0.5], 1.0).bind(1), ZeroMean(), torch.tensor(noise, dtype=torch.float64))
    )
    step = 1e-3

    def value(factor: float) -> float:
        return objective.evaluate(model.replace({"noise_variance": factor * model.noise_variance})).value

    found = float(objective.evaluate(model).gradient["noise_variance"]) * noise
    wanted = (value(1 + step) - value(1 - step)) / (2 * step)
    assert found == pytest.approx(wanted, rel=0.02, abs=0.02)


def steps_for_labels(monkeypatch: pytest.MonkeyPatch, **settings: float) -> tuple[int, float]:
    """Return the Newton steps for labels, and the bound of the precisions found."""
    for name, value in settings.items():
        monkeypatch.setattr(whole, name, value)
    calls, step = [], WeightSearch._step
    monkeypatch.setattr(WeightSearch, "_step", lambda *given: calls.append(1) or step(*given))
    Phi, y = problem(6)
    n, ones = len(y), torch.ones(len(y)).double()
    parts = torch.tensor(Phi), ones, ones, torch.tensor(np.sign(y))[:, None], ones[:, None][:, :0]
    found = relevant_weights(WeightSearch(*parts, Probit(), None, 40), 1.0, 1e4, 1e-7)
    monkeypatch.undo()
    assert found.promised < 1e-5 * n
    return len(calls), found.value


@pytest.mark.slow
def test_searches_between_updates_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps for labels halve what is left, and the weights change with the next update anyway."""
    found, value = steps_for_labels(monkeypatch)
    many, wanted = steps_for_labels(monkeypatch, _SHARE=0.0)
    assert found < 0.7 * many
    assert value == pytest.approx(wanted, abs=1e-4 * 40)


@pytest.mark.slow
def test_precisions_are_learned_once_at_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The posterior learned them again, for half of the time of a fit to labels."""
    calls, learn = [], whole.relevant_weights
    monkeypatch.setattr(whole, "relevant_weights", lambda *given: calls.append(1) or learn(*given))
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (25, 1))
    GPClassifier(inference=RelevanceVectorMachine()).fit(X, np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=25) > 0)
    assert len(calls) == 1
