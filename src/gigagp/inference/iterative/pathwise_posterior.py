"""The posterior by pathwise conditioning, computed from solutions that training has made."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import ModelFileError
from gigagp.inference.contract.areas import restored
from gigagp.inference.contract.batches import prior_covariance, within_batches
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.posterior import GrowingPosterior, VarianceMethod
from gigagp.inference.contract.rows_posterior import PathwiseUpdate, SolvedPosterior
from gigagp.inference.contract.saved import DRAW, SOLVE, Saved, check_columns, draw_fields
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import OrthogonalBasis, Trend, estimate_trend
from gigagp.inference.gradients.panel_samples import PanelSamples, count_numbers
from gigagp.inference.gradients.pathwise import Pathwise
from gigagp.inference.iterative.sampled_variance import (
    error_with_neighbours,
    variance_from_samples,
    variance_from_samples_and_neighbours,
)
from gigagp.inference.iterative.solve_records import record_of, require_solved, warn_of_unfinished
from gigagp.inference.iterative.solved import mean_square_unsolved
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.kernels.draws import FeatureDraw
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.predictor import LocalPredictor
from gigagp.operators import KernelMatrix, RowsMatrix
from gigagp.optimization.history import SolveRecord
from gigagp.products import PanelTiles, cross_product, select
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, flag, number, optional, part, record, whole
from gigagp.solvers import ConjugateGradients
from gigagp.solvers.base import Solver
from gigagp.solvers.lanczos import log_determinant

_SOLVE_COLUMNS = 256
#: Rows whose neighbours are found at once.
_BLOCK_ROWS = 4096
#: Neighbours of a point: the cube root of this many times the rows, at most this many. ``m^3 / 3`` operations are then
#: about those of a product with the kernel between the point and all rows.
_ROWS_FOR_CUBE, _MOST_NEIGHBOURS = 150, 200
#: Points at which the error of variances is measured.
_MEASURED = 200
#: First of the seeds of the noise that samples have at rows added later.
_FIRST_SEED = 2**40
#: Tolerances of the solve for the log-likelihood: an error in nats, or a residual at the level of rounding.
_FIT_NATS, _FIT_TOLERANCE = 0.01, 1e-9


class PathwisePosterior(SolvedPosterior, GrowingPosterior):
    """The posterior computed from solutions for targets and noisy prior samples.

    ``target_solutions`` are ``H^-1 (Y - mean)``, shape (n, t), ``probe_solutions`` are ``H^-1 (f_j(X) + noise_j)`` for
    the prior functions ``f_j``, shape (n, s), and ``basis_solutions`` are ``H^-1`` times the mean's basis, shape (n,
    p).

    The solver is for what stored samples cannot provide: the full covariance, more samples, exact variances. With
    ``probe_values``, which are ``f_j(X) + noise_j``, variances come from samples and nearest neighbours together
    (`variance_from_samples_and_neighbours`). ``unsolved`` is the mean square of the residual ``Y - mean - H v``, for
    the target where it is largest.
    """

    kind = "pathwise"

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        target_solutions: torch.Tensor,
        probe_solutions: torch.Tensor,
        basis_solutions: torch.Tensor,
        trend: Trend,
        prior: PriorSamples,
        solver: Solver,
        final_solve: SolveRecord | None = None,
        probe_values: torch.Tensor | None = None,
        unsolved: float = 0.0,
    ) -> None:
        self.model, self.table, self.budget = model, table, table.budget
        self.target_solutions, self.basis_solutions = target_solutions, basis_solutions
        self.coefficients, self.coefficient_root = trend
        self.update = PathwiseUpdate(self, prior, probe_solutions)
        self.solver, self.final_solve, self.probe_values = solver, final_solve, probe_values
        self.unsolved = unsolved

    @cached_property
    def neighbours(self) -> LocalPredictor:
        """Predictions from nearest rows, as many as cost about as much as the exact prediction."""
        kernel = self.model.kernel
        m = min(round((_ROWS_FOR_CUBE * self.n_rows) ** (1 / 3)), _MOST_NEIGHBOURS)
        noise = pool_of(self.model, self.table).noise
        return LocalPredictor(kernel, self.X, noise, NeighbourGraph(kernel, self.X, m), m, self.table.budget)

    @property
    def n_samples(self) -> int:
        """Number of samples that are available without another solve."""
        return self.update.probe_solutions.shape[1]

    def check_variances(self, X: torch.Tensor) -> None:
        """Warn if samples have more variance than the prior; see `Posterior.check_variances`."""
        self.mean_and_variance_given_trend(X, "samples")

    def solver_name(self) -> Solver:
        return self.solver

    def engine_name(self) -> str:
        matrix = self.matrix()
        how = "H stored" if matrix.storage == "dense" else "H computed tile by tile"
        if isinstance(matrix, KernelMatrix) and self.table.mixed:
            how = f"float32 inside of solvers with {'H stored' if matrix.fast.storage == 'dense' else 'tiles'}"
        return f"{super().engine_name()}, {how}"

    def notes(self) -> dict[str, str]:
        beside = "" if self.probe_values is None else f" and the {self.neighbours.n_neighbours} rows nearest to a point"
        error = f"standard error between rows {self.variance_error:.1%}"
        found = {"variances": f"from {self.n_samples} posterior samples{beside}, {error}"}
        return self.table.notes() | found

    def matrix(self) -> RowsMatrix:
        """Return ``H`` at the posterior's hyperparameters."""
        return self.table.solve_matrix(self.model.kernel, self.model.noise_variance)

    def mean_and_variance_given_trend(
        self, X: torch.Tensor, method: VarianceMethod = "auto"
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance.

        From samples, the variance is ``mean_j (f_j(x) - K(x, X) u_j)^2``, at most the prior variance; its relative
        standard error is ``sqrt(2 / s)``, or 18 % for 64 samples. By default nearest neighbours make it more certain,
        where their values are known, and the mean square of the solve's residual, which is about the error of the mean
        at the rows, is added. From solves, it is the upper bound that `covariance` describes.
        """
        if method == "solve":
            return self.mean(X), self._solved_variance(X)
        if method == "samples" or self.probe_values is None:
            deviations, mean = self.update.deviations_and_mean(X)
            limit = self.prior_variance(X)
            found = variance_from_samples(deviations, limit)
            return mean, found if method == "samples" else found + self.unsolved * (limit > 0)
        means, variances = [X.new_zeros(0, self.n_targets)], [X.new_zeros(0)]
        for block in self.neighbours.blocks(X, self.n_samples):
            of_targets, deviations, differences, bound = self._beside_neighbours(block)
            limit = self.prior_variance(block).double()
            found = variance_from_samples_and_neighbours(deviations, differences, bound, limit)
            means.append(self.trend(block) + of_targets)
            variances.append((found + self.unsolved * (limit > 0)).to(X))
        return torch.cat(means), torch.cat(variances)

    def _beside_neighbours(self, X: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return ``K(X, rows)`` times the targets' solutions, and e, d and D of the variances with neighbours."""
        assert self.probe_values is not None
        local = self.neighbours.weights(X)
        both, prior = self.update.products(X)
        of_targets, of_probes = both.split([self.n_targets, self.n_samples], 1)
        differences = local.combine(self.probe_values) - of_probes.double()
        return of_targets, (prior - of_probes).double(), differences, local.variance

    @cached_property
    def variance_error(self) -> float:
        """Relative standard error of variances between rows, the root of its mean square.

        It is measured halfway between some rows and the rows around them, the first as near and the last as far as
        neighbours reach.
        """
        alone = math.sqrt(2 / self.n_samples)
        if self.probe_values is None or self.n_rows == 1:
            return alone
        some = self.X[:: max(1, self.n_rows // _MEASURED)][:_MEASURED]
        near = self.neighbours.nearest(some)
        other = near.gather(1, (torch.arange(len(some), device=near.device) % near.shape[1])[:, None])
        halfway = self.model.kernel.admitted(0.5 * (some + self.X[other[:, 0].clamp_min(0).long()]))
        with torch.no_grad():
            _, deviations, differences, _ = self._beside_neighbours(halfway)
        return float(error_with_neighbours(deviations, differences).square().mean().sqrt())

    def with_samples(
        self, prior: PriorSamples, probe_solutions: torch.Tensor, probe_values: torch.Tensor
    ) -> PathwisePosterior:
        """Return this posterior with further samples, whose prior functions share the features of its own."""
        assert self.probe_values is not None
        mine = self.update
        found = PathwisePosterior(
            self.model,
            self.table,
            self.target_solutions,
            torch.cat([mine.probe_solutions, probe_solutions], 1),
            self.basis_solutions,
            Trend(self.coefficients, self.coefficient_root),
            replace(mine.prior, weights=torch.cat([mine.prior.weights, prior.weights], 1)),
            self.solver,
            self.final_solve,
            torch.cat([self.probe_values, probe_values], 1),
            self.unsolved,
        )
        found.neighbours = self.neighbours
        return found

    def with_rows(self, X: torch.Tensor, Y: torch.Tensor, noise: torch.Tensor | None = None) -> PathwisePosterior:
        """Return the posterior given additional rows, from solves that go on from those for the earlier rows.

        The samples are those of the same prior functions, with their own noise at the new rows.
        """
        model, table, n, update = self.model.appended(noise), self.table.appended(X, Y), self.n_rows, self.update
        matrix = table.solve_matrix(model.kernel, model.noise_variance)
        known, own = self.probe_values, matrix.noise()[n:]
        known = self.matrix() @ update.probe_solutions if known is None else known
        generator = torch.Generator().manual_seed(_FIRST_SEED + n)
        drawn = own.sqrt()[:, None] * standard_normal(len(X), self.n_samples, generator=generator).to(own)
        values = torch.cat([known, update.prior.evaluate(model.kernel, table.X[n:], self.budget).to(known) + drawn])
        basis = OrthogonalBasis.of(table.basis)
        stacked = torch.cat([table.Y, basis.columns, values], 1)
        of_targets = self.target_solutions + self.basis_solutions @ self.coefficients
        of_basis = self.basis_solutions @ basis.to_columns
        solved = torch.cat([of_targets, of_basis, update.probe_solutions], 1)
        if isinstance(update.prior, PanelSamples) or not table.has_points:
            # in a panel a solve takes less time than the search for neighbours, and averages have none
            start = torch.cat([solved, solved.new_zeros(len(X), solved.shape[1])])
        else:
            further = table.X[n:], solved, stacked[n:], own.double(), self.budget
            start = continued_start(self.neighbours, self.X, *further)
        t, fixed = table.n_targets, table.n_targets + basis.columns.shape[1]
        solution = self.solver.solve(matrix, stacked, start, generator, n_targets=fixed)
        record = record_of(solution, fixed)
        require_solved([record])
        warn_of_unfinished([record])
        of_targets, of_basis, of_probes = solution.value.split([t, fixed - t, self.n_samples], 1)
        trend = estimate_trend(basis.columns, table.Y, of_basis)
        return PathwisePosterior(
            model,
            table,
            of_targets - of_basis @ trend.coefficients,
            of_probes,
            of_basis @ basis.to_basis,
            basis.trend(trend),
            update.prior,
            self.solver,
            record,
            None if self.probe_values is None else values,
            mean_square_unsolved(solution.residual, trend.coefficients),
        )

    def _solved_variance(self, X: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix()
        state, variances = self.solver.prepare(matrix), []
        for block in X.split(_SOLVE_COLUMNS):
            cross = self.table.cross_covariance(self.model.kernel, block).T
            # The reduction is stationary at the solution, so the derivative at a fixed solution is correct up to the
            # residual.
            solved = self.solver.solve(state, cross.detach()).value
            reduction = (solved * (2 * cross - matrix @ solved)).sum(0)
            variances.append((self.model.kernel.diagonal(block) - reduction).clamp_min(0))
        return torch.cat(variances) if variances else X.new_zeros(0)

    def covariance_given_trend(self, X: torch.Tensor) -> torch.Tensor:
        """Return the full covariance from one solve for each point.

        With approximate solutions ``S`` of ``H S = K(X, X*)`` the result is ``K** - K*X S - S' KX* + S' H S``, the
        covariance of the error in predicting ``f(X*)`` by ``S' y``. For any error of the solve it is never below the
        exact posterior covariance, and it equals the latter for exact solutions.
        """
        if X.ndim == 2:
            return self.covariance_given_trend(X[None])[0]
        m = X.shape[1]
        require(4 * m * (m + self.X.shape[0]) * X.element_size(), self.budget, f"The covariance of {m:,} points", "")
        matrix, found = self.matrix(), [X.new_zeros(0, m, m)]
        state = self.solver.prepare(matrix)
        for some in X.split(max(1, _SOLVE_COLUMNS // max(m, 1))):
            cross = self.table.cross_covariance(self.model.kernel, some.flatten(0, 1))
            # the covariance is stationary at the solution
            solved = self.solver.solve(state, cross.detach().T.contiguous()).value
            rows = within_batches(solved.T, some)
            mixed = within_batches(cross, some) @ rows.mT
            inner = within_batches((matrix @ solved).T, some) @ rows.mT
            covariance = prior_covariance(self.model.kernel, some) - mixed - mixed.mT + inner
            found.append(0.5 * (covariance + covariance.mT))
        return torch.cat(found)

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> PathwiseUpdate:
        """Return stored samples chosen by the generator; if more are needed than stored, solve for new ones.

        Targets are independent given the hyperparameters, so every target has its own samples.
        """
        needed = n_samples * self.n_targets
        draw = self.update.prior.draw
        if needed <= self.n_samples:
            chosen = torch.randperm(self.n_samples, generator=generator)[:needed]
            prior = replace(self.update.prior, weights=self.update.prior.weights[:, chosen])
            return PathwiseUpdate(self, prior, self.update.probe_solutions[:, chosen])
        estimator = Pathwise(n_probes=needed, n_features=draw.n_features, law=draw.law)  # type: ignore[arg-type]
        probes = estimator.draw(self.model, self.X, generator, has_points=self.table.has_points)
        assert probes.prior is not None
        matrix = self.matrix()
        right_hand_sides = probes.right_hand_sides(self.model, matrix, self.budget)
        return PathwiseUpdate(self, probes.prior, self.solver.solve(matrix, right_hand_sides).value)

    def left_out(self) -> LeftOut:
        """Return the distribution of each row given all others, from the solutions for targets and samples.

        The solutions ``u = H^-1 w`` for noisy prior samples w have the variances ``P_ii`` of the diagonal of
        ``P = H^-1``. The error of predicting a sample at row i from the rows around it has the variance D and the
        covariance 1 with u_i. ``P_ii = 1 / D + E (u_i - d_i / D)^2`` therefore holds exactly, and its estimate is the
        more certain, the more of a row its neighbours know. The standard error has the relative residual of the solve
        in it.
        """
        solved = self.update.probe_solutions.double()
        if self.probe_values is None:
            squares, inverse = solved.square(), solved.new_zeros(self.n_rows)
        else:
            values, places = self.probe_values.double(), self.neighbours.graph.neighbourhood
            pool = pool_of(self.model, self.table)
            squares, inverse = torch.empty_like(solved), solved.new_empty(self.n_rows)
            for rows in places.by_place.split(_BLOCK_ROWS):
                around = places.others(rows, min(self.neighbours.n_neighbours, self.n_rows - 1))
                found = pool.conditionals(rows, around, values, weights=False)
                assert found.residual is not None
                squares[rows] = (solved[rows] - found.residual / found.variance[:, None]).square()
                inverse[rows] = 1 / found.variance
        error = squares.std(1) / self.n_samples**0.5 if self.n_samples > 1 else squares[:, 0]
        precision = without_trend(inverse + squares.mean(1), self.basis_solutions, self.coefficient_root)
        unsolved = 0.0 if self.final_solve is None else self.final_solve.relative_residual_probes or 0.0
        return LeftOut.of(self.table.Y, self.target_solutions, precision, error.hypot(unsolved * precision))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the log marginal likelihood, with its determinant estimated by stochastic Lanczos quadrature.

        The data fit ``r' H^-1 r`` is computed as ``2 r'v - v'Hv``, which is too small by ``e'He`` for an error e of the
        solution v. The solve continues from the stored solution until half of that error is certainly below 0.01 nats
        per target. The standard error, which accounts for the determinant only, then covers the whole error.
        """
        matrix = self.matrix()
        residuals = self.table.Y - self.table.basis @ self.coefficients
        solver = self.solver if isinstance(self.solver, ConjugateGradients) else ConjugateGradients()
        finish = replace(solver, tolerance=_FIT_TOLERANCE, nats=(_FIT_NATS, _FIT_NATS), max_epochs=200)
        state = finish.prepare(matrix)
        preconditioner = state.build(generator)
        solved = finish.solve(state, residuals, initial=self.target_solutions).value
        fit = float((solved * (2 * residuals - matrix @ solved)).double().sum())
        determinant = log_determinant(matrix, preconditioner, generator=generator)
        n, t = self.table.n_rows, self.table.n_targets
        value = -0.5 * (fit + t * (determinant.value + n * math.log(2 * math.pi)))
        return Estimate(value, 0.5 * t * determinant.standard_error)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the state for a model file; predictions from it need no solve."""
        tensors = {
            **self.table.state(),
            "target_solutions": self.target_solutions,
            "probe_solutions": self.update.probe_solutions,
            "basis_solutions": self.basis_solutions,
            "coefficients": self.coefficients,
            "coefficient_root": self.coefficient_root,
            "prior.weights": self.update.prior.weights,
        }
        if self.probe_values is not None:
            tensors["probe_values"] = self.probe_values
        draw_tensors, draw_header = self.update.prior.draw.state()
        tensors.update({f"prior.draw.{name}": value for name, value in draw_tensors.items()})
        return tensors, {
            "draw": draw_header,
            "with_probe_values": self.probe_values is not None,
            "final_solve": None if self.final_solve is None else asdict(self.final_solve),
            "unsolved": self.unsolved,
            "mixed": self.table.mixed,
            "panel_rows": len(prior.panel.rows) if isinstance(prior := self.update.prior, PanelSamples) else 0,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, torch.Tensor], header: dict[str, Any], saved: Saved) -> PathwisePosterior:
        needed = {"draw": DRAW, "final_solve": optional(SOLVE)}
        # earlier versions bounded what the solve left over, and solved in float64 after loading
        record(needed, {"with_probe_values": flag, "unsolved": number(), "mixed": flag, "panel_rows": whole()})(
            header, "posterior"
        )
        if not isinstance(saved.solver, Solver):
            raise ModelFileError(f"its solver must be one of gigagp.solvers; got {str(saved.solver)[:60]!r}.")
        prefix = "prior.draw."
        fields = {
            "target_solutions": Field("n t", "real"),
            "probe_solutions": Field("n s", "real"),
            "basis_solutions?": Field("n p", "real"),
            "coefficients": Field("p t"),
            "coefficient_root?": Field("p p"),
            "prior.weights": Field("c s"),
        }
        if header.get("with_probe_values", False):
            fields["probe_values"] = Field("n s", "real")
        fields |= draw_fields(saved, header["draw"], tensors, prefix)
        table = restored(tensors, saved, fields, mixed=header.get("mixed", False))
        draw = FeatureDraw.from_state(part(tensors, prefix), header["draw"])
        prior = _restored_samples(draw, tensors, header.get("panel_rows", 0), saved)
        solve = header["final_solve"]
        of_targets = 0.0 if solve is None else solve["relative_residual_targets"]
        return cls(
            saved.model,
            table,
            tensors["target_solutions"],
            tensors["probe_solutions"],
            tensors.get("basis_solutions", torch.zeros_like(table.basis)),
            Trend.from_state(tensors, "basis_solutions"),
            prior,
            saved.solver,
            None if solve is None else SolveRecord(**solve),
            tensors.get("probe_values"),
            header.get("unsolved", float(table.Y.square().mean(0).max()) * of_targets**2),
        )


def _restored_samples(
    draw: FeatureDraw, tensors: dict[str, torch.Tensor], panel_rows: int, saved: Saved
) -> PriorSamples:
    """Return the prior functions of a model file; those of a panel have been drawn for its first rows."""
    name, weights = "prior.weights", tensors["prior.weights"]
    if not panel_rows:
        check_columns(saved, draw, weights, name)
        return PriorSamples(draw, weights)
    rows = tensors["X"][:panel_rows]
    panel = select(saved.kernel, rows.device, rows.dtype, rows=rows, alone=True)
    if not isinstance(panel, PanelTiles) or panel_rows > len(tensors["X"]):
        raise ModelFileError("its rows are not those of the panel that its samples were drawn for.")
    further = sum(count_numbers(panel, saved.kernel))
    check_columns(saved, draw, weights[: max(len(weights) - further, 0)], name)
    return PanelSamples(draw, weights, panel)


# The start of solves with further rows, from the solutions for the earlier ones and nearest neighbours ----------------


#: Largest numbers of further rows whose covariances given the earlier ones are taken together, and of the neighbours
#: that they may have, whose covariances are stored (32 MiB).
_TOGETHER, _NEIGHBOURS = 256, 2048


def continued_start(
    predictor: LocalPredictor, X: Tensor, further: Tensor, solved: Tensor, values: Tensor, noise: Tensor, budget: int
) -> Tensor:
    """Return an approximate solution of ``H`` with further rows at its end, shape (n + k, s).

    With the solutions ``v_1`` for the earlier rows (``solved``), the further part is ``v_2 = S^-1 (b_2 - K_21 v_1)``
    with ``S = H_22 - H_21 H_11^-1 H_12``, and the earlier part becomes ``v_1 - H_11^-1 H_12 v_2``. Both are exact if
    the predictors ``H_11^-1 H_12`` are, in whose place are those from nearest neighbours. ``values`` are ``b_2``, and
    ``noise`` is that of the further rows, including the kernel's white part, float64.
    """
    kernel = predictor.kernel
    left = (values - cross_product(kernel, further, X, solved, budget=budget)).double()
    earlier, later = solved.double().clone(), torch.zeros_like(left)
    together = _TOGETHER if len(X) <= _NEIGHBOURS else max(1, min(_TOGETHER, _NEIGHBOURS // predictor.n_neighbours))
    for rows in torch.arange(len(left), device=left.device).split(together):
        points, local = further[rows], predictor.weights(further[rows])
        spread = predictor.covariances(points[None])[0].double()
        spread.diagonal().add_(noise[rows])
        factor, info = torch.linalg.cholesky_ex(spread)
        if int(info) != 0 or not bool(torch.isfinite(factor).all()):
            continue  # zeros are a start too
        later[rows] = torch.cholesky_solve(left[rows], factor)
        shares = local.weights.double()[:, :, None] * later[rows][:, None, :]
        earlier.index_add_(0, local.rows[local.places.flatten()], -shares.flatten(0, 1))
    return torch.cat([earlier, later]).to(solved)
