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
  less often. Exact inference learns the candidates on all rows, of the sums the best one. Other methods mix the best
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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch

from gigagp.errors import UNUSABLE, InvalidInputError, MemoryBudgetError
from gigagp.estimators.choices.candidates import MOST_CANDIDATES, TURNED, Dropped, n_learned, start_from, supported
from gigagp.estimators.choices.kernel_average import Averaged, Learn, average_on_all_rows
from gigagp.estimators.choices.kernel_choice import KernelChoice
from gigagp.estimators.choices.kernel_trials import (
    KernelTrial,
    Turns,
    choice_of,
    mixture_of,
    patches_for,
    tempered_weights,
    with_direction,
)
from gigagp.estimators.choices.other_likelihoods import OtherObjective, compared
from gigagp.estimators.choices.trials import PatchScores, decide, learned, normal_crps
from gigagp.inference import Exact, Inference
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.rows_posterior import RowsPosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.mixture_posterior import require_factors
from gigagp.inference.vecchia.learning_rows import spread_and_clustered
from gigagp.inference.vecchia.left_out import LeftOutRows
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.kernels import Outputs
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.neighbours.metric import Metric
from gigagp.optimization import Auto
from gigagp.runtime.run import unshown
from gigagp.settings.random import spawn

#: Largest number of rows that ``"auto"`` averages on; beyond it, the fits take minutes.
AVERAGED_ROWS = 2000
#: Rows that a choice learns candidates on. A choice on 500 of 1,500 rows was as good as one on all. On more rows, those
#: that it learns on given their neighbours among all.
CHOICE_ROWS, NEIGHBOUR_ROWS = 500, 2000
#: Cells of several outputs that it learns candidates on, by dense algebra: rows of all outputs show how they correlate.
_OUTPUT_CELLS = 700
#: Rows for each hyperparameter that a candidate needs at least, alone and given neighbours: there sums of 20 inputs and
#: more took most of the time, and won nowhere.
_ROWS_EACH, _NEIGHBOUR_ROWS_EACH = 4, 48
#: Rows that kernels are compared on by dense algebra where neighbours misjudge them, and how many kernels are.
EXACT_ROWS, _MOST_EXACT = 1500, 2
#: Share of the time before a deadline that a choice may take.
_CHOICE_SHARE = 0.3
#: Largest number of gradients on the subset after its first stage.
_POLISH_STEPS = 40
#: Largest number of evaluations from a start that is near the optimum, on some rows.
_SUBSET_STEPS = 15
#: The same on a guide of all rows, where the fit goes on with the chosen kernel.
_GUIDE_STEPS = 10
#: Most components of an average of kernels that were learned on some rows.
_MOST_MIXED = 3


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
    trials, dropped, going_on = _tried(objective, model, inference, optimizer, generator, deadline)
    if not trials:
        return Picked(model, optimizer)
    default, best = trials[0], _best(trials)
    choice = choice_of("choose", trials, [float(one is best) for one in trials], dropped)
    if best is default and isinstance(objective, OtherObjective):
        return Picked(model, optimizer, choice)  # to be learned as if nothing had been compared
    keeps_noise = best is default or default.model.noise_is_known
    return Picked(best.model, going_on, choice, 0.0 if keeps_noise else float(default.model.noise_variance))


def _best(trials: Sequence[KernelTrial]) -> KernelTrial:
    """Return the default kernel, which comes first, or the one that is clearly better; see `KernelTrial.objection`.

    A direction has to be clearly better than the same kernel without one.
    """
    default, *others = trials
    turned = [one for one in others if one.name.startswith(TURNED)]
    round_ones = [one for one in others if one not in turned]
    best = decide(default, round_ones, lambda one: one.objection(default), lambda one: one.gain(default).least)
    return decide(best, turned, lambda one: one.objection(best), lambda one: one.gain(best).least)


def _tried(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    optimizer: object,
    generator: torch.Generator,
    deadline: float,
) -> tuple[list[KernelTrial], Dropped, object]:
    """Return the candidates as learned on some rows, what was left out, and the optimizer that goes on from there."""
    if isinstance(objective, OtherObjective):
        return compared(objective, model, inference, optimizer, deadline)
    of_outputs = any(isinstance(leaf, Outputs) for leaf in model.kernel.leaves())
    sees_all = not of_outputs and _sees_all_rows(objective, model)
    count = _OUTPUT_CELLS if of_outputs else CHOICE_ROWS
    rows = objective.draw_rows(min(count, objective.n_rows), spawn(generator))
    subset = objective.subset(rows)
    most = NEIGHBOUR_ROWS // _NEIGHBOUR_ROWS_EACH if sees_all else len(rows) // _ROWS_EACH
    candidates, dropped = supported(model, inference, subset.table, most, many_rows=sees_all)
    trials: list[KernelTrial] = []
    table = objective.table if sees_all else subset.table
    turns = Turns("choosing a kernel", candidates, deadline, _CHOICE_SHARE)
    for name, start in with_direction(turns, lambda: _best(trials)):
        default = trials[0] if trials else None
        if default is not None and name in candidates:
            start = start_from(default.model, start, table.target_variance)
        with unshown(), suppress(*([] if default is None else UNUSABLE)):
            if sees_all:
                trials.append(_given_neighbours(name, start, default, table, optimizer))
            else:
                given = start, default, subset, rows, optimizer
                trials.append(_on_subset(name, *given, is_near=default is not None))
    if sees_all:
        trials, behind = _compared_exactly(trials, objective, optimizer, deadline)
        dropped = (*dropped, *behind)
    if (sees_all or of_outputs) and isinstance(optimizer, Auto):  # fewer rows would lead away from what these show
        optimizer = replace(
            optimizer,
            subset_sizes=(CHOICE_ROWS,),
            subset_steps=1,
            rougher_starts=False,
            guide_steps=min(_GUIDE_STEPS, optimizer.guide_steps),
        )
    return trials, dropped, optimizer


