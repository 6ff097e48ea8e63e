"""Low-rank posterior covariance on the grid that never understates the variance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.inference.grid.preconditioners.long_waves import SmoothMatrix
from gigagp.inference.grid.system import DenseGridSystem
from gigagp.operators.base import Index
from gigagp.operators.grid import GridKernel, GridOperator, SumKernel
from gigagp.operators.grid.statistics import GridStatistics
from gigagp.products.dense import eigh
from gigagp.settings.random import standard_normal
from gigagp.solvers.lanczos import lanczos
from gigagp.solvers.preconditioners.base import factor_with_jitter
from gigagp.solvers.preconditioners.pivoting import greedy

#: The Krylov spaces of this many random vectors, one after the other, have to add nothing before no further one begins.
_STARTS = 3
#: Nodes times squared rows up to which rows are few, in units of the cube of the largest number of nodes of a dense
#: factor, and n x m arrays in the computation.
_COST, _ARRAYS = 2, 4


def has_few_rows(statistics: GridStatistics, exact_nodes: int, budget: int) -> bool:
    """Whether `LowRankCovariance.of_few_rows` costs no more than the dense factors of the largest grid."""
    m = statistics.grid.size
    rank = min(statistics.n_rows, m)
    return m * rank**2 <= _COST * exact_nodes**3 and _ARRAYS * 8 * m * rank <= budget


@dataclass(frozen=True)
class LowRankCovariance:
    """The posterior variance ``w'K_G w - |root' w|^2`` after conditioning on a Krylov space only.

    ``root root' = K_G W'Q (Q'K~Q)^-1 Q'W K_G`` with Lanczos vectors Q, as in LOVE (Pleiss et al. 2018) in the form of
    Yadav et al. (2021). ``Q (Q'K~Q)^-1 Q'`` is the Galerkin approximation of ``K~^-1`` and never above it, so that the
    variance includes the part that the rank leaves out. This is the computation-aware posterior with the columns of Q
    as actions. ``Q'K~Q`` is computed from the vectors and not taken from the Lanczos process: this then holds for any
    Q. The root has shape (m, k).
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
        """Return the approximation from at most ``rank`` Lanczos vectors.

        There are fewer if these span all that the rows determine. Each takes two products with ``K_G`` and with
        ``W'W``. The first direction is ``W K_G start``, by default with ones, shape (m, 1). Where a Krylov space ends
        early, another one begins at a random vector.
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

    @classmethod
    def of_few_rows(cls, kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float) -> LowRankCovariance:
        """Return the exact covariance given rows that are much fewer than the nodes, as a root of their rank.

        ``W'W = L L'`` with as many columns as there are different rows, and all that the rows tell of the function is
        one measurement of ``L'f`` with independent noise. For r columns it takes O(m r^2) time.
        """
        gram = statistics.gram

        def block(rows: Index, columns: Index) -> Tensor:
            places = torch.arange(gram.n)[columns]
            unit = torch.zeros(gram.n, len(places), dtype=torch.float64)
            unit[places, torch.arange(len(places))] = 1.0
            return (gram @ unit)[rows]

        factor = greedy(SmoothMatrix(gram, block), statistics.n_rows).columns
        smooth = kernel @ factor
        inner = factor.T @ smooth
        inner.diagonal().add_(noise)
        root = torch.linalg.cholesky(0.5 * (inner + inner.T))
        return cls(torch.linalg.solve_triangular(root, smooth.T, upper=False).T.contiguous())

    @property
    def rank(self) -> int:
        """Number of columns."""
        return self.root.shape[1]
