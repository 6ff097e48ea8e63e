"""The log marginal likelihood of a model, with its gradient, from the statistics of rows on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from gigagp.errors import GigaGPWarning, warn
from gigagp.inference.contract.input_gradients import derivatives
from gigagp.inference.contract.trend import Trend
from gigagp.inference.grid.iterative import SlopesSystem, has_root, iterative_system
from gigagp.inference.grid.settings import GridSettings
from gigagp.inference.grid.system import ROOT_ERROR, DenseGridSystem, GridSolution, GridSystem, SolveSettings
from gigagp.inference.iterative.solve_records import record_of, warn_of_unfinished
from gigagp.kernels import Kernel
from gigagp.model.estimate import Estimate
from gigagp.model.means import Mean
from gigagp.model.model import NOISE, Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.operators.grid import GridKernel, SumKernel, Torus, grid_kernel
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid, StencilGram, SumGram
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.optimization.history import SolveRecord
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import eigh
from gigagp.settings.random import standard_normal

#: Number of random features of prior functions, if the kernel has no root on a torus of reasonable size.
_FEATURES = 4000


@dataclass(frozen=True)
class FittedTargets:
    """Results of one solve for the targets and the mean's basis functions."""

    solved: GridSolution  # for the t targets minus their mean
    coefficients: Tensor  # of the mean's basis, (p, t)
    basis_values: Tensor  # posterior mean on the grid with the basis functions in place of the targets, (m, p)
    coefficient_root: Tensor  # root of the covariance of the coefficients, (p, p)
    data_fit: float  # ``r' K~^-1 r``, summed over targets
    squared_norms: float  # ``|K~^-1 r|^2``, summed over targets


