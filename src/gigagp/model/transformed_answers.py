"""Moments, quantiles and densities in the target's units of predictions that are Gaussian after a transform.

With ``y = g^-1(f + e)``, latent f and noise e, the latent function in the target's units is ``h(f) = E[y | f]``: the
mean of measurements at a point where f is known. Then ``E[h(f)] = E[y]``, and the variance of a measurement is that of
h(f) plus the noise that remains when f is known. Without a transform h is the identity.
"""

from __future__ import annotations

import numpy as np

from gigagp.model.likelihoods.base import hermite, hermite_polynomials
from gigagp.model.target_transform import Log, TargetTransform

#: Nodes of the quadrature over f + e, and over f and over e where both are integrated.
_NODES, _NODES_OF_EACH = 64, 32
#: Rows that are integrated at once.
_ROWS = 2048

_quiet = np.errstate(over="ignore", invalid="ignore")  # callers refuse numbers that are not finite


@_quiet
def function_values(transform: TargetTransform, f: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return ``h(f) = E[g^-1(f + e)]`` for noise of variance ``noise``, which broadcasts with f."""
    if isinstance(transform, Log):
        return np.exp(f + 0.5 * noise)
    places, weights = (one.numpy() for one in hermite(_NODES_OF_EACH))
    spread = np.broadcast_to(np.sqrt(noise), f.shape).reshape(-1)
    flat, found = f.reshape(-1), np.empty(f.size)
    step = _ROWS * _NODES_OF_EACH
    for first in range(0, f.size, step):
        part = slice(first, first + step)
        found[part] = transform.inverse(flat[part, None] + spread[part, None] * places) @ weights
    return found.reshape(f.shape)


@_quiet
def moments(
    transform: TargetTransform, mean: np.ndarray, variance: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean of a measurement, the variance of h(f) and that of a measurement, each of shape (m,).

    Mean and variance of the latent function and the noise variance, (m,), are in the units of the transformed target.
    """
    whole = variance + noise
    if isinstance(transform, Log):
        centre = np.exp(mean + 0.5 * whole)
        return centre, centre**2 * np.expm1(variance), centre**2 * np.expm1(whole)
    places, weights = (one.numpy() for one in hermite(_NODES))
    # Differences from the median, so that a small variance does not vanish beside a large mean
    median = transform.inverse(mean)
    nodes = transform.inverse(mean[:, None] + np.sqrt(whole)[:, None] * places) - median[:, None]
    shift = nodes @ weights
    total = np.square(nodes - shift[:, None]) @ weights
    latent = np.square(_hermite_coefficients(transform, mean, variance, noise)).sum(1)
    return median + shift, latent, np.maximum(total, latent)


@_quiet
def mean_of(transform: TargetTransform, mean: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the mean of a measurement whose transform has this mean and variance, each of shape (m,)."""
    return moments(transform, mean, np.zeros_like(whole), whole)[0]


def _hermite_coefficients(
    transform: TargetTransform, mean: np.ndarray, variance: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return the coefficients of h(f) in normalised Hermite polynomials of the standardized f, without the constant.

    Their squares add up to the variance by quadrature, because Gauss's rule keeps the polynomials orthonormal.
    """
    places, weights = (one.numpy() for one in hermite(_NODES_OF_EACH))
    weighted = (hermite_polynomials(_NODES_OF_EACH).numpy() * weights).T
    found = []
    for first in range(0, len(mean), _ROWS):
        part = slice(first, first + _ROWS)
        f = mean[part, None] + np.sqrt(variance[part])[:, None] * places
        values = function_values(transform, f, noise[part, None])
        found.append((values - values.mean(1, keepdims=True)) @ weighted)
    return np.concatenate(found) if found else np.empty((0, _NODES_OF_EACH - 1))


@_quiet
def covariance_of(
    transform: TargetTransform, mean: np.ndarray, covariance: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return the covariance (m, m) of h(f) at m points; its diagonal is the variance from `moments`.

    By Mehler's formula, two functions of normal variables with correlation r have the covariance ``sum_k a_k b_k r^k``
    for their coefficients in normalised Hermite polynomials.
    """
    variance = np.diag(covariance).copy()
    if isinstance(transform, Log):
        centre = np.exp(mean + 0.5 * (variance + noise))
        return centre[:, None] * centre * np.expm1(covariance)
    root = np.sqrt(variance)
    root[root == 0] = 1.0
    correlation = np.clip(covariance / root[:, None] / root, -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    power, found = np.ones_like(correlation), np.zeros_like(correlation)
    for column in _hermite_coefficients(transform, mean, variance, noise).T:
        power *= correlation
        found += column[:, None] * column * power
    return found


def log_density(transform: TargetTransform, y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the log density of measurements (m,) in their own units, the Jacobian included.

    Mean and variance are those of the transformed measurement: latent function and noise.
    """
    gap = transform.forward(y) - mean
    return -0.5 * (np.log(2 * np.pi * variance) + gap**2 / variance) + transform.log_derivative(y)
