"""Checks of answers beside `predict`: rows left out, joint distributions, and uncertain hyperparameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from stress.draw import Draw
from stress.oracle import kernel as formulas
from stress.oracle.fitted import expected
from stress.outcome import Wrong

#: Allowed number of standard errors of an estimated deviation, and relative error of answers that must agree.
ERRORS, AGREEMENT = 8.0, 1e-6


def check_left_out(gp: Any, X: np.ndarray, y: np.ndarray, draw: Draw, *, warned: bool) -> None:
    """Compare a row that is predicted from all others with dense algebra."""
    from gigagp.errors import InvalidInputError

    try:
        found = gp.leave_one_out()
    except InvalidInputError as error:
        if "leave_one_out of" not in str(error):
            raise Wrong(f"leave_one_out refused for another reason: {error}") from error
        return
    if any(part.shape != np.shape(y) for part in found):
        raise Wrong(f"leave_one_out: shape {found.mean.shape} for {np.shape(y)}")
    if not (np.isfinite(found.mean).all() and (found.std > 0).all() and (found.standard_error >= 0).all()):
        raise Wrong(f"leave_one_out: not finite, or a deviation that is not positive: {found!r}")
    row = draw.whole(0, len(X) - 1)
    rest = np.arange(len(X)) != row
    noise = gp.posterior_.model.noise_variance
    if warned or noise.numel() > 1 or len(X) < 3 or gp.posterior_.kind == "pathwise":
        return  # a solve's error in H^-1 y is not that of the answer without the row
    answer = expected(gp, X[rest], y[rest], X[[row]])
    if answer is None:
        return
    found = gp.leave_one_out(hyperparameters="learned")
    scaling = gp.scaling_
    # digits that are lost in the target's units: tiny targets have few
    back = 8 * np.finfo(float).eps * (1 + np.abs(scaling.y_centre / scaling.y_scale).max())
    back = back + np.finfo(float).smallest_subnormal / np.abs(scaling.y_scale).min()
    mean = (np.reshape(found.mean, (len(X), -1))[row] - scaling.y_centre) / scaling.y_scale
    variance = (np.reshape(found.std, (len(X), -1))[row, 0] / scaling.y_scale[0]) ** 2
    right = answer.variance[0] + float(noise) + _white(gp, X[[row]])
    # its own algebra divides by what all other rows leave of a row, as the answer without it does not
    share = 1 + (float(gp.posterior_.model.kernel.diagonal(gp.posterior_.places()[:1].double())[0]) / right) ** 2
    draw.note(f"row {row} left out, allowed {share * answer.variance_error[0] / right:.1g} of its variance")
    allowed = share * (answer.mean_error[0] + AGREEMENT * (1 + np.abs(answer.mean[0]))) + back
    if (np.abs(mean - answer.mean[0]) > allowed).any():
        raise Wrong(f"row {row} left out: mean {mean!r} for {answer.mean[0]!r} (standardized, allowed {allowed!r})")
    allowed = share * (answer.variance_error[0] + AGREEMENT * right) + 2 * back * np.sqrt(right) + back**2
    if abs(variance - right) > allowed:
        raise Wrong(f"row {row} left out: variance {variance!r} for {right!r} (standardized, allowed {allowed:.2g})")


def _white(gp: Any, row: np.ndarray) -> float:
    """Return the white part of the kernel at a row, on which it depends in products."""
    return float(formulas.white(gp.posterior_.model.kernel.to_dict(), gp.scaling_.inputs(row))[0])


def check_joint(gp: Any, new: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Compare the distribution at a batch of points with predictions of these points."""
    found = gp.posterior(new)
    scale = float(np.abs(mean).max() + std.max() + np.abs(gp.scaling_.y_scale).max())
    allowed = (1e-3 if str(gp.dtype) == "float32" else AGREEMENT) * scale
    off = max(
        np.abs(found.mean.detach().numpy() - mean).max(),
        np.abs(found.stddev.detach().numpy() ** 2 - std**2).max() / scale,
    )
    if not off <= allowed:
        raise Wrong(f"posterior(X) is not what predict says: {gp.posterior_.kind}, off by {off:.3g} of {scale:.3g}")


def check_uncertain(gp: Any, new: np.ndarray) -> None:
    """Check that answers with uncertain hyperparameters are finite, or refused for what they cannot be had for."""
    from gigagp.errors import InvalidInputError

    try:
        mean, std = gp.predict(new, return_std=True, hyperparameters="laplace")
    except InvalidInputError as error:
        if "hyperparameters" not in str(error):
            raise Wrong(f'hyperparameters="laplace" refused for another reason: {error}') from error
        return
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise Wrong(f'hyperparameters="laplace": mean {mean!r}, std {std!r}')
