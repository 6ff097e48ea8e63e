"""Grids whose nodes are the points of the lattice that rows lie on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gigagp.operators.grid.statistics import RegularGrid
from gigagp.operators.grid.statistics.geometry import MARGIN

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

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Inputs of all rows.
    other : RegularGrid
        Grid that would be used otherwise.
    most_nodes : float
        Largest number of nodes.
    at_any_cost : bool
        Whether a lattice that is much finer than the other grid will do, because that one leaves out more variance than
        the noise has. A rough kernel whose lengthscale is long varies between any nodes.

    Returns
    -------
    RegularGrid or None
        None if the rows lie on no lattice, on one that is nearly full or too large, or on one that is much finer than
        the other grid.
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
