"""The log marginal likelihood from solves as they are made in training."""

from __future__ import annotations

import math

import torch

from gigagp.estimate import Estimate
from gigagp.lanczos import log_determinant
from gigagp.operators import KernelMatrix
from gigagp.solvers import ConjugateGradients, Solution
from gigagp.solvers.base import Solver

#: Most steps of a quadrature that is not truncated.
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
    """Return the log marginal likelihood, with the bias and the variance that the solver has.

    Parameters
    ----------
    matrix : KernelMatrix
    right_hand_sides : Tensor of shape (n, t + p)
        Targets and the mean's basis.
    solution : Solution
        Of ``H V = right_hand_sides``. A truncated one has two independent data fits, whose difference tells their
        error.
    contrast : Tensor of shape (t + p, t)
        ``right_hand_sides @ contrast`` are the targets less their mean.
    solver : Solver
        Whose preconditioner, budget and truncation serve for the determinant too.
    n_probes : int
    generator : torch.Generator
        Of the determinant's probes and lengths.
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
