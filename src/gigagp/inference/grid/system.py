"""The linear algebra of grid inference at one model: solves, determinant and derivatives from statistics alone.

With ``K~ = W K_G W' + noise`` and any vector z of the rows, known by ``h = W'z``, everything follows from
``q = W' K~^-1 z`` and ``theta = K_G q``, m numbers each: ``K~^-1 z = (z - W theta) / noise``, so
``q = (h - W'W theta) / noise`` (Yadav et al. 2021, Fact 2 and Eq. 8).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.estimate import Estimate
from gigagp.grids import GridStatistics
from gigagp.operators.grid import GridKernel
from gigagp.preconditioners.base import Preconditioner
from gigagp.solvers import ConjugateGradients, Solution


@dataclass(frozen=True)
class GridSolution:
    """``K~^-1 z`` of several vectors, as the grid sees it.

    Attributes
    ----------
    values : Tensor of shape (m, s)
        ``theta``, the posterior mean on the grid if z were targets.
    gram_values : Tensor of shape (m, s)
        ``W'W theta``.
    adjoint : Tensor of shape (m, s)
        ``q = W' K~^-1 z``.
    correction : Tensor of shape (s, s)
        What makes quadratic forms second order in the errors of the solve; zero for an exact one.
    dual : Tensor of shape (k, s)
        What a later solve starts from, and derivatives are made of; the system knows its form.
    solution : Solution or None
        What the solver did; None for a factor.
    """

    values: Tensor
    gram_values: Tensor
    adjoint: Tensor
    correction: Tensor
    dual: Tensor
    solution: Solution | None = None

    def combine(self, coefficients: Tensor) -> GridSolution:
        """Return the solution for linear combinations of the vectors: columns times ``coefficients`` (s, t)."""
        return GridSolution(
            self.values @ coefficients,
            self.gram_values @ coefficients,
            self.adjoint @ coefficients,
            coefficients.T @ self.correction @ coefficients,
            self.dual @ coefficients,
            self.solution,
        )

    def columns(self, chosen: slice) -> GridSolution:
        """Return the solution for some of the vectors."""
        return GridSolution(
            self.values[:, chosen],
            self.gram_values[:, chosen],
            self.adjoint[:, chosen],
            self.correction[chosen, chosen],
            self.dual[:, chosen],
            self.solution,
        )


class GridSystem(ABC):
    """``K~`` at one model, on statistics.

    Parameters
    ----------
    kernel : GridKernel
    statistics : GridStatistics
    noise : float
        Variance, the kernel's white part included.
    """

    def __init__(self, kernel: GridKernel, statistics: GridStatistics, noise: float) -> None:
        self.kernel, self.statistics, self.noise = kernel, statistics, noise
        self.gram = statistics.gram

    @abstractmethod
    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve for vectors of the rows known by ``W'z``, shape (m, s).

        ``n_targets`` as in `gigagp.solvers.Solver.solve`; ``initial`` is an earlier `GridSolution.dual`.
        """

    @abstractmethod
    def explained(self, smooth: Tensor) -> Tensor:
        """Return ``k_i' K~^-1 k_j`` for ``k = W smooth``, shape (s, s): never above the exact matrix.

        The variance that data explain at points x, with ``smooth = K_G w_x``.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the method in words."""

    @abstractmethod
    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return ``log det K~`` with its standard error."""

    def gradient(self, solved: GridSolution, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_j w_j q_j' (dK_G / d parameter) q_j`` by every hyperparameter of the kernel."""
        return self.kernel.gradient(solved.adjoint, solved.adjoint, weights)

    def prior_squares(self, solved: GridSolution) -> Tensor:
        """Return ``q' K_G q`` of each column, shape (s,)."""
        return (solved.adjoint * (self.kernel @ solved.adjoint)).sum(0)

    def quadratic(self, cross: Tensor, products: Tensor, solved: GridSolution) -> Tensor:
        """Return ``z_i' K~^-1 z_j``, shape (s, s), with an error of the square of the solves'.

        Parameters
        ----------
        cross : Tensor of shape (m, s)
            ``W'z``.
        products : Tensor of shape (s, s)
            ``z_i'z_j``.
        solved : GridSolution
            Of the same vectors.
        """
        return (products - cross.T @ solved.values) / self.noise - solved.correction

    def squared_norms(self, squares: Tensor, cross: Tensor, solved: GridSolution) -> Tensor:
        """Return ``|K~^-1 z|^2`` of each column, shape (s,)."""
        theta = solved.values
        total = squares - 2 * (theta * cross).sum(0) + (theta * solved.gram_values).sum(0)
        return total / self.noise**2


class DenseGridSystem(GridSystem):
    """All of it by one dense factor: exact, for grids of a few hundred nodes (O(m^3)).

    ``K_G W'W + noise`` is not symmetric, but its eigenvalues are those of a symmetric matrix, and positive; ``K~`` has
    its determinant times ``noise^(n - m)`` (Eq. 9).
    """

    def __init__(self, kernel: GridKernel, statistics: GridStatistics, noise: float) -> None:
        super().__init__(kernel, statistics, noise)
        self.prior = kernel.to_dense()
        matrix = self.prior @ self.gram.dense()
        matrix.diagonal().add_(noise)
        self._factor, self._pivots = torch.linalg.lu_factor(matrix)

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve by the factor."""
        values = torch.linalg.lu_solve(self._factor, self._pivots, self.prior @ cross)
        gram_values = self.gram @ values
        adjoint = (cross - gram_values) / self.noise
        return GridSolution(values, gram_values, adjoint, cross.new_zeros(cross.shape[1], cross.shape[1]), adjoint)

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the exact matrix."""
        return smooth.T @ self.information() @ smooth

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return the exact value."""
        own = float(self._factor.diagonal().abs().log().sum())
        return Estimate(own + (self.statistics.n_rows - self.kernel.n) * math.log(self.noise), 0.0)

    def describe(self) -> str:
        """Return the method in words."""
        return "dense factor"

    def information(self) -> Tensor:
        """Return ``M = W' K~^-1 W``, shape (m, m)."""
        inverse = torch.linalg.lu_solve(self._factor, self._pivots, torch.eye(self.kernel.n, dtype=torch.float64))
        found = self.gram @ inverse
        return 0.5 * (found + found.T)


@dataclass(frozen=True)
class SolveSettings:
    """How iterative solves are made.

    Attributes
    ----------
    tolerance, probe_tolerance : float
        Relative preconditioned residuals; of long waves `gigagp.inference.grid.factorised_system` says what they are.
    max_iterations : int
    preconditioner : {"auto", "circulant", "holes", "long_waves", "none"}
    """

    tolerance: float = 1e-3
    probe_tolerance: float = 1e-3
    max_iterations: int = 1000
    preconditioner: str = "auto"

    def solver(self, preconditioner: Preconditioner | None) -> ConjugateGradients:
        """Return what solves to these tolerances."""
        return ConjugateGradients(
            tolerance=self.tolerance,
            probe_tolerance=self.probe_tolerance,
            max_epochs=self.max_iterations,
            preconditioner=preconditioner,
        )
