"""The result of a solve: the solution together with its status, residual and cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch


class Status(Enum):
    """The reason why a solve ended. The value is the message for the user."""

    CONVERGED = "Every tolerance was reached."
    TRUNCATED = (
        "The solve was cut at a random length and its steps were reweighted, as its truncation requires: the mean over "
        "lengths is the solution, but the residual of a single draw is not small."
    )
    BUDGET_SPENT = (
        "The budget of epochs was spent before the tolerance was reached. Raise max_epochs, use a stronger "
        "preconditioner (a higher rank, larger blocks), or accept the residual that is reported."
    )
    TIME_SPENT = (
        "The time budget of the fit was spent before the tolerance was reached. Raise time_budget, or accept the "
        "residual that is reported."
    )
    STAGNATED = (
        "The residual stopped falling: the working precision does not allow this tolerance for this matrix. "
        "Raise the noise variance or the tolerance; a solver takes a float64 matrix too where this one is float32."
    )
    DIVERGED = (
        "The residual grew without bound; the best iterate was kept. Lower the learning rate of a gradient method; "
        "with conjugate gradients the matrix is too ill-conditioned: raise the noise variance."
    )
    NOT_FINITE = "NaN or infinity appeared in the solve; the last finite iterate was kept. Check the hyperparameters."


@dataclass(frozen=True)
class Start:
    """An initial solution whose residual may be known already, so that the solver need not spend a pass on it.

    Attributes
    ----------
    value : Tensor of shape (n, s)
    residual : Tensor of shape (n, s) or None
        ``b - H value``, or None if it still has to be computed (one epoch).
    epochs : float
        Epochs already spent on finding ``value``; solvers report them as part of their set-up.
    rounding : float
        Relative error of the products from which ``residual`` was computed; 0 for the operator's own.
    """

    value: torch.Tensor
    residual: torch.Tensor | None = None
    epochs: float = 0.0
    rounding: float = 0.0


#: What a solve starts from; None is zero.
Initial = torch.Tensor | Start | None


@dataclass(frozen=True)
class Truncated:
    """The results of a randomly truncated run beyond `Solution.value`.

    Attributes
    ----------
    lengths : (int, int)
        The two lengths that were drawn, for `Solution.value` and for ``second``.
    second : Tensor, of the shape of `Solution.value`
        Another unbiased solution from the same run, with an independent length. A product of the two solutions is
        unbiased; the square of either is not.
    plain : Start
        The unweighted iterate at the end of the run and its residual: biased, but the closest to the solution.
    expected_iterations : float
        Expected number of iterations, the longer of the two lengths, if the run does not converge before.
    ended_early : bool
        Whether conjugate gradients converged before the longer length, so that the rest of the series is zero.
    """

    lengths: tuple[int, int]
    second: torch.Tensor
    plain: Start
    expected_iterations: float
    ended_early: bool


@dataclass(frozen=True)
class Solution:
    """The result of ``solver.solve(operator, right_hand_sides)``.

    Attributes
    ----------
    value : Tensor of shape (n, s)
        The approximate solutions.
    status : Status
        Why the solve ended.
    relative_residual : Tensor of shape (s,)
        ``||b - H v|| / ||b||`` of each column, from the true residual at return.
    iterations : int
        Number of steps of the solver's own loop.
    epochs : float
        Cost of those steps. One epoch uses every entry of H once, for all right-hand sides together.
    setup_epochs : float
        Cost before the loop: the first residual of a warm start, and the columns and blocks of a preconditioner.
    nats : Tensor of shape (s,) or None
        Upper bound on ``(b - Hv)' H^-1 (b - Hv) / 2``, the error of each solution in nats; None if the solver has
        none.
    residual : Tensor of shape (n, n_targets) or None
        ``b - H v`` of the targets, as the loop knows it; None from solvers of other spaces.
    truncated : Truncated or None
        Further results of a random truncation; None for untruncated solves.
    widened : bool
        Whether products in less precision (`LinearOperator.fast`) were too coarse for this matrix, so that the loop
        went on with the operator's own.
    detail : dict
        Further information from the solver (its learning rate, its preconditioner, ...) as plain values.
    """

    value: torch.Tensor
    status: Status
    relative_residual: torch.Tensor
    iterations: int
    epochs: float
    setup_epochs: float = 0.0
    nats: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    truncated: Truncated | None = None
    widened: bool = False
    detail: dict[str, object] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        """Whether every tolerance was reached."""
        return self.status is Status.CONVERGED

    @property
    def total_epochs(self) -> float:
        """Epochs of the loop and of the set-up together."""
        return self.epochs + self.setup_epochs
