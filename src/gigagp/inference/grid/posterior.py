"""The posterior of a function on a grid, with predictions that cost 4^d operations per point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.input_gradients import both_sides, wants_gradient
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod, VarianceParts
from gigagp.inference.contract.saved import Saved
from gigagp.inference.grid.likelihood import GridLikelihood
from gigagp.inference.grid.preconditioners.long_waves import SmoothMatrix
from gigagp.inference.grid.saved import POSTERIOR_TENSORS, restored_likelihood
from gigagp.inference.grid.system import DenseGridSystem, GridSystem
from gigagp.inference.iterative.sampled_variance import variance_from_samples
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.model.scaling import Scaling
from gigagp.operators.base import Index
from gigagp.operators.grid import GridKernel, GridOperator, SumKernel
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid
from gigagp.operators.grid.statistics.grid_sum import shape_in_words
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.optimization.history import SolveRecord
from gigagp.products.dense import eigh
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.solvers.lanczos import lanczos
from gigagp.solvers.preconditioners.base import factor_with_jitter
from gigagp.solvers.preconditioners.pivoting import greedy

#: Number of points whose exact variances are solved for together.
_SOLVE_COLUMNS = 64
#: Number of probe vectors of the log-determinant.
_VALUE_PROBES = 32
_PRIOR_FEATURES = 4000
_OTHERWISE = 'Or choose outside="clamp" or "prior" of inference.Grid.'


class GridPosterior(GrowingPosterior):
    """The posterior of the values at the nodes, interpolated between them; float64 on the CPU.

    Attributes
    ----------
    values : Tensor of shape (m, t)
        Posterior mean on the grid, without the trend.
    adjoint : Tensor of shape (m, t)
        ``W' K~^-1 (Y - mean)``.
    basis_values : Tensor of shape (m, p)
        The same as ``values``, with the mean's basis functions in place of the targets.
    deviations : Tensor of shape (m, s)
        Posterior samples at fixed coefficients minus their mean, on the grid.
    """

    kind = "grid"
    replaces_kernel = True

    def __init__(
        self,
        likelihood: GridLikelihood,
        model: Model,
        budget: int,
        values: Tensor,
        adjoint: Tensor,
        coefficients: Tensor,
        basis_values: Tensor,
        coefficient_root: Tensor,
        deviations: Tensor,
        method: str,
        final_solve: SolveRecord | None = None,
    ) -> None:
        self.likelihood, self.model, self.budget = likelihood, model, budget
        self.statistics, self.settings = likelihood.statistics, likelihood.settings
        self.grid = self.statistics.grid
        self.values, self.adjoint, self.coefficients = values, adjoint, coefficients
        self.basis_values, self.coefficient_root = basis_values, coefficient_root
        self.deviations, self._method, self.final_solve = deviations, method, final_solve

    @classmethod
    def fit(cls, likelihood: GridLikelihood, model: Model, budget: int) -> GridPosterior:
        """Solve for the mean and the samples at a model."""
        system = likelihood.system(model, is_final=True)
        draws, cross = likelihood.noisy_prior(system, likelihood.settings.n_samples, None)
        targets, probes = likelihood.fit_targets(system, cross)
        return cls(
            likelihood,
            model,
            budget,
            targets.solved.values,
            targets.solved.adjoint,
            targets.coefficients,
            targets.basis_values,
            targets.coefficient_root,
            draws - probes.values,
            system.describe(),
            None if likelihood.is_exact else likelihood.solves[-1],
        )

    def row_refusal(self, X: Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for rows beyond the grid, which was chosen for the training rows; None if all fit."""
        inside = self.grid.covers(X)
        if bool(inside.all()):
            return None
        return in_units(self.grid, scaling).refusal(_in_data_units(X, scaling), inside, names=names)

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> GridPosterior:
        """Return the posterior given the earlier rows and new ones, from the sum of their statistics.

        It has the same random numbers.
        """
        statistics, model = self.statistics.add_rows(X, Y, noise), self.model.appended(noise)
        likelihood = GridLikelihood(statistics, model.mean, self.settings, torch.Generator())
        likelihood.seeds = self.likelihood.seeds
        likelihood.resume(None, self.likelihood.torus_lengths)
        posterior = GridPosterior.fit(likelihood, model, self.budget)
        likelihood.warn_of_unfinished_solves()
        return posterior

    # Description ------------------------------------------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        return self.statistics.n_rows

    def places(self) -> Tensor:
        """Return two opposite corners of the bounding box of the rows."""
        return torch.stack([self.statistics.input_low, self.statistics.input_high])

    def solver_name(self) -> str:
        return self._method

    def engine_name(self) -> str:
        keeps_rows = isinstance(self.statistics.gram, RowsGram)
        without = ", products with the rows' weights in place of W'W" if keeps_rows else ""
        return f"grid of {shape_in_words(self.grid)} nodes ({self.grid.interpolation}), FFT{without}, cpu, float64"

    def notes(self) -> dict[str, str]:
        """Return the source of variances that are not exact."""
        count = self.deviations.shape[1]
        words = f"from {count} posterior samples, standard error {math.sqrt(2 / count):.0%}"
        return {"variances": words} if self.variance_method == "samples" else {}

    @cached_property
    def kernel(self) -> GridKernel | SumKernel:
        """Kernel between the nodes."""
        return self.likelihood.kernel_at(self.model)

    def _system(self) -> GridSystem:
        return self.likelihood.system(self.model, is_final=True)

    # Points beyond the grid -------------------------------------------------------------------------------------------

    def refusal(self, X: Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for points beyond the grid, if ``Grid.outside`` is to refuse them."""
        error = self.row_refusal(X.double(), scaling, names) if self.settings.outside == "refuse" else None
        return None if error is None else InvalidInputError(f"{error} {_OTHERWISE}")

    def _place(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return points moved into the grid by the policy `Grid.outside`, and a mask of those that were outside."""
        X = X.double()
        outside = ~self.grid.covers(X)
        if not bool(outside.any()):
            return X, outside
        if self.settings.outside == "refuse":
            raise InvalidInputError(f"{self.grid.refusal(X, ~outside)} {_OTHERWISE}")
        low, high = (torch.tensor(corner, dtype=torch.float64) for corner in self.grid.accepted)
        # move slightly inward, because the corners are rounded
        width = 1e-9 * (high - low)
        return torch.minimum(torch.maximum(X, low + width), high - width), outside

    def _basis_at(self, X: Tensor) -> Tensor:
        """Return the mean's basis as the rows were explained with it: interpolated, and itself beyond the grid."""
        inside, outside = self._place(X)
        found = self.grid.interpolate(inside, self.likelihood.basis)
        if self.settings.outside == "prior":
            found[outside] = self.model.mean.basis(X.double()[outside])
        return found

    def trend(self, X: Tensor) -> Tensor:
        return self._basis_at(X) @ self.coefficients

    def explained_basis(self, X: Tensor) -> Tensor:
        return self._interpolate(*self._place(X), self.basis_values)

    def trend_root(self, X: Tensor, explained: Tensor | None = None) -> Tensor:
        explained = self.explained_basis(X) if explained is None else explained
        return (self._basis_at(X) - explained) @ self.coefficient_root

    def _interpolate(self, inside: Tensor, outside: Tensor, values: Tensor) -> Tensor:
        """Return grid values interpolated at points; with ``outside="prior"``, zero beyond the grid."""
        found = self.grid.interpolate(inside, values)
        if self.settings.outside == "prior":
            found[outside] = 0.0
        return found

    # Mean and variance ------------------------------------------------------------------------------------------------

    def mean(self, X: Tensor) -> Tensor:
        """Return the posterior mean, shape (m, t); cubic interpolation takes 4^d multiplications per point."""
        inside, outside = self._place(X)
        return self.trend(X) + self._interpolate(inside, outside, self.values)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance; ``method="auto"`` is the method of `Grid.variance`.

        Variances from samples never exceed the prior variance.
        """
        chosen = self.variance_method if method == "auto" else method
        inside, outside = self._place(X)
        if chosen == "samples":
            variance = variance_from_samples(
                self._interpolate(inside, outside, self.deviations), self._prior_at(inside)
            )
        elif chosen == "low_rank":
            variance = self._low_rank_variance(inside)
        else:
            variance = self._solved_variance(inside)
        return self.mean(X), self._with_prior_beyond(variance, X, outside)

    def check_variances(self, X: Tensor) -> None:
        """Warn if samples have more variance than the prior; see `Posterior.check_variances`."""
        self.mean_and_variance_given_trend(X[self.grid.covers(X.double())], "samples")

    @property
    def variance_method(self) -> str:
        """Method that ``"auto"`` stands for: on small grids and for few rows the root, which is exact there."""
        return "low_rank" if self.likelihood.is_exact or self._has_few_rows else self.settings.variance

    @property
    def _has_few_rows(self) -> bool:
        return has_few_rows(self.statistics, self.settings.exact_nodes, self.budget)

    def prior_variance(self, X: Tensor) -> Tensor:
        inside, outside = self._place(X)
        return self._with_prior_beyond(self._prior_at(inside), X, outside)

    def _prior_at(self, X: Tensor) -> Tensor:
        """Return ``w'K_G w`` at points inside the grid, shape (n,): slightly below the kernel's variance."""
        return self.kernel.interpolated_variance(X)

    def _with_prior_beyond(self, variance: Tensor, X: Tensor, outside: Tensor) -> Tensor:
        """Return variances, with the prior variances beyond the grid if ``Grid.outside`` asks for them."""
        if self.settings.outside == "prior":
            variance[outside] = self.model.kernel.diagonal(X.double()[outside])
        return variance

    @cached_property
    def low_rank(self) -> LowRankCovariance:
        """Low-rank covariance (exact on a small grid and for few rows), computed at its first use."""
        system = self._system() if self.likelihood.is_exact else None
        if isinstance(system, DenseGridSystem):
            return LowRankCovariance.exact(system)
        m, noise = self.grid.size, self.likelihood.noise_at(self.model)
        if self._has_few_rows:
            return LowRankCovariance.of_few_rows(self.kernel, self.statistics, noise)
        require(
            5 * 8 * m * self.settings.rank,
            self.budget,
            f"A covariance of rank {self.settings.rank} on {m:,} nodes",
            "Use a smaller rank of inference.Grid.",
        )
        return LowRankCovariance.build(self.kernel, self.statistics, noise, self.settings.rank)

    def _low_rank_variance(self, inside: Tensor) -> Tensor:
        explained = [self.grid.interpolate(block, self.low_rank.root).square().sum(1) for block in inside.split(4096)]
        # A reduction never exceeds the prior variance; a negative difference near zero is a rounding error.
        return (self._prior_at(inside) - _joined(explained, inside)).clamp_min(0)

    def _solved_variance(self, inside: Tensor) -> Tensor:
        system, variances = self._system(), []
        for block in inside.split(_SOLVE_COLUMNS):
            smooth = self._smooth(block)
            left = self._prior_at(block) - self._explained(system, block, smooth).diagonal()
            variances.append(left.clamp_min(0))  # negative values are rounding errors
        return _joined(variances, inside)

    @torch.no_grad()
    def _smooth(self, X: Tensor) -> Tensor:
        """Return ``K_G w`` for each point, shape (m, n)."""
        return self.kernel @ self.grid.scatter(X, torch.eye(len(X), dtype=torch.float64))

    def _explained(self, system: GridSystem, X: Tensor, smooth: Tensor) -> Tensor:
        """Return ``w'K_G W' K~^-1 W K_G w`` for all pairs of points, shape (n, n)."""
        found = system.explained(smooth)
        if not wants_gradient(X):
            return found
        # posterior mean with the prior covariances of the points as targets: the matrix without w on one side
        mean = system.solve(self.statistics.gram @ smooth).values
        half = both_sides(self.grid.interpolate(X, mean))
        return found + (half - half.detach())

    def variance_parts(self, X: Tensor) -> VarianceParts:
        """Return the low-rank variance split into the posterior variance (by solves) and the excess due to the rank."""
        if self.variance_method != "low_rank":
            msg = 'return_parts of GPRegressor.predict needs Grid(variance="low_rank") with grid inference.'
            raise InvalidInputError(msg)
        inside, outside = self._place(X)
        whole = self._with_prior_beyond(self._low_rank_variance(inside), X, outside)
        mathematical = self._with_prior_beyond(self._solved_variance(inside), X, outside)
        # the variance by solves can exceed the low-rank one by the error of the solves
        computational = (whole - mathematical).clamp_min(0)
        trend = self.trend_root(X).square().sum(1)
        return VarianceParts(whole - computational + trend, computational)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        """Return the full covariance, from a solve for each point; it is never below the exact one.

        With ``Grid(variance="low_rank")`` it is the low-rank covariance, which needs no solve. Batches of points are
        computed one by one.
        """
        if X.ndim == 3:
            return one_by_one(self.covariance_given_trend, X)
        inside, outside = self._place(X)
        count = len(inside)
        needed = 8 * count * (12 * self.grid.size + 4 * count)
        require(needed, self.budget, f"The covariance of {count:,} points", "Ask for fewer points at once.")
        smooth = self._smooth(inside)
        prior = both_sides(self.grid.interpolate(inside, smooth))
        if self.variance_method == "low_rank":
            root = self.grid.interpolate(inside, self.low_rank.root)
            found = prior - root @ root.T
        else:
            found = prior - self._explained(self._system(), inside, smooth)
        found = 0.5 * (found + found.T)
        if self.settings.outside == "prior" and bool(outside.any()):
            found[outside] = found[:, outside] = 0.0
            beyond = X.double()[outside]
            places = outside.nonzero()[:, 0]
            found[places[:, None], places] = self.model.kernel.block(beyond, beyond)
        return found

    # Samples ----------------------------------------------------------------------------------------------------------

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return posterior samples as functions that interpolate values on the grid.

        If enough samples are stored, the generator chooses among them; otherwise new ones are computed by solves.
        """
        needed = n_samples * self.n_targets
        if needed <= self.deviations.shape[1]:
            deviations = self.deviations[:, torch.randperm(self.deviations.shape[1], generator=generator)[:needed]]
        else:
            system = self._system()
            draws, cross = self.likelihood.noisy_prior(system, needed, generator)
            deviations = draws - system.solve(cross, 0).values
        beyond: list[PriorSamples] = []
        if self.settings.outside == "prior" and self.model.kernel.has_features():
            beyond.append(PriorSamples.new(self.model.kernel, self.grid.n_inputs, needed, _PRIOR_FEATURES, generator))

        def evaluate(X: Tensor) -> Tensor:
            inside, outside = self._place(X)
            spread = self._interpolate(inside, outside, deviations)
            if self.settings.outside == "prior" and bool(outside.any()):
                if not beyond:
                    msg = f"samples beyond the grid need a kernel with random features; got {self.model.kernel!r}."
                    raise InvalidInputError(msg)
                spread[outside] = beyond[0].evaluate(self.model.kernel, X.double()[outside], self.budget)
            return self.mean(X)[:, :, None] + spread.reshape(len(X), self.n_targets, n_samples)

        return evaluate

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the log marginal likelihood of the model on the grid, by stochastic Lanczos quadrature."""
        return self.likelihood.value(self.model, _VALUE_PROBES, generator)

    # Files ------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file: the statistics, the mean and the samples, but not the rows."""
        tensors, header = self.statistics.state()
        tensors = {f"statistics.{name}": value for name, value in tensors.items()}
        tensors |= {name: getattr(self, name) for name in POSTERIOR_TENSORS}
        return tensors, {
            "statistics": header,
            "settings": asdict(self.settings),
            "method": self._method,
            "seeds": self.likelihood.seeds,
            "torus": self.likelihood.torus_lengths,
            "final_solve": None if self.final_solve is None else asdict(self.final_solve),
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> GridPosterior:
        likelihood = restored_likelihood(tensors, header, saved)
        solve = header["final_solve"]
        return cls(
            likelihood,
            saved.model,
            saved.budget,
            **{name: tensors[name].cpu() for name in POSTERIOR_TENSORS},
            method=header["method"],
            final_solve=None if solve is None else SolveRecord(**solve),
        )


def in_units(grid: RegularGrid | GridSum, scaling: Scaling) -> RegularGrid | GridSum:
    """Return a grid over standardized inputs, transformed to the data's own units."""
    return grid.moved((-scaling.x_centre / scaling.x_scale).tolist(), (1 / scaling.x_scale).tolist())


def _in_data_units(X: Tensor, scaling: Scaling) -> Tensor:
    return X.double() * torch.from_numpy(scaling.x_scale) + torch.from_numpy(scaling.x_centre)


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_zeros(0)


# Low-rank posterior covariance on the grid that never understates the variance ---------------------------------------

#: The Krylov spaces of this many random vectors, one after the other, have to add nothing before no further one begins.
_STARTS = 3
#: Nodes times squared rows up to which rows are few, in units of the cube of the largest number of nodes of a dense
#: factor, and n x m arrays in the computation.
_COST, _ARRAYS = 2, 4


def has_few_rows(statistics: GridStatistics, exact_nodes: int, budget: int) -> bool:
    """Whether `LowRankCovariance.of_few_rows` costs no more than the dense factors of the largest grid."""
    m = statistics.grid.size
    rank = min(statistics.n_rows, m)
    return m * rank**2 <= _COST * exact_nodes**3 and _ARRAYS * 8 * m * rank <= budget


@dataclass(frozen=True)
class LowRankCovariance:
    """The posterior variance ``w'K_G w - |root' w|^2`` after conditioning on a Krylov space only.

    ``root root' = K_G W'Q (Q'K~Q)^-1 Q'W K_G`` with Lanczos vectors Q, as in LOVE (Pleiss et al. 2018) in the form of
    Yadav et al. (2021). ``Q (Q'K~Q)^-1 Q'`` is the Galerkin approximation of ``K~^-1`` and never above it, so that the
    variance includes the part that the rank leaves out. This is the computation-aware posterior with the columns of Q
    as actions. ``Q'K~Q`` is computed from the vectors and not taken from the Lanczos process: this then holds for any
    Q. The root has shape (m, k).
    """

    root: Tensor

    @classmethod
    def build(
        cls,
        kernel: GridKernel | SumKernel,
        statistics: GridStatistics,
        noise: float,
        rank: int,
        start: Tensor | None = None,
    ) -> LowRankCovariance:
        """Return the approximation from at most ``rank`` Lanczos vectors.

        There are fewer if these span all that the rows determine. Each takes two products with ``K_G`` and with
        ``W'W``. The first direction is ``W K_G start``, by default with ones, shape (m, 1). Where a Krylov space ends
        early, another one begins at a random vector.
        """
        operator, generator = GridOperator(kernel, statistics.gram, noise), torch.Generator().manual_seed(0)
        first = torch.ones(kernel.n, 1, dtype=torch.float64) if start is None else start
        found = lanczos(operator, operator.lift(kernel @ first), rank).vectors
        empty_handed = 0
        while found.shape[1] < rank and empty_handed < _STARTS:
            first = standard_normal(kernel.n, 1, generator=generator, dtype=torch.float64)
            more = lanczos(operator, operator.lift(kernel @ first), rank - found.shape[1], apart_from=found).vectors
            found, empty_handed = torch.cat([found, more], 1), 0 if more.shape[1] else empty_handed + 1
        vectors = operator.coefficients(found).clone()
        del found
        adjoint = statistics.gram @ vectors
        smooth = kernel @ adjoint
        projected = noise * vectors.T @ adjoint + adjoint.T @ smooth
        (factor,), _ = factor_with_jitter(((projected + projected.T) / 2).unsqueeze(0))  # jitter explains less
        return cls(torch.linalg.solve_triangular(factor, smooth.T, upper=False).T.contiguous())

    @classmethod
    def exact(cls, system: DenseGridSystem) -> LowRankCovariance:
        """Return the exact covariance of a small grid, as a root of full rank."""
        values, vectors = eigh(system.information())
        return cls(system.prior @ (vectors * values.clamp_min(0).sqrt()))  # negative values are rounding errors

    @classmethod
    def of_few_rows(cls, kernel: GridKernel | SumKernel, statistics: GridStatistics, noise: float) -> LowRankCovariance:
        """Return the exact covariance given rows that are much fewer than the nodes, as a root of their rank.

        ``W'W = L L'`` with as many columns as there are different rows, and all that the rows tell of the function is
        one measurement of ``L'f`` with independent noise. For r columns it takes O(m r^2) time.
        """
        gram = statistics.gram

        def block(rows: Index, columns: Index) -> Tensor:
            places = torch.arange(gram.n)[columns]
            unit = torch.zeros(gram.n, len(places), dtype=torch.float64)
            unit[places, torch.arange(len(places))] = 1.0
            return (gram @ unit)[rows]

        factor = greedy(SmoothMatrix(gram, block), statistics.n_rows).columns
        smooth = kernel @ factor
        inner = factor.T @ smooth
        inner.diagonal().add_(noise)
        root = torch.linalg.cholesky(0.5 * (inner + inner.T))
        return cls(torch.linalg.solve_triangular(root, smooth.T, upper=False).T.contiguous())

    @property
    def rank(self) -> int:
        """Number of columns."""
        return self.root.shape[1]
