"""The sparse inverse factor that a Vecchia approximation gives a covariance matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gigagp.neighbours.conditionals import Pool
from gigagp.products.extension import native as _native


@dataclass
class Factor:
    """``H^-1`` is about ``(I - B)' D^-1 (I - B)``, where row i of B has the weights of its neighbours.

    The approximation is the inverse factor that is closest to the exact one in Kullback-Leibler divergence among all
    with this sparsity (Schaefer, Katzfuss and Owhadi 2021, Theorem 2.1). Rows keep their own numbers; an order is
    needed only to solve with ``I - B``. The earlier ``neighbours`` of a row are -1 where there are fewer, and D is
    ``variance``.
    """

    neighbours: Tensor
    weights: Tensor
    variance: Tensor
    order: Tensor
    _columns: tuple[Any, ...] | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, pool: Pool, neighbours: Tensor, order: Tensor) -> Factor:
        """Return the factor of the covariance of a pool's rows."""
        every = torch.arange(len(order), device=order.device)
        found = pool.conditionals(every, neighbours)
        return cls(neighbours, found.weights, found.variance, order)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.variance)

    def log_determinant(self) -> float:
        """Return the log determinant of the approximation of H."""
        return float(self.variance.log().sum())

    def whiten(self, vectors: Tensor) -> Tensor:
        """Return ``D^-1/2 (I - B) V``, shape (n, s), float64: independent standard normal if V ~ N(0, H)."""
        return self.residuals(vectors) / self.variance.sqrt()[:, None]

    def residuals(self, vectors: Tensor) -> Tensor:
        """Return ``(I - B) V``, shape (n, s), float64."""
        vectors = vectors.to(torch.float64)
        if self._is_native(vectors):
            found = _native.sparse_residuals(
                "", self.neighbours.numpy(), self.weights.numpy(), vectors.contiguous().numpy(), torch.get_num_threads()
            )
            return torch.from_numpy(found)
        out = vectors.clone()
        for index, weight in zip(self.neighbours.T, self.weights.T, strict=True):  # empty places have no weight
            out -= weight[:, None] * vectors[index.clamp_min(0).long()]
        return out

    def transposed(self, vectors: Tensor) -> Tensor:
        """Return ``(I - B)' V``, shape (n, s), float64."""
        vectors = vectors.to(torch.float64)
        if self._is_native(vectors):
            found = _native.sparse_transposed(
                "", *self._by_columns(), vectors.contiguous().numpy(), torch.get_num_threads()
            )
            return torch.from_numpy(found)
        out = vectors.clone()
        for index, weight in zip(self.neighbours.T, self.weights.T, strict=True):
            out.index_add_(0, index.clamp_min(0).long(), weight[:, None] * vectors, alpha=-1)
        return out

    def apply(self, vectors: Tensor) -> Tensor:
        """Return ``(I - B)' D^-1 (I - B) V``, about ``H^-1 V``, shape (n, s), float64."""
        return self.transposed(self.residuals(vectors) / self.variance[:, None])

    def colour(self, normal: Tensor) -> Tensor:
        """Return ``(I - B)^-1 D^1/2 Z``, shape (n, s), float64: a draw of about N(0, H) from a standard normal one."""
        out = (self.variance.sqrt()[:, None] * normal.to(self.variance)).contiguous()
        if self._is_native(out):
            _native.sparse_solve(
                "",
                self.neighbours.numpy(),
                self.weights.numpy(),
                self.order.numpy(),
                out.numpy(),
                torch.get_num_threads(),
            )
            return out
        for rows in self._levels():
            index = self.neighbours[rows].clamp_min(0).long()
            out[rows] += (self.weights[rows][:, :, None] * out[index]).sum(1)
        return out

    def colour_transposed(self, vectors: Tensor) -> Tensor:
        """Return ``D^1/2 (I - B)'^-1 V``, shape (n, s), float64: the transpose of `colour`."""
        out = vectors.to(self.variance, copy=True).contiguous()
        if self._is_native(out):
            _native.sparse_solve_transposed(
                "", *self._by_columns(), self.order.numpy(), out.numpy(), torch.get_num_threads()
            )
        else:
            for rows in reversed(self._levels()):
                index = self.neighbours[rows].clamp_min(0).long()
                moved = self.weights[rows][:, :, None] * out[rows][:, None, :]
                out.index_add_(0, index.reshape(-1), moved.flatten(0, 1))
        return self.variance.sqrt()[:, None] * out

    def unwhiten(self, vectors: Tensor) -> Tensor:
        """Return ``H V`` for the approximation of H: both triangular solves, shape (n, s), float64."""
        return self.colour(self.colour_transposed(vectors))

    def _is_native(self, vectors: Tensor) -> bool:
        return _native is not None and vectors.device.type == "cpu"

    def _by_columns(self) -> tuple[Any, ...]:
        """Return the columns of B: where each starts, its rows and its weights."""
        if self._columns is None:
            self._columns = _native.sparse_columns(self.neighbours.numpy(), self.weights.numpy())
        return self._columns

    def _levels(self) -> list[Tensor]:
        """Return groups of rows, first to last, that are conditioned only on rows of earlier groups."""
        level = torch.zeros(self.n, dtype=torch.int64, device=self.order.device)
        index, empty = self.neighbours.clamp_min(0).long(), self.neighbours < 0
        while True:
            above = torch.where(empty, 0, level[index] + 1).amax(1) if index.shape[1] else level
            if bool((above == level).all()):
                return [torch.nonzero(level == k)[:, 0] for k in range(int(level.max()) + 1)]
            level = above
