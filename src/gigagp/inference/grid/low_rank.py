"""Low-rank posterior covariance on the grid that never understates the variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.dense import eigh
from gigagp.grids import GridStatistics
from gigagp.inference.grid.system import DenseGridSystem
from gigagp.lanczos import lanczos
from gigagp.operators.grid import GridKernel, GridOperator, SumKernel
from gigagp.preconditioners.base import factor_with_jitter
from gigagp.random import standard_normal

#: The Krylov spaces of so many random vectors, one after the other, have to add nothing before no further one begins.
_STARTS = 3


@dataclass(frozen=True)
class LowRankCovariance:
    """The posterior variance ``w'K_G w - |root' w|^2`` after conditioning on a Krylov space only.

    ``root root' = K_G W'Q (Q'K~Q)^-1 Q'W K_G`` with Lanczos vectors Q, as in LOVE (Pleiss et al. 2018) in the form of
    Yadav et al. (2021). ``Q (Q'K~Q)^-1 Q'`` is the Galerkin approximation of ``K~^-1`` and never above it, so that the
    variance includes what the rank leaves out. This is the computation-aware posterior with the columns of Q as
    actions. ``Q'K~Q`` is computed from the vectors and not taken from the Lanczos process: this then holds for any Q.

    Attributes
    ----------
    root : Tensor of shape (m, k)
        Root of the reduction of the covariance.
    """

    root: Tensor

    @classmethod
    def build(
        cls,
        kernel: GridKernel | SumKernel,
        statistics: GridStatistics,
        noise: float,
        rank: int,
        start: Tensor | None = None,
    ) -> LowRankCovariance:
        """Return the approximation of rank at most ``rank``.

        Parameters
        ----------
        kernel : GridKernel or SumKernel
            Kernel between the nodes.
        statistics : GridStatistics
            Statistics of the rows.
        noise : float
            Noise variance, including the kernel's white terms.
        rank : int
            Number of Lanczos vectors, of which there are fewer if these span all that the rows determine. Each takes
            two products with ``K_G`` and with ``W'W``. Where a Krylov space ends earlier, another one begins at a
            random vector.
        start : Tensor of shape (m, 1), optional
            Start of the first Krylov space, whose first direction is ``W K_G start``; ones by default.
        """
        operator, generator = GridOperator(kernel, statistics.gram, noise), torch.Generator().manual_seed(0)
        first = torch.ones(kernel.n, 1, dtype=torch.float64) if start is None else start
        found = lanczos(operator, operator.lift(kernel @ first), rank).vectors
        empty_handed = 0
        while found.shape[1] < rank and empty_handed < _STARTS:
            first = standard_normal(kernel.n, 1, generator=generator, dtype=torch.float64)
            more = lanczos(operator, operator.lift(kernel @ first), rank - found.shape[1], apart_from=found).vectors
            found, empty_handed = torch.cat([found, more], 1), 0 if more.shape[1] else empty_handed + 1
        vectors = operator.coefficients(found).clone()
        del found
        adjoint = statistics.gram @ vectors
        smooth = kernel @ adjoint
        projected = noise * vectors.T @ adjoint + adjoint.T @ smooth
        (factor,), _ = factor_with_jitter(((projected + projected.T) / 2).unsqueeze(0))  # jitter explains less
        return cls(torch.linalg.solve_triangular(factor, smooth.T, upper=False).T.contiguous())

    @classmethod
    def exact(cls, system: DenseGridSystem) -> LowRankCovariance:
        """Return the exact covariance of a small grid, as a root of full rank."""
        values, vectors = eigh(system.information())
        return cls(system.prior @ (vectors * values.clamp_min(0).sqrt()))  # negative values are rounding errors

    @property
    def rank(self) -> int:
        """Number of columns."""
        return self.root.shape[1]
