"""The choice between Gaussian and Student-t noise, where ``likelihood="auto"`` takes one of these."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from gigagp.errors import UNUSABLE, InvalidInputError
from gigagp.estimators.arguments import Arguments, Problem
from gigagp.estimators.choices.trials import Trial, few_values, held_exactly, learned, n_learned
from gigagp.estimators.student_fit import with_squared_scale
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.exact.evidence import bound
from gigagp.inference.exact.student import StudentObjective, check_student
from gigagp.model.likelihoods import Gaussian, Likelihood, StudentT
from gigagp.model.scaling import distances_from_bulk
from gigagp.model.student_noise import START_DF, StudentNoise, most_likely_noise
from gigagp.neighbours.correlated import most_correlated

#: Rows of the comparison of two likelihoods.
CHOICE_ROWS = 500
#: Standard deviations from which a row with such an error is compared although it was not drawn, the largest number of
#: such rows, and neighbours of each that are compared too.
_FAR_ERROR, _MOST_FAR, _NEIGHBOURS = 6.0, 10, 3
#: Student-t noise is not taken where errors beyond this many scales recur in the rows around: the slope of their
#: neighbours' mean error over their own is above the second number. Independent errors have a slope of zero. Those of a
#: part of the function that the rows of the comparison are too few to resolve, such as a narrow peak, would be
#: disregarded.
_TAIL, _ALIKE = 4.0, 0.125
#: Rows among which they are looked for: drawn at random, and with the targets farthest from most; and rows with the
#: largest errors, whose standard deviations are computed.
_LOOKED_AT, _FARTHEST, _LARGEST = 100_000, 100, 200
#: Student-t noise is taken only if it has at most this many degrees of freedom.
_NORMAL_DF = 30.0
#: Nats that a Student-t density of left-out errors gains where they have heavy tails, so that other fits are worth it.
PROMISE = 5.0


class Choice(NamedTuple):
    """The likelihood that ``"auto"`` has chosen, and why."""

    likelihood: Likelihood
    note: str


def choose(arguments: Arguments, X: np.ndarray, y: np.ndarray, generator: torch.Generator) -> Choice:
    """Return Gaussian or Student-t noise, whichever explains up to 500 rows better.

    The rows are random. Where others lie far from what a fit to these predicts, some of those and their neighbours
    replace as many: a few wrong targets among many rows spoil a fit with Gaussian noise, and no sample would hold them.
    """
    y, order = y.reshape(-1), torch.randperm(len(y), generator=generator).numpy()
    drawn = order[:_LOOKED_AT]
    rows = np.sort(order[: n_learned(min(len(y), CHOICE_ROWS), arguments.budget)])
    reason = few_values(y[rows])
    if reason is not None:
        return Choice(Gaussian(), f"Gaussian, auto: {reason}")
    normal = replace(arguments, likelihood=Gaussian())
    try:
        plain = trial(normal, X[rows], y[rows], generator.clone_state())
        found = _far_rows_and_neighbours(plain, X, y, drawn)
        if not np.isin(found, rows).all():
            rows = np.union1d(order[: len(rows) - len(found)], found)
            plain = trial(normal, X[rows], y[rows], generator.clone_state())
        promise = tail_gain(plain.standardized)
        if promise < PROMISE:
            words = f"a Student-t density of left-out errors gains {promise:.1f} nats on {len(rows):,} rows"
            return Choice(Gaussian(), f"Gaussian, auto: {words}, too few")
        robust = trial(replace(arguments, likelihood=StudentT()), X[rows], y[rows], generator.clone_state())
    except (InvalidInputError, *UNUSABLE):
        return Choice(Gaussian(), f"Gaussian, auto: the {len(rows):,} rows of the comparison could not be fitted")
    gained = f"Student-t noise gains {robust.value - plain.value:+.1f} nats on {len(rows):,} rows"
    doubt = robust.doubt(plain)
    if robust.df > _NORMAL_DF:  # the tails are not why another optimum was found
        return Choice(Gaussian(), f"Gaussian, auto: Student-t noise would have {robust.df:.0f} degrees of freedom")
    if doubt is None and _disregards_neighbours(robust, X, y, rows, drawn):
        doubt = "but rows around its outliers have similar errors"
    if doubt is not None:
        return Choice(Gaussian(), f"Gaussian, auto: {gained}, {doubt}")
    return Choice(StudentT(), f"auto: {gained}")


def check_choice(arguments: Arguments, y: np.ndarray) -> None:
    """Refuse the arguments and targets (n,) or (n, t) for which there is no choice of the likelihood."""
    estimator = arguments.estimator
    got = None
    if y[:1].size > 1:
        got = f'one target, or outputs="independent"; got {y.shape[1]} that share the noise'
    elif np.ndim(estimator.noise_variance):
        got = "noise_variance to be a number or None; got one for each row"
    elif estimator.target_transform != "none":
        got = f'target_transform="none"; got {estimator.target_transform!r} (choose one of them)'
    elif estimator.noise != "constant":
        got = f'noise="constant"; got {estimator.noise!r} (choose one of them)'
    elif arguments.optimizer is None:
        got = "an optimizer, because it compares learned models; got None"
    if got is not None:
        raise InvalidInputError(f'likelihood="auto" of GPRegressor needs {got}.')


@dataclass(frozen=True)
class _Noise(Trial):
    """A likelihood learned from the rows of the comparison; values and densities are in the target's units."""

    standardized: torch.Tensor
    df: float
    problem: Problem
    posterior: ExactPosterior


def trial(arguments: Arguments, X: np.ndarray, y: np.ndarray, generator: torch.Generator) -> _Noise:
    """Return a likelihood of noise as learned from rows, by exact inference or Student-t's bound."""
    problem = Problem.of(arguments, X, y)
    table = held_exactly(problem.table())
    model, objective = problem.model, ExactObjective(table)
    if isinstance(arguments.likelihood, StudentT):
        check_student(model, 1)
        model, objective = with_squared_scale(model, None), StudentObjective(table, None)  # type: ignore[assignment]
    posterior = objective.posterior(learned(objective, model, arguments.optimizer, generator))
    unit = math.log(problem.scaling.y_scale[0])
    left_out = posterior.left_out()
    errors = (table.Y - left_out.mean)[:, 0] * left_out.variance.rsqrt()
    densities = left_out.of_student(table.Y, posterior.model).log_density.sum(1)
    student = posterior.model.student
    df = math.inf if student is None else student.df
    return _Noise(bound(posterior) - len(y) * unit, densities - unit, errors, df, problem, posterior)


def _far_rows_and_neighbours(trial: _Noise, X: np.ndarray, y: np.ndarray, drawn: np.ndarray) -> np.ndarray:
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


def _disregards_neighbours(robust: _Noise, X: np.ndarray, y: np.ndarray, rows: np.ndarray, drawn: np.ndarray) -> bool:
    """Whether rows around the outliers of a robust fit to some rows, among those drawn, have similar errors."""
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


def _errors(trial: _Noise, X: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in the units of a trial, and their targets minus what it predicts."""
    table = trial.problem.table_of(X, y)
    points = table.X.double().cpu()
    return points, table.Y.double().cpu()[:, 0] - trial.posterior.mean(points)[:, 0]


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
