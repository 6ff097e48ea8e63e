"""Stochastic gradient descent on batches of rows, with momentum."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from gigagp.operators.base import SymmetricMatrix
from gigagp.runtime.progress import Approach
from gigagp.runtime.run import Run
from gigagp.settings.fields import Count, Positive, ShareBelowOne
from gigagp.solvers.base import (
    PreparingSolver,
    Problem,
    StoppingRule,
    has_finite_diagonal,
    require_matrix,
    slack,
    stopping_rule,
)
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.solution import Initial, Solution, Status

#: Ratio of the residual to the best one seen that counts as divergence, for a rate that was given and for one that was
#: found automatically, which is abandoned sooner.
_GROWTH_GIVEN, _GROWTH_FOUND = 1e3, 10.0
#: A rate found automatically is also halved if the residual stays this factor above the best one for this many epochs.
_WORSE, _PATIENCE_EPOCHS = 1.5, 10.0
_MOST_HALVINGS = 12


@dataclass(frozen=True)
class StochasticGradientDescent(PreparingSolver):
    """Mini-batch gradient descent with heavy-ball momentum.

    A step reads only ``batch_size`` rows of the matrix, less than in any other solver, but the loop is the slowest to
    reach a small residual. Use it for a loose tolerance or a small fixed budget. No learning rate has to be given.

    Parameters
    ----------
    batch_size : int, default 500
        Number of rows in a step; one step costs ``batch_size / n`` epochs.
    tolerance : float, default 0.01
        Relative residual that each target has to reach.
    max_epochs : float, default 1000
        Largest number of epochs in the loop.
    probe_tolerance : float, optional
        Mean relative residual that the probe vectors have to reach. None stands for ``tolerance``.
    learning_rate : "auto" or float, default "auto"
        The paper's gamma: a step moves by ``learning_rate / batch_size`` times the gradient, for right-hand sides of
        unit norm. "auto" chooses the rate from four sampled blocks (`automatic_step`). If the residual
        then grows, the solve returns to its best iterate and continues with half the rate.
        ``detail["learning_rate"]`` is the rate at the end.
    momentum : float, default 0.9
        Share of the previous step that is added to the next one.
    sampling : {"independent", "epoch"}, default "independent"
        "independent" draws every batch independently (the paper's choice); "epoch" visits every row once per epoch.

    Notes
    -----
    The running residual is assembled from the batches: each row dates from the last batch that contained it. In
    practice it lags behind the true residual by one epoch. It starts at the true residual of the initial guess. The
    paper's starts at ``b``, which costs a warm start up to nine epochs; pass ``Start(value, residual=b)`` to reproduce
    that. When the running residual reaches the tolerance, a product checks it, and another product gives the residual
    at return. These passes are counted in ``setup_epochs``.

    References
    ----------
    Lin et al. (2024), Alg. 3, arXiv:2405.18457.
    """

    batch_size: Count = 500
    tolerance: Positive = 0.01
    max_epochs: Positive = 1000
    probe_tolerance: Positive | None = None
    learning_rate: Positive | Literal["auto"] = "auto"
    momentum: ShareBelowOne = 0.9
    sampling: Literal["independent", "epoch"] = "independent"

    def _solve(
        self, state: Prepared, b: torch.Tensor, initial: Initial, generator: torch.Generator, n_targets: int | None
    ) -> Solution:
        matrix = require_matrix(state.operator, "StochasticGradientDescent")
        problem = Problem(matrix, b, initial)
        rule = stopping_rule(problem, self.tolerance, self.probe_tolerance, n_targets)
        if rule.met(problem.residual_norms()):
            return problem.finish(Status.CONVERGED, 0, 0.0, rule)
        if not has_finite_diagonal(matrix):
            return problem.finish(Status.NOT_FINITE, 0, 0.0, rule)
        batch_size = min(self.batch_size, matrix.n)
        if self.learning_rate == "auto":
            step, epochs = automatic_step(matrix, batch_size, self.momentum, generator)
            problem.setup_epochs += epochs
        else:
            step = self.learning_rate / batch_size
        run = _DescentSolve(self, matrix, problem, rule, step, state.run)
        status = run.loop(_batches(matrix.n, batch_size, self.sampling, generator, matrix.device))
        problem.drift.fill_(math.inf)  # the running residual is an estimate: a product gives the true one
        detail: dict[str, object] = {
            "learning_rate": run.step_size * batch_size,
            "halvings": run.halvings,
        }
        return problem.finish(status, run.iterations, run.rows_used / matrix.n, rule, detail=detail)


def _batches(
    n: int, batch_size: int, sampling: str, generator: torch.Generator, device: torch.device
) -> Iterator[torch.Tensor]:
    """Yield row indices without end and without repeats inside a batch."""
    while True:
        order = torch.randperm(n, generator=generator)
        if sampling == "independent":
            yield order[:batch_size].to(device)
        else:
            yield from order.to(device).split(batch_size)


@dataclass
class _DescentSolve:
    """The state of one solve by the loop of Alg. 3, and the best iterate so far."""

    solver: StochasticGradientDescent
    matrix: SymmetricMatrix
    problem: Problem
    rule: StoppingRule
    step_size: float
    run: Run
    iterations: int = 0
    rows_used: int = 0
    halvings: int = 0
    _last_good: int = 0

    def __post_init__(self) -> None:
        self._velocity = torch.zeros_like(self.problem.value)
        self._keep(self._size(self.problem.residual_norms()))

    def loop(self, batches: Iterator[torch.Tensor]) -> Status:
        """Iterate until a stopping condition holds and return the reason; the problem then holds the best iterate."""
        problem = self.problem
        margin = 1 + slack(problem.value.dtype)
        budget = self.solver.max_epochs * self.matrix.n
        found = self.solver.learning_rate == "auto"
        next_claim, spent, way = 0, Status.BUDGET_SPENT, Approach()
        for batch in batches:
            if self.rows_used >= budget:
                break
            if self.run.seconds_left() <= 0:
                spent = Status.TIME_SPENT
                break
            self._step(batch)
            norms = problem.residual_norms()
            self.run.meter.within(way.share(self.rule.excess(norms)))
            size = self._size(norms)
            growth = size / self._best
            if growth < _WORSE:
                self._last_good = self.rows_used
            failed = not growth < (_GROWTH_FOUND if found else _GROWTH_GIVEN)  # NaN too
            may_halve = found and self.halvings < _MOST_HALVINGS
            stalled = may_halve and self.rows_used > self._last_good + _PATIENCE_EPOCHS * self.matrix.n
            if (failed or stalled) and self._takes_exact():
                continue
            if failed and not may_halve:
                self._restore()
                return self._failure()
            if failed or stalled:
                self._restore()
                self.step_size /= 2
                self.halvings += 1
            elif self.rule.met(norms * margin) and self.rows_used >= next_claim:
                norms = problem.refresh()
                if self.rule.met(norms * margin):
                    return Status.CONVERGED
                next_claim = self.rows_used + self.matrix.n
                self._keep(self._size(norms))
                self._takes_exact()
            elif size < self._best and self.rows_used >= self._kept_at + self.matrix.n:
                self._keep(size)
        if not self._size(problem.residual_norms()) <= self._best:
            self._restore()
        return spent

    def _step(self, batch: torch.Tensor) -> None:
        problem = self.problem
        working = self.matrix.fast if problem.corrects else self.matrix
        residual = problem.right_hand_sides[batch] - working.rows_product(batch, problem.value)
        self._velocity.mul_(self.solver.momentum)
        self._velocity[batch] += self.step_size * residual
        problem.value += self._velocity
        problem.residual[batch] = residual  # Alg. 3, line 15 (which prints the other sign)
        self.iterations += 1
        self.rows_used += len(batch)

    def _takes_exact(self) -> bool:
        """Go on from the best iterate with the matrix itself if products of the loop are too coarse; return whether."""
        problem = self.problem
        if not problem.corrects:
            return False
        residual = problem.true_residual()
        gap = problem.right_hand_sides - problem.working @ problem.value - residual
        problem.setup_epochs += 1.0
        if not problem.is_coarse(gap, residual):
            return False
        self._restore()
        problem.take_exact()
        self._keep(self._size(problem.residual_norms()))
        return True

    def _keep(self, size: float) -> None:
        self._best = size
        self._kept_at = self.rows_used
        self._kept = (self.problem.value.clone(), self.problem.residual.clone())

    def _restore(self) -> None:
        self.problem.value.copy_(self._kept[0])
        self.problem.residual.copy_(self._kept[1])
        self._velocity.zero_()
        self._last_good = self.rows_used

    def _failure(self) -> Status:
        """Distinguish a matrix with NaN from a learning rate that is too high."""
        product = self.problem.multiply(self.problem.value)
        return Status.DIVERGED if bool(torch.isfinite(product).all()) else Status.NOT_FINITE

    @staticmethod
    def _size(norms: torch.Tensor) -> float:
        return float(norms.square().mean().sqrt())


# The learning rate of stochastic gradient descent, chosen from a few sampled blocks of the matrix ---------------------
#
# One step is ``m <- rho m - step * P_I (H v - b)``, ``v <- v + m``, where ``P_I`` keeps a random share ``p = b / n`` of
# the rows. Two conditions bound ``step``:
#
# *Stability in the mean.* An eigenvector with eigenvalue ``lambda`` behaves as a heavy ball with curvature
# ``a = step p lambda``, which is stable for ``a < 2 (1 + rho)``. The leading eigenvalues ``mu`` of a sampled b x b
# block are about ``p lambda``.
#
# *Stability in the mean square.* Sampling turns the gradient along each eigenvector into noise along all the others,
# which their momentum amplifies. If eigenvectors are spread over all rows, the ratio of the noise variance that one
# round returns to the one that entered it is the stationary variance of the heavy ball summed over the spectrum:
#
#     f(step) = step (1 - p) (1 + rho) / (1 - rho) * mean_k [ lambda_k / (2 (1 + rho) - step p lambda_k) ]
#
# Convergence requires ``f < 1``. A row whose diagonal entry stands out (a large known noise variance) is an eigenvector
# by itself; the same formula applies to it with that entry in place of the mean.
#
# The second condition limits a matrix that is nearly diagonal, and the first one a matrix with a few large eigenvalues.
# No single multiple of the largest eigenvalue is therefore right for both: the pol table with unit hyperparameters
# diverges at ``step mu_max = 1.15``, and elevators does best at 2.9.


#: Shares of the bounds that are used: in the mean; in the mean square with noise spread over all rows (every row slows
#: down well before that bound); in the mean square for a single row.
_MEAN, _MEAN_SQUARE, _ONE_ROW = 0.75, 0.35, 0.7
_SAMPLED_BLOCKS = 4


def automatic_step(
    matrix: SymmetricMatrix, batch_size: int, momentum: float, generator: torch.Generator
) -> tuple[float, float]:
    """Return a safe ``step`` and the number of epochs spent to find it."""
    n, share = matrix.n, batch_size / matrix.n
    n_blocks = 1 if batch_size == n else _SAMPLED_BLOCKS
    spectra = []
    for _ in range(n_blocks):
        rows = torch.randperm(n, generator=generator)[:batch_size].to(matrix.device)
        spectra.append(torch.linalg.eigvalsh(matrix.block(rows, rows).to(torch.float64)).clamp_min(0).cpu())
    spectrum = max(spectra, key=lambda values: float(values[-1]))
    largest_entry = matrix.diagonal().to(torch.float64).max().cpu()
    # An eigenvector on one row has p times its diagonal entry as curvature in the mean.
    one = largest_entry.reshape(1)
    step = min(
        _MEAN * 2 * (1 + momentum) / float(spectrum[-1]),
        _solve_mean_square(spectrum, spectrum, share, momentum, _MEAN_SQUARE),
        _solve_mean_square(one, share * one, share, momentum, _ONE_ROW),
    )
    return step, n_blocks * batch_size**2 / n**2


def _solve_mean_square(
    eigenvalues: torch.Tensor, curvatures: torch.Tensor, share: float, momentum: float, target: float
) -> float:
    """Return the step at which ``f`` equals ``target``, by bisection (f grows with the step)."""
    limit = 2 * (1 + momentum)
    amplification = (1 - share) * (1 + momentum) / (1 - momentum)
    low, high = 0.0, limit / float(curvatures.max())
    for _ in range(60):
        middle = (low + high) / 2
        returned = middle * amplification * float((eigenvalues / (limit - middle * curvatures)).mean())
        low, high = (middle, high) if returned < target else (low, middle)
    return low
