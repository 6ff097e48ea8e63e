"""Averages over areas: the map from values at points to averages, and the matrix H of rows that are averages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.operators.base import Index, LinearOperator
from gigagp.operators.indexing import add_matching, as_noise, check_vectors, positions
from gigagp.products import Weights, select
from gigagp.products.blocks import ranges
from gigagp.runtime import interruption

#: Largest side of a tile of the covariance of points, and the share of the budget that a tile may take.
_SIDE, _SHARE = 2048, 8


@dataclass(frozen=True, eq=False)
class Averages:
    """The map A from values at points to averages over areas, in which a point counts by its share.

    Attributes
    ----------
    points : Tensor of shape (p, d)
        Points of all areas, one area after the other. A point of two areas is there twice.
    area : Tensor of int64, shape (p,)
        Number of the area of each point, ascending. Each area has a point.
    shares : Tensor of shape (p,)
        Share of each point in its area; those of an area sum to one.
    n_areas : int
        Number of areas.
    """

    points: Tensor
    area: Tensor
    shares: Tensor
    n_areas: int

    def average(self, values: Tensor) -> Tensor:
        """Return ``A values``: averages (n, s) of values at the points (p, s)."""
        found = values.new_zeros(self.n_areas, values.shape[1])
        return found.index_add(0, self.area, self.shares[:, None].to(values) * values)

    def spread(self, vectors: Tensor) -> Tensor:
        """Return ``A' vectors``: vectors of the areas (n, s) times the shares of the points, (p, s)."""
        return self.shares[:, None].to(vectors) * vectors[self.area]

    def take(self, areas: Index) -> Averages:
        """Return the averages over some areas, in the order of the index."""
        chosen = positions(areas, self.n_areas, self.area.device)
        counts = self.counts()
        own = counts[chosen]
        area = torch.arange(len(chosen), device=self.area.device).repeat_interleave(own)
        place = torch.arange(len(area), device=self.area.device) - (own.cumsum(0) - own)[area]
        place += (counts.cumsum(0) - counts)[chosen][area]
        return Averages(self.points[place], area, self.shares[place], len(chosen))

    def counts(self) -> Tensor:
        """Return the number of points of each area, shape (n,)."""
        return self.area.bincount(minlength=self.n_areas)

    def appended(self, points: Tensor) -> Averages:
        """Return the averages with further areas at the end, each of one point."""
        further = torch.arange(len(points), device=self.area.device) + self.n_areas
        shares = torch.cat([self.shares, self.shares.new_ones(len(points))])
        n_areas = self.n_areas + len(points)
        return Averages(
            torch.cat([self.points, points.to(self.points)]), torch.cat([self.area, further]), shares, n_areas
        )

    def covered(self, points: slice) -> slice:
        """Return the areas of some points that follow each other."""
        return slice(int(self.area[points][0]), int(self.area[points][-1]) + 1)

    def partial_average(self, values: Tensor, points: slice) -> Tensor:
        """Return what some points, with values (r, s), add to the averages of the areas that they are in."""
        areas = self.covered(points)
        found = values.new_zeros(areas.stop - areas.start, values.shape[1])
        return found.index_add(0, self.area[points] - areas.start, self.shares[points, None].to(values) * values)


class AveragedMatrix(LinearOperator):
    """``H = A K(P, P) A' + noise`` of averages A over points P; the covariance of the points is never stored.

    Parameters
    ----------
    kernel : Kernel
        Bound to the columns of the points, without white parts.
    averages : Averages
        The areas, with n of them and p points.
    noise_variance : float or Tensor of shape () or (n,)
        Variance of independent noise of the averages.
    memory_budget : int
        Bytes that tiles may take.
    """

    def __init__(self, kernel: Kernel, averages: Averages, noise_variance: float | Tensor, memory_budget: int) -> None:
        points = averages.points
        self.kernel, self.averages = kernel.bind(points.shape[1]), averages
        self.n, self.dtype, self.device = averages.n_areas, points.dtype, points.device
        self._noise = as_noise(noise_variance, points.new_zeros(self.n), "noise_variance of AveragedMatrix")
        self._budget = memory_budget
        self._engine = select(self.kernel, self.device, self.dtype)

    def noise(self) -> Tensor:
        """Return the noise variance of every area, shape (n,)."""
        return self._noise

    def __matmul__(self, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        interruption.check()
        columns, points = vectors.reshape(self.n, -1), self.averages.points
        spread = self.averages.spread(columns)
        product = self.averages.average(
            self._engine.product(self.kernel, points, points, spread, budget=self._budget)
        ).addcmul_(self._noise[:, None], columns)
        return product.reshape(vectors.shape)

    def to_dense(self) -> Tensor:
        """Return the whole H, shape (n, n)."""
        every = slice(None)
        return self.block(every, every)

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return the entries ``H[rows, columns]``."""
        left = self.averages.take(rows)
        right = left if rows is columns else self.averages.take(columns)
        return add_matching(self._covariance(left, right), rows, columns, self._noise)

    @torch.no_grad()
    def _covariance(self, left: Averages, right: Averages) -> Tensor:
        """Return the covariance of two sets of averages of the function; of a set with itself, each entry once."""
        side = max(64, min(_SIDE, math.isqrt(self._budget // (_SHARE * left.points.element_size()))))
        mirrored = right is left
        found = left.points.new_zeros(left.n_areas, right.n_areas)
        for rows in ranges(len(left.points), side):
            interruption.check()
            for columns in ranges(len(right.points), side, start=rows.start if mirrored else 0):
                is_corner = mirrored and rows == columns
                others = None if is_corner else right.points[columns]
                tile = self._engine.dense(self.kernel, left.points[rows], others, budget=self._budget)
                part = right.partial_average(left.partial_average(tile, rows).T, columns)
                above, across = left.covered(rows), right.covered(columns)
                found[above, across] += part.T
                if mirrored and not is_corner:
                    found[across, above] += part
        return found

    def weighted_gradient(self, weights: Weights) -> dict[str, Tensor]:
        """Return ``sum_ij W_ij dH_ij / d parameter`` for a symmetric W (n, n), whose tiles ``weights`` returns.

        The names and units are those of `KernelMatrix.weighted_gradient`. It is ``sum_kl (A' W A)_kl dK_kl``.
        """
        interruption.check()
        averages = self.averages

        def tile(rows: slice, columns: slice) -> Tensor:
            above, across = averages.covered(rows), averages.covered(columns)
            left, right = averages.area[rows] - above.start, averages.area[columns] - across.start
            found = weights(above, across)[left][:, right]
            return found.mul_(averages.shares[rows, None]).mul_(averages.shares[columns])

        given = self.kernel, averages.points, averages.points, tile
        found = self._engine.gradient(*given, symmetric=True, budget=self._budget)
        blocks = (weights(some, some).diagonal() for some in ranges(self.n, _SIDE))
        found["noise_variance"] = torch.stack([one.double().sum() for one in blocks]).sum().cpu()
        return found
