"""A preconditioner for grid inference on rows with gaps: neighbours among the nodes that have rows."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.factor import Factor
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators.grid.factorised import GridOperator
from gigagp.operators.grid.kernel import GridKernel
from gigagp.settings.random import standard_normal
from gigagp.solvers.preconditioners.base import Preconditioner

#: Neighbours of each node, with one input and with more.
_NEIGHBOURS = (10, 30)
#: Rows at a node below which it counts as empty. Interpolation weights reach nodes that have no row of their own, with
#: sums near zero or below; some node has a weight of at least 1/16 of each row, in up to four inputs.
LEAST_ROWS = 0.05
#: Share of ``W'W`` outside of its diagonal up to which rows count as lying on nodes.
_ON_NODES = 1e-3
#: Columns from which the size of the matrix on the remainder is estimated.
_PROBES = 8


class InverseOnly(Preconditioner):
    """A preconditioner of which only the inverse is known, so that log-determinants need another one."""

    epochs = 0.0
    rank = 0

    def transform_normal(self, normal: Tensor) -> Tensor:
        """Raise NotImplementedError."""
        msg = f"{type(self).__name__} cannot be sampled: only its inverse is known. Use none for log-determinants."
        raise NotImplementedError(msg)

    def log_determinant(self) -> float:
        """Raise NotImplementedError."""
        msg = f"the determinant of {type(self).__name__} is not known: only its inverse is. Use none instead."
        raise NotImplementedError(msg)


class NodesPreconditioner(InverseOnly):
    """A preconditioner of ``K~ = W K_G W' + noise`` from nearest neighbours among nodes with rows.

    Let ``N`` be the diagonal matrix of the numbers of rows at the nodes, ``W'W 1``. If every row lay on a node, ``W'W``
    would be ``N`` and ``K~^-1`` would act on the span of W as ``W N^-1 (K_G + noise N^-1)^-1 N^-1 W'`` on the nodes
    with rows. The matrix in the middle is the covariance of one measurement at each node, with the noise of its rows'
    mean, and a Vecchia factor stands for its inverse: a node without rows has no part in it, wherever it is. On the
    part of the span that ``E = I - W N^-1 W'`` leaves, which is zero if every row lies on a node, ``K~`` is about a
    number ``c``. So ``P^-1 = W N^-1 Q N^-1 W' + E E / c``, with Q the factor's product. It is positive definite on the
    span for any rows. Smooth functions are in the kernel of ``E``.

    When to use: for rows on a lattice with gaps, whatever their shape and share, where five to ten iterations suffice.
    Rows that lie between nodes take two to ten times as many, and more if the kernel varies within a cell by more than
    the noise.

    Vecchia 1988, doi:10.1111/j.2517-6161.1988.tb01729.x; Yadav, Sheldon and Musco 2021, arXiv:2101.11751 (section 4,
    the span of W).
    """

    def __init__(self, operator: GridOperator) -> None:
        self.n, self._m, self._gram = operator.n, operator.m, operator.gram
        rows = operator.gram.row_sums()
        self.nodes = (rows > LEAST_ROWS).nonzero()[:, 0]
        counts = rows[self.nodes]
        self._inverse = torch.zeros(self._m, 1, dtype=torch.float64)
        self._inverse[self.nodes, 0] = 1 / counts
        assert isinstance(operator.kernel, GridKernel), "neighbours are among the nodes of one grid"
        kernel, points = operator.kernel.kernel, operator.kernel.grid.nodes()[self.nodes]
        self._n_neighbours = _NEIGHBOURS[points.shape[1] > 1]
        graph = NeighbourGraph(kernel, points, self._n_neighbours)
        self._factor = Factor.of(Pool(kernel, points, operator.noise / counts), graph.neighbours, graph.order)
        self._size = operator.noise
        self.on_nodes = self._is_diagonal(counts)
        if not self.on_nodes:
            self._size = self._size_of_remainder(operator)

    def _is_diagonal(self, counts: Tensor) -> bool:
        """Whether ``W'W`` is about N: it then maps N^-1 times random signs to these signs."""
        signs = torch.zeros(self._m, 1, dtype=torch.float64)
        drawn = standard_normal(len(counts), 1, generator=torch.Generator().manual_seed(0))
        signs[self.nodes] = drawn.sign()
        difference = (self._gram @ (self._inverse * signs) - signs).square().mean().sqrt()
        return float(difference) < _ON_NODES

    def _size_of_remainder(self, operator: GridOperator) -> float:
        """Return the mean of the quadratic form of ``K~`` over unit vectors of the remainder."""
        drawn = standard_normal(self._m, _PROBES, generator=torch.Generator().manual_seed(0))
        left, adjoint = self._remainder(drawn, self._gram @ drawn)
        adjoint = adjoint - self._gram @ (self._inverse * adjoint)
        squares = float((left * adjoint).sum())
        signal = float((adjoint * (operator.kernel @ adjoint)).sum())
        return operator.noise + signal / squares

    def _remainder(self, coefficients: Tensor, adjoint: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients of ``E E z``, and ``W'E z``, for ``z = W a`` with a and ``W'z``."""
        first = self._inverse * adjoint
        adjoint = adjoint - self._gram @ first
        return coefficients - first - self._inverse * adjoint, adjoint

    def inverse_at_nodes(self, adjoint: Tensor) -> Tensor:
        """Return ``N^-1 Q N^-1 u``, zero at nodes without rows, for u of shape (m, s)."""
        scale = self._inverse[self.nodes]
        found = torch.zeros_like(adjoint)
        found[self.nodes] = scale * self._factor.apply(scale * adjoint[self.nodes])
        return found

    def start(self, cross: Tensor, noise: float) -> Tensor:
        """Return coefficients a with which ``z / noise + W a`` is about ``K~^-1 z``, for ``cross = W'z``."""
        return self.inverse_at_nodes(cross) - self._inverse * cross / noise

    def apply(self, vectors: Tensor) -> Tensor:
        """Return ``P^-1`` times vectors in the layout of `GridOperator`, shape (n, s)."""
        coefficients, adjoint = vectors[: self._m], vectors[self._m :]
        found = self.inverse_at_nodes(adjoint)
        if not self.on_nodes:
            found += self._remainder(coefficients, adjoint)[0] / self._size
        return torch.cat([found, self._gram @ found])

    def describe(self) -> str:
        where = "rows on nodes" if self.on_nodes else "rows between nodes"
        return f"{self._n_neighbours} neighbours among {len(self.nodes):,} of {self._m:,} nodes ({where})"
