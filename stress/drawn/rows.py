"""Random rows, from tame ones to ones that are likely to break something."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stress.draw import Draw


@dataclass
class Rows:
    """A numeric table.

    Attributes
    ----------
    X : array of shape (n, d), float64
    y : array of shape (n,) or (n, t), float64
    is_tame : bool
        Whether every inference method must be able to fit it.
    is_finite : bool
        Whether all cells are finite.
    """

    X: np.ndarray
    y: np.ndarray
    is_tame: bool = True
    is_finite: bool = True


def draw_rows(draw: Draw, *, most: int = 60, inputs: int = 5) -> Rows:
    """Return a random table of 0 to ``most`` rows and 0 to ``inputs`` columns."""
    n = draw.weighted({0: 0.01, 1: 0.02, 2: 0.04, 3: 0.04, -1: 0.89})
    n = draw.whole(4, draw.one_of([12, 24, most])) if n < 0 else n
    d = min(inputs, draw.weighted({0: 0.01, 1: 0.35, 2: 0.35, 3: 0.2, 4: 0.05, 5: 0.04}))
    rows = Rows(*_smooth(draw, n, d), is_tame=n >= 4 and d >= 1)
    draw.note(f"{n} rows, {d} inputs, targets {rows.y.shape}")
    if n and d:
        for _ in range(draw.weighted({0: 0.4, 1: 0.4, 2: 0.15, 3: 0.05})):
            name = draw.one_of(list(_HARDER))
            draw.note(name)
            rows.is_tame &= _HARDER[name](draw, rows)
        if draw.chance(0.1):
            _spoil(draw, rows)
    return rows


def _smooth(draw: Draw, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    X = draw.rng.normal(size=(n, d)) if draw.chance(0.5) else draw.rng.uniform(-2, 2, (n, d))
    direction = draw.rng.normal(size=(d, draw.whole(2, 3) if draw.chance(0.15) else 1))
    y = np.sin(X @ direction) + draw.one_of([0.0, 0.01, 0.1, 1.0]) * draw.rng.normal(size=(n, direction.shape[1]))
    return X, y if direction.shape[1] > 1 or draw.chance(0.05) else y[:, 0]


# Each of these functions changes the rows in place and returns whether they are still tame.


def _offset(draw: Draw, rows: Rows) -> bool:
    rows.X += draw.one_of([10.0, -1e3, 1e6, 1e9])
    return True


def _scale(draw: Draw, rows: Rows) -> bool:
    rows.X *= 10.0 ** draw.rng.integers(-8, 9, rows.X.shape[1])
    return True


def _extreme_scale(draw: Draw, rows: Rows) -> bool:
    rows.X *= draw.one_of([1e-320, 1e-200, 1e-100, 1e100, 1e200, 1e307])
    return False


def _duplicates(draw: Draw, rows: Rows) -> bool:
    rows.X[:] = rows.X[draw.rng.integers(0, max(1, len(rows.X) // 3), len(rows.X))]
    return len(np.unique(rows.X, axis=0)) >= 4


def _one_row(draw: Draw, rows: Rows) -> bool:
    rows.X[:] = rows.X[0]
    return False


def _constant_column(draw: Draw, rows: Rows) -> bool:
    rows.X[:, draw.whole(0, rows.X.shape[1] - 1)] = draw.one_of([0.0, 1.0, 1e10, -3.7])
    return False


def _equal_columns(draw: Draw, rows: Rows) -> bool:
    rows.X[:, -1] = rows.X[:, 0]
    return True


def _clumped(draw: Draw, rows: Rows) -> bool:
    centres = rows.X[draw.rng.integers(0, min(3, len(rows.X)), len(rows.X))]
    rows.X[:] = centres + draw.one_of([1e-3, 1e-6, 1e-12]) * draw.rng.normal(size=rows.X.shape)
    return len(rows.X) >= 12


def _gappy(draw: Draw, rows: Rows) -> bool:
    rows.X[len(rows.X) // 2 :, 0] += draw.one_of([10.0, 100.0, 1e4])
    return True


def _far_row(draw: Draw, rows: Rows) -> bool:
    rows.X[draw.whole(0, len(rows.X) - 1), draw.whole(0, rows.X.shape[1] - 1)] = draw.one_of(
        [1e3, -1e6, 1e10, 1e30, -1e100, 1e160, 1e300]
    )
    return False


def _lattice(draw: Draw, rows: Rows) -> bool:
    rows.X[:] = np.round(rows.X * 2)
    return len(np.unique(rows.X, axis=0)) >= 4 and bool(np.ptp(rows.X, axis=0).min() > 0)


def _one_hot(draw: Draw, rows: Rows) -> bool:
    rows.X[:] = np.eye(rows.X.shape[1])[draw.rng.integers(0, rows.X.shape[1], len(rows.X))]
    return False


def _target_scale(draw: Draw, rows: Rows) -> bool:
    rows.y *= draw.one_of([1e-10, 1e-3, 1e3, 1e9])
    rows.y += draw.one_of([0.0, 1.0, -1e6]) * max(1e-300, float(np.abs(rows.y).max()))
    return True


def _extreme_targets(draw: Draw, rows: Rows) -> bool:
    rows.y *= draw.one_of([1e-320, 1e-200, 1e150, 1e300, 1e307])
    return False


def _constant_targets(draw: Draw, rows: Rows) -> bool:
    rows.y[:] = draw.one_of([0.0, 1.0, -1e9, 1e300, 0.1])
    return False


def _outlier(draw: Draw, rows: Rows) -> bool:
    rows.y[draw.whole(0, len(rows.y) - 1)] = draw.one_of([1e3, -1e8, 1e39, 1e200, 1e308])
    return False


def _counts(draw: Draw, rows: Rows) -> bool:
    rows.y[:] = np.round(2 * rows.y + 3)
    return True


_HARDER = {
    "offset": _offset,
    "scales": _scale,
    "extreme scale": _extreme_scale,
    "duplicates": _duplicates,
    "one row many times": _one_row,
    "constant column": _constant_column,
    "equal columns": _equal_columns,
    "clumped": _clumped,
    "gappy": _gappy,
    "far row": _far_row,
    "lattice": _lattice,
    "one-hot": _one_hot,
    "target scale": _target_scale,
    "extreme targets": _extreme_targets,
    "constant targets": _constant_targets,
    "outlier": _outlier,
    "counts": _counts,
}


def _spoil(draw: Draw, rows: Rows) -> None:
    """Put NaN or infinity into a cell."""
    cell = draw.one_of([np.nan, np.inf, -np.inf])
    where = rows.X if draw.chance(0.6) else rows.y
    where[tuple(draw.whole(0, size - 1) for size in where.shape)] = cell
    draw.note(f"a cell is {cell}")
    rows.is_tame = rows.is_finite = False
