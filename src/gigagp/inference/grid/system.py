"""Linear algebra of grid inference at one model: solves, determinants and derivatives from the statistics alone.

For ``K~ = W K_G W' + noise`` and a vector z over the rows, of which only ``h = W'z`` is known, all results follow from
the m-vectors ``q = W' K~^-1 z`` and ``theta = K_G q``: ``K~^-1 z = (z - W theta) / noise``, so
``q = (h - W'W theta) / noise`` (Yadav et al. 2021, Fact 2 and Eq. 8).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.model.estimate import Estimate
from gigagp.operators.grid import GridKernel, SumKernel
from gigagp.operators.grid.statistics import GridStatistics
from gigagp.solvers import ConjugateGradients, Solution
from gigagp.solvers.preconditioners.base import Preconditioner

#: Largest error of the kernel's root on a torus, as a share of the noise variance.
ROOT_ERROR = 0.01
#: Number of probe vectors and of steps of a trial of log-determinants, and ratio of standard errors up to which methods
#: err alike. A standard error from eight probes is itself off by about a quarter.
_TRIAL_PROBES, _TRIAL_STEPS, _ALIKE = 8, 40, 2.0


@dataclass(frozen=True)
class GridSolution:
    """Solutions ``K~^-1 z`` for s vectors z over the rows, represented on the grid."""

    values: Tensor  # theta, (m, s): the posterior mean on the grid with z in place of the targets
    gram_values: Tensor  # ``W'W theta``, (m, s)
    adjoint: Tensor  # ``q = W' K~^-1 z``, (m, s)
    correction: Tensor  # (s, s), makes the errors of quadratic forms quadratic in that of the solve; zero for a factor
    dual: Tensor  # (k, s), for derivatives and for the start of a later solve; each system has its own form
    solution: Solution | None = None  # of the solver; None for a factor
    start: Tensor | None = None  # what a later solve starts from; None stands for ``dual``

    def combine(self, coefficients: Tensor) -> GridSolution:
        """Return the solution for linear combinations of the vectors, with ``coefficients`` of shape (s, t)."""
        return GridSolution(
            self.values @ coefficients,
            self.gram_values @ coefficients,
            self.adjoint @ coefficients,
            coefficients.T @ self.correction @ coefficients,
            self.dual @ coefficients,
            self.solution,
        )

    def columns(self, chosen: slice) -> GridSolution:
        """Return the solution for a slice of the vectors."""
        return GridSolution(
            self.values[:, chosen],
            self.gram_values[:, chosen],
            self.adjoint[:, chosen],
            self.correction[chosen, chosen],
            self.dual[:, chosen],
            self.solution,
        )


class GridSystem(ABC):
    """The matrix ``K~`` at one model, represented by statistics.

    The noise variance includes the kernel's white terms.
    """

    def __init__(self, kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float) -> None:
        self.kernel, self.statistics, self.noise = kernel, statistics, noise
        self.gram = statistics.gram

    @abstractmethod
    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve for vectors z over the rows, given by ``W'z``, shape (m, s).

        ``n_targets`` is that of `gigagp.solvers.Solver.solve`; ``initial`` is the `GridSolution.dual` of an earlier
        solve, or its `GridSolution.start` if that has one.
        """

    @abstractmethod
    def explained(self, smooth: Tensor) -> Tensor:
        """Return ``k_i' K~^-1 k_j`` for ``k = W smooth``, shape (s, s); it is never above the exact matrix.

        With ``smooth = K_G w_x`` it is the reduction of the covariance at points x by the data.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the method of solution in words."""

    @abstractmethod
    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return ``log det K~`` with its standard error."""

    def gradient(self, solved: GridSolution, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_j w_j q_j' (dK_G / d parameter) q_j`` for every hyperparameter of the kernel."""
        return self.kernel.gradient(solved.adjoint, solved.adjoint, weights)

    def prior_squares(self, solved: GridSolution) -> Tensor:
        """Return ``q' K_G q`` for each column, shape (s,)."""
        return (solved.adjoint * (self.kernel @ solved.adjoint)).sum(0)

    def quadratic(self, cross: Tensor, products: Tensor, solved: GridSolution) -> Tensor:
        """Return ``z_i' K~^-1 z_j``, shape (s, s), with an error quadratic in that of the solve.

        ``cross`` is ``W'z``, shape (m, s), ``products`` are ``z_i'z_j``, shape (s, s), and ``solved`` is the solution
        for the same vectors.
        """
        return (products - cross.T @ solved.values) / self.noise - solved.correction

    def squared_norms(self, squares: Tensor, cross: Tensor, solved: GridSolution) -> Tensor:
        """Return ``|K~^-1 z|^2`` for each column, shape (s,)."""
        theta = solved.values
        total = squares - 2 * (theta * cross).sum(0) + (theta * solved.gram_values).sum(0)
        return total / self.noise**2


