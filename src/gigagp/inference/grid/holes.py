"""Which preconditioner a grid's solves take where there are holes between the rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gigagp.operators.grid import WhitenedOperator

#: Share of the nodes inside of the margins that have rows within a cell, below which data count as having holes. The
#: elevation of the United States has 0.94 (what is missing is around the country): at a relative residual of 1e-3 the
#: circulant took 13 steps there; 60 with the preconditioner for holes were not enough ...
LEAST_OCCUPANCY = 0.93
#: ... and share of the torus: where a long lengthscale asks for a wide one, what lies around the grid is a hole too
#: (24 x 24 nodes, Matern-5/2 of a third of the domain, a tolerance of 1e-5: over 1,000 steps with the circulant).
LEAST_SHARE = 0.12
#: Steps of the trial where there are holes: the correction for them starts slower and is ahead after thirty or forty.
_TRIAL_STEPS = 60


def choose_preconditioner(attempt: Callable[[str, int], tuple[float, bool]]) -> str:
    """Return "circulant", "holes" or "long_waves": what gets furthest in a few steps.

    The correction for holes takes the density to be the same wherever there are rows. Where hundreds of rows a node
    make the data certain, what is wrong with that along the edges outweighs all that it corrects, and the circulant
    alone is not much better. Rows of many radars (2,000,000 on 40 x 20 x 10 nodes, Matern-5/2 of a fifth of the domain,
    noise of a hundredth): not solved for after 1,000 steps; to 1e-3 after 108 with the circulant, when the gradient was
    2.4 times the exact one; within 1 % of that after 71 with long waves.

    Parameters
    ----------
    attempt : callable
        Solves with a preconditioner, in so many steps at most, and returns a value that the solution alone makes least
        (residuals of different preconditioners have different norms), and whether the solve converged.
    """
    attempts = {choice: attempt(choice, _TRIAL_STEPS) for choice in ("circulant", "holes")}
    best = min(attempts, key=attempts.__getitem__)
    if attempts[best][1]:
        return best
    attempts["long_waves"] = attempt("long_waves", _TRIAL_STEPS)  # costs as much as many steps to build
    return min(attempts, key=attempts.__getitem__)


def has_holes(operator: WhitenedOperator) -> bool:
    """Whether so many nodes have no rows near that the circulant preconditioner alone is slow."""
    grid = operator.kernel.grid
    near = (operator.gram.row_sums() > 0.05 * operator.density).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # single nodes without rows are no hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[tuple(slice(2, -2) if count > 5 else slice(None) for count in grid.shape)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * operator.torus.size
