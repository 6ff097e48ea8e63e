"""How the default kernel of a panel is chosen and learned, above all where a part of the panel is complete."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import NotPositiveDefiniteError
from gigagp.estimators.choices import entity_covariance
from gigagp.estimators.choices.kernel_trials import Turns
from gigagp.estimators.choices.trials import learned
from gigagp.inference.contract.least_noise import with_least_noise
from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.curves.complete import CompletePart, quick_grid
from gigagp.inference.curves.guide import PanelGuide
from gigagp.inference.curves.objective import CurvesObjective
from gigagp.inference.markov.objective import MarkovObjective
from gigagp.kernels import ScaleMap, Sum
from gigagp.kernels.rebuilding import rebuilt
from gigagp.kernels.units import Units
from gigagp.model.model import Model
from gigagp.optimization import Auto, History
from gigagp.products.panel import distinct_rows

#: Smoothness of rough and of smooth curves along the times, and powers of the size of their steps at each time that are
#: tried as its scale.
_ROUGH, _SMOOTH, _POWERS = 0.5, 1.5, (0, 1, 2)
#: Smallest scale relative to the largest: float64 resolves no smaller variances, and curves may all end at one value.
_LEAST_SCALE = 1e-4
#: Nats a cell by which a form of curves has to be better than those before it. Longer learning leads to less noise than
#: many new curves have.
_MARGIN = 0.01
#: Rows that learning begins with, evaluations of the complete part after which it ends, and others that are tried with
#: the best kernel.
_ROWS, _STEPS, _OTHER_STEPS = 1000, 6, (3, 15)
#: Complete entities that gaps are made in, at most and at least, their share, those that the others have to learn
#: from, and the fewest entities with gaps of their own.
_LEFT_OUT, _FEWEST, _SHARE, _LEARNED, _WITH_GAPS = 400, 30, 1 / 3, 400, 10
#: Largest factor of the covariances, standard errors that are added to it, and share of the time before a deadline.
_MOST, _ERRORS, _TIME_SHARE = 10.0, 2.0, 0.5
_SEED = 29


def choose(
    objective: TableObjective, model: Model, optimizer: object, units: Units, deadline: float, history: History
) -> tuple[Model, object]:
    """Return the model whose curves are predicted best in gaps like those of the panel, and the optimizer to go on.

    Curves are smooth or rough, may vary less at some times than at others, and learning from the exact likelihood of
    complete curves ends early or late: a few curves unlike the others spoil what the likelihood of all prefers in the
    end. Each of these models predicts complete curves that are left out, given the others and the cells that a random
    curve with gaps has. Their errors there also tell a factor of all covariances. The best model is final, and the
    optimizer is then None; the steps to it are added to the ``history``. ``units`` are those of the standardized
    problem.

    On three sets of learning curves of which a tenth or half was cut, the likelihood alone with one scale at all times
    ended .55 to .6 nats a cell worse (`benchmarks/learning_curves.py`, "likelihood"). A complete part with few gaps is
    learned as any other table. Without such a part, and with a Gaussian likelihood that is computed exactly,
    `entity_covariance` chooses the model of few entities.
    """
    if not isinstance(optimizer, Auto):
        return model, optimizer
    if isinstance(objective, ExactObjective | MarkovObjective):
        return entity_covariance.choose(objective.table, model, optimizer, units, deadline)
    if not isinstance(objective, CurvesObjective):
        return model, optimizer
    gaps = _Gaps.of(objective.table, model)
    if gaps is None:
        return model, optimizer
    forms = {str(form): form for form in (_Form(_ROUGH, power, _STEPS) for power in _powers(gaps.guide))}
    start_of = partial(_start, model, gaps.guide, units)
    turns = Turns(
        "learning from complete curves",
        {name: start_of(form) for name, form in forms.items()},
        deadline,
        _TIME_SHARE,
    )
    best: _Learned | None = None

    def attempts() -> Iterator[tuple[str, Model]]:
        yield from turns
        for others in (_Form.smooth, _Form.other_steps):
            if turns.is_late or best is None:
                return
            more = {str(form): form for form in others(best.form)}
            forms.update(more)
            turns.waiting = {name: start_of(form) for name, form in more.items()}
            yield from turns

    for name, start in attempts():
        form, own, taken = forms[name], torch.Generator().manual_seed(0), History()
        with suppress(NotPositiveDefiniteError):
            settings = replace(optimizer, guide_steps=form.steps)
            one = learned(gaps.guide, start, settings, own, 1, _ROWS, history=taken)
            score, one = gaps.scored(with_least_noise(one, objective.table.X))
            if best is None or score < best.score - _MARGIN:
                best = _Learned(score, form, one, taken)
    if best is None:
        return model, optimizer
    history.steps.extend(best.history)
    return best.model, None


class _Form(NamedTuple):
    """The smoothness of curves, the power of the size of their steps that is their scale, and the steps of learning."""

    nu: float
    power: int
    steps: int

    def smooth(self) -> list[_Form]:
        """Return the form of smooth curves."""
        return [self._replace(nu=_SMOOTH)]

    def other_steps(self) -> list[_Form]:
        """Return the forms that are learned in fewer steps and in more."""
        return [self._replace(steps=steps) for steps in _OTHER_STEPS]


class _Learned(NamedTuple):
    """A model, how it was learned, and its score; the lowest is the best."""

    score: float
    form: _Form
    model: Model
    history: History


@dataclass(frozen=True)
class _Gaps:
    """Complete curves of which some cells are left out, as they are missing in others.

    Attributes
    ----------
    guide : PanelGuide
        The likelihood of other complete curves.
    table : TrainingTable
        The rows that the cells are predicted from: curves of the guide, and the cells that are kept.
    X, Y : Tensor
        The cells that are left out.
    entity_columns : tuple of int
        Columns that tell their curves.
    """

    guide: PanelGuide
    table: TrainingTable
    X: Tensor
    Y: Tensor
    entity_columns: tuple[int, ...]

    @classmethod
    def of(cls, table: TrainingTable, model: Model) -> _Gaps | None:
        """Return them; None where too few curves have gaps, or too few have none."""
        found = quick_grid(table, model)
        if found is None:
            return None
        panel, grid = found
        known, (n_entities, n_times) = panel.known, grid.cells.shape
        seen = known.observed
        of_grid = known.time[grid.rows[0]]  # the times of the complete part
        with_gaps = torch.nonzero(~seen[:, of_grid].all(1))[:, 0]
        count = min(_LEFT_OUT, int(_SHARE * n_entities))
        if count < _FEWEST or len(with_gaps) < _WITH_GAPS:
            return None
        generator = torch.Generator().manual_seed(_SEED)
        left_out, others = torch.randperm(n_entities, generator=generator).split([count, n_entities - count])
        like = with_gaps[torch.randint(len(with_gaps), (count,), generator=generator)]
        kept = seen[like][:, of_grid]
        rows, missing = grid.rows[left_out], grid.rows[left_out][~kept]
        every = torch.arange(n_times)
        part = table.take_rows(torch.cat([grid.rows[others[:_LEARNED]].flatten(), rows[kept]]))
        guide = PanelGuide.of_grid(table, panel, grid.take(others, every))
        return cls(guide, part, table.X[missing], table.Y[missing], known.entity_columns)

    def scored(self, model: Model) -> tuple[float, Model]:
        """Return the mean negative log density of the cells by the best factor of all covariances, and that model."""
        part = CompletePart.of(model, self.table)
        if part is None:
            return math.inf, model
        trend = part.regression(of_grid=True).trend.coefficients
        values = self.table.Y.double() - self.table.basis.double() @ trend
        mean, variance = part.predict(self.X, values)
        errors = self.Y.double() - mean - model.mean.basis(self.X).double() @ trend
        total = variance + model.noise_variance.double()
        factor = min(max(self._factor(errors.square() / total[:, None]), 1 / _MOST), _MOST)
        amplified = model.amplified(factor)
        if amplified is not None:
            model, total = amplified, factor * total
        density = 0.5 * ((2 * math.pi * total).log()[:, None] + errors.square() / total[:, None])
        return float(density.mean()), model

    def _factor(self, squares: Tensor) -> float:
        """Return the mean of squared errors over their variances, (m, t), plus two standard errors.

        A few curves decide the mean, and too small a factor costs more than one that is too large. Errors of a curve go
        together.
        """
        mean = squares.mean()
        by_entity = distinct_rows(self.X[:, list(self.entity_columns)])[1]
        excess = torch.zeros(int(by_entity.max()) + 1, dtype=squares.dtype).index_add_(
            0, by_entity, (squares - mean).sum(1)
        )
        return float(mean + _ERRORS * excess.square().sum().sqrt() / squares.numel())


def _powers(guide: PanelGuide) -> tuple[int, ...]:
    """Return the powers of the size of steps that are tried; there are none where times are more than a number."""
    cells = guide.grid.cells
    return _POWERS if len(cells.time_columns) == 1 and len(cells.times) > 2 else _POWERS[:1]


def _start(model: Model, guide: PanelGuide, units: Units, form: _Form) -> Model:
    """Return a model with the default kernel of a panel (`panel_fit.Roles.kernel`), of which curves have a form."""
    entities, times, others = entity_covariance.parts_of(model.kernel)
    found = entity_covariance.sum_of(*entities) * rebuilt(times, {"nu": form.nu})
    if form.power:
        found = found * step_scale(guide, units, form.power)
    return replace(model, kernel=Sum(found, *others))


def step_scale(guide: PanelGuide, units: Units, power: int) -> ScaleMap:
    """Return a power of the mean size of a step of complete curves around each time, with geometric mean 1.

    The size of a step is divided by the root of the time that it takes, as for a random walk. Learning curves of
    networks move a hundred times less at the end than in the beginning.
    """
    grid = guide.grid
    times, order = grid.cells.times[:, 0].sort()
    curves = guide.table.Y.double().view(*grid.cells.shape, -1)[:, order]
    sizes = curves.diff(dim=1).abs().mean((0, 2)) / times.diff().sqrt()
    steps = power * sizes.clamp_min(torch.finfo(sizes.dtype).tiny).log()
    logs = torch.cat([steps[:1], (steps[:-1] + steps[1:]) / 2, steps[-1:]])
    logs = logs.clamp_min(float(logs.max()) + math.log(_LEAST_SCALE))
    column = grid.cells.time_columns[0]
    knots = times * units.scale[column] + units.centre[column]
    return ScaleMap([knots], logs - logs.mean(), columns=[column]).standardized(units)
