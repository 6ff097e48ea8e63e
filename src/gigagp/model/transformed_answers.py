"""Moments, quantiles and densities in the target's units of predictions that are Gaussian after a transform.

With ``y = g^-1(f + e)``, latent f and noise e, the latent function in the target's units is ``h(f) = E[y | f]``: the
mean of measurements at a point where f is known. Then ``E[h(f)] = E[y]``, and the variance of a measurement is that of
h(f) plus the noise that remains when f is known. Without a transform h is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gigagp.model.target_transform import Log, TargetTransform

#: Distance of the nodes of the trapezoidal rule, in standard deviations. The wide one leaves an error of 0.04 % of a
#: standard deviation in the mean of a power. Where a spline has a steep piece, a third leaves 4 % of that of h(f).
_STEP, _WIDE_STEP = 1 / 6, 1 / 2
#: Distances from the mean at which a rule may end, in standard deviations: where an inverse grows as fast as exp(s z),
#: most of a variance comes from 2 s of them above the mean.
_REACHES = np.array([6.5, *np.arange(9.0, 46.0, 6.0)])
#: Logarithm of the share of the integrand's maximum that may lie at the end of a rule, for a mean and for squares.
_SHARES = {1: -18.0, 2: -25.0}
#: Rows that are integrated at once.
_ROWS = 2048

_quiet = np.errstate(over="ignore", invalid="ignore")  # callers refuse numbers that are not finite


class _Rule(NamedTuple):
    """Nodes for expectations under a standard normal distribution, and functions orthonormal in sums over them."""

    places: np.ndarray  # (k,)
    roots: np.ndarray  # roots of the weights, (k,), with which huge values of small weight stay within float64
    polynomials: np.ndarray  # normalised Hermite polynomials 1, 2, ..., times the roots, (count, k)


@lru_cache
def _rule(reach: float, step: float) -> _Rule:
    places = np.arange(-reach, reach + step / 2, step)
    roots = np.sqrt(step / np.sqrt(2 * np.pi)) * np.exp(-(places**2) / 4)
    tilt = (reach - _REACHES[1]) / 2  # the coefficients of exp(s z) are largest at s^2, with a spread of s
    found = [np.zeros_like(roots), roots]
    for k in range(min(32 + int(tilt**2 + 8 * tilt), 350)):  # beyond 350, squares are too fast for the nodes
        found.append((places * found[-1] - np.sqrt(k) * found[-2]) / np.sqrt(k + 1))
    return _Rule(places, roots, np.stack(found[2:]))


class _Part(NamedTuple):
    """Rows that have one rule."""

    rows: np.ndarray  # (m,)
    rule: _Rule
    median: np.ndarray  # (m,)
    values: np.ndarray  # of measurements at the nodes, less the median, times the roots of the weights, (m, k)

    def mean(self) -> np.ndarray:
        """Return the mean of a measurement, (m,)."""
        return self.median + self.values @ self.rule.roots

    def coefficients(self) -> np.ndarray:
        """Return those of a measurement in normalised Hermite polynomials, without the constant, (m, count + 1).

        The last one stands for all further ones, so that the squares add up to the variance.
        """
        centred = self.values - (self.values @ self.rule.roots)[:, None] * self.rule.roots
        found = centred @ self.rule.polynomials.T
        rest = np.square(centred).sum(1) - np.square(found).sum(1)
        return np.column_stack([found, np.sqrt(np.maximum(rest, 0.0))])


def _parts(transform: TargetTransform, mean: np.ndarray, whole: np.ndarray, moment: int) -> Iterator[_Part]:
    """Iterate over rows whose transformed measurement has a mean and a variance, (m,), for a moment, 1 or 2.

    Rows whose moment leaves the range of float64 are left out.
    """
    step = _WIDE_STEP if moment == 1 and not transform.has_pieces else _STEP
    ends = np.concatenate([[-1.0, 1.0], -_REACHES, _REACHES])
    for first in range(0, len(mean), _ROWS):
        centre = mean[first : first + _ROWS, None]
        width = np.sqrt(whole[first : first + _ROWS, None])
        # Differences from the median, so that a small variance does not vanish beside a large mean
        median = transform.inverse(centre)
        sizes = np.abs(transform.inverse(centre + width * ends) - median)
        unit = sizes[:, :2].max(1, keepdims=True)
        logs = moment * np.log1p(sizes / np.where(unit > 0, unit, 1.0)) - ends**2 / 2
        logs -= np.where(np.isfinite(logs), logs, 0.0).max(1, keepdims=True)
        goes_on = ~(logs < _SHARES[moment])[:, 2:].reshape(len(logs), 2, -1).all(1)
        number = np.where(goes_on, np.arange(1, 1 + len(_REACHES)), 0).max(1)
        for one in np.unique(number[number < len(_REACHES)]):
            some, rule = np.flatnonzero(number == one), _rule(float(_REACHES[one]), step)
            values = (transform.inverse(centre[some] + width[some] * rule.places) - median[some]) * rule.roots
            yield _Part(first + some, rule, median[some, 0], values)


@_quiet
def mean_of(transform: TargetTransform, mean: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the mean of a measurement whose transform has this mean and variance, each of shape (m,)."""
    if isinstance(transform, Log):
        return np.exp(mean + 0.5 * whole)
    found = np.full(len(mean), np.inf)
    for part in _parts(transform, mean, whole, 1):
        found[part.rows] = part.mean()
    return found


