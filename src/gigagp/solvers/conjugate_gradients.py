"""Preconditioned conjugate gradients on many right-hand sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch

from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator
from gigagp.runtime.progress import Approach
from gigagp.runtime.run import Run
from gigagp.settings.fields import Count, Positive, Range, Words
from gigagp.solvers.ahead import steps_ahead
from gigagp.solvers.base import (
    PreparingSolver,
    Problem,
    StoppingRule,
    column_norms,
    has_finite_diagonal,
    inner_norm,
    on_cpu,
    slack,
    stopping_rule,
)
from gigagp.solvers.krylov import Lookahead, Recurrence, WeightedSum, have_failed
from gigagp.solvers.preconditioners import Preconditioner
from gigagp.solvers.preconditioners.automatic import PreconditionerChoice
from gigagp.solvers.prepared import Prepared
from gigagp.solvers.solution import Initial, Solution, Start, Status, Truncated
from gigagp.solvers.truncation import Distribution, RussianRoulette, TruncatedSeries
from gigagp.solvers.truncation.estimators import TruncationChoice

#: Comparisons with the true residual without progress after which the working precision counts as exhausted.
_PATIENCE = 2
#: If products are less precise than the operator's (`LinearOperator.fast`), a comparison with the true residual after
#: this many iterations tells whether they are precise enough, and how fast the recurrence's residual parts from it.
_FIRST_CORRECTION = 10
#: The true residual replaces that of the recurrence again where they are expected to differ by this share of it.
_EXPECTED_CORRECTION = 0.3
#: Such a replacement keeps the directions if it changes the residual by at most this share.
_SMALL_CORRECTION = 0.5
#: Less precise products are too coarse too where the true residual stays above this share of its least between
#: replacements, but the recurrence's does not.
_LEAST_FALL = 0.3
#: Number of past steps that `ConjugateGradients.errors` sums.
_DELAY = 10
#: Relative residual that no healthy run reaches: conjugate gradients may raise it by the root of the condition number.
_BLOWN_UP = 1e8
#: Factor of hyperparameters up to which a preconditioner is kept. A build, with the trial before it, takes as long as
#: 20 to 30 products (8,000 rows), and a kept one only some more iterations. With a factor of two, these were 22 and 13
#: on a function of six inputs, where they are 10 and 8 now, in the same time.
_NEAR = 1.5
#: Where the estimate of an error in nats is below this multiple of what may end a solve, every step is looked at.
_NEAR_NATS = 10.0
#: Bounds for targets and probes.
_Bounds = Annotated[tuple[Positive, Positive], Words("a pair of positive numbers (targets, probes)")]


@dataclass(frozen=True)
class ConjugateGradients(PreparingSolver):
    """Preconditioned conjugate gradients, the default iterative solver. One iteration costs one epoch.

    Parameters
    ----------
    tolerance : float, default 0.01
        Relative residual that each target has to reach.
    max_epochs : float, default 1000
        Largest number of iterations.
    preconditioner : "auto", recipe, Preconditioner or None, default "auto"
        "auto" chooses between `Vecchia` and `TwoLevel` by a trial (`gigagp.solvers.preconditioners.automatic`), and
        uses no preconditioner if the operator's entries cannot be read. A recipe is built for each operator. A
        Preconditioner that has already been built is used unchanged. None uses no preconditioner.
    truncation : Distribution, RussianRoulette, SingleSample or None, default None
        Cut each solve at a random length and reweight its steps, so that the mean over lengths is the solution (see
        `gigagp.truncation`; a distribution stands for Russian roulette with it). The gradients of a fit are then
        unbiased for any expected length. The last solve, from which predictions are made, is never truncated.
        ``tolerance``, ``probe_tolerance`` and ``refresh_every`` apply to untruncated solves only: a truncated solve
        ends before its length only once the residual is at rounding level. ``nats`` must be None.
    probe_tolerance : float, optional
        Mean relative residual that the probe vectors have to reach. None stands for ``tolerance``.
    nats : (float, float), optional
        Also stop when the bound on the error in nats is at most the first number for each target and, averaged over
        the probes, at most the second. (1, 10) took 1.7 times fewer epochs than a residual of 0.01; the drift of the
        hyperparameters that it caused was a fifth of that caused by the choice of probes.
    errors : (float, float), optional
        Also stop when the combined length of the last ten steps is at most the first number for each target and,
        averaged over the probes, at most the second. Every step reduces the error, so this length estimates the error
        ten steps ago in the operator's norm; it is not a bound. It must be None with a truncation.
    refresh_every : int or None, default 50
        Number of iterations between comparisons of the recurrence's residual with the true one. Comparisons are made
        only if rounding may have separated the two, and the recurrence restarts from the true residual if it has. None
        compares them only when convergence is claimed.

    Notes
    -----
    The differences from Lin et al. 2024, Alg. 1, are:

    1. The default preconditioner is stronger.
    2. Columns whose guess is worse than zero start from zero.
    3. The residual at return is the true one. The rounding error of the recurrence is bounded during the run. Where
       the bound is not far below the tolerance (always in float32), a product decides, and the loop continues if
       necessary.
    4. A column without positive curvature (a matrix that is not positive definite in the working precision) stops.

    A truncated solve reads two solutions of independent lengths from one run, `Solution.value` and
    ``Solution.truncated.second``; quadratic forms need both. Its status is `Status.TRUNCATED`. Its relative residual is
    the true one of ``value`` and is not small. A length is at most the number of rows of the matrix. Warm starts are
    allowed: the series consists of the increments after the start, so the mean is the solution for any start that does
    not depend on the lengths.

    References
    ----------
    Lin et al. (2024), "Improving Linear System Solvers for Hyperparameter Optimisation in Iterative Gaussian
    Processes", Alg. 1, arXiv:2405.18457. van der Vorst & Ye (2000), doi:10.1137/S1064827599353865. Potapczynski et al.
    (2021), "Bias-free scalable Gaussian processes via randomized truncations", eqs. 16 and 17, arXiv:2102.06695.
    """

    tolerance: Positive = 0.01
    max_epochs: Annotated[float, Range(least=1)] = 1000  # an iteration is an epoch
    preconditioner: PreconditionerChoice = "auto"
    truncation: TruncationChoice | None = None
    probe_tolerance: Positive | None = None
    nats: _Bounds | None = None
    errors: _Bounds | None = None
    refresh_every: Count | None = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncation is not None:
            self._check_truncation()

    def _check_truncation(self) -> None:
        for name, bounds in (("nats", self.nats), ("errors", self.errors)):
            if bounds is not None:
                raise InvalidInputError(
                    f"{name} of ConjugateGradients must be None with a truncation; got {bounds!r}. A bound that ends a "
                    "solve early brings the bias back."
                )
        law = self._series.distribution
        least = law.minimum if law.last is None else law.last
        if least > self.max_epochs:
            what = "minimum" if law.last is None else "maximum"
            raise InvalidInputError(
                f"{what} of the truncation of ConjugateGradients must be at most max_epochs, {self.max_epochs:g}; got "
                f"{least}."
            )

    @property
    def is_random(self) -> bool:
        """Whether two solves of the same system can differ because of a truncation's random length."""
        return self.truncation is not None and self._series.distribution.n_points != 1

    @property
    def _series(self) -> TruncatedSeries:
        assert self.truncation is not None
        return RussianRoulette(self.truncation) if isinstance(self.truncation, Distribution) else self.truncation

    def prepare(self, operator: LinearOperator, previous: object = None, run: Run | None = None) -> Prepared:
        """Return the matrix with a preconditioner for all solves with it; see `Solver.prepare`.

        The preconditioner of an earlier matrix is used as it is at the same hyperparameters. Where "auto" leaves the
        choice to the solver, it is also kept as long as none has moved by more than a factor of 1.5. A randomly
        truncated solver builds one for each matrix, because the law of its lengths assumes quick convergence.
        """
        near = _NEAR if self.preconditioner == "auto" and not self.is_random else 1.0
        return Prepared(operator, previous, self.preconditioner, near=near, bound=self.nats is not None, run=run)

    def _solve(
        self, state: Prepared, b: torch.Tensor, initial: Initial, generator: torch.Generator, n_targets: int | None
    ) -> Solution:
        operator = state.operator
        series = None if self.truncation is None else self._series.bounded(operator.n, "the number of rows")
        problem = Problem(operator, b, initial, norm=inner_norm(operator))
        rule = stopping_rule(problem, self.tolerance, self.probe_tolerance, n_targets)
        run = (
            _ConjugateGradientSolve(self, problem, rule, state)
            if series is None
            else TruncatedRun(problem, series, generator, self.max_epochs)
        )
        detail: dict[str, object] = {"preconditioner": "none"}
        if run.rule.met(problem.residual_norms()):  # a good start needs no preconditioner
            return run.finish(Status.CONVERGED, detail)
        if not has_finite_diagonal(operator):
            return run.finish(Status.NOT_FINITE, detail)
        was_built = state.preconditioner is not None
        preconditioner = state.build(generator)
        if preconditioner is not None:
            problem.setup_epochs += 0.0 if was_built or preconditioner is self.preconditioner else preconditioner.epochs
            detail = {"preconditioner": state.describe(), "jitter": preconditioner.jitter}
        return run.finish(run.loop(preconditioner), detail)


