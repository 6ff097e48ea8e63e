"""Comparison of a fitted system with dense algebra."""

from __future__ import annotations

import warnings
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from contract import dense
from contract.dense import Array, Dense
from contract.problems import DTYPES, INVERSES, MEANS, NOISES, NOISY, TABLES, TARGETS, Problem, problem
from contract.systems import System
from gigagp import GPRegressor
from gigagp.errors import FitWarning, GigaGPWarning, InvalidInputError

#: The matrix of cells for every inference: index of the table (all of them in turn), targets, mean, row noise, dtype.
CELLS = [(place % len(TABLES), *cell) for place, cell in enumerate(product(TARGETS, MEANS, NOISES, DTYPES))]
#: Number of samples, and allowed standard errors of their moments: one false alarm in 1e6 cells.
SAMPLES, ERRORS = 150, 5.5
#: Relative error of a variance from random features of the prior (4,000 columns).
FEATURES = 0.06
#: Nats per observation at which Newton's search ends for a likelihood that is not Gaussian.
NEWTON = 1e-7
#: Error of the data fit in `log_marginal_likelihood` (nats per target), and errors of its determinant.
FIT_NATS, VALUE_ERRORS = 0.01, 4.5


def cell_name(setting: object) -> str:
    """Return the name of a cell, or of a system or likelihood beside it, for a test."""
    return "-".join(map(str, setting)) if isinstance(setting, tuple) else str(setting)


def refused(system: System, cell: tuple[int, str, str, str, str], likelihood: str = "gaussian") -> bool:
    """Whether the system must refuse a cell of `CELLS`."""
    _, _, mean, noise, dtype = cell
    return system.refuses_cell(mean, noise, dtype, likelihood)


class Answer(NamedTuple):
    """A number or an array with its reference and the allowed error of each entry."""

    quantity: str
    got: Array
    expected: Array
    allowed: Array


def failures(answers: list[Answer]) -> list[str]:
    """Return a line for each answer outside its allowed error."""
    found = []
    for quantity, got, expected, allowed in answers:
        if got.shape != expected.shape:
            found.append(f"{quantity}: shape {got.shape}, expected {expected.shape}")
            continue
        excess = np.abs(got - expected) - allowed
        excess = np.where(np.isfinite(got), excess, np.inf)
        if excess.size and excess.max() > 0:
            worst = np.unravel_index(int(excess.argmax()), excess.shape)
            limit = float(np.broadcast_to(allowed, excess.shape)[worst])
            found.append(f"{quantity}: got {got[worst]:.6g}, expected {expected[worst]:.6g} +- {limit:.2g}")
    return found


def reference(system: System, gp: GPRegressor, cell: Problem) -> tuple[Dense, float]:
    """Return the results of dense algebra at the system's exact limit, and the relative error due to rounding."""
    limit, table = system.limit(gp, cell), cell.table
    Y = cell.Y - cell.offset(table.X)
    if cell.likelihood == "gaussian":
        options = {"rest": limit.rest, "actions": limit.actions}
        found = dense.kriging(limit.covariance, table.X, Y, table.new, cell.noise, cell.basis, **options)
    else:
        expectation = dense.EXPECTATIONS[cell.likelihood]
        # some coefficients for counts and signs are infinite at the optimum; they are held at zero
        basis = cell.basis if cell.likelihood in NOISY else dense.no_basis
        if system.laplace:
            arguments = limit.covariance, table.X, Y, table.new, cell.noise, cell.likelihood, basis
            found = dense.laplace_approximation(*arguments)
        else:
            arguments = limit.covariance, table.X, Y, table.new, cell.noise, expectation, basis
            found = dense.variational(*arguments, rest=limit.rest)
    # forward error of a solve: the condition number times the rounding of the entries
    rounding = 20 * cell.eps * found.condition + 20 * np.finfo(float).eps * limit.condition
    return found, rounding