def function_values(transform: TargetTransform, f: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return ``h(f) = E[g^-1(f + e)]`` for noise of variance ``noise``, which broadcasts with f."""
    return mean_of(transform, f.reshape(-1), np.broadcast_to(noise, f.shape).reshape(-1)).reshape(f.shape)


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
    share = variance / np.where(whole > 0, whole, 1.0)
    centre, latent, total = np.full((3, len(mean)), np.inf)
    for part in _parts(transform, mean, whole, 2):
        # h(f) has the coefficients of a measurement, times powers of the correlation of the two.
        squares = np.square(part.coefficients())
        centre[part.rows] = part.mean()
        total[part.rows] = squares.sum(1)
        latent[part.rows] = (squares * share[part.rows, None] ** np.arange(1, 1 + squares.shape[1])).sum(1)
    left = np.isinf(total)
    centre[left] = mean_of(transform, mean[left], whole[left])
    return centre, latent, total


@_quiet
def covariance_of(
    transform: TargetTransform, mean: np.ndarray, covariance: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    """Return the covariance (m, m) of h(f) at m points; its diagonal is the variance from `moments`.

    By Mehler's formula, functions of two normal variables with correlation r have the covariance ``sum_k a_k b_k r^k``
    for their coefficients in normalised Hermite polynomials.
    """
    whole = np.diag(covariance) + noise
    if isinstance(transform, Log):
        centre = np.exp(mean + 0.5 * whole)
        return centre[:, None] * centre * np.expm1(covariance)
    parts = list(_parts(transform, mean, whole, 2))
    count = 1 + max((len(part.rule.polynomials) for part in parts), default=0)
    coefficients = np.full((len(mean), count), np.nan)
    for part in parts:
        found = part.coefficients()
        coefficients[part.rows] = np.pad(found, ((0, 0), (0, count - found.shape[1])))
    root = np.sqrt(np.where(whole > 0, whole, 1.0))
    correlation = np.clip(covariance / root[:, None] / root, -1.0, 1.0)
    power, found = np.ones_like(correlation), np.zeros_like(correlation)
    for column in coefficients.T:
        power *= correlation
        found += column[:, None] * column * power
    return found


def log_density(transform: TargetTransform, y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return the log density of measurements (m,) in their own units, the Jacobian included.

    Mean and variance are those of the transformed measurement: latent function and noise.
    """
    gap = transform.forward(y) - mean
    return -0.5 * (np.log(2 * np.pi * variance) + gap**2 / variance) + transform.log_derivative(y)