@dataclass
class _ConjugateGradientSolve:
    """The state of one solve: the recurrence and the decisions about when to stop, correct or restart it."""

    solver: ConjugateGradients
    problem: Problem
    rule: StoppingRule
    state: Prepared
    preconditioner: Preconditioner | None = field(default=None, init=False)
    ahead: Lookahead = field(init=False)
    iterations: int = 0
    _best_true: float = float("inf")
    _idle: int = 0
    _nats_rule: StoppingRule | None = field(default=None, init=False)
    _error_rule: StoppingRule | None = field(default=None, init=False)
    _parting: float | None = None

    def loop(self, preconditioner: Preconditioner | None) -> Status:
        """Iterate until a stopping condition holds, and return the reason."""
        problem, self.preconditioner = self.problem, preconditioner
        precondition = None if preconditioner is None else preconditioner.apply
        recurrence = Recurrence(problem.working, problem.value, problem.residual, precondition)
        most = steps_ahead(problem.value.device, problem.operator.n**2)
        self.ahead = Lookahead(recurrence, problem.norm, most, 0 if self.solver.errors is None else _DELAY)
        if self.solver.nats is not None:
            self._nats_rule = StoppingRule(*self.solver.nats, self.rule.n_targets)
        if self.solver.errors is not None:
            self._error_rule = StoppingRule(*self.solver.errors, self.rule.n_targets)
        if problem.corrects:
            self._best_true = self.rule.excess(problem.residual_norms())
        status = self._iterate()
        self.ahead.settle()
        return status

    def _iterate(self) -> Status:
        problem, ahead = self.problem, self.ahead
        margin = 1 + slack(problem.value.dtype)
        budget, way = int(self.solver.max_epochs), Approach()
        keep = self._go_on()
        while True:
            if not ahead.seen.finite:
                return Status.NOT_FINITE
            norms = ahead.seen.norms
            if self._met(margin * self.rule.excess(norms + problem.drift)):
                return Status.CONVERGED
            excess = self.rule.excess(norms)
            self.state.run.meter.within(way.share(excess))
            if bool((norms > _BLOWN_UP).any()):
                ahead.settle()
                if not problem.corrects:
                    problem.start_again()
                    return Status.DIVERGED
                self._take_exact()
                norms = ahead.seen.norms
                excess = self.rule.excess(norms)
            claimed = self._met(margin * excess)
            stuck = self._stuck(norms)
            due = self._refresh_due() or self._correction_due(norms)
            if claimed or stuck or (due and bool((problem.drift > 0.01 * norms).any())):
                ended = self._compare_with_truth(norms, margin, claimed=claimed, stuck=stuck)
                if ended is not None:
                    return ended
            if self.iterations >= budget:
                return Status.BUDGET_SPENT
            if self.iterations and self.state.run.seconds_left() <= 0:
                return Status.TIME_SPENT
            seen = ahead.look(lambda: self._steps_to_check(budget - self.iterations), excess)
            self.iterations += 1
            if bool(seen.alpha.any()):
                problem.account(seen.step_norms, seen.value_norms, norms, ahead.operator_size)
            keep()

    def _steps_to_check(self, left: int) -> int:
        """Return after how many steps, of at most ``left``, more than the residual may have to be looked at."""
        every, nats, steps = self.solver.refresh_every, self._nats_rule, [left]
        if nats is not None and (self.preconditioner is None or nats.excess(self._energy()) < _NEAR_NATS):
            steps.append(1)
        if every is not None:
            steps.append(every - self.iterations % every)
        if self.problem.corrects:
            steps.append(_FIRST_CORRECTION - self.iterations)
        return min(steps)

    def _go_on(self) -> Callable[[], None]:
        """Go on where a killed process stopped, in a fit with a checkpoint; return what keeps the state of the loop."""
        file, numbers, problem = self.state.run.solves, self.problem.operator.numbers, self.problem
        if file is None or numbers is None:
            return lambda: None
        settings = f"{self.solver} {self.rule} {self.state.describe()}"
        key = file.key([*numbers, problem.right_hand_sides, problem.value], settings)
        state = file.state_of(key)
        if state is not None:
            problem.restore(state)
            self.ahead.recurrence.operator = problem.working
            self.ahead.restore(state)
            self.iterations, self._idle = int(state["iterations"]), int(state["idle"])
            self._best_true = float(state["best_true"])
            self._parting = float(state["parting"]) if len(state["parting"]) else None
        return lambda: file.keep(key, self._state)

    def _state(self) -> dict[str, torch.Tensor]:
        self.ahead.settle()
        parting = torch.tensor([] if self._parting is None else [self._parting], dtype=torch.float64)
        best_true = torch.tensor(self._best_true, dtype=torch.float64)
        own = {"iterations": torch.tensor(self.iterations), "idle": torch.tensor(self._idle), "best_true": best_true}
        return self.problem.state() | self.ahead.state() | own | {"parting": parting}

    def finish(self, status: Status, detail: dict[str, object]) -> Solution:
        """Return the solution, with the tightest available bound on its error."""
        nats = self.nats()
        return self.problem.finish(status, self.iterations, float(self.iterations), self.rule, nats=nats, detail=detail)

    def _compare_with_truth(self, norms: torch.Tensor, margin: float, *, claimed: bool, stuck: bool) -> Status | None:
        """Compute the true residual, and replace the running one if the two have separated.

        If they agree, the recurrence keeps its own residual: a replacement is not conjugate to the current directions,
        and in float32 repeated replacement makes the iteration grow.
        """
        problem = self.problem
        self.ahead.settle()
        believed = self.rule.excess(norms)
        residual = problem.true_residual()
        gap = residual - problem.residual
        difference, coarse = problem.norm(gap).cpu(), problem.is_coarse(gap, residual)
        corrects = problem.corrects
        small = bool((difference <= (_SMALL_CORRECTION if corrects else 0.1) * norms).all()) and not stuck
        if small and not corrects and not claimed:
            problem.drift.copy_(difference)
            return None
        if small and corrects:
            self.ahead.recurrence.correct(residual)
            self.ahead.renew()
        self._parting = float((difference / problem.drift.clamp_min(torch.finfo(difference.dtype).tiny)).max())
        norms = problem.refresh(residual)
        truth = self.rule.excess(norms)
        if self._met(margin * truth):
            return Status.CONVERGED
        parted = stuck or truth > 1.5 * believed
        if coarse or (corrects and parted and truth > _LEAST_FALL * self._best_true):
            self._take_exact()
            return None
        self._idle = self._idle + 1 if parted and truth > 0.7 * self._best_true else 0
        self._best_true = min(self._best_true, truth)
        if self._idle >= _PATIENCE:
            return Status.STAGNATED
        if not (small and corrects):
            self.ahead.restart()
        return None

    def _take_exact(self) -> None:
        """Go on with the operator's own products, whose directions are others."""
        self.problem.take_exact()
        self.ahead.recurrence.operator = self.problem.working
        self._best_true, self._idle = float("inf"), 0
        self.ahead.restart()

    def _met(self, excess: float) -> bool:
        """Whether residuals with this excess, or the errors that they leave, are as small as asked for."""
        if excess <= 1:
            return True
        if self._error_rule is not None and self._error_rule.met(self.problem.scale_here * self.ahead.moved):
            return True
        if self._nats_rule is None:
            return False
        # r' P^-1 r / 2 is known and estimates the error; where it is too large the bound is not worth its cost.
        if self.preconditioner is not None and not self._nats_rule.met(self._energy()):
            return False
        nats = self.nats()
        return nats is not None and self._nats_rule.met(nats)

    def nats(self) -> torch.Tensor | None:
        """Return the bound on each column's error in nats, or None if only the noise gives one."""
        preconditioner, problem = self.preconditioner, self.problem
        if preconditioner is None:
            if self._nats_rule is None:
                return None
            self.ahead.settle()
            return problem.nats_from_noise()
        if self.state.is_kept:
            return None
        if preconditioner.is_lower_bound:  # the recurrence already has r' P^-1 r
            return self._energy()
        self.ahead.settle()
        bound = preconditioner.lower_bound_apply(problem.residual)
        return None if bound is None else problem.nats_from(lambda _: bound)

    def _energy(self) -> torch.Tensor:
        """Return ``r' P^-1 r / 2`` in the problem's units."""
        return 0.5 * (self.problem.scale_here.square() * self.ahead.seen.gamma).clamp_min(0)

    def _refresh_due(self) -> bool:
        every = self.solver.refresh_every
        return every is not None and self.iterations > 0 and self.iterations % every == 0

    def _correction_due(self, norms: torch.Tensor) -> bool:
        if not self.problem.corrects:
            return False
        if self._parting is None:
            return self.iterations >= _FIRST_CORRECTION
        expected = min(self._parting, 1.0) * self.problem.drift
        return bool((self._waiting(norms) & (expected > _EXPECTED_CORRECTION * norms)).any())

    def _stuck(self, norms: torch.Tensor) -> bool:
        """Whether a column that has not converged cannot move."""
        still = self.ahead.failed | (self.ahead.seen.gamma <= 0)
        return bool((self._waiting(norms) & still).any())

    def _waiting(self, norms: torch.Tensor) -> torch.Tensor:
        """Return which columns have not converged yet."""
        return norms > min(self.rule.tolerance, self.rule.probe_tolerance)