class GridLikelihood:
    """The likelihood of models given statistics of the rows, with solves and random probes.

    The mean's basis is interpolated between the nodes, which reproduces constant and linear functions exactly. The
    generator gives the seeds of the frozen probes.
    """

    def __init__(
        self, statistics: GridStatistics, mean: Mean, settings: GridSettings, generator: torch.Generator
    ) -> None:
        self.statistics, self.mean, self.settings = statistics, mean, settings
        grid = statistics.grid
        # The mean is part of the model: its basis functions are represented on the grid.
        self.basis = grid.extended(mean.basis)
        self.basis_cross = statistics.gram @ self.basis
        self.basis_products = self.basis.T @ self.basis_cross
        self.seeds = torch.randint(2**62, (2,), generator=generator).tolist()
        #: torus of the kernel's root on each grid; it grows if a kernel needs more room
        self.tori: list[Torus] | None = None
        #: preconditioner that "auto" selected when the torus was last set; rows and holes do not change
        self.preconditioner: str | None = None
        self._noise_probes: Tensor | None = None
        #: duals of the last solve, the start of the next one
        self.initial: Tensor | None = None
        self.solves: list[SolveRecord] = []

    @property
    def is_exact(self) -> bool:
        """Whether the grid is small enough for dense factors."""
        return self.statistics.grid.size <= self.settings.exact_nodes

    # The matrix at a model --------------------------------------------------------------------------------------------

    def kernel_at(self, model: Model) -> GridKernel | SumKernel:
        """Return the kernel on the grid, with a torus that is reused while it is large enough."""
        kernel = grid_kernel(model.kernel, self.statistics.grid, self.tori)
        if self.is_exact:
            return kernel
        noise = self.noise_at(model)
        if self.tori is None or not has_root(kernel, noise):
            # with a margin, so that a lengthscale can grow slightly before the torus must
            self.tori = kernel.fitting_tori(0.2 * ROOT_ERROR * noise)
            self.preconditioner = None
            if self.tori != kernel.tori:
                kernel = grid_kernel(model.kernel, self.statistics.grid, self.tori)
        return kernel

    def noise_at(self, model: Model) -> float:
        """Return the noise variance of a row of weight one, including the kernel's white terms."""
        if model.noise_is_known:
            assert self.statistics.noise is not None, "known noise variances are in the statistics"
            return self.statistics.noise
        with torch.no_grad():
            return float(model.noise_at(torch.zeros(1, self.statistics.grid.n_inputs, dtype=torch.float64))[0])

    def system(self, model: Model, *, is_final: bool = False) -> GridSystem:
        """Return the linear algebra of grid inference at a model, for a step of learning or for answers."""
        kernel, noise = self.kernel_at(model), self.noise_at(model)
        if self.is_exact:
            return DenseGridSystem(kernel, self.statistics, noise)
        own = self.settings
        tolerance = min(own.tolerance, own.final_tolerance) if is_final else own.tolerance
        choice = self.preconditioner or own.preconditioner
        settings = SolveSettings(tolerance, tolerance, own.max_iterations, choice, is_final)
        system = iterative_system(kernel, self.statistics, noise, settings)
        if has_root(kernel, noise):
            self.preconditioner = system.preconditioner
        return system

    def gap(self, model: Model) -> float:
        """Return the variance that the grid cannot represent, averaged over the rows; see `GridKernel.gap`."""
        kernel = grid_kernel(model.kernel, self.statistics.grid)
        gram, total = self.statistics.gram, float(self.statistics.weight_sums[0])
        if isinstance(kernel, SumKernel):
            return kernel.gap(gram, total)
        assert isinstance(gram, StencilGram | RowsGram)
        return kernel.gap(gram, total)

    # Solves -----------------------------------------------------------------------------------------------------------

    def fit_targets(self, system: GridSystem, probes: Tensor | None = None) -> tuple[FittedTargets, GridSolution]:
        """Solve for targets, basis functions and probes (``W'z``, shape (m, s)) together; return both results."""
        statistics, basis = self.statistics, self.basis
        t, p = statistics.cross.shape[1], basis.shape[1]
        probes = statistics.cross[:, :0] if probes is None else probes
        stacked = torch.cat([statistics.cross, self.basis_cross, probes], 1)
        slopes = system.root.shape[1] if isinstance(system, SlopesSystem) else 0
        fits = self.initial is not None and self.initial.shape[1] == stacked.shape[1] + slopes
        solved = system.solve(stacked, t + p, self.initial if fits else None)
        if solved.solution is not None:
            self.initial = solved.dual if solved.start is None else solved.start
            record = record_of(solved.solution, t + p)
            # nats of the transformed system are not nats of the likelihood
            self.solves.append(replace(record, nats_targets=None, nats_probes=None))
        basis_targets = basis.T @ statistics.cross
        # Products of different targets with each other are not known, and not needed.
        products = torch.zeros(t + p, t + p, dtype=torch.float64)
        products[:t, :t].diagonal().copy_(statistics.target_squares)
        products[t:, :t], products[:t, t:], products[t:, t:] = basis_targets, basis_targets.T, self.basis_products
        fixed = solved.columns(slice(t + p))
        forms = system.quadratic(stacked[:, : t + p], products, fixed)
        coefficients, root = Trend.from_products(forms[t:, t:], forms[t:, :t])
        contrast = torch.cat([torch.eye(t, dtype=torch.float64), -coefficients])
        fitted = (contrast * (forms @ contrast)).sum(0)
        residual = fixed.combine(contrast)
        squares = (contrast * (products @ contrast)).sum(0)
        norms = system.squared_norms(squares, stacked[:, : t + p] @ contrast, residual)
        values = fixed.values[:, t:]
        targets = FittedTargets(residual, coefficients, values, root, float(fitted.sum()), float(norms.sum()))
        return targets, solved.columns(slice(t + p, None))

    def prior_draws(self, system: GridSystem, n_samples: int, generator: torch.Generator) -> Tensor:
        """Return samples of ``N(0, K_G)``, shape (m, n_samples)."""
        kernel, grid = system.kernel, self.statistics.grid
        if isinstance(kernel, SumKernel):
            return kernel.sample(n_samples, generator, ROOT_ERROR * system.noise)
        assert isinstance(grid, RegularGrid)
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

    @property
    def torus_lengths(self) -> list[Any] | None:
        """Lengths of the torus, or of the torus of each grid of a sum, as plain data for `resume`."""
        if self.tori is None:
            return None
        lengths = [list(torus.lengths) for torus in self.tori]
        return lengths[0] if isinstance(self.statistics.grid, RegularGrid) else lengths

    def resume(self, initial: Tensor | None, lengths: list[Any] | None, preconditioner: str | None = None) -> None:
        """Restore the warm start, the tori and the preconditioner of another run on the same statistics."""
        self.initial, self.preconditioner, self.tori = initial, preconditioner, None
        grid = self.statistics.grid
        if lengths is not None and isinstance(grid, RegularGrid):
            self.tori = [Torus(grid.shape, tuple(lengths))]
        elif lengths is not None and isinstance(grid, GridSum):
            self.tori = [Torus(one.shape, tuple(own)) for one, own in zip(grid.grids, lengths, strict=True)]

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
        system = self.system(model, is_final=True)
        kept = self.initial
        targets, _ = self.fit_targets(system)
        self.initial = kept  # the start of a joint solve for targets and probes, unlike this solve
        determinant = system.log_determinant(n_probes, generator)
        t = self.statistics.cross.shape[1]
        return Estimate(self._value(targets, determinant.value), 0.5 * t * determinant.standard_error)

    def _value(self, targets: FittedTargets, log_determinant: float) -> float:
        t, n = self.statistics.cross.shape[1], self.statistics.n_rows
        # The determinant is that of the rows times the roots of their weights.
        log_determinant = log_determinant - float(self.statistics.weight_sums[1])
        return -0.5 * (targets.data_fit + t * (log_determinant + n * math.log(2 * math.pi)))

    def _with_white(self, model: Model, by_kernel: dict[str, Tensor], by_noise: float) -> dict[str, Tensor]:
        """Return the gradient by every hyperparameter, with the white terms of the kernel counted as noise."""
        gradient = dict(by_kernel)
        if model.noise_is_known:
            return gradient
        gradient[NOISE] = torch.tensor(by_noise, dtype=torch.float64)
        kernel: Kernel = model.kernel
        if not kernel.has_white:
            return gradient
        origin = torch.zeros(1, self.statistics.grid.n_inputs, dtype=torch.float64)
        slopes = derivatives(lambda values: kernel.replace(values).white(origin).sum(), kernel.parameters())
        return gradient | {name: gradient[name] + by_noise * one for name, one in slopes.items()}

    def warn_of_unfinished_solves(self) -> None:
        """Issue one warning if solves stopped before their tolerance."""
        warn_of_unfinished(self.solves, "Raise max_iterations of Grid or its tolerance, or the noise variance.")


