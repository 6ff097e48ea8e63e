"""The direct solver by a Cholesky factor."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.errors import NotPositiveDefiniteError
from gigagp.operators.base import LinearOperator
from gigagp.products import dense
from gigagp.runtime import memory
from gigagp.solvers.base import Problem, Solver, StoppingRule, require_matrix
from gigagp.solvers.preconditioners.base import Reuse, budget_of
from gigagp.solvers.solution import Solution, Start, Status


@dataclass(frozen=True)
class Cholesky(Solver):
    """Factor the whole matrix in float64: the reference, and the fastest choice for a few thousand rows.

    A solve stores two dense n x n float64 matrices and takes n^3 / 3 operations. No jitter is ever added. ``initial``,
    ``generator`` and ``reuse`` are accepted and ignored. ``detail["log_determinant"]`` is the exact log-determinant.

    Raises
    ------
    NotPositiveDefiniteError
        If the matrix cannot be factored in float64.
    MemoryBudgetError
        If the two matrices exceed the memory budget.
    """

    def solve(
        self,
        operator: LinearOperator,
        right_hand_sides: torch.Tensor,
        initial: torch.Tensor | Start | None = None,
        generator: torch.Generator | None = None,
        *,
        n_targets: int | None = None,
        reuse: Reuse | None = None,
    ) -> Solution:
        matrix = require_matrix(operator, "Cholesky")
        problem = Problem(matrix, right_hand_sides, None)
        memory.require(
            16 * matrix.n**2,
            budget_of(matrix),
            f"Cholesky of {matrix.n:,} rows",
            "Use ConjugateGradients.",
        )
        full = matrix.block(slice(None), slice(None)).to(torch.float64)
        if not bool(torch.isfinite(full.diagonal()).all()):
            msg = "the matrix given to Cholesky has NaN or infinity on its diagonal; check the hyperparameters."
            raise NotPositiveDefiniteError(msg)
        factor = dense.cholesky(full)
        b = problem.right_hand_sides.to(torch.float64)
        value = torch.cholesky_solve(b, factor)
        residual = b - full @ value
        problem.value, problem.residual = value.to(matrix.dtype), residual.to(matrix.dtype)
        problem.setup_epochs = 1.0
        tolerance = torch.finfo(matrix.dtype).eps ** 0.5
        rule = StoppingRule(tolerance, tolerance, len(problem.scale))
        status = Status.CONVERGED if rule.met(problem.residual_norms()) else Status.STAGNATED
        detail: dict[str, object] = {"log_determinant": 2 * float(factor.diagonal().log().sum())}
        return problem.finish(status, 0, 0.0, rule, detail=detail)
