"""The Gaussian distribution of the weights that maximises the bound of all rows and functions, by Newton's method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.divergence import dense_divergence, times
from gigagp.inference.quadruply_stochastic.expectation import STEPS, ExpectedFit, Step, climb, expected_fit
from gigagp.inference.quadruply_stochastic.latent import Sites, least_squares, next_curvature
from gigagp.inference.quadruply_stochastic.rows_covariance import OpenTrend
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.operators.base import LinearOperator
from gigagp.products.dense import cholesky, triangular_inverse
from gigagp.solvers.krylov import Recurrence

#: Most conjugate gradient steps for a Newton step of the mean, and the relative error in its own norm that ends them.
_INNER, _INNER_RESIDUAL = 30, 1e-4


class Start(NamedTuple):
    """The place at which a search starts."""

    #: of the weights, shape (m, t)
    mean: Tensor
    #: coefficients of the mean's basis, shape (p, t)
    trend: Tensor
    #: of the log-likelihood at the rows, shape (n,); it decides the root
    curvature: Tensor


@dataclass(frozen=True, eq=False)
class Point:
    """The bound at one mean, with the best root for one curvature; see `Start`."""

    search: WeightSearch
    mean: Tensor
    trend: Tensor
    curvature: Tensor
    #: ``S + Phi' diag(curvature) Phi``
    precision: Tensor
    root: Tensor
    #: of the latent values, shape (n,)
    variance: Tensor
    fit: ExpectedFit
    value: float
    #: change of the curvature in the step that led here
    moved: Tensor

    @cached_property
    def factor(self) -> Tensor:
        """Cholesky factor of the precision."""
        return _factor(self.precision)

    @cached_property
    def open_trend(self) -> OpenTrend:
        """The uncertainty that the rows leave about ``trend``."""
        return OpenTrend.at_weights(self.search.Phi, self.curvature, self.factor, self.search.mean_basis)

    def to_start(self, kept: Tensor | None = None) -> Start:
        """Return the point as a start, of all functions or of those ``kept``."""
        return Start(self.mean if kept is None else self.mean[kept], self.trend, self.curvature)


@dataclass(frozen=True, eq=False)
class WeightSearch:
    """The bound of all rows and functions at one model, as a function of the weights' distribution; all in float64.

    For a Gaussian likelihood the exact posterior maximises it, and one step gets there. For the others the mean takes
    Newton steps while the root's precision follows ``S + Phi' W Phi``, ``W = -E (log g)''`` at every row: natural
    gradient steps of length one, halved where the bound would fall (Khan and Lin 2017,
    https://arxiv.org/abs/1703.04265). Where these do not raise the bound, steps by another curvature do
    (`ExpectedFit.curvatures`). Where the root is a chevron, its columns are the best ones for the same precision.

    A step costs O(n m^2 + m^3).
    """

    Phi: Tensor
    #: prior precision, shape (m, m), or its diagonal, shape (m,)
    S: Tensor
    noise: Tensor
    targets: Tensor
    #: shape (n, p); p = 0 where the mean's coefficients are held at zero
    mean_basis: Tensor
    likelihood: Likelihood
    #: dense columns of the root; None: all
    n_columns: int | None
    #: of the quadrature
    nodes: int

    def start(self, known: Start | None) -> Start:
        """Return where to start: at ``known``, the result at a model nearby, or knowing nothing."""
        if known is None:
            mean = self.Phi.new_zeros(self.Phi.shape[1], self.targets.shape[1])
            curvature = self.likelihood.start_curvature(self.targets, float(self.noise.mean()))
            flat = self.Phi.new_full((len(self.Phi),), curvature)
            known = Start(mean, least_squares(self.mean_basis, self.targets), flat)
        return known._replace(curvature=1 / self.noise) if isinstance(self.likelihood, Gaussian) else known

    def maximise(self, start: Start | Sites, tolerance: float, most: int = STEPS) -> tuple[Point, float]:
        """Return the best point, and the gain in nats that the last step promised.

        A gain of ``tolerance`` nats an observation ends the search, and so do ``most`` steps. A large promise means
        that it has ended early.
        """
        here = self._at_sites(start) if isinstance(start, Sites) else self._at(*start)
        found, promised, missed = climb(here, self._steps_from, tolerance * self.targets.numel(), most)
        return found, max(promised, missed)

    def _steps_from(self, here: Point) -> Iterator[Step[Point]]:
        for bend, shares in here.fit.curvatures():
            change, by_trend, promised = self._step(here, bend)
            curvature = next_curvature(here.curvature, here.moved, bend)
            yield self._along(here, change, by_trend, curvature - here.curvature), shares, promised
        # A parabola below the bound is one of the mean alone: with another covariance its step need not rise.
        yield self._along(here, change, by_trend, torch.zeros_like(here.curvature)), [1.0], promised

    def _along(self, here: Point, change: Tensor, by_trend: Tensor, bend: Tensor) -> Callable[[float], Point]:
        return lambda share: self._at(
            here.mean + share * change, here.trend + share * by_trend, here.curvature + share * bend, here
        )

    def _at_sites(self, sites: Sites) -> Point:
        """Return the point at the best distribution under sites, or one that knows nothing if that is better."""
        (m, t), p = (self.Phi.shape[1], self.targets.shape[1]), self.mean_basis.shape[1]
        zero = self._at(self.Phi.new_zeros(m, t), self.Phi.new_zeros(p, t), sites.bend.mean(1))
        # The log-likelihood of sites has the slope ``pull`` where all latent values are zero.
        mean, trend, _ = self._step(replace(zero, fit=zero.fit._replace(slope=sites.pull)), sites.bend)
        found = self._at(mean, trend, zero.curvature, zero)
        return found if found.value >= zero.value else self._at(*self.start(None))

    def _at(self, mean: Tensor, trend: Tensor, curvature: Tensor, known: Point | None = None) -> Point:
        """Return the point at a mean, trend and curvature; the root of a known point serves the same curvature."""
        if known is not None and torch.allclose(curvature, known.curvature, rtol=1e-10, atol=0.0):
            precision, root, variance = known.precision, known.root, known.variance
        else:
            precision, m = self._precision(curvature), len(self.S)
            root = chevron_of(precision, m if self.n_columns is None else min(self.n_columns, m))
            variance = (self.Phi @ root).square().sum(1)
        latent = self.Phi @ mean + self.mean_basis @ trend
        fit = expected_fit(self.likelihood, self.targets, latent, variance, self.noise, self.nodes)
        value = fit.value - float(dense_divergence(self.S, mean, root))
        moved = torch.zeros_like(curvature) if known is None else curvature - known.curvature
        return Point(self, mean, trend, curvature, precision, root, variance, fit, value, moved)

    def _precision(self, curvature: Tensor) -> Tensor:
        """Return ``S + Phi' diag(curvature) Phi``."""
        precision = self.Phi.T @ (self.Phi * curvature[:, None])
        if self.S.ndim == 1:
            precision.diagonal().add_(self.S)
        else:
            precision += self.S
        return precision

    def _step(self, here: Point, bend: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return the step of the mean (m, t) and of the trend (p, t) with curvatures (n, t), and the gain it promises.

        A target alone has one factor. Several have their own curvatures, and the precision of the root, which has
        one curvature for all, is the preconditioner of conjugate gradients.
        """
        slope, m = here.fit.slope, self.Phi.shape[1]
        gradient = torch.cat([self.Phi.T @ slope - times(self.S, here.mean), self.mean_basis.T @ slope])
        if slope.shape[1] == 1:
            curvature = bend[:, 0]
            factor = _factor(self._precision(curvature))
            open_trend = OpenTrend.at_weights(self.Phi, curvature, factor, self.mean_basis)
            step = self._solver(curvature, factor, open_trend)(gradient)
        else:
            step = self._solve(bend, gradient, self._solver(here.curvature, here.factor, here.open_trend))
        return step[:m], step[m:], 0.5 * float((gradient * step).sum())

    def _solver(self, curvature: Tensor, factor: Tensor, open_trend: OpenTrend) -> Callable[[Tensor], Tensor]:
        """Return the solution of minus the bound's second derivative by weights and trend, for a curvature (n,)."""
        m = self.Phi.shape[1]
        cross = self.Phi.T @ (curvature[:, None] * self.mean_basis)

        def solve(v: Tensor) -> Tensor:
            weights = torch.cholesky_solve(v[:m], factor)
            trend = open_trend.root @ (open_trend.root.T @ (v[m:] - cross.T @ weights))
            return torch.cat([weights - open_trend.solutions @ trend, trend])

        return solve

    def _solve(self, bend: Tensor, gradient: Tensor, precondition: Callable[[Tensor], Tensor]) -> Tensor:
        run = Recurrence(_NegativeHessian(self, bend), torch.zeros_like(gradient), gradient.clone(), precondition)
        return run.run(_INNER_RESIDUAL, _INNER)


class _NegativeHessian(LinearOperator):
    """Minus the second derivative of the bound by weights and trend, stacked: one matrix for each column (target)."""

    def __init__(self, search: WeightSearch, bend: Tensor) -> None:
        self._search, self._bend = search, bend
        self.n = search.Phi.shape[1] + search.mean_basis.shape[1]
        self.dtype, self.device = search.Phi.dtype, search.Phi.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        Phi, basis, S = self._search.Phi, self._search.mean_basis, self._search.S
        weights, trend = vectors[: Phi.shape[1]], vectors[Phi.shape[1] :]
        weighed = self._bend * (Phi @ weights + basis @ trend)
        return torch.cat([Phi.T @ weighed + times(S, weights), basis.T @ weighed])


def _factor(precision: Tensor) -> Tensor:
    return cholesky(precision, "the posterior precision of the weights")


def chevron_of(precision: Tensor, n_columns: int) -> Tensor:
    """Return the best root for a posterior precision ``Phi' W Phi + S``: its first columns dense, the others diagonal.

    The loss separates over columns. A dense column equals that of the exact root; a diagonal one is Proposition 1's.
    """
    m = len(precision)
    root = torch.diag(precision.diagonal().rsqrt())
    if n_columns:
        # P in reversed order has a lower factor; put back in order that is P = U U' with U upper triangular, and the
        # lower factor of the inverse of P is U'^-1.
        reversed_factor = _factor(precision.flip(0, 1))
        exact = triangular_inverse(reversed_factor).T.flip(0, 1)
        root[:, : min(n_columns, m)] = exact[:, : min(n_columns, m)]
    return root
