"""The linear algebra of grid inference at one model: solves, determinant and derivatives from statistics alone.

With ``K~ = W K_G W' + noise`` and any vector z of the rows, known by ``h = W'z``, everything follows from
``q = W' K~^-1 z`` and ``theta = K_G q``, m numbers each: ``K~^-1 z = (z - W theta) / noise``, so
``q = (h - W'W theta) / noise`` (Yadav et al. 2021, Fact 2 and Eq. 8).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.estimate import Estimate
from gigagp.grids import GridStatistics
from gigagp.inference.grid.holes import choose_preconditioner, has_holes
from gigagp.lanczos import log_determinant
from gigagp.operators.grid import GridKernel, GridOperator, Starts, WhitenedOperator
from gigagp.preconditioners.holes import HolesPreconditioner
from gigagp.preconditioners.long_waves import LongWavesPreconditioner
from gigagp.random import standard_normal
from gigagp.solvers import ConjugateGradients, Solution, Start

#: Error of the mean at the rows that ends a factorised solve, in posterior standard deviations a unit of tolerance.
_ERROR_AT_ROWS = 200.0


@dataclass(frozen=True)
class GridSolution:
    """``K~^-1 z`` of several vectors, as the grid sees it.

    Attributes
    ----------
    values : Tensor of shape (m, s)
        ``theta``, the posterior mean on the grid if z were targets.
    gram_values : Tensor of shape (m, s)
        ``W'W theta``.
    adjoint : Tensor of shape (m, s)
        ``q = W' K~^-1 z``.
    correction : Tensor of shape (s, s)
        What makes quadratic forms second order in the errors of the solve; zero for an exact one.
    dual : Tensor of shape (k, s)
        What a later solve starts from, and derivatives are made of; the system knows its form.
    solution : Solution or None
        What the solver did; None for a factor.
    """

    values: Tensor
    gram_values: Tensor
    adjoint: Tensor
    correction: Tensor
    dual: Tensor
    solution: Solution | None = None

    def combine(self, coefficients: Tensor) -> GridSolution:
        """Return the solution for linear combinations of the vectors: columns times ``coefficients`` (s, t)."""
        return GridSolution(
            self.values @ coefficients,
            self.gram_values @ coefficients,
            self.adjoint @ coefficients,
            coefficients.T @ self.correction @ coefficients,
            self.dual @ coefficients,
            self.solution,
        )

    def columns(self, chosen: slice) -> GridSolution:
        """Return the solution for some of the vectors."""
        return GridSolution(
            self.values[:, chosen],
            self.gram_values[:, chosen],
            self.adjoint[:, chosen],
            self.correction[chosen, chosen],
            self.dual[:, chosen],
            self.solution,
        )


class GridSystem(ABC):
    """``K~`` at one model, on statistics.

    Parameters
    ----------
    kernel : GridKernel
    statistics : GridStatistics
    noise : float
        Variance, the kernel's white part included.
    """

    def __init__(self, kernel: GridKernel, statistics: GridStatistics, noise: float) -> None:
        self.kernel, self.statistics, self.noise = kernel, statistics, noise
        self.gram = statistics.gram

    @abstractmethod
    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve for vectors of the rows known by ``W'z``, shape (m, s).

        ``n_targets`` as in `gigagp.solvers.Solver.solve`; ``initial`` is an earlier `GridSolution.dual`.
        """

    @abstractmethod
    def explained(self, smooth: Tensor) -> Tensor:
        """Return ``k_i' K~^-1 k_j`` for ``k = W smooth``, shape (s, s): never above the exact matrix.

        The variance that data explain at points x, with ``smooth = K_G w_x``.
        """

    @abstractmethod
    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return ``log det K~`` with its standard error."""

    def gradient(self, solved: GridSolution, weights: Tensor) -> dict[str, Tensor]:
        """Return ``sum_j w_j q_j' (dK_G / d parameter) q_j`` by every hyperparameter of the kernel."""
        return self.kernel.gradient(solved.adjoint, solved.adjoint, weights)

    def prior_squares(self, solved: GridSolution) -> Tensor:
        """Return ``q' K_G q`` of each column, shape (s,)."""
        return (solved.adjoint * (self.kernel @ solved.adjoint)).sum(0)

    def quadratic(self, cross: Tensor, products: Tensor, solved: GridSolution) -> Tensor:
        """Return ``z_i' K~^-1 z_j``, shape (s, s), with an error of the square of the solves'.

        Parameters
        ----------
        cross : Tensor of shape (m, s)
            ``W'z``.
        products : Tensor of shape (s, s)
            ``z_i'z_j``.
        solved : GridSolution
            Of the same vectors.
        """
        return (products - cross.T @ solved.values) / self.noise - solved.correction

    def squared_norms(self, squares: Tensor, cross: Tensor, solved: GridSolution) -> Tensor:
        """Return ``|K~^-1 z|^2`` of each column, shape (s,)."""
        theta = solved.values
        total = squares - 2 * (theta * cross).sum(0) + (theta * solved.gram_values).sum(0)
        return total / self.noise**2


