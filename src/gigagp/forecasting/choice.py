"""Transform, mean and kernel of a series, chosen together by their evidence and by left-out last stretches.

The evidence is the log marginal likelihood in the units of the values, so that transforms can be compared, less one nat
for each hyperparameter. A reference trend with the strongest season is learned with every transform. With the best one
all trends are learned, and then the best trend without the season (all of them, where its length is a guess), and with
further ones. Where a second transform is near, it has the best trends too. The best few models of each transform
forecast left-out last stretches from several origins, as long as the forecast is. The weight of a model follows its
evidence and its score in the stretches, and the forecast is the mixture of those with the transform of the heaviest. A
trend that goes on along an exponential explains many rows better than one that levels off, and forecasts worse: the
airline miles of 1937 to 1956 gain 10 nats by logarithms, and have twice the score of left-out stretches. Where the
stretches lie farther from their forecasts than these say, all covariances are multiplied by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gigagp.errors import UNUSABLE, InvalidInputError
from gigagp.estimators.arguments import Arguments, Problem
from gigagp.estimators.attributes import take
from gigagp.estimators.choices.trials import learned
from gigagp.estimators.fitting import Fitted
from gigagp.forecasting.candidates import Candidate, covariates, found_periods, season, transforms, trends
from gigagp.forecasting.times import Periods
from gigagp.inference import Exact, Inference, Markov
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.exact.column import ColumnObjective, Distances
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.model.likelihoods import Gaussian
from gigagp.model.scaling import Scaling
from gigagp.model.target_transform import TargetTransform
from gigagp.optimization import History
from gigagp.regression import GPRegressor
from gigagp.runtime.progress import current
from gigagp.runtime.run import unshown

#: Rows that candidates are learned from: the latest half, and as many of the others, drawn at random.
CHOICE_ROWS = 400
#: Latest rows that left-out stretches are taken from, with the rows before them.
_RECENT = 1000
#: Rows up to which factors cost less than passes over the rows.
_FACTORISED = 300
#: Rows up to which several candidates are mixed.
_MIXED_ROWS = 10_000
#: Candidates that forecast left-out stretches, and nats behind the best at which one is left out.
_TRIED, _BEHIND = 5, 12.0
#: Most gradients after Fisher scoring.
_POLISH_STEPS = 40
#: Nats for each e-fold of a weight, and the power of the score of left-out stretches in it for each of them.
_TEMPERATURE, _POWER = 2.0, 2.0
#: Nats that a transform or another season gains at least, and those behind the best up to which a second one is near.
_MARGIN, _NEAR = 2.0, 20.0
#: Most origins of left-out stretches, and of these how many count as known before: so many with the expected errors.
_ORIGINS, _EXPECTED = 4, 2.0
#: Probabilities at which the continuous ranked probability score is computed.
_LEVELS = (np.arange(20) + 0.5) / 20
#: Weight below which a candidate is left out of the mixture.
_NEGLIGIBLE = 0.02


@dataclass(frozen=True)
class Tried:
    """A candidate after learning."""

    candidate: Candidate
    posterior: RowsPosterior  # of the transformed values
    scaling: Scaling
    evidence: float  # log marginal likelihood in the units of the values, less one nat a hyperparameter
    crps: float = math.nan  # of left-out stretches
    excess: float = 1.0  # mean squared error of left-out stretches, in predicted variances
    n_origins: int = 0
    weight: float = 0.0


class Chosen(NamedTuple):
    """A mixture of candidates, fitted to all rows."""

    model: GPRegressor
    tried: tuple[Tried, ...]  # the heaviest first
    factor: float  # by which variances are wider than learned
    periods: tuple[float, ...]


def choose(X: np.ndarray, y: np.ndarray, known: Periods, seed: Any) -> Chosen:
    """Return the model for values y (n,) at the first rows of X; the other rows are to be forecast.

    The columns of X (n + m, 1 + covariates) are the times in steps, of which those of the values are sorted, and the
    covariates. ``known`` has the periods that may be there.
    """
    X, horizon = X[: len(y)], float(X[len(y) :, 0].max() - X[len(y) - 1, 0])
    rows, inference = _choice_rows(len(y), seed), Exact() if X.shape[1] > 1 or len(y) <= _FACTORISED else Markov()
    span = float(X[-1, 0] - X[0, 0]) + 1
    learner = _Learner(X[rows], y[rows], seed)
    tried = learner.learn_all(span, known)
    recent = X[-_RECENT:], y[-_RECENT:], horizon, _SameRows()
    close: list[Tried] = []
    for kind in dict.fromkeys(one.candidate.transform for one in tried):
        own = [one for one in tried if one.candidate.transform == kind]
        best = max(one.evidence for one in own)
        close += [forecast_left_out(one, *recent) for one in own if best - one.evidence < _BEHIND][:_TRIED]
    count = max(one.n_origins for one in close)
    weighted = _weighted(close, count)
    excess = sum(one.weight * one.excess for one in weighted)
    factor = max(1.0, (_EXPECTED + count * excess) / (_EXPECTED + count))
    model = _mixture(X, y, weighted, factor, inference, seed)
    return Chosen(model, tuple(weighted), factor, weighted[0].candidate.periods)


def _choice_rows(n: int, seed: Any) -> np.ndarray:
    if n <= CHOICE_ROWS:
        return np.arange(n)
    half = CHOICE_ROWS // 2
    earlier = np.random.default_rng(seed).choice(n - half, half, replace=False)
    return np.sort(np.concatenate([earlier, np.arange(n - half, n)]))


class _SameRows:
    """Objectives on the same rows, which share the distances of these."""

    def __init__(self) -> None:
        self._distances: Distances | None = None

    def objective(self, table: TrainingTable) -> ExactObjective:
        """Return the exact objective of a table that has the rows."""
        if table.n_inputs > 1:
            return ExactObjective(table)
        if self._distances is None:
            self._distances = Distances.of(table.X[:, 0])
        return ColumnObjective(table, self._distances)


class _Learner:
    """Learns candidates from the same rows, by exact inference."""

    def __init__(self, X: np.ndarray, y: np.ndarray, seed: Any) -> None:
        self.X, self.y, self.rows, self.seed = X, y, _SameRows(), seed

    def learn(self, candidate: Candidate) -> Tried | None:
        """Return a candidate after learning; None if its numbers leave the range of float64."""
        z = candidate.transform.forward(self.y)
        gp = GPRegressor(candidate.kernel, Exact(), None, candidate.mean, random_state=self.seed)
        generator = torch.Generator().manual_seed(0)
        try:
            with unshown():
                start = Problem.of(Arguments.of(gp), self.X, z)
                objective = self.rows.objective(start.table())
                model = learned(objective, start.model, None, generator, _POLISH_STEPS)
                posterior = objective.learned_posterior(model, generator)
        except UNUSABLE:
            return None
        finally:
            current().step()
        evidence = posterior.log_marginal_likelihood(generator).value - len(z) * math.log(start.scaling.y_scale[0])
        evidence += float(candidate.transform.log_derivative(self.y).sum())
        return Tried(candidate, posterior, start.scaling, evidence - model.n_learned)

    def learn_all(self, span: float, known: Periods) -> list[Tried]:
        """Return all trends with the transform and the seasons that suit the reference, the best first."""
        t, n = self.X[:, 0], len(self.y)
        current().phase("choosing a model", 12, unit="model")
        plain = transforms(self.y)
        looks = plain[1].forward(self.y) if plain[1].kind == "log" else self.y
        periods, cycle = found_periods(t, looks, known)
        kinds = list(trends(span, n, cycle))
        names = [one.name for one in kinds]
        extra = covariates(self.X.shape[1] - 1)

        def with_seasons(base: Candidate, transform: TargetTransform, which: Sequence[float]) -> Candidate:
            variance = float(np.var(transform.forward(self.y))) / 4
            parts = [season(one, span, variance) for one in which]
            return replace(base.plus([*parts, *extra]), transform=transform)

        def each(which: Sequence[Candidate], transform: TargetTransform, seasons: Sequence[float]) -> list[Tried]:
            tried = [self.learn(with_seasons(one, transform, seasons)) for one in which]
            return sorted([one for one in tried if one is not None], key=_worth, reverse=True)

        first = [one for transform in plain for one in each(kinds[:1], transform, periods[:1])]
        if not first:
            raise InvalidInputError("y cannot be learned: its values leave the range of float64. Change its unit.")
        best = max(first, key=lambda one: one.evidence - _MARGIN * (one.candidate.transform.kind != "none"))
        transform, seasons = best.candidate.transform, periods[:1]
        tried = sorted([best, *each(kinds[1:], transform, seasons)], key=_worth, reverse=True)
        for other in ([], *([*seasons, one] for one in periods[1:])) if periods else ():
            top = [kinds[names.index(one.candidate.name)] for one in tried[:_TRIED]]
            # A trend that wanders looks like a season, and that of a guessed length is the best of many: it has to be
            # better than any trend alone.
            now, later = (top[:1], top[1:]) if other or known.sure else (kinds, [])
            gain = _MARGIN if len(other) > len(seasons) else 0.0 if known.sure else -math.log(len(known.steps))
            again = each(now, transform, other)
            if again and again[0].evidence > tried[0].evidence + gain:
                seasons = list(other)
                tried = sorted([*again, *each(later, transform, seasons)], key=_worth, reverse=True)
        rivals = [one for one in first if one.candidate.transform != transform and best.evidence - one.evidence < _NEAR]
        if rivals:
            rival = max(rivals, key=_worth).candidate.transform
            top = [kinds[names.index(one.candidate.name)] for one in tried[: _TRIED - 1]]
            tried += each(top, rival, seasons)
        return tried


def forecast_left_out(one: Tried, X: np.ndarray, y: np.ndarray, horizon: float, rows: _SameRows) -> Tried:
    """Return a candidate with its scores in left-out last stretches, as long as the forecast if there is room.

    One Cholesky factor L of all rows serves all stretches: its first rows are the factor of the first rows, and where
    ``w = L^-1 y`` the errors of a stretch given the rows before it are ``L_ss w_s``, with the covariance
    ``L_ss L_ss'``.
    """
    t, n = X[:, 0], len(y)
    transform = one.candidate.transform
    z = transform.forward(y)
    length = min(max(horizon, 1.0), (t[-1] - t[0]) / 4)
    needed = max([10, *(int(2 * period) + 2 for period in one.candidate.periods if 2 * period < n / 2)])
    ends = np.searchsorted(t, t[-1] - length * np.arange(_ORIGINS + 1), side="right")
    ends = ends[ends >= needed]
    try:
        with unshown():
            posterior = one.posterior if len(y) == one.posterior.n_rows else given_rows(one, X, z, rows.objective)
    except UNUSABLE:
        return one
    scale = float(one.scaling.y_scale[0])
    assert isinstance(posterior, ExactPosterior), "it is from a factor"
    L, columns = posterior.factor, torch.cat([posterior.table.Y, posterior.table.basis], 1)
    whitened = torch.linalg.solve_triangular(L, columns, upper=False)
    squares, scores = [], []
    for start, end in zip(ends[1:], ends[:-1], strict=True):
        if start == end:
            break
        of_targets, of_basis = whitened[:start, :1], whitened[:start, 1:]
        trend = Trend.from_products(of_basis.T @ of_basis, of_basis.T @ of_targets)
        own = L[start:end, start:end]
        targets, basis = (own @ whitened[start:end]).split([1, len(trend.coefficients)], 1)
        errors = scale * (targets - basis @ trend.coefficients)[:, 0].numpy()
        std = scale * (own.square().sum(1) + (basis @ trend.root).square().sum(1)).sqrt().numpy()
        squares.append(float(np.mean((errors / std) ** 2)))
        scores.append(normal_scores(y[start:end], z[start:end] - errors, std, transform))
    if not scores:
        return one
    return replace(
        one, crps=float(np.mean(np.concatenate(scores))), excess=float(np.mean(squares)), n_origins=len(scores)
    )


def given_rows(
    one: Tried,
    X: np.ndarray,
    z: np.ndarray,
    objective: Callable[[TrainingTable], TableObjective],
    factor: float = 1.0,
) -> RowsPosterior:
    """Return the posterior of a candidate given other rows, all covariances times a factor."""
    model, scaling = one.posterior.model, one.scaling
    model = model.amplified(factor) or model if factor > 1 else model
    inputs, targets = scaling.inputs(X), scaling.targets(z[:, None])
    table = replace(one.posterior.table, X=torch.from_numpy(inputs), Y=torch.from_numpy(targets))
    found = objective(table).posterior(model, torch.Generator().manual_seed(0))
    assert isinstance(found, RowsPosterior), "it has all rows"
    return found


def normal_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray, transform: TargetTransform) -> np.ndarray:
    """Return the continuous ranked probability scores (m,) of forecasts that are normal after a transform."""
    from scipy.special import ndtri

    return quantile_scores(y, transform.inverse(mean[:, None] + std[:, None] * ndtri(_LEVELS)), _LEVELS)


def quantile_scores(y: np.ndarray, quantiles: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return twice the mean pinball loss of quantiles (m, levels) of evenly spread levels, near the CRPS (m,)."""
    apart = y[:, None] - quantiles
    found: np.ndarray = 2 * np.maximum(levels * apart, (levels - 1) * apart).mean(1)
    return found


