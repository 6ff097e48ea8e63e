"""How far the last solve of a fit goes, from which predictions are made."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from gigagp.inference.vecchia.likelihood import typical_deviation
from gigagp.operators import KernelMatrix
from gigagp.solvers.base import Solver

#: Root mean squares of residuals for targets and samples, in units of the deviation with which the latent function is
#: predicted at new rows, and at most in units of the noise's, with which it is known at the rows of the fit. The error
#: of the posterior mean is about the residual's size.
_ERRORS, _ERRORS_AT_ROWS = (0.05, 0.1), (0.2, 0.4)
#: Range of the relative residual: the loosest, and the tightest that each precision can reach.
_LOOSEST, _TIGHTEST = 0.01, {torch.float64: 1e-9, torch.float32: 1e-4}


def final_tolerances(matrix: KernelMatrix, Y: Tensor, samples: Tensor) -> tuple[float, float]:
    """Return relative residuals for targets (n, t) and samples (n, s) at which predictions hardly change any more."""
    rows, typical, noise = matrix.n**0.5, typical_deviation(matrix), float(matrix.noise().double().median().sqrt())
    sizes = (float(Y.norm(dim=0).max()) / rows, float(samples.norm(dim=0).mean()) / rows)
    residuals = (min(new * typical, at_rows * noise) for new, at_rows in zip(_ERRORS, _ERRORS_AT_ROWS, strict=True))
    targets, probes = (
        min(max(residual / size if size else 1.0, _TIGHTEST[matrix.dtype]), _LOOSEST)
        for residual, size in zip(residuals, sizes, strict=True)
    )
    return targets, probes


def for_predictions(solver: Solver, targets: float | None = None, probes: float | None = None) -> Solver:
    """Return the solver without settings that suit only gradients; given tolerances replace those that it has."""
    names = {field.name for field in fields(solver)}  # type: ignore[arg-type]
    changes: dict[str, object] = {"nats": None, "truncation": None}
    if targets is not None:
        changes |= {"tolerance": targets, "probe_tolerance": targets if probes is None else probes}
    return replace(solver, **{name: value for name, value in changes.items() if name in names})  # type: ignore[type-var]
