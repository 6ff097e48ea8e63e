"""The system of grid inference in coordinates in which it is nearly the identity if rows are spread evenly."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator
from gigagp.operators.grid.kernel import GridKernel
from gigagp.operators.grid.statistics.gram import Gram
from gigagp.runtime import interruption


class WhitenedOperator(LinearOperator):
    """``P^-1/2 (I + R' W'W R / noise) P^-1/2`` with ``R R' = K_G`` and ``P = I + density * lambda / noise``.

    The values on the grid are ``R c`` with the prior ``c ~ N(0, I)``; c is a vector on a torus, stored as packed
    Fourier coefficients. ``H = I + R' W'W R / noise`` is the posterior precision of c. ``P`` is the matrix that H would
    be if the density of rows were the same everywhere, and it is diagonal in these coordinates. This circulant
    preconditioner therefore costs nothing and is part of the operator, so that a plain residual of the operator is a
    preconditioned one. A step takes two transforms and one product with ``W'W``, the same as a step of `GridOperator`.

    A plain residual of H would be misleading: it weights waves by their eigenvalues and can fall a thousandfold before
    the long waves are right (elevation data: 90 % off at 1e-3).

    ``density`` is the number of rows per node: by default the mean over nodes close to a row; 0 means no
    preconditioning. R has the clipped spectrum, so the kernel of the prior differs from the given one by
    `GridKernel.clipped`.
    """

    def __init__(self, kernel: GridKernel, gram: Gram, noise: float, density: float | None = None) -> None:
        if kernel.grid != gram.grid:
            msg = f"kernel and gram of WhitenedOperator must be on the same grid; got {kernel.grid} and {gram.grid}."
            raise InvalidInputError(msg)
        if not noise > 0:
            raise InvalidInputError(f"noise of WhitenedOperator must be positive; got {noise!r}.")
        self.kernel, self.gram, self.noise = kernel, gram, float(noise)
        self.density = mean_density(gram.row_sums()) if density is None else float(density)
        self.torus = kernel.root_torus
        self.n = self.torus.n_packed
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.grid_products = self.gram_products = 0
        #: Half spectrum of the eigenvalues of P.
        self.eigenvalues = kernel.root_spectrum * (self.density / self.noise) + 1
        #: Half spectrum of ``R P^-1/2``.
        self.factor = (kernel.root_spectrum / self.eigenvalues).sqrt()
        self._rest = self.torus.spread(1 / self.eigenvalues)

    @property
    def dimension(self) -> int:
        """Number of torus nodes; it is less than ``n`` because packed vectors contain some coefficients twice."""
        return self.torus.size

    def to_grid(self, vectors: Tensor) -> Tensor:
        """Return the values on the grid, ``R P^-1/2 e`` of shape (m, s), for packed vectors e."""
        return self.torus.to_grid(vectors, self.factor)

    def from_grid(self, vectors: Tensor) -> Tensor:
        """Return ``P^-1/2 R' v``, packed, for grid vectors v of shape (m, s)."""
        return self.torus.from_grid(vectors, self.factor)

    def prior_product(self, vectors: Tensor) -> Tensor:
        """Return ``R R' v`` for grid vectors v of shape (m, s)."""
        root = self.kernel.root_spectrum.sqrt()
        return self.torus.to_grid(self.torus.from_grid(vectors, root), root)

    def right_hand_side(self, cross: Tensor) -> Tensor:
        """Return the right-hand sides for statistics ``W'z`` of shape (m, s)."""
        return self.from_grid(cross).div_(self.noise)

    def to_dual(self, vectors: Tensor) -> Tensor:
        """Return the packed q with ``c = R' q`` on the whole torus, for vectors ``e = P^1/2 c``.

        At the solution q is ``W' K~^-1 z``. It changes little from one kernel to the next, whereas c changes with every
        eigenvalue.
        """
        # All vectors of a solve are multiples of the root of the spectrum; where that vanishes, q is not determined.
        power = self.kernel.root_spectrum * self.eigenvalues
        factor = torch.where(power > 0, power, torch.inf).rsqrt()
        return vectors * self.torus.spread(factor)

    def from_dual(self, dual: Tensor) -> Tensor:
        """Return the vectors that `to_dual` maps to ``dual``, for this kernel and noise."""
        return dual * self.torus.spread((self.kernel.root_spectrum * self.eigenvalues).sqrt())

    def prior_squares(self, dual: Tensor) -> Tensor:
        """Return ``|c|^2`` of each column, shape (s,)."""
        return (dual.square() * self.torus.spread(self.kernel.root_spectrum)).sum(0)

    def residual_from_adjoint(self, vectors: Tensor, adjoint: Tensor) -> Tensor:
        """Return the residuals of vectors e from ``adjoint = W'(z - W R c) / noise``, without a product with W'W."""
        return self.from_grid(adjoint).addcmul_(vectors, self._rest, value=-1)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        interruption.check()
        self.grid_products += 1
        self.gram_products += 1
        product = self.from_grid(self.gram @ self.to_grid(vectors))
        return product.div_(self.noise).addcmul_(vectors, self._rest)

    def log_determinant_of_scaling(self) -> float:
        """Return ``log det P``, by which the log-determinant of H exceeds that of this operator."""
        return float((self.torus.multiplicity() * self.eigenvalues.log()).sum())

    def gap(self, residuals: Tensor) -> Tensor:
        """Return the gap between primal and dual value, in nats, of solutions with these residuals, shape (s,).

        It is ``r'r / 2`` for the residual r of H itself, because H is bounded below by the identity. The posterior mean
        then differs from the exact one by at most ``sqrt(2 gap)`` posterior standard deviations everywhere.
        """
        return 0.5 * (residuals.square() / self._rest).sum(0)


def mean_density(row_sums: Tensor) -> float:
    """Return the mean number of rows per node, over the nodes that are close to a row."""
    # Cubic weights of a single row sum to almost zero, or to a negative number, at its outer nodes.
    near = row_sums > 0.05
    return float(row_sums[near].mean()) if bool(near.any()) else 0.0
