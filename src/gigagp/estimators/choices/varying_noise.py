"""Variances that depend on the inputs: ``noise="varying"``, ``"scaled"``, and ``"auto"``, which takes what rows show.

A fit with one noise variance comes first. The squared errors of its left-out rows, over what the fit expects of them,
say where there is more noise and where less (Kersting et al. 2007 alternate such fits). They give the start of
`gigagp.kernels.LocalVariance`, whose variances are then learned by the likelihood together with everything else. Either
they are of the noise alone (``"varying"``), or the function and the noise have the same local scale (``"scaled"``), as
heights in mountains and in plains. Many rows tell the scale in more places than can be learned so: a map of it is then
made of the squared errors, once before everything else is learned and once more after that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from gigagp.errors import UNUSABLE, FitWarning, InvalidInputError, warn
from gigagp.estimators.choices.scale_maps import scale_map
from gigagp.estimators.choices.trials import Trial, decide, normal_crps
from gigagp.inference import Inference
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.kernels import Kernel, LocalVariance, ScaleMap, White
from gigagp.kernels.units import Units
from gigagp.model.model import Model
from gigagp.optimization import History

#: Argument of the estimators.
NoiseRule = Literal["constant", "varying", "scaled", "auto"]
#: Rows for each point with its own variance, and the fewest and most points.
_ROWS_EACH, _FEWEST, _MOST = 10, 4, 40
#: Inputs up to which noise is looked for in cells of all of them, and the most that noise depends on otherwise.
_FEW_INPUTS = 3
#: Cells of an input in which squared errors are compared, rows in each, and the probability of a find by chance.
_CELLS, _ROWS_OF_CELL, _CHANCE = 10, 10, 0.01
#: Rows from which points are found, and the share of the noise that stays the same everywhere at the start.
_CLUSTERED, _SAME = 20_000, 0.1
#: Least ratio of a squared error: smaller ones, such as zero where targets repeat, tell no more.
_LEAST = 1e-4
#: Factors between the smallest and the largest start of a variance, and the overall one.
_RANGE = 20.0

#: Rows from which there is a map, the share of them with less noise than stays the same everywhere, and the share of
#: the larger expected gain of the two forms that the other one is tried for.
_MAPPED, _LEAST_NOISE, _WORTH = 5000, 0.1, 0.5


class Learn(Protocol):
    """Learns from a start, or only computes the posterior there."""

    def __call__(self, start: Model, *, learns: bool = True) -> tuple[Posterior, History]: ...


def refined(
    rule: NoiseRule,
    inference: Inference,
    table: TrainingTable,
    units: Units,
    posterior: Posterior,
    history: History,
    learn: Learn,
    generator: torch.Generator,
) -> tuple[Posterior, History, str]:
    """Return the posterior with noise that varies, if the rule asks for it or the rows show it, and a note on that.

    ``learn`` returns the posterior of what is learned from a start. Under ``"auto"`` the left-out rows must show that
    their errors differ between places, and must be predicted better, by log density and CRPS.
    """
    plain = _scored(table, posterior, history, generator)
    if plain is None:
        if rule != "auto":
            warn(
                f'noise="{rule}" needs leave-one-out predictions, which this fit lacks. The noise is constant.',
                FitWarning,
            )
        return posterior, history, "constant: this fit has no leave-one-out predictions to compare"
    X = table.X.double().cpu()
    columns, chance = _columns(X, plain.ratios)
    if rule == "auto" and chance > _CHANCE:
        return posterior, history, "constant, auto: leave-one-out errors are equally large everywhere"
    forms = ("varying", "scaled") if rule == "auto" else (rule,)
    given = X, units, columns, posterior.model, plain
    changes = [_Mapped(form, *given) if len(X) >= _MAPPED else _AtPoints(form, *given) for form in forms]
    least = _WORTH * max(one.expected_gain(table) for one in changes)
    tried: list[_Scored] = []
    words = []

    def scored(found: Posterior, steps: History) -> _Scored | None:
        return _scored(table, found, steps, generator)

    for change in changes:
        if change.expected_gain(table) < least:
            words.append(f"{change.form} not tried: it can gain less than half as much")
            continue
        try:
            inference.check_model(change.start())
            one = change.learned(learn, scored)
        except (InvalidInputError, *UNUSABLE):
            one = None
        if one is None:
            words.append(f"{change.form} could not be learned")
            continue
        gain = one.gain(plain)
        tried.append(one)
        told = f"left out {gain.left_out:+.1f} ({gain.standard_error:.1f})"
        words.append(f"{change.form} gains {gain.value:+.1f} nats, {told}")
    if rule != "auto" and not tried:
        warn(f'noise="{rule}" could not be learned, so it is constant. Give a kernel, or more rows.', FitWarning)
    best = tried[0] if tried else plain
    if rule == "auto":
        best = decide(plain, tried, lambda one: one.objection(plain), lambda one: one.gain(plain).least)
    return best.posterior, best.history, ", ".join(words)


@dataclass(frozen=True)
class _Scored(Trial):
    """A fit, and its scores of left-out rows."""

    variance: Tensor  # of left-out targets, (n,)
    ratios: Tensor  # squared errors over what the fit expects of them, (n,)
    posterior: Posterior
    history: History

    @property
    def n_learned(self) -> int:
        """Number of hyperparameters that were learned, and of scales of a map."""
        model = self.posterior.model
        scales = sum(leaf.log_scale.numel() for leaf in model.kernel.leaves() if isinstance(leaf, ScaleMap))
        return scales + model.n_learned

    def objection(self, plain: _Scored) -> str | None:
        """Return why this fit is not taken in place of the plain one, or None.

        Each further hyperparameter costs half of the logarithm of the number of rows (Schwarz 1978).
        """
        penalty = 0.5 * math.log(len(self.ratios)) * (self.n_learned - plain.n_learned)
        return self.doubt(plain, penalty) or (
            "left-out rows are predicted worse" if self.predicts_worse(plain) else None
        )


def _scored(table: TrainingTable, posterior: Posterior, history: History, generator: torch.Generator) -> _Scored | None:
    """Return a fit with the scores of its left-out rows; None if it has none of all rows."""
    try:
        left_out = posterior.left_out()
    except InvalidInputError:
        return None
    if left_out is None or len(left_out.mean) != table.n_rows:
        return None
    errors, variance = table.Y.double().cpu() - left_out.mean.cpu(), left_out.variance.cpu()
    value = float(posterior.log_marginal_likelihood(generator.clone_state()).value)
    ratios, crps = errors.square().mean(1) / variance, normal_crps(errors, variance)
    densities = left_out.log_density.cpu().sum(1)
    return _Scored(value, densities, variance, ratios, posterior, history, crps=crps)


def _columns(X: Tensor, ratios: Tensor) -> tuple[list[int], float]:
    """Return the columns that noise may depend on, and how probable such differences are by chance.

    The logarithms of squared errors are compared between cells (analysis of variance). Of few inputs, cells are
    clusters of rows, and noise depends on all inputs. Of more, they are quantiles of each, and it depends on those
    whose cells differ most.
    """
    logs = ratios.clamp_min(_LEAST).log()
    n, d = X.shape
    count = min(_CELLS, n // _ROWS_OF_CELL)
    varying = [column for column in range(d) if bool((X[:, column] != X[0, column]).any())]
    if count < 2 or not varying:
        return varying[:_FEW_INPUTS] or [0], 1.0
    if len(varying) <= _FEW_INPUTS:
        points = _points(X[:, varying], count)
        return varying, _chance(logs, torch.cdist(X[:, varying], points).argmin(1))
    edges = torch.linspace(0, 1, count + 1, dtype=torch.float64)[1:-1]
    found = []
    for column in varying:
        values = X[:, column].contiguous()
        found.append((_chance(logs, torch.bucketize(values, _some(values).quantile(edges))), column))
    found.sort()
    limit = _CHANCE / len(varying)
    chosen = [column for chance, column in found[:_FEW_INPUTS] if chance <= limit] or [found[0][1]]
    return sorted(chosen), min(1.0, found[0][0] * len(varying))


def _chance(values: Tensor, cells: Tensor) -> float:
    """Return the probability that means of equal values differ as much as those of these cells (F test)."""
    from scipy.special import fdtrc

    _, cells, counts = cells.unique(return_inverse=True, return_counts=True)
    k, n = len(counts), len(values)
    if k < 2 or n <= k:
        return 1.0
    means = torch.zeros(k, dtype=torch.float64).index_add(0, cells, values) / counts
    within = float((values - means[cells]).square().sum()) / (n - k)
    between = float((counts * (means - values.mean()).square()).sum()) / (k - 1)
    return float(fdtrc(k - 1, n - k, between / within)) if within > 0 else 1.0


def _some(rows: Tensor) -> Tensor:
    """Return evenly chosen rows."""
    return rows[:: max(1, len(rows) // _CLUSTERED)]


def _points(X: Tensor, count: int) -> Tensor:
    """Return points (count or fewer, d) spread like the rows."""
    from sklearn.cluster import KMeans

    rows = _some(X)
    distinct = len(rows.unique(dim=0))
    found = KMeans(min(count, distinct), n_init=1, random_state=0).fit(rows.numpy()).cluster_centers_
    return torch.from_numpy(found)


@dataclass(frozen=True)
class _Change(ABC):
    """A form of variances that depend on the inputs, in the place of constant ones."""

    form: str  # "varying" or "scaled"
    X: Tensor  # (n, d), standardized
    units: Units
    columns: list[int]
    model: Model
    plain: _Scored

    @abstractmethod
    def start(self) -> Model:
        """Return the model that is learned, in units of the standardized problem."""

    @abstractmethod
    def learned(self, learn: Learn, scored: Callable[[Posterior, History], _Scored | None]) -> _Scored | None:
        """Return the fit; None if it has no left-out rows."""

    def expected_gain(self, table: TrainingTable) -> float:
        """Return what left-out densities gain if only the variances change, in nats; 0 where that is not asked."""
        return 0.0

    def _with(self, kernel: Kernel, same: Tensor) -> Model:
        return replace(self.model, kernel=kernel, noise_variance=same, given=kernel.given_parameters())

    def _white(self, variance: Tensor | None = None) -> White:
        white = White(fixed=True) if variance is None else White(float(variance))
        return white.bind(self.X.shape[1])


@dataclass(frozen=True)
class _AtPoints(_Change):
    """Variances at a few points, which the likelihood learns."""

    def start(self) -> Model:
        X, columns, units, model = self.X, self.columns, self.units, self.model
        points = _points(X[:, columns], max(_FEWEST, min(_MOST, len(X) // _ROWS_EACH)))
        far = torch.cdist(points, points) + torch.diag(torch.full((len(points),), torch.inf, dtype=torch.float64))
        width = float(far.min(1).values.mean()) if len(points) > 1 else 1.0
        own = units.scale[columns]
        local = LocalVariance(points * own + units.centre[columns], width * own, columns=columns).standardized(units)
        # The logarithm of a squared normal number has the mean -1.27 (Kersting et al. 2007 smooth such logarithms).
        logs = self.plain.ratios.clamp_min(_LEAST).log() + 1.27
        weights = local.weights(X)
        factors = ((weights.T @ logs) / weights.sum(0)).exp().clamp(1 / _RANGE, _RANGE)
        noise = (1 - _SAME) * model.noise_variance
        kernel = model.kernel + self._white() * local.replace({"variance": noise * factors})
        if self.form == "scaled":
            kernel = (model.kernel + self._white(noise)) * local.replace({"variance": factors})
        return self._with(kernel, _SAME * model.noise_variance)

    def learned(self, learn: Learn, scored: Callable[[Posterior, History], _Scored | None]) -> _Scored | None:
        return scored(*learn(self.start()))


@dataclass(frozen=True)
class _Mapped(_Change):
    """A map of scales from the squared errors of left-out rows."""

    @cached_property
    def _first(self) -> ScaleMap:
        return self._map(self.plain.ratios)

    def _map(self, ratios: Tensor) -> ScaleMap:
        return scale_map(self.X, self.units, ratios, self.columns)

    def start(self) -> Model:
        return self._at(self._first)

    def learned(self, learn: Learn, scored: Callable[[Posterior, History], _Scored | None]) -> _Scored | None:
        """Return the fit whose map is made again of what was learned with the first one.

        The likelihood has one factor of all variances. Rows without any error, such as those of a sea in a map of
        heights, lower it for all others too. So nothing is learned after the last map.
        """
        first = scored(*learn(self.start()))
        if first is None:
            return None
        again = self._at(self._map(first.ratios * self._first.diagonal(self.X)))
        posterior, _ = learn(again.replace(first.posterior.model.parameters()), learns=False)
        return scored(posterior, first.history)

    def _at(self, scale: ScaleMap) -> Model:
        noise = self.model.noise_variance
        same = _SAME * noise * _some(scale.diagonal(self.X)).quantile(_LEAST_NOISE)
        white = self._white((1 - _SAME) * noise)
        varying, scaled = self.model.kernel + white * scale, (self.model.kernel + white) * scale
        return self._with(scaled if self.form == "scaled" else varying, same)

    def expected_gain(self, table: TrainingTable) -> float:
        """Return the gain at the errors of the plain fit, whose latent variance bounds that of varying noise."""
        expected = self._first.diagonal(self.X)
        if self.form == "varying":
            noise = self.model.noise_of_rows(slice(None), table.X).double().cpu()
            expected = expected.maximum(1 - noise / self.plain.variance)
        ratios = self.plain.ratios
        return float(0.5 * (ratios - ratios / expected - expected.log()).sum())
