"""The control variates of one fit: of the mean, of the dense columns, and of their prior terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.anchor import Anchor, residuals
from gigagp.inference.quadruply_stochastic.bases import Basis
from gigagp.inference.quadruply_stochastic.estimators.control_variate import (
    Coefficient,
    LinearControl,
    QuadraticControl,
)
from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample, sample_indices
from gigagp.inference.quadruply_stochastic.estimators.terms import Origin
from gigagp.inference.quadruply_stochastic.options import WeightProblem
from gigagp.inference.quadruply_stochastic.weights import COLUMNS, LOG_SCALE, MEAN, Weights, touched_root
from gigagp.kernels import Kernel
from gigagp.model.model import Model
from gigagp.products.dense import cholesky

#: Name of the targets' control.
LINEAR = "targets"
#: Functions, or rows, in a block of a pass over all of them.
_WIDTH = 4096
#: Rows that the weights of the support rows are fitted to, and the share that is added to the diagonal of the support
#: rows' squared covariances: those of a very smooth kernel are nearly dependent.
_WEIGHT_ROWS, _RIDGE = 8192, 1e-6
#: Added to the covariance of the support rows, as a share of its diagonal.
_JITTER = 1e-8


class Controls:
    """The control variates that the settings ask for, each with its multiple; none without support rows.

    Their functions stay at the hyperparameters of the start, those of ``model`` (F.3). `restart` follows the values of
    the weights, whose sizes alone are used before.
    """

    def __init__(
        self, problem: WeightProblem, basis: Basis, weights: Weights, model: Model, generator: torch.Generator
    ) -> None:
        self._problem, self._basis, self._model = problem, basis, model
        self.quadratic: dict[str, QuadraticControl] = {}
        self.coefficients: dict[str, Coefficient] = {}
        self.linear: LinearControl | None = None
        self._features: dict[str, Tensor] = {}
        self._follows_columns = False
        if not problem.is_gaussian:
            return
        if problem.options.n_support:
            self._make_quadratic(weights, generator)
        names = [*([LINEAR] if problem.options.linear_control else []), *self.quadratic]
        fixed = 1.0 if problem.options.control == "as_printed" else None
        self.coefficients = {name: Coefficient(fixed=fixed) for name in names}

    def _make_quadratic(self, weights: Weights, generator: torch.Generator) -> None:
        """Make the controls at support rows."""
        problem, basis, table = self._problem, self._basis, self._problem.table
        count = min(problem.options.n_support, table.n_rows)
        self.rows = sample_indices(table.n_rows, count, generator).to(table.X.device)
        X, t, k = table.X[self.rows], weights.mean.shape[1], weights.n_columns
        if problem.options.control == "as_printed":
            self._weights = X.new_full((count,), problem.n_rows / count)
        else:
            some = sample_indices(table.n_rows, min(_WEIGHT_ROWS, table.n_rows), generator).to(X.device)
            self._weights = support_weights(basis.kernel, X, table.X[some], problem.n_rows).to(X)

        def at_support(index: Tensor) -> Tensor:
            return basis.columns(X, index)

        def add(prefix: str, features: Callable[[Tensor], Tensor]) -> None:
            self.quadratic[prefix + MEAN] = QuadraticControl(features, X.new_zeros(count, t))
            if k:
                self.quadratic[prefix + COLUMNS] = QuadraticControl(features, X.new_zeros(count, k))

        add("", at_support)
        if problem.options.prior_control:
            covariance = basis.kernel.block(X.double(), X.double())
            covariance.diagonal().mul_(1 + _JITTER)
            factor = cholesky(covariance, "the covariance of the support rows")

            def whitened(index: Tensor) -> Tensor:
                return torch.linalg.solve_triangular(factor, at_support(index).double(), upper=False).to(X)

            add("prior ", whitened)

    @torch.no_grad()
    def restart(self, weights: Weights, targets: Tensor, anchor: Anchor | None) -> None:
        """Follow the difference of the weights from an anchor from now on; without an anchor, the weights themselves.

        ``targets`` (n, t) are those of the held rows less the trend. It costs O(n m) with a control of the targets, and
        otherwise O(support m) where weights differ from the anchor.
        """
        if not self.coefficients:
            return
        everything = torch.arange(len(weights.mean), device=weights.mean.device)
        apart = {MEAN: weights.mean if anchor is None else weights.mean - anchor.mean}
        of_columns = anchor is None or anchor.has_columns
        if COLUMNS in self.quadratic and (of_columns or not self._follows_columns):
            root = weights.root_rows(everything)
            apart[COLUMNS] = root - anchor.columns if anchor is not None and anchor.has_columns else root
            self._follows_columns = True
        for name, control in self.quadratic.items():
            if name.removeprefix("prior ") not in apart:
                continue  # columns without an anchor: the running vectors are right as they are
            vectors = apart[name.removeprefix("prior ")]
            blocks = ((index, vectors[index]) for index in self._basis.blocks(_WIDTH, everything.device))
            control.reset((index, block) for index, block in blocks if bool(block.any()))
        if MEAN in self.quadratic and self._problem.options.control == "residual":
            self.quadratic[MEAN].offset = residuals(targets, anchor, self.rows)
        if COLUMNS in self.quadratic and anchor is not None and anchor.has_columns:
            self.quadratic[COLUMNS].offset = -anchor.fitted[self.rows, anchor.n_targets :]
        if LINEAR in self.coefficients:
            self.linear = LinearControl(self._slope(targets, anchor))
            self.linear.update(everything, apart[MEAN])

    @torch.no_grad()
    def _slope(self, targets: Tensor, anchor: Anchor | None) -> Tensor:
        """Return ``Phi' N^-1 r`` for the residuals r, shape (m, t): one pass over the rows and the functions.

        Where only a sample of the rows is held, it stands for the others: the control is zero in the mean for any
        slope.
        """
        X, basis = self._problem.table.X, self._basis
        rows = torch.arange(len(X), device=X.device)
        noise = self._model.noise_of_rows(rows, X)[:, None]
        scaled = residuals(targets, anchor, rows) / noise * (self._problem.n_rows / len(X))
        found = X.new_zeros(basis.size, scaled.shape[1])
        for some, index, columns in basis.tiles(X):
            found[index] += columns.T @ scaled[some]
        return found

    def mean(self, estimate: Tensor, model: Model, mean: Tensor, sample: BasisSample, origin: Origin | None) -> Tensor:
        """Return the estimate of the mean's term with its control variates added."""
        apart = mean if origin is None else mean - origin.vectors
        total = estimate
        for name in (MEAN, f"prior {MEAN}"):
            total = total + self._control(name, estimate, model, apart, sample)
        if self.linear is None:
            return total
        # where the noise is learned, the slope of the term moves with it
        moved = 1.0 if model.noise_is_known else self._first_noise(self._model) / self._first_noise(model)
        value = moved * self.linear.value(sample.index, apart, sample.linear, sample.linear)
        coefficient = self.coefficients[LINEAR]
        found = total + coefficient.value * value
        coefficient.learn(float(total.detach()), float(value.detach()))
        return found

    def _first_noise(self, model: Model) -> Tensor:
        """Return the noise variance of one row, whose relative change stands for that of every row."""
        X = self._problem.table.X[:1]
        return model.noise_of_rows(torch.zeros(1, dtype=torch.int64, device=X.device), X)[0]

    def columns(
        self, estimate: Tensor, model: Model, root: Tensor, sample: BasisSample, origin: Origin | None
    ) -> Tensor:
        """Return the estimate of the dense columns' term with its control variates added."""
        apart = root if origin is None else root - origin.vectors
        names = (COLUMNS, f"prior {COLUMNS}")
        return estimate + sum(self._control(name, estimate, model, apart, sample) for name in names)

    def _control(
        self, name: str, estimate: Tensor, model: Model, vectors: Tensor, sample: BasisSample
    ) -> Tensor | float:
        """Return a control times its multiple, to be added to an estimate; 0 where there is none of that name."""
        if name not in self.quadratic:
            return 0.0
        features = self._features_of(name, sample.index)
        if name in (MEAN, COLUMNS):
            X = self._problem.table.X[self.rows]
            weights = self._weights / model.noise_of_rows(self.rows, X)
        else:
            weights = features.new_ones(len(features))
        if name.endswith(COLUMNS):
            which = None if sample.columns is None else sample.columns.slice
            value = sample.sum_of_columns(self.quadratic[name].value(features, vectors, sample, weights, which))
        else:
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

    def moved(self, weights: Weights, index: Tensor, changes: dict[str, Tensor], columns: slice | None = None) -> None:
        """Follow a step of the functions ``index``, which the weights have taken, and of some dense columns or all."""
        if self.linear is not None:
            self.linear.update(index, changes[MEAN])
        for name, control in self.quadratic.items():
            features = self._features_of(name, index)
            if name.endswith(MEAN):
                control.update(features, changes[MEAN])
            elif name.endswith(COLUMNS):
                control.update(features, _root_change(weights, index, changes, columns), columns)
        self._features = {}

    def forget(self) -> None:
        """Drop the features of a sample that no step followed."""
        self._features = {}

    def variance_removed(self) -> dict[str, float]:
        """Return the share of each estimate's variance that its control has removed in the last steps."""
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


