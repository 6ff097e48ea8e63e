"""The posterior of Vecchia inference with groups: points from their neighbours, with the effects of their levels."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.batches import one_by_one
from gigagp.inference.contract.left_out import LeftOut, without_trend
from gigagp.inference.contract.posterior import GroupEffect, GrowingPosterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.vecchia.effects import Effects, EffectSystem, combined
from gigagp.inference.vecchia.grouped import FINAL, Regressed, Without, rest_graph
from gigagp.inference.vecchia.posterior import amplified_model
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.predictor import LocalPredictor, LocalWeights, within_reach
from gigagp.operators import KernelMatrix
from gigagp.runtime.memory import require
from gigagp.settings.indexed_random import IndexedDraws, random_bits
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, check_tensors, number, record, whole

#: Draws of the effects from which variances are computed where their precision is no dense matrix.
_DRAWS = 128
_SEED = 11


class GroupedPosterior(RowsPosterior, GrowingPosterior):
    """Predictions ``w_x' (y_N - Z u) + z_x' u`` from the rows nearest to each point and the effects u of all levels.

    The effects are those of all rows together. Where there are more than 6,000, the variance that they add is computed
    from 128 draws, with a relative standard error of an eighth; with ``variance="solve"`` it is exact. A level without
    rows adds its prior variance.
    """

    kind = "vecchia with groups"
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        n_neighbours: int,
        point_neighbours: int,
        trend: Trend,
        effects: Tensor,
        likelihood: Estimate,
        without: Without | None = None,
        graph: NeighbourGraph | None = None,
    ) -> None:
        self.model, self.table, self.budget = model, table, table.budget
        self._asked, self._likelihood = (n_neighbours, point_neighbours), likelihood
        self._trend, self._solutions, self._squares = trend, effects, math.nan
        self.coefficients, self.coefficient_root = trend.coefficients.to(table.Y), trend.root.to(table.Y)
        self._graph = rest_graph(model, table, n_neighbours) if without is None else graph
        if without is not None:
            self.__dict__["_without"] = without

    @classmethod
    def fitted(
        cls,
        model: Model,
        table: TrainingTable,
        n_neighbours: int,
        point_neighbours: int,
        effects: Effects | None = None,
    ) -> GroupedPosterior:
        """Return the posterior at a model; ``effects`` are those of its groups, where they are known."""
        graph = rest_graph(model, table, n_neighbours)
        without = Without.of(model, table, graph)
        effects = Effects(without.parts.groups, table.X) if effects is None else effects
        system = EffectSystem(effects, without.factor, effects.roots(without.parts.groups))
        found = Regressed.of(table, system, FINAL)
        likelihood = found.value(table.n_rows, without.factor, system.log_determinant())
        made = cls(model, table, n_neighbours, point_neighbours, found.trend, found.effects, likelihood, without, graph)
        made.__dict__["_system"] = system
        made._squares = found.squares
        return made

    def amplified(self) -> GroupedPosterior:
        """Return the posterior with all covariances multiplied by their most likely factor, if all of them may follow.

        A posterior that was read from a file stays as it is.
        """
        observations = self.n_rows * self.n_targets
        factor = self._squares / observations
        model = amplified_model(self.model, factor)
        if model is None:
            return self
        without = self._without.amplified(model, factor)
        gain = 0.5 * (self._squares - observations - observations * math.log(factor))
        made = GroupedPosterior(
            model,
            self.table,
            *self._asked,
            self._trend._replace(root=math.sqrt(factor) * self._trend.root),
            self._solutions / math.sqrt(factor),
            Estimate(self._likelihood.value + gain, self._likelihood.standard_error),
            without,
            None if self._graph is None else self._graph.with_amplitude_of(without.pool.kernel),
        )
        roots = self._system.effects.roots(without.parts.groups)
        made.__dict__["_system"] = self._system.amplified(without.factor, roots)
        return made

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> GroupedPosterior:
        """Return the posterior given additional rows: that of all rows, which is computed anew."""
        return self.fitted(self.model.appended(noise), self.table.appended(X, Y), *self._asked)

    # What predictions are made from -----------------------------------------------------------------------------------

    @cached_property
    def _without(self) -> Without:
        return Without.of(self.model, self.table, self._graph)

    @cached_property
    def _system(self) -> EffectSystem:
        effects = Effects(self._without.parts.groups, self.table.X)
        return EffectSystem(effects, self._without.factor, effects.roots(self._without.parts.groups))

    @cached_property
    def _draws(self) -> Tensor:
        """Draws of the effects given the rows, over the root of their number, shape (count, 128)."""
        return self._system.draws(_DRAWS, torch.Generator().manual_seed(_SEED), FINAL**0.5) / _DRAWS**0.5

    @cached_property
    def _predictor(self) -> LocalPredictor | None:
        rest = self._without.parts.rest
        if self._graph is None or rest is None:
            return None
        noise = self._without.pool.noise
        return LocalPredictor(rest, self.table.X, noise, self._graph, self._asked[1], self.budget)

    @cached_property
    def _values(self) -> Tensor:
        """Targets minus mean and effects, then the basis minus its effects, at the rows, shape (n, t + p)."""
        basis = self.table.basis.double()
        residuals = self.table.Y.double() - basis @ self._trend.coefficients
        return torch.cat([residuals, basis], 1) - self._system.times(self._solutions)

    def solver_name(self) -> str:
        neighbours = "no neighbours" if self._graph is None else f"{self._graph.width} neighbours of each row"
        how = "a dense factor" if self._system.is_dense else "conjugate gradients"
        return f"{neighbours}, {self._system.n:,} effects by {how}"

    def notes(self) -> dict[str, str]:
        counts = zip(self._without.parts.groups, self._system.effects.levels, strict=True)
        return {"groups": ", ".join(f"{group.label}: {len(levels):,} levels" for group, levels in counts)}

    # Predictions ----------------------------------------------------------------------------------------------------

    def _at(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for points the places of their effects and the scaled lines, (m, r), and what new levels add, (m,)."""
        places, lines = self._system.effects.of(X)
        roots = [group.value("variance").double().sqrt() for group in self._without.parts.groups]
        lines = lines * torch.cat(roots).to(lines)
        return places, lines, torch.where(places < 0, lines.square(), 0.0).sum(1)

    def _local(self, X: Tensor) -> LocalWeights | None:
        return None if self._predictor is None else self._predictor.weights(X)

    def _directions(self, X: Tensor, local: LocalWeights | None, of: Tensor) -> Tensor:
        """Return ``(z_x - V^1/2 Z' w_x)' of`` for vectors of effects (count, k), shape (m, k)."""
        places, lines, _ = self._at(X)
        found = combined(places, lines, of)
        return found if local is None else found - local.combine(self._system.times(of))

    def mean(self, X: Tensor) -> Tensor:
        return self._means(X)[0]

    def explained_basis(self, X: Tensor) -> Tensor:
        return self._means(X)[1]

    def _means(self, X: Tensor) -> tuple[Tensor, Tensor]:
        t = self.n_targets
        found = X.new_zeros(0, self._values.shape[1], dtype=torch.float64)
        for block in self._blocks(X):
            local = self._local(block)
            places, lines, _ = self._at(block)
            one = combined(places, lines, self._solutions)
            found = torch.cat([found, one if local is None else one + local.combine(self._values)])
        return self.trend(X) + found[:, :t].to(X), found[:, t:].to(X)

    def _blocks(self, X: Tensor) -> tuple[Tensor, ...]:
        columns = self._values.shape[1] + (self._system.n if self._system.is_dense else _DRAWS)
        return X.split(1024) if self._predictor is None else self._predictor.blocks(X, columns)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance at given coefficients; ``method`` matters beyond 6,000 effects."""
        variances = [X.new_zeros(0, dtype=torch.float64)]
        for block in self._blocks(X):
            local, (_, _, new) = self._local(block), self._at(block)
            own = new if local is None else new + local.variance
            variances.append(own + self._of_effects(block, local, method))
        return self.mean(X), torch.cat(variances).to(X)

    def _of_effects(self, X: Tensor, local: LocalWeights | None, method: VarianceMethod) -> Tensor:
        """Return the variance that the effects of known levels add at given neighbours, shape (m,)."""
        if self._system.is_dense or method == "solve":
            across = self._across(X, local)
            return (across * self._system.solve(across, FINAL)).sum(0)
        return self._directions(X, local, self._draws).square().sum(1)

    def _across(self, X: Tensor, local: LocalWeights | None) -> Tensor:
        """Return ``z_x - V^1/2 Z' w_x``, shape (count, m)."""
        m, count = len(X), self._system.n
        require(24 * m * count, self.budget, f"The effects of {count:,} levels at {m:,} points", "Take fewer points.")
        places, lines, _ = self._at(X)
        found = lines.new_zeros(m, count).scatter_add_(1, places.clamp_min(0), torch.where(places < 0, 0.0, lines))
        if local is not None:
            effects, rows = self._system.effects, local.rows[local.places]
            near = (effects.lines * self._system.roots[effects.places])[rows] * local.weights[:, :, None]
            found.scatter_add_(1, effects.places[rows].flatten(1), -near.flatten(1))
        return found.T.contiguous()

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        if X.ndim == 3:
            return one_by_one(self.covariance_given_trend, X)
        local = self._local(X)
        across = self._across(X, local)
        found = across.T @ self._system.solve(across, FINAL) + self._of_new_levels(X)
        if local is not None:
            found = found + self._rest_errors(X, local)
        return (0.5 * (found + found.T)).to(X)

    def _rest_errors(self, X: Tensor, local: LocalWeights) -> Tensor:
        """Return the covariance of the errors of the predictors at given effects, ``K** - W'K_X* - K_*X W + W'HW``."""
        rest, noise = self._without.parts.rest, self._without.pool.noise
        assert rest is not None
        rows, wide = self.table.X[local.rows].double(), within_reach(X)
        require(24 * len(X) * (len(X) + len(rows)), self.budget, f"The covariance of {len(X):,} points", "")
        weights = wide.new_zeros(len(X), len(rows)).scatter_add(1, local.places, local.weights)
        matrix = KernelMatrix(rest, rows, noise[local.rows] - rest.white(rows), memory_budget=self.budget)
        cross = weights @ rest.block(rows, wide)
        return rest.block(wide, wide) - cross - cross.T + weights @ (matrix @ weights.T.contiguous())

    def _of_new_levels(self, X: Tensor) -> Tensor:
        """Return the prior covariance of points whose levels have no rows, (m, m)."""
        places, found, start = self._at(X)[0], X.new_zeros(len(X), len(X), dtype=torch.float64), 0
        for group in self._without.parts.groups:
            new = places[:, start] < 0
            start += 1 + len(group.slope_columns)
            rows = new.nonzero()[:, 0]
            if len(rows):
                found[rows[:, None], rows] += group.block(X[rows].double(), X[rows].double())
        return found

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples as functions: prior functions and effects, corrected by what the rows tell of both."""
        t, system, rest = self.n_targets, self._system, self._without.parts.rest
        s, noise = n_samples * t, self._without.pool.noise
        at_rows = noise.sqrt()[:, None] * standard_normal(self.n_rows, s, generator=generator).to(noise)
        prior = None
        if self._predictor is not None and rest is not None:
            prior = PriorSamples.for_sample_functions(rest, self.n_inputs, s, generator)
            at_rows = at_rows + prior.evaluate(rest, self.X.double(), self.budget)
        drawn = standard_normal(system.n, s, generator=generator).to(noise)
        seed = int(torch.randint(2**62, (), generator=generator))
        basis = self.table.basis.double()
        residuals = (self.table.Y.double() - basis @ self._trend.coefficients).repeat_interleave(n_samples, 1)
        residuals = residuals - at_rows - system.times(drawn)
        moved = system.solve(system.transposed(system.factor.apply(residuals)), FINAL)
        corrections = residuals - system.times(moved)

        def evaluate(X: Tensor) -> Tensor:
            values = [X.new_zeros(0, t, n_samples)]
            for block in self._blocks(X):
                places, lines, _ = self._at(block)
                flat = combined(places, lines, drawn + moved) + self._new_effects(block, places, lines, seed, s)
                local = self._local(block)
                if local is not None and prior is not None and rest is not None:
                    flat = flat + prior.evaluate(rest, block.double(), self.budget) + local.combine(corrections)
                values.append(self.trend(block)[:, :, None] + flat.to(block).reshape(len(block), t, n_samples))
            return torch.cat(values)

        return evaluate

    def _new_effects(self, X: Tensor, places: Tensor, lines: Tensor, seed: int, s: int) -> Tensor:
        """Return prior effects of levels without rows, the same for each level wherever it is asked for, (m, s)."""
        found, start = lines.new_zeros(len(X), s), 0
        for number_, group in enumerate(self._without.parts.groups):
            hashed = torch.zeros_like(places[:, 0])
            for place, one in enumerate(group.levels(X).T):
                hashed = random_bits(place, hashed ^ one)
            for line in range(1 + len(group.slope_columns)):
                new = places[:, start] < 0
                draws = IndexedDraws(seed, (number_, line), hashed).normal(s)
                found = found + torch.where(new, lines[:, start], 0.0)[:, None] * draws
                start += 1
        return found

    def left_out(self) -> LeftOut | None:
        """Return the distribution of each row given all others in the approximation; None beyond 6,000 effects.

        The diagonal of its precision ``P - P Z V^1/2 M^-1 V^1/2 Z'P`` is exact.
        """
        system, t = self._system, self.n_targets
        if not system.is_dense:
            return None
        factor, count = system.factor, system.n
        require(24 * self.n_rows * count, self.budget, f"Rows left out with {count:,} effects", "")
        solved = factor.apply(self._values)
        precision = 1 / factor.variance
        own = factor.weights.square() / factor.variance[:, None]
        precision = precision.index_add(0, factor.neighbours.clamp_min(0).long().flatten(), own.flatten())
        across = factor.apply(system.times(torch.eye(count).to(system.root)))
        told = torch.linalg.solve_triangular(system.root, across.T, upper=False)
        precision = without_trend(precision - told.square().sum(0), solved[:, t:], self._trend.root)
        return LeftOut.of(self.table.Y, solved[:, :t], precision)

    def group_effects(self) -> list[GroupEffect]:
        """Return each group with its levels (q, columns), and means (q, 1 + slopes, t) and deviations of effects."""
        system = self._system
        if system.is_dense:
            half = torch.linalg.solve_triangular(system.root, torch.eye(system.n).to(system.root), upper=False)
            variance = half.square().sum(0)
        else:
            variance = self._draws.square().sum(1)
        # what the uncertain coefficients of the mean add
        t = self.n_targets
        variance = variance + (self._solutions[:, t:] @ self._trend.root).square().sum(1)
        found = []
        pairs = zip(self._without.parts.groups, system.effects.levels, system.effects.spans(), strict=True)
        for group, levels, spans in pairs:
            means = [system.roots[span, None] * self._solutions[span, :t] for span in spans]
            stds = [system.roots[span] * variance[span].sqrt() for span in spans]
            found.append((group, levels, torch.stack(means, 1), torch.stack(stds, 1)))
        return found

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the approximation; beyond 6,000 effects their determinant is estimated, with a standard error."""
        return self._likelihood

    # Files ----------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            "X": self.table.X,
            "Y": self.table.Y,
            "coefficients": self._trend.coefficients,
            "coefficient_root": self._trend.root.contiguous(),
            "effects": self._solutions.contiguous(),
        }
        row, point = self._asked
        return tensors, {
            "row_neighbours": row,
            "point_neighbours": point,
            "likelihood": self._likelihood.value,
            "standard_error": self._likelihood.standard_error,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> GroupedPosterior:
        check = {"row_neighbours": whole(1), "point_neighbours": whole(1), "likelihood": number()}
        record(check | {"standard_error": number()})(header, "posterior")
        shapes = {"coefficients": "p t", "coefficient_root": "p p", "effects": "q s"}
        check_tensors(tensors, ROWS | {name: Field(shape, "float64") for name, shape in shapes.items()}, saved.sizes)
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        trend = Trend(tensors["coefficients"], tensors["coefficient_root"])
        likelihood = Estimate(header["likelihood"], header["standard_error"])
        asked = header["row_neighbours"], header["point_neighbours"]
        return cls(saved.model, table, *asked, trend, tensors["effects"], likelihood)
