"""How rough the curves of a panel are, where its kernel is left to the data."""

from __future__ import annotations

from dataclasses import replace

import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.estimators.choices.trials import learned
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.curves.guide import PanelGuide
from gigagp.inference.curves.objective import CurvesObjective
from gigagp.kernels import Kernel, Matern, Product, Sum
from gigagp.kernels.rebuilding import rebuilt
from gigagp.model.model import Model
from gigagp.optimization import Auto

#: Smoothness of a rough curve; curves are taken for smooth ones, Matern-3/2, otherwise.
_ROUGH = 0.5
#: Rows that learning begins with, and evaluations of the chosen kernel on the complete part.
_ROWS, _STEPS = 500, 10


def choose(objective: TableObjective, model: Model, optimizer: object) -> tuple[Model, object]:
    """Return the model whose curves are smooth or rough, as their complete part prefers, and the optimizer to go on.

    Both kernels are learned from the exact likelihood of the complete part, and the higher one wins: they have the same
    hyperparameters. On five sets of learning curves it chose the kernel that predicted the ends of curves better nine
    times in ten, by up to .19 nats a cell (`benchmarks/panel_smoothness.py`). A table without a complete part keeps the
    smooth one.
    """
    guide = objective.guide(model) if isinstance(objective, CurvesObjective) else None
    if not isinstance(guide, PanelGuide) or not isinstance(optimizer, Auto):
        return model, optimizer
    found: list[tuple[float, Model]] = []
    for start in (model, replace(model, kernel=with_rough_curves(model.kernel))):
        try:
            one = learned(guide, start, optimizer, torch.Generator().manual_seed(0), 1, _ROWS)
            found.append((guide.quick_value(one), one))
        except NotPositiveDefiniteError:
            continue
    if not found:
        return model, optimizer
    best = max(found, key=lambda one: one[0])[1]
    near = replace(optimizer, subset_sizes=(_ROWS,), subset_steps=1, rougher_starts=False, guide_steps=_STEPS)
    return best, near


def with_rough_curves(kernel: Kernel) -> Kernel:
    """Return the default kernel of a panel (`panel_fit.Roles.kernel`) with a Matern-1/2 along the times of its curves."""
    assert isinstance(kernel, Sum), "the default kernel is a sum"
    curves, *others = kernel.parts
    assert isinstance(curves, Product), "whose first part is a product"
    entities, times = curves.parts
    assert isinstance(times, Matern), "of entities and times"
    return Sum(entities * rebuilt(times, {"nu": _ROUGH}), *others)
