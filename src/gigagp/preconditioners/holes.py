"""A preconditioner of grid inference for data with holes."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.operators.grid.whitened import WhitenedOperator
from gigagp.preconditioners.base import Preconditioner


class HolesPreconditioner(Preconditioner):
    """Corrects the circulant part of a `WhitenedOperator` where there are no rows.

    Let ``mask`` be 1 where the torus has no rows (holes, and all of it around the grid) and 0 where it has the mean
    density. Then H is about ``P - density R' mask R / noise``, P being H for the same density everywhere. By the
    Woodbury identity its inverse is ``P^-1 + P^-1 R' C^-1 R P^-1``, where C is a block of the inverse of
    ``I + density T / noise`` and T the kernel on the torus. The inverse of that block is approximated by the block of
    the inverse, ``mask (I + density T / noise) mask``: wrong only along the edges of the holes, positive definite
    always, and four transforms.

    When to use: data with large holes, or solves to a tight tolerance. Its first ten to thirty steps are worse than
    those of the plain operator, then it converges much faster (m = 75 x 75, a fifth in holes, Matern-3/2, error of the
    mean in the noise's standard deviation after 20, 40, 80 steps: 2, 2, 0.9 without, 4, 0.6, 0.01 with).

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
        # Less than half of the mean is a hole, the more the less there is. What is nearer to it counts as the mean:
        # with the uneven density of a lattice on another one in the mask, elevation data took over twice the steps.
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
        """Raise: this preconditioner is known by its inverse alone."""
        msg = "HolesPreconditioner cannot be sampled: only its inverse is known. Use none for log-determinants."
        raise NotImplementedError(msg)

    def log_determinant(self) -> float:
        """Raise: this preconditioner is known by its inverse alone."""
        msg = "the determinant of HolesPreconditioner is not known: only its inverse is. Use none for log-determinants."
        raise NotImplementedError(msg)

    def describe(self) -> str:
        """Return one line for people."""
        return f"holes of a circulant ({float(self.mask.mean()):.0%} of a torus of {self._torus.lengths} has no rows)"
