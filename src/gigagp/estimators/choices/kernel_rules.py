"""Kernels averaged or chosen by their evidence: ``kernel="average"``, ``"choose"`` and ``"auto"``.

Candidates are compared by Laplace's approximation of the evidence, and by the log densities of left-out rows
(`gigagp.inference.exact.evidence`, `gigagp.inference.contract.left_out`); the smaller of the two gains counts. On
windows of a sound, a period that was found in 200 rows gained up to 44 nats of evidence, and lost 40 to 119 nats where
rows were left out and 0.3 nats a row on new rows.

Nor is a kernel taken that predicts left-out quarters of the rows worse than the default by their CRPS, which counts an
error by its size (`Trial.predicts_worse`). Where most targets are exact they decide the evidence and the log densities
alone, and the next row tells little of how a kernel fills gaps: an RBF with a small Matern part beside it won on single
rows of ``dslabs::death_prob``, and had three times the CRPS of the default where a quarter was left out.

- ``"average"`` learns the candidates on all rows, and mixes their exact posteriors with weights ``exp(gain / 10)``.
  With all of the gain, which is nearly a choice, it won less often.
- ``"choose"`` learns the candidates on the same few random rows; those of a large table are given their neighbours
  among all rows, because alone they lie too far apart to show its short scales. It takes the best one if it gains a
  margin of evidence, two standard errors, and anything at all in left-out rows, and keeps the default otherwise. The
  fit goes on from the hyperparameters learned there.
- ``"auto"`` averages on small tables, where an average hardly ever loses, and chooses where it is too costly, and for
  Student-t noise, whose weights of rows differ between kernels.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError, unshown
from gigagp.estimators.choices.kernel_choice import ERRORS, MARGIN, TEMPERATURE, KernelChoice, TriedKernel
from gigagp.estimators.choices.trials import FAILURES, Trial, decide, learned, normal_crps
from gigagp.inference import Exact, Inference
from gigagp.inference.automatic.objective import LeftOutRows
from gigagp.inference.contract.exact_posterior import ExactPosterior
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.evidence import laplace_evidence
from gigagp.inference.exact.mixture_posterior import MixturePosterior, require_factors
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.kernels import RBF, Kernel, Linear, Matern, Periodic, RationalQuadratic, Sum
from gigagp.kernels.leaf import Leaf
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.optimization import History
from gigagp.runtime.progress import current
from gigagp.settings.random import spawn

#: Largest number of rows that ``"auto"`` averages on; beyond it, the fits take minutes.
AVERAGED_ROWS = 2000
#: Rows that a choice learns candidates on. A choice on 500 of 1,500 rows was as good as one on all. On more rows, those
#: that it learns on given their neighbours among all.
CHOICE_ROWS, NEIGHBOUR_ROWS = 500, 2000
#: Random parts of the rows that are left out one after another.
_PARTS = 4
#: Share of the time before a deadline that a choice may take.
_CHOICE_SHARE = 0.3
#: Largest number of gradients on the subset after its first stage.
_POLISH_STEPS = 40
#: Weight, relative to the heaviest, below which a component is left out.
_NEGLIGIBLE = 1e-3
#: Least noise variance of a candidate, relative to that of the default. Where inputs repeat, a rough part of a sum
#: takes the noise's place between different inputs. Equal targets of equal inputs then gain hundreds of nats as the
#: noise falls to nothing, and the density of a new target explodes.
_LEAST_NOISE = 1e-3
#: From a model to its posterior on all rows, and the history of learning it.
Learn = Callable[[Model], tuple[Posterior, History]]


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

    @classmethod
    def of(cls, name: str, model: Model, posterior: ExactPosterior) -> _Kernel:
        """Return the trial of a learned posterior."""
        probes = torch.Generator().manual_seed(0)  # the same for every candidate
        targets = posterior.table.Y.double()
        left_out, parts = (
            one.of_student(targets, posterior.model) for one in (posterior.left_out(), posterior.left_out_parts(_PARTS))
        )
        crps = normal_crps(targets - parts.mean, parts.variance)
        return cls(laplace_evidence(posterior, probes), left_out.log_density.sum(1), name, model, crps=crps)

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
    """What a fit goes on from, what was tried, and the noise that the default kernel has learned beside another one."""

    model: Model
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
        return Picked(model)
    sees_all = _sees_all_rows(objective, model)
    rows = objective.draw_rows(min(CHOICE_ROWS, objective.n_rows), spawn(generator))
    subset = objective.subset(rows)
    candidates = _candidates(model, inference, subset.table, many_rows=sees_all)
    trials: list[_Kernel] = []
    began = time.monotonic()
    current().phase("choosing a kernel", len(candidates), unit="kernel")
    for name, candidate in candidates.items():
        spent = time.monotonic() - began
        if trials and spent * (1 + 1 / len(trials)) > _CHOICE_SHARE * (deadline - began):
            break
        with unshown(), suppress(*([] if name == DEFAULT else FAILURES)):
            if sees_all:
                trials.append(_given_neighbours(name, candidate, objective.table, optimizer))
            else:
                trials.append(_on_subset(name, candidate, subset, rows, optimizer))
        current().step()
    default, *others = trials
    best = decide(default, others, lambda one: one.objection(default), lambda one: one.gain(default).least)
    choice = _choice("choose", len(default.densities), trials, [float(one is best) for one in trials])
    keeps_noise = best is default or default.model.noise_is_known
    return Picked(best.model, choice, 0.0 if keeps_noise else float(default.model.noise_variance))


def _on_subset(name: str, candidate: Model, subset: ExactObjective, rows: torch.Tensor, optimizer: object) -> _Kernel:
    """Learn a candidate exactly on some rows, without regard to the others."""
    # Learning must end at the optimum: after the first stage alone, the evidence of the default was 90 nats too low on
    # a table without noise.
    start, own = candidate.take_rows(rows), torch.Generator().manual_seed(0)
    found = learned(subset, start, optimizer, own, _POLISH_STEPS)
    model = replace(candidate, kernel=found.kernel)
    if not candidate.noise_is_known:
        model = replace(model, noise_variance=found.noise_variance)
    return _Kernel.of(name, model, subset.posterior(found))


def _sees_all_rows(objective: TableObjective, model: Model) -> bool:
    """Whether candidates are learned on rows given their neighbours among all rows.

    Random rows of a large table lie farther apart than the short scales of a function, so that they do not show them.
    """
    is_gaussian = objective.is_likelihood and model.student is None
    return is_gaussian and objective.n_rows > CHOICE_ROWS and is_compiled(model.kernel, objective.table.X.device)


def _given_neighbours(name: str, candidate: Model, table: TrainingTable, optimizer: object) -> _Kernel:
    """Learn a candidate on the likelihood of some rows given their neighbours, and predict as many left-out ones.

    The evidence is approximated as in the Bayesian information criterion.
    """
    objective = VecchiaObjective.on_some_rows(table, NEIGHBOUR_ROWS)
    own = torch.Generator().manual_seed(0)
    found = learned(objective, candidate, optimizer, own, _POLISH_STEPS, CHOICE_ROWS)
    value = objective.evaluate(found).value
    assert value is not None, "Vecchia's likelihood has one"
    count = sum(one.numel() for name, one in found.parameters().items() if name in found.learned_names())
    evidence = value / objective.share - 0.5 * count * math.log(objective.n_rows / objective.share)
    pool, graph = pool_of(found, table), objective.graph_of(found)
    left_out = LeftOutRows.of(pool, table, graph, objective.n_neighbours, NEIGHBOUR_ROWS)
    densities = left_out.densities().masked_fill(left_out.repeated, 0.0)  # which tell of the noise alone
    crps = normal_crps(left_out.residual, left_out.variance)[~left_out.repeated]
    return _Kernel(evidence, -table.n_targets * densities, name, found, crps=crps)


def average(
    objective: TableObjective,
    model: Model,
    inference: Inference,
    learn: Learn,
    deadline: float = math.inf,
    checkpoint: object = None,
) -> tuple[MixturePosterior, History, KernelChoice]:
    """Return the mixture of the posteriors of the candidates, the history of the heaviest, and what was tried.

    The mean and the noise are those of the given start. ``learn`` returns the exact posterior of all rows after
    learning from a start, and the history. After Ctrl-C the remaining kernels are left out, and so is one that would
    end after the deadline if it took as long as the slowest so far. A checkpoint is refused, because it logs one
    kernel.
    """
    if checkpoint is not None:
        msg = 'checkpoint of GPRegressor.fit must be None with kernel="average", which is for short fits; got a file.'
        raise InvalidInputError(msg)
    if objective.table.n_targets > 1:
        raise InvalidInputError(
            'kernel="average" of GPRegressor weights kernels for one target; got '
            f'{objective.table.n_targets} that share it. Use outputs="independent", or give a kernel.'
        )
    candidates = _candidates(model, inference, objective.table)
    require_factors(objective.table, len(candidates))
    trials: list[_Kernel] = []
    posteriors: list[ExactPosterior] = []
    histories: list[History] = []
    raised: list[list[warnings.WarningMessage]] = []
    slowest = 0.0
    current().phase("averaging kernels", len(candidates), unit="kernel", then=0.0)
    for name, candidate in candidates.items():
        began = time.monotonic()
        if trials and began + slowest > deadline:
            histories[-1].interrupted = "time budget"
            break
        with warnings.catch_warnings(record=True) as caught, suppress(*([] if name == DEFAULT else FAILURES)):
            warnings.simplefilter("always")
            with current().inside():
                posterior, history = learn(candidate)
            assert isinstance(posterior, ExactPosterior), "the inference is exact"
            trials.append(_Kernel.of(name, posterior.model, posterior))
            posteriors.append(posterior)
            histories.append(history)
            raised.append(caught)
            slowest = max(slowest, time.monotonic() - began)
            if history.interrupted:
                if history.interrupted == "last solve" and name != list(candidates)[-1]:
                    history.interrupted = "learning"  # of the other kernels
                break
        current().step()
    weights = tempered_weights(trials)
    mixed = [k for k, weight in enumerate(weights) if weight]
    for k in mixed:
        for warning in raised[k]:  # of a kernel that is part of the answer
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    history = histories[max(mixed, key=weights.__getitem__)]
    history.interrupted = histories[-1].interrupted
    mixture = MixturePosterior(
        [posteriors[k] for k in mixed], torch.tensor([weights[k] for k in mixed], dtype=torch.float64)
    )
    return mixture, history, _choice("average", posteriors[0].n_rows, trials, weights)


def _candidates(
    model: Model, inference: Inference, table: TrainingTable, *, many_rows: bool = False
) -> dict[str, Model]:
    """Return the start of every candidate that the inference supports, the default kernel's first."""
    found: dict[str, Model] = {}
    for name, kernel in candidate_kernels(model.kernel, table.X, table.Y[:, 0], many_rows=many_rows).items():
        with suppress(InvalidInputError):
            candidate = replace(model, kernel=kernel)
            inference.check_model(candidate)
            found[name] = candidate
    return found


