"""The recurrence of preconditioned conjugate gradients.

`ConjugateGradients` runs it to a tolerance, `TruncatedRun` weights its increments at random, and
`gigagp.solvers.lanczos` reads its coefficients as a tridiagonal matrix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gigagp.operators.base import LinearOperator
from gigagp.runtime import interruption
from gigagp.solvers.base import column_norms


class Coefficients(NamedTuple):
    """Scalars of one step, each of shape (s,); zero for columns that did not move."""

    alpha: torch.Tensor
    beta: torch.Tensor


@dataclass
class WeightedSum:
    """A weighted sum of the increments of a run, and the residual of that sum; both are updated in place."""

    value: torch.Tensor
    residual: torch.Tensor


class Recurrence:
    """Conjugate gradients on s systems at once, each with its own scalars.

    This is Lin et al. 2024, Alg. 1, with three differences. The first direction is the *preconditioned* residual (line
    8 prints ``d <- b``, which diverges). Inner products are the operator's own. A column that has converged completely,
    or whose matrix turns out not to be positive definite, stops moving; dividing zero by zero is avoided.

    ``value`` and ``residual``, shape (n, s), are updated in place, and so are the weighted ``sums`` of the same
    increments (Potapczynski et al. 2021, eq. 16). The weights do not enter the recurrence itself, because they would
    break conjugacy.
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
        """Discard the directions and continue from the current residual by steepest descent."""
        preconditioned = self._preconditioned()
        self.direction = preconditioned.clone() if preconditioned is self.residual else preconditioned
        self.gamma = self.operator.inner(self.residual, preconditioned)
        self.failed = torch.zeros_like(self.gamma, dtype=torch.bool)
        self.finite = self.finite and bool(torch.isfinite(self.gamma).all())

    def correct(self, residual: torch.Tensor) -> None:
        """Replace the residual by a more accurate one, and keep the directions.

        This suits corrections that are small beside the residual: conjugacy is lost only in proportion to the
        correction, whereas a restart would lose it entirely.
        """
        self.direction.sub_(self._preconditioned())
        self.residual.copy_(residual)
        preconditioned = self._preconditioned()
        self.direction.add_(preconditioned)
        self.gamma = self.operator.inner(self.residual, preconditioned)

    def step(self, weights: Sequence[float] = ()) -> tuple[Coefficients, torch.Tensor]:
        """Take one step in every column, with one product; return its coefficients and the norms of the increments.

        ``weights`` are the factors of this step's increment in each of the weighted sums.
        """
        product = self.operator @ self.direction  # Alg. 1, line 11: the only pass over the matrix
        curvature = self.operator.inner(self.direction, product)
        lengths = column_norms(self.direction)
        sizes = column_norms(product) / torch.where(lengths > 0, lengths, 1.0)
        finite, size = (
            torch.stack([torch.isfinite(curvature).all(), sizes.max()]).tolist() if len(sizes) else (True, 0.0)
        )
        if not finite:
            self.finite = False
            return Coefficients(torch.zeros_like(curvature), torch.zeros_like(curvature)), torch.zeros_like(curvature)
        self.operator_size = max(self.operator_size, size)
        self.failed |= (self.gamma < 0) | ((self.gamma > 0) & (curvature <= 0))
        moving = (self.gamma > 0) & (curvature > 0) & ~self.frozen
        alpha = torch.where(moving, self.gamma / torch.where(moving, curvature, 1.0), 0.0)
        if self._lengths.maxlen:
            self._lengths.append(alpha * self.operator.inner(self.direction, self.direction).clamp_min(0).sqrt())
        self.value.addcmul_(self.direction, alpha)
        self.residual.addcmul_(product, alpha, value=-1)
        for total, weight in zip(self.sums, weights, strict=True):
            if weight:
                total.value.addcmul_(self.direction, alpha, value=weight)
                total.residual.addcmul_(product, alpha, value=-weight)
        preconditioned = self._preconditioned()
        gamma = self.operator.inner(self.residual, preconditioned)
        beta = torch.where(moving, gamma / torch.where(moving, self.gamma, 1.0), 0.0)
        self.gamma = gamma
        self.direction.mul_(beta).add_(preconditioned)
        self.finite = bool(torch.isfinite(gamma).all())
        return Coefficients(alpha, beta), alpha * lengths

    def run(self, tolerance: float, steps: int) -> torch.Tensor:
        """Take at most so many steps, until the preconditioned residuals have fallen by a factor; return the value."""
        first = self.gamma
        for _ in range(steps):
            if not self.finite or bool((self.gamma <= tolerance**2 * first).all()):
                break
            interruption.check()
            self.step()
        return self.value

    @property
    def moved(self) -> torch.Tensor:
        """Sum of the lengths of the last ``delay`` steps, shape (s,); infinite until that many have been taken.

        Every step reduces the error, so if these steps removed most of it, the sum is about the error before them.
        """
        if len(self._lengths) < (self._lengths.maxlen or 0):
            return torch.full_like(self.gamma, torch.inf)
        return torch.stack(list(self._lengths)).sum(0)

    def state(self) -> dict[str, torch.Tensor]:
        """Return what the next steps depend on, beside the value and the residual; not for weighted sums."""
        return {
            "direction": self.direction,
            "gamma": self.gamma,
            "failed": self.failed.to(torch.uint8),
            "frozen": self.frozen.to(torch.uint8),
            "operator_size": torch.tensor(self.operator_size, dtype=torch.float64),
            "lengths": torch.stack(list(self._lengths)) if self._lengths else torch.zeros(0),
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state of the same systems."""
        self.direction = state["direction"].to(self.direction)
        self.gamma = state["gamma"].to(self.gamma)
        self.failed, self.frozen = (state[name].to(self.failed) for name in ("failed", "frozen"))
        self.operator_size = float(state["operator_size"])
        self._lengths.extend(one.to(self.gamma) for one in state["lengths"])

    def _preconditioned(self) -> torch.Tensor:
        return self.residual if self._precondition is None else self._precondition(self.residual)