# Conjugate gradients cut at a random length: unbiased solutions instead of small residuals ----------------------------


#: Relative residual below which a column's further steps are rounding, so that its series has ended.
EXHAUSTED = {torch.float64: 1e-13, torch.float32: 1e-6}


class TruncatedRun:
    """One run from which two independent solutions are read.

    The solution is the start plus the increments of conjugate gradients, one term of the series per iteration. Each of
    two independent lengths weights these increments (Potapczynski et al. 2021, eq. 16) for all columns, and the run
    continues to the longer length. If every column converges earlier, the rest of the series is zero and the sums are
    complete; the weights still apply. Products are exact and never those of `LinearOperator.fast`, because nothing
    could correct the terms of the series later.

    The value and the residual of ``problem`` become those of the first solution. ``max_epochs`` ends the run in case a
    law without a maximum gives a longer length.
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
        failed, size = torch.zeros_like(recurrence.gamma, dtype=torch.bool), 0.0
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
            if bool((((recurrence.gamma <= 0) | failed) & ~recurrence.frozen).any()):
                return Status.STAGNATED
            if self.iterations >= max(self.lengths):
                return Status.TRUNCATED
            if self.iterations >= self.max_epochs:
                return Status.BUDGET_SPENT
            self.iterations += 1
            weights = [self.series.weight(self.iterations, length) for length in self.lengths]
            gamma, lengths = recurrence.gamma, column_norms(recurrence.direction)
            step = recurrence.step(weights)
            failed = failed | have_failed(gamma, step.curvature)
            sizes = column_norms(step.product) / torch.where(lengths > 0, lengths, 1.0)
            of_step, values, sizes = on_cpu(step.alpha * lengths, column_norms(problem.value), sizes)
            size = max(size, float(sizes.max())) if len(sizes) else size
            problem.account(weights[0] * of_step, values, problem.residual_norms(), size)

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
