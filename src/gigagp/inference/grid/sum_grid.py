"""Choice of the grids of an additive kernel."""

from __future__ import annotations

import math

import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.spacing import cell_lengths
from gigagp.kernels import Kernel, Outputs
from gigagp.kernels.additive import components
from gigagp.operators.grid.kernel import check_stationary
from gigagp.operators.grid.statistics import GridSum, RegularGrid
from gigagp.operators.grid.statistics.arguments import MAX_INPUTS, checked_bounds
from gigagp.operators.grid.statistics.geometry import MARGIN
from gigagp.operators.grid.statistics.interpolation import interpolation_named

#: Largest number of inputs of one term of an additive kernel, and number of inputs up to which one grid has them all.
MOST_TOGETHER = 3
#: Relative difference of two variances that is rounding.
_ROUNDING = 1e-10
#: Factor of the cells from one trial to the next, where a grid of the wanted cells has too many nodes.
_COARSER = 1.05


def sum_columns(kernel: Kernel) -> list[tuple[int, ...]] | None:
    """Return the inputs of each grid of a sum for a bound kernel; None if a single grid has all of them.

    Kernels of at most three inputs have one grid, and so have kernels of four with a term of all four. Raises
    `InvalidInputError` if there are more than four inputs and a term depends on more than three of them.
    """
    d = kernel.n_inputs
    assert d is not None, "the kernel is bound"
    if d <= MOST_TOGETHER:
        return None
    found = [one.columns for one in components(kernel)[0]]
    widest = max(map(len, found), default=0)
    if widest > MOST_TOGETHER:
        if d <= MAX_INPUTS:
            return None
        raise InvalidInputError(
            f"kernel of GPRegressor with {d} inputs and inference.Grid must be a sum of terms of at most "
            f"{MOST_TOGETHER} inputs each; got {kernel!r}, with a term of {widest}. Give each term its inputs, such as "
            "RBF(columns=[0]) + RBF(columns=[1, 2]), or use inference.Iterative."
        )
    seen = {column for columns in found for column in columns}
    return found + [(column,) for column in range(d) if column not in seen]


def check_terms(kernel: Kernel) -> None:
    """Refuse (`InvalidInputError`) a bound kernel for which there is no grid.

    Its terms must be stationary or linear, its noise the same for all rows, and `sum_columns` must accept it.
    """
    d = kernel.n_inputs
    assert d is not None, "the kernel is bound"
    for leaf in kernel.leaves():
        if isinstance(leaf, Outputs):
            raise InvalidInputError(
                f"kernel of grid inference must be a function of numbers; got {leaf!r}, of the number of an output. "
                'Use inference="auto", inference.Vecchia or inference.Iterative.'
            )
        if "lengthscale" in leaf.shapes:
            leaf.lengths()  # refuses metrics without a lengthscale along each input
    places = torch.linspace(-2.0, 2.0, 5 * d, dtype=torch.float64).reshape(5, d)
    white = kernel.white(places)
    if not bool((white - white[0]).abs().max() <= _ROUNDING * white.abs().max()):
        raise InvalidInputError(
            f"kernel of grid inference must have the same white noise for every row; got {kernel!r}. Use "
            "inference.Vecchia or inference.Iterative."
        )
    whole = range(d) if sum_columns(kernel) is None else None
    for one in components(kernel, whole)[0]:
        k = len(one.columns)
        # Any grid will do, since the check looks at the kernel and the number of inputs, not at the data.
        check_stationary(one.kernel, RegularGrid((-2.0,) * k, (0.25,) * k, (17,) * k))


def choose_grid_sum(
    settings: GridSettings,
    lower: list[float],
    upper: list[float],
    most: int,
    kernel: Kernel,
    noise: float,
    columns: list[tuple[int, ...]],
) -> GridSum:
    """Return a grid for each set of inputs in ``columns``: of the given size, or as fine as the terms require.

    With ``size="auto"`` all grids together have at most ``most`` nodes, and cells become longer in proportion if need
    be. The gaps of the grids add up, so that each may leave out its share of the noise only. Raises `MemoryBudgetError`
    if the coarsest grids have too many nodes.
    """
    checked_bounds(lower, upper)
    extents = [b - a for a, b in zip(lower, upper, strict=True)]
    if settings.size != "auto":
        sizes = [settings.size] * len(lower) if isinstance(settings.size, int) else list(settings.size)
        return _around(lower, upper, columns, [[sizes[k] for k in own] for own in columns], settings.interpolation)
    scheme = interpolation_named(settings.interpolation)
    parts = {one.columns: one.kernel for one in components(kernel)[0]}
    cells = []
    for own in columns:
        wanted = [math.inf] * len(own)
        if own in parts:
            wanted = cell_lengths(parts[own], len(own), noise / max(len(parts), 1), scheme)
        cells.append([min(cell, extents[k]) for cell, k in zip(wanted, own, strict=True)])

    def shapes(factor: float) -> list[list[int]]:
        return [
            [
                1 + 2 * MARGIN + max(1, math.ceil(extents[k] / (factor * cell) - 1e-9))
                for cell, k in zip(row, own, strict=True)
            ]
            for row, own in zip(cells, columns, strict=True)
        ]

    factor = 1.0
    while sum(map(math.prod, shapes(factor))) > most:
        if all(count == 2 + 2 * MARGIN for shape in shapes(factor) for count in shape):
            raise MemoryBudgetError(
                f"The coarsest grids for this kernel have {sum(map(math.prod, shapes(factor))):,} nodes; memory_budget "
                f"allows {most:,}. Raise it, or use another inference."
            )
        factor *= _COARSER
    return _around(lower, upper, columns, shapes(factor), settings.interpolation)


def _around(
    lower: list[float], upper: list[float], columns: list[tuple[int, ...]], shapes: list[list[int]], interpolation: str
) -> GridSum:
    grids = [
        RegularGrid.around([lower[k] for k in own], [upper[k] for k in own], shape, interpolation)
        for own, shape in zip(columns, shapes, strict=True)
    ]
    return GridSum(tuple(grids), tuple(columns))


def typical_noise(noise: torch.Tensor) -> float:
    """Return the harmonic mean of known noise variances: the noise of a row of weight one."""
    return float(1 / (1 / noise.double()).mean())
