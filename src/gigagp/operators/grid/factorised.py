"""An operator for factorised conjugate gradients and Lanczos, which represents n-vectors by their grid statistics."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics.gram import Gram
from gigagp.operators.grid.sum_kernel import SumKernel


class Starts(NamedTuple):
    """Vectors z over the rows, known by ``W'z``, shape (m, s), and ``z'z``, shape (s,)."""

    cross: Tensor
    squares: Tensor


class GridOperator(LinearOperator):
    """``K~ = W K_G W' + noise``, the n by n matrix of kernel interpolation, without any vector of n numbers.

    All vectors that occur in conjugate gradients and Lanczos have the form ``z = W a + c z_0`` (Yadav et al. 2021,
    section 4). They are represented as ``[a; u; c]`` with ``u = W'z``. In this form ``K~ z`` is ``[K_G u + noise a; W'W
    K_G u + noise u; noise c]`` and the inner product of two vectors is ``a_1'u_2 + c_1 z_0'z_2``. A step takes one grid
    product and one product with ``W'W``; inner products take none. The paper's Algorithms 3 and 7 reach the same cost
    with auxiliary recurrences, which the package's own loops do not need.

    The ``starts`` are the vectors ``z_0``, one for each column of the multiplied vectors. Without them every vector
    lies in the span of W and is ``[a; W'W a]`` (the simplified form, Algorithm 4). With ``sources`` vectors are ``[a;
    W'W a; q]`` with ``a = K_G q``. This costs no further product, because ``K~ W K_G q`` has the source ``W'W a + noise
    q``. At an inexact solution q is far more accurate than ``W'(z - W a) / noise``. Log-determinants need ``n_rows``.
    """

    def __init__(
        self,
        kernel: GridKernel | SumKernel,
        gram: Gram,
        noise: float,
        starts: Starts | None = None,
        n_rows: int | None = None,
        *,
        sources: bool = False,
    ) -> None:
        if kernel.grid != gram.grid:
            msg = f"kernel and gram of GridOperator must be on the same grid; got {kernel.grid} and {gram.grid}."
            raise InvalidInputError(msg)
        if not noise > 0:
            raise InvalidInputError(f"noise of GridOperator must be positive; got {noise!r}.")
        if sources and starts is not None:
            raise InvalidInputError("GridOperator has either sources or starts.")
        self.kernel, self.gram, self.noise, self.starts = kernel, gram, float(noise), starts
        self.n_rows, self.has_sources = n_rows, sources
        self.m = kernel.n
        self.n = (3 if sources else 2) * self.m + (starts is not None)
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.floor = self.noise
        self.grid_products = self.gram_products = 0

    @property
    def dimension(self) -> int:
        """Number of rows n, the dimension of the represented vectors."""
        if self.n_rows is None:
            raise InvalidInputError("n_rows of GridOperator must be given for a log-determinant.")
        return self.n_rows

    # Parts of a vector ------------------------------------------------------------------------------------------------

    def coefficients(self, vectors: Tensor) -> Tensor:
        """Return the coefficients ``a``, shape (m, s)."""
        return vectors[: self.m]

    def adjoint(self, vectors: Tensor) -> Tensor:
        """Return ``W'z``, shape (m, s)."""
        return vectors[self.m : 2 * self.m]

    def sources(self, vectors: Tensor) -> Tensor:
        """Return the sources ``q``, shape (m, s), for an operator with sources."""
        return vectors[2 * self.m : 3 * self.m]

    def lift_sources(self, sources: Tensor) -> Tensor:
        """Return the vectors ``W K_G q`` for sources (m, s); one product with ``K_G`` and one with ``W'W``."""
        self.grid_products += 1
        self.gram_products += 1
        coefficients = self.kernel @ sources
        return torch.cat([coefficients, self.gram @ coefficients, sources])

    def lift(self, coefficients: Tensor) -> Tensor:
        """Return the vectors ``W a`` for coefficients (m, s); one product with ``W'W``."""
        self.gram_products += 1
        parts = [coefficients, self.gram @ coefficients]
        return torch.cat(parts if self.starts is None else [*parts, coefficients.new_zeros(1, coefficients.shape[1])])

    def start_vectors(self) -> Tensor:
        """Return the vectors ``z_0``."""
        if self.starts is None:
            msg = "start_vectors of GridOperator needs starts: without them vectors lie in the span of W."
            raise InvalidInputError(msg)
        cross = self.starts.cross
        return torch.cat([torch.zeros_like(cross), cross, cross.new_ones(1, cross.shape[1])])

    # Algebra ----------------------------------------------------------------------------------------------------------

    def __matmul__(self, vectors: Tensor) -> Tensor:
        adjoint = self.adjoint(vectors)
        self.grid_products += 1
        smooth = self.kernel @ adjoint
        product = self.noise * vectors
        product[: self.m] += smooth
        self.gram_products += 1
        product[self.m : 2 * self.m] += self.gram @ smooth
        if self.has_sources:
            product[2 * self.m :] += adjoint
        return product

    def residual(self, right_hand_sides: Tensor, vectors: Tensor) -> Tensor:
        """Return ``b - K~ v``; an operator with sources computes it from the sources alone.

        ``K_G h`` and its product are sums over all rows, which nearly cancel if there are many rows. With sources, only
        sums over the rows near a node are subtracted.
        """
        if not self.has_sources:
            return super().residual(right_hand_sides, vectors)
        value = self.lift_sources(self.sources(vectors))
        product = self.adjoint(value) + self.noise * self.sources(value)
        return self.lift_sources(self.sources(right_hand_sides) - product)

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the inner products of the represented n-vectors (Claim 4), shape (s,)."""
        found = (self.coefficients(left) * self.adjoint(right)).sum(0)
        if self.starts is None:
            return found
        weight = left[-1]
        with_start = (self.starts.cross * self.coefficients(right)).sum(0) + self.starts.squares * right[-1]
        return found + weight * with_start
