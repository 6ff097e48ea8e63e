"""Samples of the prior as functions, from random features with fixed randomness."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.kernels import Kernel
from gigagp.kernels.draws import FeatureDraw
from gigagp.random import standard_normal


@dataclass(frozen=True)
class PriorSamples:
    """``s`` functions ``f_j(x) = phi(x) w_j`` from ``GP(0, kernel)``, for use at any points and hyperparameters.

    All samples share the frequencies, and each has its own weights (Lin et al. 2024, section 3 and appendix B). Both
    are base randomness: the functions change smoothly with the hyperparameters.

    Attributes
    ----------
    draw : FeatureDraw
        Base randomness of the features.
    weights : Tensor of shape (n_columns, s)
        Standard normal weights, float64.
    """

    draw: FeatureDraw
    weights: torch.Tensor

    @classmethod
    def new(
        cls,
        kernel: Kernel,
        n_inputs: int,
        n_samples: int,
        n_features: int,
        generator: torch.Generator,
        law: str = "balanced",
    ) -> PriorSamples:
        """Draw frequencies and weights; ``law`` is that of `gigagp.gradients.Pathwise`."""
        draw = kernel.draw_features(n_features, n_inputs, generator, law=law)
        columns = kernel.features(torch.zeros(1, n_inputs, dtype=torch.float64), draw).shape[1]
        return cls(draw, standard_normal(columns, n_samples, generator=generator))

    def evaluate(self, kernel: Kernel, X: torch.Tensor, budget: int) -> torch.Tensor:
        """Return the functions at the rows of ``X``, shape (n, s), in blocks that fit into ``budget`` bytes."""
        weights = self.weights.to(X)
        rows = max(1, min(1024, budget // (64 * max(weights.shape[0], 1) * X.element_size())))
        if X.shape[0] <= rows:
            return kernel.features(X, self.draw) @ weights
        return torch.cat([kernel.features(block, self.draw) @ weights for block in X.split(rows)])
