"""Choice of the iterative method for a kernel and its rows, by its preconditioner, with slopes beside any of them."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.grid.coverage import has_empty_nodes, has_holes
from gigagp.inference.grid.factorised_system import FactorisedGridSystem
from gigagp.inference.grid.nodes_system import NodesGridSystem
from gigagp.inference.grid.system import ROOT_ERROR, GridSolution, GridSystem, SolveSettings
from gigagp.inference.grid.whitened_system import WhitenedGridSystem
from gigagp.model.estimate import Estimate
from gigagp.neighbours.conditionals import is_compiled
from gigagp.operators.grid import GridKernel, SumKernel
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid


class SlopesSystem(GridSystem):
    """``K~ + W F F' W'`` for a system ``K~`` without slopes and a root F of the covariance of the slopes.

    With ``P = W F``, ``B = I + P' K~^-1 P`` and ``c = B^-1 P' K~^-1 z``, the solution is ``K~^-1 (z - P c)`` by the
    Woodbury identity, and c is the posterior mean of the slopes in units of their standard deviations. So a solve takes
    one more column for each slope, and keeps the preconditioner, which knows stationary kernels only. ``base`` is the
    system of ``kernel.smooth`` with the same rows and noise.
    """

    def __init__(self, kernel: SumKernel, base: GridSystem) -> None:
        super().__init__(kernel, base.statistics, base.noise)
        self.base, self.preconditioner = base, getattr(base, "preconditioner", "none")
        self.root = kernel.slope_root
        self._cross = self.gram @ self.root
        self._products = self.root.T @ self._cross

    def describe(self) -> str:
        return f"{self.base.describe()}, {self.root.shape[1]} slopes"

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve for vectors and slopes together; ``initial`` is `GridSolution.start` of an earlier solve."""
        p, s = self.root.shape[1], cross.shape[1]
        # slopes come first, because they are targets, and probes are last
        stacked = torch.cat([self._cross, cross], 1)
        initial = None if initial is None or initial.shape[1] != p + s else initial
        solved = self.base.solve(stacked, p + (s if n_targets is None else n_targets), initial)
        factor, forms = self._slopes(solved, cross)
        coefficients = torch.cholesky_solve(forms, factor)
        contrast = torch.cat([-coefficients, torch.eye(s, dtype=torch.float64)])
        rest = solved.combine(contrast)
        added = self.root @ coefficients
        # The slopes make the form of (z, z - P c) with K~^-1 into that of z with the whole matrix, so its correction
        # is that of these two vectors.
        mixed = solved.correction[p:] @ contrast
        return GridSolution(
            rest.values + added,
            rest.gram_values + self._cross @ coefficients,
            rest.adjoint,
            0.5 * (mixed + mixed.T),
            rest.dual,
            solved.solution,
            solved.dual,
        )

    def _slopes(self, solved: GridSolution, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Cholesky factor of B and ``P' K~^-1 z``, shapes (p, p) and (p, s)."""
        p = self.root.shape[1]
        slopes = solved.columns(slice(p))
        own = self.base.quadratic(self._cross, self._products, slopes)
        matrix = 0.5 * (own + own.T) + torch.eye(p, dtype=torch.float64)
        forms = (self.root.T @ cross - self._cross.T @ solved.values[:, p:]) / self.noise - solved.correction[:p, p:]
        return torch.linalg.cholesky(matrix), forms

    def gradient(self, solved: GridSolution, weights: Tensor) -> dict[str, Tensor]:
        """Return the derivatives of the smooth part by its own system, and those of the slopes."""
        assert isinstance(self.kernel, SumKernel)
        smooth = self.kernel.smooth_gradient(self.base.gradient(solved, weights))
        slopes = self.kernel.slope_gradient(solved.adjoint, weights)
        return {name: smooth[name] + value for name, value in slopes.items()}

    def prior_squares(self, solved: GridSolution) -> Tensor:
        return self.base.prior_squares(solved) + (self.root.T @ solved.adjoint).square().sum(0)

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the explained covariance; the slopes are eliminated from that of points and slopes together."""
        p = self.root.shape[1]
        found = self.base.explained(torch.cat([self.root, smooth], 1))
        factor = torch.linalg.cholesky(found[:p, :p] + torch.eye(p, dtype=torch.float64))
        half = torch.linalg.solve_triangular(factor, found[:p, p:], upper=False)
        return found[p:, p:] - half.T @ half

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return the log-determinant of the smooth part plus that of B."""
        rest = self.base.log_determinant(n_probes, generator)
        factor, _ = self._slopes(self.base.solve(self._cross), self._cross[:, :0])
        return Estimate(rest.value + 2 * float(factor.diagonal().log().sum()), rest.standard_error)


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

    nodes = attempt("vecchia", _NODES_STEPS) if is_compiled(kernel.kernel) else None
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
