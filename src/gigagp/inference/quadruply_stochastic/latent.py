"""The lower bound of a likelihood that is not Gaussian, with the kernel itself in place of a basis: for few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.quadruply_stochastic.expectation import ExpectedFit, Step, climb, expected_fit
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import cholesky, symmetric_inverse, triangular_inverse
from gigagp.runtime.memory import require

#: Gain in nats an observation that ends a search.
_TOLERANCE = 1e-7
#: Square arrays alive at once.
_ARRAYS = 6


class Sites(NamedTuple):
    """Gaussian factors that stand for the likelihood, ``exp(pull f - bend f^2 / 2)`` for each row and target.

    They stay near their best when hyperparameters change a little, which the latent values need not do. Both have the
    shape (n, t).
    """

    pull: Tensor
    bend: Tensor

    @classmethod
    def of_likelihood(cls, likelihood: Likelihood, targets: Tensor, noise: Tensor) -> Sites:
        """Return sites to start from: Gaussian noise of the same variance, or nothing known of labels and counts."""
        flat = torch.full_like(targets, likelihood.start_curvature(targets, float(noise.mean())))
        return cls(flat * targets if likelihood.has_noise else torch.zeros_like(targets), flat)


class LatentPoint(NamedTuple):
    """The bound at the mean ``f = Phi coefficients + K alpha`` and the covariance ``(K^-1 + diag(curvature))^-1``.

    Phi is the mean's basis.
    """

    alpha: Tensor
    coefficients: Tensor
    #: W, shape (n,)
    curvature: Tensor
    #: Cholesky factor of ``I + W^1/2 K W^1/2``
    factor: Tensor
    fit: ExpectedFit
    value: float

    def sites(self, K: Tensor, basis: Tensor, bend: Tensor) -> Sites:
        """Return the sites with curvatures ``bend``, (n, t), that have the slopes of the likelihood here."""
        return Sites(bend * (basis @ self.coefficients + K @ self.alpha) + self.fit.slope, bend)

    def tangent(self, K: Tensor, noise: Tensor) -> Tensor:
        """Return a linear function of K and the noise variances (n,) with the derivatives of the highest bound.

        To be called at that bound, where the derivatives by the distribution are zero.
        """
        t, root = self.alpha.shape[1], self.curvature.sqrt()
        inverse = symmetric_inverse(self.factor)
        by_kernel = 0.5 * (self.alpha @ self.alpha.T - t * root[:, None] * inverse * root)
        return (K * by_kernel).sum() + (noise * self.fit.of_noise).sum()


class LatentObjective(TableObjective):
    """The highest lower bound over all Gaussian distributions of the latent values at the rows, one covariance for all.

    Weights of infinitely many basis functions would reach the same bound. The best covariance has the form ``(K^-1 +
    W)^-1``, so it needs n numbers (Opper and Archambeau 2009, "The variational Gaussian approximation revisited",
    https://doi.org/10.1162/neco.2008.08-07-592). With several targets W is the mean of theirs, as in the bound that is
    learned from samples.

    A step costs O(n^3). The objective finds the hyperparameters that the labels or counts of some rows prefer.
    """

    deterministic = True
    is_likelihood = False  # the value is a lower bound

    def __init__(self, table: TrainingTable, likelihood: Likelihood, nodes: int) -> None:
        super().__init__(table)
        n = table.n_rows
        require(8 * _ARRAYS * n * n, table.budget, f"The latent values at {n:,} rows", "Use fewer rows.")
        self.likelihood, self.nodes = likelihood, nodes
        self._targets, self._basis = table.Y.double(), learned_basis(table, likelihood)
        self._last: Sites | None = None

    def thin(self, rows: Tensor) -> LatentObjective:
        return LatentObjective(self.table.take_rows(rows), self.likelihood, self.nodes)

    def current_posterior(self) -> None:
        """Return None: only hyperparameters are learned from this objective."""

    def posterior(self, model: Model, generator: torch.Generator) -> Posterior:
        raise InvalidInputError("this objective has no posterior; fit the weights of a basis at its hyperparameters.")

    def evaluate(self, model: Model) -> Evaluation:
        """Return the highest bound and its derivatives, in which the best distribution counts as constant."""
        best = self._maximise(model)
        parameters = model.parameters()
        with torch.enable_grad():
            values = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
            live, X = model.replace(values), self.table.X.double()
            tangent = best.tangent(live.kernel.block(X, X), self._noise(live))
            slopes = torch.autograd.grad(tangent, list(values.values()), allow_unused=True)
        found = {
            name: torch.zeros_like(parameters[name]) if slope is None else slope
            for name, slope in zip(values, slopes, strict=True)
        }
        return Evaluation(best.value, found)

    def _noise(self, model: Model) -> Tensor:
        X = self.table.X.double()
        return model.noise_variance.to(X).expand(len(X)) + model.kernel.white(X)

    @torch.no_grad()
    def _maximise(self, model: Model) -> LatentPoint:
        X = self.table.X.double()
        K, noise = model.kernel.block(X, X), self._noise(model)
        found = best_latent(K, self._basis, noise, self._targets, self.likelihood, self.nodes, self._last)
        self._last = found.sites(K, self._basis, found.fit.bend)
        return found

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        return ({} if self._last is None else self._last._asdict()), {}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, object]) -> None:
        if tensors:
            self._last = Sites(**{name: tensors.pop(name) for name in Sites._fields})


def learned_basis(table: TrainingTable, likelihood: Likelihood) -> Tensor:
    """Return the mean's basis at the rows, (n, p), float64; p = 0 for labels and counts, which have no trend."""
    return table.basis.double()[:, : table.basis.shape[1] if likelihood.has_noise else 0]


def least_squares(basis: Tensor, targets: Tensor) -> Tensor:
    """Return coefficients (p, t) to start a search from: far from the targets a likelihood may have no curvature."""
    return Trend.from_products(basis.T @ basis, basis.T @ targets.double()).coefficients


def best_latent(
    K: Tensor,
    basis: Tensor,
    noise: Tensor,
    targets: Tensor,
    likelihood: Likelihood,
    nodes: int,
    start: Sites | None = None,
    tolerance: float = _TOLERANCE,
) -> LatentPoint:
    """Return the highest bound over the mean's coefficients and the Gaussian distributions of the latent values.

    K is the prior covariance of the latent values (n, n), and ``basis`` the mean's (n, p), both float64. ``start`` is
    the result at a model nearby. A gain of ``tolerance`` nats an observation ends the search.
    """

    def at(alpha: Tensor, coefficients: Tensor, curvature: Tensor, factor: Tensor | None = None) -> LatentPoint:
        root, known, t = curvature.sqrt(), K @ alpha, alpha.shape[1]
        factor = bent_factor(K, root) if factor is None else factor
        variance = _variance(K, curvature, factor).clamp_min(1e-30)
        fit = expected_fit(likelihood, targets, basis @ coefficients + known, variance, noise, nodes)
        # m - tr(S Sigma) is the trace of (K + W^-1)^-1 K = W (K^-1 + W)^-1.
        trace = float((curvature * variance).sum())
        divergence = 0.5 * (float((alpha * known).sum()) + t * (2 * float(factor.diagonal().log().sum()) - trace))
        return LatentPoint(alpha, coefficients, curvature, factor, fit, fit.value - divergence)

    def steps_from(here: LatentPoint) -> Iterator[Step[LatentPoint]]:
        for bend, shares in here.fit.curvatures():
            alpha, coefficients, factor = newton_target(K, basis, here.sites(K, basis, bend))
            yield step(here, alpha, coefficients, bend.mean(1), factor), shares, math.inf
        # A parabola below the bound is one of the mean alone: with another covariance its step need not rise.
        yield step(here, alpha, coefficients, here.curvature, here.factor), [1.0], math.inf

    def step(
        here: LatentPoint, alpha: Tensor, coefficients: Tensor, curvature: Tensor, factor: Tensor | None
    ) -> Callable[[float], LatentPoint]:
        return lambda share: at(
            here.alpha + share * (alpha - here.alpha),
            here.coefficients + share * (coefficients - here.coefficients),
            here.curvature + share * (curvature - here.curvature) if share < 1 else curvature,
            factor if share == 1 else None,
        )

    start = start or Sites.of_likelihood(likelihood, targets, noise)
    alpha, coefficients, factor = newton_target(K, basis, start)
    here = at(alpha, coefficients, start.bend.mean(1), factor)
    return climb(here, steps_from, tolerance * targets.numel())[0]


def _variance(K: Tensor, curvature: Tensor, factor: Tensor) -> Tensor:
    """Return the diagonal of ``(K^-1 + W)^-1`` for ``W = diag(curvature)``, shape (n,).

    It is that of ``K - K W^1/2 (I + W^1/2 K W^1/2)^-1 W^1/2 K``, whose error is a rounding of the prior variance. Where
    the rows say more than that, ``(1 - diag (I + W^1/2 K W^1/2)^-1) / W`` has a smaller one.
    """
    half = torch.linalg.solve_triangular(factor, curvature.sqrt()[:, None] * K, upper=False)
    by_rows = (1 - triangular_inverse(factor).square().sum(0)) / curvature
    return by_rows.where(curvature * K.diagonal() > 1, K.diagonal() - half.square().sum(0))


def newton_target(K: Tensor, basis: Tensor, sites: Sites) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return alpha and coefficients of the mean under sites: those after a full Newton step, where these are Newton's.

    It is kriging of the working targets ``pull / bend`` under the noise ``1 / bend`` (Rasmussen and Williams 2006, Alg.
    3.1), with generalised least squares for the coefficients. For one target its factor is also that of the point which
    a full step leads to, and is returned too.

    ``alpha = W^1/2 (I + W^1/2 K W^1/2)^-1 W^-1/2 pull`` where a site says more than the prior. Elsewhere W may be zero,
    and alpha is ``pull`` less a correction, which cancels where a site says much.
    """
    alpha, coefficients, factor = [], [], None
    for pull, bend in zip(sites.pull.T, sites.bend.T, strict=True):
        root = bend.sqrt()
        factor = bent_factor(K, root)
        says_more = (bend * K.diagonal() > 1)[:, None]
        weak = pull[:, None].where(~says_more, 0.0)
        right = (pull / root)[:, None].where(says_more, 0.0) - root[:, None] * (K @ weak)
        solved = weak + root[:, None] * torch.cholesky_solve(right, factor)
        of_basis = bent_solve(factor, root, basis)
        trend = Trend.from_products(basis.T @ of_basis, basis.T @ solved).coefficients
        alpha.append(solved - of_basis @ trend)
        coefficients.append(trend)
    return torch.cat(alpha, 1), torch.cat(coefficients, 1), factor if len(alpha) == 1 else None


def curved_solve(K: Tensor, curvature: Tensor, right: Tensor) -> Tensor:
    """Return ``(K + W^-1)^-1 right`` for ``W = diag(curvature)``, which may have zeros; shapes (n, n), (n,), (n, q)."""
    root = curvature.sqrt()
    return bent_solve(bent_factor(K, root), root, right)


def bent_solve(factor: Tensor, root: Tensor, right: Tensor) -> Tensor:
    """Return the same from the factor that `bent_factor` gives, and ``root = W^1/2``."""
    return root[:, None] * torch.cholesky_solve(root[:, None] * right, factor)


def bent_factor(K: Tensor, root: Tensor) -> Tensor:
    """Return the Cholesky factor of ``I + W^1/2 K W^1/2`` for ``root = W^1/2``; its eigenvalues are 1 or more."""
    matrix = root[:, None] * K * root
    matrix.diagonal().add_(1.0)
    return cholesky(matrix, "the curvature of the latent values")
