"""The objective of grid inference on a table, with the choice of the grid and the warnings about it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.grid.cost import nodes_within
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.posterior import GridPosterior
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.spacing import axis_gap, cell_lengths, is_resolved
from gigagp.inference.grid.start import CompositeObjective, composite
from gigagp.inference.grid.sum_grid import choose_grid_sum, sum_columns, typical_noise
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.kernels import Periodic
from gigagp.kernels.additive import components
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.neighbours.conditionals import is_compiled
from gigagp.operators.grid import grid_kernel
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid
from gigagp.operators.grid.statistics.accumulator import statistics_of_rows
from gigagp.operators.grid.statistics.arguments import checked_bounds, node_bytes
from gigagp.operators.grid.statistics.geometry import MARGIN
from gigagp.operators.grid.statistics.grid_sum import grid_from_dict
from gigagp.operators.grid.statistics.interpolation import interpolation_named
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.optimization.objective import Evaluation
from gigagp.runtime import interruption
from gigagp.runtime.machine import slowness
from gigagp.settings.random import spawn

#: Share of the memory budget for the statistics. Solves with the probes take most of the rest.
_SHARE = 1 / 6
#: Largest number of nodes per row, and the number that is always allowed. A finer grid costs more without gain.
_MOST_NODES_PER_ROW, _FEWEST_NODES = 4, 10_000
#: The same for nodes on the lattice of the rows, where solves take few iterations.
_MOST_LATTICE_NODES = 16
#: Share of what is left of a time budget that the solves may take.
_TIME_SHARE = 0.5
#: Nodes from which neighbours guide learning, and squares of the interpolation weights of a row that lies on a node.
_GUIDED_NODES, _ON_NODES = 20_000, 0.999


@dataclass
class GridChoice:
    """The grid of a fit, chosen once and shared by the objectives on all rows and on subsets."""

    lower: Tensor
    upper: Tensor
    n_rows: int
    grid: RegularGrid | GridSum | None = None
    noise_was_raised: bool = False


class GridObjective(TableObjective):
    """Gradients of the log marginal likelihood from the statistics of a table on a grid.

    The statistics are computed at the first evaluation, because ``size="auto"`` depends on the lengthscales there.
    Afterwards the table is not read again. Objectives may share the ``choice`` of a grid. Raises `InvalidInputError` if
    the table has more inputs than a grid supports, or a constant input.
    """

    deterministic = True  # the probes are frozen
    least_gain = 1.0  # a gradient costs the same for any number of rows, and small gains per row add up

    def __init__(
        self,
        settings: GridSettings,
        table: TrainingTable,
        generator: torch.Generator,
        choice: GridChoice | None = None,
    ) -> None:
        super().__init__(table)
        self.settings, self._generator = settings, spawn(generator)
        if choice is None:
            X = table.X.double().cpu()
            choice = GridChoice(X.amin(0), X.amax(0), table.n_rows)
            checked_bounds(choice.lower.tolist(), choice.upper.tolist())
        self._choice = choice
        self._likelihood: GridLikelihood | None = None
        self._rows_have_noise = False
        self._model: Model | None = None

    def likelihood(self, model: Model) -> GridLikelihood:
        """Return the likelihood on the grid; the first call chooses the grid and passes over the rows."""
        if self._likelihood is None:
            choice = self._choice
            if choice.grid is None:
                bounds = choice.lower.tolist(), choice.upper.tolist()
                choice.grid = choose_grid(self.settings, *bounds, choice.n_rows, self.table.budget, model, self.table.X)
            X, Y, settings = self.table.X.double().cpu(), self.table.Y.double().cpu(), self.settings
            self._rows_have_noise = model.noise_is_known
            noise = model.noise_variance if model.noise_is_known else None
            collect: Callable[..., GridStatistics] = GridStatistics.from_rows
            if self._needs_rows(choice.grid):
                collect = statistics_of_rows
            statistics = collect(choice.grid, X, Y, settings.n_collected, settings.seed, self.table.budget, noise)
            self._likelihood = GridLikelihood(statistics, self.table.mean, settings, self._generator)
        return self._likelihood

    def _needs_rows(self, grid: RegularGrid | GridSum) -> bool:
        """Whether ``W'W`` does not fit the memory budget, and the rows' weights take less."""
        if not isinstance(grid, RegularGrid):
            return False
        columns = 16 * grid.size * (self.table.Y.shape[1] + self.settings.n_collected)
        too_large = grid.statistics_bytes + columns > self.table.budget
        return too_large and RowsGram.forecast(grid, self.table.n_rows) < grid.statistics_bytes

    def start(self, model: Model) -> Model:
        """Return the model with the mean interpolation gap added to its noise variance, once per fit.

        A noise variance learned without the grid does not include the variation that the grid leaves out. On a coarse
        grid it would be much too small, and so would the predicted variances.
        """
        likelihood = self.likelihood(model)
        if self._choice.noise_was_raised or model.noise_is_known:
            return model
        self._choice.noise_was_raised = True
        gap = max(likelihood.gap(model), 0.0)
        return replace(model, noise_variance=model.noise_variance + gap)

    def evaluate(self, model: Model) -> Evaluation:
        """Return the gradient, and the value if it is exact."""
        self._model = model
        return self.likelihood(model).evaluate(model)

    def value(self, model: Model, n_probes: int = 32, seed: int = 0) -> Estimate:
        """Estimate the log marginal likelihood."""
        return self.likelihood(model).value(model, n_probes, torch.Generator().manual_seed(seed))

    def subset(self, rows: Tensor) -> ExactObjective | CompositeObjective:  # type: ignore[override]
        """Return the exact likelihood of these rows and of neighbourhoods of a few of them.

        Random rows of a long record or a large map lie too far apart to determine a short lengthscale.
        """
        if 2 * len(rows) > self.n_rows or self._rows_have_noise:  # a model for these rows knows no other rows' noise
            return super().subset(rows)
        return composite(self.table, rows, self.resolves)

    def resolves(self, model: Model) -> bool:
        """Whether the grid, or the finest that can be had if there is none yet, shows the model's lengthscales."""
        choice, size = self._choice, self.settings.size
        extents = (choice.upper - choice.lower).tolist()
        if choice.grid is not None:
            n_nodes = choice.grid.size
        elif size == "auto":
            columns = sum_columns(model.kernel)
            n_nodes = finest(self.settings, len(extents), choice.n_rows, self.table.budget, columns).n_nodes
        else:
            n_nodes = size ** len(extents) if isinstance(size, int) else math.prod(size)
        return is_resolved(model.kernel, extents, n_nodes)

    def thin(self, rows: Tensor) -> GridObjective:
        """Return this objective, because fewer rows would not make its gradients cheaper."""
        return self

    def current_posterior(self) -> GridPosterior | None:
        """Return the posterior at the last evaluated model, by a separate solve that does not affect learning."""
        if self._model is None:
            return None
        apart = copy.copy(self.likelihood(self._model))
        apart.solves = []
        return GridPosterior.fit(apart, self._model, self.table.budget)

    def posterior(self, model: Model, generator: torch.Generator) -> GridPosterior:
        """Return the posterior at a model, and warn if the grid cannot represent the model."""
        likelihood = self.likelihood(model)
        posterior = GridPosterior.fit(likelihood, model, self.table.budget)
        grid, n_rows = likelihood.statistics.grid, self._choice.n_rows
        way_out = way_to_a_finer_grid(self.settings, grid, n_rows, self.table.budget, model)
        warn_of_coarse_grid(likelihood, model, way_out)
        likelihood.warn_of_unfinished_solves()
        return posterior

    def guide(self, model: Model) -> VecchiaObjective | None:
        """Return the likelihood by nearest neighbours where the rows lie on the nodes of a large grid, else None.

        The grid's likelihood is then that of the kernel itself, as neighbours approximate it. Elsewhere the noise of a
        grid includes what interpolation leaves out, which neighbours do not know.
        """
        statistics = self.likelihood(model).statistics
        if not isinstance(statistics.grid, RegularGrid) or statistics.noise is not None:
            return None
        on_nodes = statistics.gram.trace > _ON_NODES * statistics.n_rows
        large = statistics.grid.size >= _GUIDED_NODES and self.table.n_rows == statistics.n_rows
        compiled = is_compiled(model.kernel)
        return VecchiaObjective.for_learning(self.table) if on_nodes and large and compiled else None

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the chosen grid and the warm start."""
        grid, likelihood = self._choice.grid, self._likelihood
        tensors = {"grid.generator": self._generator.get_state()}
        if likelihood is not None and likelihood.initial is not None:
            tensors["grid.initial"] = likelihood.initial
        header = {
            "grid": None if grid is None else grid.to_dict(),
            "noise_was_raised": self._choice.noise_was_raised,
            "torus": None if likelihood is None else likelihood.torus_lengths,
            "preconditioner": None if likelihood is None else likelihood.preconditioner,
        }
        return tensors, header

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        self._choice.noise_was_raised = header["noise_was_raised"]
        if header["grid"] is None:
            return
        self._choice.grid = grid_from_dict(header["grid"])
        likelihood = self.likelihood(model)
        self._generator.set_state(tensors["grid.generator"])
        initial = tensors.get("grid.initial")
        # column-major, as solves return it: sums in another order would round differently
        initial = None if initial is None else initial.T.contiguous().T
        likelihood.resume(initial, header["torus"], header.get("preconditioner"))


def choose_grid(
    settings: GridSettings,
    lower: list[float],
    upper: list[float],
    n_rows: int | None,
    budget: int,
    model: Model,
    X: Tensor | None = None,
) -> RegularGrid | GridSum:
    """Return a grid that covers the data: of the given size, or as fine as kernel and noise require.

    With ``size="auto"`` the lengthscales of the model, in the units of the corners, and its noise decide
    (`cell_lengths`), within a share of the memory budget and of the number of rows, where it is known. If all rows are
    held (``X``), nodes on the lattice that they lie on are preferred; see `lattice_grid`.
    """
    d = len(lower)
    kernel = model.kernel.bind(d)
    columns = sum_columns(kernel)
    if settings.size != "auto":
        size = settings.size if isinstance(settings.size, int) else tuple(settings.size)
        if not isinstance(size, int) and len(size) != d:
            raise InvalidInputError(f"size of Grid must have {d} numbers, one per input; got {size!r}.")
        if columns is None:
            return RegularGrid.around(lower, upper, size, settings.interpolation)
        return choose_grid_sum(settings, lower, upper, 0, kernel, 0.0, columns)
    noise = (
        typical_noise(model.noise_variance)
        if model.noise_is_known
        else float(model.noise_at(torch.zeros(1, d, dtype=torch.float64))[0])
    )
    most = finest(settings, d, n_rows, budget, columns)
    if columns is not None:
        return choose_grid_sum(settings, lower, upper, most.n_nodes, kernel, noise, columns)
    extents = [b - a for a, b in zip(lower, upper, strict=True)]
    asked = cell_lengths(kernel, d, noise, interpolation_named(settings.interpolation))
    cells = [min(cell, extent) for cell, extent in zip(asked, extents, strict=True)]
    limit = most.n_nodes * node_bytes(d, settings.interpolation)
    # Cells that are longer than asked for are warned of at the end, where the lengthscales are known.
    grid = RegularGrid.automatic(
        lower, upper, cells, limit, settings.interpolation, nodes_per_lengthscale=1.0, warns=False
    )
    if X is None:
        return grid
    scheme = grid.scheme
    stationary = components(kernel, range(d))[0][0].kernel
    gap = sum(axis_gap(stationary, axis, d, cell, scheme) for axis, cell in enumerate(grid.spacing))
    return lattice_grid(X, grid, most.n_lattice_nodes, at_any_cost=gap > noise) or grid


class Finest(NamedTuple):
    """The largest numbers of nodes of a grid, and of a grid on a lattice of the rows, that can be had."""

    n_nodes: int
    n_lattice_nodes: int
    limited_by_rows: bool  # whether the number of rows limits them, and not the memory budget


def finest(
    settings: GridSettings,
    d: int,
    n_rows: int | None,
    budget: int,
    columns: list[tuple[int, ...]] | None,
    *,
    timed: bool = True,
) -> Finest:
    """Return the largest numbers of nodes with ``size="auto"``; ``columns`` are the inputs of each grid of a sum.

    A time budget limits them too, unless ``timed`` is false.
    """
    share = int(budget * _SHARE)
    # W'W of a sum of grids is dense.
    fitting = share // node_bytes(d, settings.interpolation) if columns is None else math.isqrt(share // 16)
    if timed and interruption.seconds_left() < math.inf:
        fitting = min(fitting, int(nodes_within(d, _TIME_SHARE * interruption.seconds_left() / slowness())))
    if n_rows is None:
        return Finest(fitting, fitting, limited_by_rows=False)
    useful = max(_MOST_NODES_PER_ROW * n_rows, _FEWEST_NODES)
    lattice = min(fitting, max(_MOST_LATTICE_NODES * n_rows, _FEWEST_NODES))
    return Finest(min(fitting, useful), lattice, limited_by_rows=useful < fitting)


def way_to_a_finer_grid(
    settings: GridSettings, grid: RegularGrid | GridSum, n_rows: int | None, budget: int, model: Model
) -> str:
    """Return advice for users who need a finer grid."""
    if settings.size != "auto":
        return "Use a finer grid (size of inference.Grid)."
    most = finest(settings, grid.n_inputs, n_rows, budget, sum_columns(model.kernel), timed=False)
    if 2 * grid.size < most.n_nodes and interruption.seconds_left() < math.inf:
        return "The time budget may allow no finer one: raise time_budget, or give a size of inference.Grid."
    if 2 * grid.size < most.n_nodes:
        return "Its size suits the lengthscales at the start of learning: give a finer one (size of inference.Grid)."
    if most.limited_by_rows:
        return (
            f'size="auto" takes at most {_MOST_NODES_PER_ROW} nodes for each of {n_rows:,} rows: give a finer one '
            "(size of inference.Grid), or a lower bound of the lengthscale."
        )
    return f"A sixth of the memory budget of {budget:,} bytes holds no finer one: raise memory_budget."


def warn_of_coarse_grid(likelihood: GridLikelihood, model: Model, way_out: str | None = None) -> None:
    """Warn if a lengthscale is shorter than a cell, or if the interpolation gap exceeds the noise variance.

    ``way_out`` is advice for the user (`way_to_a_finer_grid`).
    """
    way_out = way_out or "Use a finer grid (size of inference.Grid, memory_budget)."
    for kernel, grid, inputs in grid_kernel(model.kernel, likelihood.statistics.grid).pieces:
        for leaf in kernel.leaves():
            if "lengthscale" not in leaf.parameters() or isinstance(leaf, Periodic):
                continue
            for place, scale in zip(leaf.active_columns, leaf.lengths().detach().tolist(), strict=True):
                if scale < grid.spacing[place]:
                    msg = (
                        f"The grid cannot see the lengthscale {scale:.3g} in input {inputs[place]}: its cells are "
                        f"{grid.spacing[place]:.3g} wide. {way_out}"
                    )
                    warn(msg, GigaGPWarning)
                    return
    gap, noise = likelihood.gap(model), likelihood.noise_at(model)
    if gap > noise:
        msg = (
            f"The grid leaves out more variance ({gap:.3g} on average over rows) than the noise has ({noise:.3g}): "
            f"predicted variances are too small near rows, unless the noise is learned on this grid. {way_out}"
        )
        warn(msg, GigaGPWarning)


# Grids whose nodes are the points of the lattice that rows lie on -----------------------------------------------------


#: Largest distance of a coordinate from its place on a lattice, in steps, and distance that counts as none, as a share
#: of the extent. Coordinates in float32 are that far off.
_OFF, _SAME = 5e-3, 1e-7
#: Share of a lattice with rows above which it has no gaps to speak of.
_FULL = 0.93
#: Nodes of a grid on the lattice for each node of another grid in whose place it serves, and cells of the other grid,
#: in lattice steps, below which nodes are an integer part of a step apart. On 105,569 pixels of elevation under clouds,
#: whose kernel asked for cells of 1.8 and 1.9 steps, the lattice had 3.5 times as many nodes.
_MOST_NODES, _FINEST = 4.0, 0.5


def lattice_grid(X: Tensor, other: RegularGrid, most_nodes: float, *, at_any_cost: bool = False) -> RegularGrid | None:
    """Return a grid with a node at every row, about as fine as another one, for rows on a lattice with gaps.

    Rows on nodes need no interpolation: ``W'W`` is diagonal, the grid leaves out no variance at the rows, and
    `gigagp.inference.grid.preconditioners.nodes` solves the systems in a few steps whatever the gaps. Between rows,
    nodes up to twice as far apart as those of the other grid are taken.

    The result is None if the rows lie on no lattice, on one that is nearly full or needs more than ``most_nodes``, or
    on one that is much finer than the other grid. A much finer one is taken ``at_any_cost`` where the other grid leaves
    out more variance than the noise has: a rough kernel whose lengthscale is long varies between any nodes.
    """
    low, steps, counts = [], [], []
    for column in X.double().T:
        axis = _axis(column, most_nodes)
        if axis is None:
            return None
        low.append(axis[0])
        steps.append(axis[1])
        counts.append(axis[2])
    if len(X) > _FULL * math.prod(counts):
        return None
    cells = [cell / step for cell, step in zip(other.spacing, steps, strict=True)]
    if math.prod(cells) > _MOST_NODES and not at_any_cost:
        return None
    parts = [max(1, math.floor(_FINEST / cell)) for cell in cells]
    while True:
        shape = [(n - 1) * k + 1 + 2 * MARGIN for n, k in zip(counts, parts, strict=True)]
        if math.prod(shape) <= most_nodes:
            break
        if max(parts) == 1:
            return None
        parts[parts.index(max(parts))] -= 1
    spacing = [step / k for step, k in zip(steps, parts, strict=True)]
    lower = [first - MARGIN * step for first, step in zip(low, spacing, strict=True)]
    return RegularGrid(tuple(lower), tuple(spacing), tuple(shape), other.interpolation)


def _axis(column: Tensor, most: float) -> tuple[float, float, int] | None:
    """Return the first point, the step and the number of points of the lattice of one input; None if there is none."""
    values = torch.unique(column)
    low, extent = float(values[0]), float(values[-1] - values[0])
    gaps = values.diff()
    gaps = gaps[gaps > _SAME * extent]
    if not len(gaps):
        return None
    count = round(extent / float(gaps.min())) + 1
    if count > most:
        return None
    places = (values - low) / extent * (count - 1)
    if float((places - places.round()).abs().max()) > _OFF:
        return None
    return low, extent / (count - 1), count