class DenseGridSystem(GridSystem):
    """All of it by one dense factor: exact, for grids of a few hundred nodes (O(m^3)).

    ``K_G W'W + noise`` is not symmetric, but its eigenvalues are those of a symmetric matrix, and positive; ``K~`` has
    its determinant times ``noise^(n - m)`` (Eq. 9).
    """

    def __init__(self, kernel: GridKernel, statistics: GridStatistics, noise: float) -> None:
        super().__init__(kernel, statistics, noise)
        self.prior = kernel.to_dense()
        matrix = self.prior @ self.gram.dense()
        matrix.diagonal().add_(noise)
        self._factor, self._pivots = torch.linalg.lu_factor(matrix)

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve by the factor."""
        values = torch.linalg.lu_solve(self._factor, self._pivots, self.prior @ cross)
        gram_values = self.gram @ values
        adjoint = (cross - gram_values) / self.noise
        return GridSolution(values, gram_values, adjoint, cross.new_zeros(cross.shape[1], cross.shape[1]), adjoint)

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the exact matrix."""
        return smooth.T @ self.information() @ smooth

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return the exact value."""
        own = float(self._factor.diagonal().abs().log().sum())
        return Estimate(own + (self.statistics.n_rows - self.kernel.n) * math.log(self.noise), 0.0)

    def information(self) -> Tensor:
        """Return ``M = W' K~^-1 W``, shape (m, m)."""
        inverse = torch.linalg.lu_solve(self._factor, self._pivots, torch.eye(self.kernel.n, dtype=torch.float64))
        found = self.gram @ inverse
        return 0.5 * (found + found.T)


@dataclass(frozen=True)
class SolveSettings:
    """How iterative solves are made.

    Attributes
    ----------
    tolerance, probe_tolerance : float
        Relative preconditioned residuals.
    max_iterations : int
    preconditioner : {"auto", "circulant", "holes", "long_waves", "none"}
    """

    tolerance: float = 1e-3
    probe_tolerance: float = 1e-3
    max_iterations: int = 1000
    preconditioner: str = "auto"