# Noise probes: random vectors with the covariance ``W'W`` ------------------------------------------------------------

#: Degree of the polynomial for draws beyond the collected probes. The error of a draw's standard deviation at a node is
#: below 1 % of that at the node with the most rows nearby.
_DEGREE = 60
#: Number of rounding errors, of the largest diagonal entry nearby, below which a row of ``W'W`` counts as zero. Entries
#: are sums of terms that cancel, so a node that rows hardly reach has entries, and negative diagonals, as large as the
#: rounding errors nearby. Scaled to unit size they would be eigenvalues as low as -1, where the polynomial is 1e45.
#: With this floor they stay above -1e-4, where it is below 2 (for up to four inputs, with 2,401 entries in a row).
_ROUNDINGS = 5e7
#: Largest number of rows per node, times the ratio of kernel variance to noise variance, at which the polynomial is
#: accurate enough. The error is up to 20 % of a standard deviation at 10^7 (uneven rows, compared with a solve for each
#: point), and within chance at 10^6.
_MOST_INFORMATION = 1e6


def noise_probes(statistics: GridStatistics, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return ``W'z`` for independent vectors z with unit variance at the rows, shape (m, n_columns).

    The probes that the pass over the rows has collected come first; any further columns are draws of ``N(0, W'W)``.
    """
    kept = statistics.probes[:, :n_columns]
    missing = n_columns - kept.shape[1]
    return kept if missing == 0 else torch.cat([kept, draw_from_gram(statistics.gram, missing, generator)], 1)


def fresh_noise(
    statistics: GridStatistics, n_columns: int, generator: torch.Generator, *, information: float, dense: bool
) -> Tensor:
    """Return new draws of ``N(0, W'W)``, shape (m, n_columns), independent of the collected probes.

    Draws from a root of ``W'W`` (``dense``) are exact. Others warn (`GigaGPWarning`) where there are so many rows per
    node, for this ratio of kernel variance to noise variance (``information``), that they are not accurate enough.
    """
    gram = statistics.gram
    if isinstance(gram, RowsGram):
        return gram.draw(n_columns, generator)
    if dense:
        values, vectors = eigh(gram.dense())
        root = vectors * values.clamp_min(0).sqrt()  # negative eigenvalues are rounding errors
        return root @ standard_normal(gram.n, n_columns, generator=generator)
    if float(gram.diagonal().max()) * information > _MOST_INFORMATION:
        msg = (
            "New posterior samples on this grid can be too rough: the noise variance is very small for so many rows "
            "per node. Samples that the fit stores are exact: raise n_samples of inference.Grid and fit again."
        )
        warn(msg, GigaGPWarning)
    return draw_from_gram(gram, n_columns, generator)


def draw_from_gram(gram: StencilGram | SumGram | RowsGram, n_columns: int, generator: torch.Generator) -> Tensor:
    """Return draws of ``N(0, W'W)``, shape (m, n_columns), up to the error of a polynomial of degree 60.

    ``W'W = D^1/2 A D^1/2`` with the norm of A at most 1. The root of A is a Chebyshev series in A, so that nothing is
    factored (Hale, Higham and Trefethen 2008 give better rational approximations, which need solves).
    """
    if isinstance(gram, RowsGram):
        return gram.draw(n_columns, generator)
    # By Gershgorin's theorem, row sums of |W'W| bound its eigenvalues.
    if isinstance(gram, SumGram):  # the nodes of every grid are near those of the others
        sizes, busiest = gram.values.abs().sum(1), gram.diagonal().abs().max()
    else:
        sizes, busiest = StencilGram(gram.grid, gram.values.abs()).row_sums(), _busiest_near(gram)
    rounding = _ROUNDINGS * torch.finfo(torch.float64).eps * busiest
    scale = torch.where(sizes > 0, (sizes + rounding).sqrt(), 0.0)
    inverse = torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1.0), 0.0)[:, None]
    # Series on [0, 1] in terms of 2 A - 1: sqrt((1 + cos(angle)) / 2) = cos(angle / 2) for angles in [0, pi].
    coefficients = [4 / math.pi * (-1) ** (k + 1) / (4 * k * k - 1) for k in range(_DEGREE + 1)]
    coefficients[0] /= 2
    previous = standard_normal(gram.n, n_columns, generator=generator)

    def shifted(vectors: Tensor) -> Tensor:
        return 2 * inverse * (gram @ (inverse * vectors)) - vectors

    current = shifted(previous)
    total = coefficients[0] * previous + coefficients[1] * current
    for coefficient in coefficients[2:]:
        previous, current = current, 2 * shifted(current) - previous
        total.add_(current, alpha=coefficient)
    return total * scale[:, None]


def _busiest_near(gram: StencilGram) -> Tensor:
    """Return the largest diagonal entry among the nodes that share rows with each node, shape (m,)."""
    reach = gram.grid.scheme.reach
    largest = gram.diagonal().abs().reshape(gram.grid.shape)
    for axis in range(largest.ndim):
        lines = largest.movedim(axis, -1)
        pooled = max_pool1d(lines.reshape(-1, 1, lines.shape[-1]), 2 * reach + 1, stride=1, padding=reach)
        largest = pooled.reshape(lines.shape).movedim(-1, axis)
    return largest.reshape(-1)
