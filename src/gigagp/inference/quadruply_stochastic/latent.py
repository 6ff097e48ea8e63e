"""The lower bound of a likelihood that is not Gaussian, with the kernel itself in place of a basis: for few rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.left_out import without_own_terms
from gigagp.inference.contract.objective import TableObjective
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.contract.trend import Trend
from gigagp.inference.quadruply_stochastic.expectation import STEPS, ExpectedFit, Step, climb, expected_fit
from gigagp.model.likelihoods import Likelihood
from gigagp.model.model import Model
from gigagp.operators.base import LinearOperator
from gigagp.optimization.objective import Evaluation
from gigagp.products.dense import cholesky, symmetric_inverse, triangular_inverse
from gigagp.runtime.memory import require
from gigagp.solvers.krylov import Recurrence

#: Gain in nats an observation that ends a search.
_TOLERANCE = 1e-7
#: Share of the prior precision up to which a row says next to nothing.
_SAYS_LITTLE = 1e-3
#: Share of a change of the curvature that the next one may undo.
_UNDONE = 0.3
#: Most conjugate gradient steps for a Newton step, and the relative error in its own norm that ends them.
_INNER, _INNER_RESIDUAL = 50, 1e-2
#: Square arrays alive at once, and rows that are predicted together.
_ARRAYS, _TOGETHER = 6, 1000


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
    #: change of the curvature in the step that led here
    moved: Tensor
    #: gain in nats of the last half of the steps, where their number ended the search
    missed: float = 0.0

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

    def __init__(self, table: TrainingTable, likelihood: Likelihood, nodes: int, tolerance: float = _TOLERANCE) -> None:
        super().__init__(table)
        n = table.n_rows
        require(8 * _ARRAYS * n * n, table.budget, f"The latent values at {n:,} rows", "Use fewer rows.")
        self.likelihood, self.nodes, self.tolerance = likelihood, nodes, tolerance
        self._targets, self._basis = table.Y.double(), learned_basis(table, likelihood)
        self._last: Sites | None = None
        #: what has been learned from before, and its rows, which tell where the first search starts
        self._learner: tuple[LatentObjective, Tensor] | None = None

    def thin(self, rows: Tensor) -> LatentObjective:
        found = LatentObjective(self.table.take_rows(rows), self.likelihood, self.nodes, self.tolerance)
        self._learner = found, rows
        return found

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
        if self._last is None and self._learner is not None:
            self._last = sites_from(*self._learner, model, self.table)
        given = self._basis, noise, self._targets, self.likelihood, self.nodes
        found = best_latent(K, *given, self._last, self.tolerance)
        self._last = found.sites(K, self._basis, found.fit.bend)
        return found

    @torch.no_grad()
    def left_out_densities(self, model: Model, generator: torch.Generator) -> Tensor:
        """Return the log density of each row given all others, whose terms count as Gaussian."""
        best, X, noise = self._maximise(model), self.table.X.double(), self._noise(model)
        K = model.kernel.block(X, X)
        latent = self._basis @ best.coefficients + K @ best.alpha
        variance = _variance(K, best.curvature, best.factor).clamp_min(1e-30)
        own = best.fit.slope, best.fit.bend.mean(1), K.diagonal()
        mean, variance = without_own_terms(latent, variance, *own)
        given = self._targets, mean, variance.sqrt()[:, None], noise[:, None]
        return self.likelihood.predictive_log_density(*given).sum(1)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, object]]:
        return ({} if self._last is None else self._last._asdict()), {}

    def restore(self, model: Model, tensors: dict[str, Tensor], header: dict[str, object]) -> None:
        if tensors:
            self._last = Sites(**{name: tensors.pop(name) for name in Sites._fields})


@torch.no_grad()
def sites_from(objective: LatentObjective, rows: Tensor, model: Model, table: TrainingTable) -> Sites:
    """Return sites for all rows of a table, from the distribution of the latent values that some ``rows`` give.

    A search that starts there takes few steps, also where labels are far from even.
    """
    best, X, parts = objective._maximise(model.take_rows(rows)), objective.table.X.double(), []
    root, basis = best.curvature.sqrt()[:, None], learned_basis(table, objective.likelihood)
    for some in torch.arange(table.n_rows, device=X.device).split(_TOGETHER):
        points = table.X[some].double()
        cross = model.kernel.block(X, points)
        known = torch.linalg.solve_triangular(best.factor, root * cross, upper=False).square().sum(0)
        latent = cross.T @ best.alpha + basis[some] @ best.coefficients
        variance = (model.kernel.diagonal(points) - known).clamp_min(1e-30)
        targets, noise = table.Y[some].double(), model.noise_of_rows(some, points)
        fit = expected_fit(objective.likelihood, targets, latent, variance, noise, objective.nodes)
        parts.append(Sites(fit.bend * latent + fit.slope, fit.bend))
    return Sites(*map(torch.cat, zip(*parts, strict=True)))


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
    most: int = STEPS,
) -> LatentPoint:
    """Return the highest bound over the mean's coefficients and the Gaussian distributions of the latent values.

    K is the prior covariance of the latent values (n, n), and ``basis`` the mean's (n, p), both float64. ``start`` is
    the result at a model nearby, or on some of the rows; it must be better than the prior. A gain of ``tolerance`` nats
    an observation ends the search, and so do ``most`` steps.
    """

    def at(
        alpha: Tensor, coefficients: Tensor, curvature: Tensor, moved: Tensor, factor: Tensor | None = None
    ) -> LatentPoint:
        root, known, t = curvature.sqrt(), K @ alpha, alpha.shape[1]
        factor = bent_factor(K, root) if factor is None else factor
        variance = _variance(K, curvature, factor).clamp_min(1e-30)
        fit = expected_fit(likelihood, targets, basis @ coefficients + known, variance, noise, nodes)
        # m - tr(S Sigma) is the trace of (K + W^-1)^-1 K = W (K^-1 + W)^-1.
        trace = float((curvature * variance).sum())
        divergence = 0.5 * (float((alpha * known).sum()) + t * (2 * float(factor.diagonal().log().sum()) - trace))
        return LatentPoint(alpha, coefficients, curvature, factor, fit, fit.value - divergence, moved)

    def steps_from(here: LatentPoint) -> Iterator[Step[LatentPoint]]:
        known = here.alpha, here.coefficients
        for bend, shares in here.fit.curvatures():
            curvature = next_curvature(here.curvature, here.moved, bend)
            alpha, coefficients, factor = newton_target(K, basis, here.sites(K, basis, bend), curvature, known)
            yield step(here, alpha, coefficients, curvature, factor), shares, math.inf
        # A parabola below the bound is one of the mean alone: with another covariance its step need not rise.
        yield step(here, alpha, coefficients, here.curvature, here.factor), [1.0], math.inf

    def step(
        here: LatentPoint, alpha: Tensor, coefficients: Tensor, curvature: Tensor, factor: Tensor
    ) -> Callable[[float], LatentPoint]:
        change = curvature - here.curvature
        return lambda share: at(
            here.alpha + share * (alpha - here.alpha),
            here.coefficients + share * (coefficients - here.coefficients),
            here.curvature + share * change if share < 1 else curvature,
            share * change,
            factor if share == 1 else None,
        )

    def under(sites: Sites) -> LatentPoint:
        curvature = sites.bend.mean(1)
        alpha, coefficients, factor = newton_target(K, basis, sites, curvature)
        return at(alpha, coefficients, curvature, torch.zeros_like(curvature), factor)

    nothing = Sites.of_likelihood(likelihood, targets, noise)
    here = under(nothing if start is None else start)
    if start is not None:
        prior = expected_fit(likelihood, targets, torch.zeros_like(targets), K.diagonal(), noise, nodes)
        # Counts can be far above what was expected of them, and rates beyond float64 under both.
        if not (math.isfinite(here.value) and here.value >= prior.value):
            here = under(nothing)
    found, _, missed = climb(here, steps_from, tolerance * targets.numel(), most)
    return found._replace(missed=missed)


def next_curvature(curvature: Tensor, moved: Tensor, bend: Tensor) -> Tensor:
    """Return the curvature to step to, of the covariance that all targets share: the mean of theirs, or on the way.

    With several classes such steps go too far and come back. Where one undoes much of the last one, by ``moved``, it
    ends at the zero of the line through both changes.
    """
    change, length = bend.mean(1) - curvature, float(moved.square().sum())
    undone = -float(change @ moved) / length if length > 0 else 0.0
    return curvature + change / (1 + undone) if undone > _UNDONE else bend.mean(1)


def _variance(K: Tensor, curvature: Tensor, factor: Tensor) -> Tensor:
    """Return the diagonal of ``(K^-1 + W)^-1`` for ``W = diag(curvature)``, shape (n,).

    It is ``(1 - diag (I + W^1/2 K W^1/2)^-1) / W``, which takes a third of the work of the diagonal of ``K - K W^1/2 (I
    + W^1/2 K W^1/2)^-1 W^1/2 K``. Its error is a rounding over W, so that rows that say next to nothing have the other
    form, whose error is a rounding of the prior variance.
    """
    prior = K.diagonal()
    weak = curvature * prior <= _SAYS_LITTLE
    found = (1 - triangular_inverse(factor).square().sum(0)) / curvature
    if bool(weak.any()):
        half = torch.linalg.solve_triangular(factor, curvature.sqrt()[:, None] * K[:, weak], upper=False)
        found[weak] = prior[weak] - half.square().sum(0)
    return found


def newton_target(
    K: Tensor, basis: Tensor, sites: Sites, curvature: Tensor, known: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha and coefficients of the mean under sites: those after a full Newton step, where these are Newton's.

    It is kriging of the working targets ``pull / bend`` under the noise ``1 / bend`` (Rasmussen and Williams 2006, Alg.
    3.1), with generalised least squares for the coefficients. Also returned is the factor of the point with a
    ``curvature``, (n,). Where that is not the one of a single target, conjugate gradients with this factor as
    preconditioner solve for the change of ``known``, alpha and coefficients nearby.
    """
    root = curvature.sqrt()
    factor = bent_factor(K, root)
    if sites.bend.shape[1] > 1 or not torch.equal(curvature, sites.bend[:, 0]):
        return *_target_by_iteration(K, basis, sites, root, factor, known), factor
    solved = _solve_one(K, sites, root, factor)
    of_basis = bent_solve(factor, root, basis)
    trend = Trend.from_products(basis.T @ of_basis, basis.T @ solved).coefficients
    return solved - of_basis @ trend, trend, factor


