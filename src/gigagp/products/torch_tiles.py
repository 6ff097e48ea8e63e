"""The reference engine: torch operations on tiles, in place, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.products.arguments import check_points, check_vectors, check_weights, read_weights
from gigagp.products.blocks import ranges
from gigagp.products.dense import tall_product
from gigagp.products.engine import LowRankWeights, Weights, weights_of
from gigagp.products.tiles import tiles_of
from gigagp.runtime.memory import require

#: Bytes of a tile for each CPU thread: it has to stay in the cache over half a dozen passes.
CPU_TILE_BYTES = 2**20
#: Most bytes of a tile on a CPU.
CPU_TILE_LIMIT = 8 * 2**20
#: Budget in bytes for gradients that other engines hand over.
_HANDED_OVER = 2**28
#: Bytes of a tile on a GPU, which has to fill the device.
GPU_TILE_BYTES = 256 * 2**20
#: Tiles that may be alive at a time: for each elementary kernel (as many as autograd needs), and for all together.
TILES_EACH, TILES_SHARED = 8, 4


@dataclass(frozen=True)
class TorchTiles:
    """Products tile by tile with torch operations.

    By default a tile has 1 MiB for each thread on a CPU, which fits its cache, and at most 8 MiB; on a GPU 256 MiB. The
    memory budget may make tiles smaller.
    """

    tile_bytes: int | None = None
    name: str = "torch tiles"

    def _side(self, kernel: Kernel, X: Tensor, budget: int) -> int:
        """Return the number of rows and columns of a square tile."""
        alive = TILES_SHARED + TILES_EACH * sum(1 for _ in kernel.leaves())
        on_cpu = min(CPU_TILE_BYTES * torch.get_num_threads(), CPU_TILE_LIMIT)
        wanted = self.tile_bytes or (on_cpu if X.device.type == "cpu" else GPU_TILE_BYTES)
        entries = min(wanted, budget // alive) // X.element_size()
        return max(32, math.isqrt(max(entries, 1)) // 32 * 32)

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        return self._product(kernel, X, Z, V, budget)

    def product_part(self, kernel: Kernel, X: Tensor, V: Tensor, part: int, parts: int, *, budget: int) -> Tensor:
        """Return one of several terms whose sum is ``K(X, X) @ V``, each from an equal share of the tiles."""
        return self._product(kernel, X, X, V, budget, part, parts)

    @torch.no_grad()
    def _product(
        self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, budget: int, part: int = 0, parts: int = 1
    ) -> Tensor:
        check_points(self.name, kernel, X, Z)
        check_vectors(self.name, V, Z)
        tiles = tiles_of(kernel, X, Z)
        side = self._side(kernel, X, budget)
        # Using every entry twice saves up to half of the time with one column and a tenth with 300. The sum over tiles
        # is in float64 also for float32 tiles; in float32 it would lose another digit.
        mirrored = Z is X
        total = torch.zeros(X.shape[0], V.shape[1], dtype=torch.float64, device=X.device)
        offered = 0
        for rows in ranges(X.shape[0], side):
            for columns in ranges(Z.shape[0], side, start=rows.start if mirrored else 0):
                offered += 1
                if offered % parts != part:
                    continue
                tile = tiles.evaluate(rows, columns)
                total[rows] += tall_product(tile, V[columns])
                if mirrored and rows != columns:
                    total[columns] += tall_product(tile.T, V[rows])
        return total.mul_(tiles.factor).to(X.dtype)

    @torch.no_grad()
    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix; see `Engine.dense`."""
        symmetric = Z is None
        Z = X if Z is None else Z
        check_points(self.name, kernel, X, Z)
        needed = X.shape[0] * Z.shape[0] * X.element_size()
        require(needed, budget, f"A dense covariance of {X.shape[0]:,} by {Z.shape[0]:,}", "Multiply tile by tile.")
        tiles = tiles_of(kernel, X, Z)
        side = self._side(kernel, X, budget)
        whole = X.new_empty(X.shape[0], Z.shape[0])
        for rows in ranges(X.shape[0], side):
            for columns in ranges(Z.shape[0], side, start=rows.start if symmetric else 0):
                tile = tiles.evaluate(rows, columns).mul_(tiles.factor)
                if symmetric and rows == columns:  # a matrix product rounds the two halves differently
                    tile = tile.triu() + tile.triu(1).T
                whole[rows, columns] = tile
                if symmetric and rows != columns:
                    whole[columns, rows] = tile.T.contiguous()
        return whole

    @torch.no_grad()
    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`."""
        check_points(self.name, kernel, X, Z)
        check_weights(self.name, weights, X, Z)
        tiles = tiles_of(kernel, X, Z)
        side = self._side(kernel, X, budget)
        for rows in ranges(X.shape[0], side):
            for columns in ranges(Z.shape[0], side, start=rows.start if symmetric else 0):
                A = read_weights(self.name, weights, rows, columns, X)
                tiles.accumulate(rows, columns, A, 2.0 if symmetric and rows != columns else 1.0)
        return tiles.gradient()

    @torch.no_grad()
    def points_gradient(self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, budget: int) -> Tensor:
        """Return ``sum_j A_ij dk(x_i, z_j) / d x_i`` for every i, shape of X, float64; the z_j are constants."""
        check_points(self.name, kernel, X, Z)
        check_weights(self.name, weights, X, Z)
        tiles = tiles_of(kernel, Z, X)  # tiles follow the points on their right
        tiles.follow_points()
        side = self._side(kernel, X, budget)
        for rows in ranges(X.shape[0], side):
            for columns in ranges(Z.shape[0], side):
                A = read_weights(self.name, weights, rows, columns, X)
                tiles.accumulate(columns, rows, A.T.contiguous(), 1.0)
        return tiles.points_gradient()


def gradient_apart(
    kernel: Kernel, X: Tensor, Z: Tensor, left: Tensor, right: Tensor | None, *, symmetric: bool
) -> dict[str, Tensor]:
    """Return the gradient for points that are too far apart for the sums of other engines (`Term.is_apart`).

    The weights are ``left @ right.T``, or ``left`` itself, shape (n, m), where ``right`` is None.
    """
    weights = weights_of(left) if right is None else LowRankWeights(left, right)
    return TorchTiles().gradient(kernel, X, Z, weights, symmetric=symmetric, budget=_HANDED_OVER)
