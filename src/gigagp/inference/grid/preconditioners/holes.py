"""A preconditioner for grid inference on data with holes."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.operators.grid.whitened import WhitenedOperator
from gigagp.solvers.preconditioners.base import Preconditioner


class HolesPreconditioner(Preconditioner):
    """A correction of the circulant part of a `WhitenedOperator` where there are no rows.

    Let ``mask`` be 1 where the torus has no rows (in holes, and everywhere outside the grid) and 0 where it has the
    mean density. Let P be the operator for the mean density everywhere. Then H is about ``P - density R' mask R /
    noise``. By the Woodbury identity its inverse is ``P^-1 + P^-1 R' C^-1 R P^-1``, where C is a block of the inverse
    of ``I + density T / noise`` and T is the kernel on the torus. The inverse of that block is approximated by the
    block of the inverse, ``mask (I + density T / noise) mask``. The approximation is wrong only along the edges of the
    holes, is always positive definite, and costs four transforms.

    When to use: for data with large holes, or for solves to a tight tolerance. The first ten to thirty steps are worse
    than those of the plain operator; then convergence is much faster (m = 75 x 75, a fifth in holes, Matern-3/2, error
    of the mean in the noise's standard deviation after 20, 40, 80 steps: 2, 2, 0.9 without and 4, 0.6, 0.01 with it).

    Parameters
    ----------
    operator : WhitenedOperator
    """

    epochs = 0.0

    def __init__(self, operator: WhitenedOperator) -> None:
        kernel, self._torus = operator.kernel, operator.torus
        self.n = operator.n
        density = torch.zeros(self._torus.lengths, dtype=torch.float64)
        corner = tuple(slice(count) for count in kernel.grid.shape)
        density[corner] = operator.gram.row_sums().reshape(kernel.grid.shape)
        # A cell with less than half of the mean density counts as a hole, the more so the emptier it is. A density
        # closer to the mean counts as the mean: when the mask contained the uneven density of a lattice of rows on
        # another lattice, elevation data took more than twice as many steps.
        self.mask = (1 - 2 * density / max(operator.density, 1e-300)).clamp(0, 1)
        self._outer = operator.factor * (operator.density / operator.noise) ** 0.5
        self._inner = operator.eigenvalues

    def apply(self, vectors: Tensor) -> Tensor:
        """Return ``P^-1 @ vectors``."""
        return vectors + self._torus.convolve_within(vectors, self._outer, self.mask, self._inner)

    @property
    def rank(self) -> int:
        """Zero: there is no low-rank part."""
        return 0

    def transform_normal(self, normal: Tensor) -> Tensor:
        """Raise NotImplementedError, because only the inverse of this preconditioner is known."""
        msg = "HolesPreconditioner cannot be sampled: only its inverse is known. Use none for log-determinants."
        raise NotImplementedError(msg)

    def log_determinant(self) -> float:
        """Raise NotImplementedError, because only the inverse of this preconditioner is known."""
        msg = "the determinant of HolesPreconditioner is not known: only its inverse is. Use none for log-determinants."
        raise NotImplementedError(msg)

    def describe(self) -> str:
        """Return one line that describes what was built."""
        return f"holes of a circulant ({float(self.mask.mean()):.0%} of a torus of {self._torus.lengths} has no rows)"
