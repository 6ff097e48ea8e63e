"""Kernels averaged or chosen by their evidence: ``kernel="average"``, ``"choose"`` and ``"auto"``.

Candidates are compared by Laplace's approximation of the evidence, and by the log densities of left-out rows
(`gigagp.inference.exact.evidence`, `gigagp.inference.contract.left_out`), also of patches of rows where there are gaps
to predict (`gigagp.neighbours.folds`); the smallest of these gains counts. On windows of a sound, a period that was
found in 200 rows gained up to 44 nats of evidence, and lost 40 to 119 nats where rows were left out and 0.3 nats a row
on new rows. All but the default begin where that was learned, which takes half of the steps.

Nor is a kernel taken that predicts left-out quarters of the rows worse than the default by their CRPS, which counts an
error by its size (`Trial.predicts_worse`). Where most targets are exact they decide the evidence and the log densities
alone, and the next row tells little of how a kernel fills gaps: an RBF with a small Matern part beside it won on single
rows of ``dslabs::death_prob``, and had three times the CRPS of the default where a quarter was left out.

- ``"average"`` mixes posteriors with weights ``exp(gain / 10)``. With all of the gain, which is nearly a choice, it won
  less often. Exact inference learns the candidates on all rows, of two sums the better one. Other methods mix the best
  three of a choice: the heaviest is learned on all rows, and the others predict from neighbours.
- ``"choose"`` learns the candidates on the same few random rows; those of a large table are given their neighbours
  among all rows, because alone they lie too far apart to show its short scales. It takes the best one if it gains a
  margin of evidence, two standard errors, and anything at all in left-out rows, and keeps the default otherwise. The
  fit goes on from the hyperparameters learned there.
- ``"auto"`` averages on small tables, where an average hardly ever loses, and chooses where it is too costly, and for
  Student-t noise, whose weights of rows differ between kernels. Its average takes at most twice as long as the default
  kernel alone, by nominal times (`gigagp.estimators.choices.allowance`): candidates have few steps, and what some
  rows show to be worth least is left out.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError, unshown
from gigagp.estimators.choices.allowance import Allowance, ending_seconds, step_seconds
from gigagp.estimators.choices.candidates import (
    DEFAULT,
    MOST_CANDIDATES,
    PERIODIC,
    RIVALS,
    Dropped,
    n_learned,
    start_from,
    supported,
)
from gigagp.estimators.choices.kernel_choice import ERRORS, MARGIN, TEMPERATURE, KernelChoice, TriedKernel
from gigagp.estimators.choices.trials import FAILURES, PatchScores, Trial, decide, learned, normal_crps
from gigagp.inference import Exact, Inference
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.evidence import laplace_evidence
from gigagp.inference.exact.mixture_posterior import MixturePosterior, require_factors
from gigagp.inference.vecchia.left_out import LeftOutRows
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.neighbours.folds import Fold, folds_like_gaps, random_folds
from gigagp.optimization import Auto, History
from gigagp.optimization.objective import Objective
from gigagp.optimization.trace import Trace
from gigagp.runtime.interruption import interruptible
from gigagp.runtime.progress import current
from gigagp.settings.random import spawn

#: Largest number of rows that ``"auto"`` averages on; beyond it, the fits take minutes.
AVERAGED_ROWS = 2000
#: Rows that a choice learns candidates on. A choice on 500 of 1,500 rows was as good as one on all. On more rows, those
#: that it learns on given their neighbours among all.
CHOICE_ROWS, NEIGHBOUR_ROWS = 500, 2000
#: Random parts of the rows that are left out one after another.
_PARTS = 4
#: Rows for each hyperparameter that a candidate needs at least, alone and given neighbours: there sums of 20 inputs and
#: more took most of the time, and won nowhere.
_ROWS_EACH, _NEIGHBOUR_ROWS_EACH = 4, 48
#: Share of the time before a deadline that a choice may take.
_CHOICE_SHARE = 0.3
#: Largest number of gradients on the subset after its first stage.
_POLISH_STEPS = 40
#: Largest number of evaluations from a start that is near the optimum: on all rows, on some of them, and those after
#: which the better one of two sums is known.
_STEPS, _SUBSET_STEPS, _RIVAL_STEPS = 30, 15, 7
#: Fewest evaluations that are worth beginning with.
_FEWEST_STEPS = 3
#: The same on a guide of all rows, where the fit goes on with the chosen kernel.
_GUIDE_STEPS = 10
#: Weight, relative to the heaviest, below which a component is left out, and most components of an average of kernels
#: that were learned on some rows.
_NEGLIGIBLE, _MOST_MIXED = 1e-3, 3
#: Least noise variance of a candidate, relative to that of the default. Where inputs repeat, a rough part of a sum
#: takes the noise's place between different inputs. Equal targets of equal inputs then gain hundreds of nats as the
#: noise falls to nothing, and the density of a new target explodes.
_LEAST_NOISE = 1e-3
#: From a model and an optimizer to the posterior on all rows, and the history of learning it.
Learn = Callable[[Model, object], tuple[Posterior, History]]


class Averaged(NamedTuple):
    """An average of kernels."""

    posterior: RowsPosterior  # a mixture, or that of the only kernel with weight
    history: History  # of the heaviest kernel
    choice: KernelChoice
    seconds: float = math.inf  # nominal ones that learning all kernels took, where they are known


def averages(kernel: object, inference: Inference, table: TrainingTable, checkpoint: object = None) -> bool:
    """Whether the fit averages kernels: ``"average"`` always, ``"auto"`` on few rows unless something is against it."""
    if kernel != "auto":
        return kernel == "average"
    few = table.n_rows <= AVERAGED_ROWS and table.n_targets == 1
    if not few or not isinstance(inference, Exact) or checkpoint is not None:
        return False
    try:
        require_factors(table, MOST_CANDIDATES)
    except MemoryBudgetError:
        return False
    return True


@dataclass(frozen=True)
class _Kernel(Trial):
    """A kernel after learning: its value is the log evidence, and its model is for all rows."""

    name: str
    model: Model
    folds: Sequence[Fold] = ()  # patches that all candidates are scored on

    @classmethod
    def of(cls, name: str, model: Model, posterior: ExactPosterior, default: _Kernel | None) -> _Kernel:
        """Return the trial of a learned posterior; None stands for the default kernel, which is this one."""
        probes = torch.Generator().manual_seed(0)  # the same for every candidate
        table, learned_model = posterior.table, posterior.model
        densities = posterior.left_out().of_student(table.Y, learned_model).log_density.sum(1)
        folds = _patches(learned_model, table, default)
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

    def refusal(self, default: _Kernel) -> str:
        """Return why the kernel is refused whatever it gains over the default one; empty if it is not."""
        if not self.model.noise_is_known and float(self.model.noise_variance) < _LEAST_NOISE * float(
            default.model.noise_variance
        ):
            return "no noise left"
        return "left-out rows predicted worse" if self.predicts_worse(default) else ""

    def objection(self, default: _Kernel) -> str | None:
        """Return why ``"choose"`` does not take the kernel in place of the default; None if it may."""
        gain = self.gain(default)
        if gain.value <= max(MARGIN, ERRORS * gain.standard_error) or gain.least <= 0:
            return "gains too little"
        return self.refusal(default) or None


class Picked(NamedTuple):
    """Where a fit goes on and with which optimizer, what was tried, and the noise of the default kernel beside it."""

    model: Model
    optimizer: object
    choice: KernelChoice | None = None
    least_noise: float = 0.0


def pick(
    kernel: object,
    objective: TableObjective,
    model: Model,
    inference: Inference,
    optimizer: object,
    generator: torch.Generator,
    deadline: float = math.inf,
) -> Picked:
    """Return the model of the kernel that a rule chooses, as learned on some rows.

    The mean and the noise are those of the given start, which is returned if ``kernel`` is no rule. Kernels that the
    inference does not support are not tried. The optimizer's settings are used if it is `optimization.Auto`. Before a
    deadline, kernels are tried for a share of the time that is left.
    """
    if kernel not in ("auto", "choose"):
        return Picked(model, optimizer)
    (default, *others), dropped, optimizer = _tried(objective, model, inference, optimizer, generator, deadline)
    best = decide(default, others, lambda one: one.objection(default), lambda one: one.gain(default).least)
    trials = default, *others
    choice = _choice("choose", trials, [float(one is best) for one in trials], dropped)
    keeps_noise = best is default or default.model.noise_is_known
    return Picked(best.model, optimizer, choice, 0.0 if keeps_noise else float(default.model.noise_variance))


class _Turns:
    """Candidates one after another, as long as one that takes as long as the slowest so far would end in time.

    They may take a share of the time that is left before a deadline; the first one is never left out.
    """

    def __init__(self, words: str, candidates: dict[str, Model], deadline: float, share: float = 1.0) -> None:
        self.waiting, self.is_late, self._began = dict(candidates), False, time.monotonic()
        self._until = self._began + share * (deadline - self._began)
        current().phase(words, len(candidates), unit="kernel", then=0.0 if share == 1 else None)

    def __iter__(self) -> Iterator[tuple[str, Model]]:
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


def _tried(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    optimizer: object,
    generator: torch.Generator,
    deadline: float,
) -> tuple[list[_Kernel], Dropped, object]:
    """Return the candidates as learned on some rows, what was left out, and the optimizer that goes on from there."""
    sees_all = _sees_all_rows(objective, model)
    rows = objective.draw_rows(min(CHOICE_ROWS, objective.n_rows), spawn(generator))
    subset = objective.subset(rows)
    most = NEIGHBOUR_ROWS // _NEIGHBOUR_ROWS_EACH if sees_all else len(rows) // _ROWS_EACH
    candidates, dropped = supported(model, inference, subset.table, most, many_rows=sees_all)
    trials: list[_Kernel] = []
    for name, candidate in _Turns("choosing a kernel", candidates, deadline, _CHOICE_SHARE):
        default = trials[0] if trials else None
        with unshown(), suppress(*([] if default is None else FAILURES)):
            if sees_all:
                trials.append(_given_neighbours(name, candidate, default, objective.table, optimizer))
            else:
                trials.append(_on_subset(name, candidate, default, subset, rows, optimizer))
    if sees_all and isinstance(optimizer, Auto):  # random rows alone would lead away from what all rows show
        optimizer = replace(
            optimizer,
            subset_sizes=(CHOICE_ROWS,),
            subset_steps=1,
            rougher_starts=False,
            guide_steps=min(_GUIDE_STEPS, optimizer.guide_steps),
        )
    return trials, dropped, optimizer


def _on_subset(
    name: str, candidate: Model, default: _Kernel | None, subset: ExactObjective, rows: torch.Tensor, optimizer: object
) -> _Kernel:
    """Learn a candidate exactly on some rows, without regard to the others; ``default`` has been learned, if any."""
    # Learning must end at the optimum: after the first stage alone, the evidence of the default was 90 nats too low on
    # a table without noise.
    own = torch.Generator().manual_seed(0)
    start = candidate if default is None else start_from(default.model, candidate, subset.target_variance)
    steps = None if default is None else _SUBSET_STEPS
    found = learned(subset, start.take_rows(rows), optimizer, own, _POLISH_STEPS, steps=steps)
    model = replace(candidate, kernel=found.kernel)
    if not candidate.noise_is_known:
        model = replace(model, noise_variance=found.noise_variance)
    return _Kernel.of(name, model, subset.posterior(found), default)


def _sees_all_rows(objective: TableObjective, model: Model) -> bool:
    """Whether candidates are learned on rows given their neighbours among all rows.

    Random rows of a large table lie farther apart than the short scales of a function, so that they do not show them.
    """
    is_gaussian = objective.is_likelihood and model.student is None
    return is_gaussian and objective.n_rows > CHOICE_ROWS and is_compiled(model.kernel, objective.table.X.device)


def _given_neighbours(
    name: str, candidate: Model, default: _Kernel | None, table: TrainingTable, optimizer: object
) -> _Kernel:
    """Learn a candidate on the likelihood of some rows given their neighbours, and predict as many left-out ones.

    ``default`` has been learned, if any. The evidence is approximated as in the Bayesian information criterion.
    """
    objective = VecchiaObjective.on_some_rows(table, NEIGHBOUR_ROWS)
    own, steps = torch.Generator().manual_seed(0), None
    if default is not None:  # random rows alone would lead away from it
        candidate, steps = start_from(default.model, candidate, objective.target_variance), 1
    found = learned(objective, candidate, optimizer, own, _POLISH_STEPS, CHOICE_ROWS, steps=steps)
    value = objective.evaluate(found).value
    assert value is not None, "Vecchia's likelihood has one"
    folds = _patches(found, table, default)
    evidence = value / objective.share - 0.5 * n_learned(found) * math.log(objective.n_rows / objective.share)
    pool, graph = pool_of(found, table), objective.graph_of(found)
    left_out = LeftOutRows.of(pool, table, graph, objective.n_neighbours, NEIGHBOUR_ROWS)
    densities = left_out.densities().masked_fill(left_out.repeated, 0.0)  # which tell of the noise alone
    crps = normal_crps(left_out.residual, left_out.variance)[~left_out.repeated]
    patches = None
    if folds:
        gaps = LeftOutRows.in_folds(found, table, folds, objective.n_neighbours, objective.prediction_neighbours)
        crps_in_gaps = normal_crps(gaps.residual, gaps.variance)
        patches = PatchScores.of(folds, -table.n_targets * gaps.densities(), crps_in_gaps)
    return _Kernel(evidence, -table.n_targets * densities, name, found, folds, crps=crps, patches=patches)


def _patches(model: Model, table: TrainingTable, default: _Kernel | None) -> Sequence[Fold]:
    """Return the patches that a default kernel was scored on, or those of a table for a learned default model."""
    if default is not None:
        return default.folds
    found = folds_like_gaps(model.kernel, table.X, table.predict_at)
    return () if found is None else found.folds


def average(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    learn: Learn,
    optimizer: object,
    generator: torch.Generator,
    deadline: float = math.inf,
    *,
    is_limited: bool = False,
) -> Averaged:
    """Return the mixture of the posteriors of kernels, and what was tried.

    The mean and the noise are those of the given start. ``learn`` returns the posterior of all rows after learning from
    a start with an optimizer, and the history. Exact inference learns all candidates so, and others the heaviest. With
    ``is_limited`` it learns those that some rows show to be best, in at most twice the nominal time of the default.
    """
    if isinstance(inference, Exact):
        return _average_on_all_rows(objective, model, inference, learn, optimizer, deadline, is_limited=is_limited)
    return _average_on_some_rows(objective, model, inference, learn, optimizer, generator, deadline)


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

    trial: _Kernel
    posterior: ExactPosterior
    history: History
    raised: list[warnings.WarningMessage]


def _average_on_all_rows(
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
    require_factors(table, len(candidates))
    found: list[_Learned] = []
    turns, allowance, going_on = _Turns("averaging kernels", candidates, deadline), Allowance(), optimizer
    try:
        for name, start in turns:
            if found and isinstance(optimizer, Auto):
                steps = allowance.steps(n, start, _STEPS, ends=True)
                if steps < _FEWEST_STEPS:
                    dropped = (*dropped, (name, "takes too long beside the default"))
                    continue
                going_on = _Quiet(_from_near(optimizer, n, steps))
            with suppress(*(FAILURES if found else [])):
                found.append(_on_all_rows(name, start, found[0].trial if found else None, learn, going_on))
                history = found[-1].history
                allowance.spend(n, start, len(history), ends=True)
                if history.interrupted:
                    if history.interrupted == "last solve" and turns.waiting:
                        history.interrupted = "learning"  # of the other kernels
                    break
            if name == DEFAULT and turns.waiting and isinstance(optimizer, Auto):
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
    answer = found[mixed[0]].posterior if len(mixed) == 1 else _mixture(components, weights)
    return Averaged(answer, history, _choice("average", trials, weights, dropped), allowance.spent)


def _on_all_rows(name: str, start: Model, default: _Kernel | None, learn: Learn, optimizer: object) -> _Learned:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        with current().inside():
            posterior, history = learn(start, optimizer)
        assert isinstance(posterior, ExactPosterior), "the inference is exact"
        with interruptible() as interruption:  # which does not lose what has been learned
            interruption.keep()
            interruption.learning = False
            trial = _Kernel.of(name, posterior.model, posterior, default)
        if interruption.requested and not history.interrupted:
            history.interrupted = "last solve"
        return _Learned(trial, posterior, history, raised)


def _average_on_some_rows(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    learn: Learn,
    optimizer: object,
    generator: torch.Generator,
    deadline: float,
) -> Averaged:
    """Return a mixture of the best kernels of a choice.

    The heaviest one is learned on all rows as if it had been chosen. The others keep the hyperparameters of some rows,
    and predict from neighbours. After an interruption they are left out.
    """
    trials, dropped, optimizer = _tried(objective, model, inference, optimizer, generator, deadline)
    weights = tempered_weights(trials)
    best = sorted(range(len(weights)), key=weights.__getitem__)[-_MOST_MIXED:]
    found, history = learn(trials[best[-1]].model, optimizer)
    neighbours = (
        objective if isinstance(objective, VecchiaObjective) else VecchiaObjective.for_learning(objective.table)
    )
    components: dict[int, RowsPosterior] = {}
    for k in sorted(best):
        left = deadline - time.monotonic()
        late = history.interrupted or (left < math.inf and left < neighbours.ending.seconds())
        if k == best[-1] and isinstance(found, RowsPosterior):
            components[k] = found
        elif k == best[-1] or (weights[k] and not late):
            at = found.model if k == best[-1] else trials[k].model
            components[k] = neighbours.learned_posterior(at, spawn(generator))
    total = sum(weights[k] for k in components)
    weights = [weight / total if k in components else 0.0 for k, weight in enumerate(weights)]
    return Averaged(_mixture(components, weights), history, _choice("average", trials, weights, dropped))


def _mixture(components: Mapping[int, RowsPosterior], weights: Sequence[float]) -> MixturePosterior:
    """Return the mixture of posteriors of kernels with these numbers."""
    mixed = torch.tensor([weights[k] for k in components], dtype=torch.float64)
    return MixturePosterior(list(components.values()), mixed, TEMPERATURE)


def require_average(table: TrainingTable, checkpoint: object) -> None:
    """Refuse an average for several targets, or with a checkpoint, which logs one kernel."""
    if checkpoint is not None:
        msg = 'checkpoint of GPRegressor.fit must be None with kernel="average", which is for short fits; got a file.'
        raise InvalidInputError(msg)
    if table.n_targets > 1:
        raise InvalidInputError(
            'kernel="average" of GPRegressor weights kernels for one target; got '
            f'{table.n_targets} that share it. Use outputs="independent", or give a kernel.'
        )


def _from_near(optimizer: Auto, n_rows: int, steps: int) -> Auto:
    """Return the settings with which learning on all rows goes on from where some rows have led.

    A Fisher information of many rows takes as long as two gradients, and that of some is a good metric.
    """
    settings = replace(optimizer, subset_sizes=(n_rows,), subset_steps=steps, rougher_starts=False, polish_steps=0)
    if n_rows <= CHOICE_ROWS:
        return settings
    return replace(settings, subset_sizes=(CHOICE_ROWS,), subset_steps=1, polish_steps=steps)


def _near(
    known: Model,
    candidates: dict[str, Model],
    objective: TableObjective,
    optimizer: object,
    allowance: Allowance,
) -> tuple[dict[str, Model], Dropped]:
    """Return where learning on all rows begins with each candidate, the best first, and those that are not worth it.

    Some rows lead nearer to the optimum from the learned default kernel, if these are many fewer than all. Of the two
    sums only that one is learned which explains some rows better after a few steps: together they are half of the cost,
    and where one is better than a single kernel, the other one nearly is. Nor is a kernel that explains these rows
    worse than the default does.
    """
    n = objective.n_rows
    rows = objective.draw_rows(min(CHOICE_ROWS, n), torch.Generator().manual_seed(0))
    subset, found, values = objective.subset(rows), {}, {}
    least, behind = subset.value(known.take_rows(rows)), []
    # Rows that show a period hardly leave a doubt about it, so that kernel comes first, and its time is kept for it.
    kept = 0.0
    if PERIODIC in candidates and n <= CHOICE_ROWS:
        of_period = start_from(known, candidates[PERIODIC], objective.target_variance)
        kept = ending_seconds(n, of_period) + _SUBSET_STEPS * step_seconds(n, of_period)
    allowance.left -= kept
    for name in sorted(candidates, key=lambda name: name != PERIODIC):
        found[name] = start = start_from(known, candidates[name], objective.target_variance)
        if n <= CHOICE_ROWS and name not in RIVALS:
            continue
        steps = allowance.steps(len(rows), start, _RIVAL_STEPS)
        if steps < _FEWEST_STEPS:
            behind.append((name, "takes too long beside the default"))
            del found[name]
            continue
        history = History()
        try:
            moved = learned(
                subset, start.take_rows(rows), optimizer, torch.Generator().manual_seed(0), steps=steps, history=history
            )
            values[name] = subset.value(moved)
        except FAILURES:
            values[name] = -math.inf
        else:
            learns_noise = start.noise_is_learned and not start.noise_is_known
            noise = moved.noise_variance if learns_noise else start.noise_variance
            found[name] = replace(start, kernel=moved.kernel, noise_variance=noise)
        allowance.spend(len(rows), start, len(history))
    allowance.left += kept
    best = max((name for name in values if name in RIVALS), key=lambda name: values[name], default=None)
    for name, value in values.items():
        if name in RIVALS and name != best:
            behind.append((name, f"is behind {best} after a few steps"))
            del found[name]
        elif value <= least:
            behind.append((name, "is behind the default after a few steps"))
            del found[name]
    order = sorted(found, key=lambda name: -values.get(name, math.inf if name == PERIODIC else -math.inf))
    return {name: found[name] for name in order}, tuple(behind)


def tempered_weights(trials: Sequence[_Kernel]) -> list[float]:
    """Return the weights ``exp(gain / 10)``, which add up to 1; refused and negligible ones are 0."""
    gains = [-math.inf if one.refusal(trials[0]) else one.gain(trials[0]).least for one in trials]
    weights = [math.exp((gain - max(gains)) / TEMPERATURE) for gain in gains]
    weights = [weight if weight > _NEGLIGIBLE else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def _choice(
    rule: Literal["average", "choose"], trials: Sequence[_Kernel], weights: Sequence[float], dropped: Dropped
) -> KernelChoice:
    """Return the record of all trials, whose first is that of the default."""
    tried = tuple(
        TriedKernel(one.name, *gain[:3], weight, one.refusal(trials[0]), *gain[3:])
        for one, gain, weight in zip(trials, [one.gain(trials[0]) for one in trials], weights, strict=True)
    )
    return KernelChoice(rule, len(trials[0].densities), tried, dropped)
