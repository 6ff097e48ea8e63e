"""Fits with Student-t noise by any inference that takes known noise variances of rows, and the choice of the noise.

Exact inference maximises the bound itself (`gigagp.inference.exact.student`). For other methods 1,000 rows give a start
of the hyperparameters, their neighbours give weights to all rows, the method learns with the noise variances that
follow from these, and its posterior gives the last weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gigagp.errors import InvalidInputError, NonFiniteError, NotPositiveDefiniteError, unshown
from gigagp.estimators.arguments import Arguments, Problem
from gigagp.estimators.choices.transform_learning import SUBSET_ROWS, few_values
from gigagp.inference import Exact, Inference
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.evidence import bound
from gigagp.inference.exact.student import StudentObjective, check_student, improved
from gigagp.inference.vecchia.student_rows import weighted_by_neighbours
from gigagp.model.likelihoods import Gaussian, Likelihood, StudentT
from gigagp.model.model import Model
from gigagp.model.scaling import distances_from_bulk
from gigagp.model.student_noise import START_DF, StudentNoise, most_likely_noise
from gigagp.neighbours.correlated import most_correlated
from gigagp.optimization import Auto, History
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import meter_for
from gigagp.settings.random import spawn

#: Rows of the comparison of two likelihoods.
CHOICE_ROWS = 500
#: Rows with an error of so many standard deviations are compared although they were not drawn, at most so many, each
#: with so many neighbours.
_FAR_ERROR, _MOST_FAR, _NEIGHBOURS = 6.0, 10, 3
#: Student-t noise is not taken where the errors beyond so many scales recur in the rows around: the slope of their
#: neighbours' mean error over their own is above this. Independent errors have a slope of zero. Those of a part of the
#: function that the rows of the comparison are too few to resolve, such as a narrow peak, would be disregarded.
_TAIL, _ALIKE = 4.0, 0.125
#: Rows among which they are looked for: drawn at random, and with the targets farthest from most; and rows with the
#: largest errors, whose standard deviations are computed.
_LOOKED_AT, _FARTHEST, _LARGEST = 100_000, 100, 200
#: Bytes for each pair of rows of a subset.
_BYTES = 64
#: Student-t noise is taken by "auto" only if it gains this many nats on the subset ...
_MARGIN = 10.0
#: ... and if the log density of left-out rows gains this many standard errors.
_STANDARD_ERRORS = 2.0
#: ... and has at most this many degrees of freedom.
_NORMAL_DF = 30.0
#: Nats that a Student-t density of left-out errors gains where they have heavy tails, so that other fits are worth it.
PROMISE = 5.0


class Choice(NamedTuple):
    """The likelihood that ``"auto"`` has chosen, and why."""

    likelihood: Likelihood
    note: str


def is_weighted(inference: Inference, likelihood: Likelihood) -> bool:
    """Whether an inference method fits a likelihood by weights of rows."""
    return likelihood.is_scale_mixture and inference.abilities.likelihoods == "gaussian"


def begin(
    arguments: Arguments, inference: Inference, table: TrainingTable, model: Model, generator: torch.Generator
) -> tuple[TableObjective, Model]:
    """Return the objective of a fit and the start of its learning, for any likelihood.

    Raises
    ------
    InvalidInputError
        If Student-t noise does not apply to the targets or their noise.
    """
    likelihood = arguments.likelihood
    if not is_weighted(inference, likelihood):
        return inference.objective(table, spawn(generator), likelihood), model
    assert isinstance(likelihood, StudentT)
    check_student(model, table.n_targets)
    df, learns = likelihood.df, arguments.optimizer is not None
    model = _with_squared_scale(model, df)
    if isinstance(inference, Exact):
        return StudentObjective(table, df if learns else df or START_DF), model
    seed = spawn(generator)
    objective = inference.objective(table, seed, Gaussian())
    noise = StudentNoise(df or START_DF, float(model.noise_variance))
    if learns:
        rows = torch.randperm(table.n_rows, generator=spawn(seed))[: _size(table.n_rows, arguments.budget)].sort()
        few = table.take_rows(rows.values.to(table.X.device))
        few = replace(few, X=few.X.double(), Y=few.Y.double())
        posterior = _learned(StudentObjective(few, df), model, arguments.optimizer, spawn(seed))
        assert posterior.model.student is not None
        model, noise = replace(model, kernel=posterior.model.kernel), posterior.model.student
    return objective, weighted_by_neighbours(model, table, noise, learns_df=df is None if learns else None)


def end(arguments: Arguments, objective: TableObjective, posterior: Posterior, generator: torch.Generator) -> Posterior:
    """Return the posterior at the weights that it gives to the rows itself, if it has weights and is not exact."""
    if posterior.model.student is None or isinstance(objective, StudentObjective):
        return posterior
    assert isinstance(arguments.likelihood, StudentT)
    learns_df, learns = arguments.likelihood.df is None, arguments.optimizer is not None
    model = improved(posterior, objective.table, learns_df=learns_df, learns_scale=learns)
    return objective.posterior(model, generator)


def choose(arguments: Arguments, X: np.ndarray, y: np.ndarray, generator: torch.Generator) -> Choice:
    """Return Gaussian or Student-t noise, whichever explains up to 500 rows better.

    The rows are random. Where others lie far from what a fit to these predicts, some of those and their neighbours
    replace as many: a few wrong targets among many rows spoil a fit with Gaussian noise, and no sample would hold them.

    Parameters
    ----------
    arguments : Arguments
        Checked arguments of the estimator.
    X : ndarray of shape (n, d)
        Inputs in the data's own units.
    y : ndarray of shape (n,) or (n, n_targets)
        Targets in the data's own units.
    generator : torch.Generator
        Source of the rows.

    Raises
    ------
    InvalidInputError
        If there are several targets, known noise variances of rows, a target transform, or nothing to learn.
    """
    _check_choice(arguments, y)
    y, order = y.reshape(-1), torch.randperm(len(y), generator=generator).numpy()
    drawn = order[:_LOOKED_AT]
    rows = np.sort(order[: _size(min(len(y), CHOICE_ROWS), arguments.budget)])
    reason = few_values(y[rows])
    if reason is not None:
        return Choice(Gaussian(), f"Gaussian, auto: {reason}")
    normal = replace(arguments, likelihood=Gaussian())
    try:
        plain = _trial(normal, X[rows], y[rows], generator.clone_state())
        found = _far_rows_and_neighbours(plain, X, y, drawn)
        if not np.isin(found, rows).all():
            rows = np.union1d(order[: len(rows) - len(found)], found)
            plain = _trial(normal, X[rows], y[rows], generator.clone_state())
        promise = tail_gain(plain.standardized)
        if promise < PROMISE:
            words = f"a Student-t density of left-out errors gains {promise:.1f} nats on {len(rows):,} rows"
            return Choice(Gaussian(), f"Gaussian, auto: {words}, too few")
        robust = _trial(replace(arguments, likelihood=StudentT()), X[rows], y[rows], generator.clone_state())
    except (InvalidInputError, NonFiniteError, NotPositiveDefiniteError):
        return Choice(Gaussian(), f"Gaussian, auto: the {len(rows):,} rows of the comparison could not be fitted")
    gained = f"Student-t noise gains {robust.value - plain.value:+.1f} nats on {len(rows):,} rows"
    objection = _objection(plain, robust, gained)
    if objection is None and _disregards_neighbours(robust, X, y, rows, drawn):
        objection = f"{gained}, but rows around its outliers have errors alike"
    if objection is not None:
        return Choice(Gaussian(), f"Gaussian, auto: {objection}")
    return Choice(StudentT(), f"auto: {gained}")


def _check_choice(arguments: Arguments, y: np.ndarray) -> None:
    """Refuse the arguments and targets (n,) or (n, t) for which there is no choice of the noise."""
    estimator = arguments.estimator
    got = None
    if y[:1].size > 1:
        got = f'one target, or outputs="independent"; got {y.shape[1]} that share the noise'
    elif np.ndim(estimator.noise_variance):
        got = "noise_variance to be a number or None; got one for each row"
    elif estimator.target_transform != "none":
        got = f'target_transform="none"; got {estimator.target_transform!r}. Choose one of them'
    elif arguments.optimizer is None:
        got = "an optimizer, because it compares learned models; got None"
    if got is not None:
        msg = f'likelihood="auto" of GPRegressor needs {got}.'
        raise InvalidInputError(msg)


def _objection(plain: _Trial, robust: _Trial, gained: str) -> str | None:
    """Return why Gaussian noise is kept although Student-t noise has been tried, if the scores of both say so."""
    gains = robust.densities - plain.densities
    if robust.df > _NORMAL_DF:  # the tails are not why another optimum was found
        return f"Student-t noise would have {robust.df:.0f} degrees of freedom"
    if robust.value - plain.value <= _MARGIN:
        return f"{gained}, too few"
    if float(gains.mean()) <= _STANDARD_ERRORS * float(gains.std()) / math.sqrt(len(gains)):
        return f"{gained}, but left-out densities gain less than their error"
    return None


class _Trial(NamedTuple):
    """A fit to the rows of the comparison: log likelihood or bound, and log densities, in the target's units."""

    value: float
    densities: torch.Tensor
    standardized: torch.Tensor
    df: float
    problem: Problem
    posterior: ExactPosterior


