"""The solutions of one joint solve for targets, basis functions and probes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gigagp.inference.contract.trend import Trend
from gigagp.optimization.history import SolveRecord

#: For targets, and for probes.
Pair = tuple[torch.Tensor, torch.Tensor]


class Solved(NamedTuple):
    """Solutions for targets, basis functions and probes from a single solve.

    Attributes
    ----------
    targets : Tensor of shape (n, t)
        ``H^-1 (Y - mean)``.
    probes : Tensor of shape (n, s)
        ``H^-1`` times the right-hand sides of the probes.
    trend : Trend
        Coefficients of the mean's basis.
    record : SolveRecord
        Record of the solve.
    second : Pair or None
        Solutions for targets and probes from a second, independent truncation; None without truncation.
    nearest : Pair
        Most accurate solutions for targets and probes, for predictions. They differ from ``targets`` and ``probes`` if
        the solver is truncated.
    nearest_basis : Tensor of shape (n, p)
        Most accurate solutions for the mean's basis.
    unsolved : float
        Mean square of the residual ``Y - mean - H v`` of ``nearest``, for the target where it is largest.
    """

    targets: torch.Tensor
    probes: torch.Tensor
    trend: Trend
    record: SolveRecord
    second: Pair | None
    nearest: Pair
    nearest_basis: torch.Tensor
    unsolved: float


def mean_square_unsolved(residual: torch.Tensor | None, coefficients: torch.Tensor) -> float:
    """Return `Solved.unsolved`.

    Parameters
    ----------
    residual : Tensor of shape (n, t + r + s) or None
        Residuals of the solves for targets, columns of the mean and anything else.
    coefficients : Tensor of shape (r, t)
        Coefficients of these columns.
    """
    assert residual is not None, "solvers of kernel matrices know their residuals"
    r, t = coefficients.shape
    of_targets, of_columns = residual[:, : t + r].double().split([t, r], 1)
    return float((of_targets - of_columns @ coefficients.double()).square().mean(0).max())
