"""How the default kernel of a panel of few entities is chosen: rough or smooth curves, and how entities correlate."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, NotPositiveDefiniteError
from gigagp.estimators.choices.kernel_trials import Turns
from gigagp.estimators.choices.trials import held_exactly, learned
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.inference import MOST_ENTITIES, MOST_SECONDS
from gigagp.inference.markov.objective import MarkovObjective, row_seconds
from gigagp.inference.markov.states import Axis, States, check_states
from gigagp.kernels import Group, Kernel, Matern, Outputs, Product, Sum, White
from gigagp.kernels.composite import summands
from gigagp.kernels.outputs import agreement_of
from gigagp.kernels.rebuilding import rebuilt
from gigagp.kernels.units import Units
from gigagp.model.model import NOISE, Model
from gigagp.optimization import Auto

#: Smoothness of rough curves along the times.
_ROUGH = 0.5
#: Fewest cells for each entity with which a covariance is tried, which are also those for each shared function, and
#: with which slow curves and noise of each entity are. Annual panels of 12 to 30 years were filled better with a
#: covariance, but two of six were continued far worse where entities had ended, with half of the cells in 95 %
#: intervals.
_FEWEST, _LONG = 60, 500
#: Cells for each correlation with which any covariance is learned.
_EACH = 30
#: Lengthscale of slow curves, in those of the others, and the share of their variance, at first.
_SLOWER, _SLOW_SHARE = 30.0, 0.1
#: Correlation of entities that no cells tell of, the steps that it counts for, and the least eigenvalue of a covariance
#: relative to their mean, at first.
_CORRELATION, _PRIOR_STEPS, _LEAST = 0.2, 10.0, 0.01
_TINY = torch.finfo(torch.float64).tiny
#: Cells of consecutive times that forms are compared on, cells that learning begins on, and evaluations for each.
_COMPARED, _BEGUN, _STEPS = 10_000, 1000, 20
#: Evaluations of the fit from there, and share of the time before a deadline.
_LAST_STEPS, _TIME_SHARE = 15, 0.5


def choose(table: TrainingTable, model: Model, optimizer: Auto, units: Units, deadline: float) -> tuple[Model, Auto]:
    """Return the model with the best kind of curves, as learned on consecutive times, and the optimizer to go on.

    The default kernel (`panel_fit.Roles.kernel`) has smooth curves, whose only relation is that of the entities'
    inputs. Rough curves are tried, and then a covariance of the entities (`kernels.Outputs`), which begins with that of
    their steps. Long curves have two, of fast and of slow changes (the linear model of coregionalisation), and a noise
    variance for each entity. The likelihood of all cells decides, as some of them tell it, less half the logarithm of
    their number for each hyperparameter (Schwarz 1978).

    ``units`` are those of the standardized problem. A panel of more entities, of cells with inputs or of times that are
    more than a number is learned as any other table.
    """
    panel = _Panel.of(table, model, units)
    if panel is None:
        return model, optimizer
    forms: dict[str, _Form] = {
        "smooth curves": _Form(lambda model: model, optimizer, panel.begun_on),
        "rough curves": _Form(_rough, optimizer, panel.begun_on),
    }
    near = replace(optimizer, subset_sizes=(_BEGUN,), subset_steps=1, rougher_starts=False, guide_steps=_STEPS)
    if table.n_rows >= _FEWEST * panel.n_entities:
        forms["covariance"] = _Form(panel.correlated, near, panel.compared_on)
    if table.n_rows >= _LONG * panel.n_entities:
        forms["covariances of fast and slow curves"] = _Form(panel.with_slow_curves, near, panel.compared_on)
    best: _Tried | None = None
    for _, form in Turns("choosing the curves of a panel", forms, deadline, _TIME_SHARE):
        start = form.start(model if best is None else best.model)
        with suppress(NotPositiveDefiniteError):
            one = panel.tried(start, form.optimizer, form.rows)
            if best is None or one.score > best.score:
                best = one
    if best is None:
        return model, optimizer
    return best.model, replace(near, guide_steps=_LAST_STEPS)


class _Form(NamedTuple):
    """How a model starts from the best one so far, and the cells and the optimizer that it is learned with."""

    start: Callable[[Model], Model]
    optimizer: Auto
    rows: Tensor


class _Tried(NamedTuple):
    """A learned model for all cells, and its score; the highest is the best."""

    score: float
    model: Model


@dataclass(frozen=True)
class _Panel:
    """A panel of few entities with the default kernel.

    Attributes
    ----------
    table : TrainingTable
    begun_on, compared_on : Tensor
        Cells of consecutive times, few and many, or all.
    group : Group
        The default kernel's own part of each entity.
    n_entities : int
    units : Units
    """

    table: TrainingTable
    begun_on: Tensor
    compared_on: Tensor
    group: Group
    n_entities: int
    units: Units

    @classmethod
    def of(cls, table: TrainingTable, model: Model, units: Units) -> _Panel | None:
        """Return it; None where there is one entity or too many, or no state along the times."""
        group = parts_of(model.kernel)[0][0]
        assert isinstance(group, Group), "entities come first"
        n_entities = int(group.levels(table.X).max()) + 1
        if not 1 < n_entities <= MOST_ENTITIES:
            return None
        try:
            check_states(model.kernel)
        except InvalidInputError:
            return None
        few, many = (
            table.draw_rows(min(count, table.n_rows), torch.Generator().manual_seed(0)) for count in (_BEGUN, _COMPARED)
        )
        return cls(held_exactly(table), few, many, group, n_entities, units)

    def tried(self, start: Model, optimizer: Auto, rows: Tensor) -> _Tried:
        """Return a model as learned from some cells, and what the likelihood of all is expected to be, less a cost.

        A likelihood at its maximum exceeds that of the best hyperparameters by half a nat for each of them.
        """
        own, some = torch.Generator().manual_seed(0), self.compared_on
        objective = self._objective(start, rows)
        found = learned(objective, start.take_rows(rows), optimizer, own, _STEPS, min(_BEGUN, len(rows)))
        model = replace(start, kernel=found.kernel)
        if not start.noise_is_known:
            model = replace(model, noise_variance=found.noise_variance)
        n, half = self.table.n_rows, 0.5 * model.n_learned
        value = self._objective(model, some).quick_value(model.take_rows(some)) - half
        return _Tried(n / len(some) * value - half * math.log(n), model)

    def _objective(self, model: Model, rows: Tensor) -> MarkovObjective:
        return MarkovObjective(self.table.take_rows(rows), model)

    def correlated(self, model: Model) -> Model:
        """Return a model whose curves have a covariance of the entities; long ones also have noise of each entity."""
        (_, *inputs), times, others = parts_of(model.kernel)
        kernel = Sum(sum_of(self._outputs(self._rank(), *self._moments(model)), *inputs) * times, *others)
        if self.table.n_rows < _LONG * self.n_entities or NOISE not in model.learned_names():
            return replace(model, kernel=kernel)
        half = 0.5 * model.noise_variance.double()
        own = White(1.0, fixed=True).bind(self.table.n_inputs) * self._outputs(0, half.expand(self.n_entities))
        return replace(model, kernel=Sum(*kernel.parts, own), noise_variance=0.5 * model.noise_variance)

    def with_slow_curves(self, model: Model) -> Model:
        """Return a model with slow curves beside those of a model, which have a covariance of the same form."""
        if isinstance(parts_of(model.kernel)[0][0], Group):
            model = self.correlated(model)
        (fast, *_), times, _ = parts_of(model.kernel)
        assert isinstance(fast, Outputs), "curves have a covariance"
        slow = rebuilt(fast, {"variance": (_SLOW_SHARE * fast.value("variance")).tolist()})
        longer = rebuilt(times, {"lengthscale": float(_SLOWER * times.value("lengthscale"))})
        kernel = Sum(*summands(model.kernel), slow * longer)
        states = States(kernel, Axis.of(kernel, self.table.X))
        seconds = row_seconds(states.blocks) * self.table.n_rows
        return replace(model, kernel=kernel) if seconds <= MOST_SECONDS else model

    def _rank(self) -> int | None:
        """Return how many functions entities share; None: they have any covariance."""
        n, k = self.table.n_rows, self.n_entities
        return None if n >= _EACH * k * (k - 1) / 2 else n // (_FEWEST * k)

    def _outputs(self, rank: int | None, variance: Tensor, correlation: Tensor | None = None) -> Outputs:
        """Return the kernel of entities with these variances (k,) and a correlation near this one."""
        columns = [int(column) for column in self.group.level_columns]
        bare = Outputs(self.n_entities, columns=columns, rank=rank, new_outputs=True)
        values: dict[str, Any] = {"variance": variance.tolist()}
        if correlation is not None:
            values["agreement"] = agreement_of(correlation, rank).tolist()
        found = rebuilt(bare.standardized(self.units).bind(self.table.n_inputs), values)
        assert isinstance(found, Outputs), "the kind stays"
        return found

    def _moments(self, model: Model) -> tuple[Tensor, Tensor]:
        """Return variances (k,) and the correlation (k, k) of curves, from steps between neighbouring times.

        Steps leave out what entities have in common for long. A step has the covariance of the curves times that of a
        step of the times' kernel, plus twice the noise. Entities with few steps together have a small correlation.
        """
        (own, *_), times, _ = parts_of(model.kernel)
        assert isinstance(own, Group), "entities have no covariance yet"
        X, column = self.table.X.double(), (times.columns or ())[0]
        moments, of_row = X[:, column].unique(return_inverse=True)
        cells = torch.full((len(moments), self.n_entities), math.nan, dtype=torch.float64)
        cells[of_row, self.group.levels(X)[:, 0]] = self.table.Y[:, 0].double()
        steps = cells.diff(dim=0)
        seen, steps = (~steps.isnan()).double(), steps.nan_to_num()
        lags = X.new_zeros(len(steps), X.shape[1])
        lags[:, column] = moments.diff()
        scale = 2 * (1 - times.block(torch.zeros_like(lags[:1]), lags)[0])  # of a stationary kernel with variance 1
        products, sizes, counts = steps.T @ steps, seen.T @ (scale[:, None] * seen), seen.T @ seen
        of_curves = products.diagonal() - 2 * float(model.noise_variance.double().mean()) * counts.diagonal()
        prior = _PRIOR_STEPS * float(scale.mean()) if len(scale) else 1.0
        variance = of_curves.clamp_min(0) + prior * float(own.value("variance"))
        variance = variance / (sizes.diagonal() + prior)
        correlation = products / (sizes * torch.outer(variance, variance).sqrt()).clamp_min(_TINY)
        correlation = (counts * correlation.clamp(-1, 1) + _PRIOR_STEPS * _CORRELATION) / (counts + _PRIOR_STEPS)
        values, vectors = torch.linalg.eigh(correlation.fill_diagonal_(1.0))
        found = (vectors * values.clamp_min(_LEAST)) @ vectors.T
        scales = found.diagonal().sqrt()
        return variance, found / scales[:, None] / scales


def _rough(model: Model) -> Model:
    """Return a model with rough curves."""
    entities, times, others = parts_of(model.kernel)
    changed = {"nu": _ROUGH}
    others = [
        rebuilt(one, changed) if isinstance(one, Matern) and one.columns == times.columns else one for one in others
    ]
    return replace(model, kernel=Sum(sum_of(*entities) * rebuilt(times, changed), *others))


def parts_of(kernel: Kernel) -> tuple[list[Kernel], Matern, list[Kernel]]:
    """Return the parts of the entities of the default kernel's curves, their times, and its other parts."""
    assert isinstance(kernel, Sum), "the default kernel is a sum"
    curves, *others = kernel.parts
    assert isinstance(curves, Product), "whose first part is a product"
    entities, times = curves.parts
    assert isinstance(times, Matern), "of entities and times"
    return list(summands(entities)), times, others


def sum_of(*parts: Kernel) -> Kernel:
    """Return the sum of kernels, which is the kernel itself where there is one."""
    return reduce(add, parts)
