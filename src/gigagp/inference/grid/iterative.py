"""Choice of the iterative method for a kernel and its rows: whitened coordinates or not, and the preconditioner."""

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

#: Largest error of the kernel's root, as a share of the noise variance.
ROOT_ERROR = 0.01
#: Share of the nodes inside the margins with rows within a cell, below which the data count as having holes. For the
#: elevation of the United States it is 0.94 (the missing part surrounds the country). To a relative residual of 1e-3
#: the circulant took 13 steps there, and 60 steps with the preconditioner for holes were not enough.
LEAST_OCCUPANCY = 0.93
#: The same as a share of the torus. A long lengthscale needs a wide torus, and the space around the grid is then a hole
#: too (24 x 24 nodes, Matern-5/2 with a third of the domain, tolerance 1e-5: over 1,000 steps with the circulant).
LEAST_SHARE = 0.12
#: Steps of the trial for data with holes. The correction for holes starts slower and is ahead after thirty or forty.
_TRIAL_STEPS = 60


def has_root(kernel: GridKernel, noise: float) -> bool:
    """Whether the clipped part of the spectrum is small compared with the noise, as whitened coordinates require."""
    return kernel.root_error <= ROOT_ERROR * noise


def iterative_system(
    kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings | None = None
) -> IterativeGridSystem:
    """Return the conjugate-gradient system that suits the kernel and the rows.

    Parameters
    ----------
    kernel : GridKernel
        Kernel between the nodes.
    statistics : GridStatistics
        Statistics of the rows.
    noise : float
        Noise variance, including the kernel's white terms.
    settings : SolveSettings, optional
        Settings of the solves. The preconditioner of the returned system shows what "auto" has selected.
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
    """Return the system whose preconditioner gets furthest in a few steps: circulant, holes or long waves.

    The correction for holes assumes the same density wherever there are rows. If hundreds of rows per node determine
    the function, the error of this assumption along the edges outweighs the gain, and the circulant alone is not much
    better. Example: rows of many radars (2,000,000 on 40 x 20 x 10 nodes, Matern-5/2 with a fifth of the domain, noise
    of a hundredth). The circulant reaches 1e-3 after 74 steps, with a gradient by the first lengthscale of 4.9 times
    the exact one; long waves reach it after 43 steps, with 0.81 times.

    Residuals of different preconditioners have different norms. The solution minimizes ``(theta'W'W theta - 2 h'theta)
    / noise + theta'K_G^-1 theta``, so the trial compares this quantity for the first target.
    """
    cross = statistics.cross[:, :1]

    def attempt(choice: str) -> tuple[float, bool, IterativeGridSystem]:
        """Return the objective that a preconditioner reaches, whether its solve converged, and the system."""
        few = replace(settings, preconditioner=choice, max_iterations=_TRIAL_STEPS)
        system = iterative_system(kernel, statistics, noise, few)
        solved = system.solve(cross)
        assert solved.solution is not None
        misfit = ((solved.gram_values - 2 * cross) * solved.values).sum() / noise
        system.settings = replace(few, max_iterations=settings.max_iterations)  # keep what the system has built
        return float(misfit + system.prior_squares(solved).sum()), solved.solution.converged, system

    attempts = [attempt("circulant"), attempt("holes")]
    _, converged, system = min(attempts, key=itemgetter(0))
    if converged:
        return system
    attempts.append(attempt("long_waves"))  # building it costs as much as many steps
    return min(attempts, key=itemgetter(0))[2]


def has_holes(kernel: GridKernel, gram: Gram) -> bool:
    """Whether so many nodes have no rows nearby that the circulant preconditioner alone is slow."""
    grid, row_sums = kernel.grid, gram.row_sums()
    near = (row_sums > 0.05 * mean_density(row_sums)).reshape(grid.shape)
    covered = near
    for axis, count in enumerate(grid.shape):  # a single node without rows is not a hole
        covered = torch.stack([covered.roll(step, axis) for step in (range(-1, 2) if count > 5 else (0,))]).any(0)
    inside = covered[tuple(slice(2, -2) if count > 5 else slice(None) for count in grid.shape)].double()
    return float(inside.mean()) < LEAST_OCCUPANCY or float(near.sum()) < LEAST_SHARE * kernel.root_torus.size
