"""The Gaussian distribution of the weights that maximises the bound of all rows and functions, by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.inference.quadruply_stochastic.divergence import dense_divergence, times
from gigagp.inference.quadruply_stochastic.expectation import ExpectedFit, expected_fit
from gigagp.inference.quadruply_stochastic.latent import least_squares
from gigagp.inference.quadruply_stochastic.trend import OpenTrend
from gigagp.model.likelihoods import Gaussian, Likelihood
from gigagp.operators.base import LinearOperator
from gigagp.products.dense import cholesky, triangular_inverse
from gigagp.solvers.krylov import Recurrence

#: Most steps at one model.
_STEPS = 50
#: Most conjugate gradient steps for a Newton step of the mean, and the relative error in its own norm that ends them.
_INNER, _INNER_RESIDUAL = 30, 1e-4


class Start(NamedTuple):
    """Where a search starts.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
        Of the weights.
    trend : Tensor of shape (p, t)
        Coefficients of the mean's basis.
    curvature : Tensor of shape (n,)
        Of the log-likelihood at the rows, which decides the root.
    """

    mean: Tensor
    trend: Tensor
    curvature: Tensor


class Point(NamedTuple):
    """The bound at one mean, with the best root for one curvature.

    Attributes
    ----------
    mean, trend, curvature : Tensor
        As in `Start`.
    factor : Tensor of shape (m, m)
        Cholesky factor of ``S + Phi' diag(curvature) Phi``.
    open_trend : OpenTrend
        What the rows leave open about ``trend``.
    root : Tensor of shape (m, m)
    variance : Tensor of shape (n,)
        Of the latent values.
    fit : ExpectedFit
        The expected log-likelihood.
    value : float
        The bound.
    """

    mean: Tensor
    trend: Tensor
    curvature: Tensor
    factor: Tensor
    open_trend: OpenTrend
    root: Tensor
    variance: Tensor
    fit: ExpectedFit
    value: float

    def to_start(self, kept: Tensor | None = None) -> Start:
        """Return the point as a start, of all functions or of those ``kept``."""
        return Start(self.mean if kept is None else self.mean[kept], self.trend, self.curvature)


@dataclass(frozen=True, eq=False)
class WeightSearch:
    """The bound of all rows and functions at one model, as a function of the weights' distribution.

    For a Gaussian likelihood the exact posterior maximises it, and one step gets there. For the others the mean takes
    Newton steps while the root's precision follows ``S + Phi' W Phi``, ``W = -E (log g)''`` at every row: natural
    gradient steps of length one, halved where the bound would fall (Khan and Lin 2017,
    https://arxiv.org/abs/1703.04265). Where these do not raise the bound, steps by another curvature do
    (`ExpectedFit.curvatures`). Where the root is a chevron, its columns are the best ones for the same precision.

    O(n m^2 + m^3) a step.

    Attributes
    ----------
    Phi : Tensor of shape (n, m)
        float64, as everything here.
    S : Tensor of shape (m,) or (m, m)
        Prior precision; a vector is its diagonal.
    noise : Tensor of shape (n,)
    targets : Tensor of shape (n, t)
    mean_basis : Tensor of shape (n, p)
        Without columns where the mean's coefficients are held at zero.
    likelihood : Likelihood
    n_columns : int or None
        Dense columns of the root; None: all.
    nodes : int
        Of the quadrature.
    """

    Phi: Tensor
    S: Tensor
    noise: Tensor
    targets: Tensor
    mean_basis: Tensor
    likelihood: Likelihood
    n_columns: int | None
    nodes: int

    def start(self, known: Start | None) -> Start:
        """Return where to start: at ``known``, the result at a model nearby, or knowing nothing."""
        if known is None:
            mean = self.Phi.new_zeros(self.Phi.shape[1], self.targets.shape[1])
            curvature = self.likelihood.start_curvature(self.targets, float(self.noise.mean()))
            flat = self.Phi.new_full((len(self.Phi),), curvature)
            known = Start(mean, least_squares(self.mean_basis, self.targets), flat)
        return known._replace(curvature=1 / self.noise) if isinstance(self.likelihood, Gaussian) else known

    def maximise(self, start: Start, tolerance: float) -> tuple[Point, float]:
        """Return the best point, and the gain in nats that the last step promised.

        A large promise means that the search has ended early.

        Parameters
        ----------
        start : Start
        tolerance : float
            Gain in nats an observation that ends the search.
        """
        least = tolerance * self.targets.numel()
        here, promised = self._at(start.mean, start.trend, start.curvature), 0.0
        for _ in range(_STEPS):
            there, promised = self._higher(here, least)
            if there is None:
                break
            gain, here = there.value - here.value, there
            if gain < least:
                break
        return here, promised

    def _higher(self, here: Point, least: float) -> tuple[Point | None, float]:
        """Return the first point of the steps from one that is higher by what goes on, else the highest of any gain.

        And the gain that the last step promised, by the curvature whose steps bring it.
        """
        found, promised = None, 0.0
        for bend, shares in here.fit.curvatures():
            step, by_trend, promised = self._step(here, bend)
            if found is not None and promised < least:
                break
            for share in shares if found is None else shares[:1]:
                curvature = here.curvature + share * (bend.mean(1) - here.curvature)
                there = self._at(here.mean + share * step, here.trend + share * by_trend, curvature, here)
                if there.value - here.value >= least:
                    return there, promised
                if there.value >= here.value:
                    found = there if found is None or there.value > found.value else found
                    break
        else:
            # A parabola below the bound is one of the mean alone: with another covariance its step need not rise.
            there = self._at(here.mean + step, here.trend + by_trend, here.curvature, here)
            found = there if there.value >= (here if found is None else found).value else found
        return found, promised

    def _at(self, mean: Tensor, trend: Tensor, curvature: Tensor, known: Point | None = None) -> Point:
        """Return the bound and what the next step needs; the root of a known point serves the same curvature."""
        if known is not None and torch.allclose(curvature, known.curvature, rtol=1e-10, atol=0.0):
            factor, open_trend, root, variance = known.factor, known.open_trend, known.root, known.variance
        else:
            precision = self.Phi.T @ (self.Phi * curvature[:, None])
            if self.S.ndim == 1:
                precision.diagonal().add_(self.S)
            else:
                precision += self.S
            factor = cholesky(precision, "the posterior precision of the weights")
            open_trend = OpenTrend.at_weights(self.Phi, curvature, factor, self.mean_basis)
            m = len(self.S)
            root = chevron_of(precision, m if self.n_columns is None else min(self.n_columns, m))
            variance = (self.Phi @ root).square().sum(1)
        latent = self.Phi @ mean + self.mean_basis @ trend
        fit = expected_fit(self.likelihood, self.targets, latent, variance, self.noise, self.nodes)
        value = fit.value - float(dense_divergence(self.S, mean, root))
        return Point(mean, trend, curvature, factor, open_trend, root, variance, fit, value)

    def _step(self, here: Point, bend: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return the step of the mean (m, t) and of the trend (p, t) with curvatures (n, t), and the gain it promises.

        By conjugate gradients: every target has a curvature of its own. The root has one for all, and its precision is
        the preconditioner. Where the two agree, the first step is exact.
        """
        m, curvature = self.Phi.shape[1], _NegativeHessian(self, bend)
        root, solutions = here.open_trend.root, here.open_trend.solutions
        cross = self.Phi.T @ (here.curvature[:, None] * self.mean_basis)

        def precondition(v: Tensor) -> Tensor:
            weights = torch.cholesky_solve(v[:m], here.factor)
            trend = root @ (root.T @ (v[m:] - cross.T @ weights))
            return torch.cat([weights - solutions @ trend, trend])

        slope = here.fit.slope
        gradient = torch.cat([self.Phi.T @ slope - times(self.S, here.mean), self.mean_basis.T @ slope])
        run = Recurrence(curvature, torch.zeros_like(gradient), gradient.clone(), precondition)
        first = run.gamma
        for _ in range(_INNER):
            if not run.finite or bool((run.gamma <= _INNER_RESIDUAL**2 * first).all()):
                break
            run.step()
        step = run.value
        return step[:m], step[m:], 0.5 * float((gradient * step).sum())


class _NegativeHessian(LinearOperator):
    """Minus the second derivative of the bound by weights and trend, stacked: one matrix for each column (target).

    Parameters
    ----------
    search : WeightSearch
    bend : Tensor of shape (n, t)
    """

    def __init__(self, search: WeightSearch, bend: Tensor) -> None:
        self._search, self._bend = search, bend
        self.n = search.Phi.shape[1] + search.mean_basis.shape[1]
        self.dtype, self.device = search.Phi.dtype, search.Phi.device

    def __matmul__(self, vectors: Tensor) -> Tensor:
        Phi, basis, S = self._search.Phi, self._search.mean_basis, self._search.S
        weights, trend = vectors[: Phi.shape[1]], vectors[Phi.shape[1] :]
        weighed = self._bend * (Phi @ weights + basis @ trend)
        return torch.cat([Phi.T @ weighed + times(S, weights), basis.T @ weighed])


def chevron_of(precision: Tensor, n_columns: int) -> Tensor:
    """Return the best root for a posterior precision: the first columns are dense, the others diagonal.

    The loss separates over columns. A dense column equals that of the exact root; a diagonal one is Proposition 1's.

    Parameters
    ----------
    precision : Tensor of shape (m, m)
        ``Phi' W Phi + S``.
    n_columns : int
    """
    m = len(precision)
    root = torch.diag(precision.diagonal().rsqrt())
    if n_columns:
        # P in reversed order has a lower factor; put back in order that is P = U U' with U upper triangular, and the
        # lower factor of the inverse of P is U'^-1.
        reversed_factor = cholesky(precision.flip(0, 1), "the posterior precision of the weights")
        exact = triangular_inverse(reversed_factor).T.flip(0, 1)
        root[:, : min(n_columns, m)] = exact[:, : min(n_columns, m)]
    return root
