"""The interface of estimators of the marginal-likelihood gradient.

``d log p(y) / d theta = (v' D v - tr(H^-1 D)) / 2`` with ``v = H^-1 y`` and ``D = dH / d theta`` (Lin et al. 2024,
eq. 5). Every estimator here has the form ``sum_j w_j L_j' D R_j`` and is defined by its choice of L, R and w. The
operator's gradient method evaluates all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from gigagp.model.model import Model
from gigagp.operators import RowsMatrix
from gigagp.settings.fields import Settings


class Probes(ABC):
    """The randomness of one gradient estimate; fixed during a warm-started fit and redrawn otherwise."""

    @abstractmethod
    def right_hand_sides(self, model: Model, matrix: RowsMatrix, budget: int) -> torch.Tensor:
        """Return the right-hand sides of the probes at the current hyperparameters, shape (n, s)."""


class GradientEstimator(Settings, ABC):
    """A method of estimating the gradient from solves with right-hand sides ``[targets, probes]``."""

    @property
    @abstractmethod
    def n_probes(self) -> int:
        """Number of probe vectors."""

    @abstractmethod
    def draw(self, model: Model, X: torch.Tensor, generator: torch.Generator, *, has_points: bool = True) -> Probes:
        """Draw new probes for the rows of ``X``; without ``has_points`` the rows are averages about these places."""

    @abstractmethod
    def trace_pair(
        self, solutions: torch.Tensor, right_hand_sides: torch.Tensor, second: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return A and C, each (n, s), such that ``sum_j A_j' D C_j / s`` estimates ``tr(H^-1 D)``.

        ``second`` holds other unbiased solutions, independent of the first, if solutions are randomly truncated.
        """

    def gradient(
        self,
        matrix: RowsMatrix,
        target_solutions: torch.Tensor,
        probe_solutions: torch.Tensor,
        right_hand_sides: torch.Tensor,
        second: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return the estimate of the gradient of the log marginal likelihood, summed over targets.

        Parameters
        ----------
        matrix : KernelMatrix or AveragedMatrix
            ``H`` at the current hyperparameters.
        target_solutions : Tensor of shape (n, t)
            ``H^-1 (y - mean)``.
        probe_solutions, right_hand_sides : Tensor of shape (n, s)
            ``H^-1 b_j`` and ``b_j``.
        second : (Tensor of shape (n, t), Tensor of shape (n, s)), optional
            Further solutions for targets and probes, from an independent random truncation. If solutions are unbiased
            but not exact, a quadratic form ``v' D v`` is unbiased only if its two factors are independent (Potapczynski
            et al. 2021, section 4.1).

        Returns
        -------
        dict of str to Tensor
            Derivative for each hyperparameter, in natural units.
        """
        n_targets = target_solutions.shape[1]
        left, right = self.trace_pair(probe_solutions, right_hand_sides, None if second is None else second[1])
        weights = target_solutions.new_full((n_targets + left.shape[1],), 0.5)
        weights[n_targets:] = -0.5 * n_targets / max(left.shape[1], 1)
        outer = torch.cat([target_solutions, left], 1)
        if left is right and second is None:
            return matrix.gradient(outer, outer, weights)
        inner = torch.cat([target_solutions if second is None else second[0], right], 1)
        return matrix.gradient(outer, inner, weights)
