"""Conditionals of near-duplicate rows with tiny noise, against algebra with 40 digits."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from gigagp import kernels
from gigagp.neighbours.conditionals import Pool
from gigagp.neighbours.local import LOST
from gigagp.products import NativeTiles
from helpers import points

mp = mpmath.mp.clone()
mp.dps = 40

VARIANCE = 1.3
#: Correlations as functions of the squared distance.
PROFILES = {
    "RBF": (kernels.RBF([1.0, 1.0], VARIANCE), lambda q: mp.exp(-q / 2)),
    "Matern-5/2": (
        kernels.Matern(2.5, [1.0, 1.0], VARIANCE),
        lambda q: (1 + mp.sqrt(5 * q) + 5 * q / 3) * mp.exp(-mp.sqrt(5 * q)),
    ),
    "Matern-1/2": (kernels.Matern(0.5, [1.0, 1.0], VARIANCE), lambda q: mp.exp(-mp.sqrt(q))),
}
ENGINES = ["native", "torch"] if NativeTiles.instruction_sets() else ["torch"]
M = 11


def pairs(distance):
    """Half of the rows, and the same rows moved by a multiple of the lengthscale."""
    half = points(M // 2 + 1, 2)
    return torch.cat([half, half + distance * points(len(half), 2, seed=1)])[: M + 1].flip(0)


TABLES = {
    "duplicates": pairs(0.0),
    **{f"{distance:g} apart": pairs(distance) for distance in (1e-3, 1e-6, 1e-9, 1e-12)},
    "a clump": 2.0 + 1e-2 * points(M + 1, 2),
    "close": 2.0 + 0.2 * points(M + 1, 2),
}


def by_distance(X):
    """Return the rows with the neighbours of the last one sorted, the nearest first."""
    order = (X[:-1] - X[-1]).square().sum(1).argsort(stable=True)
    return torch.cat([X[:-1][order], X[-1:]])


def with_many_digits(profile, X, y, noise):
    """Return variance and mean of the last row given the others."""
    X = [[mp.mpf(number) for number in row] for row in X.tolist()]
    K = mp.matrix(M + 1, M + 1)
    for i, one in enumerate(X):
        for j, other in enumerate(X[: i + 1]):
            q = sum((a - b) ** 2 for a, b in zip(one, other, strict=True))
            K[i, j] = K[j, i] = mp.mpf(VARIANCE) * profile(q) + (mp.mpf(noise) if i == j else 0)
    weights = mp.lu_solve(K[:M, :M], K[:M, M])
    variance = K[M, M] - sum(weights[i] * K[i, M] for i in range(M))
    return float(variance), float(sum(weights[i] * mp.mpf(y[i]) for i in range(M)))


@pytest.mark.pairs
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kernel", PROFILES)
def test_variances_are_correct_to_the_floor_and_never_too_small_below(kernel, table, engine):
    own, profile = PROFILES[kernel]
    X = by_distance(TABLES[table])
    near, last = torch.arange(M, dtype=torch.int32)[None], torch.tensor([M])
    for noise in (1e-6, 1e-10, 1e-12, 1e-14):
        y = torch.sin(2 * X[:, 0]) + X[:, 1] + math.sqrt(noise) * points(M + 1, 1, seed=3)[:, 0]
        pool = Pool(own.bind(2), X, torch.full((M + 1,), noise, dtype=torch.float64), engine=engine)
        found = pool.conditionals(last, near, y[:, None])
        variance, mean = with_many_digits(profile, X, y.tolist(), noise)
        own_variance = VARIANCE + noise
        assert float(found.variance) > 0.999 * variance
        assert float(found.variance) >= 0.999 * LOST * own_variance
        assert found.raised == 0 or variance < 1.01 * LOST * own_variance
        if noise >= 1e-10:
            assert float(found.variance) == pytest.approx(variance, rel=1e-4)
            assert abs(float(y[-1] - found.residual) - mean) < 1e-3 * math.sqrt(variance)
        derived = pool.derivatives(last, near, y[:, None])
        assert math.isfinite(derived.value)
        assert all(bool(torch.isfinite(one).all()) for one in (*derived.gradient.values(), derived.information))


def test_a_float32_covariance_would_not_do():
    """The control: with the rounding of float32 the same comparison fails."""
    own, profile = PROFILES["RBF"]
    X, noise = by_distance(TABLES["a clump"]), 1e-10
    K = own.bind(2).block(X, X).float().double() + noise * torch.eye(M + 1, dtype=torch.float64)
    variance = K[M, M] - K[M, :M] @ torch.linalg.solve(K[:M, :M], K[:M, M])
    expected = with_many_digits(profile, X, [0.0] * M, noise)[0]
    assert float(variance) != pytest.approx(expected, rel=1e-2)