def moments(draws: Array, found: Dense, offset: Array, slack: Array, by_features: bool) -> list[Answer]:
    """Compare samples (m, t, s) of several targets with mean and covariance, within their standard errors."""
    s, variance = draws.shape[-1], np.clip(found.variance, 0, None)
    answers = []
    pairs = np.sqrt((variance[:, None] * variance + found.covariance**2) / s)
    allowed = ERRORS * pairs + (FEATURES * np.sqrt(variance[:, None] * variance) if by_features else 0) + slack**2
    for k in range(draws.shape[1]):
        mean = found.mean[:, k] + offset[:, 0]
        error = ERRORS * np.sqrt(variance * (1 + FEATURES * by_features) / s) + slack
        answers.append(Answer(f"mean of samples of target {k}", draws[:, k].mean(1), mean, error))
        deviations = draws[:, k] - mean[:, None]
        second = deviations @ deviations.T / s
        answers.append(Answer(f"covariance of samples of target {k}", second, found.covariance, allowed))
    return answers


def answers(system: System, gp: GPRegressor, cell: Problem) -> list[Answer]:
    """Return everything that a fitted cell predicts, with the reference."""
    found, rounding = reference(system, gp, cell)
    new, t = cell.table.new, cell.Y.shape[1]
    prior = float(cell.table.covariance(new[:1], new[:1])[0, 0])
    relative = rounding + system.tolerance
    of_mean = relative * (np.abs(found.mean).max() + np.abs(cell.Y).max())
    of_variance = relative * (prior + found.variance.max())
    if cell.likelihood != "gaussian":  # the bound is quadratic in posterior standard deviations at its maximum
        left = np.sqrt(2 * NEWTON * cell.Y.size)
        of_mean, of_variance = of_mean + left * np.sqrt(found.variance.max()), of_variance + 2 * left * prior
    offset = cell.offset(new)
    mean = found.mean + offset

    def targets(values: Array) -> Array:
        """Return answers with an axis of targets, which is absent for one target."""
        return values[:, None] if t == 1 else values

    every = np.repeat(found.variance[:, None], t, 1)
    result = [Answer("mean", targets(gp.predict_latent(new)), mean, of_mean)]
    latent_std = gp.predict_latent(new, return_std=True, variance=system.variance)[1]
    result.append(Answer("variance", targets(latent_std) ** 2, every, of_variance))
    both, covariance = gp.predict_latent(new, return_cov=True)
    result.append(Answer("mean beside a covariance", targets(both), mean, of_mean))
    cubes = covariance[:, :, None] if t == 1 else covariance
    result.append(Answer("covariance", cubes, np.repeat(found.covariance[:, :, None], t, 2), of_variance))
    if cell.likelihood not in NOISY:
        result += of_targets(gp, cell, found, of_mean, of_variance)
    elif not cell.rows_known:
        own = gp.predict(new, return_std=True)[1] ** 2
        noise = targets(gp.predict(new, return_std=True, include_noise=True)[1] ** 2 - own)
        result.append(Answer("noise", noise, np.full_like(noise, cell.noise[0]), of_variance))
    else:
        with pytest.raises(InvalidInputError):
            gp.predict(new, return_std=True, include_noise=True)
    if system.variance == "solve":  # compare the variances from stored samples as well
        count = gp.posterior_.n_samples if hasattr(gp.posterior_, "n_samples") else gp.posterior_.deviations.shape[1]
        share = ERRORS * np.sqrt(2 / count) + FEATURES
        sampled = targets(gp.predict(new, return_std=True, variance="samples")[1]) ** 2
        result.append(Answer("variance from samples", sampled, every, share * every + of_variance))
    draws = INVERSES[cell.likelihood](gp.sample_y(new, SAMPLES, random_state=3))
    slack = np.sqrt(of_variance) if system.by_features else of_mean
    result += moments(draws[:, None] if t == 1 else draws, found, offset, np.array(slack), system.by_features)
    result += evidence(system, gp, cell, found, relative)
    return result


