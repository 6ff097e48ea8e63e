"""The iterative algorithm, which conditions on one action after the other."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor

from gigagp.operators.base import SymmetricMatrix

#: A new action is dependent if its part outside the span of the previous ones is below this share of it.
_DEPENDENT = 1e-10
#: Where at least this share of a vector is outside the span, one pass of Gram-Schmidt leaves only rounding inside it.
_MOSTLY_OUTSIDE = 0.5
#: Curvatures of dependent actions are only rounding: at 2,000 rows up to 16 times the precision of H, over ``s' H s``.
_ROUNDING = 32


class Stop(Enum):
    """The reason why a sequence of actions ended; the value states it in words."""

    COUNT = "as many actions as requested"
    TOLERANCE = "the residual reached its tolerance"
    DEPENDENT = "the next action was a combination of those before it"
    NOT_DEFINITE = "the next action had no positive curvature left in this precision"
    EXHAUSTED = "the policy had no further action"


class Sequence:
    """Conditioning on one action after the other (Wenger et al. 2024, alg. S1).

    Instead of the precision estimate ``C = S (S'HS)^-1 S'`` it stores S, ``H S`` and the Cholesky factor of ``S'HS``,
    which gains one row per action. Residuals are recomputed from these each time, so they do not drift.

    Parameters
    ----------
    matrix : SymmetricMatrix
        The matrix H.
    targets : Tensor of shape (n, t)
        Targets minus the mean. All targets share the actions.
    capacity : int
        Largest number of actions.

    Attributes
    ----------
    count : int
        Number of actions so far.
    residual : Tensor of shape (n, t)
        ``targets - H v``.
    observations : list of Tensor of shape (t,)
        ``alpha = s' r`` of each action.
    curvatures : list of float
        ``eta = s' H s - s' H C H s`` of each action, the variance that the previous actions leave to it.
    """

    def __init__(self, matrix: SymmetricMatrix, targets: Tensor, capacity: int) -> None:
        self.matrix = matrix
        self.targets = targets.to(torch.float64)
        capacity = min(capacity, matrix.n)
        # The transposes are stored: products of a vector with contiguous rows take a third of the time.
        self._actions = self.targets.new_zeros(capacity, matrix.n)
        self._products = self.targets.new_zeros(capacity, matrix.n)
        self._projected = self.targets.new_zeros(capacity, self.targets.shape[1])
        self._factor = self.targets.new_zeros(capacity, capacity)
        self.count = 0
        self.residual = self.targets.clone()
        self.observations: list[Tensor] = []
        self.curvatures: list[float] = []

    @property
    def actions(self) -> Tensor:
        """S, shape (n, count); columns have unit norm."""
        return self._actions[: self.count].T

    @property
    def products(self) -> Tensor:
        """``H @ S``, shape (n, count)."""
        return self._products[: self.count].T

    @property
    def factor(self) -> Tensor:
        """Lower Cholesky factor of ``S'HS``."""
        return self._factor[: self.count, : self.count]

    @property
    def weights(self) -> Tensor:
        """Representer weights ``v = C (y - mean)``, shape (n, t)."""
        return self.actions @ self._coefficients()

    def _coefficients(self) -> Tensor:
        return torch.cholesky_solve(self._projected[: self.count], self.factor)

    def append(self, action: Tensor) -> Stop | None:
        """Condition on one more action, shape (n,); return the reason if it was rejected, and None otherwise."""
        if self.count == len(self._actions):
            return Stop.COUNT
        action = action.to(self.targets)
        norm = action.norm()
        if not bool(norm > 0):
            return Stop.DEPENDENT
        action = action / norm
        image = (self.matrix @ action.to(self.matrix.dtype)[:, None])[:, 0].to(torch.float64)
        row = torch.linalg.solve_triangular(self.factor, (self.actions.T @ image)[:, None], upper=False)[:, 0]
        curvature = float(action @ image - row @ row)  # line "eta_i" of alg. S1
        if not curvature > _ROUNDING * torch.finfo(self.matrix.dtype).eps * float(action @ image):
            return Stop.NOT_DEFINITE
        self.observations.append(action @ self.residual)
        self.curvatures.append(curvature)
        k = self.count
        self._actions[k], self._products[k], self._projected[k] = action, image, action @ self.targets
        self._factor[k, :k], self._factor[k, k] = row, curvature**0.5
        self.count += 1
        self.residual = self.targets - self.products @ self._coefficients()
        return None

    def outside_span(self, action: Tensor) -> Tensor | None:
        """Return the part of an action that is orthogonal to all previous ones, or None if it is only rounding.

        The previous actions must be orthonormal, as results of this method are. It takes one or two passes of
        Gram-Schmidt.
        """
        action = action.to(self.targets)
        norm = float(action.norm())
        outside = action - self.actions @ (self.actions.T @ action)
        if float(outside.norm()) < _MOSTLY_OUTSIDE * norm:
            outside = outside - self.actions @ (self.actions.T @ outside)
        return outside if float(outside.norm()) > _DEPENDENT * norm else None

    def run(
        self, propose: Callable[[Sequence], Tensor | Stop], *, relative_tolerance: float, absolute_tolerance: float
    ) -> Stop:
        """Take actions until a stopping rule applies, and return the reason.

        Parameters
        ----------
        propose : callable
            Returns the next action, shape (n,), or the reason why there is none.
        relative_tolerance, absolute_tolerance : float
            The algorithm ends when the norm of the residual is at most ``max(absolute, relative * ||targets||)`` for
            every target.
        """
        bounds = (relative_tolerance * self.targets.norm(dim=0)).clamp_min(absolute_tolerance)
        while self.count < len(self._actions):
            if bool((self.residual.norm(dim=0) <= bounds).all()):
                return Stop.TOLERANCE
            proposed = propose(self)
            if isinstance(proposed, Stop):
                return proposed
            refused = self.append(proposed)
            if refused is not None:
                return refused
        return Stop.COUNT
