"""Small tables with every kind of difficulty, and the problems that the contract solves on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from contract import dense
from contract.dense import Array, Covariance
from gigagp import kernels

TARGETS, MEANS, NOISES = ("one", "several"), ("zero", "constant", "linear", "function"), ("one", "rows")
DTYPES, LIKELIHOODS = ("float64", "float32", "mixed"), ("gaussian", "laplace", "student-t", "poisson", "logistic")
#: Likelihoods with a noise variance.
NOISY = LIKELIHOODS[:3]


@dataclass(frozen=True)
class Table:
    """Rows with the covariance of the process that their targets are drawn from, in the units of the inputs.

    Attributes
    ----------
    X, new : arrays of shape (n, d) and (m, d)
        Inputs of the rows, and points between them.
    kernel : Kernel
    covariance : Covariance
        The kernel by the formulas of `contract.dense`.
    noise : float
        Noise variance.
    """

    name: str
    X: Array
    new: Array
    kernel: kernels.Kernel
    covariance: Covariance
    noise: float


def _between(X: Array, seed: int) -> Array:
    """Return a training row, points between neighbouring rows, and a corner of the bounding box of the rows."""
    draw = np.random.default_rng(seed)
    low, high = X.min(0), X.max(0)
    return np.concatenate([X[:1], low + (high - low) * draw.uniform(0.1, 0.9, size=(4, X.shape[1])), high[None]])


def _gaussian() -> Table:
    X, scale = np.random.default_rng(1).normal(size=(26, 2)), np.array([0.9, 1.4])
    return Table("gaussian", X, _between(X, 1), kernels.Matern(1.5, scale, 1.3), dense.matern(1.5, scale, 1.3), 0.1)


def _uneven() -> Table:
    X = np.cumsum(np.random.default_rng(2).lognormal(-2, 1.2, size=(24, 1)), 0)
    return Table("uneven", X, _between(X, 2), kernels.Matern(2.5, 0.7, 0.8), dense.matern(2.5, 0.7, 0.8), 0.05)


def _clumped() -> Table:
    draw = np.random.default_rng(3)
    X = draw.uniform(-2, 2, size=(4, 2)).repeat(7, 0) + 0.02 * draw.normal(size=(28, 2))
    return Table(
        "clumped", X, _between(X, 3), kernels.Matern(2.5, [0.8, 1.1]), dense.matern(2.5, np.array([0.8, 1.1])), 0.1
    )


def _gappy() -> Table:
    draw = np.random.default_rng(4)
    X = np.concatenate([draw.uniform(-3, -1, size=(13, 1)), draw.uniform(2, 3, size=(11, 1))])
    kernel = kernels.Matern(0.5, 1.2, 0.7) + kernels.RBF(0.9, 0.5)
    return Table(
        "gappy", X, _between(X, 4), kernel, dense.added(dense.matern(0.5, 1.2, 0.7), dense.rbf(0.9, 0.5)), 0.04
    )


def _duplicated() -> Table:
    X, scale = 1.3 * np.random.default_rng(5).normal(size=(12, 3)).repeat(2, 0), np.array([2.5, 3.0, 4.0])
    return Table("duplicated", X, _between(X, 5), kernels.Matern(1.5, scale), dense.matern(1.5, scale), 0.1)


def _badly_scaled() -> Table:
    scale = np.array([1e-5, 1e5])
    X = scale * np.random.default_rng(6).uniform(-1.5, 1.5, size=(25, 2))
    return Table(
        "badly scaled", X, _between(X, 6), kernels.Matern(2.5, 0.8 * scale), dense.matern(2.5, 0.8 * scale), 0.1
    )


def _with_a_far_row() -> Table:
    near = _gaussian()
    X = np.concatenate([near.X[:24], [[1e8, 0.5]]])
    return replace(near, name="far row", X=X, new=_between(X[:24], 7))


TABLES: tuple[Callable[[], Table], ...] = tuple(
    cache(one) for one in (_gaussian, _uneven, _clumped, _gappy, _duplicated, _badly_scaled, _with_a_far_row)
)


def known_mean(X: Array) -> Array:
    """Return the known mean function of the cells that have one."""
    return 0.5 + 0.25 * np.sign(X[:, 0])


@dataclass(frozen=True)
class Problem:
    """One cell of the matrix.

    Attributes
    ----------
    table : Table
    Y : array of shape (n, t)
    mean : str
    noise : array of shape (n,)
        Noise variance of each row.
    rows_known : bool
        Whether the estimator receives the noise as known variances of the rows, or as a single number.
    dtype, likelihood : str
    """

    table: Table
    Y: Array
    mean: str
    noise: Array
    rows_known: bool
    dtype: str
    likelihood: str

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the estimator except the inference."""
        one = self.table.noise if self.likelihood in NOISY else None
        return {
            "kernel": self.table.kernel,
            "optimizer": None,
            "mean": known_mean if self.mean == "function" else self.mean,
            "noise_variance": self.noise if self.rows_known else one,
            "standardize": False,
            "dtype": self.dtype,
            "likelihood": self.likelihood,
        }

    @property
    def y(self) -> Array:
        """Targets in the form that `fit` takes, a vector if there is one target."""
        return self.Y[:, 0] if self.Y.shape[1] == 1 else self.Y

    @property
    def eps(self) -> float:
        return float(np.finfo(np.float32 if self.dtype == "float32" else np.float64).eps)

    def basis(self, X: Array) -> Array:
        columns = {"zero": 0, "function": 0, "constant": 1, "linear": 1 + X.shape[1]}[self.mean]
        return np.concatenate([np.ones((len(X), 1)), X], 1)[:, :columns]

    def offset(self, X: Array) -> Array:
        return known_mean(X)[:, None] if self.mean == "function" else np.zeros((len(X), 1))


