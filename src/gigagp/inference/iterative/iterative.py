"""Iterative inference: linear solves in place of a Cholesky factor (Lin et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.computation_aware.recorded import RecordingMatrix
from gigagp.inference.contract.base import Abilities, Inference
from gigagp.inference.contract.forecast import Forecast, Subject
from gigagp.inference.contract.least_noise import at_least_noise, with_least_noise
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import OrthogonalBasis, solved_trend
from gigagp.inference.curves.guide import PanelGuide
from gigagp.inference.gradients import GradientEstimator, Pathwise, PathwiseProbes, Probes
from gigagp.inference.gradients.panel_samples import PanelSamples
from gigagp.inference.iterative.pathwise_posterior import PathwisePosterior
from gigagp.inference.iterative.solve_cost import (
    FEWEST_PRODUCTS,
    expected_products,
    products_seconds,
    products_slowness,
    share_in_float32,
    solves_seconds,
)
from gigagp.inference.iterative.solve_records import record_of, require_solved, warn_of_unfinished
from gigagp.inference.iterative.solved import Pair, Solved, mean_square_unsolved
from gigagp.inference.iterative.subset_guide import SubsetGuide, guide_of
from gigagp.inference.vecchia.likelihood import typical_deviation
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.estimate import Estimate
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.neighbours.conditionals import is_compiled
from gigagp.operators import KernelMatrix, RowsMatrix
from gigagp.operators.base import LinearOperator
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.objective import Evaluation
from gigagp.runtime import interruption
from gigagp.runtime.progress import current
from gigagp.settings.brief import brief
from gigagp.settings.fields import Count, Positive, Words
from gigagp.settings.random import spawn
from gigagp.settings.schema import part
from gigagp.solvers import Cholesky, ConjugateGradients, Solution, Start
from gigagp.solvers.base import Solver
from gigagp.solvers.lanczos import log_determinant
from gigagp.solvers.preconditioners.automatic import automatic
from gigagp.solvers.preconditioners.base import Choice
from gigagp.solvers.prepared import BUILT, Prepared

#: Probes of ``gradient="auto"``. In the default outer loop four were as good as exact gradients; sixteen is safe.
_AUTO_PROBES = 16
#: Samples of ``n_samples="auto"``: the most, and those that nearest neighbours often make as certain.
_MOST_SAMPLES, _FEW_SAMPLES = 64, 16
#: Excess of the variances' error that is worth a solve for more samples, which takes about as long for one as for many.
_MORE_ERROR = 1.1
#: Bounds on the error in nats, for targets and probes, at which solves in training may stop before the residual reaches
#: its tolerance. Bounds ten times looser ended up to 10 nats below the optimum on elevators (2,000 rows), where the
#: initial guess satisfied them without a step. These cost a tenth more epochs and end at the optimum of exact solves.
_AUTO_NATS = (0.1, 1.0)
#: Smallest factor of all covariances that is not a sign of something else.
_LEAST_FACTOR = 0.1
#: Rows from which learning is guided by nearest neighbours. Below, exact subsets of 1,000 rows know nearly as much.
_GUIDED_ROWS = 2000
#: Largest number of Lanczos steps of a quadrature that is not truncated.
_STEPS = 200
#: Numbers for each row that a solve holds: blocks of vectors, and the preconditioner.
_SOLVE_NUMBERS = 400


@dataclass(frozen=True)
class Iterative(Inference):
    """Inference by iterative linear solves, with posterior samples from the same solves.

    When to use: from a few thousand rows to a few hundred thousand. Memory is O(n), or n x n if the budget allows
    storing the kernel matrix. Each epoch of a solver computes every kernel entry once.

    Parameters
    ----------
    solver : Solver or "auto", default "auto"
        Solver of the linear systems. ``"auto"`` is ``ConjugateGradients(tolerance=0.01, nats=(0.1, 1))`` with its
        automatic preconditioner.
    gradient : GradientEstimator or "auto", default "auto"
        Estimator of the gradient of the log marginal likelihood. ``"auto"`` is ``Pathwise(n_probes=16)``.
    warm_start : bool or {"previous", "subspace"}, default True
        Whether to freeze the probe vectors and to start each solve from the solutions of previous steps. True is
        ``"subspace"``. False draws new probe vectors at each step and starts solves at zero. With a randomly truncated
        solver the gradient is unbiased over the random lengths in both cases; with False it also averages over the
        probe vectors, as in the paper.
    n_samples : int or "auto", default "auto"
        Number of posterior samples that the last solve computes. From samples alone, predicted variances have a
        relative standard error of ``sqrt(2 / n_samples)``. ``"auto"`` is 16 where variances combined with nearest
        neighbours are as accurate as from 64 samples alone, and otherwise as many as this takes, at most 64.
    final_tolerance : float or None, default None
        Relative residual of the last solve, from which predictions are made. None is the tolerance of the solver. With
        ``solver="auto"``, None keeps the residual below a twentieth of the predicted standard deviation of the latent
        function at the rows, below a fifth of that of the noise, and the relative residual at or below 0.01.
    computational_uncertainty : bool, default False
        Whether to include the uncertainty due to unfinished solves in predicted variances, as computation-aware
        inference does. Predictions are then conditioned on all products with H in the last solve, and on its solution
        split into clusters of rows, which costs one more epoch. Variances are never below the exact ones and have no
        sampling error. Use it for solves that stop early on a budget (``max_epochs`` of the solver); where solves
        converge, the default variances are sharper. It takes 16 bytes per row and stored column, for up to 1,280
        columns, and computes the last solve in float64 (``dtype="mixed"`` is refused).
    """

    solver: Solver | Literal["auto"] = "auto"
    gradient: Annotated[GradientEstimator, Words("one of gigagp.gradients")] | Literal["auto"] = "auto"
    warm_start: bool | Literal["previous", "subspace"] = True
    n_samples: Count | Literal["auto"] = "auto"
    final_tolerance: Positive | None = None
    computational_uncertainty: bool = False

    abilities = Abilities(
        "iterative", "a few thousand to a few hundred thousand", kernels="random features", adds_rows=True
    )
    posteriors = (PathwisePosterior, ComputationAwarePosterior)

    @property
    def mixes_precision(self) -> bool:
        """Whether solves may multiply in float32; the products recorded for computational uncertainty may not."""
        return not isinstance(self.solver, Cholesky) and not self.computational_uncertainty

    def resolve(self) -> Iterative:
        """Return the settings with every ``"auto"`` replaced by its value."""
        return replace(
            self,
            solver=ConjugateGradients(tolerance=0.01, nats=_AUTO_NATS) if self.solver == "auto" else self.solver,
            gradient=Pathwise(n_probes=_AUTO_PROBES) if self.gradient == "auto" else self.gradient,
            warm_start="subspace" if self.warm_start is True else self.warm_start,
        )

    def objective(
        self, table: TrainingTable, generator: torch.Generator, likelihood: Likelihood | None = None
    ) -> IterativeObjective:
        return IterativeObjective(self, table, generator)

    def forecast(self, subject: Subject) -> Forecast:
        """Return the time of two to three solves with about twenty columns, whose products a trial has counted."""
        n = subject.table.n_rows
        seconds = solves_seconds(subject.table, subject.products, subject.model.kernel)
        seconds *= min(share_in_float32(subject.table, subject.products), 1.0)
        stored = min(float(n) ** 2 * subject.table.X.element_size(), subject.table.budget / 2)
        return subject.with_nll(seconds, stored + 8 * _SOLVE_NUMBERS * n, subject.exact_nll)

    def describe(self) -> str:
        resolved = self.resolve()
        warm = resolved.warm_start or "none"
        aware = ", computational uncertainty" if self.computational_uncertainty else ""
        return f"iterative ({brief(resolved.solver)}, {brief(resolved.gradient)}, warm start: {warm}{aware})"


class IterativeObjective(TableObjective):
    """Gradients of the log marginal likelihood from joint solves for targets and probes."""

    has_posteriors_near = True

    def __init__(self, settings: Iterative, table: TrainingTable, generator: torch.Generator) -> None:
        self.settings = settings.resolve()
        super().__init__(table.in_float64(mixed=not isinstance(self.settings.solver, Cholesky)))
        solver, estimator = self.settings.solver, self.settings.gradient
        assert isinstance(solver, Solver) and isinstance(estimator, GradientEstimator)  # noqa: PT018
        self._solver, self._estimator = solver, estimator
        self._own_final = settings.solver == "auto" and settings.final_tolerance is None
        self._probe_generator, self._solver_generator = spawn(generator), spawn(generator)
        kind: WarmStartKind = self.settings.warm_start or "none"  # type: ignore[assignment]
        self._warm = WarmStart(kind)
        self._basis = OrthogonalBasis.of(self.table.basis)
        self._probes: Probes | None = None
        #: what the next solve may take over from the last one
        self._state: LinearOperator | Prepared | None = None
        self._solved: Model | None = None
        self._fit: float | None = None
        self.solves: list[SolveRecord] = []
        #: solution of the last solve, for diagnostics
        self.last_solution: Solution | None = None
        self._current: PathwisePosterior | None = None

    @property
    def deterministic(self) -> bool:
        """Whether the probes are frozen and no solve is truncated at a random length."""
        solver = self._solver
        return self._is_frozen and not (isinstance(solver, ConjugateGradients) and solver.is_random)

    @property
    def _is_frozen(self) -> bool:
        return self._warm.kind != "none" or self._estimator.n_probes == 0

    @property
    def product_entries(self) -> float:
        """Multiplications with each column in a product; fewer than the matrix has entries for a panel."""
        return self.table.entries_of(1.0, None if self._solved is None else self._solved.kernel)

    def matrix(self, model: Model) -> RowsMatrix:
        """Return the matrix of the solves at a model."""
        return self.table.solve_matrix(model.kernel, model.noise_variance)

    def _draw(self, estimator: GradientEstimator, model: Model, generator: torch.Generator) -> Probes:
        """Draw probes of an estimator for the rows of the table."""
        return estimator.draw(model, self.table.X, generator, has_points=self.table.has_points)

    def _solve(self, model: Model, solver: Solver, matrix: RowsMatrix, right_hand_sides: torch.Tensor) -> Solved:
        """Solve for targets, basis functions and probes together."""
        table, basis = self.table, self._basis.columns
        self._solved = model
        n_fixed = table.n_targets + basis.shape[1]
        stacked = torch.cat([table.Y, basis, right_hand_sides], 1)
        initial = self._warm.start(matrix, stacked)
        solution = self._solve_from(solver, matrix, stacked, initial, n_fixed)
        if solution.widened:  # products in float32 were too coarse
            self.table = replace(self.table, mixed=False)
        self.last_solution = solution
        record = record_of(solution, n_fixed)
        self.solves.append(record)
        truncated = solution.truncated
        plain = Start(solution.value, solution.residual) if truncated is None else truncated.plain
        nearest = plain.value
        self._warm.remember(nearest)
        trend = solved_trend(basis, table.Y, solution)

        def split(solved: torch.Tensor) -> Pair:
            targets, of_basis, probes = solved.split([table.n_targets, basis.shape[1], right_hand_sides.shape[1]], 1)
            return targets - of_basis @ trend.coefficients, probes

        second = None if truncated is None else split(truncated.second)
        nearest_basis = nearest[:, table.n_targets : n_fixed] @ self._basis.to_basis
        unsolved = mean_square_unsolved(plain.residual, trend.coefficients)
        own = self._basis.trend(trend)
        return Solved(*split(solution.value), own, record, second, split(nearest), nearest_basis, unsolved)

    def _solve_from(
        self, solver: Solver, matrix: RowsMatrix, right_hand_sides: torch.Tensor, initial: Start | None, n_fixed: int
    ) -> Solution:
        """Solve with the state of the last solve, and keep that of this one."""
        self._state = state = solver.prepare(matrix, self._state)
        solution = solver.solve(state, right_hand_sides, initial, self._solver_generator, n_targets=n_fixed)
        self._state = state.without_matrix() if isinstance(state, Prepared) else None
        return solution

    def start(self, model: Model) -> Model:
        """Return the model with the noise that solves in float64 need; neighbours, which learn first, need less."""
        return with_least_noise(model, self.table.X)

    def evaluate(self, model: Model) -> Evaluation:
        """Return the estimated gradient at a model with enough noise (see `start`); the value is None."""
        given, model = model, self.start(model)
        estimator, matrix = self._estimator, self.matrix(model)
        self._current = None
        if self._probes is None or not self._is_frozen:
            self._probes = self._draw(estimator, model, self._probe_generator)
        right_hand_sides = self._probes.right_hand_sides(model, matrix, self.table.budget)
        solved = self._solve(model, self._solver, matrix, right_hand_sides)
        functions = _prior_functions(self._probes)
        if functions is not None:
            solver = for_predictions(self._solver)
            self._current = self._posterior(model, solved, functions, solver, right_hand_sides)
        residuals = self.table.Y - self.table.basis @ solved.trend.coefficients
        self._fit = float((residuals * solved.targets).double().sum())
        gradient = estimator.gradient(matrix, solved.targets, solved.probes, right_hand_sides, solved.second)
        return at_least_noise(Evaluation(None, gradient, solved.record), given, self.table.X)

    def _posterior(
        self, model: Model, solved: Solved, prior: PriorSamples, solver: Solver, right_hand_sides: torch.Tensor
    ) -> PathwisePosterior:
        """Return the posterior computed from solutions for targets and noisy prior samples."""
        return PathwisePosterior(
            model,
            self.table,
            *solved.nearest,
            solved.nearest_basis,
            solved.trend,
            prior,
            solver,
            final_solve=solved.record,
            unsolved=solved.unsolved,
            probe_values=right_hand_sides if self._has_neighbours(model, prior) else None,
        )

    def _has_neighbours(self, model: Model, prior: PriorSamples) -> bool:
        """Whether nearest rows make variances more certain; samples in the cells of a panel need no search of rows."""
        is_found = self.table.has_points and is_compiled(model.kernel)
        return is_found and not isinstance(prior, PanelSamples)

    def value(self, model: Model) -> Estimate:
        """Estimate the log marginal likelihood with the training solver; the state of the fit does not change.

        With a truncated solver the estimate is unbiased, and its standard error covers the random lengths as well as
        the probe vectors. If solves stop early, the estimate has their bias: conjugate gradients underestimate the data
        fit and overestimate the determinant (Potapczynski et al. 2021, Theorem 1). For the value of a fitted model, use
        `Posterior.log_marginal_likelihood`, whose solve runs to convergence.
        """
        solver, table, matrix = self._solver, self.table, self.matrix(model)
        stacked = torch.cat([table.Y, self._basis.columns], 1)
        solution = solver.solve(matrix, stacked, generator=self._solver_generator)
        coefficients = solved_trend(self._basis.columns, table.Y, solution).coefficients
        n_probes = self._estimator.n_probes or _AUTO_PROBES
        generator = self._probe_generator
        contrast = torch.cat([torch.eye(table.n_targets).to(table.Y), -coefficients])
        residuals = stacked @ contrast
        # a truncated solution has two independent estimates of the data fit, whose difference tells its standard error
        solved = [solution.value] if solution.truncated is None else [solution.value, solution.truncated.second]
        fits = torch.stack([(residuals * (one @ contrast)).double().sum() for one in solved])
        fit_error = float(fits.std() / len(fits) ** 0.5) if len(fits) > 1 else 0.0
        if isinstance(solver, ConjugateGradients):
            steps = int(min(solver.max_epochs, _STEPS)) if solver.truncation is None else None
            determinant = log_determinant(
                matrix, solver.preconditioner, n_probes, steps, generator, truncation=solver.truncation
            )
        else:
            determinant = log_determinant(matrix, n_probes=n_probes, max_steps=_STEPS, generator=generator)
        n, t = matrix.n, table.n_targets
        value = -0.5 * (float(fits.mean()) + t * (determinant.value + n * math.log(2 * math.pi)))
        return Estimate(value, 0.5 * math.hypot(fit_error, t * determinant.standard_error))

    def try_preconditioners(self, model: Model) -> Choice | None:
        """Return what a trial chooses for a model, or None if there is nothing to try; the next solve takes it."""
        matrix = self.matrix(model)
        state = Prepared(matrix)
        automatic(matrix, state, state.run.seconds_left())
        self._state = state.without_matrix()
        return state.choice

    def ending_seconds(self) -> float:
        return products_slowness() * products_seconds(self.table, expected_products(self.table))

    def least_seconds(self) -> float:
        return products_slowness() * products_seconds(self.table, FEWEST_PRODUCTS)

    def amplified(self, model: Model) -> Model:
        """Return the model with its covariances multiplied by ``r' H^-1 r / n`` from the last solve.

        The likelihood of ``c H`` is largest for this c. Solutions change by a factor, so that the next solve begins
        where the last one ended, and its preconditioner serves.
        """
        if self._fit is None or not model.equals(self._solved):
            return model
        factor = self._fit / self.n_observations
        found = model.amplified(factor) if _LEAST_FACTOR < factor < 1 / _LEAST_FACTOR else None
        self._solved = found or model
        return self._solved

    def guide(self, model: Model) -> VecchiaObjective | SubsetGuide | PanelGuide | None:
        """Return the likelihood by nearest neighbours, or the exact one of more rows where neighbours miss much.

        That of a panel is the exact one of its complete part, if it has a large one. None where smaller exact subsets
        serve as well, or neighbours would be slow.
        """
        matrix = self.matrix(model)
        if not isinstance(matrix, KernelMatrix):
            return None
        panel = matrix.panel
        of_panel = None if panel is None else PanelGuide.of(self.table, model, panel)
        if of_panel is not None:
            return of_panel
        if self.n_rows < _GUIDED_ROWS or not is_compiled(model.kernel):
            return None
        return guide_of(VecchiaObjective.for_learning(self.table), model)

    def thin(self, rows: torch.Tensor) -> IterativeObjective:
        """Return the objective on a subset of the rows, with its own probes; its solves are recorded here as well."""
        thinned = IterativeObjective(self.settings, self.table.take_rows(rows), self._probe_generator)
        thinned.solves = self.solves
        return thinned

    def multiply_in_float32(self) -> None:
        """Let later solves have products in float32, as far as residuals in float64 allow."""
        self.table = replace(self.table, mixed=True)

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return warm starts, pivots, the kernel of the neighbours, generators, past solves, and the last fit."""
        tensors = {f"warm.{i}": block for i, block in enumerate(self._warm.blocks)}
        tensors["generator.probes"] = self._probe_generator.get_state()
        tensors["generator.solver"] = self._solver_generator.get_state()
        if isinstance(self._state, Prepared):
            tensors |= self._state.snapshot()
        if self._solved is not None:
            tensors |= {f"solved.{name}": value for name, value in self._solved.parameters().items()}
        header = {"solves": [asdict(record) for record in self.solves], "fit": self._fit, "mixed": self.table.mixed}
        return tensors, header

    def restore(self, model: Model, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
        """Restore a snapshot; frozen probes are drawn again from the same generator."""
        self.table = replace(self.table, mixed=header.get("mixed", self.table.mixed))
        if self._is_frozen:
            self._probes = self._draw(self._estimator, model, self._probe_generator)
        names = sorted(name for name in tensors if name.startswith("warm."))  # oldest first, as they were stored
        self._warm.blocks = [tensors[name].to(self.table.X) for name in names]
        self._probe_generator.set_state(tensors["generator.probes"])
        self._solver_generator.set_state(tensors["generator.solver"])
        self.solves[:] = [SolveRecord(**record) for record in header["solves"]]
        solved = part(tensors, "solved.")
        self._solved, self._fit = model.replace(solved) if solved else None, header["fit"]
        state = self._solver.prepare(self.matrix(model.replace(part(tensors, BUILT))))
        if isinstance(state, Prepared):
            state.restore(tensors)
            self._state = state.without_matrix()

    def current_posterior(self) -> PathwisePosterior | None:
        """Return the posterior from the solutions of the last step; None without pathwise probes."""
        return self._current

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return `solved_posterior`, and warn of solves that stopped before their tolerance."""
        begun = len(self.solves)
        found = self.solved_posterior(model, generator)
        require_solved(self.solves[begun:])
        warn_of_unfinished(self.solves)
        return found

    def learned_posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Return the posterior at a learned model with enough noise (see `start`)."""
        return self.posterior(self.start(model), generator)

    def solved_posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        """Solve once more at ``model`` and return the posterior from the solutions, or from the recorded products.

        The probes of training, with their solutions as initial guess, are used again if they are pathwise, frozen and
        sufficient in number.
        """
        table, aware = self.table, self.settings.computational_uncertainty
        matrix = RecordingMatrix(model, table) if aware else self.matrix(model)
        probes, n_samples = self._probes, self.settings.n_samples
        if n_samples == "auto":
            has_neighbours = isinstance(matrix, KernelMatrix) and matrix.panel is None
            few = is_compiled(model.kernel) and not aware and has_neighbours
            n_samples = _FEW_SAMPLES if few else _MOST_SAMPLES
        prior = None if probes is None else _prior_functions(probes)
        if probes is None or prior is None or self._estimator.n_probes < n_samples or not self._is_frozen:
            given = self._estimator if isinstance(self._estimator, Pathwise) else Pathwise()
            # Posterior samples must be functions; exact prior draws at the rows are not enough.
            probes = self._draw(replace(given, n_probes=n_samples, prior="features"), model, generator)
            prior = _prior_functions(probes)
            if self._warm.kind == "previous":
                self._warm = WarmStart("none")
        assert prior is not None
        right_hand_sides = probes.right_hand_sides(model, matrix, table.budget)
        own = final_tolerances(matrix, table.Y, right_hand_sides) if self._own_final else None
        solver = for_predictions(self._solver, *(own or (self.settings.final_tolerance,)))
        current().phase("last solve", 1, then=0.0)
        solved = self._solve(model, solver, matrix, right_hand_sides)
        if isinstance(matrix, RecordingMatrix):
            matrix.add_blocks(solved.nearest[0])
            note = f"what {type(solver).__name__} multiplied in {solved.record.epochs:.3g} epochs"
            return matrix.posterior(note, solved.record)
        found = self._posterior(model, solved, prior, solver, right_hand_sides)
        if self.settings.n_samples == "auto" and isinstance(probes, PathwiseProbes):
            found = self._with_enough_samples(found, probes, solver, matrix, generator)
        return found

    def _with_enough_samples(
        self,
        posterior: PathwisePosterior,
        probes: PathwiseProbes,
        solver: Solver,
        matrix: RowsMatrix,
        generator: torch.Generator,
    ) -> PathwisePosterior:
        """Return the posterior with enough samples for variances about as certain as from `_MOST_SAMPLES` alone."""
        have, wanted = posterior.n_samples, math.sqrt(2 / _MOST_SAMPLES)
        # nan for a kernel of white noise alone, which has no function
        is_enough = not posterior.variance_error > _MORE_ERROR * wanted
        if have >= _MOST_SAMPLES or is_enough or interruption.seconds_left() <= 0:
            return posterior
        needed = math.ceil(have * (posterior.variance_error / wanted) ** 2)
        more = probes.further(min(needed, _MOST_SAMPLES) - have, generator)
        values = more.right_hand_sides(posterior.model, matrix, self.table.budget)
        current().phase("more samples for the variances", 1, then=0.0)
        solution = self._solve_from(solver, matrix, values, self._warm.start(matrix, values), 0)
        self.solves.append(record_of(solution, 0))
        assert more.prior is not None
        return posterior.with_samples(more.prior, solution.value, values)


def _prior_functions(probes: Probes) -> PriorSamples | None:
    """Return the prior functions of the probes, whose solutions give posterior samples; None if there are none."""
    return probes.prior if isinstance(probes, PathwiseProbes) else None


# How far the last solve of a fit goes, from which predictions are made ------------------------------------------------


#: Root mean squares of residuals for targets and samples, in units of the deviation with which the latent function is
#: predicted at new rows, and at most in units of the noise's, with which it is known at the training rows. The error
#: of the posterior mean is about the residual's size.
_ERRORS, _ERRORS_AT_ROWS = (0.05, 0.1), (0.2, 0.4)
#: Range of the relative residual: the loosest, and the tightest that each precision can reach.
_LOOSEST, _TIGHTEST = 0.01, {torch.float64: 1e-9, torch.float32: 1e-4}


def final_tolerances(matrix: RowsMatrix, Y: Tensor, samples: Tensor) -> tuple[float, float]:
    """Return relative residuals for targets (n, t) and samples (n, s) at which predictions hardly change any more."""
    rows, noise = matrix.n**0.5, float(matrix.noise().double().median().sqrt())
    # in a panel the search for neighbours would take longer than a solve, and averages have no neighbours
    typical = noise / 3
    if isinstance(matrix, KernelMatrix) and matrix.panel is None:
        typical = typical_deviation(matrix)
    sizes = (float(Y.norm(dim=0).max()) / rows, float(samples.norm(dim=0).mean()) / rows)
    residuals = (min(new * typical, at_rows * noise) for new, at_rows in zip(_ERRORS, _ERRORS_AT_ROWS, strict=True))
    targets, probes = (
        min(max(residual / size if size else 1.0, _TIGHTEST[matrix.dtype]), _LOOSEST)
        for residual, size in zip(residuals, sizes, strict=True)
    )
    return targets, probes


def for_predictions(solver: Solver, targets: float | None = None, probes: float | None = None) -> Solver:
    """Return the solver without settings that suit only gradients; given tolerances replace those that it has."""
    names = {field.name for field in fields(solver)}  # type: ignore[arg-type]
    changes: dict[str, object] = {"nats": None, "truncation": None}
    if targets is not None:
        changes |= {"tolerance": targets, "probe_tolerance": targets if probes is None else probes}
    return replace(solver, **{name: value for name, value in changes.items() if name in names})  # type: ignore[type-var]


# Initial guesses for the solves of successive optimization steps ------------------------------------------------------


WarmStartKind = Literal["none", "previous", "subspace"]

#: Number of solution blocks that span the subspace. More than two gave no gain (measured on pol and elevators).
_BLOCKS = 2


class WarmStart:
    """Store the solutions of recent optimization steps and turn them into the next initial guess.

    ``"previous"`` takes the last solution (Lin et al. 2024, section 4). ``"subspace"`` takes the best approximation in
    the H-norm from the span of the last two solution blocks, the Galerkin projection ``v0 = W (W'HW)^-1 W'B``. Its cost
    is the single pass that every warm start needs for its residual, it is never worse than a start at zero, and solves
    need 1.3 to 2 times fewer epochs. ``"none"`` starts at zero.
    """

    def __init__(self, kind: WarmStartKind) -> None:
        self.kind = kind
        #: recent solutions, newest last
        self.blocks: list[torch.Tensor] = []

    def remember(self, solutions: torch.Tensor) -> None:
        """Store a block of solutions, shape (n, s)."""
        if self.kind == "none":
            return
        self.blocks.append(solutions)
        del self.blocks[: -(_BLOCKS if self.kind == "subspace" else 1)]

    def start(self, matrix: RowsMatrix, right_hand_sides: torch.Tensor) -> Start | None:
        """Return the initial guess for these right-hand sides; None means zero."""
        if not self.blocks:
            return None
        last = Start(self.blocks[-1]) if self.blocks[-1].shape == right_hand_sides.shape else None
        if self.kind == "previous":
            return last
        # In an orthonormal basis the projected matrix is no worse conditioned than H. Where the two blocks agree, the
        # second direction is mere rounding noise, but still a valid direction.
        basis = torch.linalg.qr(torch.cat(self.blocks, 1).double()).Q
        image = (matrix.fast @ basis.to(matrix.dtype)).double()
        projected = basis.T @ image
        projected = 0.5 * (projected + projected.T)
        factor, info = torch.linalg.cholesky_ex(projected)
        if int(info) != 0:
            return last
        wide = right_hand_sides.double()
        coefficients = torch.cholesky_solve(basis.T @ wide, factor)
        value = (basis @ coefficients).to(matrix.dtype)
        residual = (wide - image @ coefficients).to(matrix.dtype)
        rounding = 0.0 if matrix.fast is matrix else matrix.fast.rounding
        return Start(value, residual, epochs=1.0, rounding=rounding)
