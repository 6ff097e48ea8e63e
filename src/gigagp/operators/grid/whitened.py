"""The system of grid inference in coordinates in which it is nearly the identity where rows lie evenly."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp import interruption
from gigagp.errors import InvalidInputError
from gigagp.operators.base import LinearOperator
from gigagp.operators.grid.gram import Gram
from gigagp.operators.grid.kernel import GridKernel


class WhitenedOperator(LinearOperator):
    """``P^-1/2 (I + R' W'W R / noise) P^-1/2`` with ``R R' = K_G`` and ``P = I + density * lambda / noise``.

    The values on the grid are ``R c`` with ``c ~ N(0, I)`` a priori, c on a torus and held as packed Fourier
    coefficients; ``H = I + R' W'W R / noise`` is the posterior precision of c. ``P`` is what H would be with the same
    density of rows everywhere, and diagonal in these coordinates: the circulant preconditioner costs nothing here and
    is part of the operator, so that a plain residual of it is the preconditioned one. A step has two transforms and one
    product with ``W'W``, as a step of `GridOperator` has.

    A plain residual of H deceives: it weighs waves by their eigenvalue and can fall a thousandfold before the long ones
    are right (elevation data: 90 % off at 1e-3).

    Parameters
    ----------
    kernel : GridKernel
    gram : Gram
        ``W'W``.
    noise : float
        Variance; positive.
    density : float, optional
        Rows a node. Default: the mean over nodes near a row. 0: no preconditioning.

    Attributes
    ----------
    grid_products, gram_products : int
        Products with ``R R'`` and with ``W'W`` so far.

    Notes
    -----
    ``R`` has the clipped spectrum (`GridKernel.clipped`): the prior is that of a kernel that differs from the given one
    by so much.
    """

    def __init__(self, kernel: GridKernel, gram: Gram, noise: float, density: float | None = None) -> None:
        if kernel.grid != gram.grid:
            msg = f"kernel and gram of WhitenedOperator must be on the same grid; got {kernel.grid} and {gram.grid}."
            raise InvalidInputError(msg)
        if not noise > 0:
            msg = f"noise of WhitenedOperator must be positive; got {noise!r}."
            raise InvalidInputError(msg)
        self.kernel, self.gram, self.noise = kernel, gram, float(noise)
        self.density = mean_density(gram.row_sums()) if density is None else float(density)
        self.torus = kernel.root_torus
        self.n = self.torus.n_packed
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.grid_products = self.gram_products = 0
        #: eigenvalues of P, half of them
        self.eigenvalues = kernel.root_spectrum * (self.density / self.noise) + 1
        #: of ``R P^-1/2``
        self.factor = (kernel.root_spectrum / self.eigenvalues).sqrt()
        self._rest = self.torus.spread(1 / self.eigenvalues)

    @property
    def dimension(self) -> int:
        """Nodes of the torus; packed vectors have some coefficients twice."""
        return self.torus.size

    def to_grid(self, vectors: Tensor) -> Tensor:
        """Return the values on the grid, ``R P^-1/2 e`` of shape (m, s), of packed vectors e."""
        return self.torus.to_grid(vectors, self.factor)

    def from_grid(self, vectors: Tensor) -> Tensor:
        """Return ``P^-1/2 R' v``, packed, of grid vectors (m, s)."""
        return self.torus.from_grid(vectors, self.factor)

    def right_hand_side(self, cross: Tensor) -> Tensor:
        """Return the right-hand sides that belong to ``W'z`` of shape (m, s)."""
        return self.from_grid(cross).div_(self.noise)

    def to_dual(self, vectors: Tensor) -> Tensor:
        """Return the packed q of ``c = R' q`` on the whole torus, for a vector ``e = P^1/2 c``.

        At the solution it is ``W' K~^-1 z``, which changes little from one kernel to the next where c changes with
        every eigenvalue.
        """
        # All vectors of a solve are multiples of the root of the spectrum; where that vanishes nothing is known.
        power = self.kernel.root_spectrum * self.eigenvalues
        factor = torch.where(power > 0, power, torch.inf).rsqrt()
        return vectors * self.torus.spread(factor)

    def from_dual(self, dual: Tensor) -> Tensor:
        """Return the vectors that `to_dual` makes ``dual`` of, for this kernel and noise."""
        return dual * self.torus.spread((self.kernel.root_spectrum * self.eigenvalues).sqrt())

    def prior_squares(self, dual: Tensor) -> Tensor:
        """Return ``|c|^2`` of each column, shape (s,)."""
        return (dual.square() * self.torus.spread(self.kernel.root_spectrum)).sum(0)

    def residual_from_adjoint(self, vectors: Tensor, adjoint: Tensor) -> Tensor:
        """Return the residuals of vectors e whose ``W'(z - W R c) / noise`` is known already; no product with W'W."""
        return self.from_grid(adjoint).addcmul_(vectors, self._rest, value=-1)

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return the product with ``vectors`` of shape (n, s)."""
        interruption.check()
        self.grid_products += 1
        self.gram_products += 1
        product = self.from_grid(self.gram @ self.to_grid(vectors))
        return product.div_(self.noise).addcmul_(vectors, self._rest)

    def log_determinant_of_scaling(self) -> float:
        """Return ``log det P``, by which the log-determinant of H exceeds this operator's."""
        return float((self.torus.multiplicity() * self.eigenvalues.log()).sum())

    def gap(self, residuals: Tensor) -> Tensor:
        """Return the gap between primal and dual value, in nats, of solutions with these residuals, shape (s,).

        ``r'r / 2`` of H's own residual, because H is never below the identity. The posterior mean is then nowhere
        further from the exact one than ``sqrt(2 gap)`` posterior standard deviations.
        """
        return 0.5 * (residuals.square() / self._rest).sum(0)


def mean_density(row_sums: Tensor) -> float:
    """Return the rows a node, over the nodes that have any near."""
    # Cubic weights of a single row sum to next to nothing at its outer nodes, or to less.
    near = row_sums > 0.05
    return float(row_sums[near].mean()) if bool(near.any()) else 0.0
