"""The control variates of one fit: of the mean, of the dense columns, of the prior terms."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gigagp.dense import cholesky
from gigagp.inference.quadruply_stochastic.control_variate import Coefficient, QuadraticControl
from gigagp.inference.quadruply_stochastic.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_SCALE, MEAN
from gigagp.likelihoods import Gaussian
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Added to the support inputs' covariance, as a share of its diagonal.
_JITTER = 1e-8


class Controls:
    """What the settings ask for, with one fitted multiple each; nothing without support rows.

    Parameters
    ----------
    objective : QuadruplyStochasticObjective
        With basis and weights.
    model : Model
        At the start: the functions inside of the controls stay at its hyperparameters (F.3).
    generator : torch.Generator
        Draws the support rows.
    """

    def __init__(self, objective: QuadruplyStochasticObjective, model: Model, generator: torch.Generator) -> None:
        settings, table, weights = objective.settings, objective.table, objective.weights
        self._objective = objective
        self.quadratic: dict[str, QuadraticControl] = {}
        self.coefficients: dict[str, Coefficient] = {}
        self._features: dict[str, Tensor] = {}
        if not settings.n_support or not isinstance(objective.likelihood, Gaussian):
            return
        count = min(settings.n_support, table.n_rows)
        self.rows = sample_indices(table.n_rows, count, generator).to(table.X.device)
        X, basis, t, k = table.X[self.rows], objective.basis, weights.mean.shape[1], weights.n_columns
        self._factor = table.n_rows / count

        def at_support(index: Tensor) -> Tensor:
            return basis.columns(X, index)

        offset = objective.targets[self.rows] if settings.control == "residual" else X.new_zeros(count, t)
        self.quadratic[MEAN] = QuadraticControl(at_support, offset)
        if k:
            self.quadratic[COLUMNS] = QuadraticControl(at_support, X.new_zeros(count, k))
        if settings.prior_control:
            covariance = basis.kernel.block(X.double(), X.double())
            covariance.diagonal().mul_(1 + _JITTER)
            factor = cholesky(covariance, "the covariance of the support rows")

            def whitened(index: Tensor) -> Tensor:
                return torch.linalg.solve_triangular(factor, at_support(index).double(), upper=False).to(X)

            self.quadratic[f"prior {MEAN}"] = QuadraticControl(whitened, X.new_zeros(count, t))
            if k:
                self.quadratic[f"prior {COLUMNS}"] = QuadraticControl(whitened, X.new_zeros(count, k))
        self.coefficients = {name: Coefficient() for name in self.quadratic}
        if k:  # the dense columns start with their diagonal; the mean starts at zero
            head = torch.arange(k, device=X.device)
            rows = weights.root_rows(head)
            assert rows is not None
            for name, control in self.quadratic.items():
                if name.endswith(COLUMNS):
                    control.reset(iter([(head, rows)]))

    def mean(self, estimate: Tensor, model: Model, mean: Tensor, sample: BasisSample) -> Tensor:
        """Return the estimate of the mean's term with its control variates added."""
        return self._controlled(MEAN, estimate, model, mean, sample)

    def columns(self, estimate: Tensor, model: Model, root: Tensor, sample: BasisSample) -> Tensor:
        """Return the estimate of the dense columns' term with theirs."""
        return self._controlled(COLUMNS, estimate, model, root, sample)

    def _controlled(self, part: str, estimate: Tensor, model: Model, vectors: Tensor, sample: BasisSample) -> Tensor:
        total = estimate
        for name, control in self.quadratic.items():
            if not name.endswith(part):
                continue
            features = self._features_of(name, sample.index)
            if name == part:
                X = self._objective.table.X[self.rows]
                weights = self._factor / self._objective.noise(model, self.rows, X)
            else:
                weights = features.new_ones(len(features))
            value = control.value(features, vectors, sample, weights).sum()
            coefficient = self.coefficients[name]
            total = total + coefficient.value * value
            coefficient.learn(float(estimate.detach()), float(value.detach()))
        return total

    def _features_of(self, name: str, index: Tensor) -> Tensor:
        """Return the features at the support rows; mean and columns share them, and so does the step that follows."""
        kind = "prior" if name.startswith("prior") else "rows"
        known = self._features.get(kind)
        if known is None:
            with torch.no_grad():
                known = self._features[kind] = self.quadratic[name].features(index)
        return known

    def moved(self, index: Tensor, changes: dict[str, Tensor]) -> None:
        """Follow a step of the touched numbers."""
        for name, control in self.quadratic.items():
            features = self._features_of(name, index)
            if name.endswith(MEAN):
                control.update(features, changes[MEAN])
            elif name.endswith(COLUMNS):
                control.update(features, self._root_change(index, changes))
        self._features = {}

    def _root_change(self, index: Tensor, changes: dict[str, Tensor]) -> Tensor:
        """Return the change of the touched rows of the dense columns; the weights have moved already."""
        weights = self._objective.weights
        k = weights.n_columns
        change = changes[COLUMNS].clone()
        change[:k] = change[:k].tril(-1)
        now = weights.log_scale[index[:k]]
        change[:k].diagonal().add_(now.exp() - (now - changes[LOG_SCALE][:k]).exp())
        return change

    def forget(self) -> None:
        """Drop the features of a sample that no step followed."""
        self._features = {}

    def variance_removed(self) -> dict[str, float]:
        """Return the share of each estimate's variance that its control removes, as the last steps have shown it."""
        return {name: coefficient.removed for name, coefficient in self.coefficients.items()}

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return running vectors and multiples."""
        tensors = {f"running.{name}": control.running for name, control in self.quadratic.items()}
        return tensors, {name: asdict(coefficient) for name, coefficient in self.coefficients.items()}

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take over a snapshot."""
        for name, control in self.quadratic.items():
            control.running.copy_(tensors[f"running.{name}"])
            self.coefficients[name] = Coefficient(**header[name])
