"""Candidates that are learned from a few rows, and taken only if they are clearly better than the plain choice.

The arguments ``likelihood``, ``target_transform`` and ``kernel`` can leave a choice to the data. Each has candidates of
its own and its own reasons against them. This module learns, compares and chooses candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import Model
from gigagp.neighbours.folds import Fold
from gigagp.optimization import Auto, History
from gigagp.optimization.trace import Trace
from gigagp.runtime.progress import NoProgress
from gigagp.runtime.run import unshown

#: Largest number of rows that a candidate is learned from, and bytes for each pair of them: matrices of a fit, and
#: those of two fits that are compared.
SUBSET_ROWS, _BYTES = 1000, 64
#: Nats that a candidate gains at least, and standard errors that the log density of left-out rows gains.
MARGIN, ERRORS = 10.0, 2.0
#: Share of the rows that are predicted worst, and by how much of the plain trial's score they, or all rows, may be
#: predicted worse than by it.
_WORST, _WORSE = 0.1, 0.03
#: For a choice of the density, at least this share of the rows must have different targets, no target may be more
#: frequent, and there must be this many rows.
_DISTINCT, _MOST_FREQUENT, _FEWEST_ROWS = 0.1, 0.05, 50
#: From a start near the optimum, how often neighbours are found, and evaluations with each.
_ROUNDS, _GUIDE_STEPS = 2, 12


class Gain(NamedTuple):
    """What a candidate gains over the plain one in nats, and the standard error of the gain of left-out rows."""

    value: float
    left_out: float
    standard_error: float
    #: what patches of rows gain as far as they can tell, and the standard error; None where the table has no gaps
    in_gaps: float | None = None
    gaps_error: float | None = None

    @property
    def least(self) -> float:
        """The smallest gain; that in gaps, which few patches tell, counts with a standard error in its favour."""
        gains = [self.value, self.left_out]
        if self.in_gaps is not None and self.gaps_error is not None:
            gains.append(self.in_gaps + self.gaps_error)
        return min(gains)


class PatchScores(NamedTuple):
    """Scores of patches of rows that are left out, means over the rows of each."""

    densities: Tensor  # log densities of the targets, (f,)
    crps: Tensor  # (f,)

    @classmethod
    def of(cls, folds: Sequence[Fold], log_densities: Tensor, crps: Tensor) -> PatchScores:
        """Return them from scores of all scored rows, one fold after the other."""
        sizes = [one.n_scored for one in folds]
        return cls(*(torch.stack([part.mean() for part in one.split(sizes)]) for one in (log_densities, crps)))


@dataclass(frozen=True)
class Trial:
    """A candidate after learning from some rows."""

    value: float  # log density of all targets, a bound on it, or the log evidence
    densities: Tensor  # (n,), log density of each target given all others
    #: continuous ranked probability scores of left-out targets, in the order of the rows (smaller is better)
    crps: Tensor | None = field(default=None, kw_only=True)
    patches: PatchScores | None = field(default=None, kw_only=True)

    def gain(self, plain: Trial) -> Gain:
        """Return what is gained over a trial on the same rows."""
        differences = self.densities - plain.densities
        error = math.sqrt(len(differences)) * float(differences.std(correction=0))
        found = Gain(self.value - plain.value, float(differences.sum()), error)
        if self.patches is None or plain.patches is None:
            return found
        told = _mean_and_error(self.patches.densities - plain.patches.densities)
        if told is None:
            return found
        return found._replace(in_gaps=len(differences) * told[0], gaps_error=len(differences) * told[1])

    def doubt(self, plain: Trial, penalty: float = 0.0) -> str | None:
        """Return why this, less a penalty in nats, is not clearly better than the plain trial, or None if it is."""
        gain = self.gain(plain)
        if gain.value - penalty <= MARGIN:
            return "too few"
        if gain.left_out <= ERRORS * gain.standard_error:
            return "but the gain in leave-one-out densities is within its error"
        return None

    def predicts_worse(self, plain: Trial) -> bool:
        """Whether left-out targets are predicted worse than by a plain trial on the same rows, by their CRPS.

        Neither the mean over all rows nor that over the worst tenth may be larger, but for a margin. Where most targets
        are exact, these decide the evidence and the log densities, and an error as large as the targets costs no more
        than a few nats. The mean over patches may not be larger by more than its standard error.
        """
        if self.patches is not None and plain.patches is not None:
            told = _mean_and_error(self.patches.crps - (1 + _WORSE) * plain.patches.crps)
            if told is not None and told[0] > told[1]:
                return True
        if self.crps is None or plain.crps is None:
            return False
        count = math.ceil(_WORST * len(self.crps))
        pairs = [(one, one.topk(count).values) for one in (self.crps, plain.crps)]
        return any(not own.mean() <= (1 + _WORSE) * other.mean() for own, other in zip(*pairs, strict=True))


def _mean_and_error(values: Tensor) -> tuple[float, float] | None:
    """Return the mean of differences between patches, and its standard error; None of fewer than two.

    A patch counts for nothing if the other rows do not determine the mean there, so that all variances are infinite.
    """
    values = values[values.isfinite()]
    return (float(values.mean()), float(values.std()) / math.sqrt(len(values))) if len(values) > 1 else None


def normal_crps(errors: Tensor, variances: Tensor) -> Tensor:
    """Return the continuous ranked probability scores (n,) of normal predictions, means over targets.

    Predictions have errors (n, t) and variances (n,) (Gneiting and Raftery 2007, eq. 21).
    """
    deviations = variances.sqrt()[:, None]
    sizes = errors / deviations
    density = (-0.5 * sizes.square()).exp() / math.sqrt(2 * math.pi)
    scores = deviations * (sizes * (2 * torch.special.ndtr(sizes) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return scores.mean(1)


T = TypeVar("T", bound=Trial)


def decide(plain: T, tried: Iterable[T], objection: Callable[[T], object], worth: Callable[[T], float]) -> T:
    """Return the candidate of the largest worth among those without an objection; the plain one if there is none."""
    return max((one for one in tried if objection(one) is None), key=worth, default=plain)


def learned(
    objective: TableObjective,
    model: Model,
    optimizer: object,
    generator: torch.Generator,
    polish_steps: int = 0,
    subset_rows: int | None = None,
    *,
    steps: int | None = None,
    history: History | None = None,
) -> Model:
    """Return the model that is learned from an objective, without progress and warnings.

    `optimization.Auto` learns it, with the settings of the optimizer if that is one, on a first subset of
    ``subset_rows`` (None: all rows, of an exact objective), and with at most ``polish_steps`` gradients afterwards. A
    start that is near the optimum has at most a number of ``steps`` on the subset, few on a guide, and no other starts
    beside it. Steps are added to the ``history``.
    """
    settings = optimizer if isinstance(optimizer, Auto) else Auto()
    settings = replace(settings, subset_sizes=(subset_rows or objective.n_rows,), polish_steps=polish_steps)
    if steps is not None:
        settings = replace(
            settings, subset_steps=steps, rougher_starts=False, guide_rounds=_ROUNDS, guide_steps=_GUIDE_STEPS
        )
    with NoProgress() as silent, unshown():
        return settings.run(objective, model, Trace(History() if history is None else history, silent), generator)


def held_exactly(table: TrainingTable) -> TrainingTable:
    """Return a small table in float64 on the CPU."""
    return table.on_cpu()


def n_learned(n_rows: int, budget: int) -> int:
    """Return how many rows candidates are learned from, within a memory budget in bytes."""
    return min(n_rows, SUBSET_ROWS, math.isqrt(budget // _BYTES))


def few_values(y: np.ndarray) -> str | None:
    """Return why no density is chosen for targets like these; None if one can be.

    A density of few values can be raised without limit, at the cost of everything else.
    """
    if len(y) < _FEWEST_ROWS:
        return f"fewer than {_FEWEST_ROWS} rows"
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < _DISTINCT * len(y):
        return f"only {len(counts)} different targets in {len(y):,} rows"
    if counts.max() > _MOST_FREQUENT * len(y):
        return f"one target in {100 * counts.max() / len(y):.0f} % of the rows"
    return None
