"""The posterior of a Gaussian process with finitely many features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.contract.batches import by_batches, within_batches
from gigagp.inference.contract.posterior import GrowingPosterior, SampleFunctions, VarianceMethod
from gigagp.inference.contract.rows_posterior import ROWS, RowsPosterior
from gigagp.inference.contract.saved import DRAW, Saved, check_columns, draw_fields
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.contract.weight_space import RowSums, WeightSpace
from gigagp.inference.random_features.sums import row_blocks, sum_rows, sums_of_known
from gigagp.kernels.draws import FeatureDraw
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, check_tensors, factor, number, part, record


class FeaturePosterior(RowsPosterior, GrowingPosterior):
    """The posterior of the feature weights, which predicts at a cost that does not depend on the number of rows.

    The variance is too small where there are not many more features than the data could resolve: rows then determine a
    share of all features, and so of the function everywhere, between the rows and far from them. A fit warns where it
    is far too small (`gigagp.estimators.fit_checks.small_variances`).
    """

    kind = "random features"
    replaces_kernel = True

    def __init__(self, model: Model, table: TrainingTable, draw: FeatureDraw, space: WeightSpace) -> None:
        self.model, self.table, self.budget = model, table, table.budget
        # row-major, as a model file restores it, so that solves round to the same bits
        self.draw, self.space = draw, replace(space, factor=space.factor.contiguous())
        self.coefficients, self.coefficient_root = space.trend.coefficients.to(table.X), space.trend.root

    def with_rows(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> FeaturePosterior:
        """Return the posterior given additional rows, from the sums over both; the features stay."""
        model, table, n, space = self.model.appended(noise), self.table.appended(X, Y), self.n_rows, self.space
        known = sums_of_known(self.model, self.table)
        sums = RowSums.of_posterior(space.factor, space.weights, space.basis_weights, space.trend.coefficients, *known)
        further = torch.arange(n, table.n_rows, device=X.device)
        sums = sums.plus(sum_rows(model.take_rows(further), self.draw, table.take_rows(further)))
        return FeaturePosterior(model, table, self.draw, WeightSpace.fit(sums, table.n_rows, table.n_targets))

    @property
    def target_solutions(self) -> Tensor:
        """``H^-1 (Y - mean)`` of the model with features, shape (n, t); it takes a pass over the rows."""
        residual = self.table.Y - self.mean(self.X)
        noise = self.model.kernel.white(self.X) + self.model.noise_variance.to(self.X)
        return residual / noise[:, None]  # Y - F w is N H^-1 Y, by Woodbury

    def solver_name(self) -> str:
        return "cholesky"

    def engine_name(self) -> str:
        dtype = str(self.X.dtype).removeprefix("torch.")
        return f"{len(self.space.weights)} features, {self.X.device.type}, {dtype}"

    def _features(self, X: Tensor) -> Iterator[Tensor]:
        """Iterate over blocks of rows and yield their features in float64."""
        for rows in row_blocks(X.shape[0], len(self.space.weights), self.budget):
            yield self.model.kernel.features(X[rows], self.draw).double()

    def mean(self, X: Tensor) -> Tensor:
        return self.trend(X) + _stacked([block @ self.space.weights for block in self._features(X)], X, self.n_targets)

    def explained_basis(self, X: Tensor) -> Tensor:
        weights = self.space.basis_weights
        return _stacked([block @ weights for block in self._features(X)], X, weights.shape[1])

    def prior_variance(self, X: Tensor) -> Tensor:
        return _stacked([block.square().sum(1)[:, None] for block in self._features(X)], X, 1)[:, 0]

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance; ``method`` has no effect, as the variance is exact for these features."""
        means, variances = [], []
        for block in self._features(X):
            means.append(block @ self.space.weights)
            variances.append(self._whitened(block).square().sum(0)[:, None])
        return self.trend(X) + _stacked(means, X, self.n_targets), _stacked(variances, X, 1)[:, 0]

    def _whitened(self, features: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.space.factor, features.T, upper=False)

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        m, columns = X.shape[-2], len(self.space.weights)
        require(8 * m * (2 * m + 3 * columns), self.budget, f"The covariance of {m:,} points", "")

        def product(X: Tensor) -> Tensor:
            whitened = self._whitened(self.model.kernel.features(X.flatten(0, 1), self.draw).double())
            rows = within_batches(whitened.T, X)
            return (rows @ rows.mT).to(X)

        return by_batches(product, X, self.budget // (24 * max(columns, 1)))

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> SampleFunctions:
        """Return samples of the weights as functions; they are exact for these features."""
        draws = standard_normal(len(self.space.weights), self.n_targets * n_samples, generator=generator)
        # A^-1 = L^-T L^-1, so a solve with the transposed factor gives draws with that covariance.
        spread = torch.linalg.solve_triangular(self.space.factor.T, draws.to(self.space.factor), upper=True)
        weights = self.space.weights[:, :, None] + spread.reshape(-1, self.n_targets, n_samples)
        flat = weights.reshape(-1, self.n_targets * n_samples)

        def evaluate(X: Tensor) -> Tensor:
            values = _stacked([block @ flat for block in self._features(X)], X, flat.shape[1])
            return self.trend(X)[:, :, None] + values.reshape(X.shape[0], self.n_targets, n_samples)

        return evaluate

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the exact log marginal likelihood of the model with these features.

        As an estimate for the Gaussian process with infinitely many features it is biased: the data fit is too large,
        and the log-determinant is too small (Potapczynski et al. 2021, Theorem 2).
        """
        return Estimate(self.space.value, 0.0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; predictions from it need no pass over the rows."""
        space = self.space
        tensors = {
            "X": self.X,
            "Y": self.table.Y,
            "factor": space.factor,
            "weights": space.weights,
            "basis_weights": space.basis_weights,
            "coefficients": space.trend.coefficients,
            "coefficient_root": space.trend.root,
        }
        drawn, header = self.draw.state()
        tensors.update({f"draw.{name}": value for name, value in drawn.items()})
        numbers = {"data_fit": space.data_fit, "log_determinant": space.log_determinant, "value": space.value}
        return tensors, {"draw": header, **numbers}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> FeaturePosterior:
        finite = number(finite=True)
        record({"draw": DRAW, "data_fit": finite, "log_determinant": finite, "value": finite})(header, "posterior")
        fields = ROWS | {
            "factor": Field("q q", "float64", factor),
            "weights": Field("q t", "float64"),
            "basis_weights?": Field("q p", "float64"),
            "coefficients": Field("p t"),
            "coefficient_root?": Field("p p"),
        }
        check_tensors(tensors, fields | draw_fields(saved, header["draw"], tensors, "draw."), saved.sizes)
        draw = FeatureDraw.from_state(part(tensors, "draw."), header["draw"])
        check_columns(saved, draw, tensors["weights"], "weights")
        space = WeightSpace(
            tensors["factor"],
            tensors["weights"],
            Trend.from_state(tensors, "basis_weights"),
            tensors.get(
                "basis_weights", tensors["weights"].new_zeros(len(tensors["weights"]), len(tensors["coefficients"]))
            ),
            header["data_fit"],
            header["log_determinant"],
            header["value"],
        )
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        return cls(saved.model, table, draw, space)


def _stacked(blocks: list[Tensor], X: Tensor, width: int) -> Tensor:
    """Concatenate blocks of rows in the dtype of ``X``; without blocks, return an empty tensor."""
    return torch.cat(blocks).to(X) if blocks else X.new_zeros(0, width)
