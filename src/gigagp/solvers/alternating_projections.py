"""Alternating projections: exact solves on blocks of rows, one block at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import torch

from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.indexing import add_rows
from gigagp.runtime import memory
from gigagp.runtime.progress import Approach
from gigagp.runtime.run import Run
from gigagp.settings.fields import Count, CountOrZero, Positive
from gigagp.solvers.ahead import Ahead, steps_ahead
from gigagp.solvers.base import (
    PreparingSolver,
    Problem,
    StoppingRule,
    are_finite,
    column_norms,
    has_finite_diagonal,
    on_cpu,
    require_matrix,
    slack,
    stopping_rule,
)
from gigagp.solvers.preconditioners import pivoting
from gigagp.solvers.preconditioners.base import budget_of, factor_with_jitter
from gigagp.solvers.preconditioners.clusters import Partition, clustered, contiguous
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.solution import Initial, Solution, Start, Status

#: Epochs between comparisons of the running residual with the true one, which rounding errors may have separated, and
#: before the first one if products are less precise than the matrix (`LinearOperator.fast`).
_CHECK_EPOCHS, _FIRST_CHECK = 50, 3
#: Entry of a factor that divides a number twice, which leaves zero in float64.
_NO_CHANGE = 1e200


@dataclass(frozen=True)
class AlternatingProjections(PreparingSolver):
    """Greedy block coordinate descent on ``v' H v / 2 - v' b``, with a coarse space.

    A step reads only ``n * block_size`` entries of the matrix, so this solver suits matrices that are expensive to
    read (from another device or from a disk). With clustered blocks and the coarse space it needs about as many epochs
    as `ConjugateGradients` with `TwoLevel` (12 to 14 on learned hyperparameters, n = 2,000 to 4,000). Without either
    it is the algorithm of the papers: fast down to a relative residual of 0.1, and slow below.

    Parameters
    ----------
    block_size : int, default 1000
        Largest number of rows in a block. If it is ``n`` or more, the solve is direct.
    tolerance : float, default 0.01
        Relative residual that each target has to reach.
    max_epochs : float, default 1000
        Largest number of epochs in the loop; one step costs ``block_size / n`` epochs.
    probe_tolerance : float, optional
        Mean relative residual that the probe vectors have to reach. None stands for ``tolerance``.
    partition : {"clustered", "contiguous", "shuffled"}, default "clustered"
        How rows are grouped into blocks. "clustered" groups nearby points: those of `SymmetricMatrix.coordinates`, or
        else the rows of the coarse columns; with neither, blocks are contiguous. "contiguous" takes consecutive rows
        (the paper's choice), and "shuffled" random ones.
    score : {"frobenius", "sum"}, default "frobenius"
        How the next block is chosen. "frobenius" chooses the block whose residual has the largest norm over all
        columns. "sum" chooses the block in which the *sum* of the residual's columns has the largest norm. This is the
        formula printed in the paper; because columns can cancel, it is no better and often worse.
    coarse_rank : int, default 300
        Dimension of the coarse space, at most n / 4; 0 disables it. The space costs one pass over the matrix, which
        also computes the first residual of a warm start.

    Notes
    -----
    The paper's configuration is ``partition="contiguous", coarse_rank=0``.

    Block steps hardly reduce the smooth part of the error, which is spread over all blocks. The coarse space is the
    span W of randomly pivoted columns. After every step the error is projected off this space,
    ``v += W (W'HW)^-1 W'r``. ``HW`` is stored, and ``W'r`` is known without a pass over the rows because it was zero
    before the step. Both kinds of step minimise the energy norm of the error over a subspace, so that norm never
    grows.

    References
    ----------
    Lin et al. (2024), Alg. 2, arXiv:2405.18457. Wu et al. (2024), "Large-scale Gaussian processes via alternating
    projection", arXiv:2310.17137.
    """

    block_size: Count = 1000
    tolerance: Positive = 0.01
    max_epochs: Positive = 1000
    probe_tolerance: Positive | None = None
    partition: Literal["clustered", "contiguous", "shuffled"] = "clustered"
    score: Literal["frobenius", "sum"] = "frobenius"
    coarse_rank: CountOrZero = 300

    def _solve(
        self, state: Prepared, b: torch.Tensor, initial: Initial, generator: torch.Generator, n_targets: int | None
    ) -> Solution:
        matrix = require_matrix(state.operator, "AlternatingProjections")
        first_residual_needed = initial is not None and not (
            isinstance(initial, Start) and initial.residual is not None
        )
        rank = self._coarse_rank(matrix.n)
        coarse = _CoarseSpace.build(matrix, rank, generator, state.pivots) if first_residual_needed else None
        companion = None if coarse is None else coarse.basis
        problem = Problem(matrix, b, initial, companion=companion)
        rule = stopping_rule(problem, self.tolerance, self.probe_tolerance, n_targets)
        if rule.met(problem.residual_norms()):
            problem.setup_epochs += 0.0 if coarse is None else coarse.epochs
            return problem.finish(Status.CONVERGED, 0, 0.0, rule)
        if not has_finite_diagonal(matrix):
            return problem.finish(Status.NOT_FINITE, 0, 0.0, rule)
        if coarse is None:
            coarse = _CoarseSpace.build(matrix, rank, generator, state.pivots)
        if coarse is not None:
            problem.setup_epochs += coarse.epochs
            product = problem.companion_product
            product = problem.multiply(coarse.basis) if product is None else product
            if not bool(torch.isfinite(product).all()):
                return problem.finish(Status.NOT_FINITE, 0, 0.0, rule)
            coarse.complete(product)
            state.pivots = coarse.pivots
        partition, name = self._partition(matrix, generator, coarse)
        run = _ProjectionSolve(self, matrix, problem, rule, partition, coarse, state.run)
        status = run.loop()
        detail: dict[str, object] = {
            "blocks": len(partition),
            "partition": name,
            "coarse_rank": 0 if coarse is None else coarse.basis.shape[1],
            "jitter": run.blocks.jitter,
        }
        return problem.finish(status, run.iterations, run.rows_used / matrix.n, rule, detail=detail)

    def _coarse_rank(self, n: int) -> int:
        return 0 if self.block_size >= n else min(self.coarse_rank, n // 4)

    def _partition(
        self, matrix: SymmetricMatrix, generator: torch.Generator, coarse: _CoarseSpace | None
    ) -> tuple[Partition, str]:
        """Return the blocks and the name of the partition that was used."""
        size = min(self.block_size, matrix.n)
        memory.require(
            8 * matrix.n * size,
            budget_of(matrix),
            f"AlternatingProjections: the block factors of {matrix.n:,} rows",
            "Use a smaller block_size.",
        )
        if self.partition == "clustered":
            points = matrix.coordinates()
            if points is None and coarse is not None:
                points = coarse.points
            if points is not None:
                return clustered(points, size), "clustered"
        if self.partition == "shuffled":
            order = torch.randperm(matrix.n, generator=generator)
            return contiguous(matrix.n, size, matrix.device, order), "shuffled"
        return contiguous(matrix.n, size, matrix.device), "contiguous"


class _CoarseSpace:
    """An orthonormal basis W of smooth vectors, with HW and the factor of W'HW once they have been computed."""

    def __init__(self, factor: pivoting.PartialCholesky, dtype: torch.dtype) -> None:
        self.basis = torch.linalg.qr(factor.columns)[0].to(dtype)
        self.points = factor.columns[:, :32].clone()
        self.pivots = factor.pivots
        self.epochs = factor.epochs
        self.product = torch.empty(0)
        self._factor = torch.empty(0)
        #: changes of the value that `flush` adds, by basis vector
        self.pending: torch.Tensor | None = None

    @classmethod
    def build(
        cls, matrix: SymmetricMatrix, rank: int, generator: torch.Generator, pivots: torch.Tensor | None
    ) -> _CoarseSpace | None:
        """Return the space spanned by ``rank`` randomly pivoted columns, or None if it would be empty."""
        if rank == 0:
            return None
        factor = pivoting.random(matrix, rank, generator, pivots=pivots)
        return cls(factor, matrix.dtype) if factor.rank else None

    def complete(self, product: torch.Tensor) -> None:
        """Store the product ``H W`` and factor ``W'HW``."""
        self.product = product
        energy = self.basis.to(torch.float64).T @ product.to(torch.float64)
        (self._factor,), _ = factor_with_jitter(((energy + energy.T) / 2).unsqueeze(0))

    def project(self, residual: torch.Tensor, restricted: torch.Tensor, sign: int = 1) -> torch.Tensor:
        """Project the space out of the residual, given ``sign * W' residual``; return the norms of the change."""
        change = torch.cholesky_solve(restricted.to(torch.float64), self._factor).to(self.basis.dtype)
        before = torch.zeros_like(change) if self.pending is None else self.pending
        self.pending = before.add(change, alpha=sign)
        residual.addmm_(self.product, change, alpha=-sign)
        return column_norms(change)

    def flush(self, value: torch.Tensor) -> None:
        """Add the changes of all projections since the last call to the value; until then only coefficients exist."""
        if self.pending is not None:
            value.addmm_(self.basis, self.pending)
            self.pending = None


class _Blocks:
    """Rows and Cholesky factors of the blocks. On a GPU they are found by a number that has not left it."""

    def __init__(self, matrix: SymmetricMatrix, partition: Partition) -> None:
        self.jitter, count, size = 0.0, len(partition), partition.size
        self.sizes = [len(rows) for rows in partition.blocks]
        self._slots = partition.slots
        self._scores = torch.zeros(count * size, dtype=matrix.dtype, device=matrix.device)
        self._on_gpu = matrix.device.type != "cpu"
        self._rows: list[Index] = []
        self._factors: list[torch.Tensor] = []
        if self._on_gpu:
            self._all_rows = partition.rows.new_empty(count, size)
            self._all_factors = torch.zeros(count, size, size, dtype=torch.float64, device=matrix.device)
        for number, rows in enumerate(partition.blocks):
            (factor,), jitter = factor_with_jitter(matrix.block(rows, rows).to(torch.float64).unsqueeze(0))
            self.jitter = max(self.jitter, jitter)
            if self._on_gpu:
                m = len(rows)
                self._all_rows[number] = torch.cat([rows, partition.blocks[(number + 1) % count][: size - m]])
                self._all_factors[number, :m, :m] = factor
                self._all_factors[number].diagonal()[m:] = _NO_CHANGE
            else:
                self._rows.append(_as_slice(rows))
                self._factors.append(factor)

    def largest(self, of_rows: torch.Tensor) -> torch.Tensor:
        """Return the number of the block in which numbers of the rows have the largest norm, shape (1,)."""
        self._scores[self._slots] = of_rows
        return torch.linalg.vector_norm(self._scores.view(len(self.sizes), -1), dim=1).argmax().view(1)

    def rows(self, block: torch.Tensor) -> Index:
        """Return the rows of a block, on a GPU with some of another one in the place of those that it lacks."""
        return self._all_rows.index_select(0, block)[0] if self._on_gpu else self._rows[int(block)]

    def factor(self, block: torch.Tensor) -> torch.Tensor:
        """Return the factor of the matrix of `rows`; solutions for rows of other blocks are zero."""
        return self._all_factors.index_select(0, block)[0] if self._on_gpu else self._factors[int(block)]


class _ProjectionSolve(Ahead):
    """The state of one solve by the loop of Alg. 2."""

    def __init__(
        self,
        solver: AlternatingProjections,
        matrix: SymmetricMatrix,
        problem: Problem,
        rule: StoppingRule,
        partition: Partition,
        coarse: _CoarseSpace | None,
        run: Run,
    ) -> None:
        super().__init__(steps_ahead(matrix.device, matrix.n * partition.size))
        self.solver, self.matrix, self.problem, self.rule = solver, matrix, problem, rule
        self.coarse, self.run = coarse, run
        self.iterations = self.rows_used = 0
        self.blocks = _Blocks(matrix, partition)
        problem.setup_epochs += partition.entries / matrix.n**2
        self._largest = partition.size
        self._next = torch.empty(0)  # the number of the block that is solved next, shape (1,)

    def loop(self) -> Status:
        """Iterate until a stopping condition holds, and return the reason."""
        status = self._iterate()
        self.settle(undo=status is Status.NOT_FINITE)
        return status

    def _iterate(self) -> Status:
        problem = self.problem
        margin = 1 + slack(problem.value.dtype)
        next_check = (_FIRST_CHECK if problem.corrects else _CHECK_EPOCHS) * self.matrix.n
        best_true, way = math.inf, Approach()
        (norms,) = on_cpu(self._project_all())
        while True:
            if margin * self.rule.excess(norms + problem.drift) <= 1:
                return Status.CONVERGED
            believed = self.rule.excess(norms)
            self.run.meter.within(way.share(believed))
            claimed = margin * believed <= 1
            if claimed or (self.rows_used >= next_check and bool((problem.drift > 0.1 * norms).any())):
                # Rounding may have separated the running residual from the true one.
                self.settle()
                residual = problem.true_residual()
                coarse = problem.is_coarse(residual - problem.residual, residual)
                norms = problem.refresh(residual)
                truth = self.rule.excess(norms)
                if margin * truth <= 1:
                    return Status.CONVERGED
                stagnates = truth > 0.7 * best_true and truth > 1.5 * believed
                if stagnates and not problem.corrects:
                    return Status.STAGNATED
                if stagnates or coarse:
                    problem.take_exact()
                    norms = problem.residual_norms()
                best_true = min(best_true, truth)
                next_check = self.rows_used + _CHECK_EPOCHS * self.matrix.n
                self._project_all()
            if self._steps_left() <= 0:
                return Status.BUDGET_SPENT
            if self.run.seconds_left() <= 0:
                return Status.TIME_SPENT
            after, block, value_norms, *changes = self._next_numbers(self._steps_left, believed)
            self.iterations += 1
            self.rows_used += self.blocks.sizes[int(block)]
            step_norms = reduce(torch.add, changes)
            if not are_finite(step_norms):
                return Status.NOT_FINITE
            problem.account(step_norms, value_norms, norms)
            norms = after

    def _steps_left(self) -> float:
        """Return the steps that the budget of epochs allows, if they are all as long as the longest."""
        return (self.solver.max_epochs * self.matrix.n - self.rows_used) / self._largest

    def settle(self, *, undo: bool = False) -> None:
        super().settle(undo=undo)
        if self.coarse is not None:
            self.coarse.flush(self.problem.value)

    def _copy(self, steps: int) -> Any:
        problem, block = self.problem, self._next
        rows = self.blocks.rows(block) if steps == 1 else slice(None)
        residual = problem.residual.clone() if steps > 1 else None  # where a single step is undone, it is not needed
        pending = None if self.coarse is None else self.coarse.pending
        return rows, problem.value[rows].clone(), residual, pending, block

    def _return_to(self, copy: Any) -> None:
        rows, value, residual, pending, self._next = copy
        self.problem.value[rows] = value
        if residual is not None:
            self.problem.residual.copy_(residual)
        if self.coarse is not None:
            self.coarse.pending = pending

    def _take_step(self) -> list[torch.Tensor]:
        """Solve on one block (Alg. 2, lines 10-12), then project off the coarse space."""
        problem, block = self.problem, self._next
        rows = self.blocks.rows(block)
        residual = problem.residual[rows].to(torch.float64)
        change = torch.cholesky_solve(residual, self.blocks.factor(block)).to(problem.value.dtype)
        add_rows(problem.value, rows, change)
        working = self.matrix.fast if problem.corrects else self.matrix
        problem.residual -= working.columns_product(rows, change)
        changes = [column_norms(change)]
        if self.coarse is not None:
            # W'r was zero, so now it is -W'H[:, rows] change.
            restricted = self.coarse.product[rows].T @ change
            changes.append(self.coarse.project(problem.residual, restricted, sign=-1))
        return [self._choose(), block, column_norms(problem.value), *changes]

    def _project_all(self) -> torch.Tensor:
        """Project the coarse space out of the current residual; return its norms."""
        if self.coarse is not None:
            self.coarse.project(self.problem.residual, self.coarse.basis.T @ self.problem.residual)
        return self._choose()

    def _choose(self) -> torch.Tensor:
        """Choose the next block, that with the largest score, and return the norms of the residual.

        See Alg. 2, line 9. The authors' code uses the Frobenius norm.
        """
        residual = self.problem.residual
        frobenius = self.solver.score == "frobenius"
        self._next = self.blocks.largest(torch.linalg.vector_norm(residual, dim=1) if frobenius else residual.sum(1))
        return column_norms(residual)


def _as_slice(rows: torch.Tensor) -> Index:
    """Return consecutive rows as a slice, so that indexing needs no gather."""
    first, last = int(rows[0]), int(rows[-1])
    consecutive = last - first + 1 == len(rows) and bool((rows.diff() == 1).all())
    return slice(first, last + 1) if consecutive else rows