def tempered_weights(trials: Sequence[_Kernel]) -> list[float]:
    """Return the weights ``exp(gain / 10)``, which add up to 1; refused and negligible ones are 0."""
    gains = [-math.inf if one.refusal(trials[0]) else one.gain(trials[0]).least for one in trials]
    weights = [math.exp((gain - max(gains)) / TEMPERATURE) for gain in gains]
    weights = [weight if weight > _NEGLIGIBLE else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def _choice(
    rule: Literal["average", "choose"], n_rows: int, trials: Sequence[_Kernel], weights: Sequence[float]
) -> KernelChoice:
    """Return the record of all trials, whose first is that of the default."""
    tried = tuple(
        TriedKernel(one.name, *one.gain(trials[0]), weight, one.refusal(trials[0]))
        for one, weight in zip(trials, weights, strict=True)
    )
    return KernelChoice(rule, n_rows, tried)


# The kernels that the rules for ``kernel`` try, with start values in standardized units -------------------------------


#: Name of the kernel that is kept unless another is clearly better.
DEFAULT = "matern32"
#: Largest number of candidates.
MOST_CANDIDATES = 6
#: Lengthscales of the smooth and of the rough part of a sum, in square roots of the number of inputs.
_SCALES = (2.0, 0.5)
#: Variances of the two parts.
_SHARES = (0.7, 0.3)
#: Least number of rows, least number of cycles in them, and frequencies tried for each cycle of the span.
_ROWS, _CYCLES, _OVERSAMPLING = 30, 3, 5
#: Share of the variance below which what a cubic leaves is rounding errors.
_ROUNDING = 1e-20
#: Largest probability that white noise has as high a peak in its spectrum.
_FALSE_ALARM = 0.01


def candidate_kernels(
    default: Kernel, X: torch.Tensor, y: torch.Tensor, *, many_rows: bool = False
) -> dict[str, Kernel]:
    """Return the kernels that are averaged or chosen from, by their words on the command line; the default comes first.

    In one input there are a slope and a period too. With more inputs, slopes have won on no table, and lost 0.14 nats a
    row on one of 200 rows and 18 inputs. On seven tables of 1,500 rows and five of 500, a Matern kernel of order 1/2 or
    5/2 or an RBF alone was worse than the default more often than better, by up to 1.2 nats a row.

    Inputs (n, d) that share a lengthscale in the default kernel, which is bound to them, do so in every kernel. What
    follows the first part of a sum, the noise of some rows, is part of every kernel. A period is looked for in the
    spectrum of the targets y (n,).
    """
    base, *noise = default.parts if isinstance(default, Sum) else (default,)
    d, groups = X.shape[1], base.groups if isinstance(base, Leaf) else None
    root = math.sqrt(d if groups is None else 1 + max(groups))
    (long, short), (most, least) = [root * scale for scale in _SCALES], _SHARES

    def alike(kernel: Leaf) -> Kernel:
        return (kernel if groups is None else kernel.with_groups(groups)).bind(d)

    found = {
        DEFAULT: alike(Matern(nu=1.5)),
        "rq": alike(RationalQuadratic()),
        "matern32+matern12": alike(Matern(1.5, long, most)) + alike(Matern(0.5, short, least)),
        "rbf+matern32": alike(RBF(long, most)) + alike(Matern(1.5, short, least)),
    }
    if many_rows:  # which show the short scales
        found["matern12"], found["matern52"] = alike(Matern(nu=0.5)), alike(Matern(nu=2.5))
        found["matern32+matern32"] = alike(Matern(1.5, long, most)) + alike(Matern(1.5, short, least))
    if d > 1:
        return {name: reduce(add, noise, kernel) for name, kernel in found.items()}
    found["matern32+linear"] = (Matern(nu=1.5) + Linear(_SHARES[1])).bind(1)
    period = strongest_period(X[:, 0], y)
    if period is not None:
        # The shape of the cycle changes slowly. One variance of the product is enough.
        cycle = RBF(1.0, 1.0, fixed=("variance",)) * Periodic(1.0, _SHARES[1], period)
        found["matern32+rbf*periodic"] = (Matern(nu=1.5) + cycle).bind(1)
    return found


def strongest_period(x: torch.Tensor, y: torch.Tensor) -> float | None:
    """Return the period at the highest peak of the spectrum of uneven rows; None if noise alone has such peaks.

    A cubic trend is taken out first. A peak is as good a start as the likelihood needs: its basin is one cycle in the
    span of the rows wide, and the frequencies tried lie five times closer.
    """
    x, y = x.double().cpu(), y.double().cpu()
    n, span = len(x), float(x.max() - x.min())
    if n < _ROWS or not span:
        return None
    place = (x - x.min()) / span
    trend = (2 * place[:, None] - 1) ** torch.arange(4)
    whole = float(y.var())
    y = y - trend @ torch.linalg.lstsq(trend, y[:, None]).solution[:, 0]
    variance = float(y.square().mean())
    if variance <= _ROUNDING * whole:
        return None
    cycles = torch.arange(_CYCLES * _OVERSAMPLING, n * _OVERSAMPLING // 2, dtype=torch.float64) / _OVERSAMPLING
    angles = 2 * math.pi * cycles[:, None] * place
    power = ((angles.cos() @ y).square() + (angles.sin() @ y).square()) / (n * variance)
    best = int(power.argmax())
    # the power of white noise is exponential (Scargle 1982)
    return None if float(power[best]) < math.log(len(cycles) / _FALSE_ALARM) else span / float(cycles[best])
