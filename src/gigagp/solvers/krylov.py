"""The recurrence of preconditioned conjugate gradients, by itself.

`ConjugateGradients` drives it to a tolerance or weights its increments at random, `gigagp.lanczos` reads its
coefficients as a tridiagonal matrix: the mathematics is written once, here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gigagp.operators.base import LinearOperator


class Coefficients(NamedTuple):
    """Scalars of one step, shape (s,) each; zero for columns that did not move."""

    alpha: torch.Tensor
    beta: torch.Tensor


@dataclass
class WeightedSum:
    """A sum of the increments of a run with weights of its own, and the residual that belongs to it.

    Attributes
    ----------
    value, residual : Tensor of shape (n, s)
        Updated in place; before the first step, value and residual of the run.
    """

    value: torch.Tensor
    residual: torch.Tensor


class Recurrence:
    """Conjugate gradients on s systems at once, each with its own scalars.

    Lin et al. 2024, Alg. 1, with three differences: the first direction is the *preconditioned* residual (line 8
    prints ``d <- b``, which diverges), inner products are the operator's own, and a column that has nothing left to
    gain, or whose matrix turns out not to be positive definite, stops moving instead of dividing zero by zero.

    Parameters
    ----------
    operator : LinearOperator
    value, residual : Tensor of shape (n, s)
        Updated in place.
    precondition : callable or None
        ``P^-1``; self-adjoint in the operator's inner product.
    sums : sequence of WeightedSum
        Formed beside the value, from the same increments (Potapczynski et al. 2021, eq. 16). The recurrence itself
        never sees a weight: that would break conjugacy.
    delay : int, default 0
        Steps that `moved` looks back on; 0: it is not asked for.

    Attributes
    ----------
    gamma : Tensor of shape (s,)
        ``<r, P^-1 r>`` of each column.
    failed : Tensor of shape (s,), bool
        Columns that met a direction of no positive curvature.
    frozen : Tensor of shape (s,), bool
        Columns that are not to move any more; set by whoever drives the run.
    finite : bool
        False once a product was NaN or infinite; the value is then still that of the step before.
    operator_size : float
        Largest ``||H d|| / ||d||`` seen.
    """

    def __init__(
        self,
        operator: LinearOperator,
        value: torch.Tensor,
        residual: torch.Tensor,
        precondition: Callable[[torch.Tensor], torch.Tensor] | None = None,
        sums: Sequence[WeightedSum] = (),
        delay: int = 0,
    ) -> None:
        self.operator = operator
        self.value = value
        self.residual = residual
        self.sums = sums
        self._precondition = precondition
        self.frozen = torch.zeros(value.shape[1], dtype=torch.bool, device=value.device)
        self.finite = True
        self.operator_size = 0.0
        self._lengths: deque[torch.Tensor] = deque(maxlen=delay)
        self.restart()

    def restart(self) -> None:
        """Forget the directions and go on from the present residual by steepest descent."""
        preconditioned = self._preconditioned()
        self.direction = preconditioned.clone() if preconditioned is self.residual else preconditioned
        self.gamma = self.operator.inner(self.residual, preconditioned)
        self.failed = torch.zeros_like(self.gamma, dtype=torch.bool)
        self.finite = self.finite and bool(torch.isfinite(self.gamma).all())

    def correct(self, residual: torch.Tensor) -> None:
        """Put a better residual in the place of the present one, and keep the directions.

        For corrections that are small beside the residual: conjugacy suffers by as much, where a restart would lose it.
        """
        self.direction.sub_(self._preconditioned())
        self.residual.copy_(residual)
        preconditioned = self._preconditioned()
        self.direction.add_(preconditioned)
        self.gamma = self.operator.inner(self.residual, preconditioned)

    def step(self, weights: Sequence[float] = ()) -> tuple[Coefficients, torch.Tensor]:
        """Take one step of every column; one product with the operator.

        Parameters
        ----------
        weights : sequence of float
            Factors on this step's increment, one for each of ``sums``.

        Returns
        -------
        coefficients : Coefficients
        step_norms : Tensor of shape (s,)
            Norm of each increment of the value.
        """
        product = self.operator @ self.direction  # Alg. 1, line 11: the only pass over the matrix
        curvature = self.operator.inner(self.direction, product)
        if not bool(torch.isfinite(curvature).all()):
            self.finite = False
            return Coefficients(torch.zeros_like(curvature), torch.zeros_like(curvature)), torch.zeros_like(curvature)
        self.failed |= (self.gamma < 0) | ((self.gamma > 0) & (curvature <= 0))
        moving = (self.gamma > 0) & (curvature > 0) & ~self.frozen
        alpha = torch.where(moving, self.gamma / torch.where(moving, curvature, 1.0), 0.0)
        lengths = torch.linalg.vector_norm(self.direction, dim=0)
        sizes = torch.linalg.vector_norm(product, dim=0) / torch.where(lengths > 0, lengths, 1.0)
        self.operator_size = max(self.operator_size, float(sizes.max()) if len(sizes) else 0.0)
        if self._lengths.maxlen:
            self._lengths.append(alpha * self.operator.inner(self.direction, self.direction).clamp_min(0).sqrt())
        self.value.addcmul_(self.direction, alpha)
        self.residual.addcmul_(product, alpha, value=-1)
        for total, weight in zip(self.sums, weights, strict=True):
            if weight:
                total.value.addcmul_(self.direction, alpha, value=weight)
                total.residual.addcmul_(product, alpha, value=-weight)
        beta = self._turn(moving)
        return Coefficients(alpha, beta), alpha * lengths

    @property
    def moved(self) -> torch.Tensor:
        """Lengths of the last ``delay`` steps together, shape (s,); infinite before so many were taken.

        About what the error was before them, where they took most of it away: no step adds to it.
        """
        if len(self._lengths) < (self._lengths.maxlen or 0):
            return torch.full_like(self.gamma, torch.inf)
        return torch.stack(list(self._lengths)).sum(0)

    def _preconditioned(self) -> torch.Tensor:
        return self.residual if self._precondition is None else self._precondition(self.residual)

    def _turn(self, moving: torch.Tensor) -> torch.Tensor:
        preconditioned = self._preconditioned()
        gamma = self.operator.inner(self.residual, preconditioned)
        beta = torch.where(moving, gamma / torch.where(moving, self.gamma, 1.0), 0.0)
        self.gamma = gamma
        self.direction.mul_(beta).add_(preconditioned)
        self.finite = bool(torch.isfinite(gamma).all())
        return beta
