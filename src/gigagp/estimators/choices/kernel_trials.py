"""Kernels after learning, compared with the default one, for all rules that choose or average them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch

from gigagp.estimators.choices.candidates import TURNED, Dropped, turned
from gigagp.estimators.choices.kernel_choice import ERRORS, MARGIN, TEMPERATURE, KernelChoice, TriedKernel
from gigagp.estimators.choices.trials import PatchScores, Trial, normal_crps
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.evidence import laplace_evidence
from gigagp.inference.exact.mixture_posterior import MixturePosterior
from gigagp.model.model import Model
from gigagp.neighbours.folds import Fold, folds_like_gaps, random_folds
from gigagp.runtime.progress import current

#: Random parts of the rows that are left out one after another.
_PARTS = 4
#: Weight, relative to the heaviest, below which a component is left out.
_NEGLIGIBLE = 1e-3
#: Least noise variance of a candidate, relative to that of the default. Where inputs repeat, a rough part of a sum
#: takes the noise's place between different inputs. Equal targets of equal inputs then gain hundreds of nats as the
#: noise falls to nothing, and the density of a new target explodes.
_LEAST_NOISE = 1e-3


T = TypeVar("T")


@dataclass(frozen=True)
class KernelTrial(Trial):
    """A kernel after learning: its value is the log evidence, and its model is for all rows."""

    name: str
    model: Model
    folds: Sequence[Fold] = ()  # patches that all candidates are scored on

    @classmethod
    def of(cls, name: str, model: Model, posterior: ExactPosterior, default: KernelTrial | None) -> KernelTrial:
        """Return the trial of a learned posterior; None stands for the default kernel, which is this one."""
        probes = torch.Generator().manual_seed(0)  # the same for every candidate
        table, learned_model = posterior.table, posterior.model
        densities = posterior.left_out().of_student(table.Y, learned_model).log_density.sum(1)
        folds = patches_for(learned_model, table, default)
        every = [*random_folds(table.n_rows, _PARTS, table.X.device), *folds]
        rows = torch.cat([one.scored for one in every])
        targets = table.Y[rows].double()
        parts = posterior.left_out_folds(every).of_student(targets, learned_model.take_rows(rows))
        (crps, in_gaps), (_, gap_densities) = (
            one.tensor_split([table.n_rows])
            for one in (normal_crps(targets - parts.mean, parts.variance), parts.log_density.sum(1))
        )
        patches = PatchScores.of(folds, gap_densities, in_gaps) if folds else None
        evidence = laplace_evidence(posterior, probes)
        return cls(evidence, densities, name, model, folds, crps=crps, patches=patches)

    def refusal(self, default: KernelTrial) -> str:
        """Return why the kernel is refused whatever it gains over the default one; empty if it is not."""
        if not self.model.noise_is_known and float(self.model.noise_variance) < _LEAST_NOISE * float(
            default.model.noise_variance
        ):
            return "no noise left"
        return "left-out rows are predicted worse" if self.predicts_worse(default) else ""

    def objection(self, default: KernelTrial) -> str | None:
        """Return why ``"choose"`` does not take the kernel in place of the default; None if it may."""
        gain = self.gain(default)
        if gain.value <= max(MARGIN, ERRORS * gain.standard_error) or gain.least <= 0:
            return "gains too little"
        return self.refusal(default) or None


class Turns(Generic[T]):
    """Candidates one after another, as long as one that takes as long as the slowest so far would end in time.

    They may take a share of the time that is left before a deadline; the first one is never left out.
    """

    def __init__(self, words: str, candidates: dict[str, T], deadline: float, share: float = 1.0) -> None:
        self.waiting, self.is_late, self._began = dict(candidates), False, time.monotonic()
        self._until = self._began + share * (deadline - self._began)
        current().phase(words, len(candidates), unit="kernel", then=0.0 if share == 1 else None)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        slowest = -math.inf
        while self.waiting:
            began = time.monotonic()
            if began + slowest > self._until:
                self.is_late = True
                return
            name = next(iter(self.waiting))
            yield name, self.waiting.pop(name)
            slowest = max(slowest, time.monotonic() - began)
            current().step()


def with_direction(turns: Turns[Model], best: Callable[[], KernelTrial]) -> Iterator[tuple[str, Model]]:
    """Iterate over candidates, and at the end the best of a map with a direction, which is its own start."""
    yield from turns
    if turns.is_late:
        return
    found = best()
    model = turned(found.model)
    if model is not None:
        turns.waiting = {TURNED + found.name: model}
        yield from turns


def patches_for(model: Model, table: TrainingTable, default: KernelTrial | None) -> Sequence[Fold]:
    """Return the patches that a default kernel was scored on, or those of a table for a learned default model."""
    if default is not None:
        return default.folds
    found = folds_like_gaps(model.kernel, table.X, table.predict_at)
    return () if found is None else found.folds


def tempered_weights(trials: Sequence[KernelTrial]) -> list[float]:
    """Return the weights ``exp(gain / 10)``, which add up to 1; refused and negligible ones are 0."""
    gains = [-math.inf if one.refusal(trials[0]) else one.gain(trials[0]).least for one in trials]
    weights = [math.exp((gain - max(gains)) / TEMPERATURE) for gain in gains]
    weights = [weight if weight > _NEGLIGIBLE else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def choice_of(
    rule: Literal["average", "choose"], trials: Sequence[KernelTrial], weights: Sequence[float], dropped: Dropped
) -> KernelChoice:
    """Return the record of all trials, whose first is that of the default."""
    tried = tuple(
        TriedKernel(one.name, *gain[:3], weight, one.refusal(trials[0]), *gain[3:])
        for one, gain, weight in zip(trials, [one.gain(trials[0]) for one in trials], weights, strict=True)
    )
    return KernelChoice(rule, len(trials[0].densities), tried, dropped)


def mixture_of(components: Mapping[int, RowsPosterior], weights: Sequence[float]) -> MixturePosterior:
    """Return the mixture of posteriors of kernels with these numbers."""
    mixed = torch.tensor([weights[k] for k in components], dtype=torch.float64)
    return MixturePosterior(list(components.values()), mixed, TEMPERATURE)
