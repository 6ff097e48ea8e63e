"""What a grid is expected to cost and to lose, for the choice of ``inference="auto"``."""

from __future__ import annotations

import math

from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.grid.cost import COLUMNS, solves_seconds
from gigagp.inference.grid.objective import choose_grid
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.spacing import axis_gap
from gigagp.kernels.additive import components
from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.interpolation import interpolation_named
from gigagp.runtime.machine import MULTIPLICATION


def forecast(settings: GridSettings, subject: Subject) -> Forecast | None:
    """Return the cost of a grid that suits a model, and its density; None for sums of grids and constant inputs.

    The variance that interpolation leaves out between the nodes is added to that of every prediction.
    """
    table, model = subject.table, subject.model
    lower, upper = table.X.double().amin(0).cpu().tolist(), table.X.double().amax(0).cpu().tolist()
    if not all(a < b for a, b in zip(lower, upper, strict=True)):
        return None
    grid = choose_grid(settings, lower, upper, table.n_rows, table.budget, model)
    if not isinstance(grid, RegularGrid):
        return None
    d, scheme = grid.n_inputs, interpolation_named(settings.interpolation)
    kernel = components(model.kernel, range(d))[0][0].kernel
    gap = sum(max(axis_gap(kernel, axis, d, cell, scheme), 0.0) for axis, cell in enumerate(grid.spacing))
    once = MULTIPLICATION * table.n_rows * scheme.width ** (2 * d)
    seconds = once + solves_seconds(d, grid.size)
    nll = subject.exact_nll + 0.5 * math.log1p(gap / subject.exact_variance)
    return subject.with_nll(seconds, grid.statistics_bytes + 8.0 * 2**d * grid.size * COLUMNS, nll)
