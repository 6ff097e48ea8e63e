"""How the rows cover the nodes of a grid, on which it depends whether the circulant preconditioner is a good one."""

from __future__ import annotations

import torch

from gigagp.inference.grid.preconditioners.nodes import LEAST_ROWS
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics.gram import Gram
from gigagp.operators.grid.whitened import mean_density

#: Share of the nodes inside the margins with rows within a cell, below which the data count as having holes. For the
#: elevation of the United States it is 0.94 (the missing part surrounds the country). To a relative residual of 1e-3
#: the circulant took 13 steps there, and 60 steps with the preconditioner for holes were not enough.
LEAST_OCCUPANCY = 0.93
#: The same as a share of the torus. A long lengthscale needs a wide torus, and the space around the grid is then a hole
#: too (24 x 24 nodes, Matern-5/2 with a third of the domain, tolerance 1e-5: over 1,000 steps with the circulant).
LEAST_SHARE = 0.12
#: Share of the nodes inside the margins with their own rows, below which neighbours among the nodes are tried.
_LEAST_OWN = 0.93


def has_empty_nodes(kernel: GridKernel, gram: Gram) -> bool:
    """Whether many nodes inside the margins have no rows of their own, in holes or one by one."""
    own = (gram.row_sums() > LEAST_ROWS).reshape(kernel.grid.shape)
    return float(own[_inside(kernel)].double().mean()) < _LEAST_OWN


def _inside(kernel: GridKernel) -> tuple[slice, ...]:
    return tuple(slice(2, -2) if count > 5 else slice(None) for count in kernel.grid.shape)


def has_holes(kernel: GridKernel, gram: Gram) -> bool:
    """Whether many nodes have no rows nearby, so that the circulant preconditioner alone is slow."""
    grid, row_sums = kernel.grid, gram.row_sums()
    near = (row_sums > 0.05 * mean_density(row_sums)).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # a single node without rows is not a hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[_inside(kernel)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * kernel.root_torus.size
