"""The posterior of a Gaussian process by dense algebra, with bounds on the effect of rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg


@dataclass(frozen=True)
class Problem:
    """A Gaussian process at finitely many points, as far as conditioning needs it.

    Attributes
    ----------
    between : array of shape (n, n)
        Prior covariance of the rows, without noise.
    cross : array of shape (n, m)
        Prior covariance between the rows and the new points.
    prior : array of shape (m,)
        Prior variance of the new points.
    noise : array of shape (n,)
        Noise variance of the rows.
    basis, new_basis : arrays of shape (n, p) and (m, p)
        Basis functions of the mean, whose coefficients have a vague prior.
    targets : array of shape (n, t)
        The targets.
    """

    between: np.ndarray
    cross: np.ndarray
    prior: np.ndarray
    noise: np.ndarray
    basis: np.ndarray
    new_basis: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class Answer:
    """Mean (m, t) and latent variance (m,), with bounds on the rounding error of each, which may be infinite."""

    mean: np.ndarray
    variance: np.ndarray
    #: variance without the uncertainty of the mean's coefficients
    variance_at_coefficients: np.ndarray
    mean_error: np.ndarray
    variance_error: np.ndarray
    value: float
    value_error: float


def solve(
    problem: Problem,
    unit: float,
    entry_error: np.ndarray,
    solver_error: tuple[float, float] = (0, 0),
    *,
    in_weights: bool = False,
) -> Answer | None:
    """Return the posterior (universal kriging; Rasmussen and Williams 2006, eqs. 2.41, 2.42), or None if undetermined.

    Parameters
    ----------
    problem : Problem
    unit : float
        Unit of rounding of the arithmetic under test.
    entry_error : array of shape (m,)
        Error of kernel entries, as a share of the largest variance.
    solver_error : pair of float
        Relative residuals that an iterative solver may have left in solves for the mean and for variances.
    in_weights : bool
        Whether the tested system is that of weights, whose condition number is the ratio of signal to noise.

    Notes
    -----
    The bounds are of first order. With weights ``w`` of a prediction ``w'y`` and ``v = H^-1 (y - trend)``, a change dH
    of H and dk of k changes the mean by ``dk'v - w'dH v`` and the variance by ``w'dH w - 2 dk'w``.
    """
    H = problem.between + np.diag(problem.noise)
    n, p = problem.basis.shape
    if n == 0 or not np.isfinite(H).all() or not np.isfinite(problem.targets).all():
        return None
    try:
        factor = linalg.cholesky(H, lower=True)
    except linalg.LinAlgError:
        return None
    smallest = float(problem.noise.min())
    largest = float(np.linalg.norm(H, 2))
    if smallest <= 0 or largest * unit * n * 64 > smallest:
        return None  # rounding alone can be larger than the noise
    stacked = np.concatenate([problem.cross, problem.basis, problem.targets], 1)
    solved = linalg.cho_solve((factor, True), stacked)
    m = problem.cross.shape[1]
    u, of_basis, of_targets = solved[:, :m], solved[:, m : m + p], solved[:, m + p :]
    weights, trend_variance, beta = u, np.zeros(m), np.zeros((p, problem.targets.shape[1]))
    open_points, condition = np.zeros(m, dtype=bool), 0.0
    if p:
        gram = problem.basis.T @ of_basis
        if not np.isfinite(gram).all():
            return None
        # Scale each function by its own size, so that what the rows leave undetermined does not depend on it.
        sizes = np.sqrt(np.diag(gram))
        units = np.where(sizes > 0, 1 / np.where(sizes > 0, sizes, 1.0), 0.0)
        values, vectors = np.linalg.eigh(units[:, None] * (0.5 * (gram + gram.T)) * units)
        share = values / max(values.max(), 1e-300)
        if np.any((share > 1e-14) & (share < 1e-6)):
            return None  # rounding decides whether the rows determine a coefficient
        condition = 1 / share[share >= 1e-6].min()
        root = units[:, None] * vectors[:, share >= 1e-6] / np.sqrt(values[share >= 1e-6])
        beta = root @ (root.T @ (problem.basis.T @ of_targets))
        left = (problem.new_basis - problem.cross.T @ of_basis) @ root  # (m, r)
        trend_variance = (left**2).sum(1)
        weights = u + of_basis @ root @ left.T
        # The part of such a point in directions without rows depends on the units in which the solution is shortest.
        in_units = problem.new_basis * sizes
        unknown = np.abs(in_units @ vectors[:, share < 1e-6]).max(1, initial=0.0)
        open_points = unknown > 1e-9 * np.linalg.norm(in_units, axis=1)
    residual = problem.targets - problem.basis @ beta
    v = of_targets - of_basis @ beta
    mean = problem.new_basis @ beta + problem.cross.T @ v
    variance = problem.prior - (problem.cross * u).sum(0)

    biggest = max(float(np.abs(problem.between).max()), float(np.abs(problem.prior).max(initial=0.0)))
    worst = max(float(entry_error.max(initial=0.0)) if not m else float(entry_error.min()), unit)
    change = n * worst * biggest + n * unit * largest  # bound on the norm of dH
    of_weights, of_v = np.linalg.norm(weights, axis=0), np.linalg.norm(v, axis=0).max(initial=0.0)
    row_error = np.maximum(entry_error, unit) * biggest
    size = float(np.abs(problem.targets).max(initial=0.0)) + np.abs(problem.new_basis @ beta).max(1, initial=0.0)
    mean_error = row_error * np.abs(v).sum(0).max(initial=0.0) + of_weights * of_v * change + unit * size
    variance_error = 2 * row_error * np.abs(weights).sum(0) + of_weights**2 * change + unit * problem.prior
    mean_error = mean_error + unit * condition * size
    variance_error = variance_error + unit * condition * trend_variance
    if in_weights:
        information = unit * n * biggest / smallest
        mean_error = mean_error + information * size
        variance_error = variance_error + information * (problem.prior + trend_variance)
    if any(solver_error):  # effect of the residual through H^-1, which enters the variance squared
        scale = np.linalg.norm(problem.targets, axis=0).max(initial=0.0)
        mean_error = mean_error + of_weights * solver_error[0] * scale * (1 + 10 * (p > 0))
        cross_norm = np.linalg.norm(problem.cross, axis=0)
        variance_error = variance_error + (solver_error[1] * cross_norm) ** 2 / smallest
        variance_error += solver_error[0] * trend_variance
    mean_error[open_points] = variance_error[open_points] = np.inf
    determinant = 2 * np.log(np.diag(factor)).sum()
    t = problem.targets.shape[1]
    value = -0.5 * ((residual * v).sum() + t * (determinant + n * np.log(2 * np.pi)))
    value_error = change * (of_v**2 * t + t * n / smallest) + unit * abs(value)
    return Answer(
        mean,
        variance + trend_variance,
        variance,
        32 * mean_error,
        32 * variance_error,
        float(value),
        32 * float(value_error),
    )
