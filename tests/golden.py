"""The small problem for which the notes on randomized truncation give numbers, and laws with chosen draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

import torch

from gigagp.kernels import RBF
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers.truncation import Distribution, ExponentialDecay


@dataclass(frozen=True)
class Golden:
    """A matrix with targets and a probe vector."""

    matrix: KernelMatrix | DenseMatrix
    y: torch.Tensor
    z: torch.Tensor

    @property
    def dense(self) -> torch.Tensor:
        return self.matrix.to_dense()


def golden(noise: float = 0.01, dtype: torch.dtype = torch.float64) -> Golden:
    """Return 200 points on a line (papers/rr-cg-ss-rff.md, section 10, "Golden problem G")."""
    i = torch.arange(200, dtype=torch.float64)
    x = i / 199
    y = x * torch.sin(5 * math.pi * x) + 0.1 * torch.cos(7 * i**2)
    z = torch.where(torch.cos(7 * i**2 + 1) >= 0, 1.0, -1.0).double()
    kernel = RBF(lengthscale=0.1, variance=1.0).bind(1)
    return Golden(KernelMatrix(kernel, x[:, None].to(dtype), noise), y.to(dtype), z.to(dtype))


@dataclass(frozen=True)
class Chosen(ExponentialDecay):
    """A decay law with given draws, which are repeated in turn, for sums over every length."""

    draws: tuple[int, ...] = ()
    _next: list[Iterator[int]] = field(default_factory=list, compare=False, repr=False)

    def sample(self, generator: torch.Generator) -> int:
        if not self._next:
            self._next.append(cycle(self.draws))
        return next(self._next[0])


def choose(law: ExponentialDecay, *draws: int) -> Chosen:
    return Chosen(law.rate, law.minimum, law.maximum, law.step, draws)


def lengths_and_chances(law: Distribution, converged: int) -> list[tuple[int, float]]:
    """Return every length with its probability; lengths beyond convergence, whose runs are equal, are combined."""
    before = [(j, law.probability(j)) for j in law.support() if j <= converged]
    beyond = converged + 1
    return [*before, (max(beyond, law.minimum), law.survival(beyond))] if law.survival(beyond) > 0 else before
