"""Choice of the iterative method for a kernel and its rows: whitened coordinates or not, and the preconditioner."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import torch

from gigagp.inference.grid.coverage import has_empty_nodes, has_holes
from gigagp.inference.grid.factorised_system import FactorisedGridSystem
from gigagp.inference.grid.nodes_system import NodesGridSystem
from gigagp.inference.grid.slopes_system import SlopesSystem
from gigagp.inference.grid.system import ROOT_ERROR, SolveSettings
from gigagp.inference.grid.whitened_system import WhitenedGridSystem
from gigagp.neighbours.conditionals import is_compiled
from gigagp.operators.grid import GridKernel, SumKernel
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid

IterativeGridSystem = WhitenedGridSystem | FactorisedGridSystem | NodesGridSystem | SlopesSystem

#: Steps of the trial for data with holes. The correction for holes starts slower and is ahead after thirty or forty.
_TRIAL_STEPS = 60
#: Steps of neighbours in the trial, each of which costs about as much as two of the circulant, and steps up to which
#: nothing else is tried.
_NODES_STEPS, _FEW_STEPS = 30, 10


def has_root(kernel: GridKernel | SumKernel, noise: float) -> bool:
    """Whether the clipped part of the spectrum is small compared with the noise, as whitened coordinates require."""
    return kernel.root_error <= ROOT_ERROR * noise


def iterative_system(
    kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float, settings: SolveSettings | None = None
) -> IterativeGridSystem:
    """Return the conjugate-gradient system that suits the kernel and the rows.

    Its ``preconditioner`` is the one that "auto" has selected.
    """
    settings = settings or SolveSettings()
    if isinstance(kernel, SumKernel):
        if isinstance(kernel.smooth, GridKernel):
            return SlopesSystem(kernel, iterative_system(kernel.smooth, statistics, noise, settings))
        return FactorisedGridSystem(kernel, statistics, noise, settings)
    assert isinstance(statistics.grid, RegularGrid)
    if settings.preconditioner == "vecchia":
        return NodesGridSystem(kernel, statistics, noise, settings)
    if not has_root(kernel, noise):
        return FactorisedGridSystem(kernel, statistics, noise, settings)
    if settings.preconditioner == "auto":
        holes = has_holes(kernel, statistics.gram)
        if holes or has_empty_nodes(kernel, statistics.gram):
            return _furthest(kernel, statistics, noise, settings, holes=holes)
        settings = replace(settings, preconditioner="circulant")
    kind = FactorisedGridSystem if settings.preconditioner == "long_waves" else WhitenedGridSystem
    return kind(kernel, statistics, noise, settings)


def _furthest(
    kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings, *, holes: bool
) -> IterativeGridSystem:
    """Return the system that is fastest in a short trial: neighbours, circulant, holes or long waves.

    Neighbours are tried first and taken if they converge within a few steps, as they do where rows lie on nodes.

    The correction for holes assumes the same density wherever there are rows. If hundreds of rows per node determine
    the function, the error of this assumption along the edges outweighs the gain, and the circulant alone is not much
    better. Example: rows of many radars (2,000,000 on 40 x 20 x 10 nodes, Matern-5/2 with a fifth of the domain, noise
    of a hundredth). The circulant reaches 1e-3 after 74 steps, with a gradient by the first lengthscale of 4.9 times
    the exact one; long waves reach it after 43 steps, with 0.81 times.

    Residuals of different preconditioners have different norms. The solution minimizes ``(theta'W'W theta - 2 h'theta)
    / noise + theta'K_G^-1 theta``, so the trial compares this quantity for the first target where nothing converges.
    """
    cross = statistics.cross[:, :1]

    def attempt(choice: str, steps: int = _TRIAL_STEPS) -> _Attempt:
        few = replace(settings, preconditioner=choice, max_iterations=steps)
        system = iterative_system(kernel, statistics, noise, few)
        solved = system.solve(cross)
        assert solved.solution is not None
        misfit = ((solved.gram_values - 2 * cross) * solved.values).sum() / noise
        assert not isinstance(system, SlopesSystem), "slopes are outside of this choice"
        system.settings = replace(few, max_iterations=settings.max_iterations)  # keep what the system has built
        value = float(misfit + system.prior_squares(solved).sum())
        return _Attempt(value, solved.solution.converged, solved.solution.iterations, system)

    nodes = attempt("vecchia", _NODES_STEPS) if is_compiled(kernel.kernel, torch.device("cpu")) else None
    if nodes is not None and nodes.converged and nodes.steps <= _FEW_STEPS:
        return nodes.system
    attempts = [attempt(choice) for choice in (("circulant", "holes") if holes else ("circulant",))]
    best = min(attempts, key=attrgetter("value"))
    if nodes is not None and nodes.converged:
        ahead = best.converged and best.steps < nodes.steps * _TRIAL_STEPS / _NODES_STEPS
        return best.system if ahead else nodes.system
    if best.converged or not holes:
        return best.system
    attempts += [attempt("long_waves")] + ([] if nodes is None else [nodes])  # long waves cost many steps to build
    return min(attempts, key=attrgetter("value")).system


class _Attempt(NamedTuple):
    """The objective that a preconditioner reaches, whether its solve converged, its steps, and the system."""

    value: float
    converged: bool
    steps: int
    system: IterativeGridSystem
