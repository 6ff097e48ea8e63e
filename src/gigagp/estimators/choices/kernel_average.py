"""The average of kernels that are learned on all rows by exact inference."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from gigagp.errors import UNUSABLE
from gigagp.estimators.choices.allowance import Allowance, ending_seconds, step_seconds
from gigagp.estimators.choices.candidates import PERIODIC, RIVALS, Dropped, start_from, supported, turned
from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.estimators.choices.kernel_trials import (
    KernelTrial,
    Turns,
    choice_of,
    mixture_of,
    tempered_weights,
    with_direction,
)
from gigagp.estimators.choices.trials import learned
from gigagp.inference import Inference
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.exact.mixture_posterior import require_factors
from gigagp.model.model import Model
from gigagp.optimization import Auto, History
from gigagp.optimization.objective import Objective
from gigagp.optimization.trace import Trace
from gigagp.runtime.interruption import interruptible
from gigagp.runtime.progress import current
from gigagp.runtime.run import unshown

#: Rows that candidates are learned on before all.
_SUBSET_ROWS = 500
#: Rows for each hyperparameter that a candidate needs at least.
_ROWS_EACH = 4
#: Largest number of evaluations from a start that is near the optimum: on all rows, on some of them, and those of all
#: sums together after which the best one of them is known.
_STEPS, _SUBSET_STEPS, _RIVAL_STEPS = 30, 15, 15
#: Fewest evaluations that are worth beginning with.
_FEWEST_STEPS = 3
#: From a model and an optimizer to the posterior on all rows, and the history of learning it.
Learn = Callable[[Model, object], tuple[Posterior, History]]


class Averaged(NamedTuple):
    """An average of kernels."""

    posterior: RowsPosterior  # a mixture, or that of the only kernel with weight
    history: History  # of the heaviest kernel
    choice: KernelChoice
    seconds: float = math.inf  # nominal ones that learning all kernels took, where they are known


def average_on_all_rows(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    learn: Learn,
    optimizer: object,
    deadline: float,
    *,
    is_limited: bool,
) -> Averaged:
    """Return the mixture of candidates that are learned on all rows.

    The default kernel is learned as without an average; the others begin near it. After Ctrl-C, or where the time would
    not suffice, the remaining kernels are left out. A mixture of one is that posterior itself.
    """
    table, n = objective.table, objective.n_rows
    candidates, dropped = supported(model, inference, table, table.n_rows // _ROWS_EACH)
    require_factors(table, len(candidates) + (turned(model) is not None))
    found: list[_Learned] = []

    def heaviest() -> KernelTrial:
        trials = [one.trial for one in found]
        return trials[int(np.argmax(tempered_weights(trials)))]

    turns, allowance, going_on = Turns("averaging kernels", candidates, deadline), Allowance(), optimizer
    try:
        for name, start in with_direction(turns, heaviest):
            if found and isinstance(optimizer, Auto):
                steps = allowance.steps(n, start, _STEPS, ends=True)
                if steps < _FEWEST_STEPS:
                    dropped = (*dropped, (name, "takes too long compared with the default"))
                    continue
                going_on = _Quiet(_from_near(optimizer, n, steps))
            with suppress(*(UNUSABLE if found else [])):
                found.append(_on_all_rows(name, start, found[0].trial if found else None, learn, going_on))
                history = found[-1].history
                allowance.spend(n, start, len(history), ends=True)
                if history.interrupted:
                    if history.interrupted == "last solve" and turns.waiting:
                        history.interrupted = "learning"  # of the other kernels
                    break
            if len(found) == 1 and turns.waiting and isinstance(optimizer, Auto):
                known = found[0].posterior.model
                if is_limited:
                    allowance = Allowance.beside(found[0].history, known, n)
                turns.waiting, behind = _near(known, turns.waiting, objective, optimizer, allowance)
                dropped = (*dropped, *behind)
    except KeyboardInterrupt:
        if not found:
            raise
        found[-1].history.interrupted = "learning"
    if turns.is_late:
        found[-1].history.interrupted = "time budget"
    trials = [one.trial for one in found]
    weights = tempered_weights(trials)
    mixed = [k for k, weight in enumerate(weights) if weight]
    for k in mixed:
        for warning in found[k].raised:  # of a kernel that is part of the answer
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    history = found[max(mixed, key=weights.__getitem__)].history
    history.interrupted = found[-1].history.interrupted
    components = {k: found[k].posterior for k in mixed}
    answer = found[mixed[0]].posterior if len(mixed) == 1 else mixture_of(components, weights)
    return Averaged(answer, history, choice_of("average", trials, weights, dropped), allowance.spent)


def _on_all_rows(name: str, start: Model, default: KernelTrial | None, learn: Learn, optimizer: object) -> _Learned:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        with current().inside():
            posterior, history = learn(start, optimizer)
        assert isinstance(posterior, ExactPosterior), "the inference is exact"
        with interruptible() as interruption:  # which does not lose what has been learned
            interruption.keep()
            interruption.learning = False
            trial = KernelTrial.of(name, posterior.model, posterior, default)
        if interruption.requested and not history.interrupted:
            history.interrupted = "last solve"
        return _Learned(trial, posterior, history, raised)


def _from_near(optimizer: Auto, n_rows: int, steps: int) -> Auto:
    """Return the settings with which learning on all rows goes on from where some rows have led.

    A Fisher information of many rows takes as long as two gradients, and that of some is a good metric.
    """
    settings = replace(optimizer, subset_sizes=(n_rows,), subset_steps=steps, rougher_starts=False, polish_steps=0)
    if n_rows <= _SUBSET_ROWS:
        return settings
    return replace(settings, subset_sizes=(_SUBSET_ROWS,), subset_steps=1, polish_steps=steps)


def _near(
    known: Model,
    candidates: dict[str, Model],
    objective: TableObjective,
    optimizer: object,
    allowance: Allowance,
) -> tuple[dict[str, Model], Dropped]:
    """Return where learning on all rows begins with each candidate, the best first, and those that are not worth it.

    Some rows lead nearer to the optimum from the learned default kernel, if these are many fewer than all. Of the
    sums only that one is learned which explains some rows better after a few steps: together they are half of the cost,
    and where one is better than a single kernel, the other one nearly is. Nor is a kernel that explains these rows
    worse than the default does; the best sum has more steps to show that it does not. With 2,000 rows of a product of
    two waves the error of the function was .108 without these steps and .089 with them.
    """
    n = objective.n_rows
    rows = objective.draw_rows(min(_SUBSET_ROWS, n), torch.Generator().manual_seed(0))
    subset = objective.subset(rows)
    found: dict[str, Model] = {}
    values: dict[str, float] = {}
    least, behind = subset.value(known.take_rows(rows)), []
    # Rows that show a period hardly leave a doubt about it, so that kernel comes first, and its time is kept for it.
    kept = 0.0
    if PERIODIC in candidates and n <= _SUBSET_ROWS:
        of_period = start_from(known, candidates[PERIODIC], objective.target_variance)
        kept = ending_seconds(n, of_period) + _SUBSET_STEPS * step_seconds(n, of_period)
    allowance.left -= kept
    most = _RIVAL_STEPS // max(2, sum(name in RIVALS for name in candidates))

    def advance(name: str, most: int) -> None:
        """Learn a kernel on the subset from where it is, by a few steps."""
        start = found[name]
        steps = allowance.steps(len(rows), start, most)
        if steps < _FEWEST_STEPS:
            return
        history = History()
        try:
            moved = learned(
                subset, start.take_rows(rows), optimizer, torch.Generator().manual_seed(0), steps=steps, history=history
            )
            values[name] = subset.value(moved)
        except UNUSABLE:
            values[name] = -math.inf
        else:
            learns_noise = start.noise_is_learned and not start.noise_is_known
            noise = moved.noise_variance if learns_noise else start.noise_variance
            found[name] = replace(start, kernel=moved.kernel, noise_variance=noise)
        allowance.spend(len(rows), start, len(history))

    for name in sorted(candidates, key=lambda name: name != PERIODIC):
        found[name] = start_from(known, candidates[name], objective.target_variance)
        if n <= _SUBSET_ROWS and name not in RIVALS:
            continue
        advance(name, most)
        if name not in values:
            behind.append((name, "takes too long compared with the default"))
            del found[name]
    allowance.left += kept
    best = max((name for name in values if name in RIVALS), key=lambda name: values[name], default=None)
    if best is not None and values[best] <= least:  # a smooth part begins far from the rough one that was learned
        advance(best, _SUBSET_STEPS)
    for name, value in values.items():
        if name in RIVALS and name != best:
            behind.append((name, f"is behind {best} after a few steps"))
            del found[name]
        elif value <= least:
            behind.append((name, "is behind the default after a few steps"))
            del found[name]
    order = sorted(found, key=lambda name: -values.get(name, math.inf if name == PERIODIC else -math.inf))
    return {name: found[name] for name in order}, tuple(behind)


@dataclass(frozen=True)
class _Quiet:
    """An optimizer of a candidate, whose steps are limited and of which no warning need speak."""

    settings: Auto

    def run(self, objective: Objective, model: Model, trace: Trace, generator: torch.Generator) -> Model:
        """Return the learned model."""
        with unshown():
            return self.settings.run(objective, model, trace, generator)


class _Learned(NamedTuple):
    """A kernel after learning on all rows, with the warnings that were raised."""

    trial: KernelTrial
    posterior: ExactPosterior
    history: History
    raised: list[warnings.WarningMessage]
