"""Grid inference by conjugate gradients in the span of the rows, preconditioned by neighbours among the nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.grid.factorised_system import FactorisedGridSystem, explained_from_below
from gigagp.inference.grid.preconditioners.nodes import NodesPreconditioner
from gigagp.inference.grid.system import (
    ROOT_ERROR,
    GridSolution,
    GridSystem,
    LogDeterminant,
    SolveSettings,
    least_error,
)
from gigagp.inference.grid.whitened_system import WhitenedGridSystem
from gigagp.model.estimate import Estimate
from gigagp.operators.grid import GridKernel, GridOperator
from gigagp.operators.grid.statistics import GridStatistics
from gigagp.runtime import interruption
from gigagp.solvers import Solution, Status
from gigagp.solvers.base import StoppingRule
from gigagp.solvers.krylov import Recurrence

#: Factor by which true residuals must fall between two comparisons with them, unless they reach the bound that was
#: aimed at; otherwise rounding has the last word.
_PROGRESS = 0.5


class _State(NamedTuple):
    """An iterate ``x = z / noise + W a``, with the results of its product with ``K_G``."""

    coefficients: Tensor  # a, (m, s)
    sources: Tensor  # ``q = W'x``, (m, s)
    values: Tensor  # ``K_G q``, (m, s)
    residual: Tensor  # ``z - K~ x`` in the layout of `GridOperator`, (2 m, s)
    error: Tensor  # ``r' P^-1 r``, (s,): about the square of the error of x in the norm of ``K~``


class NodesGridSystem(GridSystem):
    """Conjugate gradients on ``K~ x = z`` with `gigagp.inference.grid.preconditioners.nodes.NodesPreconditioner`.

    Iterates are ``x = z / noise + W a``, so all residuals lie in the span of W (Yadav et al. 2021, section 4). They
    minimise the error in the norm of ``K~``, which bounds that of ``q = W'x`` in the norm of ``K_G``. The mean ``K_G
    q`` and the gradient are made from q. Solves end where ``(r' P^-1 r / q' K_G q)^1/2``, about this relative error, is
    below the tolerance. The kernel needs no root.

    When to use: for rows on a lattice with gaps; for other rows with gaps it is one of the choices of "auto".
    """

    preconditioner = "vecchia"

    def __init__(self, kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings) -> None:
        super().__init__(kernel, statistics, noise)
        self.settings = settings
        self.operator = GridOperator(kernel, self.gram, noise)
        self.built = NodesPreconditioner(self.operator)

    def describe(self) -> str:
        return f"conjugate gradients (preconditioner: {self.preconditioner}, {self.built.describe()})"

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve by conjugate gradients; the dual is ``-noise a``, which would be the mean if it were exact."""
        state = self._state(cross, self.built.start(cross, self.noise))
        setup = 1.0
        if initial is not None and len(initial) == self.kernel.n:
            other, setup = self._state(cross, initial / -self.noise), 2.0
            state = _State(*(torch.where(other.error < state.error, a, b) for a, b in zip(other, state, strict=True)))
        targets = cross.shape[1] if n_targets is None else n_targets
        rule = StoppingRule(self.settings.tolerance, self.settings.probe_tolerance, targets)
        iterations, scale, status = 0, self._scale(state), None
        while status is None:
            excess = rule.excess(state.error.clamp_min(0).sqrt() / scale)
            if excess <= 1:
                status = Status.CONVERGED
            elif iterations >= self.settings.max_iterations:
                status = Status.BUDGET_SPENT
            elif iterations and interruption.seconds_left() <= 0:
                status = Status.TIME_SPENT
            else:
                steps, state = self._steps(cross, state, rule, scale, self.settings.max_iterations - iterations)
                iterations, setup = iterations + steps, setup + 1
                reached = rule.excess(state.error.clamp_min(0).sqrt() / scale)
                left = iterations < self.settings.max_iterations and interruption.seconds_left() > 0
                if left and reached > max(1.5, _PROGRESS * excess):
                    status = Status.STAGNATED
                scale = self._scale(state)  # the start can be far larger than the solution
        gram_values = self.gram @ state.values
        # x maximizes 2 z'x - x'K~x, whose maximum is z'K~^-1 z; it equals z'x + x'r with the residual r = W b.
        # z'x is z'z / noise + h'a, and x'r is q'b with b = -K_G q - noise a.
        coefficients, rest = state.coefficients, state.values + self.noise * state.coefficients
        correction = state.sources.T @ rest - cross.T @ (state.values / self.noise + coefficients)
        solution = Solution(
            state.sources,
            status,
            state.error.clamp_min(0).sqrt() / scale,
            iterations,
            float(iterations),
            setup,
            detail={"preconditioner": self.built.describe()},
        )
        dual = -self.noise * coefficients
        return GridSolution(state.values, gram_values, state.sources, correction, dual, solution)

    def _state(self, cross: Tensor, coefficients: Tensor) -> _State:
        """Return an iterate with its true residual; one product with ``K_G`` and two with ``W'W``."""
        sources = cross / self.noise + self.gram @ coefficients
        values = self.kernel @ sources
        residual = self.operator.lift(-values - self.noise * coefficients)
        return _State(coefficients, sources, values, residual, self._inner(residual))

    def _inner(self, residual: Tensor) -> Tensor:
        return self.operator.inner(residual, self.built.apply(residual))

    @staticmethod
    def _scale(state: _State) -> Tensor:
        """Return ``(q' K_G q)^1/2`` of each column; 1 for a column of zeros."""
        found = (state.sources * state.values).sum(0).clamp_min(0).sqrt()
        return torch.where(found > 0, found, 1.0)

    def _steps(
        self, cross: Tensor, state: _State, rule: StoppingRule, scale: Tensor, budget: int
    ) -> tuple[int, _State]:
        """Iterate until the recurrence's own residual is small or cannot fall; return the steps and the new iterate."""
        moved = torch.zeros_like(state.residual)
        recurrence = Recurrence(self.operator, moved, state.residual.clone(), self.built.apply)
        steps = 0
        while steps < budget:
            step = recurrence.step()
            steps += 1
            done = rule.met(recurrence.gamma.clamp_min(0).sqrt() / scale)
            late = interruption.seconds_left() <= 0
            if done or late or not recurrence.finite or not bool(step.alpha.any()):
                break
        return steps, self._state(cross, state.coefficients + moved[: self.kernel.n])

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the explained covariance; conjugate gradients approach it from below."""
        return explained_from_below(self.operator, self.settings.solver(self.built), smooth)

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Estimate the log-determinant with long waves or with the circulant, as a trial decides."""
        assert isinstance(self.kernel, GridKernel)
        parts = (self.kernel, self.statistics, self.noise)
        found: list[LogDeterminant] = []
        if self.statistics.n_probes > 1:
            settings = replace(self.settings, preconditioner="long_waves")
            found.append(FactorisedGridSystem(*parts, settings).own_log_determinant)
        if self.kernel.root_error <= ROOT_ERROR * self.noise:
            settings = replace(self.settings, preconditioner="circulant")
            found.append(WhitenedGridSystem(*parts, settings).circulant_log_determinant)
        return least_error(found, n_probes, generator, self.settings.max_iterations)