#: Takes a number of probe vectors, the source of random numbers and the largest number of steps.
LogDeterminant = Callable[[int, torch.Generator, int], Estimate]


def least_error(
    estimators: Sequence[LogDeterminant], n_probes: int, generator: torch.Generator, max_steps: int
) -> Estimate:
    """Return the estimate by the method whose standard error is smallest in a short trial with few probes and steps.

    Methods that err alike in the trial all run, and their mean is weighted by their inverse squared standard errors, so
    that the standard error is not above that of the best one.
    """
    few = min(_TRIAL_PROBES, n_probes)
    if len(estimators) == 1 or few < 2:
        return estimators[0](n_probes, generator, max_steps)
    seed = int(torch.randint(2**62, (), generator=generator))
    steps = min(_TRIAL_STEPS, max_steps)
    errors = [one(few, torch.Generator().manual_seed(seed), steps).standard_error for one in estimators]
    near = [one for one, error in zip(estimators, errors, strict=True) if error <= _ALIKE * min(errors)]
    found = [one(n_probes, generator, max_steps) for one in near]
    if len(found) == 1 or min(one.standard_error for one in found) == 0.0:
        return min(found, key=lambda one: one.standard_error)
    weights = [one.standard_error**-2 for one in found]
    mean = sum(weight * one.value for weight, one in zip(weights, found, strict=True)) / sum(weights)
    return Estimate(mean, sum(weights) ** -0.5)


class DenseGridSystem(GridSystem):
    """Grid inference by one dense factor: exact, for grids of a few hundred nodes (O(m^3)).

    ``K_G W'W + noise`` is not symmetric, but its eigenvalues are positive, since it is similar to a symmetric matrix.
    The determinant of ``K~`` is that of this matrix times ``noise^(n - m)`` (Eq. 9).
    """

    def __init__(self, kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float) -> None:
        super().__init__(kernel, statistics, noise)
        self.prior = kernel.to_dense()
        matrix = self.prior @ self.gram.dense()
        matrix.diagonal().add_(noise)
        self._factor, self._pivots = torch.linalg.lu_factor(matrix)

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        values = torch.linalg.lu_solve(self._factor, self._pivots, self.prior @ cross)
        gram_values = self.gram @ values
        adjoint = (cross - gram_values) / self.noise
        return GridSolution(values, gram_values, adjoint, cross.new_zeros(cross.shape[1], cross.shape[1]), adjoint)

    def explained(self, smooth: Tensor) -> Tensor:
        return smooth.T @ self.information() @ smooth

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        own = float(self._factor.diagonal().abs().log().sum())
        return Estimate(own + (self.statistics.n_rows - self.kernel.n) * math.log(self.noise), 0.0)

    def describe(self) -> str:
        return "dense factor"

    def information(self) -> Tensor:
        """Return ``M = W' K~^-1 W``, shape (m, m)."""
        inverse = torch.linalg.lu_solve(self._factor, self._pivots, torch.eye(self.kernel.n, dtype=torch.float64))
        found = self.gram @ inverse
        return 0.5 * (found + found.T)


@dataclass(frozen=True)
class SolveSettings:
    """Settings of iterative solves; see `gigagp.inference.Grid`.

    Tolerances are for relative preconditioned residuals, which `gigagp.inference.grid.factorised_system` defines for
    long waves, and `gigagp.inference.grid.nodes_system` for neighbours. Solves are final where answers are computed
    from the solutions, and not only steps of learning.
    """

    tolerance: float = 1e-3
    probe_tolerance: float = 1e-3
    max_iterations: int = 1000
    preconditioner: str = "auto"
    is_final: bool = False

    def solver(self, preconditioner: Preconditioner | None) -> ConjugateGradients:
        """Return the solver with these tolerances."""
        return ConjugateGradients(
            tolerance=self.tolerance,
            probe_tolerance=self.probe_tolerance,
            max_epochs=self.max_iterations,
            preconditioner=preconditioner,
        )
