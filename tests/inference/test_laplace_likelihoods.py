"""Laplace's approximation for likelihoods with parameters, trials, limits and offsets: gradients and dense algebra."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gigagp import kernels
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.laplace import LaplaceObjective
from gigagp.inference.vecchia.mode import Curvature
from gigagp.model.likelihoods import (
    Beta,
    Binomial,
    Censored,
    Gamma,
    HurdlePoisson,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantile,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.optimization.space import ParameterSpace
from gigagp.tables.beside import Beside
from helpers import draw_targets, generator, points
from vecchia_cases import NEW, clumps, gradients, model_of, tables

KERNEL = kernels.Matern(1.5, [0.8, 1.7], 1.3).bind(2)
LIKELIHOODS = [
    Poisson(),
    NegativeBinomial(),
    ZeroInflatedPoisson(),
    ZeroInflatedNegativeBinomial(),
    HurdlePoisson(),
    Gamma(),
    Weibull(),
    Binomial(),
    Beta(),
    Ordinal(),
    Censored(),
    Quantile(0.8),
]
each = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda one: one.name)


def table_of(likelihood, X, mean=None):
    """Return rows with targets that the likelihood draws, with an exposure where it takes one, and half of the limits.

    Every third target with limits is only known to be below or above something.
    """
    n, draw = len(X), generator(3)
    f = draw_targets(KERNEL, X, 1e-8)
    exposure = torch.exp(torch.rand(n, generator=draw, dtype=torch.float64) * 4 - 2)
    trials = (exposure * 10).ceil()
    beside = Beside()
    if likelihood.exposure == "trials":
        beside = Beside(None, trials)
    elif likelihood.exposure == "rate":
        beside = Beside(exposure.log())
    gaps = torch.tensor([0.8, 0.6], dtype=torch.float64)
    known = likelihood.at({name: gaps if name == "gaps" else 0.7 for name in likelihood.learned})
    noise = trials[:, None] if likelihood.exposure == "trials" else torch.full((n, 1), 0.2, dtype=torch.float64)
    Y = known.draw_targets(f + beside.offset_of(f), noise, draw).double()
    Y = Y * trials[:, None] if likelihood.exposure == "trials" else Y
    if likelihood.name == "beta":
        Y = Y.clamp(1e-4, 1 - 1e-4)
    if likelihood.has_limits:
        lower = Y[:, 0].clone()
        upper = lower.clone()
        upper[::3] = np.inf
        lower[1::6] = 0.0 if likelihood.name == "weibull" else -np.inf
        upper[2::6] = upper[2::6] + 0.4
        beside = Beside(limits=torch.stack([lower, upper], 1))
    return TrainingTable(X, Y, mean or ConstantMean(), 2**30, beside=beside)


def objective_of(likelihood, table, neighbours):
    return LaplaceObjective(table, likelihood, neighbours, neighbours + 1, 10**6)


def start(own, likelihood, kernel=KERNEL):
    table = own.table
    return own.start(replace(model_of(kernel, 0.2, table.mean), of_likelihood=likelihood.start(table.Y)))


@pytest.mark.few(8)
@each
@tables
def test_the_gradient_is_that_of_the_value(table, likelihood):
    """By hyperparameters of the kernel, the noise and the likelihood, with a learned mean.

    Newton's steps end within the root of the rounding of the mode where a density is not log-concave, and differences
    of the determinant have that error over their step.
    """
    own = objective_of(likelihood, table_of(likelihood, table(60)), 8)
    model = start(own, likelihood)
    found, expected = gradients(own, model, 1e-4 if likelihood.is_log_concave else 2e-3)
    torch.testing.assert_close(found, expected, rtol=5e-6, atol=5e-5)
    assert len(found) == 3 + likelihood.has_noise + (not likelihood.has_noise) + sum(
        one.numel() for one in model.of_likelihood.values()
    )
    if model.of_likelihood:
        assert float(found[-1].abs()) > 1e-3


def dense_laplace(likelihood, table, kernel, new):
    """Return the mean and the variance of the latent function at points, and the evidence, from inverses."""
    K, noise = kernel.block(table.X, table.X), torch.full((len(table.X),), 0.2, dtype=torch.float64)
    noise = noise if table.beside.trials is None else table.beside.trials
    given, offset = table.beside.given(likelihood, table.Y), table.beside.offset_of(table.Y)
    f = torch.zeros_like(table.Y)

    def objective(f, solved):
        return float(likelihood.smooth_log_density(given, f + offset, noise[:, None]).sum() - 0.5 * (f * solved).sum())

    eye, solved = torch.eye(len(K), dtype=torch.float64), torch.zeros_like(f)
    for _ in range(200):
        local = Curvature.of(likelihood, given, f + offset, noise)
        step = torch.linalg.solve(eye + local.hessian * K, local.hessian * f + local.slope) - solved
        share, value = 1.0, objective(f, solved)
        while objective(f + share * (K @ step), solved + share * step) < value - 1e-9 * abs(value):
            share *= 0.5
        f, solved = f + share * (K @ step), solved + share * step
        if float((K @ step).abs().max()) < 1e-11:
            break
    local = Curvature.of(likelihood, given, f + offset, noise)
    W = local.curvature
    B = eye + K * W.T  # I + K diag(W)
    cross = kernel.block(new, table.X)
    variance = kernel.diagonal(new) - ((cross * W.T) @ torch.linalg.solve(B, cross.T)).diagonal()
    evidence = objective(f, solved) - 0.5 * float(torch.linalg.slogdet(B)[1])
    return cross @ local.slope, variance, evidence


@pytest.mark.each
@pytest.mark.parametrize("n", [5, 40, 300])
@pytest.mark.parametrize(
    "kernel", [KERNEL, kernels.RBF(0.9, 1.3).bind(2), (kernels.Matern(0.5) + kernels.Linear()).bind(2)], ids=str
)
@each
def test_all_neighbours_are_dense_algebra(likelihood, kernel, n):
    table = table_of(likelihood, clumps(n), ZeroMean())
    own = objective_of(likelihood, table, n - 1)
    model = start(own, likelihood, kernel)
    found = own.posterior(model, generator())
    known = likelihood.at(model.of_likelihood)
    mean, variance, evidence = dense_laplace(known, table, kernel, NEW)
    scale = float(variance.sqrt().max())
    torch.testing.assert_close(found.mean(NEW), mean, rtol=1e-6, atol=1e-6 * scale)
    torch.testing.assert_close(found.mean_and_variance(NEW)[1], variance, rtol=1e-6, atol=1e-6 * scale**2)
    assert found.log_marginal_likelihood(generator()).value == pytest.approx(evidence, abs=1e-6 * (1 + abs(evidence)))


def test_what_a_row_has_beside_it_goes_with_it():
    """A subset of rows is a table of these rows alone."""
    table = table_of(Binomial(), clumps(40))
    rows = torch.arange(0, 40, 3)
    found = objective_of(Binomial(), table, 8).subset(rows)
    alone = TrainingTable(table.X[rows], table.Y[rows], table.mean, 2**30, beside=table.beside.take(rows))
    model = model_of(KERNEL, 0.2, table.mean)
    one, other = (each.evaluate(each.start(model)).value for each in (found, objective_of(Binomial(), alone, 8)))
    assert one == pytest.approx(other, rel=1e-9)
    without = objective_of(Binomial(), replace(alone, beside=Beside(None, torch.full((len(rows),), 99.0).double())), 8)
    assert abs(without.evaluate(without.start(model)).value - one) > 1  # the control


@pytest.mark.parametrize("likelihood", [NegativeBinomial(), Ordinal(), ZeroInflatedNegativeBinomial()], ids=repr)
def test_the_information_of_parameters(likelihood):
    """It is the sum of the rows' squared slopes, which differences give too."""
    own = objective_of(likelihood, table_of(likelihood, points(40, 2)), 8)
    model = start(own, likelihood)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    information = own.fisher(space, vector, torch.zeros(0))
    q = sum(one.numel() for one in model.of_likelihood.values())
    latent = own._last[2]
    slopes = []
    for k in range(len(vector) - q, len(vector)):
        move = torch.zeros_like(vector)
        move[k] = 1e-5
        there = [own._likelihood(space.decode(vector + sign * move)) for sign in (1, -1)]
        high, low = (one.log_density(own._targets, latent, torch.zeros(1).double()) for one in there)
        slopes.append(((high - low) / 2e-5)[:, 0])
    each = torch.stack(slopes, 1)
    torch.testing.assert_close(information[-q:, -q:], each.T @ each, rtol=1e-6, atol=1e-6)
    assert not bool(information[:-q, -q:].any())
