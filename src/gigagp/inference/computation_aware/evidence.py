"""Conditioning on ``S' y``, the two losses, and their gradients in closed form.

Notation: ``H = K + N`` (N the noise of each row), ``r = y - mean``, ``M = S'HS``, ``G = S'KS`` and ``v = M^-1 S' r``.
The formulas are eqs. 5, 9 and 11 of Wenger et al. 2024, for any noise. Only ``K @ S``, shape (n, i), is kept. Other
arrays of that size are computed in blocks of rows, and all i x i arrays are float64. No autograd graph is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions import Actions, LearnableActions
from gigagp.inference.computation_aware.actions.base import row_blocks
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.model.model import NOISE, Model
from gigagp.operators import KernelMatrix
from gigagp.products.dense import cholesky

#: Objective to maximize.
Loss = Literal["elbo", "projected"]
#: Name of the actions' entries among the free parameters of a model.
ACTIONS = "actions"


@dataclass(frozen=True)
class Terms:
    """Parts of the losses, summed over rows and targets, in nats."""

    #: ``sum_j (y_j - mean_j)^2 / noise_j`` for the posterior mean
    squared_residuals: float
    #: ``sum_j K_i(x_j, x_j) / noise_j``
    posterior_variances: float
    #: ``sum_j log(2 pi noise_j)``
    log_noise: float
    #: ``v'Gv``, the squared norm of the posterior mean in the RKHS of the kernel
    weights: float
    #: ``tr(M^-1 G)``
    trace: float
    #: ``log det M - log det S'NS``, twice the mutual information of the function and ``S' y``
    log_ratio: float
    #: ``r'S M^-1 S'r``
    projected_fit: float
    #: ``log det M - log det S'S + i log 2 pi``
    projected_log_determinant: float

    @property
    def expected_log_likelihood(self) -> float:
        """``E_q log p(y | f)`` (Wenger et al. 2024, lemma S3)."""
        return -0.5 * (self.squared_residuals + self.posterior_variances + self.log_noise)

    @property
    def divergence(self) -> float:
        """``KL(q(f) || p(f))``, the divergence of the posterior from the prior (lemma S3)."""
        return 0.5 * (self.weights + self.log_ratio - self.trace)

    @property
    def elbo(self) -> float:
        """Lower bound of the log marginal likelihood (eq. 11)."""
        return self.expected_log_likelihood - self.divergence

    @property
    def projected_log_likelihood(self) -> float:
        """Log likelihood of the orthonormalised projections of the targets (eq. 9)."""
        return -0.5 * (self.projected_fit + self.projected_log_determinant)

    def value(self, loss: Loss) -> float:
        """Return the value of a loss."""
        return self.elbo if loss == "elbo" else self.projected_log_likelihood


class Conditioned(NamedTuple):
    """Weights and trend conditioned on the projected targets."""

    #: ``(S'HS)^-1 S' (Y - mean)``, shape (i, t)
    weights: Tensor
    #: the same with the mean's basis functions in place of the targets, shape (i, p)
    basis_weights: Tensor
    #: coefficients of the mean's basis
    trend: Trend


class Evidence:
    """Quantities that follow from one set of actions at one model.

    The rows of ``table`` are in the order of the actions. The loss also decides the coefficients of the mean. ``noise``
    (n,) is that of each row in float64, without the kernel's white terms. ``product`` is ``H @ S`` if it is known; it
    is overwritten.

    Attributes
    ----------
    factor : Tensor of shape (i, i)
        Lower Cholesky factor of M.
    weights : Tensor of shape (i, t)
        Compressed representer weights ``v``.
    coefficients : Tensor of shape (p, t)
        Coefficients of the mean's basis, by generalised least squares under the loss.
    """

    def __init__(
        self,
        model: Model,
        table: TrainingTable,
        actions: Actions,
        loss: Loss,
        noise: Tensor,
        matrix: KernelMatrix,
        product: Tensor | None = None,
    ) -> None:
        self.model, self.table, self.actions, self.loss, self.matrix = model, table, actions, loss, matrix
        self.noise = noise + model.kernel.white(table.X).detach().double()
        if loss == "elbo" and not bool((self.noise > 0).all()):
            raise InvalidInputError(
                "noise_variance must be positive for the ELBO of ComputationAware, which divides by it; got "
                f'{float(self.noise.min()):g}. Use loss="projected", or a small noise.'
            )
        if product is None:
            product = actions.kernel_product(matrix)
        else:
            product = (product - self.noise[:, None] * actions.dense()).to(matrix.dtype)
        self._product = product
        self._condition()
        if loss == "elbo":
            self._weigh_variances()

    def _condition(self) -> None:
        """Factorise ``S'HS``, solve for the weights, and estimate the mean's coefficients."""
        actions, t = self.actions, self.table.n_targets
        smooth = actions.project(self._product)
        self._smooth = 0.5 * (smooth + smooth.T)
        self._own = actions.gram(self.noise)
        self.factor = cholesky(self._smooth + self._own, "the projected matrix S'HS")
        known = torch.cat([self.table.Y, self.table.basis], 1).double()
        projected = actions.project(known)
        solved = torch.cholesky_solve(projected, self.factor)
        normal = projected.T @ solved
        #: ``(S'HS)^-1 S' [Y, Phi]``, shape (i, t + p), and ``[Y, Phi]' C [Y, Phi]``
        self._solved, self._projected_normal = solved, normal
        if self.loss == "elbo":
            # The ELBO is quadratic in r with the matrix C + Q'N^-1 Q, Q = I - HC: the observed part, and the remainder
            # treated as noise.
            left = known - self._times_product(solved) - self.noise[:, None] * actions.combine(solved)
            normal = normal + left.T @ (left / self.noise[:, None])
        self.coefficients = Trend.from_products(normal[t:, t:], normal[t:, :t]).coefficients
        self._normal = normal
        mix = torch.cat([torch.eye(t, dtype=torch.float64, device=known.device), -self.coefficients])
        self.residual, self._projected, self.weights = known @ mix, projected @ mix, solved @ mix
        #: ``r - H S v``, the residual that the actions leave; empty if the loss does not need it
        self.unseen = left @ mix if self.loss == "elbo" else self.residual[:0]

    def conditioned(self) -> Conditioned:
        """Return the weights for predictions; everything, including the trend, is conditioned on ``S' y`` alone.

        With a flat prior on its coefficients, the trend is that of generalised least squares on ``S' y`` for either
        loss. More actions then never increase a variance, and the variance is never below the exact one. If the actions
        do not determine all coefficients, those of the loss are used, which depend on all rows.
        """
        t, solved, normal = self.table.n_targets, self._solved, self._projected_normal
        trend = Trend.from_products(normal[t:, t:], normal[t:, :t])
        if not bool((trend.root.abs().sum(0) > 0).all()):
            trend = Trend.from_products(self._normal[t:, t:], self._normal[t:, :t])
        of_basis = solved[:, t:]
        return Conditioned(solved[:, :t] - of_basis @ trend.coefficients, of_basis, trend)

    def _times_product(self, coefficients: Tensor) -> Tensor:
        """Return ``K S @ coefficients`` in float64, computed in blocks of rows."""
        blocks = row_blocks(self.table.n_rows, self.actions.count)
        return torch.cat([self._product[rows].double() @ coefficients for rows in blocks])

    def _whitened(self, rows: slice) -> Tensor:
        """Return ``L^-1 (K S)'`` for a block of rows, shape (i, rows)."""
        return torch.linalg.solve_triangular(self.factor, self._product[rows].double().T, upper=False)

    def terms(self) -> Terms:
        """Return the parts of both losses; for the projected likelihood, parts that only the ELBO needs are NaN."""
        t, count, noise = self.table.n_targets, self.actions.count, self.noise
        whitened_own = torch.linalg.solve_triangular(self.factor, self._own, upper=False)
        trace = count - float(torch.linalg.solve_triangular(self.factor, whitened_own.T, upper=False).trace())
        log_determinant = 2 * self.factor.diagonal().log().sum()
        identity = cholesky(self.actions.gram(torch.ones_like(noise)), "S'S").diagonal().log().sum()
        own = cholesky(self._own, "S'NS").diagonal().log().sum() if bool((noise > 0).all()) else -math.inf
        squares = variances = math.nan
        if self.loss == "elbo":
            deviations = self.unseen + noise[:, None] * self.actions.combine(self.weights)
            squares = float((deviations.square() / noise[:, None]).sum())
            variances = t * float((self._variances / noise).sum())
        return Terms(
            squared_residuals=squares,
            posterior_variances=variances,
            log_noise=t * float((noise.log() + math.log(2 * math.pi)).sum()),
            weights=float((self.weights * (self._smooth @ self.weights)).sum()),
            trace=t * trace,
            log_ratio=t * float(log_determinant - 2 * own),
            projected_fit=float((self._projected * self.weights).sum()),
            projected_log_determinant=t * float(log_determinant - 2 * identity + count * math.log(2 * math.pi)),
        )

    def _weigh_variances(self) -> None:
        """Compute ``K_i(x_j, x_j)`` for every row, and sums for the gradient, in ``n i^2`` operations."""
        n, count = self.table.n_rows, self.actions.count
        explained = self.noise.new_empty(n)
        self._overlap = self.noise.new_zeros(count, count)  # L^-1 (KS)' N^-1 (KS) L^-T
        for rows in row_blocks(n, count):
            whitened = self._whitened(rows)
            explained[rows] = whitened.square().sum(0)
            scaled = whitened / self.noise[rows].sqrt()
            self._overlap.addmm_(scaled, scaled.T)
        prior = self.model.kernel.diagonal(self.table.X).detach().double()
        self._variances = prior - explained

    def gradient(self, *, by_actions: bool) -> dict[str, Tensor]:
        """Return the derivatives by all hyperparameters of the loss that `Terms.value` returns.

        It overwrites the product with the kernel matrix, so it can be called only once. With ``by_actions`` it adds the
        derivative by the entries of `LearnableActions`, named ``"actions"``.
        """
        t, noise, actions = self.table.n_targets, self.noise, self.actions
        outer = self.weights @ self.weights.T
        inverse = torch.cholesky_inverse(self.factor)
        if self.loss == "elbo":
            pull = self._project_unseen()
            by_projected = torch.cholesky_solve(pull, self.factor)  # the weights are M^-1 S'r
            crossed = by_projected @ self.weights.T
            lower = torch.linalg.solve_triangular(self.factor.T, self._overlap, upper=True)
            overlap = torch.linalg.solve_triangular(self.factor.T, lower.T, upper=True)
            by_matrix = 0.5 * t * (overlap + 2 * inverse - inverse @ self._own @ inverse)
            by_matrix -= 0.5 * (crossed + crossed.T)
            by_smooth = by_matrix + 0.5 * outer - 0.5 * t * inverse
            by_own = by_matrix - 0.5 * t * torch.cholesky_inverse(cholesky(self._own, "S'NS"))
        else:
            by_projected = self.weights
            by_matrix = by_smooth = by_own = 0.5 * (t * inverse - outer)
        # The derivatives below are those of the loss to minimize, which has the opposite sign of the value.
        by_entries = self._entries_before_kernel(by_smooth, by_own, by_projected) if by_actions else None
        by_noise = actions.row_quadratics(by_own)
        by_prior = torch.zeros_like(noise)
        if self.loss == "elbo":
            deviations = self.unseen + noise[:, None] * actions.combine(self.weights)
            by_noise += 0.5 * (t - deviations.square().sum(1) / noise - t * self._variances / noise) / noise
            by_prior = 0.5 * t / noise
        by_product = self._replace_product(by_smooth)
        found = actions.kernel_gradient(self.matrix, by_product)
        for name, value in self._diagonal_gradient(by_prior, by_noise).items():
            found[name] = found[name] + value
        found[NOISE] = by_noise.sum().cpu()
        if by_entries is not None:
            if self.loss == "elbo":
                assert isinstance(actions, LearnableActions)
                by_entries += actions.kernel_product_at(self.matrix, by_product)
            found[ACTIONS] = by_entries.cpu()
        return {name: -value for name, value in found.items()}

    def _project_unseen(self) -> Tensor:
        """Return ``-(KS)' N^-1 (r - H S v)``, the derivative of the ELBO's loss by the weights."""
        scaled = self.unseen / self.noise[:, None]
        pull = torch.zeros_like(self.weights)
        for rows in row_blocks(self.table.n_rows, self.actions.count):
            pull.addmm_(self._product[rows].double().T, scaled[rows], alpha=-1)
        return pull

    def _entries_before_kernel(self, by_smooth: Tensor, by_own: Tensor, by_projected: Tensor) -> Tensor:
        """Return the derivative by the entries of S; for the ELBO, without the part that passes through ``K @ S``."""
        actions = self.actions
        assert isinstance(actions, LearnableActions)
        found = actions.outer_at(self._product, by_smooth)
        if self.loss == "projected":  # K S occurs only in G, which contains S twice
            found = 2 * found
            identity = actions.gram(torch.ones_like(self.noise))
            inverse = torch.cholesky_inverse(cholesky(identity, "S'S"))
            found -= self.table.n_targets * actions.combine_at(inverse)
        found += 2 * actions.combine_at(by_own, self.noise)
        return found + actions.outer_at(self.residual, by_projected)

    def _replace_product(self, by_smooth: Tensor) -> Tensor:
        """Overwrite ``K @ S`` with the derivative of the loss by it, and return the result."""
        product, t = self._product, self.table.n_targets
        inverse = torch.cholesky_inverse(self.factor)
        for rows in row_blocks(self.table.n_rows, self.actions.count):
            found = self.actions.combine(by_smooth, rows)
            if self.loss == "elbo":
                noise = self.noise[rows, None]
                deviations = self.unseen[rows] + noise * self.actions.combine(self.weights, rows)
                found -= deviations / noise @ self.weights.T
                found -= t * (product[rows].double() @ inverse) / noise
            product[rows] = found.to(product.dtype)
        return product

    def _diagonal_gradient(self, by_prior: Tensor, by_noise: Tensor) -> dict[str, Tensor]:
        """Return the derivatives through the prior variances and the kernel's white terms."""
        kernel, X = self.model.kernel, self.table.X
        with torch.enable_grad():
            values = {name: value.detach().clone().requires_grad_() for name, value in kernel.parameters().items()}
            moved = kernel.replace(values)
            scalar = (moved.diagonal(X).double() * by_prior).sum() + (moved.white(X).double() * by_noise).sum()
            if not scalar.requires_grad:
                return {}
            found = torch.autograd.grad(scalar, list(values.values()), allow_unused=True)
        return {name: value for name, value in zip(values, found, strict=True) if value is not None}
