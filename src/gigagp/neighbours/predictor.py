"""Predictions at new points from the rows nearest to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.neighbours import batched
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.neighbours.search import LARGEST

#: Largest number of points that are predicted together.
_POINTS = 4096
#: Largest number of neighbours of all points of a batch whose covariance is computed from a matrix of its own.
_SIDE = 1024


class LocalWeights(NamedTuple):
    """Predictors of q points from rows.

    Attributes
    ----------
    rows : Tensor of shape (u,)
        Rows that any of the points is predicted from.
    places : Tensor of shape (q, m)
        For each point the positions of its neighbours in ``rows``; 0 where there are fewer.
    weights : Tensor of shape (q, m)
        Their weights, 0 where there are fewer.
    variance : Tensor of shape (q,)
        Variance of the latent function given the neighbours.
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

    Parameters
    ----------
    kernel : Kernel
        Bound to the columns of ``X``.
    X : Tensor of shape (n, d)
        The rows.
    noise : Tensor of shape (n,)
        Their noise variance, including the kernel's white part, float64.
    graph : NeighbourGraph
        Finds the rows around a point.
    n_neighbours : int
        m; fewer where there are fewer rows.
    budget : int
        Bytes.
    """

    def __init__(
        self, kernel: Kernel, X: Tensor, noise: Tensor, graph: NeighbourGraph, n_neighbours: int, budget: int
    ) -> None:
        self.asked, self.n_neighbours = n_neighbours, min(n_neighbours, len(X))
        self._kernel, self._X, self._noise, self.graph, self._budget = kernel, X, noise, graph, budget

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
            self._kernel,
            torch.cat([self._X[rows].double(), within_reach(X)]),
            torch.cat([self._noise[rows], self._noise.new_zeros(len(X))]),
            budget=self._budget // 4,
            engine="torch" if X.requires_grad and torch.is_grad_enabled() else "auto",
        )
        targets = len(rows) + torch.arange(len(X), device=X.device)
        conditional = pool.conditionals(targets, local.to(torch.int32))
        return LocalWeights(rows, local.clamp_min(0), conditional.weights, conditional.variance)

    def batches_at_once(self, q: int) -> int:
        """Return how many batches of q points `covariances` takes at a time; 0 if a batch is too large for it."""
        side = q * self.n_neighbours
        return 0 if side > _SIDE else max(1, min(_POINTS // max(q, 1), self._budget // (64 * max(side, 1) ** 2)))

    def covariances(self, X: Tensor) -> Tensor:
        """Return the covariances of the errors of predictors within batches of points, (b, q, d) to (b, q, q).

        They are ``K** - W'K_X* - K_*X W + W'HW`` with the neighbours of the points of one batch, one after the other.
        """
        b, q = X.shape[:2]
        local = self.weights(X.flatten(0, 1))
        if q == 1:
            return local.variance[:, None, None]
        index = local.rows[local.places].view(b, -1)
        wide, rows, noise = within_reach(X), self._X[index].double(), self._noise[index]
        of_points = (q, local.weights.shape[1])
        weights = local.weights.view(b, *of_points)
        same = (index[:, :, None] == index[:, None, :]).to(noise) * noise[:, None, :]
        H = (batched.blocks(self._kernel, rows) + same).unflatten(2, of_points).unflatten(1, of_points)
        inner = torch.einsum("bpmqn,bqn->bpmq", H, weights)
        mixed = torch.einsum("bpm,bqpm->bqp", weights, batched.blocks(self._kernel, wide, rows).unflatten(2, of_points))
        found = batched.blocks(self._kernel, wide) + torch.einsum("bpm,bpmq->bpq", weights, inner) - mixed - mixed.mT
        return 0.5 * (found + found.mT)

    def blocks(self, X: Tensor, columns: int) -> tuple[Tensor, ...]:
        """Return points that are predicted together from so many columns of values."""
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
