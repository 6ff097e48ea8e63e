"""The dense problem of a fitted regressor, from its hyperparameters and the raw rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import linalg

from gigagp.operators.grid.statistics import RegularGrid
from stress.oracle import kernel as formulas
from stress.oracle.kriging import Answer, Problem, solve

_UNITS = {torch.float64: float(np.finfo(np.float64).eps), torch.float32: float(np.finfo(np.float32).eps)}


def expected(gp: Any, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Answer | None:
    """Return the right answers of a fitted `GPRegressor` at new points, in the standardized problem's units.

    Parameters
    ----------
    gp : GPRegressor
        Only its hyperparameters and scaling are used, and nothing that it computed from the rows.
    X, y : arrays of shape (n, d) and (n,) or (n, t)
        The rows of the fit, float64.
    new : array of shape (m, d)
        The new points.

    Returns
    -------
    Answer or None
        None if dense algebra has no answer: for a likelihood that is not Gaussian, for minibatches, or for a matrix
        that is singular up to rounding.
    """
    posterior, scaling = gp.posterior_, gp.scaling_
    kind, model = posterior.kind, posterior.model
    if kind not in _CROSS:
        return None
    spec = model.kernel.to_dict()
    unit = _UNITS[posterior.dtype]
    rows, points = (scaling.inputs(np.asarray(part)) for part in (X, new))
    targets = (np.asarray(y, dtype=float).reshape(len(X), -1) - scaling.y_centre) / scaling.y_scale
    with np.errstate(over="ignore"):
        if str(gp.dtype) == "float32":  # some posteriors of such a fit compute with its rows in float64
            rows, targets = (part.astype(np.float32).astype(float) for part in (rows, targets))
        if posterior.dtype == torch.float32:
            points = points.astype(np.float32).astype(float)
    if not all(np.isfinite(part).all() for part in (rows, points, targets)):
        return None
    found = _CROSS[kind](gp, spec, rows, points)
    if found is None:
        return None
    between, cross, prior, extra = found
    noise = formulas.white(spec, rows) + model.noise_variance.double().numpy()
    basis, new_basis = basis_at(model.mean.name, rows), basis_at(model.mean.name, points)
    if kind == "grid":  # interpolated, as the kernel is
        nodes, *weights = _interpolation(posterior.grid, rows, points)
        basis, new_basis = (part @ basis_at(model.mean.name, nodes) for part in weights)
    largest = float(np.abs(rows).max(initial=0.0))
    entry = formulas.entry_error(spec, points, largest) * (unit / _UNITS[torch.float64])
    if kind == "computation-aware":  # actions may be nearly dependent
        entry = entry * np.linalg.cond(posterior.actions.dense().double().numpy()) ** 2
    problem = Problem(between, cross, prior, noise, basis, new_basis, targets)
    in_weights = kind in ("grid", "random features", "sparse variational")
    answer = solve(problem, unit, np.minimum(entry, 1.0), _solver_error(gp), in_weights=in_weights)
    if answer is None:
        return None
    return Answer(
        answer.mean,
        answer.variance + extra,
        answer.variance_at_coefficients,
        answer.mean_error,
        answer.variance_error + max(1e-9, 32 * unit) * extra,
        answer.value,
        answer.value_error,
    )


def basis_at(name: str, X: np.ndarray) -> np.ndarray:
    """Return the basis functions of a mean at rows, shape (n, p)."""
    parts = {"zero": [], "fixed": [], "constant": [X[:, :0]], "linear": [X], "quadratic": [X, X**2]}[name]
    ones = [np.ones((len(X), 1))] if parts else []
    return np.concatenate([X[:, :0], *ones, *parts], 1)


def _solver_error(gp: Any) -> tuple[float, float]:
    """Return relative residuals of solves: for the mean as the fit reports it, for variances the solver's tolerance."""
    record = gp.posterior_.final_solve
    if record is None:
        return 0.0, 0.0
    reported = 2.0 * max(float(record.relative_residual_targets), 1e-14)
    return reported, max(reported, float(getattr(getattr(gp.posterior_, "solver", None), "tolerance", 0.0)))


