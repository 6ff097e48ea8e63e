"""How the default kernel of a panel of few entities is chosen: rough or smooth curves, and how entities correlate."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, NotPositiveDefiniteError
from gigagp.estimators.choices.kernel_trials import Turns
from gigagp.estimators.choices.trials import held_exactly, learned
from gigagp.inference.contract.objective import ExactObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.objective import MarkovObjective
from gigagp.inference.markov.states import check_states
from gigagp.kernels import Group, Kernel, Matern, Outputs, Product, Sum
from gigagp.kernels.composite import summands
from gigagp.kernels.rebuilding import rebuilt
from gigagp.kernels.units import Units
from gigagp.model.model import Model
from gigagp.optimization import Auto

#: Smoothness of rough curves along the times.
_ROUGH = 0.5
#: Entities up to which any covariance of them is learned, and up to which one of shared functions is.
_FEW, _MOST = 5, 50
#: Shared functions by the fewest cells for each entity. Annual panels of 12 to 30 years were filled better with a
#: covariance, but two of six were continued far worse where entities had ended, with half of the cells in 95 %
#: intervals. On 5,000 days of wind at twelve stations, 6 functions were .04 nats a cell better than one.
_SHARED = {500: 6, 60: 1}
#: Agreement of an output with another shared function at first: a partial correlation of .2.
_AGREEMENT = 1.2
#: Cells of consecutive times that forms are learned on, evaluations there after the first stage, and the most cells
#: that they are compared on.
_LEARNED, _STEPS, _COMPARED = 1000, 20, 20_000
#: Evaluations of the fit from there, and share of the time before a deadline.
_LAST_STEPS, _TIME_SHARE = 10, 0.5


def choose(table: TrainingTable, model: Model, optimizer: Auto, units: Units, deadline: float) -> tuple[Model, Auto]:
    """Return the model with the best kind of curves, as learned on consecutive times, and the optimizer to go on.

    The default kernel (`panel_fit.Roles.kernel`) has smooth curves, whose only relation is that of the entities'
    inputs. Rough curves are tried, and then a covariance of the entities (`kernels.Outputs`): any one of a few
    entities, and one with a shared function of more. The likelihood of all cells decides, less half the logarithm of
    their number for each hyperparameter (Schwarz 1978). Where one function is worth it, all cells learn as many as they
    support.

    ``units`` are those of the standardized problem. A panel of more entities, of cells with inputs or of times that are
    more than a number is learned as any other table.
    """
    panel = _Panel.of(table, model, units)
    if panel is None:
        return model, optimizer
    n_shared = next((count for cells, count in _SHARED.items() if table.n_rows >= cells * panel.n_entities), 0)
    is_any = panel.n_entities <= _FEW
    forms: dict[str, Callable[[Model], Model]] = {"smooth curves": lambda model: model, "rough curves": _rough}
    if n_shared:
        forms["covariance"] = partial(panel.correlated, rank=None if is_any else 1)
    best: _Tried | None = None
    for _, form in Turns("choosing the curves of a panel", forms, deadline, _TIME_SHARE):
        with suppress(NotPositiveDefiniteError):
            one = panel.tried(form(model if best is None else best.model), optimizer)
            if best is None or one.score > best.score:
                best = one
    if best is None:
        return model, optimizer
    model = best.model
    if isinstance(parts_of(model.kernel)[0][0], Outputs) and not is_any:
        model = panel.correlated(model, rank=n_shared)
    going_on = replace(
        optimizer, subset_sizes=(_LEARNED,), subset_steps=1, rougher_starts=False, guide_steps=_LAST_STEPS
    )
    return model, going_on


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
    learned_on, compared_on : Tensor
        Cells of consecutive times: few to learn from, and all or very many to compare on.
    n_entities : int
    units : Units
    """

    table: TrainingTable
    learned_on: Tensor
    compared_on: Tensor
    n_entities: int
    units: Units

    @classmethod
    def of(cls, table: TrainingTable, model: Model, units: Units) -> _Panel | None:
        """Return it; None where there is one entity or too many, or no state along the times."""
        n_entities = int(_group(model.kernel).levels(table.X).max()) + 1
        if not 1 < n_entities <= _MOST:
            return None
        try:
            check_states(model.kernel)
        except InvalidInputError:
            return None
        few, many = (
            table.draw_rows(min(count, table.n_rows), torch.Generator().manual_seed(0))
            for count in (_LEARNED, _COMPARED)
        )
        return cls(held_exactly(table), few, many, n_entities, units)

    def tried(self, start: Model, optimizer: Auto) -> _Tried:
        """Return a model as learned from a start."""
        subset = ExactObjective(self.table.take_rows(self.learned_on))
        own = torch.Generator().manual_seed(0)
        found = learned(subset, start.take_rows(self.learned_on), optimizer, own, _STEPS)
        model = replace(start, kernel=found.kernel)
        if not start.noise_is_known:
            model = replace(model, noise_variance=found.noise_variance)
        likelihood = MarkovObjective(self.table.take_rows(self.compared_on), model)
        value = likelihood.quick_value(model.take_rows(self.compared_on))
        return _Tried(value - 0.5 * model.n_learned * math.log(likelihood.n_rows), model)

    def correlated(self, model: Model, rank: int | None) -> Model:
        """Return a model whose curves have a covariance of the entities, which goes on from one of smaller rank.

        At first entities correlate by the default of `kernels.Outputs`, and new shared functions explain little.
        """
        (first, *inputs), times, others = parts_of(model.kernel)
        if isinstance(first, Group):
            variance = first.value("variance").expand(self.n_entities)
            columns = [int(column) for column in first.level_columns]
            found: Kernel = Outputs(self.n_entities, columns=columns, rank=rank, new_outputs=True)
            found = rebuilt(found.standardized(self.units), {"variance": variance.tolist()})
        else:
            assert isinstance(first, Outputs)
            assert first.agreement is not None
            known = {
                tuple(pair): value
                for pair, value in zip(first.correlation_pairs().tolist(), first.agreement.tolist(), strict=True)
            }
            pairs = Outputs(self.n_entities, columns=[0], rank=rank).correlation_pairs().tolist()
            found = rebuilt(first, {"rank": rank, "agreement": [known.get(tuple(pair), _AGREEMENT) for pair in pairs]})
        return replace(model, kernel=Sum(sum_of(found, *inputs) * times, *others))


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


def _group(kernel: Kernel) -> Group:
    """Return the kernel of the default kernel's entities."""
    found = parts_of(kernel)[0][0]
    assert isinstance(found, Group), "entities come first"
    return found


def sum_of(*parts: Kernel) -> Kernel:
    """Return the sum of kernels, which is the kernel itself where there is one."""
    return reduce(add, parts)