def of_targets(gp: GPRegressor, cell: Problem, found: Dense, of_mean: float, of_variance: float) -> list[Answer]:
    """Compare answers in the units of counts or signs with those for the latent moments of dense algebra."""
    new, t = cell.table.new, cell.Y.shape[1]
    exact = dense.TARGETS[cell.likelihood]

    def close(quantity: str, got: Array, place: int) -> Answer:
        """Compare with what follows from the latent moments; it may move as these do within their errors."""
        every = [
            np.stack([exact(m + a * of_mean, found.covariance + b * of_variance)[place] for m in found.mean.T], -1)
            for a, b in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
        ]
        moved = sum(np.abs(one - every[0]) for one in every[1:])
        got = got[..., None] if t == 1 else got
        return Answer(f"{quantity} of the target", got, every[0], 2 * moved + 1e-9 * np.abs(every[0]).max())

    mean, std = gp.predict(new, return_std=True)
    again, covariance = gp.predict(new, return_cov=True)
    # the same sums of some hundred terms, with other blocks of points
    np.testing.assert_allclose(again, mean, rtol=max(1e-6, 64 * cell.eps), atol=1e-9)
    own = gp.predict(new, return_std=True, include_noise=True)[1]
    return [
        close("mean", mean, 0),
        close("variance", std**2, 1),
        close("variance of measurements", own**2, 2),
        close("covariance", covariance, 3),
    ]


def evidence(system: System, gp: GPRegressor, cell: Problem, found: Dense, relative: float) -> list[Answer]:
    """Compare the log marginal likelihood, or the bound of it, according to `System.evidence`."""
    value, error = gp.log_marginal_likelihood()
    got = np.array([value])
    size = cell.Y.size + abs(found.evidence)
    allowed = np.array([VALUE_ERRORS * error + FIT_NATS * cell.Y.shape[1] * (error > 0) + 10 * relative * size])
    if cell.likelihood != "gaussian":
        allowed += 10 * NEWTON * cell.Y.size
    expected = np.array([found.evidence])
    if system.evidence == "bound":
        expected = np.minimum(expected, got)
    return [Answer("evidence", got, expected, allowed)]


def explained_by_the_mean(system: System, cell: Problem, said: list[warnings.WarningMessage]) -> bool:
    """Whether a fit has warned of an error that is allowed for this cell.

    Under Laplace noise, if a function that it needs is missing, the bound of relevance vectors has the kinks of least
    absolute deviations, which neither Newton's method nor the reference can handle.
    """
    may = system.name == "relevance vectors" and (cell.mean, cell.likelihood) == ("linear", "laplace")
    return may and any(issubclass(one.category, FitWarning) for one in said)


def check(
    system: System, place: int, targets: str, mean: str, noise: str, dtype: str, likelihood: str = "gaussian"
) -> None:
    """Check one cell against dense algebra, or that it is refused."""
    cell = problem(place, targets, mean, noise, dtype, likelihood)
    if system.refuses_cell(mean, noise, dtype, likelihood):
        gp = system.estimator(cell)
        with pytest.raises(InvalidInputError):
            system.fit_to(gp, cell.table.X, cell.y)
        assert not hasattr(gp, "posterior_")
        return
    if cell.table.name in system.warns:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Squared errors of the latent function")  # which it then says as well
            with pytest.warns(GigaGPWarning, match="cannot see"):
                gp = system.fit(cell)
    else:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            gp = system.fit(cell)
        if explained_by_the_mean(system, cell, said):
            return
        # With few signs no function may remain, and few functions leave out more than the noise. The predictions are
        # still those of the model.
        expected = ("threshold of RelevanceVectorMachine", "Squared errors", "Weights of relevance vectors")
        assert not [str(one.message) for one in said if not str(one.message).startswith(expected)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrong = failures(answers(system, gp, cell))
    assert not wrong, f"{system.name}, {cell.table.name}, {targets}, {mean}, {noise}, {dtype}:\n" + "\n".join(wrong)