def _compared_exactly(
    trials: list[KernelTrial], objective: TableObjective, optimizer: object, deadline: float
) -> tuple[list[KernelTrial], Dropped]:
    """Return the default and the best kernels as learned from some rows by dense algebra, and what is left out.

    Where neighbours miss much they misjudge a smooth part of many inputs. Half of the rows lie in clusters, which show
    the short scales. Where neighbours suffice, or the time does not, the trials are returned as they are.
    """
    default, *others = trials
    worth = {one.name: one.gain(default).least for one in others if not one.refusal(default)}
    best = sorted((one for one in others if worth.get(one.name, 0.0) > 0), key=lambda one: -worth[one.name])
    best, table = best[:_MOST_EXACT], objective.table
    try:
        if not best or VecchiaObjective.for_learning(table).suffices(best[0].model):
            return trials, ()
        rows = spread_and_clustered(Metric(default.model.kernel, table.X)(table.X), min(EXACT_ROWS, table.n_rows))
        subset = objective.subset(rows)
    except MemoryBudgetError:
        return trials, ()
    starts = {one.name: one.model for one in (default, *best)}
    turns, found = Turns("comparing kernels exactly", starts, deadline, _CHOICE_SHARE), list[KernelTrial]()
    for name, start in turns:
        known = found[0] if found else None
        with unshown(), suppress(*UNUSABLE):
            found.append(_on_subset(name, start, known, subset, rows, optimizer, is_near=True))
    if turns.is_late or not found or found[0].name != default.name:
        return trials, ()
    words = f"is behind {best[-1].name} by neighbours"
    return found, tuple((one.name, words) for one in others if one.name not in starts)


def _on_subset(
    name: str,
    candidate: Model,
    default: KernelTrial | None,
    subset: ExactObjective,
    rows: torch.Tensor,
    optimizer: object,
    *,
    is_near: bool,
) -> KernelTrial:
    """Learn a candidate exactly on some rows, without regard to the others; ``default`` has been learned, if any.

    ``is_near`` says whether the candidate is near the optimum.
    """
    # Learning must end at the optimum: after the first stage alone, the evidence of the default was 90 nats too low on
    # a table without noise.
    own = torch.Generator().manual_seed(0)
    steps = _SUBSET_STEPS if is_near else None
    found = learned(subset, candidate.take_rows(rows), optimizer, own, _POLISH_STEPS, steps=steps)
    model = replace(candidate, kernel=found.kernel)
    if not candidate.noise_is_known:
        model = replace(model, noise_variance=found.noise_variance)
    return KernelTrial.of(name, model, subset.posterior(found), default)


def _sees_all_rows(objective: TableObjective, model: Model) -> bool:
    """Whether candidates are learned on rows given their neighbours among all rows.

    Random rows of a large table lie farther apart than the short scales of a function, so that they do not show them.
    """
    is_gaussian = objective.is_likelihood and model.student is None
    return is_gaussian and objective.n_rows > CHOICE_ROWS and is_compiled(model.kernel)


def _given_neighbours(
    name: str, candidate: Model, default: KernelTrial | None, table: TrainingTable, optimizer: object
) -> KernelTrial:
    """Learn a candidate on the likelihood of some rows given their neighbours, and predict as many left-out ones.

    ``default`` has been learned, if any. The evidence is approximated as in the Bayesian information criterion.
    """
    objective = VecchiaObjective.on_some_rows(table, NEIGHBOUR_ROWS)
    own = torch.Generator().manual_seed(0)
    steps = None if default is None else 1  # random rows alone would lead away from it
    found = learned(objective, candidate, optimizer, own, _POLISH_STEPS, CHOICE_ROWS, steps=steps)
    value = objective.evaluate(found).value
    assert value is not None, "Vecchia's likelihood has one"
    folds = patches_for(found, table, default)
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
    return KernelTrial(evidence, -table.n_targets * densities, name, found, folds, crps=crps, patches=patches)


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
        return average_on_all_rows(objective, model, inference, learn, optimizer, deadline, is_limited=is_limited)
    return _average_on_some_rows(objective, model, inference, learn, optimizer, generator, deadline)


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
    return Averaged(mixture_of(components, weights), history, choice_of("average", trials, weights, dropped))


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
