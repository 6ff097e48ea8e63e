"""Which way of solving a kernel and its rows ask for: white coordinates or not, and the preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from gigagp.grids import GridStatistics
from gigagp.inference.grid.factorised import FactorisedGridSystem
from gigagp.inference.grid.system import SolveSettings
from gigagp.inference.grid.whitened import WhitenedGridSystem
from gigagp.operators.grid import GridKernel, WhitenedOperator

IterativeGridSystem = WhitenedGridSystem | FactorisedGridSystem

#: Most of the noise variance that the root of the kernel may be wrong by.
ROOT_ERROR = 0.01
#: Share of the nodes inside of the margins that have rows within a cell, below which data count as having holes. The
#: elevation of the United States has 0.94 (what is missing is around the country): at a relative residual of 1e-3 the
#: circulant took 13 steps there; 60 with the preconditioner for holes were not enough ...
LEAST_OCCUPANCY = 0.93
#: ... and share of the torus: where a long lengthscale asks for a wide one, what lies around the grid is a hole too
#: (24 x 24 nodes, Matern-5/2 of a third of the domain, a tolerance of 1e-5: over 1,000 steps with the circulant).
LEAST_SHARE = 0.12
#: Steps of the trial where there are holes: the correction for them starts slower and is ahead after thirty or forty.
_TRIAL_STEPS = 60


def has_root(kernel: GridKernel, noise: float) -> bool:
    """Whether the clipped part of the spectrum is small beside the noise, so that white coordinates can be used."""
    return kernel.root_error <= ROOT_ERROR * noise


def iterative_system(
    kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings | None = None
) -> IterativeGridSystem:
    """Return the system that solves by conjugate gradients in the way that suits kernel and rows.

    Parameters
    ----------
    kernel : GridKernel
    statistics : GridStatistics
    noise : float
        Variance, the kernel's white part included.
    settings : SolveSettings, optional
        The preconditioner of what is returned says what "auto" came to.
    """
    settings = settings or SolveSettings()
    if not has_root(kernel, noise):
        return FactorisedGridSystem(kernel, statistics, noise, settings)

    def attempt(choice: str, steps: int) -> tuple[float, bool]:
        """Return ``(theta'W'W theta - 2 h'theta) / noise + theta'K_G^-1 theta``, and whether it is the least."""
        cross = statistics.cross[:, :1]
        system = iterative_system(
            kernel, statistics, noise, replace(settings, preconditioner=choice, max_iterations=steps)
        )
        solved = system.solve(cross)
        assert solved.solution is not None
        misfit = ((solved.gram_values - 2 * cross) * solved.values).sum() / noise
        return float(misfit + system.prior_squares(solved).sum()), solved.solution.converged

    choice = settings.preconditioner
    if choice == "auto":
        choice = choose_preconditioner(attempt) if has_holes(kernel, statistics, noise) else "circulant"
    system = FactorisedGridSystem if choice == "long_waves" else WhitenedGridSystem
    return system(kernel, statistics, noise, replace(settings, preconditioner=choice))


def choose_preconditioner(attempt: Callable[[str, int], tuple[float, bool]]) -> str:
    """Return "circulant", "holes" or "long_waves": what gets furthest in a few steps.

    The correction for holes takes the density to be the same wherever there are rows. Where hundreds of rows a node
    make the data certain, what is wrong with that along the edges outweighs all that it corrects, and the circulant
    alone is not much better. Rows of many radars (2,000,000 on 40 x 20 x 10 nodes, Matern-5/2 of a fifth of the domain,
    noise of a hundredth): not solved for after 1,000 steps; to 1e-3 after 108 with the circulant, when the gradient was
    2.4 times the exact one; within 7 % of that after 43 with long waves.

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


def has_holes(kernel: GridKernel, statistics: GridStatistics, noise: float) -> bool:
    """Whether so many nodes have no rows near that the circulant preconditioner alone is slow."""
    operator = WhitenedOperator(kernel, statistics.gram, noise)
    grid = operator.kernel.grid
    near = (operator.gram.row_sums() > 0.05 * operator.density).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # single nodes without rows are no hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[tuple(slice(2, -2) if count > 5 else slice(None) for count in grid.shape)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * operator.torus.size
