"""The box that bounds on hyperparameters define for an optimizer's vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Box:
    """Smallest and largest value of every coordinate; infinite if there is no bound.

    Attributes
    ----------
    lower, upper : Tensor of shape (p,)
    """

    lower: torch.Tensor
    upper: torch.Tensor

    @classmethod
    def everywhere(cls, size: int) -> Box:
        """Return the box without bounds."""
        infinite = torch.full((size,), torch.inf, dtype=torch.float64)
        return cls(-infinite, infinite)

    def clip(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the closest vector in the box."""
        return torch.minimum(torch.maximum(vector, self.lower), self.upper)

    def free(self, vector: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return 1 for coordinates that a descent step may change, and 0 for those it would push out of the box."""
        stuck = ((vector <= self.lower) & (gradient > 0)) | ((vector >= self.upper) & (gradient < 0))
        return (~stuck).to(vector)

    def confine(self, vector: torch.Tensor, step: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return a descent step that stays in the box: the clipped step, or else a clipped step of steepest descent.

        Clipping a step that is not along the gradient may turn it into one that does not descend.
        """
        inside = self.clip(vector + step) - vector
        if float(inside @ gradient) < 0 or not float(step @ gradient) < 0:
            return inside
        length = float(step.abs().max()) / max(float(gradient.abs().max()), 1e-300)
        return self.clip(vector - length * gradient) - vector
