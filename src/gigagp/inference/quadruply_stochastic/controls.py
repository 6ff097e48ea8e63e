"""The control variates of one fit: of the mean, of the dense columns, of the prior terms."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gigagp.dense import cholesky
from gigagp.inference.quadruply_stochastic.control_variate import Coefficient, LinearControl, QuadraticControl
from gigagp.inference.quadruply_stochastic.estimators import Origin
from gigagp.inference.quadruply_stochastic.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_SCALE, MEAN
from gigagp.kernels import Kernel
from gigagp.likelihoods import Gaussian
from gigagp.model import Model

if TYPE_CHECKING:
    from gigagp.inference.quadruply_stochastic.objective import QuadruplyStochasticObjective

#: Name of the targets' control.
LINEAR = "targets"
#: Functions, or rows, that are looked at together.
_WIDTH = 4096
#: Rows that the weights of the support are fitted to, and what is added to the diagonal of its squared covariances, as
#: a share: those of a very smooth kernel are nearly dependent.
_WEIGHT_ROWS, _RIDGE = 8192, 1e-6
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
        settings = objective.settings
        self._objective, self._model = objective, model
        self.quadratic: dict[str, QuadraticControl] = {}
        self.coefficients: dict[str, Coefficient] = {}
        self.linear: LinearControl | None = None
        self._features: dict[str, Tensor] = {}
        if not isinstance(objective.likelihood, Gaussian):
            return
        if settings.linear_control:
            self.coefficients[LINEAR] = Coefficient()
        if settings.n_support:
            self._make_quadratic(generator)
        self.restart()

    def _make_quadratic(self, generator: torch.Generator) -> None:
        """Make the controls at support rows."""
        objective = self._objective
        settings, table, weights = objective.settings, objective.table, objective.weights
        count = min(settings.n_support, table.n_rows)
        self.rows = sample_indices(table.n_rows, count, generator).to(table.X.device)
        X, basis, t, k = table.X[self.rows], objective.basis, weights.mean.shape[1], weights.n_columns
        fitted = support_weights(basis.kernel, X, _some_rows(table.X, generator), objective.n_rows)
        self._weights = fitted.to(X)

        def at_support(index: Tensor) -> Tensor:
            return basis.columns(X, index)

        self.quadratic[MEAN] = QuadraticControl(at_support, X.new_zeros(count, t))
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
        self.coefficients |= {name: Coefficient() for name in self.quadratic}

    @torch.no_grad()
    def restart(self) -> None:
        """Follow the differences from the objective's anchor from now on, or all of the weights where there is none.

        O(n m) with a control of the targets, otherwise O(support m) where there is something to follow.
        """
        if not self.coefficients:
            return
        objective, weights, anchor = self._objective, self._objective.weights, self._objective.anchor
        everything = torch.arange(len(weights.mean), device=weights.mean.device)
        whole = {MEAN: weights.mean, COLUMNS: weights.root_rows(everything)}
        known = {} if anchor is None else {MEAN: anchor.mean, COLUMNS: anchor.columns}
        apart = {name: vectors - known[name] if known else vectors for name, vectors in whole.items()}
        for name, control in self.quadratic.items():
            vectors = apart[name.removeprefix("prior ")]
            blocks = ((index, vectors[index]) for index in objective.basis.blocks(_WIDTH, everything.device))
            control.reset((index, block) for index, block in blocks if bool(block.any()))
        if MEAN in self.quadratic and objective.settings.control == "residual":
            self.quadratic[MEAN].offset = objective.residuals(self.rows)
        if COLUMNS in self.quadratic and anchor is not None:
            self.quadratic[COLUMNS].offset = -anchor.fitted_columns[self.rows]
        if LINEAR in self.coefficients:
            self.linear = LinearControl(_slope(objective, self._model))
            self.linear.update(everything, apart[MEAN])

    def mean(self, estimate: Tensor, model: Model, mean: Tensor, sample: BasisSample, origin: Origin | None) -> Tensor:
        """Return the estimate of the mean's term with its control variates added."""
        apart = mean if origin is None else mean - origin.vectors
        total = estimate
        for name in (MEAN, f"prior {MEAN}"):
            total = total + self._control(name, estimate, model, apart, sample)
        if self.linear is None:
            return total
        # where the noise is learned, the term's own slope moves with it
        moved = 1.0 if model.noise_is_known else self._first_noise(self._model) / self._first_noise(model)
        value = moved * self.linear.value(sample.index, apart, sample.linear, sample.linear)
        coefficient = self.coefficients[LINEAR]
        found = total + coefficient.value * value
        coefficient.learn(float(total.detach()), float(value.detach()))
        return found

    def _first_noise(self, model: Model) -> Tensor:
        """Return the noise variance of one row, whose changes stand for those of all rows."""
        X = self._objective.table.X[:1]
        return self._objective.noise(model, torch.zeros(1, dtype=torch.int64, device=X.device), X)[0]

    def columns(
        self, estimate: Tensor, model: Model, root: Tensor, sample: BasisSample, origin: Origin | None
    ) -> Tensor:
        """Return the estimate of the dense columns' term with theirs."""
        apart = root if origin is None else root - origin.vectors
        names = (COLUMNS, f"prior {COLUMNS}")
        return estimate + sum(self._control(name, estimate, model, apart, sample) for name in names)

    def _control(
        self, name: str, estimate: Tensor, model: Model, vectors: Tensor, sample: BasisSample
    ) -> Tensor | float:
        """Return the multiple of one control that an estimate gets; 0 where there is none of that name."""
        if name not in self.quadratic:
            return 0.0
        features = self._features_of(name, sample.index)
        if name in (MEAN, COLUMNS):
            X = self._objective.table.X[self.rows]
            weights = self._weights / self._objective.noise(model, self.rows, X)
        else:
            weights = features.new_ones(len(features))
        value = self.quadratic[name].value(features, vectors, sample, weights).sum()
        coefficient = self.coefficients[name]
        found = coefficient.value * value
        coefficient.learn(float(estimate.detach()), float(value.detach()))
        return found

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
        if self.linear is not None:
            self.linear.update(index, changes[MEAN])
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
        if self.linear is not None:
            tensors[f"running.{LINEAR}"] = self.linear.running
        return tensors, {name: asdict(coefficient) for name, coefficient in self.coefficients.items()}

    def restore(self, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        """Take over a snapshot."""
        for name, control in self.quadratic.items():
            control.running.copy_(tensors[f"running.{name}"])
            self.coefficients[name] = Coefficient(**header[name])
        if self.linear is not None:
            self.linear.running.copy_(tensors[f"running.{LINEAR}"])
            self.coefficients[LINEAR] = Coefficient(**header[LINEAR])


@torch.no_grad()
def _slope(objective: QuadruplyStochasticObjective, model: Model) -> Tensor:
    """Return ``Phi' N^-1 r`` for the residuals r at a model, shape (m, t): one pass over the rows and the functions.

    Of rows that are not all held, those that are stand for the others: the control is zero in the mean for any slope.
    """
    X, basis = objective.table.X, objective.basis
    rows = torch.arange(len(X), device=X.device)
    scaled = objective.residuals(rows) / objective.noise(model, rows, X)[:, None] * (objective.n_rows / len(X))
    found = X.new_zeros(basis.size, scaled.shape[1])
    for some, index, columns in basis.tiles(X):
        found[index] += columns.T @ scaled[some]
    return found


def _some_rows(X: Tensor, generator: torch.Generator) -> Tensor:
    """Return random rows that stand for all where the support is weighted."""
    return X[sample_indices(len(X), min(_WEIGHT_ROWS, len(X)), generator).to(X.device)]


@torch.no_grad()
def support_weights(kernel: Kernel, support: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    """Return weights of support rows with which they stand best for all rows, float64.

    A control is zero in the mean for any weights, and the less ``Phi' Phi - P' W P`` is left the more it removes. Its
    Frobenius norm is a quadratic form in W of squared covariances, ``k(x, z)^2`` for ``(phi(x)' S^-1 phi(z))^2``, whose
    minimum one linear system has. Equal weights, n over the support (the paper's), need about twice the rank.

    Parameters
    ----------
    kernel : Kernel
    support : Tensor of shape (s, d)
    rows : Tensor of shape (r, d)
        Random rows in the place of all.
    n_rows : int
    """
    support, rows = support.double(), rows.double()
    square = kernel.block(support, support).square()
    square.diagonal().mul_(1 + _RIDGE)
    right = torch.zeros(len(support), dtype=torch.float64, device=support.device)
    for some in rows.split(_WIDTH):
        right += kernel.block(support, some).square().sum(1)
    factor = cholesky(square, "the squared covariance of the support rows")
    return torch.cholesky_solve(right[:, None], factor)[:, 0] * (n_rows / len(rows))
