"""Which preconditioner a grid's solves take: a circulant, or its correction where there are no rows."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.operators.grid import WhitenedOperator
from gigagp.preconditioners.holes import HolesPreconditioner
from gigagp.solvers import ConjugateGradients

#: Share of the nodes inside of the margins that have rows within a cell, below which data count as having holes. The
#: elevation of the United States has 0.94 (what is missing is around the country): at a relative residual of 1e-3 the
#: circulant took 13 steps there; 60 with the preconditioner for holes were not enough ...
LEAST_OCCUPANCY = 0.93
#: ... and share of the torus: where a long lengthscale asks for a wide one, what lies around the grid is a hole too
#: (24 x 24 nodes, Matern-5/2 of a third of the domain, a tolerance of 1e-5: over 1,000 steps with the circulant).
LEAST_SHARE = 0.12
#: Steps of the trial where there are holes: the correction for them starts slower and is ahead after thirty or forty.
_TRIAL_STEPS = 60
#: Relative residual that ends a trial before.
_TRIAL_TOLERANCE = 1e-6


def choose_preconditioner(operator: WhitenedOperator, cross: Tensor) -> str:
    """Return "circulant" or "holes", whichever gets further in a short solve where there are holes.

    The correction for holes takes the density to be the same wherever there are rows. Where hundreds of rows a node
    make the data certain, what is wrong with that along the edges outweighs all that it corrects: rows of many radars,
    250 a node on the average, were not solved for after 1,000 steps, and to 1e-3 after 73 with the circulant alone. The
    two residuals have different norms, but both solves minimise the same ``c'H c / 2 - b'c``, and that is compared.

    Parameters
    ----------
    operator : WhitenedOperator
        With the circulant as a part of it.
    cross : Tensor of shape (m, t)
        ``W'y`` of the targets; the first is solved for.
    """
    if not has_holes(operator):
        return "circulant"
    right = operator.right_hand_side(cross[:, :1])
    corrected, plain = (_least_value(operator, right, one) for one in (HolesPreconditioner(operator), None))
    return "holes" if corrected <= plain else "circulant"


def _least_value(operator: WhitenedOperator, right: Tensor, preconditioner: HolesPreconditioner | None) -> float:
    """Return ``x'H x - 2 b'x`` after the steps of the trial."""
    solver = ConjugateGradients(tolerance=_TRIAL_TOLERANCE, max_epochs=_TRIAL_STEPS, preconditioner=preconditioner)
    value = solver.solve(operator, right).value
    return float((value * (operator @ value - 2 * right)).sum())


def has_holes(operator: WhitenedOperator) -> bool:
    """Whether so many nodes have no rows near that the circulant preconditioner alone is slow."""
    grid = operator.kernel.grid
    near = (operator.gram.row_sums() > 0.05 * operator.density).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # single nodes without rows are no hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[tuple(slice(2, -2) if count > 5 else slice(None) for count in grid.shape)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * operator.torus.size