def _trial(arguments: Arguments, X: np.ndarray, y: np.ndarray, generator: torch.Generator) -> _Trial:
    problem = Problem.of(arguments, X, y)
    table = problem.table()
    table = replace(table, X=table.X.double().cpu(), Y=table.Y.double().cpu())
    model, objective = problem.model, ExactObjective(table)
    if isinstance(arguments.likelihood, StudentT):
        check_student(model, 1)
        model, objective = _with_squared_scale(model, None), StudentObjective(table, None)  # type: ignore[assignment]
    posterior = _learned(objective, model, arguments.optimizer, generator)
    unit = math.log(problem.scaling.y_scale[0])
    left_out = posterior.left_out()
    errors = (table.Y - left_out.mean)[:, 0] * left_out.variance.rsqrt()
    densities = left_out.of_student(table.Y, posterior.model).log_density.sum(1)
    student = posterior.model.student
    df = math.inf if student is None else student.df
    return _Trial(bound(posterior) - len(y) * unit, densities - unit, errors, df, problem, posterior)


def _far_rows_and_neighbours(trial: _Trial, X: np.ndarray, y: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the rows that lie farthest from what a fit to few of them predicts, if any do, and their neighbours.

    They are looked for among the rows ``drawn``, and those whose targets are farthest from most.
    """
    farthest = np.argpartition(distances_from_bulk(y[:, None])[:, 0], -min(_FARTHEST, len(y)))[-_FARTHEST:]
    rows, posterior = np.union1d(drawn, farthest), trial.posterior
    points, errors = _errors(trial, X[rows], y[rows])
    largest = errors.abs().topk(min(_LARGEST, len(rows))).indices
    variance = posterior.mean_and_variance(points[largest])[1] + posterior.noise_at(points[largest])
    size = errors[largest].abs() * variance.rsqrt()
    far = largest[size > _FAR_ERROR][:_MOST_FAR]
    if not len(far):
        return rows[:0]
    near = most_correlated(posterior.model.kernel, points[far], points, 1 + _NEIGHBOURS, posterior.budget).rows
    return rows[torch.cat([far, near.flatten()]).unique().numpy()]


def _disregards_neighbours(robust: _Trial, X: np.ndarray, y: np.ndarray, rows: np.ndarray, drawn: np.ndarray) -> bool:
    """Whether rows around the outliers of a robust fit to some rows, among those drawn, have errors alike."""
    everything, posterior = np.union1d(rows, drawn), robust.posterior
    points, errors = _errors(robust, X[everything], y[everything])
    assert posterior.model.student is not None
    is_far = errors.square() > _TAIL**2 * posterior.model.student.squared_scale
    outliers = (is_far & torch.from_numpy(np.isin(everything, rows))).nonzero()[:, 0]
    if not len(outliers):
        return False
    near = most_correlated(posterior.model.kernel, points[outliers], points, 1 + _NEIGHBOURS, posterior.budget).rows
    # Wrong targets that are all too high raise the mean error around any row.
    others = torch.where(near == outliers[:, None], torch.nan, errors[near]).nanmean(1) - errors.mean()
    own = errors[outliers]
    return bool(others @ own > _ALIKE * own @ own)


def _errors(trial: _Trial, X: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in the units of a trial, and their targets minus what it predicts."""
    table = trial.problem.table_of(X, y)
    points = table.X.double().cpu()
    return points, table.Y.double().cpu()[:, 0] - trial.posterior.mean(points)[:, 0]


def _learned(objective: Any, model: Model, optimizer: object, generator: torch.Generator) -> ExactPosterior:
    """Return the posterior of a small table after learning."""
    settings = optimizer if isinstance(optimizer, Auto) else Auto()
    settings = replace(settings, subset_sizes=(objective.n_rows,), polish_steps=0)
    with unshown():
        found = settings.run(objective, model, Trace(History(), meter_for(0)), generator)
    posterior = objective.posterior(found)
    assert isinstance(posterior, ExactPosterior)
    return posterior


def tail_gain(errors: torch.Tensor) -> float:
    """Return the gain in nats of a Student-t density over a normal one for standardized errors."""
    squares = errors.square()
    scale = float(squares.mean())
    if not 0 < scale < math.inf:
        return 0.0
    noise = most_likely_noise(squares, StudentNoise(START_DF, scale), learns_df=True)
    student, one = StudentT(noise.df), torch.ones_like(errors)
    zero, normal = torch.zeros_like(errors), Gaussian()
    gain = student.log_density(errors, zero, noise.variance * one) - normal.log_density(errors, zero, scale * one)
    return float(gain.sum())


def _with_squared_scale(model: Model, df: float | None) -> Model:
    """Return the model with the squared scale in place of the noise variance."""
    degrees = df or START_DF
    return replace(model, noise_variance=model.noise_variance * (degrees - 2) / degrees)


def _size(n_rows: int, budget: int) -> int:
    """Return the number of rows that a start is learned from."""
    return min(n_rows, SUBSET_ROWS, math.isqrt(budget // _BYTES))