# Each function returns prior covariances (rows, rows), (rows, points) and (points,), and an addition to the variances.


def _exact(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    prior = formulas.diagonal(spec, points)
    return formulas.block(spec, rows, rows), formulas.block(spec, rows, points), prior, np.zeros(len(points))


def _actions(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    return _exact(gp, spec, rows, points) if gp.posterior_.n_actions == len(rows) else None


def _neighbours(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    """Return the exact problem where every row is a neighbour."""
    widths = [int(word) for word in gp.solver_.split() if word.isdigit()]
    return _exact(gp, spec, rows, points) if widths[0] >= len(rows) - 1 and widths[1] >= len(rows) else None


def _features(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    posterior = gp.posterior_
    of_rows, of_points = (
        posterior.model.kernel.features(torch.from_numpy(part).to(posterior.dtype), posterior.draw).double().numpy()
        for part in (rows, points)
    )
    return of_rows @ of_rows.T, of_rows @ of_points.T, (of_points**2).sum(1), np.zeros(len(points))


def _inducing(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    posterior = gp.posterior_
    if posterior.method != "SGPR":
        return None
    Z = posterior.inducing_points.detach().numpy()
    covariance = formulas.block(spec, Z, Z)
    covariance += np.diag(np.full(len(Z), posterior.points.share * formulas.diagonal(spec, Z).mean()))
    try:
        factor = linalg.cholesky(covariance, lower=True)
    except linalg.LinAlgError:
        return None
    # The bounds ignore rounding in the inducing points' covariance, so there is no answer where it matters.
    if np.linalg.cond(covariance) * _UNITS[torch.float64] > 1e-6 * float(posterior.model.noise_variance.min()):
        return None
    of_rows, of_points = (
        linalg.solve_triangular(factor, formulas.block(spec, Z, part), lower=True) for part in (rows, points)
    )
    prior = (of_points**2).sum(0)
    return of_rows.T @ of_rows, of_rows.T @ of_points, prior, formulas.diagonal(spec, points) - prior


def _grid(gp: Any, spec: Any, rows: np.ndarray, points: np.ndarray) -> Any:
    posterior = gp.posterior_
    if not isinstance(posterior.grid, RegularGrid) or posterior.grid.size > posterior.settings.exact_nodes:
        return None
    nodes, of_rows, of_points = _interpolation(posterior.grid, rows, points)
    covariance = formulas.block(spec, nodes, nodes)
    cross = covariance @ of_points.T
    return of_rows @ covariance @ of_rows.T, of_rows @ cross, (of_points * cross.T).sum(1), np.zeros(len(points))


def _interpolation(grid: Any, *parts: np.ndarray) -> list[np.ndarray]:
    """Return the nodes of a grid, and the weights of each part of points."""
    axes = [
        low + step * np.arange(count) for low, step, count in zip(grid.lower, grid.spacing, grid.shape, strict=True)
    ]
    nodes = np.stack([axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij")], 1)
    return [nodes, *(_weights(grid, axes, part) for part in parts)]


def _weights(grid: Any, axes: list[np.ndarray], points: np.ndarray) -> np.ndarray:
    """Return interpolation weights (points, nodes): Keys's cubic convolution with a = -1/2, or linear ones."""
    total = np.ones((len(points), 1))
    for place, axis in enumerate(axes):
        s = np.abs(points[:, place, None] - axis) / grid.spacing[place]
        if grid.interpolation == "linear":
            single = np.maximum(1 - s, 0)
        else:
            near = 1.5 * s**3 - 2.5 * s**2 + 1
            far = -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
            single = np.where(s <= 1, near, np.where(s < 2, far, 0.0))
        total = (total[:, :, None] * single[:, None, :]).reshape(len(points), -1)
    return total


_CROSS = {
    "exact": _exact,
    "pathwise": _exact,
    "computation-aware": _actions,
    "vecchia": _neighbours,
    "random features": _features,
    "sparse variational": _inducing,
    "grid": _grid,
}
