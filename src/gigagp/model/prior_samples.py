"""Samples of the prior as functions, from random features with fixed randomness."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.features import count_columns, feature_product
from gigagp.settings.random import standard_normal

#: Sine and cosine columns of the prior functions behind `sample_functions`.
_N_FEATURES = 4000


@dataclass(frozen=True)
class PriorSamples:
    """``s`` functions ``f_j(x) = phi(x) w_j`` from ``GP(0, kernel)``, for use at any points and hyperparameters.

    All samples share the frequencies, and each has its own weights (Lin et al. 2024, section 3 and appendix B). Both
    are base randomness: the functions change smoothly with the hyperparameters.
    """

    draw: FeatureDraw
    weights: torch.Tensor  # (n_columns, s), standard normal, float64

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
        columns = count_columns(kernel.bind(n_inputs), draw)
        return cls(draw, standard_normal(columns, n_samples, generator=generator))

    @classmethod
    def for_sample_functions(
        cls, kernel: Kernel, n_inputs: int, n_samples: int, generator: torch.Generator
    ) -> PriorSamples:
        """Draw the prior functions behind a posterior's `sample_functions`; refuse a kernel without random features."""
        if not kernel.has_features():
            raise InvalidInputError(
                "sample_functions needs a kernel with random features for prior functions; got "
                f"{kernel!r}. sample_y at up to 2,000 points works without them."
            )
        return cls.new(kernel, n_inputs, n_samples, _N_FEATURES, generator)

    def evaluate(self, kernel: Kernel, X: torch.Tensor, budget: int) -> torch.Tensor:
        """Return the functions at the rows of ``X``, shape (n, s), in blocks that fit into ``budget`` bytes."""
        kernel, weights = kernel.bind(X.shape[1]), self.weights.to(X)
        rows = max(1, min(1024, budget // (64 * max(weights.shape[0], 1) * X.element_size())))
        found = [feature_product(kernel, block, self.draw, weights) for block in X.split(rows)]
        return found[0] if len(found) == 1 else torch.cat(found)
