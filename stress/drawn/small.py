"""Small tables that are valid but uneven, and kernels with numbers that suit them: an area checks every answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stress.draw import Draw


def draw_size(draw: Draw, most: int) -> int:
    """Return a number of rows from 5 to ``most``, mostly small."""
    return draw.whole(5, draw.weighted({min(12, most): 0.4, min(40, most): 0.5, most: 0.1}))


def draw_places(draw: Draw, n: int, d: int, *, units: bool = True) -> np.ndarray:
    """Return n points of d inputs, at least two of them different, in any units."""
    kind = draw.one_of(list(_PLACES))
    X = _PLACES[kind](draw, n, d)
    if len(np.unique(X, axis=0)) < 2:
        X[0] += 1.0
    moved = ""
    if units and draw.chance(0.3):
        X = X * 10.0 ** draw.rng.integers(-6, 7, d)
        moved = ", in other units"
    if units and draw.chance(0.2):
        X = X + np.abs(X).max(0) * draw.one_of([-3.0, 10.0, 1e4])
        moved += ", far from zero"
    draw.note(f"{n} rows, {d} inputs: {kind}{moved}")
    return X


def _clumps(draw: Draw, n: int, d: int) -> np.ndarray:
    centres = draw.rng.uniform(-2, 2, (4, d))
    return centres[draw.rng.integers(0, 4, n)] + draw.one_of([0.1, 0.01, 1e-4]) * draw.rng.normal(size=(n, d))


def _gap(draw: Draw, n: int, d: int) -> np.ndarray:
    X = draw.rng.uniform(-2, 2, (n, d))
    X[n // 2 :, 0] += draw.one_of([6.0, 40.0])
    return X


def _one_far(draw: Draw, n: int, d: int) -> np.ndarray:
    X = draw.rng.normal(size=(n, d))
    X[0] += draw.one_of([10.0, 1e3])
    return X


def _repeated(draw: Draw, n: int, d: int) -> np.ndarray:
    return draw.rng.uniform(-2, 2, (max(n // 2, 2), d))[draw.rng.integers(0, max(n // 2, 2), n)]


def _on_a_line(draw: Draw, n: int, d: int) -> np.ndarray:
    return draw.rng.uniform(-2, 2, (n, 1)) * draw.rng.choice([-1.0, 1.0, 2.0], d)


_PLACES: dict[str, Callable[[Draw, int, int], np.ndarray]] = {
    "uniform": lambda draw, n, d: draw.rng.uniform(-2, 2, (n, d)),
    "normal": lambda draw, n, d: draw.rng.normal(size=(n, d)),
    "heavy tails": lambda draw, n, d: draw.rng.standard_t(2, (n, d)),
    "a lattice": lambda draw, n, d: np.round(2 * draw.rng.uniform(-2, 2, (n, d))),
    "clumps": _clumps,
    "a gap": _gap,
    "one far": _one_far,
    "repeated": _repeated,
    "on a line": _on_a_line,
}


def smooth_values(draw: Draw, X: np.ndarray, count: int = 1) -> np.ndarray:
    """Return smooth functions of the rows of about unit size, shape (n, count)."""
    size = np.where(np.ptp(X, axis=0) > 0, np.ptp(X, axis=0), 1.0)
    Z = 4 * (X - X.mean(0)) / size
    return np.sin(Z @ draw.rng.normal(size=(X.shape[1], count)) + draw.rng.uniform(0, 6, count))


def points_around(draw: Draw, X: np.ndarray) -> np.ndarray:
    """Return points at rows, between them and beyond them."""
    m = draw.whole(2, 5)
    one, other = X[draw.rng.integers(0, len(X), (2, m))]
    between = one + draw.rng.uniform(0, 1, (m, 1)) * (other - one)
    spread = np.ptp(X, axis=0)
    beyond = X[:2] + draw.one_of([0.2, 1.0, 20.0]) * spread * draw.rng.normal(size=(2, X.shape[1]))
    return np.concatenate([X[:1], between, beyond])


def draw_values(
    draw: Draw, n_inputs: int, unit: np.ndarray | float = 1.0, variance: float = 1.0, *, leaves: tuple[str, ...] = ()
) -> Any:
    """Return a kernel, a sum or a product with numbers of its own.

    Parameters
    ----------
    draw : Draw
    n_inputs : int
    unit : array of shape (d,) or 1
        Size of the inputs.
    variance : float
        Size of squared targets.
    leaves : tuple of str
        Names of the kernels to choose from; all by default.
    """
    names = leaves or tuple(_LEAVES)
    kernel = _leaf(draw, n_inputs, unit, variance, names)
    for _ in range(draw.weighted({0: 0.65, 1: 0.27, 2: 0.08})):
        if draw.chance(0.6):
            kernel = kernel + _leaf(draw, n_inputs, unit, variance, names)
        else:
            kernel = kernel * _leaf(draw, n_inputs, unit, 1.0, names)
    draw.note(kernel)
    return kernel


def _leaf(draw: Draw, n_inputs: int, unit: np.ndarray | float, variance: float, names: tuple[str, ...]) -> Any:
    from gigagp import kernels

    name = draw.one_of(names)
    columns = sorted(draw.rng.choice(n_inputs, draw.whole(1, n_inputs), replace=False).tolist())
    if len(columns) == n_inputs or name in ("Constant", "White") or draw.chance(0.6):
        columns = list(range(n_inputs))
    units = np.broadcast_to(unit, n_inputs)[columns]
    ard = draw.chance(0.5) or not np.isscalar(unit)
    k = len(columns) if ard else 1

    def numbers(low: float, high: float) -> Any:
        found = np.exp(draw.rng.uniform(np.log(low), np.log(high), k))
        return found if ard else float(found[0])

    own: dict[str, Any] = {"ard": ard, "columns": None if len(columns) == n_inputs else columns}
    height = variance * draw.log_real(0.1, 5.0)
    lengths = numbers(0.1, 4.0) * (units if ard else 1.0)
    if name in ("Constant", "White"):
        return getattr(kernels, name)(height * (0.1 if name == "White" else 1.0))
    if name == "Linear":
        return kernels.Linear(height * numbers(0.3, 3.0) / (units**2 if ard else 1.0), **own)
    if name == "Periodic":
        return kernels.Periodic(numbers(0.3, 3.0), height, numbers(0.5, 4.0) * (units if ard else 1.0), **own)
    if name == "Cosine":
        return kernels.Cosine(height, lengths, **own)
    if name == "RationalQuadratic":
        return kernels.RationalQuadratic(lengths, height, draw.log_real(0.2, 20.0), **own)
    if name == "RBF":
        return kernels.RBF(lengths, height, **own)
    return kernels.Matern({"Matern12": 0.5, "Matern32": 1.5, "Matern52": 2.5}[name], lengths, height, **own)


#: Names of kernels that `draw_values` knows.
_LEAVES = (
    *("RBF", "Matern12", "Matern32", "Matern52", "RationalQuadratic"),
    *("Periodic", "Cosine", "Linear", "Constant", "White"),
)
