"""Hutchinson's estimator, whose probes do not depend on the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from gigagp.inference.gradients.base import GradientEstimator, Probes
from gigagp.model.model import Model
from gigagp.operators import RowsMatrix
from gigagp.settings.fields import Count
from gigagp.settings.random import standard_normal


@dataclass(frozen=True)
class _FixedProbes(Probes):
    vectors: torch.Tensor

    def right_hand_sides(self, model: Model, matrix: RowsMatrix, budget: int) -> torch.Tensor:
        return self.vectors.to(dtype=matrix.dtype, device=matrix.device)


@dataclass(frozen=True)
class Hutchinson(GradientEstimator):
    """``tr(H^-1 D) = E[z' H^-1 D z]`` with ``E[z z'] = I`` (Lin et al. 2024, eq. 6; the "standard" estimator).

    When to use: for comparisons. `Pathwise` never has a larger variance than Gaussian probes, has shorter solves at low
    noise, and its solutions are posterior samples. Rademacher probes have a smaller variance than `Pathwise` for the
    noise and the kernel's variance. Hutchinson's right-hand sides do not change with the hyperparameters, which favours
    warm starts.

    Parameters
    ----------
    n_probes : int, default 64
        Number of probe vectors.
    law : {"gaussian", "rademacher"}, default "gaussian"
        Distribution of the probes. The papers use Gaussian probes; Rademacher probes have a smaller variance.
    """

    n_probes: Count = 64
    law: Literal["gaussian", "rademacher"] = "gaussian"

    def draw(self, model: Model, X: torch.Tensor, generator: torch.Generator, *, has_points: bool = True) -> Probes:
        """Draw ``z``, which stays the same for all hyperparameters."""
        vectors = standard_normal(X.shape[0], self.n_probes, generator=generator)
        return _FixedProbes(vectors.sign() if self.law == "rademacher" else vectors)

    def trace_pair(
        self, solutions: torch.Tensor, right_hand_sides: torch.Tensor, second: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``H^-1 z`` and ``z``; two independent solutions are averaged, which reduces the variance."""
        return solutions if second is None else 0.5 * (solutions + second), right_hand_sides