def _worth(one: Tried) -> float:
    return one.evidence


def _weighted(tried: Sequence[Tried], n_origins: int) -> list[Tried]:
    """Return the candidates of the best transform, weighted by their evidence and their scores, the heaviest first."""
    evidence = np.array([one.evidence for one in tried])
    scores = np.array([one.crps for one in tried])
    logs = (evidence - evidence.max()) / _TEMPERATURE
    if np.isfinite(scores).any() and np.nanmin(scores) > 0:
        scores = np.where(np.isfinite(scores), scores, np.nanmax(scores))
        logs -= _POWER * n_origins * np.log(scores / scores.min())
    transform = tried[int(logs.argmax())].candidate.transform
    weights = np.exp(logs - logs.max()) * [one.candidate.transform == transform for one in tried]
    weights = np.where(weights > _NEGLIGIBLE * weights.sum(), weights, 0.0)
    weights /= weights.sum()
    found = [replace(one, weight=float(weight)) for one, weight in zip(tried, weights, strict=True) if weight]
    return sorted(found, key=lambda one: -one.weight)


def _mixture(
    X: np.ndarray, y: np.ndarray, tried: Sequence[Tried], factor: float, inference: Inference, seed: Any
) -> GPRegressor:
    """Return an estimator that answers with the mixture of candidates on all rows, all covariances times a factor."""
    if len(y) > _MIXED_ROWS:  # what each keeps of many rows is large
        tried = tried[:1]
    transform = tried[0].candidate.transform
    z = transform.forward(y)
    generator = torch.Generator().manual_seed(0)
    with unshown():
        posteriors = [
            given_rows(one, X, z, lambda table: inference.objective(table, generator), factor) for one in tried
        ]
    mixture = MixturePosterior(posteriors, torch.tensor([one.weight for one in tried], dtype=torch.float64))
    scaling, mean = tried[0].scaling, tried[0].candidate.mean
    kernel = mixture.model.in_own_units(scaling.units()).kernel
    kind: Any = transform.kind
    model = GPRegressor(kernel, inference, mean=mean, target_transform=kind, random_state=seed)
    model.n_features_in_ = X.shape[1]
    fitted = Fitted(mixture, scaling, History(), inference, None, Gaussian(), transform=transform.of_targets(y))
    take(model, fitted, one_target=True)
    return model
