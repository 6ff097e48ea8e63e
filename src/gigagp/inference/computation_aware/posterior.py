"""The computation-aware posterior, conditioned on ``S' y``; its variances are never below the exact ones."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.computation_aware.actions import Actions, BlockActions, DenseActions, RowActions
from gigagp.inference.computation_aware.evidence import Conditioned
from gigagp.inference.contract.batches import by_batches, prior_covariance, within_batches
from gigagp.inference.contract.posterior import VarianceMethod, VarianceParts
from gigagp.inference.contract.rows_posterior import ROWS, PathwiseUpdate, SolvedPosterior
from gigagp.inference.contract.saved import SOLVE, Saved
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend, estimate_trend
from gigagp.model.estimate import Estimate
from gigagp.model.model import Model
from gigagp.model.prior_samples import PriorSamples
from gigagp.operators import KernelMatrix
from gigagp.optimization.history import SolveRecord
from gigagp.products import cross_product
from gigagp.products.dense import cholesky
from gigagp.runtime.memory import require
from gigagp.settings.random import standard_normal
from gigagp.settings.schema import Field, Form, check_tensors, not_negative, number, one_of, optional, record, text
from gigagp.settings.schema import factor as lower_factor

_ACTIONS = {"blocks": BlockActions, "dense": DenseActions, "rows": RowActions}


class ComputationAwarePosterior(SolvedPosterior):
    """The posterior conditioned on ``S' y`` for actions S (Wenger et al. 2024, eq. 5 and alg. S2).

    It is ``N(mean + K(., X) S v, K - K(., X) S (S'HS)^-1 S' K(X, .))``.

    Parameters
    ----------
    table : TrainingTable
        Training rows, in the order of the actions.
    factor : Tensor of shape (i, i)
        Lower Cholesky factor of ``S'HS``.
    noise : Tensor of shape (n,)
        Noise variance of each row, without the kernel's white terms.
    bound : float or None
        Evidence lower bound, if it is known.
    note : str
        Reason for fewer actions than requested, or the source of the actions.
    final_solve : SolveRecord or None
        Record of the solve whose products are the actions.
    """

    kind = "computation-aware"
    covariance_is_cheap = True

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        actions: Actions,
        factor: Tensor,
        conditioned: Conditioned,
        noise: Tensor,
        bound: float | None = None,
        note: str = "",
        final_solve: SolveRecord | None = None,
    ) -> None:
        self.model, self.table, self.actions, self.budget = model, table, actions, table.budget
        weights, basis_weights, trend = conditioned
        # row-major, as a model file restores them, to round the same way
        self.factor, self.noise = factor.contiguous(), noise
        self.weights, self.basis_weights = weights.contiguous(), basis_weights.contiguous()
        self.coefficients, self.coefficient_root = trend.coefficients.to(self.X), trend.root
        self.target_solutions = actions.combine(self.weights)
        self.bound, self.note, self.final_solve = bound, note, final_solve

    @cached_property
    def basis_solutions(self) -> Tensor:  # type: ignore[override]
        """``S`` times the weights of the mean's basis, shape (n, p)."""
        return self.actions.combine(self.basis_weights)

    @cached_property
    def _rows(self) -> Tensor:
        """The rows in float64."""
        return self.X.double()

    @property
    def n_actions(self) -> int:
        """Number of actions; `note` gives the reason if there are fewer than requested."""
        return self.actions.count

    def solver_name(self) -> str:
        return f"{self.n_actions} {self.actions.describe()}" + (f" ({self.note})" if self.note else "")

    def _blocks(self, X: Tensor) -> tuple[Tensor, ...]:
        rows = self.budget // (8 * 8 * max(self.n_actions, 1))
        return X.split(max(1, min(rows, 2**22 // max(self.n_actions, 1))))

    def compressed_cross(self, X: Tensor) -> Tensor:
        """Return ``K(X, training inputs) @ S`` in float64, shape (m, i).

        Predictions are small differences of large covariances. Of float32 covariances, other sums of the same terms
        would round to other means and variances.
        """
        return self.actions.cross_product(self.model.kernel, X.double(), self._rows, self.budget)

    def cross_product(self, X: Tensor, vectors: Tensor) -> Tensor:
        return cross_product(self.model.kernel, X.double(), self._rows, vectors.double(), budget=self.budget)

    def explained_basis(self, X: Tensor) -> Tensor:
        return torch.cat(
            [X.new_zeros(0, self.basis_weights.shape[1], dtype=torch.float64)]
            + [self.compressed_cross(block) @ self.basis_weights for block in self._blocks(X)]
        )

    def mean_and_variance(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance; ``method`` has no effect."""
        mean, variance, explained = self._predictions(X)
        return mean, variance + self.trend_root(X, explained).square().sum(1).to(variance)

    def mean_and_variance_given_trend(self, X: Tensor, method: VarianceMethod = "auto") -> tuple[Tensor, Tensor]:
        """Return mean and variance at given coefficients of the mean; ``method`` has no effect."""
        mean, variance, _ = self._predictions(X)
        return mean, variance

    def _predictions(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and variance at given coefficients, and `explained_basis`, from the same covariances."""
        columns = torch.cat([self.weights, self.basis_weights.to(self.weights)], 1)
        products, variances = [columns.new_zeros(0, columns.shape[1])], [X.new_zeros(0)]
        for block in self._blocks(X):
            cross = self.compressed_cross(block)
            explained = torch.linalg.solve_triangular(self.factor, cross.T, upper=False).square().sum(0)
            products.append(cross @ columns)
            # A reduction never exceeds the prior variance; a negative difference near zero is a rounding error.
            variances.append((self.model.kernel.diagonal(block.double()) - explained).clamp_min(0).to(X))
        found, t = torch.cat(products), self.weights.shape[1]
        return self.trend(X) + found[:, :t].to(X), torch.cat(variances), found[:, t:]

    def covariance_given_trend(self, X: Tensor) -> Tensor:
        m = X.shape[-2]
        require(8 * m * (3 * m + 2 * self.n_actions), self.budget, f"The covariance of {m:,} points", "")

        def left(X: Tensor) -> Tensor:
            cross = self.compressed_cross(X.flatten(0, 1))
            whitened = within_batches(torch.linalg.solve_triangular(self.factor, cross.T, upper=False).T, X)
            return (prior_covariance(self.model.kernel, X.double()) - whitened @ whitened.mT).to(X)

        return by_batches(left, X, self.budget // (24 * max(self.n_actions, 1)))

    def variance_parts(self, X: Tensor) -> VarianceParts:
        """Return the variance split into the parts due to finite data and due to limited computation.

        The second is ``K(x, X) (H^-1 - C) K(X, x)``. It is computed as the squared norm of the part of a whitened
        vector outside the span of the actions, so it cannot be negative. This needs the exact posterior: O(n^3) time
        and three n x n arrays, which must fit the memory budget.
        """
        n = self.table.n_rows
        advice = "Leave out return_parts, or raise memory_budget."
        require(3 * 8 * n * n, self.budget, f"The exact variance of {n:,} rows", advice)
        matrix = KernelMatrix(self.model.kernel, self.X.double(), self.noise, storage="tiles")
        root = cholesky(matrix.to_dense())
        seen = torch.linalg.qr(root.T @ self.actions.dense()).Q
        basis = self.table.basis.double()
        whitened_basis = torch.linalg.solve_triangular(root, basis, upper=False)
        trend = estimate_trend(whitened_basis, whitened_basis[:, :0], whitened_basis)
        parts = []
        for block in self._blocks(X):
            cross = self.model.kernel.block(self.X.double(), block.double())
            whitened = torch.linalg.solve_triangular(root, cross, upper=False)
            unseen = whitened - seen @ (seen.T @ whitened)
            prior = self.model.kernel.diagonal(block.double())
            exact = (prior - whitened.square().sum(0)).clamp_min(0)
            by_trend = (
                ((self.model.mean.basis(block.double()) - whitened.T @ whitened_basis) @ trend.root).square().sum(1)
            )
            # The exact trend has less uncertainty, but its part alone can be larger; so the parts are compared jointly.
            more = unseen.square().sum(0) + self.trend_root(block).square().sum(1) - by_trend
            parts.append(torch.stack([exact + by_trend, more.clamp_min(0)]))
        both = torch.cat(parts, 1).to(X) if parts else X.new_zeros(2, 0)
        return VarianceParts(both[0], both[1])

    def sample_functions_given_trend(self, n_samples: int, generator: torch.Generator) -> PathwiseUpdate:
        """Return pathwise samples: prior functions, updated by the observations ``S' y``.

        By Matheron's rule a sample is ``f + K(., X) S (S'HS)^-1 S' (y - f(X) - noise)``. The kernel must have random
        features; `sample_at` needs none.
        """
        needed = n_samples * self.n_targets
        prior = PriorSamples.for_sample_functions(self.model.kernel, self.n_inputs, needed, generator)
        draws = standard_normal(self.X.shape[0], needed, generator=generator).to(self.X.device)
        spread = (self.noise + self.model.kernel.white(self.X).double()).sqrt()[:, None]
        values = prior.evaluate(self.model.kernel, self.X, self.budget).double() + spread * draws
        solved = torch.cholesky_solve(self.actions.project(values), self.factor)
        return PathwiseUpdate(self, prior, self.actions.combine(solved))

    def log_marginal_likelihood(self, generator: torch.Generator) -> Estimate:
        """Return the evidence lower bound of the log marginal likelihood, which ``loss="projected"`` does not give."""
        if self.bound is None:
            msg = 'log_marginal_likelihood of ComputationAware(loss="projected") is not known; use loss="elbo".'
            raise InvalidInputError(msg)
        return Estimate(self.bound, 0.0)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state for a model file; predictions from it need no product with the training kernel matrix."""
        tensors = {"X": self.X, "Y": self.table.Y, "factor": self.factor, "weights": self.weights}
        tensors |= {"coefficients": self.coefficients, "coefficient_root": self.coefficient_root}
        tensors |= {"basis_weights": self.basis_weights, "noise": self.noise}
        tensors |= {f"actions.{name}": value for name, value in self.actions.state().items()}
        form = next(name for name, item in _ACTIONS.items() if type(self.actions) is item)
        solve = None if self.final_solve is None else asdict(self.final_solve)
        return tensors, {"actions": form, "bound": self.bound, "note": self.note, "final_solve": solve}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any], saved: Saved) -> ComputationAwarePosterior:
        forms: dict[str, Form] = {
            "actions": one_of("blocks", "dense", "rows"),
            "bound": optional(number()),
            "note": text,
            "final_solve": optional(SOLVE),
        }
        record(forms)(header, "posterior")
        of_actions = {
            "blocks": {"actions.values": Field("n", "float64"), "actions.bounds": Field("bounds", "int64")},
            "dense": {"actions.matrix": Field("n i", "float64")},
            "rows": {"actions.rows": Field("i", "int64")},
        }[header["actions"]]
        fields = ROWS | {
            "factor": Field("i i", "float64", lower_factor),
            "weights": Field("i t", "float64"),
            "basis_weights?": Field("i p", "float64"),
            "coefficients": Field("p t"),
            "coefficient_root?": Field("p p"),
            "noise": Field("n", rule=not_negative),
        }
        sizes = check_tensors(tensors, fields | of_actions, saved.sizes)
        if sizes.get("bounds", sizes["i"] + 1) != sizes["i"] + 1:
            msg = f"its tensor 'actions.bounds' must have {sizes['i'] + 1} numbers; got {sizes['bounds']}."
            raise ModelFileError(msg)
        table = TrainingTable(tensors["X"], tensors["Y"], saved.model.mean, saved.budget)
        actions: Actions
        if header["actions"] == "blocks":
            actions = BlockActions(tensors["actions.values"], tuple(tensors["actions.bounds"].tolist()))
        elif header["actions"] == "dense":
            actions = DenseActions.trusted(tensors["actions.matrix"])
        else:
            actions = RowActions(tensors["actions.rows"], table.n_rows)
        trend, weights = Trend.from_state(tensors, "basis_weights"), tensors["weights"]
        basis_weights = tensors.get("basis_weights", weights.new_zeros(len(weights), len(trend.root)))
        return cls(
            saved.model,
            table,
            actions,
            tensors["factor"],
            Conditioned(tensors["weights"], basis_weights, trend),
            tensors["noise"],
            header["bound"],
            header["note"],
            None if header["final_solve"] is None else SolveRecord(**header["final_solve"]),
        )
