"""Which way of solving a kernel and its rows ask for: white coordinates or not, and the preconditioner."""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import torch

from gigagp.grids import GridStatistics
from gigagp.inference.grid.factorised_system import FactorisedGridSystem
from gigagp.inference.grid.system import SolveSettings
from gigagp.inference.grid.whitened_system import WhitenedGridSystem
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.gram import Gram
from gigagp.operators.grid.whitened import mean_density

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
    if settings.preconditioner == "auto":
        if has_holes(kernel, statistics.gram):
            return _furthest(kernel, statistics, noise, settings)
        settings = replace(settings, preconditioner="circulant")
    kind = FactorisedGridSystem if settings.preconditioner == "long_waves" else WhitenedGridSystem
    return kind(kernel, statistics, noise, settings)


def _furthest(
    kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings
) -> IterativeGridSystem:
    """Return the system of the preconditioner that gets furthest in a few steps: circulant, holes or long waves.

    The correction for holes takes the density to be the same wherever there are rows. Where hundreds of rows a node
    make the data certain, what is wrong with that along the edges outweighs all that it corrects, and the circulant
    alone is not much better. Rows of many radars (2,000,000 on 40 x 20 x 10 nodes, Matern-5/2 of a fifth of the domain,
    noise of a hundredth): to 1e-3 after 74 steps with the circulant, when the gradient by the first lengthscale is 4.9
    times the exact one; after 43 with long waves, and 0.81 times.

    Residuals of different preconditioners have different norms, but the solution alone makes ``(theta'W'W theta - 2
    h'theta) / noise + theta'K_G^-1 theta`` least: that is compared, for the first target.
    """
    cross = statistics.cross[:, :1]

    def attempt(choice: str) -> tuple[float, bool, IterativeGridSystem]:
        """Return how far a preconditioner got, whether that was to the end, and the system."""
        few = replace(settings, preconditioner=choice, max_iterations=_TRIAL_STEPS)
        system = iterative_system(kernel, statistics, noise, few)
        solved = system.solve(cross)
        assert solved.solution is not None
        misfit = ((solved.gram_values - 2 * cross) * solved.values).sum() / noise
        system.settings = replace(few, max_iterations=settings.max_iterations)  # what it has built is kept
        return float(misfit + system.prior_squares(solved).sum()), solved.solution.converged, system

    attempts = [attempt("circulant"), attempt("holes")]
    _, converged, system = min(attempts, key=itemgetter(0))
    if converged:
        return system
    attempts.append(attempt("long_waves"))  # costs as much as many steps to build
    return min(attempts, key=itemgetter(0))[2]


def has_holes(kernel: GridKernel, gram: Gram) -> bool:
    """Whether so many nodes have no rows near that the circulant preconditioner alone is slow."""
    grid, row_sums = kernel.grid, gram.row_sums()
    near = (row_sums > 0.05 * mean_density(row_sums)).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # single nodes without rows are no hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[tuple(slice(2, -2) if count > 5 else slice(None) for count in grid.shape)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * kernel.root_torus.size