class IterativeGridSystem(GridSystem):
    """Conjugate gradients: in white coordinates where the kernel has a root on the torus, else factorised.

    Parameters
    ----------
    kernel : GridKernel
    statistics : GridStatistics
    noise : float
    settings : SolveSettings

    Attributes
    ----------
    whitened : WhitenedOperator or None
        None where the clipped part of the spectrum is no longer small beside the noise, and with the preconditioner
        "long_waves": then K_G itself is used, by factorised conjugate gradients.
    preconditioner : str or None
        What "auto" has chosen, or what was asked for; None where the kernel has no root.
    """

    #: most of the noise variance that the root of the kernel may be wrong by
    ROOT_ERROR = 0.01

    def __init__(
        self, kernel: GridKernel, statistics: GridStatistics, noise: float, settings: SolveSettings | None = None
    ) -> None:
        super().__init__(kernel, statistics, noise)
        self.settings = settings or SolveSettings()
        self.whitened: WhitenedOperator | None = None
        self.preconditioner: str | None = None
        self._holes: HolesPreconditioner | None = None
        if kernel.root_error <= self.ROOT_ERROR * noise:
            choice = self.settings.preconditioner
            whitened = WhitenedOperator(kernel, self.gram, noise, 0.0 if choice == "none" else None)
            if choice == "auto":
                choice = choose_preconditioner(self._attempt) if has_holes(whitened) else "circulant"
            self.preconditioner = choice
            if choice == "holes":
                self._holes = HolesPreconditioner(whitened)
            if choice != "long_waves":
                self.whitened = whitened

    def _attempt(self, choice: str, steps: int) -> tuple[float, bool]:
        """Solve for the first target with a preconditioner; return what the solution minimises, and whether it is one.

        That is ``(theta'W'W theta - 2 h'theta) / noise + theta'K_G^-1 theta``.
        """
        settings = replace(self.settings, preconditioner=choice, max_iterations=steps)
        system = IterativeGridSystem(self.kernel, self.statistics, self.noise, settings)
        cross = self.statistics.cross[:, :1]
        solved = system.solve(cross)
        assert solved.solution is not None
        misfit = ((solved.gram_values - 2 * cross) * solved.values).sum() / self.noise
        return float(misfit + system.prior_squares(solved).sum()), solved.solution.converged

    def describe(self) -> str:
        """Return the method in words."""
        if self.whitened is None:
            kind = "none" if self._long_waves is None else "long waves"
            return f"factorised conjugate gradients (preconditioner: {kind})"
        return f"conjugate gradients (preconditioner: {self.preconditioner})"

    @cached_property
    def _long_waves(self) -> LongWavesPreconditioner | None:
        """What preconditions K_G itself."""
        if self.settings.preconditioner == "none":
            return None
        operator = GridOperator(self.kernel, self.gram, self.noise)
        return LongWavesPreconditioner(operator, torch.Generator().manual_seed(0))

    def _solver(self, tolerance: float, probe_tolerance: float) -> ConjugateGradients:
        return ConjugateGradients(
            tolerance=tolerance,
            probe_tolerance=probe_tolerance,
            max_epochs=self.settings.max_iterations,
            preconditioner=self._long_waves if self.whitened is None else self._holes,
        )

    def solve(self, cross: Tensor, n_targets: int | None = None, initial: Tensor | None = None) -> GridSolution:
        """Solve by conjugate gradients."""
        if self.whitened is None:
            return self._factorised(cross, n_targets, initial)
        operator, settings = self.whitened, self.settings
        start = None
        if initial is not None and len(initial) == operator.n:
            start = operator.from_dual(initial)
        solver = self._solver(settings.tolerance, settings.probe_tolerance)
        solution = solver.solve(operator, operator.right_hand_side(cross), start, n_targets=n_targets)
        values = operator.to_grid(solution.value)
        gram_values = self.gram @ values
        adjoint = (cross - gram_values) / self.noise
        # These solves minimise |z - W R c|^2 / noise + |c|^2, whose least value is z' K~^-1 z: with the residual r of c
        # it is (z'z - z'W R c) / noise - c'r.
        correction = solution.value.T @ operator.residual_from_adjoint(solution.value, adjoint)
        return GridSolution(values, gram_values, adjoint, correction, operator.to_dual(solution.value), solution)

    def _factorised(self, cross: Tensor, n_targets: int | None, initial: Tensor | None) -> GridSolution:
        """Solve with ``K_G`` itself: ``(K_G W'W + noise) theta = K_G h`` in the inner product of ``W'W`` (Algorithm 4).

        Residuals are relative to what of z the grid sees, not to the right-hand side, which is far larger (section 3.8
        of the notes). With a preconditioner a solve is done as well when the error of the mean at the rows is small
        beside the posterior standard deviation there, whose mean square is noise times the degrees of freedom over n.
        """
        operator = GridOperator(self.kernel, self.gram, self.noise, sources=True)
        preconditioner = None if self._long_waves is None else self._long_waves.on(operator)
        right = torch.cat([operator.lift(self.kernel @ cross), cross])
        start = self._nearest_start(operator, preconditioner, right, cross, initial)
        norms = operator.inner(right, right).clamp_min(0).sqrt()
        density = max(float(self.gram.row_sums().amax()), 1e-300)
        seen = (cross.square().sum(0) / density).sqrt()  # at most |z|, about the length of its part in the span of W
        used = norms > 0
        share = float((self.noise * seen[used] / norms[used]).amin()) if bool(used.any()) else 1.0
        settings = self.settings
        solver = self._solver(*(min(share * one, 0.1) for one in (settings.tolerance, settings.probe_tolerance)))
        if preconditioner is not None:
            spread = (self.noise * max(preconditioner.degrees_of_freedom, 1.0)) ** 0.5
            bounds = tuple(one * _ERROR_AT_ROWS * spread for one in (settings.tolerance, settings.probe_tolerance))
            solver = replace(solver, preconditioner=preconditioner, errors=bounds)
        solution = solver.solve(operator, right, start, n_targets=n_targets)
        sources = operator.sources(solution.value)
        final = operator.lift_sources(sources)  # the loop's own has its rounding errors
        values, gram_values = operator.coefficients(final), operator.adjoint(final)
        # theta = K_G q maximises 2 h'theta - theta'W'W theta - noise q'theta, whose largest value is h'theta: with the
        # remainder e of q's equation it is h'theta - theta'e less.
        correction = values.T @ (cross - gram_values - self.noise * sources) / self.noise
        return GridSolution(values, gram_values, sources, correction, sources, solution)

    def _nearest_start(
        self,
        operator: GridOperator,
        preconditioner: LongWavesPreconditioner | None,
        right: Tensor,
        cross: Tensor,
        initial: Tensor | None,
    ) -> Start:
        """Return, for each column, whichever is nearer: the posterior if long waves were all, or ``initial``.

        From zero much data and little noise leave an error of 1e14 nats to remove, from the long waves 1e8.
        """
        candidates = [torch.zeros_like(cross) if preconditioner is None else preconditioner.posterior_sources(cross)]
        if initial is not None and len(initial) == self.kernel.n:
            candidates.append(initial)
        value = residual = error = None
        for candidate in candidates:
            lifted = operator.lift_sources(candidate)
            rest = operator.residual(right, lifted)
            size = operator.inner(rest, rest if preconditioner is None else preconditioner.apply(rest))
            if value is None or residual is None or error is None:
                value, residual, error = lifted, rest, size
                continue
            nearer = size < error
            value, residual = torch.where(nearer, lifted, value), torch.where(nearer, rest, residual)
        assert value is not None
        return Start(value, residual, epochs=float(len(candidates)))

    def gradient(self, solved: GridSolution, weights: Tensor) -> dict[str, Tensor]:
        """Return the derivatives of the prior's quadratic form, from what the solve determines best."""
        if self.whitened is None:
            return super().gradient(solved, weights)
        return self.kernel.spectral_gradient(solved.dual, weights)

    def prior_squares(self, solved: GridSolution) -> Tensor:
        """Return ``q' K_G q = |c|^2`` of each column."""
        if self.whitened is None:
            return super().prior_squares(solved)
        return self.whitened.prior_squares(solved.dual)

    def explained(self, smooth: Tensor) -> Tensor:
        """Return the explained covariance by factorised conjugate gradients, which approach it from below."""
        operator = GridOperator(self.kernel, self.gram, self.noise)
        right = operator.lift(smooth)
        preconditioner = self._long_waves if self.whitened is None else None
        solver = replace(self._solver(self.settings.tolerance, self.settings.tolerance), preconditioner=preconditioner)
        solution = solver.solve(operator, right)
        residual = right - operator @ solution.value
        # k'x + x'r = k'x + x'k - x'K~x for every pair
        forward = operator.coefficients(right).T @ operator.adjoint(solution.value)
        found = forward + operator.coefficients(solution.value).T @ operator.adjoint(residual)
        return 0.5 * (found + found.T)

    def log_determinant(self, n_probes: int, generator: torch.Generator) -> Estimate:
        """Estimate by stochastic Lanczos quadrature.

        In white coordinates with probes of their own, where the circulant is a good preconditioner; else with ``K_G``
        itself from the statistics' probes ``W'z`` (holes leave small eigenvalues, which quadrature needs many steps
        for).
        """
        n = self.statistics.n_rows
        has_probes = self.statistics.probes.shape[1] > 1
        if self.whitened is not None and not (self._holes is not None and has_probes):
            operator = self.whitened
            starts = operator.torus.white_noise(n_probes, generator)
            own = log_determinant(operator, None, starts=starts, max_steps=self.settings.max_iterations)
            return Estimate(
                own.value + operator.log_determinant_of_scaling() + n * math.log(self.noise), own.standard_error
            )
        return factorised_log_determinant(self.kernel, self.statistics, self.noise, self._long_waves, generator)


def factorised_log_determinant(
    kernel: GridKernel,
    statistics: GridStatistics,
    noise: float,
    preconditioner: LongWavesPreconditioner | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate ``log det K~`` from the probes that were collected with the rows (Yadav et al. 2021, section 4).

    With a preconditioner its own determinant is exact, and the probes, with draws of its low-rank part added, see the
    rest alone.

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
        return log_determinant(operator, None, starts=operator.start_vectors())
    own = preconditioner.on(operator)
    normal = standard_normal(own.rank, len(starts.squares), generator=generator or torch.Generator().manual_seed(0))
    return log_determinant(operator, own, starts=own.transform_normal(normal))