def draw_targets(draw: np.random.Generator, f: Array, noise: Array, likelihood: str) -> Array:
    """Return targets at latent values (n, t) with noise variances (n,)."""
    scale = np.sqrt(noise / 2)[:, None]
    if likelihood == "gaussian":
        return f + np.sqrt(noise)[:, None] * draw.normal(size=f.shape)
    if likelihood == "laplace":
        return f + draw.laplace(scale=scale, size=f.shape)
    if likelihood == "student-t":  # four degrees of freedom, whose variance is twice the squared scale
        return f + scale * draw.standard_t(4, size=f.shape)
    if likelihood == "poisson":
        return draw.poisson(np.exp(f)).astype(float)
    return np.where(draw.uniform(size=f.shape) < 1 / (1 + np.exp(-f)), 1.0, -1.0)


#: From the mean of a target to the latent value.
INVERSES: defaultdict[str, Callable[[Array], Array]] = defaultdict(
    lambda: lambda values: values, poisson=np.log, logistic=lambda values: 2 * np.arctanh(values)
)


@cache
def problem(place: int, targets: str, mean: str, noise: str, dtype: str, likelihood: str = "gaussian") -> Problem:
    """Return the problem of a cell: one of `TABLES` with targets drawn from its model."""
    table = TABLES[place % len(TABLES)]()
    draw, n, t = np.random.default_rng(100 + place), len(table.X), 1 if targets == "one" else 3
    each = table.noise * (draw.uniform(0.5, 2.0, size=n) if noise == "rows" else np.ones(n))
    f = np.linalg.cholesky(table.covariance(table.X, table.X) + 1e-10 * np.eye(n)) @ draw.normal(size=(n, t))
    Y = draw_targets(draw, f if likelihood != "poisson" else np.clip(f, -3, 3), each, likelihood)
    found = Problem(table, Y, mean, each, noise == "rows", dtype, likelihood)
    if likelihood in NOISY:
        spread = np.where(table.X.std(0) > 0, table.X.std(0), 1.0)
        trend = {"zero": 0.0, "function": 0.0, "constant": 2.0, "linear": 2.0 + (table.X / spread).sum(1)[:, None]}
        Y += trend[mean] + found.offset(table.X)
    return found
