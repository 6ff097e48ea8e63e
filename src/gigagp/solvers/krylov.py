"""The recurrence of preconditioned conjugate gradients.

`ConjugateGradients` runs it to a tolerance (by `Lookahead`), `TruncatedRun` weights its increments at random, and
`gigagp.solvers.lanczos` reads its coefficients as a tridiagonal matrix.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gigagp.operators.base import LinearOperator
from gigagp.runtime import interruption
from gigagp.solvers.ahead import Ahead
from gigagp.solvers.base import are_finite, column_norms, on_cpu


class Step(NamedTuple):
    """What a step found; numbers have shape (s,), and alpha and beta are zero for columns that did not move."""

    alpha: torch.Tensor
    beta: torch.Tensor
    curvature: torch.Tensor  # d'Hd of the direction d
    product: torch.Tensor  # Hd, shape (n, s)


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
    ) -> None:
        self.operator = operator
        self.value = value
        self.residual = residual
        self.sums = sums
        self._precondition = precondition
        #: columns that stop moving; None: none
        self.frozen: torch.Tensor | None = None
        self.restart()
        self._curvature = torch.zeros_like(self.gamma)

    @property
    def finite(self) -> bool:
        """Whether the last step, if there was one, met finite numbers alone."""
        return are_finite(self.gamma, self._curvature)

    def restart(self) -> None:
        """Discard the directions and continue from the current residual by steepest descent."""
        preconditioned = self._preconditioned()
        self.direction = preconditioned.clone() if preconditioned is self.residual else preconditioned
        self.gamma = self.operator.inner(self.residual, preconditioned)

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

    def step(self, weights: Sequence[float] = ()) -> Step:
        """Take one step in every column, with one product; nothing of it is read, so that a GPU is not waited for.

        ``weights`` are the factors of this step's increment in each of the weighted sums.
        """
        product = self.operator @ self.direction  # Alg. 1, line 11: the only pass over the matrix
        self._curvature = curvature = self.operator.inner(self.direction, product)
        least = torch.minimum(self.gamma, curvature)
        moving = (least if self.frozen is None else least.masked_fill(self.frozen, 0.0)) > 0
        alpha = torch.where(moving, self.gamma / curvature, 0.0)
        self.value.addcmul_(self.direction, alpha)
        self.residual.addcmul_(product, alpha, value=-1)
        for total, weight in zip(self.sums, weights, strict=True):
            if weight:
                total.value.addcmul_(self.direction, alpha, value=weight)
                total.residual.addcmul_(product, alpha, value=-weight)
        preconditioned = self._preconditioned()
        gamma = self.operator.inner(self.residual, preconditioned)
        beta = torch.where(moving, gamma / self.gamma, 0.0)
        self.gamma = gamma
        self.direction.mul_(beta).add_(preconditioned)
        return Step(alpha, beta, curvature, product)

    def run(self, tolerance: float, steps: int) -> torch.Tensor:
        """Take at most so many steps, until the preconditioned residuals have fallen by a factor; return the value."""
        first = self.gamma
        for _ in range(steps):
            if not self.finite or bool((self.gamma <= tolerance**2 * first).all()):
                break
            interruption.check()
            self.step()
        return self.value

    def _preconditioned(self) -> torch.Tensor:
        return self.residual if self._precondition is None else self._precondition(self.residual)


def have_failed(gamma: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """Return which columns a step found to be without positive curvature, from gamma before the step, shape (s,)."""
    return (gamma < 0) | ((gamma > 0) & (curvature <= 0))


class Seen(NamedTuple):
    """Numbers of the columns after a step, on the CPU, each of shape (s,)."""

    norms: torch.Tensor  # of the residual
    gamma: torch.Tensor
    finite: bool
    alpha: torch.Tensor
    step_norms: torch.Tensor
    value_norms: torch.Tensor


class Lookahead(Ahead):
    """A recurrence whose numbers are looked at step by step on the CPU, where a GPU may be some steps ahead (`Ahead`).

    Parameters
    ----------
    recurrence : Recurrence
    norm : callable
        Norms of the columns of a residual.
    most : int
        Largest number of steps in a row.
    delay : int
        Number of past steps in `moved`; 0 if it is not needed.

    Attributes
    ----------
    seen : Seen
        Numbers of the present step.
    failed : Tensor of shape (s,)
        Columns in which a step since the last restart found no positive curvature.
    operator_size : float
        Largest ``|H d| / |d|`` of directions d, of which one in a row of steps is measured.
    """

    def __init__(
        self, recurrence: Recurrence, norm: Callable[[torch.Tensor], torch.Tensor], most: int, delay: int = 0
    ) -> None:
        super().__init__(most)
        self.recurrence, self._norm = recurrence, norm
        self.operator_size = 0.0
        self._lengths: deque[torch.Tensor] = deque(maxlen=delay)
        self._is_first = False  # of a row of steps
        self.renew()
        self.failed = torch.zeros_like(self.seen.gamma, dtype=torch.bool)

    def renew(self) -> None:
        """See a recurrence whose vectors were changed between steps."""
        norms, gamma = on_cpu(self._norm(self.recurrence.residual), self.recurrence.gamma)
        none = torch.zeros_like(norms)
        self.seen = Seen(norms, gamma, are_finite(gamma), none, none, none)

    def restart(self) -> None:
        """Discard the directions; see `Recurrence.restart`."""
        self.recurrence.restart()
        self.renew()
        self.failed = torch.zeros_like(self.failed)

    def look(self, wanted: Callable[[], float], excess: float) -> Seen:
        """See the next step; ``wanted`` and ``excess`` are those of `Ahead`."""
        curvature, alpha, length, own, gamma, norms, value_norms, *size = self._next_numbers(wanted, excess)
        if len(curvature) and not float(torch.minimum(self.seen.gamma, curvature).min()) > 0:
            self.failed = self.failed | have_failed(self.seen.gamma, curvature)
        if self._lengths.maxlen:
            self._lengths.append(alpha * own.clamp_min(0).sqrt())
        if size and len(length):
            largest = float((size[0] / torch.where(length > 0, length, 1.0)).max())
            self.operator_size = max(self.operator_size, largest if math.isfinite(largest) else 0.0)
        self.seen = Seen(norms, gamma, are_finite(curvature, gamma), alpha, alpha * length, value_norms)
        return self.seen

    def _copy(self, steps: int) -> Any:
        run, self._is_first = self.recurrence, True
        if steps == 1:
            return None
        return run.value.clone(), run.residual.clone(), run.direction.clone(), run.gamma

    def _return_to(self, copy: Any) -> None:
        run = self.recurrence
        value, residual, run.direction, run.gamma = copy
        run.value.copy_(value)
        run.residual.copy_(residual)

    def _take_step(self) -> list[torch.Tensor]:
        run = self.recurrence
        length = column_norms(run.direction)
        own = run.operator.inner(run.direction, run.direction) if self._lengths.maxlen else length
        step = run.step()
        found = [step.curvature, step.alpha, length, own, run.gamma, self._norm(run.residual), column_norms(run.value)]
        if self._is_first:
            found.append(column_norms(step.product))
        self._is_first = False
        return found

    @property
    def moved(self) -> torch.Tensor:
        """Sum of the lengths of the last ``delay`` steps, shape (s,); infinite until that many have been taken.

        Every step reduces the error, so if these steps removed most of it, the sum is about the error before them.
        """
        if len(self._lengths) < (self._lengths.maxlen or 0):
            return torch.full_like(self.seen.gamma, torch.inf)
        return torch.stack(list(self._lengths)).sum(0)

    def state(self) -> dict[str, torch.Tensor]:
        """Return what the next steps depend on, beside the value and the residual; not for weighted sums."""
        return {
            "direction": self.recurrence.direction,
            "gamma": self.recurrence.gamma,
            "failed": self.failed.to(torch.uint8),
            "operator_size": torch.tensor(self.operator_size, dtype=torch.float64),
            "lengths": torch.stack(list(self._lengths)) if self._lengths else torch.zeros(0),
        }

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state of the same systems, whose value and residual the recurrence has."""
        run = self.recurrence
        run.direction, run.gamma = state["direction"].to(run.direction), state["gamma"].to(run.gamma)
        self.renew()
        self.failed = state["failed"].to(self.failed)
        self.operator_size = float(state["operator_size"])
        self._lengths.extend(one.to(self.seen.gamma) for one in state["lengths"])
