"""The preconditioner from conditioning every row on its nearest earlier rows, alone or beside low-rank columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.errors import InvalidInputError
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.factor import Factor
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators.base import SymmetricMatrix
from gigagp.operators.kernel_matrix import KernelMatrix
from gigagp.runtime import memory
from gigagp.settings.fields import Count, CountOrZero
from gigagp.solvers.preconditioners import pivoting
from gigagp.solvers.preconditioners.base import (
    Parts,
    Preconditioner,
    PreconditionerRecipe,
    budget_of,
    factor_with_jitter,
)
from gigagp.solvers.preconditioners.low_rank import LowRankPlusNoise, beside_columns


class SparsePlusLowRank(Preconditioner):
    """``P = L L' + S``, where S is the Vecchia approximation of ``H - L L'`` with the neighbours of a graph.

    ``P^-1 = S^-1 - U U'`` with ``U = S^-1 L C^-T`` and ``C C' = I + L' S^-1 L``. An application takes ``4 n m``
    operations per column for m neighbours, and ``4 n k`` for k columns of L. Factors are float64. ``low`` has the
    columns of L, if there are any, and ``lower`` a lower bound of the matrix, for bounds on errors in nats.
    """

    def __init__(
        self,
        matrix: KernelMatrix,
        graph: NeighbourGraph,
        low: pivoting.PartialCholesky | None,
        lower: LowRankPlusNoise | None,
    ) -> None:
        self.n, self._dtype = matrix.n, matrix.dtype
        self.graph, self._lower = graph, lower
        self._noise = matrix.noise()[:, None]
        self.pivots = None if low is None else low.pivots
        columns = matrix.X.new_zeros(self.n, 0, dtype=torch.float64) if low is None else low.columns
        pool = Pool(matrix.kernel, matrix.X, matrix.noise(), None if low is None else columns, budget_of(matrix) // 4)
        neighbours = graph.neighbours
        self._factor = Factor.of(pool, neighbours, graph.order)
        self.epochs = neighbours.shape[1] ** 2 / (2 * self.n) + (0.0 if low is None else low.epochs)
        wing = self._factor.apply(columns)
        capacitance = columns.T @ wing
        capacitance.diagonal().add_(1.0)
        (self._capacitance_factor,), self.jitter = factor_with_jitter(capacitance.unsqueeze(0))
        self._columns = columns
        self._wing = torch.linalg.solve_triangular(self._capacitance_factor.T, wing, upper=True, left=False)

    @property
    def rank(self) -> int:
        return self._wing.shape[1]

    def apply(self, vectors: torch.Tensor) -> torch.Tensor:
        result = self._factor.apply(vectors)
        if self.rank:
            result -= self._wing @ (self._wing.T @ vectors.to(torch.float64))
        return result.to(vectors.dtype)

    def transform_normal(self, normal: torch.Tensor) -> torch.Tensor:
        normal = normal.to(self._wing)
        return (self._factor.colour(normal[: self.n]) + self._columns @ normal[self.n :]).to(self._dtype)

    def log_determinant(self) -> float:
        return self._factor.log_determinant() + 2 * float(self._capacitance_factor.diagonal().log().sum())

    def lower_bound_apply(self, vectors: torch.Tensor) -> torch.Tensor | None:
        """Return the product with the inverse of ``L L' + noise <= H``, or None if it was not kept."""
        if self.rank:
            return None if self._lower is None else self._lower.lower_bound_apply(vectors)
        return vectors / self._noise if bool((self._noise > 0).all()) else None

    def describe(self) -> str:
        own = f"{self._factor.neighbours.shape[1]} neighbours of each row"
        return beside_columns(own, self.rank, self.jitter)


@dataclass(frozen=True)
class Vecchia(PreconditionerRecipe):
    """Every row conditioned on its nearest earlier rows: a sparse factor of the inverse, linear in the rows.

    When to use: for up to three inputs, where two to ten iterations suffice whatever the number of rows, and its build
    costs a few products where that of `TwoLevel` costs tens. In more inputs with little noise add columns (``rank``),
    which also help where the noise is larger than the signal. `docs/neighbours.md` has measurements.

    Parameters
    ----------
    n_neighbors : int, default 30
        Neighbours of each row. A build costs ``n m^3 / 3`` operations and ``n m^2 / 2`` kernel entries, and the factor
        takes ``24 n m`` bytes. 30 suffices for up to three inputs; take 60 in more.
    rank : int, default 0
        Columns of randomly pivoted Cholesky, of whose residual the factor is made (a full-scale approximation).

    References
    ----------
    Vecchia 1988, Estimation and model identification for continuous spatial processes,
    doi:10.1111/j.2517-6161.1988.tb01729.x; Schaefer, Katzfuss and Owhadi 2021, Sparse Cholesky factorization by
    Kullback-Leibler minimization, arXiv:2004.14455; Gyger, Furrer and Sigrist 2025, Vecchia-inducing-points full-scale
    approximations, arXiv:2507.05064.
    """

    n_neighbors: Count = 30
    rank: CountOrZero = 0

    def build(
        self, matrix: SymmetricMatrix, generator: torch.Generator, known: Parts | None = None, *, bound: bool = False
    ) -> SparsePlusLowRank:
        """Build for one `gigagp.operators.KernelMatrix`, whose rows have inputs; see `PreconditionerRecipe.build`."""
        if not isinstance(matrix, KernelMatrix):
            raise InvalidInputError(
                "preconditioner Vecchia needs a KernelMatrix, whose rows have inputs; "
                f"got {type(matrix).__name__}. Use TwoLevel."
            )
        neighbours, rank = min(self.n_neighbors, matrix.n), min(self.rank, matrix.n)
        memory.require(
            24 * matrix.n * (neighbours + rank),
            budget_of(matrix),
            f"the Vecchia preconditioner ({neighbours} neighbours, {rank} columns) for {matrix.n:,} rows",
            "Give Vecchia a smaller n_neighbors or rank.",
        )
        low = lower = None
        if self.rank:
            low = pivoting.random(matrix, rank, generator, pivots=None if known is None else known.pivots)
            lower = LowRankPlusNoise.of(matrix, low, "randomly pivoted") if bound else None
        graph = None if known is None else known.graph
        if graph is None or not graph.serves(matrix.kernel, matrix.X, self.n_neighbors):
            graph = NeighbourGraph(matrix.kernel, matrix.X, self.n_neighbors)
        return SparsePlusLowRank(matrix, graph, low, lower)
