"""Bases of the kernel's functions at points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.quadruply_stochastic.bases.base import Basis
from gigagp.kernels import Kernel


@dataclass(frozen=True, eq=False)
class _AtPoints(Basis):
    """Functions ``phi_i(x) = k(x, z_i)``."""

    kernel: Kernel
    points: Tensor

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or not len(self.points) or self.points.shape[1] != self.kernel.n_inputs:
            raise InvalidInputError(
                f"points of {type(self).__name__} must have shape (m, {self.kernel.n_inputs}), m at least 1; "
                f"got {tuple(self.points.shape)}."
            )

    @property
    def size(self) -> int:  # type: ignore[override]  # a property here, an attribute elsewhere
        """Number of points, m."""
        return len(self.points)

    def columns(self, X: Tensor, index: Tensor) -> Tensor:
        return self.kernel.block(X, self.points[index].to(X))

    def with_kernel(self, kernel: Kernel) -> Self:
        return replace(self, kernel=kernel)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"points": self.points}, {}


@dataclass(frozen=True, eq=False)
class InducingBasis(_AtPoints):
    """``phi_i(x) = k(x, z_i)`` with prior precision ``S_ij = k(z_i, z_j)``: Nystrom's approximation of the kernel.

    With the training rows as points the model equals the exact Gaussian process at the rows, and its predictive mean is
    the exact one everywhere. Away from the rows its variance shrinks to zero; ``augment`` of
    `gigagp.inference.QuadruplyStochastic` corrects that.

    Parameters
    ----------
    kernel : Kernel
        Bound.
    points : Tensor of shape (m, d)
    jitter : float, default 1e-8
        Added to the diagonal of S, as a share of the prior variance.
    """

    jitter: float = 1e-8

    kind = "inducing"
    has_diagonal_prior = False

    def prior_diagonal(self, index: Tensor) -> Tensor:
        return self.kernel.diagonal(self.points[index].double()) * (1 + self.jitter)

    def prior_block(self, rows: Tensor, columns: Tensor) -> Tensor:
        block = self.kernel.block(self.points[rows].double(), self.points[columns].double())
        same = (rows[:, None] == columns[None, :]).double()
        return block + same * (self.jitter * self.kernel.diagonal(self.points[rows].double()))[:, None]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"points": self.points}, {"jitter": self.jitter}

    @classmethod
    def from_state(cls, kernel: Kernel, tensors: dict[str, Tensor], header: dict[str, Any]) -> InducingBasis:
        """Return the basis that `state` described."""
        return cls(kernel, tensors["points"], header["jitter"])


@dataclass(frozen=True, eq=False)
class RadialBasis(_AtPoints):
    """``phi_i(x) = k(x, z_i)`` with independent weights, as in the relevance vector machine.

    The prior precisions, one for each function, are learned, so they are not part of the basis. Where they are not
    learned, they are ones.

    Parameters
    ----------
    kernel : Kernel
        Bound.
    points : Tensor of shape (m, d)
        The training rows, in a relevance vector machine.
    """

    kind = "radial"

    @classmethod
    def from_state(cls, kernel: Kernel, tensors: dict[str, Tensor], header: dict[str, Any]) -> RadialBasis:
        """Return the basis that `state` described."""
        return cls(kernel, tensors["points"])


def random_points(X: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return up to ``most`` distinct rows: all where there are no more, and otherwise random ones."""
    distinct = torch.unique(X, dim=0)
    if len(distinct) <= most:
        return distinct
    return distinct[torch.randperm(len(distinct), generator=generator)[:most].to(X.device)]
