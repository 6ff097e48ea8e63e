"""Conjugate gradients cut at a random length: unbiased solutions instead of small residuals."""

from __future__ import annotations

from dataclasses import replace

import torch

from gigagp.solvers.base import Problem, StoppingRule
from gigagp.solvers.krylov import Recurrence, WeightedSum
from gigagp.solvers.preconditioners import Preconditioner
from gigagp.solvers.solution import Solution, Start, Status, Truncated
from gigagp.solvers.truncation import RussianRoulette, TruncatedSeries

#: Relative residual below which a column's further steps are rounding, so that its series has ended.
EXHAUSTED = {torch.float64: 1e-13, torch.float32: 1e-6}
#: Relative residual that no healthy run reaches; see `ConjugateGradients`.
_BLOWN_UP = 1e8


class TruncatedRun:
    """One run from which two independent solutions are read.

    The solution is the start plus the increments of conjugate gradients, one term of the series per iteration. Each
    of two independent lengths weights these increments (Potapczynski et al. 2021, eq. 16) for all columns, and the run
    continues to the longer length. If every column converges earlier, the rest of the series is zero and the sums are
    complete; the weights still apply.

    For any start that does not depend on the lengths, the mean over them is the solution. Products are exact and never
    those of `LinearOperator.fast`, because nothing could correct the terms of the series later.

    Parameters
    ----------
    problem : Problem
        Its ``value`` and ``residual`` become those of the first solution.
    series : TruncatedSeries
        Its distribution is bounded by the number of rows.
    generator : torch.Generator
        Source of the two lengths, which are drawn by the constructor.
    max_epochs : float
        Largest number of iterations, in case a law without a maximum gives a longer length.

    Attributes
    ----------
    rule : StoppingRule
        The rule of an exhausted series: every column is at rounding level.
    """

    def __init__(
        self, problem: Problem, series: TruncatedSeries, generator: torch.Generator, max_epochs: float
    ) -> None:
        self.problem, self.series, self.max_epochs = problem, series, max_epochs
        level = EXHAUSTED[problem.value.dtype]
        self.rule = StoppingRule(level, level, len(problem.scale))
        law = series.distribution
        self.lengths = (law.sample(generator), law.sample(generator))
        self.plain = WeightedSum(problem.value.clone(), problem.residual.clone())
        self.second = WeightedSum(problem.value.clone(), problem.residual.clone())
        self.iterations = 0
        self.converged = False

    def loop(self, preconditioner: Preconditioner | None) -> Status:
        """Iterate to the longer length or to convergence, and return the reason for stopping."""
        problem, plain = self.problem, self.plain
        recurrence = Recurrence(
            problem.operator,
            plain.value,
            plain.residual,
            None if preconditioner is None else preconditioner.apply,
            sums=(WeightedSum(problem.value, problem.residual), self.second),
        )
        while True:
            if not recurrence.finite:
                return Status.NOT_FINITE
            norms = problem.norm(plain.residual)
            if bool((norms > _BLOWN_UP).any()):
                self._start_again()
                return Status.DIVERGED
            recurrence.frozen = norms <= self.rule.tolerance  # more steps would add rounding times large weights
            if bool(recurrence.frozen.all()):
                return self._exhausted()
            if bool(((recurrence.gamma <= 0) | recurrence.failed)[~recurrence.frozen].any()):
                return Status.STAGNATED
            if self.iterations >= max(self.lengths):
                return Status.TRUNCATED
            if self.iterations >= self.max_epochs:
                return Status.BUDGET_SPENT
            self.iterations += 1
            weights = [self.series.weight(self.iterations, length) for length in self.lengths]
            _, step_norms = recurrence.step(weights)
            problem.account(weights[0] * step_norms, problem.residual_norms(), recurrence.operator_size)

    def _exhausted(self) -> Status:
        """Return the status of a converged run, whose value is the solution itself if no step had to be reweighted."""
        self.converged = True
        if isinstance(self.series, RussianRoulette) and self.series.trust_convergence:
            totals = (WeightedSum(self.problem.value, self.problem.residual), self.second)
            for length, total in zip(self.lengths, totals, strict=True):
                if length > self.iterations:
                    total.value.copy_(self.plain.value)
                    total.residual.copy_(self.plain.residual)
        return Status.CONVERGED if self.rule.met(self.problem.residual_norms()) else Status.TRUNCATED

    def _start_again(self) -> None:
        self.problem.start_again()
        for total in (self.plain, self.second):
            total.value.copy_(self.problem.value)
            total.residual.copy_(self.problem.residual)

    def finish(self, status: Status, detail: dict[str, object]) -> Solution:
        """Return the first solution together with the second one and the unweighted iterate."""
        problem, converged = self.problem, self.converged or status is Status.CONVERGED
        solution = problem.finish(status, self.iterations, float(self.iterations), self.rule, detail=detail)
        truncated = Truncated(
            lengths=self.lengths,
            second=problem.in_units(self.second.value),
            plain=Start(problem.in_units(self.plain.value), problem.in_units(self.plain.residual)),
            expected_iterations=self.series.distribution.expected_longest(),
            ended_early=converged and self.iterations < max(self.lengths),
        )
        return replace(solution, truncated=truncated)