def _root_change(weights: Weights, index: Tensor, changes: dict[str, Tensor], columns: slice | None) -> Tensor:
    """Return the change of the touched part of the dense columns in a step that the weights have taken, (w, s)."""
    now, entries = weights.log_scale[index], changes[COLUMNS]
    before = touched_root(now - changes[LOG_SCALE], torch.zeros_like(entries), index, columns)
    return touched_root(now, entries, index, columns) - before


@torch.no_grad()
def support_weights(kernel: Kernel, support: Tensor, rows: Tensor, n_rows: int) -> Tensor:
    """Return the weights with which support rows represent all rows best, float64.

    A control is zero in the mean for any weights W, and the smaller ``Phi' Phi - P' W P`` is, the more variance the
    control removes. The Frobenius norm of that difference is a quadratic form in W of squared covariances, ``k(x,
    z)^2`` for ``(phi(x)' S^-1 phi(z))^2``, and one linear system gives its minimum. Equal weights, n over the number of
    support rows (the paper's), need about twice the rank. ``rows`` are random ones, which stand for all ``n_rows``.
    """
    support, rows = support.double(), rows.double()
    square = kernel.block(support, support).square()
    square.diagonal().mul_(1 + _RIDGE)
    right = torch.zeros(len(support), dtype=torch.float64, device=support.device)
    for some in rows.split(_WIDTH):
        right += kernel.block(support, some).square().sum(1)
    factor = cholesky(square, "the squared covariance of the support rows")
    return torch.cholesky_solve(right[:, None], factor)[:, 0] * (n_rows / len(rows))
