"""Predictions at new points from the rows nearest to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours import batched
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.local import LOST
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.search import LARGEST
from gigagp.products import cross_covariance, select

#: Largest number of points that are predicted together.
_POINTS = 4096


class LocalWeights(NamedTuple):
    """Predictors of q points from rows.

    ``rows`` has those that any of the points is predicted from. For each point, ``places``, shape (q, m), has the
    positions of its neighbours in ``rows``, 0 where there are fewer, and ``weights`` their weights, 0 there too.
    ``variance`` is that of the latent function given the neighbours.
    """

    rows: Tensor
    places: Tensor
    weights: Tensor
    variance: Tensor

    def combine(self, values: Tensor) -> Tensor:
        """Return the predictions ``w' v`` for values of all rows, shape (n, k) to (q, k)."""
        return torch.einsum("qm,qmk->qk", self.weights, values[self.rows].to(self.weights)[self.places])


def within_reach(X: Tensor) -> Tensor:
    """Return points in float64, where those that have left the range of their units are far from all rows.

    The rows that a point is predicted from are compiled together with it, and infinity would cost them all digits.
    """
    return X.double().clamp(-LARGEST, LARGEST)


class LocalPredictor:
    """The best predictors of the latent function at points from the noisy values of m rows around each.

    ``noise`` is the variance of each row, including the kernel's white part. The ``graph`` finds the rows around a
    point. There are fewer than ``n_neighbours`` where there are fewer rows. ``budget`` is in bytes.
    """

    def __init__(
        self, kernel: Kernel, X: Tensor, noise: Tensor, graph: NeighbourGraph, n_neighbours: int, budget: int
    ) -> None:
        self.asked, self.n_neighbours = n_neighbours, min(n_neighbours, len(X))
        self.kernel, self._X, self._noise, self.graph, self._budget = kernel, X, noise, graph, budget

    def nearest(self, X: Tensor) -> Tensor:
        """Return the rows nearest to points, shape (q, m), -1 where there are fewer."""
        with torch.no_grad():
            return self.graph.neighbourhood.around(X.detach(), self.n_neighbours)

    def weights(self, X: Tensor) -> LocalWeights:
        """Return the predictors of points, shape (q, d), which may require gradients."""
        found = self.nearest(X)
        with torch.no_grad():
            present = found >= 0
            rows, places = torch.unique(found[present].long(), return_inverse=True)
            local = torch.full_like(found, -1, dtype=torch.int64)
            local[present] = places
            pool = Pool(
                self.kernel,
                torch.cat([self._X[rows].double(), within_reach(X)]),
                torch.cat([self._noise[rows], self._noise.new_zeros(len(X))]),
                budget=self._budget // 4,
            )
            targets = len(rows) + torch.arange(len(X), device=X.device)
            conditional = pool.conditionals(targets, local.to(torch.int32))
        still = LocalWeights(rows, local.clamp_min(0), conditional.weights, conditional.variance)
        if not (X.requires_grad and torch.is_grad_enabled()):
            return still
        with torch.no_grad():
            covariance = self._among(still)
            factor, info = torch.linalg.cholesky_ex(covariance)
            own, pivots = (one.diagonal(dim1=-2, dim2=-1) for one in (covariance, factor))
            kept = present.clone()
            lost = (info != 0) | ~(kept & (pivots.square() > LOST * own)).all(1)
            if bool(lost.any()):
                factor[lost], kept[lost] = batched.neighbour_factors(pool, targets[lost], local[lost])
        return self._following(X, still, factor, kept)

    def _among(self, local: LocalWeights) -> Tensor:
        """Return the covariances among the neighbours of each point, shape (q, m, m)."""
        engine, kernel = select(self.kernel, self._X.device, torch.float64), self.kernel
        (q, m), u = local.places.shape, len(local.rows)
        rows, noise = self._X[local.rows].double(), self._noise[local.rows]
        if u**2 <= q * m**2:  # the points share most of their neighbours
            found = engine.dense(kernel, rows, budget=self._budget)[local.places[:, :, None], local.places[:, None, :]]
        else:
            found = torch.stack([engine.dense(kernel, rows[near], budget=self._budget) for near in local.places])
        return found + torch.diag_embed(noise[local.places])

    def _following(self, X: Tensor, still: LocalWeights, factor: Tensor, kept: Tensor) -> LocalWeights:
        """Return predictors that are functions of their points, from the same predictors as numbers.

        With the covariances k of a point with its neighbours and A among them, the weights are ``A^-1 k`` and the
        variance is ``k(x, x) - k' A^-1 k``. Both follow exactly from what ``A^-1`` makes of a change of k, so that
        neither A nor its ``factor``, shape (q, m, m), needs a derivative. Only the neighbours that are ``kept`` count.
        """
        wide, near = within_reach(X), self._X[still.rows[still.places]].double()
        k, own = batched.blocks(self.kernel, wide[:, None], near)[:, 0], self.kernel.diagonal(wide)
        change = (k - k.detach()) * kept
        moved = torch.cholesky_solve(change[:, :, None], factor)[:, :, 0]
        explained = ((2 * still.weights + moved) * change).sum(1)
        variance = still.variance + (own - own.detach()) - explained
        return still._replace(weights=still.weights + moved, variance=variance)

    def covariances(self, X: Tensor) -> Tensor:
        """Return the covariances of the errors of predictors within batches of points, (b, q, d) to (b, q, q).

        They are ``K** - W'K_X* - K_*X W + W'HW``. H of all neighbours is stored: of all batches together where these
        share most of their neighbours, and otherwise of one batch after the other.
        """
        b, q = X.shape[:2]
        local = self.weights(X.flatten(0, 1))
        if q == 1:
            return local.variance[:, None, None]
        places, weights = (one.view(b, -1) for one in (local.places, local.weights))
        if len(local.rows) ** 2 <= b * places.shape[1] ** 2:
            return self._errors(X, local.rows, places, weights)
        parts = []
        for k in range(b):
            mine, own = torch.unique(places[k], return_inverse=True)
            parts.append(self._errors(X[k : k + 1], local.rows[mine], own[None], weights[k : k + 1]))
        return torch.cat(parts)

    def _errors(self, X: Tensor, rows: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        """Return `covariances` for neighbours with the numbers ``rows``, (u,), at ``places``, (b, q m)."""
        b, q, u = *X.shape[:2], len(rows)
        wide, near = within_reach(X), self._X[rows].double()
        H = select(self.kernel, X.device, torch.float64).dense(self.kernel, near, budget=self._budget)
        H.diagonal().add_(self._noise[rows])
        W = wide.new_zeros(b * q, u).scatter_add(1, places.view(b * q, -1), weights.view(b * q, -1))
        cross = cross_covariance(self.kernel, wide.flatten(0, 1), near, budget=self._budget).view(b, q, u)
        inner, W = (W @ H).view(b, q, u), W.view(b, q, u)
        mixed = cross @ W.mT
        found = batched.blocks(self.kernel, wide) - mixed - mixed.mT + inner @ W.mT
        return 0.5 * (found + found.mT)

    def blocks(self, X: Tensor, columns: int) -> tuple[Tensor, ...]:
        """Return points that are predicted together from this many columns of values."""
        columns += X.shape[1] + 4
        return X.split(max(1, min(_POINTS, self._budget // (32 * self.n_neighbours * columns))))

    def predict(self, X: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return predictions (q, k) from values of all rows (n, k), and the variances that neighbours leave (q,)."""
        found, variances = [values.new_zeros(0, values.shape[1])], [self._noise.new_zeros(0)]
        for block in self.blocks(X, values.shape[1]):
            local = self.weights(block)
            found.append(local.combine(values))
            variances.append(local.variance)
        return torch.cat(found), torch.cat(variances)
