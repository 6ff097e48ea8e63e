"""The kinds of public reports about Gaussian-process packages: each by name, with a dense and a known answer.

Rows, scales and settings are those that users of other packages had trouble with. A default fit to each of them is held
against dense algebra at its own hyperparameters, and against the function that made the targets. Where a kind is a
matter of units, the control is the same fit in plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from stress.oracle.fitted import expected

from gigagp import GPRegressor, kernels


@dataclass
class Kind:
    """Rows, points, and what is known of the answer there.

    Attributes
    ----------
    X, y : arrays of shape (n, d) and (n,)
    new : array of shape (m, d)
    truth : array of shape (m,)
        The function that made the targets.
    tolerance : float
        Largest error of the mean, in standard deviations of the targets.
    settings : dict
        Arguments of `GPRegressor`.
    has_dense : bool
        Whether the noise is large enough for algebra in float64.
    control : Kind or None
        The same table in plain units, and how to come back: factor and offset of the targets.
    """

    X: np.ndarray
    y: np.ndarray
    new: np.ndarray
    truth: np.ndarray
    tolerance: float = 0.1
    settings: dict[str, Any] = field(default_factory=dict)
    has_dense: bool = True
    control: Kind | None = None
    units: tuple[float, float] = (1.0, 0.0)


def wave(X: np.ndarray) -> np.ndarray:
    return np.sin(2 * X[:, 0])


def plain(n: int = 40, noise: float = 0.05, d: int = 1, seed: int = 0, low: float = 0.0, high: float = 4.0) -> Kind:
    rng = np.random.default_rng(seed)
    X, new = rng.uniform(low, high, (n, d)), rng.uniform(low + 0.3, high - 0.3, (12, d))
    return Kind(X, wave(X) + noise * rng.normal(size=n), new, wave(new), 0.25)


def scaled(inputs: Any = 1.0, targets: float = 1.0, from_zero: Any = 0.0, offset: float = 0.0, d: int = 1) -> Kind:
    """Return the plain table in other units."""
    own = plain(d=d)
    return Kind(
        *(own.X * inputs + from_zero, own.y * targets + offset),
        *(own.new * inputs + from_zero, own.truth * targets + offset),
        tolerance=own.tolerance,
        control=own,
        units=(targets, offset),
    )


def replicates() -> Kind:
    own = plain(12)
    rng = np.random.default_rng(1)
    X = np.repeat(own.X, 5, axis=0)
    return Kind(X, wave(X) + 0.05 * rng.normal(size=len(X)), own.new, own.truth, 0.5)


def tiny_known_noise() -> Kind:
    own = plain(30, noise=0.0)
    own.settings, own.has_dense, own.tolerance = {"noise_variance": np.full(30, 1e-12)}, False, 0.05
    return own


def many_periods() -> Kind:
    X = np.linspace(0, 20, 160)[:, None]
    new = X[:-1:13] + 0.05
    f = [np.sin(2 * np.pi * part[:, 0]) for part in (X, new)]
    return Kind(X, f[0], new, f[1], 0.05, has_dense=False)


def three_rows() -> Kind:
    X = np.array([[0.0], [1.0], [2.0]])
    return Kind(X, X[:, 0] * 1.0, np.array([[0.5], [1.5]]), np.array([0.5, 1.5]), 0.5, has_dense=False)


def constant_column() -> Kind:
    own = plain()
    own.control = plain()
    own.X, own.new = (np.c_[part, np.full(len(part), 1e10)] for part in (own.X, own.new))
    return own


def constant_targets() -> Kind:
    own = plain()
    own.y, own.truth = np.full(40, 7.5), np.full(12, 7.5)
    own.has_dense = False
    return own


def one_input_twice() -> Kind:
    own = plain()
    own.X, own.new = (np.c_[part, part] for part in (own.X, own.new))
    return own


def nearly_twice() -> Kind:
    own = plain()
    rng = np.random.default_rng(3)
    own.X, own.new = (np.c_[part, part * (1 + 1e-9 * rng.normal(size=part.shape))] for part in (own.X, own.new))
    return own


def a_gap() -> Kind:
    own = plain(60)
    kept = (own.X[:, 0] < 1.2) | (own.X[:, 0] > 2.4)
    own.X, own.y = own.X[kept], own.y[kept]
    return own


def clumps() -> Kind:
    own = plain(12)
    rng = np.random.default_rng(4)
    X = np.concatenate([own.X + 1e-9 * rng.normal(size=own.X.shape) for _ in range(4)])
    return Kind(X, wave(X) + 0.05 * rng.normal(size=len(X)), own.new, own.truth, 0.5)


def missing_code() -> Kind:
    own = plain(60, d=2)
    own.X[:6, 1] = -9999.0
    return own


def one_hot() -> Kind:
    own = plain(60)
    rng = np.random.default_rng(5)
    levels, of_new = rng.integers(0, 3, 60), rng.integers(0, 3, 12)
    own.X, own.new = np.c_[own.X, np.eye(3)[levels]], np.c_[own.new, np.eye(3)[of_new]]
    own.y, own.truth = own.y + levels, own.truth + of_new
    return own


def more_inputs_than_rows() -> Kind:
    rng = np.random.default_rng(6)
    X, new = rng.normal(size=(8, 20)), rng.normal(size=(4, 20))
    slope = np.ones(20) / 20
    return Kind(X, X @ slope, new, new @ slope, 3.0, has_dense=False)


def a_line_outside() -> Kind:
    X = np.linspace(0, 1, 25)[:, None]
    new = np.array([[2.0], [-1.0]])
    noise = 0.02 * np.random.default_rng(7).normal(size=25)
    return Kind(X, 3 + 5 * X[:, 0] + noise, new, 3 + 5 * new[:, 0], 0.2, {"mean": "linear"})


def pure_noise() -> Kind:
    rng = np.random.default_rng(8)
    X, new = rng.uniform(0, 1, (60, 1)), rng.uniform(0, 1, (6, 1))
    return Kind(X, rng.normal(size=60), new, np.zeros(6), 0.6)


def sorted_rows() -> Kind:
    own = plain()
    order = np.argsort(own.X[:, 0])
    return Kind(own.X[order], own.y[order], own.new, own.truth, own.tolerance, control=own)


def whole_numbers() -> Kind:
    X = np.arange(40)[:, None]
    noise = 0.05 * np.random.default_rng(9).normal(size=40)
    return Kind(X, np.sin(X[:, 0] / 5) + noise, X[3:30:3] + 0.5, np.sin((X[3:30:3, 0] + 0.5) / 5), 0.25)


def a_jump() -> Kind:
    rng = np.random.default_rng(10)
    X = rng.uniform(0, 4, (80, 1))
    new = np.array([[0.5], [1.2], [2.9], [3.5]])
    return Kind(X, np.sign(X[:, 0] - 2) + 0.05 * rng.normal(size=80), new, np.sign(new[:, 0] - 2), 0.3)


KINDS: dict[str, Callable[[], Kind]] = {
    "targets of 1e-9": lambda: scaled(targets=1e-9),
    "targets of 1e12": lambda: scaled(targets=1e12),
    "small targets beside a large offset": lambda: scaled(targets=1e-3, offset=1e4),
    "inputs of 1e-9": lambda: scaled(1e-9),
    "inputs of 1e12": lambda: scaled(1e12),
    "inputs of unlike scales": lambda: scaled(np.array([1e-9, 1e12]), d=2),
    "unix times": lambda: scaled(3600.0, from_zero=1.7e9),
    "unix times in nanoseconds": lambda: scaled(3600e9, from_zero=1.7e18),
    "replicates": replicates,
    "tiny known noise": tiny_known_noise,
    "noise-free sine of many periods": many_periods,
    "three rows": three_rows,
    "constant column": constant_column,
    "constant targets": constant_targets,
    "one dimension given as two": one_input_twice,
    "one dimension given nearly twice": nearly_twice,
    "a gap": a_gap,
    "rows a billionth apart": clumps,
    "a code for missing numbers": missing_code,
    "one-hot columns": one_hot,
    "more inputs than rows": more_inputs_than_rows,
    "a line beyond the rows": a_line_outside,
    "pure noise": pure_noise,
    "sorted rows": sorted_rows,
    "whole numbers": whole_numbers,
    "a jump": a_jump,
}


@pytest.mark.few(9)
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_report(name):
    kind = KINDS[name]()
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | kind.settings).fit(kind.X, kind.y)
    mean, std = gp.predict(kind.new, return_std=True)
    size = float(kind.y.std()) or 1.0
    assert np.abs(mean - kind.truth).max() <= kind.tolerance * size
    assert (np.abs(mean - kind.truth) <= 4 * std + 0.02 * size).all()  # error bars hold
    assert (std <= 3 * size + 1e-9).all()
    answer = expected(gp, kind.X.astype(float), kind.y, kind.new.astype(float))
    assert not kind.has_dense or answer is not None
    if answer is not None:
        scaling = gp.scaling_
        rounding = 1e-12 * (1 + np.abs(scaling.y_centre / scaling.y_scale).max())
        found, variance = (mean - scaling.y_centre) / scaling.y_scale, np.square(std / scaling.y_scale)
        assert (np.abs(found - answer.mean[:, 0]) <= answer.mean_error + rounding).all()
        assert (np.abs(variance - answer.variance) <= answer.variance_error + rounding).all()
        assert answer.mean_error.max() < 1e-3  # the comparison says something
    if kind.control is not None:
        own = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | kind.settings).fit(kind.control.X, kind.control.y)
        factor, offset = kind.units
        right, spread = own.predict(kind.control.new, return_std=True)
        assert np.allclose((mean - offset) / factor, right, atol=2e-3)
        assert np.allclose(std / factor, spread, rtol=0.02, atol=1e-4)


def test_the_antimeridian():
    """On the globe longitudes of 179 and -179 degrees are neighbours; as plain numbers, the control, they are not."""
    rng = np.random.default_rng(0)
    places = np.c_[rng.uniform(-8, 8, 60), rng.uniform(-10, 10, 60)]
    y = np.sin(places[:, 0] / 3) + 0.05 * rng.normal(size=60)
    new = np.array([[-0.4, 1.0], [0.3, -2.0], [5.0, 5.0]])
    kernel = kernels.Matern(1.5, 500.0, 1.0, metric="haversine")

    def answers(east, kernel):
        def turned(part):
            return np.c_[(part[:, 0] + east + 180) % 360 - 180, part[:, 1]]

        gp = GPRegressor(kernel, optimizer=None, noise_variance=0.01).fit(turned(places), y)
        return np.stack(gp.predict(turned(new), return_std=True))

    there = answers(180.0, kernel)
    assert np.allclose(there, answers(20.0, kernel), atol=1e-9)
    flat = kernels.Matern(1.5, 5.0, 1.0)
    assert not np.allclose(answers(180.0, flat)[:, :2], answers(20.0, flat)[:, :2], atol=0.01)
    assert np.abs(there[0] - np.sin(new[:, 0] / 3)).max() < 0.3


@pytest.mark.slow
def test_targets_of_unlike_scales():
    """A parabola of 10^4 beside a wave is predicted as alone; with shared hyperparameters, the control, it is not."""
    X = np.linspace(0, 1, 12)[:, None]
    y = np.c_[np.sin(3 * X[:, 0]), 1e4 * X[:, 0] ** 2]
    new = np.array([[1.1], [0.55]])
    both = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y).predict(new, return_std=True)
    for k in range(2):
        alone = GPRegressor(kernels.Matern(nu=1.5)).fit(X, y[:, k]).predict(new, return_std=True)
        assert np.array_equal(both[0][:, k], alone[0])
        assert np.array_equal(both[1][:, k], alone[1])
    assert abs(both[0][0, 1] - 1e4 * 1.1**2) <= 3 * both[1][0, 1]
    shared = GPRegressor(kernels.Matern(nu=1.5), outputs="shared").fit(X, y).predict(new, return_std=True)
    assert not np.allclose(shared[1][:, 1], both[1][:, 1], rtol=0.05)
