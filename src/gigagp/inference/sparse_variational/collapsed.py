"""SGPR: the collapsed bound, with the optimal distribution of the inducing values in closed form (Titsias 2009)."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.inference.contract.weight_space import RowSums, WeightSpace
from gigagp.inference.sparse_variational.objective import SparseObjective
from gigagp.inference.sparse_variational.points import InducingPoints, PointsGradient
from gigagp.inference.sparse_variational.posterior import SparsePosterior, SparseSums, SparseTrend
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import triangular_inverse
from gigagp.runtime import interruption
from gigagp.runtime.machine import MULTIPLICATION, entries_seconds, slowness
from gigagp.runtime.processes import sum_of_rows

#: Products of an n x m matrix with an m x m one that a pass over the rows costs, and passes that an evaluation with its
#: gradient and the posterior cost together.
_PASS, _ENDING = 2.8, 4


class CollapsedObjective(SparseObjective):
    """The collapsed bound and its gradient, in two passes over the rows; no array has n rows and m columns."""

    deterministic = True  # every step uses all rows
    _last: tuple[Model, InducingPoints, WeightSpace, float, SparseSums] | None = None

    def ending_seconds(self) -> float:
        return self.least_seconds()

    def least_seconds(self) -> float:
        n, m = self.n_rows, self.count
        return slowness() * (_PASS * MULTIPLICATION * n * m**2 + entries_seconds(n * m, self.table.n_inputs))

    def _fit(self, model: Model) -> tuple[InducingPoints, RowSums, WeightSpace, float]:
        self._last = None
        points = self.points(model)
        sums, space, value = self.optimum(model, points)
        kept = SparseSums(sums.products, sums.log_noise, self._trend, self._unexplained)
        self._last = model, points, space, value, kept
        return points, sums, space, value

    def evaluate(self, model: Model) -> Evaluation:
        """Return the bound and its gradient, unless the fit has a deadline and no time for them and the posterior."""
        interruption.reserve(_ENDING * self.least_seconds(), at_least=True)
        interruption.check()
        points, sums, space, value = self._fit(model)
        return Evaluation(value, self._gradient(model, points, sums, space))

    @torch.no_grad()
    def _gradient(self, model: Model, points: InducingPoints, sums: RowSums, space: WeightSpace) -> dict[str, Tensor]:
        """Return the gradient; the mean's coefficients maximize the bound, so no derivative passes through them.

        The bound is linearised in the sums over rows, with slopes G, C, S and l. A row with features f, covariances
        ``c = L f`` with the inducing points, targets and basis b, and noise N then adds
        ``[f' (G + t I / 2) f + f' C b + b' S b - t k / 2] / N + l log N``.
        """
        t = self.table.n_targets
        slope = space.slope()
        inner = 2 * slope.gram
        inner.diagonal().add_(t)
        by_products = inner @ sums.gram
        by_products.addmm_(slope.cross, sums.cross.T)
        outer = points.unwhiten(points.unwhiten(inner).T)  # L^-T inner L^-1, symmetric
        crossing = points.unwhiten(slope.cross).T
        gradient = PointsGradient(model, points, learn_points=self._fixed is None)

        def sums_of(within: slice) -> list[Tensor]:
            found = PointsGradient(model, points, learn_points=self._fixed is None)
            for rows in self._blocks(within):
                X, known, noise = self.table.X[rows].double(), self._known(rows), self._noise(model, rows)
                tiles = points.tiles(X)
                covariances = points.covariances(tiles)
                image = covariances @ outer
                crossed = known @ crossing
                quadratic = ((0.5 * image + crossed) * covariances).sum(1) + ((known @ slope.products) * known).sum(1)
                quadratic.sub_(model.kernel.diagonal(X).detach(), alpha=0.5 * t)
                found.add_covariances(tiles, image.add_(crossed).div_(noise[:, None]))
                found.add_diagonal(X, -0.5 * t / noise)
                found.add_noise(X, (slope.log_noise - quadratic / noise) / noise)
            return found.sums()

        n, what = self.table.n_rows, "gradient of inducing points"
        gradient.add_sums(sum_of_rows(sums_of, gradient.sums(), n, points.count, what, outer))
        gradient.add_features(by_products)
        return gradient.result()

    def current_posterior(self) -> SparsePosterior | None:
        if self._last is None:
            return None
        model, points, space, value, sums = self._last
        # The covariance of the whitened inducing values is A^-1 = (L_A^-T) (L_A^-T)' (Titsias 2009, eq. 10).
        root = triangular_inverse(space.factor).T
        return self._posterior(model, points, space.weights, root, SparseTrend.of(space), value, sums)

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> SparsePosterior:
        self._fit(self.start(model))
        posterior = self.current_posterior()
        assert posterior is not None
        self._last = None
        return posterior

    def thin(self, rows: Tensor) -> CollapsedObjective:
        return collapsed_part(self, rows)


def collapsed_part(objective: SparseObjective, rows: Tensor) -> CollapsedObjective:
    """Return the collapsed bound on some rows of an objective's table."""
    generator = torch.Generator().manual_seed(objective.seed)
    return CollapsedObjective(objective.settings, objective.table.take_rows(rows), generator)
