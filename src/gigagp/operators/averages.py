"""Averages over areas: the map from values at points to averages, and the matrix H of rows that are averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.indexing import (
    add_matching,
    add_rows,
    as_noise,
    check_vectors,
    positions,
    scaled_places,
    symmetric_factors,
    take,
)
from gigagp.products import LowRankWeights, Weights, select
from gigagp.products.blocks import ranges
from gigagp.products.dense import tall_product
from gigagp.products.stored import stored_product
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

    def cpu(self) -> Averages:
        """Return the averages on the CPU."""
        return Averages(self.points.cpu(), self.area.cpu(), self.shares.cpu(), self.n_areas)

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

    def few_points(self, most: int) -> list[slice]:
        """Return areas that follow each other and have at most this many points together, or are alone."""
        ends, found, begun = self.counts().cumsum(0).tolist(), [], 0
        for area in range(self.n_areas):
            before = ends[begun - 1] if begun else 0
            if area > begun and ends[area] - before > most:
                found.append(slice(begun, area))
                begun = area
        return [*found, slice(begun, self.n_areas)]

    def covered(self, points: slice) -> slice:
        """Return the areas of some points that follow each other."""
        return slice(int(self.area[points][0]), int(self.area[points][-1]) + 1)

    def partial_average(self, values: Tensor, points: slice) -> Tensor:
        """Return what some points, with values (r, s), add to the averages of the areas that they are in."""
        areas = self.covered(points)
        found = values.new_zeros(areas.stop - areas.start, values.shape[1])
        return found.index_add(0, self.area[points] - areas.start, self.shares[points, None].to(values) * values)


def is_stored(n_areas: int, dtype: torch.dtype, budget: int) -> bool:
    """Whether the covariance of this many averages takes at most half of a budget in bytes."""
    return n_areas**2 * dtype.itemsize <= budget // 2


class AveragedMatrix(SymmetricMatrix):
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
        Bytes that tiles, and what is stored, may take.
    storage : {"auto", "dense", "tiles"}, default "tiles"
        ``"dense"`` computes and stores ``A K A'`` (n * n numbers) at its first use, after which products take n * n
        operations. With ``"tiles"`` each takes p * p entries of the kernel. ``"auto"`` is dense if that takes at most
        half of the budget.
    """

    def __init__(
        self,
        kernel: Kernel,
        averages: Averages,
        noise_variance: float | Tensor,
        memory_budget: int,
        storage: Literal["auto", "dense", "tiles"] = "tiles",
    ) -> None:
        points = averages.points
        self.kernel, self.averages = kernel.bind(points.shape[1]), averages
        self.n, self.dtype, self.device = averages.n_areas, points.dtype, points.device
        self._noise = as_noise(noise_variance, points.new_zeros(self.n), "noise_variance of AveragedMatrix")
        self.memory_budget = memory_budget
        fits = is_stored(self.n, self.dtype, memory_budget)
        self.storage = storage if storage != "auto" else ("dense" if fits else "tiles")
        self._engine = select(self.kernel, self.device, self.dtype)
        self._stored: Tensor | None = None
        self._variances: Tensor | None = None

    def noise(self) -> Tensor:
        """Return the noise variance of every area, shape (n,)."""
        return self._noise

    def diagonal(self) -> Tensor:
        if self._variances is None:
            if self.storage == "dense":
                self._variances = self._matrix().diagonal().clone()
            else:
                few = (self.averages.take(some) for some in self.averages.few_points(self._side))
                self._variances = torch.cat([self._covariance(some, some).diagonal() for some in few])
        return self._variances + self._noise

    def coordinates(self) -> Tensor:
        """Return the centroids of the areas, in lengthscales of the kernel's first stationary part, shape (n, d')."""
        return scaled_places(self.kernel, self.averages.average(self.averages.points))

    def _matrix(self) -> Tensor:
        """Return the stored ``A K A'``, and compute it at the first use."""
        if self._stored is None:
            self._stored = self._covariance(self.averages, self.averages)
        return self._stored

    # Products -------------------------------------------------------------------------------------------------------

    def _product(self, left: Averages, right: Averages, vectors: Tensor) -> Tensor:
        """Return the covariance of two sets of averages times vectors (m, s), shape (n, s)."""
        given = self.kernel, left.points, right.points, right.spread(vectors)
        return left.average(self._engine.product(*given, budget=self.memory_budget))

    def __matmul__(self, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        interruption.check()
        columns, every = vectors.reshape(self.n, -1), self.averages
        is_stored = self.storage == "dense"
        product = stored_product(self._matrix(), columns) if is_stored else self._product(every, every, columns)
        return product.addcmul_(self._noise[:, None], columns).reshape(vectors.shape)

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        interruption.check()
        if self.storage == "dense":
            product = stored_product(self._matrix()[rows], vectors)
        else:
            product = self._product(self.averages.take(rows), self.averages, vectors)
        return product.addcmul_(self._noise[rows, None], vectors[rows])

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self._noise[columns].shape[0])
        interruption.check()
        if self.storage == "dense":  # by symmetry, read rows, which are contiguous
            product = tall_product(self._matrix()[columns].T, vectors)
        else:
            product = self._product(self.averages, self.averages.take(columns), vectors)
        return add_rows(product, columns, self._noise[columns, None] * vectors)

    # Entries --------------------------------------------------------------------------------------------------------

    def to_dense(self) -> Tensor:
        """Return the whole H, shape (n, n)."""
        every = slice(None)
        return self.block(every, every)

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return the entries ``H[rows, columns]``."""
        if self.storage == "dense":
            return add_matching(take(self._matrix(), rows, columns), rows, columns, self._noise)
        left = self.averages.take(rows)
        right = left if rows is columns else self.averages.take(columns)
        return add_matching(self._covariance(left, right), rows, columns, self._noise)

    @property
    def _side(self) -> int:
        """Side of a tile of the covariance of points."""
        return max(64, min(_SIDE, math.isqrt(self.memory_budget // (_SHARE * self.averages.points.element_size()))))

    @torch.no_grad()
    def _covariance(self, left: Averages, right: Averages) -> Tensor:
        """Return the covariance of two sets of averages of the function; of a set with itself, each entry once."""
        side, mirrored = self._side, right is left
        found = left.points.new_zeros(left.n_areas, right.n_areas)
        for rows in ranges(len(left.points), side):
            interruption.check()
            for columns in ranges(len(right.points), side, start=rows.start if mirrored else 0):
                is_corner = mirrored and rows == columns
                others = None if is_corner else right.points[columns]
                tile = self._engine.dense(self.kernel, left.points[rows], others, budget=self.memory_budget)
                part = right.partial_average(left.partial_average(tile, rows).T, columns)
                above, across = left.covered(rows), right.covered(columns)
                found[above, across] += part.T
                if mirrored and not is_corner:
                    found[across, above] += part
        return found

    def of_function(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the averages of a function that returns its values (p, s) at points (p, d), shape (n, s)."""
        return self.averages.average(values(self.averages.points))

    # Derivatives ----------------------------------------------------------------------------------------------------

    def gradient(self, left: Tensor, right: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``sum_j w_j L_j' (dH / d parameter) R_j``, as `KernelMatrix.gradient` does."""
        check_vectors(self, left, self.n)
        check_vectors(self, right, self.n)
        interruption.check()
        outer, inner, diagonal = symmetric_factors(left, right, weights)
        spread = LowRankWeights(self.averages.spread(outer), self.averages.spread(inner))
        return self._gradient(spread) | {"noise_variance": diagonal.sum().cpu()}

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

        blocks = (weights(some, some).diagonal() for some in ranges(self.n, _SIDE))
        noise = torch.stack([one.double().sum() for one in blocks]).sum().cpu()
        return self._gradient(tile) | {"noise_variance": noise}

    def _gradient(self, weights: Weights) -> dict[str, Tensor]:
        """Return the gradient by the kernel's hyperparameters for weights of pairs of points."""
        given = self.kernel, self.averages.points, self.averages.points, weights
        return self._engine.gradient(*given, symmetric=True, budget=self.memory_budget)
