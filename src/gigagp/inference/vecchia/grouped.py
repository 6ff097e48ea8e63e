"""Vecchia inference of kernels with groups: neighbours for the rest of the kernel, and exact effects beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.vecchia.effects import Effects, EffectSystem, Parts
from gigagp.kernels import White
from gigagp.model.estimate import Estimate
from gigagp.model.model import NOISE, Model
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.factor import Factor
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators.indexing import as_noise
from gigagp.optimization.objective import Evaluation
from gigagp.runtime import interruption

#: Effects up to which their posterior covariance is taken in full for gradients.
_FEW_EFFECTS = 256
#: Numbers of effects in all draws for a gradient, and the fewest and the most draws.
_DRAWN, _FEWEST_DRAWS, _MOST_DRAWS = 200_000, 2, 16
#: Relative errors of solves in learning and in the end.
_LEARNING, FINAL = 1e-4, 1e-7
#: Rows whose densities stand for those of all in a gradient.
_LEARNING_ROWS = 100_000
#: Gain in nats for each level of the group with the fewest of them that is worth a step, and the least. The logarithm
#: of a variance of L levels has a standard error of ``sqrt(2 / L)``, and is off by ``sqrt(4 g)`` for g nats a level.
_GAIN_OF_LEVEL, _LEAST_GAIN = 2e-4, 0.1


class Without(NamedTuple):
    """A Vecchia approximation of the rows without the effects of groups."""

    parts: Parts
    pool: Pool
    neighbours: Tensor
    factor: Factor

    @classmethod
    def of(cls, model: Model, table: TrainingTable, graph: NeighbourGraph | None) -> Without:
        """Return the approximation at a model; ``graph`` is that of the rest of its kernel, if there is one."""
        parts, X = Parts.of(model.kernel), table.X
        noise = as_noise(model.noise_variance, X[:, 0].double(), "noise_variance")
        every = torch.arange(len(X), device=X.device)
        if parts.rest is None or graph is None:  # a kernel that is zero between rows
            neighbours = torch.full((len(X), 1), -1, dtype=torch.int32, device=X.device)
            pool = Pool(White(1.0, fixed=True).bind(X.shape[1]), X, noise, budget=table.budget // 4)
            return cls(parts, pool, neighbours, Factor.of(pool, neighbours, every))
        pool = Pool(parts.rest, X, noise + parts.rest.white(X).double(), budget=table.budget // 4)
        return cls(parts, pool, graph.neighbours, Factor.of(pool, graph.neighbours, graph.order))

    def amplified(self, model: Model, factor: float) -> Without:
        """Return the approximation at a model whose covariances are all those of this one times a factor."""
        parts, pool, old = Parts.of(model.kernel), self.pool, self.factor
        kernel = pool.kernel if parts.rest is None else parts.rest
        found = Factor(old.neighbours, old.weights, factor * old.variance, old.order)
        return Without(parts, replace(pool, kernel=kernel, noise=factor * pool.noise), self.neighbours, found)


def rest_graph(model: Model, table: TrainingTable, n_neighbours: int) -> NeighbourGraph | None:
    """Return the neighbours of rows for the rest of a kernel; None where it has no term that correlates rows."""
    rest = Parts.of(model.kernel).rest
    return None if rest is None or not rest.correlated_terms() else NeighbourGraph(rest, table.X, n_neighbours)


class Regressed(NamedTuple):
    """Coefficients of the mean and the effects at a model.

    ``effects``, shape (count, t + p), are those of the targets minus the mean, and of the basis functions, over their
    standard deviations; ``solved``, shape (n, t + p), are the solutions with the covariance of the rows for both.
    """

    trend: Trend
    effects: Tensor
    solved: Tensor
    squares: float

    @classmethod
    def of(cls, table: TrainingTable, system: EffectSystem, tolerance: float) -> Regressed:
        """Return them by generalised least squares."""
        Y, basis = table.Y.double(), table.basis.double()
        t = Y.shape[1]
        both = torch.cat([Y, basis], 1)
        whole = system.factor.apply(both)
        effects = system.solve(system.transposed(whole), tolerance)
        solved = whole - system.factor.apply(system.times(effects))
        trend = Trend.from_products(basis.T @ solved[:, t:], solved[:, t:].T @ Y)
        effects = torch.cat([effects[:, :t] - effects[:, t:] @ trend.coefficients, effects[:, t:]], 1)
        solved = torch.cat([solved[:, :t] - solved[:, t:] @ trend.coefficients, solved[:, t:]], 1)
        squares = float(((Y - basis @ trend.coefficients) * solved[:, :t]).sum())
        return cls(trend, effects, solved, squares)

    def value(self, n_rows: int, factor: Factor, determinant: Estimate) -> Estimate:
        """Return the log marginal likelihood."""
        t = self.trend.coefficients.shape[1]
        log_variance = factor.log_determinant() + determinant.value
        found = -0.5 * (self.squares + t * (log_variance + n_rows * math.log(2 * math.pi)))
        return Estimate(found, 0.5 * t * determinant.standard_error)


class GroupedObjective(TableObjective):
    """The Vecchia likelihood of the rest of the kernel with the effects of groups integrated out exactly.

    Neighbours cannot stand for crossed groups: rows of the same shop are blurred by effects of their items, which only
    other rows of these items tell. So effects are variables beside the rows (`gigagp.inference.vecchia.effects`). The
    gradient is that of the density of rows given their effects, averaged over the posterior of these (Fisher's
    identity). Up to 256 effects it is exact and there is a value. Beyond, the average is over draws, fixed by a seed,
    and learning works from gradients alone.
    """

    deterministic = True  # draws have a fixed seed

    def __init__(self, table: TrainingTable, n_neighbours: int, prediction_neighbours: int) -> None:
        super().__init__(table)
        self.n_neighbours, self.prediction_neighbours = n_neighbours, prediction_neighbours
        self._graph: NeighbourGraph | None = None
        self._effects: Effects | None = None

    def draw_rows(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the sorted numbers of rows of random levels of the finest group: single rows would tell no effect."""
        if self._effects is None or count >= self.n_rows:
            return super().draw_rows(count, generator)
        finest = max(range(len(self._effects.levels)), key=lambda g: len(self._effects.levels[g]))  # type: ignore[union-attr]
        first = self._effects.spans()[finest][0].start
        column = sum(1 + len(group.slope_columns) for group in self._effects.groups[:finest])
        index = self._effects.places[:, column] - first
        order = torch.randperm(len(self._effects.levels[finest]), generator=generator).to(index.device)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        return rank[index].argsort(stable=True)[:count].sort().values

    def effects(self, model: Model) -> Effects:
        """Return the effects of the rows, which do not depend on hyperparameters."""
        if self._effects is None:
            self._effects = Effects(Parts.of(model.kernel).groups, self.table.X)
        return self._effects

    def start(self, model: Model) -> Model:
        """Find the effects; return the model as it is."""
        self.effects(model)
        return model

    def thin(self, rows: Tensor) -> GroupedObjective:
        return GroupedObjective(self.table.take_rows(rows), self.n_neighbours, self.prediction_neighbours)

    def graph(self, model: Model) -> NeighbourGraph | None:
        """Return neighbours that serve a model."""
        rest = Parts.of(model.kernel).rest
        old = self._graph
        if rest is None or old is None or not old.serves(rest, self.table.X, self.n_neighbours):
            self._graph = rest_graph(model, self.table, self.n_neighbours)
        return self._graph

    @property
    def least_gain(self) -> float:
        """Gain in nats that moves the variance of the group with the fewest levels by less than its standard error."""
        levels = [] if self._effects is None else [len(own) for own in self._effects.levels]
        return max(_LEAST_GAIN, _GAIN_OF_LEVEL * min(levels)) if levels else super().least_gain

    def known_information(self, model: Model) -> dict[str, Tensor]:
        """Return the information of the variances of groups and of the noise, as if levels were told one by one.

        The effects of a level over their standard deviations then have the posterior precision ``M = I + R G R``, for
        the products G of their factors over the noise of the rows, and the standard deviations R. With the share
        ``K = I - M^-1`` that rows tell, the logarithm of a variance has the information ``sum K_ii^2 / 2`` over levels,
        and that of the noise half of the rows that effects leave over.
        """
        effects, parts = self.effects(model), Parts.of(model.kernel)
        noise = as_noise(model.noise_variance, self.table.X[:, 0].double(), "noise_variance")
        t, found, left, column = self.table.n_targets, {}, float(self.n_rows), 0
        for name, group, spans in zip(parts.group_names, parts.groups, effects.spans(), strict=True):
            r, count = len(spans), spans[0].stop - spans[0].start
            own, level = effects.lines[:, column : column + r], effects.places[:, column] - spans[0].start
            products = (own[:, :, None] * own[:, None, :]) / noise[:, None, None]
            gram = products.new_zeros(count, r, r).index_add_(0, level, products)
            root, eye = group.value("variance").double().sqrt().to(gram), torch.eye(r).to(gram)
            told = (eye - torch.linalg.inv(eye + root[:, None] * gram * root)).diagonal(dim1=1, dim2=2)
            found[name] = 0.5 * t * told.square().sum(0)
            left, column = left - float(told.sum()), column + r
        if not model.noise_is_known:
            found[NOISE] = torch.tensor(0.5 * t * max(left, 1.0), dtype=torch.float64)
        return found

    def evaluate(self, model: Model) -> Evaluation:
        interruption.check()
        table, effects = self.table, self.effects(model)
        without = Without.of(model, table, self.graph(model))
        parts, factor = without.parts, without.factor
        few = effects.count <= _FEW_EFFECTS
        system = EffectSystem(effects, factor, effects.roots(parts.groups), dense=None if few else False)
        found = Regressed.of(table, system, _LEARNING)
        n, t = table.Y.shape
        if few:  # every column of a root of the covariance
            draws = torch.linalg.solve_triangular(system.root.T, torch.eye(effects.count).to(system.root), upper=True)
        else:
            s = max(_FEWEST_DRAWS, min(_MOST_DRAWS, _DRAWN // effects.count))
            draws = system.draws(s, torch.Generator().manual_seed(8), _LEARNING) / s**0.5
        values = torch.cat(
            [
                table.Y.double() - table.basis.double() @ found.trend.coefficients - system.times(found.effects[:, :t]),
                t**0.5 * system.times(draws),
            ],
            1,
        )
        gradient = self._of_rows(without, values, t)
        gradient = parts.named(gradient)
        variances = found.effects[:, :t].square().sum(1) + t * (draws.square().sum(1) - 1)
        for name, group, spans in zip(parts.group_names, parts.groups, effects.spans(), strict=True):
            by_effect = torch.stack([variances[span].sum() for span in spans])
            gradient[name] = 0.5 * by_effect.cpu() / group.value("variance")
        if model.noise_is_known:
            del gradient[NOISE]
        value = found.value(n, factor, system.log_determinant()).value if few else None
        return Evaluation(value, gradient)

    def _of_rows(self, without: Without, values: Tensor, n_targets: int) -> dict[str, Tensor]:
        """Return the gradient of the densities of rows given their effects, by the rest of the kernel and the noise.

        The columns of ``values`` are residuals of targets and draws of the effects at the rows, of which each target
        has one determinant alone.
        """
        n, s = values.shape
        rows, share = torch.arange(n, device=values.device), 1.0
        if n > _LEARNING_ROWS:
            rows = torch.randperm(n, generator=torch.Generator().manual_seed(9))[:_LEARNING_ROWS].sort().values
            share = n / len(rows)
        if without.parts.rest is None:
            noise = without.factor.variance
            of_noise = 0.5 * (values.square().sum(1) / noise.square() - n_targets / noise).sum()
            return {NOISE: of_noise.cpu()}
        neighbours = without.neighbours[rows]
        found = without.pool.derivatives(rows, neighbours, values).gradient
        none = without.pool.derivatives(rows, neighbours, values.new_zeros(n, 1)).gradient
        return {name: share * (value - (s - n_targets) * none[name]) for name, value in found.items()}

    def current_posterior(self) -> None:
        return None

    def posterior(self, model: Model, generator: torch.Generator) -> Any:
        from gigagp.inference.vecchia.grouped_posterior import GroupedPosterior

        return GroupedPosterior.fitted(model, self.table, self.n_neighbours, self.prediction_neighbours)
