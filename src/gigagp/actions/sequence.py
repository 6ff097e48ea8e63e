"""The iterative algorithm: actions chosen one after the other, each knowing what the ones before it have found."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor

from gigagp.operators.base import SymmetricMatrix

#: A new action whose part outside of the span of the others is below this share of it brings nothing but rounding.
_DEPENDENT = 1e-10
#: Relative residuals below this many units of rounding have no direction left that means anything.
_ROUNDING = 10


class Stop(Enum):
    """Why a sequence of actions ended; the value says it in words."""

    COUNT = "as many actions as asked for"
    TOLERANCE = "the residual reached its tolerance"
    DEPENDENT = "the next action was a combination of those before it"
    NOT_DEFINITE = "the next action had no positive curvature left in this precision"
    EXHAUSTED = "the policy had no further action"


class Sequence:
    """Conditioning on one action after the other (Wenger et al. 2024, alg. S1).

    Instead of the precision estimate ``C = S (S'HS)^-1 S'`` it keeps S, ``H S`` and the Cholesky factor of ``S'HS``,
    which grows by a row an action; residuals are computed anew from them every time, so they do not drift.

    Parameters
    ----------
    matrix : SymmetricMatrix
        H.
    targets : Tensor of shape (n, t)
        What is conditioned on, the mean subtracted. Actions are shared by all targets.
    capacity : int
        Most actions.

    Attributes
    ----------
    count : int
        Actions so far.
    residual : Tensor of shape (n, t)
        ``targets - H v``.
    observations : list of Tensor of shape (t,)
        ``alpha = s' r`` of each action.
    curvatures : list of float
        ``eta = s' H s - s' H C H s`` of each action: what the others left of its variance.
    """

    def __init__(self, matrix: SymmetricMatrix, targets: Tensor, capacity: int) -> None:
        self.matrix = matrix
        self.targets = targets.to(torch.float64)
        capacity = min(capacity, matrix.n)
        self._actions = self.targets.new_zeros(matrix.n, capacity)
        self._products = self.targets.new_zeros(matrix.n, capacity)
        self._factor = self.targets.new_zeros(capacity, capacity)
        self.count = 0
        self.residual = self.targets.clone()
        self.observations: list[Tensor] = []
        self.curvatures: list[float] = []

    @property
    def actions(self) -> Tensor:
        """S, shape (n, count); columns have unit norm."""
        return self._actions[:, : self.count]

    @property
    def products(self) -> Tensor:
        """``H @ S``, shape (n, count)."""
        return self._products[:, : self.count]

    @property
    def factor(self) -> Tensor:
        """Lower Cholesky factor of ``S'HS``."""
        return self._factor[: self.count, : self.count]

    @property
    def weights(self) -> Tensor:
        """Representer weights ``v = C (y - mean)``, shape (n, t)."""
        return self.actions @ self._coefficients()

    def _coefficients(self) -> Tensor:
        return torch.cholesky_solve(self.actions.T @ self.targets, self.factor)

    def search_directions(self) -> Tensor:
        """Return ``d = s - C H s`` of every action, shape (n, count): conjugate in H, ``d' H d = eta``."""
        roots = torch.linalg.solve_triangular(self.factor, self.actions.T, upper=False).T
        return roots * self.factor.diagonal()

    def append(self, action: Tensor) -> Stop | None:
        """Condition on one more action, shape (n,); return why it was refused, None if it was not."""
        if self.count == self._actions.shape[1]:
            return Stop.COUNT
        action = action.to(self.targets)
        norm = action.norm()
        if not bool(norm > 0):
            return Stop.DEPENDENT
        action = action / norm
        image = (self.matrix @ action.to(self.matrix.dtype)[:, None])[:, 0].to(torch.float64)
        row = torch.linalg.solve_triangular(self.factor, (self.actions.T @ image)[:, None], upper=False)[:, 0]
        curvature = float(action @ image - row @ row)  # line "eta_i" of alg. S1
        if not curvature > torch.finfo(self.matrix.dtype).eps * float(action @ image):
            return Stop.NOT_DEFINITE
        self.observations.append(action @ self.residual)
        self.curvatures.append(curvature)
        k = self.count
        self._actions[:, k], self._products[:, k] = action, image
        self._factor[k, :k], self._factor[k, k] = row, curvature**0.5
        self.count += 1
        self.residual = self.targets - self.products @ self._coefficients()
        return None

    def outside_span(self, action: Tensor) -> Tensor | None:
        """Return the part of an action that is orthogonal to all before it; None if that is rounding only.

        For orthonormal actions (that all came from here); two passes of Gram and Schmidt.
        """
        action = action.to(self.targets)
        norm = float(action.norm())
        for _ in range(2):
            action = action - self.actions @ (self.actions.T @ action)
        return action if float(action.norm()) > _DEPENDENT * norm else None

    def run(
        self, propose: Callable[[Sequence], Tensor | Stop], *, relative_tolerance: float, absolute_tolerance: float
    ) -> Stop:
        """Take actions until one of the stopping rules ends it.

        Parameters
        ----------
        propose : callable
            Returns the next action, shape (n,), or why there is none.
        relative_tolerance, absolute_tolerance : float
            Ends when the residual's norm is below ``max(absolute, relative * ||targets||)`` for every target.
        """
        relative = max(relative_tolerance, _ROUNDING * torch.finfo(self.matrix.dtype).eps)
        bounds = (relative * self.targets.norm(dim=0)).clamp_min(absolute_tolerance)
        while self.count < self._actions.shape[1]:
            if bool((self.residual.norm(dim=0) <= bounds).all()):
                return Stop.TOLERANCE
            proposed = propose(self)
            if isinstance(proposed, Stop):
                return proposed
            refused = self.append(proposed)
            if refused is not None:
                return refused
        return Stop.COUNT
