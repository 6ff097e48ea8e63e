"""The log marginal likelihood of a model, with its gradient, from the statistics of rows on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, SolverWarning, warn
from gigagp.estimate import Estimate
from gigagp.grids import GridStatistics
from gigagp.grids.gram import half_offsets
from gigagp.inference.grid.iterative import ROOT_ERROR, has_root, iterative_system
from gigagp.inference.grid.probes import fresh_noise, noise_probes
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.system import DenseGridSystem, GridSolution, GridSystem, SolveSettings
from gigagp.inference.trend import Trend
from gigagp.kernels import Kernel
from gigagp.means import Mean
from gigagp.model import NOISE, Model
from gigagp.operators.grid import GridKernel, Torus
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.objective import Evaluation
from gigagp.prior_samples import PriorSamples
from gigagp.solvers import Status

#: Number of random features of prior functions, if the kernel has no root on a torus of reasonable size.
_FEATURES = 4000


@dataclass(frozen=True)
class FittedTargets:
    """Results of one solve for the targets and the mean's basis functions.

    Attributes
    ----------
    solved : GridSolution
        Solution for the targets minus their mean, with t columns.
    coefficients : Tensor of shape (p, t)
        Coefficients of the mean's basis.
    basis_values : Tensor of shape (m, p)
        Posterior mean on the grid with the mean's basis functions in place of the targets.
    coefficient_root : Tensor of shape (p, p)
        Root of the covariance of the coefficients.
    data_fit : float
        ``r' K~^-1 r``, summed over targets.
    squared_norms : float
        ``|K~^-1 r|^2``, summed over targets.
    """

    solved: GridSolution
    coefficients: Tensor
    basis_values: Tensor
    coefficient_root: Tensor
    data_fit: float
    squared_norms: float


class GridLikelihood:
    """The likelihood of models given statistics of the rows, with solves and random probes.

    Parameters
    ----------
    statistics : GridStatistics
        Statistics of the rows.
    mean : Mean
        Mean function. The interpolation must reproduce its basis; constant and linear functions are reproduced exactly.
    settings : GridSettings
        Settings of the inference method.
    generator : torch.Generator
        Source of the seeds of the frozen probes.
    """

    def __init__(
        self, statistics: GridStatistics, mean: Mean, settings: GridSettings, generator: torch.Generator
    ) -> None:
        self.statistics, self.mean, self.settings = statistics, mean, settings
        grid = statistics.grid
        # The mean is part of the model: its basis functions are represented on the grid.
        self.basis = mean.basis(grid.nodes())
        self.basis_cross = statistics.gram @ self.basis
        self.basis_products = self.basis.T @ self.basis_cross
        self.seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        #: torus of the kernel's root; it grows if a kernel needs more room
        self.torus: Torus | None = None
        #: preconditioner that "auto" selected when the torus was last set; rows and holes do not change
        self.preconditioner: str | None = None
        self._noise_probes: Tensor | None = None
        #: duals of the last solve, the start of the next one
        self.initial: Tensor | None = None
        self.solves: list[SolveRecord] = []
        self._offset_sums = statistics.gram.values.sum(1)

    @property
    def is_exact(self) -> bool:
        """Whether the grid is small enough for dense factors."""
        return self.statistics.grid.size <= self.settings.exact_nodes

    # The matrix at a model --------------------------------------------------------------------------------------------

    def kernel_at(self, model: Model) -> GridKernel:
        """Return the kernel on the grid, with a torus that is reused while it is large enough."""
        kernel = GridKernel(model.kernel, self.statistics.grid, self.torus)
        if self.is_exact:
            return kernel
        noise = self.noise_at(model)
        if self.torus is None or not has_root(kernel, noise):
            # with a margin, so that a lengthscale can grow slightly before the torus must
            self.torus = kernel.fitting_torus(0.2 * ROOT_ERROR * noise)
            self.preconditioner = None
            if self.torus != kernel.root_torus:
                kernel = GridKernel(model.kernel, self.statistics.grid, self.torus)
        return kernel

    def noise_at(self, model: Model) -> float:
        """Return the noise variance, including the kernel's white terms."""
        if model.noise_is_known:
            msg = (
                "noise_variance must be one number with inference.Grid; got one for each row. Use inference.Iterative."
            )
            raise InvalidInputError(msg)
        origin = torch.zeros(1, self.statistics.grid.n_inputs, dtype=torch.float64)
        with torch.no_grad():
            return float(model.noise_variance) + float(model.kernel.white(origin)[0])

    def system(self, model: Model, tolerance: float | None = None) -> GridSystem:
        """Return the linear algebra of grid inference at a model."""
        kernel, noise = self.kernel_at(model), self.noise_at(model)
        if self.is_exact:
            return DenseGridSystem(kernel, self.statistics, noise)
        own = self.settings
        tolerance = tolerance or own.tolerance
        choice = self.preconditioner or own.preconditioner
        settings = SolveSettings(tolerance, tolerance, own.max_iterations, choice)
        system = iterative_system(kernel, self.statistics, noise, settings)
        if has_root(kernel, noise):
            self.preconditioner = system.preconditioner
        return system

    def gap(self, kernel: GridKernel) -> float:
        """Return ``k(x, x) - w'K_G w`` averaged over all rows: the variance that the grid cannot represent.

        The sums of ``W'W`` along its diagonals give it exactly, because the mean of ``w'K_G w`` is the trace of
        ``K_G W'W / n``.
        """
        grid = self.statistics.grid
        offsets = torch.tensor(half_offsets(grid), dtype=torch.float64) * torch.tensor(
            grid.spacing, dtype=torch.float64
        )
        with torch.no_grad():
            covariances = kernel.kernel.block(offsets, torch.zeros(1, grid.n_inputs, dtype=torch.float64))[:, 0]
        double = torch.full_like(covariances, 2.0)
        double[0] = 1.0
        return kernel.variance - float((double * covariances) @ self._offset_sums) / max(self.statistics.n_rows, 1)

    # Solves -----------------------------------------------------------------------------------------------------------

    def fit_targets(self, system: GridSystem, probes: Tensor | None = None) -> tuple[FittedTargets, GridSolution]:
        """Solve for targets, basis functions and probes (``W'z``, shape (m, s)) together.

        Returns
        -------
        targets : FittedTargets
            Results for targets and basis functions.
        probes : GridSolution
            Solution for the probes.
        """
        statistics, basis = self.statistics, self.basis
        t, p = statistics.cross.shape[1], basis.shape[1]
        probes = statistics.cross[:, :0] if probes is None else probes
        stacked = torch.cat([statistics.cross, self.basis_cross, probes], 1)
        initial = self.initial if self.initial is not None and self.initial.shape[1] == stacked.shape[1] else None
        solved = system.solve(stacked, t + p, initial)
        if solved.solution is not None:
            self.initial = solved.dual
            self.solves.append(_record(solved, t + p))
        basis_targets = basis.T @ statistics.cross
        # Products of different targets with each other are not known, and not needed.
        products = torch.zeros(t + p, t + p, dtype=torch.float64)
        products[:t, :t].diagonal().copy_(statistics.target_squares)
        products[t:, :t], products[:t, t:], products[t:, t:] = basis_targets, basis_targets.T, self.basis_products
        fixed = solved.columns(slice(t + p))
        forms = system.quadratic(stacked[:, : t + p], products, fixed)
        coefficients, root = Trend.from_products(forms[t:, t:], forms[t:, :t])
        contrast = torch.cat([torch.eye(t, dtype=torch.float64), -coefficients])
        fits = (contrast * (forms @ contrast)).sum(0)
        residual = fixed.combine(contrast)
        squares = (contrast * (products @ contrast)).sum(0)
        norms = system.squared_norms(squares, stacked[:, : t + p] @ contrast, residual)
        values = fixed.values[:, t:]
        targets = FittedTargets(residual, coefficients, values, root, float(fits.sum()), float(norms.sum()))
        return targets, solved.columns(slice(t + p, None))

    def prior_draws(self, system: GridSystem, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return samples of ``N(0, K_G)``, shape (m, n_samples)."""
        kernel, grid = system.kernel, self.statistics.grid
        if has_root(kernel, system.noise) or not kernel.kernel.has_features():
            return kernel.sample(n_samples, generator)
        draws = PriorSamples.new(kernel.kernel, grid.n_inputs, n_samples, _FEATURES, generator)
        return draws.evaluate(kernel.kernel, grid.nodes(), 2**28)

    def noisy_prior(self, system: GridSystem, n_samples: int, fresh: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return prior samples f on the grid and ``W'(W f + noise)``, each of shape (m, n_samples).

        ``fresh`` is the source of new samples; None uses the frozen probes, which are the same at every model.
        """
        if fresh is None:
            generator = torch.Generator().manual_seed(self.seeds[0])
            noise = self._frozen_noise(n_samples)
        else:
            generator = fresh
            information = system.kernel.variance / system.noise
            noise = fresh_noise(self.statistics, n_samples, fresh, information=information, dense=self.is_exact)
        draws = self.prior_draws(system, n_samples, generator)
        return draws, self.statistics.gram @ draws + system.noise**0.5 * noise

    def _frozen_noise(self, n_samples: int) -> Tensor:
        if self._noise_probes is None or self._noise_probes.shape[1] < n_samples:
            generator = torch.Generator().manual_seed(self.seeds[1])
            self._noise_probes = noise_probes(self.statistics, n_samples, generator)
        return self._noise_probes[:, :n_samples]

    def resume(self, initial: Tensor | None, lengths: list[int] | None, preconditioner: str | None = None) -> None:
        """Restore the warm start, the torus and the preconditioner of another run on the same statistics."""
        self.initial, self.preconditioner = initial, preconditioner
        self.torus = None if lengths is None else Torus(self.statistics.grid.shape, tuple(lengths))

    # Value and gradient -----------------------------------------------------------------------------------------------

    def evaluate(self, model: Model) -> Evaluation:
        """Return the gradient, and the value if it is exact (on small grids)."""
        system = self.system(model)
        t, n = self.statistics.cross.shape[1], self.statistics.n_rows
        if isinstance(system, DenseGridSystem):
            targets, _ = self.fit_targets(system)
            information = system.information()
            solved = targets.solved.adjoint
            by_kernel = system.kernel.weighted_gradient(0.5 * (solved @ solved.T - t * information))
            trace = float((system.prior * information).sum())
            value = self._value(targets, system.log_determinant(0, torch.Generator()).value)
        else:
            value = None
            s = self.settings.n_probes
            # Pathwise (Lin et al. 2024, eqs. 9 to 11): q of noisy prior samples has the covariance W' K~^-1 W
            draws = self.noisy_prior(system, s, None)
            targets, probes = self.fit_targets(system, draws[1])
            by_targets = system.gradient(targets.solved, torch.full((t,), 0.5, dtype=torch.float64))
            by_probes = system.gradient(probes, torch.full((s,), -0.5 * t / s, dtype=torch.float64))
            by_kernel = {name: value + by_probes[name] for name, value in by_targets.items()}
            trace = float(system.prior_squares(probes).mean())
        # tr K~^-1 = (n - tr K_G W' K~^-1 W) / noise
        by_noise = 0.5 * targets.squared_norms - 0.5 * t * (n - trace) / system.noise
        gradient = self._with_white(model, by_kernel, by_noise)
        return Evaluation(value, gradient, self.solves[-1] if not self.is_exact else None)

    def value(self, model: Model, n_probes: int, generator: torch.Generator) -> Estimate:
        """Return the log marginal likelihood with its standard error, which is 0 on small grids."""
        system = self.system(model, min(self.settings.tolerance, self.settings.final_tolerance))
        kept = self.initial
        targets, _ = self.fit_targets(system)
        self.initial = kept  # the start of a joint solve for targets and probes, unlike this solve
        determinant = system.log_determinant(n_probes, generator)
        t = self.statistics.cross.shape[1]
        return Estimate(self._value(targets, determinant.value), 0.5 * t * determinant.standard_error)

    def _value(self, targets: FittedTargets, log_determinant: float) -> float:
        t, n = self.statistics.cross.shape[1], self.statistics.n_rows
        return -0.5 * (targets.data_fit + t * (log_determinant + n * math.log(2 * math.pi)))

    def _with_white(self, model: Model, by_kernel: dict[str, Tensor], by_noise: float) -> dict[str, Tensor]:
        """Return the gradient by every hyperparameter, with the white terms of the kernel counted as noise."""
        gradient = dict(by_kernel)
        gradient[NOISE] = torch.tensor(by_noise, dtype=torch.float64)
        kernel: Kernel = model.kernel
        if not any(leaf.is_white for leaf in kernel.leaves()):
            return gradient
        values = {name: value.detach().clone().requires_grad_() for name, value in kernel.parameters().items()}
        with torch.enable_grad():
            origin = torch.zeros(1, self.statistics.grid.n_inputs, dtype=torch.float64)
            white = kernel.replace(values).white(origin).sum()
            found = torch.autograd.grad(white, list(values.values()), allow_unused=True)
        for name, one in zip(values, found, strict=True):
            if one is not None:
                gradient[name] = gradient[name] + by_noise * one
        return gradient

    def warn_of_unfinished_solves(self) -> None:
        """Issue one warning if solves stopped before their tolerance."""
        unfinished = [record for record in self.solves if record.status != Status.CONVERGED.name]
        if not unfinished:
            return
        worst = max(unfinished, key=lambda record: record.relative_residual_targets)
        msg = (
            f"{len(unfinished)} of {len(self.solves)} linear solves of this fit stopped before their tolerance (worst "
            f"relative residual {worst.relative_residual_targets:.2g} of the targets, after {worst.iterations} steps). "
            "Raise max_iterations of Grid or its tolerance, or the noise variance."
        )
        warn(msg, SolverWarning)


def _record(solved: GridSolution, n_fixed: int) -> SolveRecord:
    solution = solved.solution
    assert solution is not None
    residual = solution.relative_residual
    probes = residual[n_fixed:]
    return SolveRecord(
        iterations=solution.iterations,
        epochs=solution.epochs,
        setup_epochs=solution.setup_epochs,
        relative_residual_targets=float(residual[:n_fixed].max()),
        relative_residual_probes=float(probes.mean()) if probes.numel() else None,
        status=solution.status.name,
    )
