"""The posterior of a function on a grid, with predictions that cost 4^d operations per point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
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
from gigagp.inference.grid.low_rank import LowRankCovariance, has_few_rows
from gigagp.inference.grid.saved import restored_likelihood
from gigagp.inference.grid.system import DenseGridSystem, GridSystem
from gigagp.inference.iterative.sampled_variance import variance_from_samples
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.model.scaling import Scaling
from gigagp.operators.grid import GridKernel, SumKernel
from gigagp.operators.grid.statistics import GridStatistics, GridSum, RegularGrid
from gigagp.operators.grid.statistics.grid_sum import shape_in_words
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.optimization.history import SolveRecord
from gigagp.runtime.memory import require

#: Number of points whose exact variances are solved for together.
_SOLVE_COLUMNS = 64
#: Number of probe vectors of the log-determinant.
_VALUE_PROBES = 32
_PRIOR_FEATURES = 4000
_OTHERWISE = 'Or choose outside="clamp" or "prior" of inference.Grid.'


class GridPosterior(GrowingPosterior):
    """The posterior of the values at the nodes, interpolated between them; float64 on the CPU.

    Parameters
    ----------
    likelihood : GridLikelihood
        Likelihood whose statistics represent the rows.
    model : Model
        Model at the fitted hyperparameters.
    budget : int
        Memory budget in bytes.
    values : Tensor of shape (m, t)
        Posterior mean on the grid, without the trend.
    adjoint : Tensor of shape (m, t)
        ``W' K~^-1 (Y - mean)``.
    coefficients : Tensor of shape (p, t)
        Coefficients of the mean's basis.
    basis_values : Tensor of shape (m, p)
        The same as ``values``, with the mean's basis functions in place of the targets.
    coefficient_root : Tensor of shape (p, p)
        Root of the covariance of the coefficients.
    deviations : Tensor of shape (m, s)
        Posterior samples at fixed coefficients minus their mean, on the grid.
    method : str
        Method of the solve, in words.
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
        self._basis_values, self.coefficient_root = basis_values, coefficient_root
        self.deviations, self._method, self.final_solve = deviations, method, final_solve

    @classmethod
    def fit(cls, likelihood: GridLikelihood, model: Model, budget: int, generator: torch.Generator) -> GridPosterior:
        """Solve for the mean and the samples at a model."""
        settings = likelihood.settings
        system = likelihood.system(model, is_final=True)
        draws, cross = likelihood.noisy_prior(system, settings.n_samples, None)
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
        """Return the error for rows beyond the grid, which was chosen for the rows of the fit; None if all fit."""
        inside = self.grid.covers(X)
        if bool(inside.all()):
            return None
        return in_units(self.grid, scaling).refusal(_in_data_units(X, scaling), inside, names=names)

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> GridPosterior:
        """Return the posterior given the earlier rows and new ones, from the sum of their statistics."""
        return self.with_statistics(self.statistics.add_rows(X, Y, noise), self.model.appended(noise))

    def with_statistics(self, statistics: GridStatistics, model: Model | None = None) -> GridPosterior:
        """Return the posterior given other statistics on the same grid, with the same random numbers."""
        model = model or self.model
        likelihood = GridLikelihood(statistics, model.mean, self.settings, torch.Generator())
        likelihood.seeds = self.likelihood.seeds
        likelihood.resume(None, self.likelihood.torus_lengths)
        posterior = GridPosterior.fit(likelihood, model, self.budget, torch.Generator())
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
        without = (
            ", products with the rows' weights in place of W'W" if isinstance(self.statistics.gram, RowsGram) else ""
        )
        return f"grid of {shape_in_words(self.grid)} nodes ({self.grid.interpolation}), FFT{without}, cpu, float64"

    def notes(self) -> dict[str, str]:
        """Return what variances are made from, where they are not exact."""
        count = self.deviations.shape[1]
        words = f"from {count} posterior samples, standard error {math.sqrt(2 / count):.0%}"
        return {"variances": words} if self._own_method == "samples" else {}

    @cached_property
    def kernel(self) -> GridKernel | SumKernel:
        """Kernel between the nodes."""
        return self.likelihood.kernel_at(self.model)

    def _system(self) -> GridSystem:
        return self.likelihood.system(self.model, is_final=True)

    # Points beyond the grid -------------------------------------------------------------------------------------------

    def refusal(self, X: Tensor, scaling: Scaling, names: Sequence[str] | None) -> InvalidInputError | None:
        """Return the error for points beyond the grid, if ``Grid.outside`` is to refuse them."""
        inside = self.grid.covers(X.double())
        if self.settings.outside != "refuse" or bool(inside.all()):
            return None
        error = in_units(self.grid, scaling).refusal(_in_data_units(X, scaling), inside, names=names)
        return InvalidInputError(f"{error} {_OTHERWISE}")

    def _place(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return points moved into the grid by the policy `Grid.outside`, and a mask of those that were outside."""
        X = X.double()
        outside = ~self.grid.covers(X)
        if not bool(outside.any()):
            return X, outside
        if self.settings.outside == "refuse":
            msg = f"{self.grid.refusal(X, ~outside)} {_OTHERWISE}"
            raise InvalidInputError(msg)
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
        return self._interpolate(*self._place(X), self._basis_values)

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
        chosen = self._own_method if method == "auto" else method
        inside, outside = self._place(X)
        if chosen == "samples":
            variance = variance_from_samples(
                self._interpolate(inside, outside, self.deviations), self._prior_at(inside)
            )
        elif chosen == "low_rank":
            variance = self._low_rank_variance(inside)
        else:
            variance = self._solved_variance(inside)
        if self.settings.outside == "prior":
            variance[outside] = self._prior_beyond(X, outside)
        return self.mean(X), variance

    def check_variances(self, X: Tensor) -> None:
        """Warn if samples have more variance than the prior; see `Posterior.check_variances`."""
        self.mean_and_variance_given_trend(X[self.grid.covers(X.double())], "samples")

    @property
    def _own_method(self) -> str:
        """Method that ``"auto"`` stands for: on small grids and for few rows the root, which is exact there."""
        return "low_rank" if self.likelihood.is_exact or self._has_few_rows else self.settings.variance

    @property
    def _has_few_rows(self) -> bool:
        return has_few_rows(self.statistics, self.settings.exact_nodes, self.budget)

    def prior_variance(self, X: Tensor) -> Tensor:
        inside, outside = self._place(X)
        variance = self._prior_at(inside)
        if self.settings.outside == "prior":
            variance[outside] = self._prior_beyond(X, outside)
        return variance

    def _prior_at(self, X: Tensor) -> Tensor:
        """Return ``w'K_G w`` at points inside the grid, shape (n,): slightly below the kernel's variance."""
        return self.kernel.interpolated_variance(X)

    def _prior_beyond(self, X: Tensor, outside: Tensor) -> Tensor:
        return self.model.kernel.diagonal(X.double()[outside])

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
        """Return the low-rank variance split into the posterior variance (by solves) and what the rank leaves out.

        Raises
        ------
        InvalidInputError
            If the posterior does not use the low-rank variance.
        """
        if self._own_method != "low_rank":
            msg = 'return_parts of GPRegressor.predict needs Grid(variance="low_rank") with grid inference.'
            raise InvalidInputError(msg)
        inside, outside = self._place(X)
        whole, mathematical = self._low_rank_variance(inside), self._solved_variance(inside)
        if self.settings.outside == "prior":
            mathematical[outside] = whole[outside] = self._prior_beyond(X, outside)
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
        if self._own_method == "low_rank":
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
        tensors |= {
            "values": self.values,
            "adjoint": self.adjoint,
            "coefficients": self.coefficients,
            "basis_values": self._basis_values,
            "coefficient_root": self.coefficient_root,
            "deviations": self.deviations,
        }
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
            tensors["values"].cpu(),
            tensors["adjoint"].cpu(),
            tensors["coefficients"].cpu(),
            tensors["basis_values"].cpu(),
            tensors["coefficient_root"].cpu(),
            tensors["deviations"].cpu(),
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
