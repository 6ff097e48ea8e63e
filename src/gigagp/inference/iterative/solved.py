"""The solutions of one joint solve for targets, basis functions and probes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gigagp.inference.contract.trend import Trend
from gigagp.optimization.history import SolveRecord

#: For targets, and for probes.
Pair = tuple[torch.Tensor, torch.Tensor]


class Solved(NamedTuple):
    """Solutions for targets, basis functions and probes from a single solve."""

    targets: torch.Tensor  # ``H^-1 (Y - mean)``, (n, t)
    probes: torch.Tensor  # ``H^-1`` times the right-hand sides of the probes, (n, s)
    trend: Trend  # coefficients of the mean's basis
    record: SolveRecord  # of the solve
    second: Pair | None  # for targets and probes from a second, independent truncation; None without truncation
    #: The most accurate solutions for targets and probes, for predictions. They differ from ``targets`` and ``probes``
    #: if the solver is truncated.
    nearest: Pair
    nearest_basis: torch.Tensor  # the most accurate solutions for the mean's basis, (n, p)
    unsolved: float  # mean square of the residual ``Y - mean - H v`` of ``nearest``, for the target where it is largest


def mean_square_unsolved(residual: torch.Tensor | None, coefficients: torch.Tensor) -> float:
    """Return `Solved.unsolved` from the residuals (n, t + r + s) of the solves for targets, columns and anything else.

    The columns are those of the mean, whose coefficients have shape (r, t).
    """
    assert residual is not None, "solvers of kernel matrices know their residuals"
    r, t = coefficients.shape
    of_targets, of_columns = residual[:, : t + r].double().split([t, r], 1)
    return float((of_targets - of_columns @ coefficients.double()).square().mean(0).max())
