"""Linear terms of a kernel on one grid: random slopes beside any method for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.grid.system import GridSolution, GridSystem
from gigagp.model.estimate import Estimate
from gigagp.operators.grid import SumKernel


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
