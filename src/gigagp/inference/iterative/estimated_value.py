"""Estimate the log marginal likelihood from solves made with the training solver."""

from __future__ import annotations

import math

import torch

from gigagp.model.estimate import Estimate
from gigagp.operators import KernelMatrix
from gigagp.solvers import ConjugateGradients, Solution
from gigagp.solvers.base import Solver
from gigagp.solvers.lanczos import log_determinant

#: Largest number of Lanczos steps of a quadrature that is not truncated.
_STEPS = 200


def estimated_value(
    matrix: KernelMatrix,
    right_hand_sides: torch.Tensor,
    solution: Solution,
    contrast: torch.Tensor,
    solver: Solver,
    n_probes: int,
    generator: torch.Generator,
) -> Estimate:
    """Return the log marginal likelihood, with the bias and variance of the solver.

    Parameters
    ----------
    matrix : KernelMatrix
        ``H = K + noise``.
    right_hand_sides : Tensor of shape (n, t + p)
        Targets and basis functions of the mean.
    solution : Solution
        Solution of ``H V = right_hand_sides``. A truncated solution contains two independent estimates of the data
        fit, and their difference gives its standard error.
    contrast : Tensor of shape (t + p, t)
        Coefficients such that ``right_hand_sides @ contrast`` are the targets minus their mean.
    solver : Solver
        Solver whose preconditioner, budget and truncation the log-determinant uses as well.
    n_probes : int
        Number of probe vectors of the log-determinant.
    generator : torch.Generator
        Source of the log-determinant's probe vectors and random lengths.
    """
    residuals = right_hand_sides @ contrast
    solved = [solution.value] if solution.truncated is None else [solution.value, solution.truncated.second]
    fits = torch.stack([(residuals * (one @ contrast)).double().sum() for one in solved])
    fit_error = float(fits.std() / len(fits) ** 0.5) if len(fits) > 1 else 0.0
    if isinstance(solver, ConjugateGradients):
        steps = int(min(solver.max_epochs, _STEPS)) if solver.truncation is None else None
        determinant = log_determinant(
            matrix, solver.preconditioner, n_probes, steps, generator, truncation=solver.truncation
        )
    else:
        determinant = log_determinant(matrix, n_probes=n_probes, max_steps=_STEPS, generator=generator)
    n, t = matrix.n, contrast.shape[1]
    value = -0.5 * (float(fits.mean()) + t * (determinant.value + n * math.log(2 * math.pi)))
    return Estimate(value, 0.5 * math.hypot(fit_error, t * determinant.standard_error))
