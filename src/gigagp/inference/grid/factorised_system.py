"""Grid inference with the kernel matrix between nodes, for any stationary kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.grid.preconditioners.long_waves import LongWavesPreconditioner
from gigagp.inference.grid.system import GridSolution, GridSystem, SolveSettings
from gigagp.model.estimate import Estimate
from gigagp.operators.grid import GridKernel, GridOperator, Starts, SumKernel
from gigagp.operators.grid.statistics import GridStatistics
from gigagp.settings.random import standard_normal
from gigagp.solvers import ConjugateGradients, Start
from gigagp.solvers.lanczos import log_determinant

#: Change of the mean at the rows that ends a solve, in posterior standard deviations per unit of tolerance.
_MOVEMENT_AT_ROWS = 100.0


class FactorisedGridSystem(GridSystem):
    """Factorised conjugate gradients with the long-waves preconditioner, which also provides the start.

    Every preconditioner of the settings except "none" means long waves.

    When to use: for kernels without a root on a torus, and for many rows per node with holes between them.
    """

    def __init__(
        self, kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float, settings: SolveSettings
    ) -> None:
        super().__init__(kernel, statistics, noise)
        self.settings = settings
        self.preconditioner = "none" if settings.preconditioner == "none" else "long_waves"

    def describe(self) -> str:
        return f"factorised conjugate gradients (preconditioner: {self.preconditioner})"

    @cached_property
    def _long_waves(self) -> LongWavesPreconditioner | None:
        if self.preconditioner == "none":
            return None
        operator = GridOperator(self.kernel, self.gram, self.noise)
        return LongWavesPreconditioner(operator, torch.Generator().manual_seed(0))

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve ``(K_G W'W + noise) theta = K_G h`` in the inner product of ``W'W`` (Algorithm 4).

        Residuals are relative to the part of z that the grid sees, not to the right-hand side, which is much larger
        (section 3.8 of the notes). With a preconditioner, a solve also ends when the change of the mean at the rows is
        small relative to the posterior standard deviation there, whose mean square is noise times the degrees of
        freedom over n.
        """
        operator = GridOperator(self.kernel, self.gram, self.noise, sources=True)
        preconditioner = None if self._long_waves is None else self._long_waves.on(operator)
        right = operator.lift_sources(cross)
        known = initial if initial is not None and len(initial) == self.kernel.n else None
        norms = operator.inner(right, right).clamp_min(0).sqrt()
        # Row sums bound the eigenvalues of W'W.
        density = max(float((self.gram @ torch.ones(self.kernel.n, 1, dtype=torch.float64)).amax()), 1e-300)
        seen = (cross.square().sum(0) / density).sqrt()  # at most |z|, and about the norm of its part in the span of W
        used = norms > 0
        share = float((self.noise * seen[used] / norms[used]).amin()) if bool(used.any()) else 1.0
        settings = self.settings
        solver = replace(
            settings.solver(preconditioner),
            tolerance=min(share * settings.tolerance, 0.1),
            probe_tolerance=min(share * settings.probe_tolerance, 0.1),
        )
        start: Start | None = None
        if preconditioner is not None:
            start = self._nearest_start(operator, preconditioner, right, cross, known)
            spread = (self.noise * max(preconditioner.degrees_of_freedom, 1.0)) ** 0.5
            bounds = tuple(one * _MOVEMENT_AT_ROWS * spread for one in (settings.tolerance, settings.probe_tolerance))
            solver = replace(solver, errors=bounds)
        elif known is not None:
            start = Start(operator.lift_sources(known))
        solution = solver.solve(operator, right, start, n_targets=n_targets)
        sources = operator.sources(solution.value)
        final = operator.lift_sources(sources)  # recomputed, because the iterate of the loop has rounding errors
        values, gram_values = operator.coefficients(final), operator.adjoint(final)
        # theta = K_G q maximizes 2 h'theta - theta'W'W theta - noise q'theta, whose maximum is h'theta. With the
        # residual e of the equation for q, the maximum is h'theta - theta'e.
        correction = values.T @ (cross - gram_values - self.noise * sources) / self.noise
        return GridSolution(values, gram_values, sources, correction, sources, solution)

    @staticmethod
    def _nearest_start(
        operator: GridOperator,
        preconditioner: LongWavesPreconditioner,
        right: Tensor,
        cross: Tensor,
        initial: Tensor | None,
    ) -> Start:
        """Return the nearer start for each column: the posterior restricted to long waves, or ``initial``.

        With many rows and little noise, the initial error is 1e14 nats from zero and 1e8 nats from the long waves.
        """

        def at(sources: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Return the vectors of sources, their residuals, and the size of their errors in nats."""
            value = operator.lift_sources(sources)
            residual = operator.residual(right, value)
            return value, residual, operator.inner(residual, preconditioner.apply(residual))

        value, residual, error = at(preconditioner.posterior_sources(cross))
        if initial is None:
            return Start(value, residual, epochs=1.0)
        other, its_residual, its_error = at(initial)
        nearer = its_error < error
        return Start(torch.where(nearer, other, value), torch.where(nearer, its_residual, residual), epochs=2.0)

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the explained covariance; conjugate gradients approach it from below."""
        operator = GridOperator(self.kernel, self.gram, self.noise)
        return explained_from_below(operator, self.settings.solver(self._long_waves), smooth)

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Estimate the log-determinant by stochastic Lanczos quadrature with probes of the statistics."""
        return self.own_log_determinant(n_probes, generator, self.settings.max_iterations)

    def own_log_determinant(self, n_probes: int, generator: torch.Generator, max_steps: int) -> Estimate:
        """Return `log_determinant` after at most ``max_steps`` steps."""
        found = self.statistics
        if n_probes < found.n_probes:
            found = replace(
                found, probes=found.probes[:, :n_probes].contiguous(), probe_squares=found.probe_squares[:n_probes]
            )
        return factorised_log_determinant(self.kernel, found, self.noise, self._long_waves, generator, max_steps)


def explained_from_below(operator: GridOperator, solver: ConjugateGradients, smooth: Tensor) -> Tensor:
    """Return ``k_i' K~^-1 k_j`` for ``k = W smooth``, shape (s, s), by a solve whose error only reduces it."""
    right = operator.lift(smooth)
    solution = solver.solve(operator, right)
    residual = right - operator @ solution.value
    # k'x + x'r = k'x + x'k - x'K~x for every pair of columns
    forward = operator.coefficients(right).T @ operator.adjoint(solution.value)
    found = forward + operator.coefficients(solution.value).T @ operator.adjoint(residual)
    return 0.5 * (found + found.T)


def factorised_log_determinant(
    kernel: GridKernel | SumKernel,
    statistics: GridStatistics,
    noise: float,
    preconditioner: LongWavesPreconditioner | None = None,
    generator: torch.Generator | None = None,
    max_steps: int | None = None,
) -> Estimate:
    """Estimate ``log det K~`` from the probes collected with the rows (Yadav et al. 2021, section 4).

    With a preconditioner, the determinant of the preconditioner is exact, and the probes, with draws of its low-rank
    part added, estimate only the remainder.

    Raises
    ------
    InvalidInputError
        If the statistics have no probes.
    """
    if statistics.probes.shape[1] == 0:
        msg = "this log-determinant needs probes: collect the statistics with n_probes of at least 2."
        raise InvalidInputError(msg)
    starts = Starts(statistics.probes, statistics.probe_squares)
    operator = GridOperator(kernel, statistics.gram, noise, starts, statistics.n_rows)
    if preconditioner is None:
        return log_determinant(operator, None, starts=operator.start_vectors(), max_steps=max_steps)
    own = preconditioner.on(operator)
    normal = standard_normal(own.rank, len(starts.squares), generator=generator or torch.Generator().manual_seed(0))
    return log_determinant(operator, own, starts=own.transform_normal(normal), max_steps=max_steps)
