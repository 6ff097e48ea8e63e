"""SVGP: the distribution of the inducing values learned from minibatches (Hensman, Fusi and Lawrence 2013)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.sparse_variational.collapsed import CollapsedObjective, collapsed_part
from gigagp.inference.sparse_variational.objective import SparseObjective, SparseSettings
from gigagp.inference.sparse_variational.points import InducingPoints, PointsGradient
from gigagp.inference.sparse_variational.posterior import SparsePosterior, SparseTrend
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import cholesky, triangular_inverse
from gigagp.runtime.processes import sum_of_rows

MEAN, ROOT, COEFFICIENTS = "whitened_mean", "whitened_root", "coefficients"


class InducingDistribution(NamedTuple):
    """Distribution ``N(mean, root root')`` of whitened inducing values (root lower triangular), and coefficients."""

    mean: Tensor
    root: Tensor
    coefficients: Tensor


class StochasticObjective(SparseObjective):
    """Unbiased estimate of the bound on all rows from a minibatch, with its gradient.

    The free parameters are the mean and the root of the distribution of the whitened inducing values, and the
    coefficients of the mean function. They start at their optimum for the initial hyperparameters, which takes one pass
    over the rows. (Learning them in units of the spread at that optimum was tried: 1,000 steps of Adam ended 20 nats
    lower on 2,500 rows of kin40k and of pol, because the optimum moves far with the hyperparameters.)
    """

    def __init__(self, settings: SparseSettings, table: TrainingTable, generator: torch.Generator) -> None:
        super().__init__(settings, table, generator)
        self._batches = Batches(table.n_rows, self.batch_size, self.seed)
        self._last: tuple[Model, InducingPoints, InducingDistribution] | None = None

    @property
    def deterministic(self) -> bool:
        return self.batch_size == self.table.n_rows

    def start(self, model: Model) -> Model:
        """Return the model with inducing points and the distribution of their values, initially at its optimum."""
        if all(name in model.free for name in (MEAN, ROOT, COEFFICIENTS)):
            return model
        model = super().start(model)
        sums, space, _ = self.optimum(model, self.points(model))
        root = _inverse_root(sums.gram)
        place = {MEAN: space.weights.cpu(), ROOT: root.cpu(), COEFFICIENTS: space.trend.coefficients.cpu()}
        return replace(model, free={**model.free, **place})

    def distribution(self, model: Model) -> InducingDistribution:
        """Return the distribution of the model's free parameters."""
        mean, root, coefficients = (model.free[name].to(self._targets) for name in (MEAN, ROOT, COEFFICIENTS))
        return InducingDistribution(mean, root.tril(), coefficients)

    @torch.no_grad()
    def evaluate(self, model: Model) -> Evaluation:
        """Return the bound on the next minibatch, scaled to all rows, and its gradient."""
        points, place = self.points(model), self.distribution(model)
        self._last = model, points, place
        rows = self._batches.next().clone().to(self.table.X.device)  # without the order of all rows behind it
        return self.evaluate_rows(model, points, place, rows)

    def evaluate_rows(
        self, model: Model, points: InducingPoints, place: InducingDistribution, rows: Tensor
    ) -> Evaluation:
        """Return the scaled bound on given rows and its gradient."""
        t, m = self.table.n_targets, points.count
        gradient = PointsGradient(model, points, learn_points=self._fixed is None)

        def sums_of(within: slice) -> list[Tensor]:
            return self._sums(model, points, place, rows[within], self.table.n_rows / len(rows))

        square = torch.zeros_like(place.root)
        like = [square.new_zeros(()), square, square, place.mean, place.coefficients, *gradient.sums()]
        found = sum_of_rows(sums_of, like, len(rows), m, "minibatch of inducing points", place.mean)
        fit, by_products, by_root, by_whitened_mean, by_coefficients, *by_rows = found
        gradient.add_sums(by_rows)
        gradient.add_features(by_products)
        by_root -= t * place.root
        by_root.diagonal().add_(t / place.root.diagonal())
        free = {MEAN: by_whitened_mean - place.mean, ROOT: by_root.tril(), COEFFICIENTS: by_coefficients}
        value = float(fit) - self._divergence(place)
        return Evaluation(value, gradient.result() | {name: one.cpu() for name, one in free.items()})

    def _sums(
        self, model: Model, points: InducingPoints, place: InducingDistribution, rows: Tensor, scale: float
    ) -> list[Tensor]:
        """Return the sums over rows, times ``scale``, that the bound and its gradient are made of.

        These are the expected log-likelihood; for the features F with the bound's derivative G, ``G' F``, the part of
        the derivative by the root, and ``F' e`` for the derivative e by the means; the derivative by the coefficients;
        and those of `PointsGradient.sums`.
        """
        t = self.table.n_targets
        X, known, noise = self.table.X[rows].double(), self._known(rows), self._noise(model, rows)
        tiles = points.tiles(X)
        features = points.whiten(points.covariances(tiles))
        error, spread, squared = self._deviations(model, X, known, features, place)
        fit = -0.5 * scale * self._deviance(squared, noise)

        # Derivatives by the means, variances and noise of the rows, and then by the features that they depend on.
        by_mean = scale * error / noise[:, None]
        by_variance = -0.5 * scale * t / noise
        by_noise = 0.5 * scale * (squared / noise - t) / noise
        weighted = by_variance[:, None] * spread
        by_features = by_mean @ place.mean.T
        by_features.addmm_(weighted, place.root.T, alpha=2).sub_(by_variance[:, None] * features, alpha=2)
        by_products = by_features.T @ features
        gradient = PointsGradient(model, points, learn_points=self._fixed is None)
        by_covariances = torch.linalg.solve_triangular(points.factor, by_features, upper=False, left=False)
        gradient.add_covariances(tiles, by_covariances)
        gradient.add_diagonal(X, by_variance)
        gradient.add_noise(X, by_noise)
        of_root = 2 * features.T @ weighted
        return [fit, by_products, of_root, features.T @ by_mean, known[:, t:].T @ by_mean, *gradient.sums()]

    def _deviations(
        self, model: Model, X: Tensor, known: Tensor, features: Tensor, place: InducingDistribution
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the errors of the means (rows, t), ``F root``, and the expected squares of the errors (rows,)."""
        t, spread = self.table.n_targets, features @ place.root
        error = known[:, :t] - known[:, t:] @ place.coefficients - features @ place.mean
        latent = model.kernel.diagonal(X) - features.square().sum(1) + spread.square().sum(1)
        return error, spread, error.square().sum(1) + t * latent

    def _deviance(self, squared: Tensor, noise: Tensor) -> Tensor:
        """Return minus twice the expected log-likelihood."""
        return (self.table.n_targets * (noise.log() + math.log(2 * math.pi)) + squared / noise).sum()

    def _divergence(self, place: InducingDistribution) -> float:
        """Return the divergence of the inducing values from their prior, summed over targets."""
        t = self.table.n_targets
        determinant = 2 * place.root.diagonal().abs().log().sum()
        return 0.5 * float(place.mean.square().sum() + t * (place.root.square().sum() - len(place.root) - determinant))

    # Posteriors -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _bound(self, model: Model, points: InducingPoints, place: InducingDistribution) -> float:
        """Return the bound on all rows."""

        def sums_of(within: slice) -> list[Tensor]:
            total = self._targets.new_zeros(())
            for rows in self._blocks(within):
                X, known, noise = self.table.X[rows].double(), self._known(rows), self._noise(model, rows)
                _, _, squared = self._deviations(model, X, known, points.features(X), place)
                total -= 0.5 * self._deviance(squared, noise)
            return [total]

        like, n = [self._targets.new_zeros(())], self.table.n_rows
        (total,) = sum_of_rows(sums_of, like, n, points.count, "bound of inducing points", place.root)
        return float(total) - self._divergence(place)

    def current_posterior(self) -> SparsePosterior | None:
        """Return the posterior at the last evaluated model.

        The bound and the uncertainty of the trend are left out, because they need a pass over all rows.
        """
        if self._last is None:
            return None
        model, points, place = self._last
        trend = SparseTrend.known(place.coefficients, points.count)
        return self._posterior(model, points, place.mean, place.root, trend, float("nan"))

    def thin(self, rows: Tensor) -> CollapsedObjective:
        return collapsed_part(self, rows)

    def posterior(self, model: Model, generator: torch.Generator | None = None) -> SparsePosterior:
        """Return the posterior at a model, with the bound on all rows."""
        model = self.start(model)
        points, place = self.points(model), self.distribution(model)
        self._last = None
        # The uncertainty of the trend is that of the optimal distribution at this model.
        trend = SparseTrend.of(self.optimum(model, points)[1])._replace(coefficients=place.coefficients)
        value = self._bound(model, points, place)
        return self._posterior(model, points, place.mean, place.root, trend, value)

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"batches": self._batches.epoch_state}, {"position": self._batches.position}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        self._batches.restore(tensors["batches"], header["position"])


def _inverse_root(gram: Tensor) -> Tensor:
    """Return a lower triangular R with ``R R' = (I + gram)^-1``.

    This is a Cholesky factor with the order of rows and columns reversed: if ``M M'`` is the reversed ``I + gram``,
    then ``R`` is ``M^-T`` reversed back. No matrix is inverted before it is factorised.
    """
    reverse = gram.flip(0, 1)
    reverse.diagonal().add_(1)
    return triangular_inverse(cholesky(reverse)).T.flip(0, 1)


class Batches:
    """Endless minibatches: each epoch is a new random partition into batches whose sizes differ by at most one.

    Each batch is a uniformly random set of its size, so a sum over it times ``n_rows / size`` is unbiased.
    """

    def __init__(self, n_rows: int, batch_size: int, seed: int) -> None:
        self.n_rows, self.count = n_rows, -(-n_rows // batch_size)
        self._generator = torch.Generator().manual_seed(seed)
        #: state of the generator at the start of the epoch, and number of batches taken since
        self.epoch_state, self.position = self._generator.get_state(), 0
        self._batches: tuple[Tensor, ...] = ()

    def _shuffle(self) -> None:
        self.epoch_state = self._generator.get_state()
        self._batches = torch.randperm(self.n_rows, generator=self._generator).tensor_split(self.count)

    def next(self) -> Tensor:
        """Return the rows of the next batch."""
        if not self._batches or self.position == self.count:
            self._shuffle()
            self.position = 0
        self.position += 1
        return self._batches[self.position - 1]

    def restore(self, epoch_state: Tensor, position: int) -> None:
        """Continue after ``position`` batches of the epoch that began with this state of the generator."""
        self._generator.set_state(epoch_state)
        self._shuffle()
        self.position = position
