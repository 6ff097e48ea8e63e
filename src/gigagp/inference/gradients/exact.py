"""The exact gradient from a dense inverse."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.inference.gradients.base import GradientEstimator, Probes
from gigagp.model.model import Model
from gigagp.operators import RowsMatrix
from gigagp.products.dense import cholesky, symmetric_inverse


class _NoProbes(Probes):
    def right_hand_sides(self, model: Model, matrix: RowsMatrix, budget: int) -> torch.Tensor:
        return torch.zeros(matrix.n, 0, dtype=matrix.dtype, device=matrix.device)


@dataclass(frozen=True)
class Exact(GradientEstimator):
    """``(v' D v - tr(H^-1 D)) / 2`` without an estimate, in O(n^3) time and with two n x n arrays.

    When to use: up to a few thousand rows, and as the reference for estimators.
    """

    n_probes = 0  # nothing is estimated

    def draw(self, model: Model, X: torch.Tensor, generator: torch.Generator, *, has_points: bool = True) -> Probes:
        return _NoProbes()

    def trace_pair(
        self, solutions: torch.Tensor, right_hand_sides: torch.Tensor, second: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the right-hand sides as placeholders: `gradient` computes the trace from the inverse."""
        return right_hand_sides, right_hand_sides

    def gradient(
        self,
        matrix: RowsMatrix,
        target_solutions: torch.Tensor,
        probe_solutions: torch.Tensor,
        right_hand_sides: torch.Tensor,
        second: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Factorise ``H`` and return the gradient; see `GradientEstimator.gradient`."""
        factor = cholesky(matrix.to_dense())
        return self.from_factor(matrix, target_solutions, factor, None if second is None else second[0])

    def from_factor(
        self,
        matrix: RowsMatrix,
        target_solutions: torch.Tensor,
        factor: torch.Tensor,
        second: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the gradient of the log marginal likelihood, summed over targets, from a given factor.

        Parameters
        ----------
        matrix : KernelMatrix or AveragedMatrix
            ``H`` at the current hyperparameters.
        target_solutions : Tensor of shape (n, t)
            ``H^-1 (y - mean)``.
        factor : Tensor of shape (n, n)
            Lower Cholesky factor of H.
        second : Tensor of shape (n, t), optional
            Further independent solutions; see `GradientEstimator.gradient`.
        """
        other = target_solutions if second is None else second
        n_targets = target_solutions.shape[1]
        inverse = symmetric_inverse(factor)
        left, right = target_solutions, other
        if second is not None:  # tiles are one-sided, so use the symmetric part
            left, right = 0.5 * torch.cat([left, other], 1), torch.cat([other, target_solutions], 1)

        def weights(rows: slice, columns: slice) -> torch.Tensor:
            return torch.addmm(inverse[rows, columns], left[rows], right[columns].T, beta=-0.5 * n_targets, alpha=0.5)

        return matrix.weighted_gradient(weights)