def _solve_one(K: Tensor, sites: Sites, root: Tensor, factor: Tensor) -> Tensor:
    """Return ``(I + W K)^-1 pull`` for one target.

    It is ``W^1/2 (I + W^1/2 K W^1/2)^-1 W^-1/2 pull`` where a site says more than the prior. Elsewhere W may be zero,
    and it is ``pull`` less a correction, which cancels where a site says much.
    """
    pull = sites.pull
    says_more = sites.bend * K.diagonal()[:, None] > 1
    weak = pull.where(~says_more, 0.0)
    right = (pull / root[:, None]).where(says_more, 0.0) - root[:, None] * (K @ weak)
    return weak + root[:, None] * torch.cholesky_solve(right, factor)


def _target_by_iteration(
    K: Tensor, basis: Tensor, sites: Sites, root: Tensor, factor: Tensor, known: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return alpha and coefficients under sites; an error of the solve is one of the step from ``known`` alone."""
    (n, t), p = sites.pull.shape, basis.shape[1]
    alpha, coefficients = (sites.pull.new_zeros(size, t) for size in (n, p)) if known is None else known
    pull = sites.pull - sites.bend * (basis @ coefficients + K @ alpha) - alpha
    of_trend = sites.bend[:, :, None] * basis[:, None, :]
    right = torch.cat([pull[:, :, None], of_trend], 2).flatten(1)
    system = _BentSystem(K, sites.bend.repeat_interleave(1 + p, 1), root, factor)
    run = Recurrence(system, right.new_zeros(2 * n, t * (1 + p)), system.pair(right), system.precondition)
    solved = run.run(_INNER_RESIDUAL, _INNER)[:n].reshape(n, t, 1 + p)
    each = []
    for k in range(t):
        moved, of_basis = alpha[:, k, None] + solved[:, k, :1], solved[:, k, 1:]
        trend = Trend.from_products(basis.T @ of_basis, basis.T @ moved).coefficients
        each.append((moved - of_basis @ trend, coefficients[:, k, None] + trend))
    new_alpha, new_coefficients = (torch.cat(parts, 1) for parts in zip(*each, strict=True))
    return new_alpha, new_coefficients


class _BentSystem(LinearOperator):
    """``I + W_k K`` with a W for each column, which is self-adjoint in the inner product ``u' K v``.

    A vector v is the pair of v and ``K v``, so that a step takes two products with K.
    """

    def __init__(self, K: Tensor, bend: Tensor, root: Tensor, factor: Tensor) -> None:
        self._K, self._bend, self._root, self._factor = K, bend, root, factor
        self.n, self.dtype, self.device = 2 * len(K), K.dtype, K.device

    @property
    def dimension(self) -> int:
        return len(self._K)

    def pair(self, v: Tensor) -> Tensor:
        """Return v and ``K v``."""
        return torch.cat([v, self._K @ v])

    def __matmul__(self, vectors: Tensor) -> Tensor:
        weighed = self._bend * vectors[self.dimension :]
        return vectors + self.pair(weighed)

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        return (left[: self.dimension] * right[self.dimension :]).sum(0)

    def precondition(self, vectors: Tensor) -> Tensor:
        """Return the solutions for the W that ``root`` and ``factor`` are of."""
        v, known = vectors.split(self.dimension)
        return self.pair(v - bent_solve(self._factor, self._root, known))


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
