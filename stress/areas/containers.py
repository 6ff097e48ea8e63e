"""The same table as pandas, polars, Arrow, torch, SciPy and lists hold it: the answers are those of NumPy arrays."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import torch
from scipy import sparse

from stress.draw import Draw
from stress.drawn.small import draw_places, draw_size, draw_values, points_around, smooth_values
from stress.outcome import RIGHT, Wrong

_FIRST_DAY = datetime.datetime(2023, 12, 30)
_WORDS = ("red", "green", "blue", "ü", "a b")


def run(draw: Draw) -> str:
    """Run one case."""
    return _numbers(draw) if draw.chance(0.6) else _any_types(draw)


def _numbers(draw: Draw) -> str:
    """Check tables of numbers."""
    from gigagp import GPClassifier, GPRegressor

    n, d = draw_size(draw, 40), draw.whole(1, 4)
    X = draw_places(draw, n, d)
    if draw.chance(0.2):
        X = np.round(X / np.maximum(np.ptp(X, axis=0), 1e-300) * 100)  # whole numbers
        if len(np.unique(X, axis=0)) < 2:
            X[0] += 1
    y = smooth_values(draw, X, 2 if draw.chance(0.2) else 1)
    y = y if y.shape[1] > 1 else y[:, 0]
    new = points_around(draw, X)
    kernel = draw_values(draw, d)
    settings: dict[str, Any] = {"optimizer": None, "hyperparameter_units": "standardized"}
    classes = draw.chance(0.2) and y.ndim == 1
    if classes:
        y = (y > np.median(y)).astype(int) if draw.chance(0.5) else np.where(y > np.median(y), "yes", "no")
        if len(np.unique(y)) < 2:
            y[0] = y[0] if y.dtype.kind == "U" else 1 - y[0]
            y[0] = {"yes": "no", "no": "yes"}.get(str(y[0]), y[0])
    make: Any = GPClassifier if classes else GPRegressor
    name, into = draw.one_of(_of_y(y))
    first, second = (draw.one_of(list(_TABLES)) for _ in range(2))
    if "names" in first or "names" in second:  # predictions have the names of the fit, or none
        second = first
    draw.note(f"{make.__name__}: {first}, y {name}, points as {second}")
    given, points = _TABLES[first](draw, X), _TABLES[second](draw, new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = make(kernel, **settings).fit(X, y)
        found = make(kernel, **settings).fit(given, into(y))
    ask = "predict_proba" if classes else "predict"
    wanted = getattr(right, ask)(new)
    if not np.array_equal(getattr(found, ask)(points), wanted):
        raise Wrong(f"{ask} of {first}, y {name}, points {second}: {getattr(found, ask)(points)!r} for {wanted!r}")
    if classes:
        if found.classes_.tolist() != right.classes_.tolist():
            raise Wrong(f"classes of y {name}: {found.classes_!r} for {right.classes_!r}")
        return RIGHT
    if not np.array_equal(found.predict(points, return_std=True)[1], right.predict(new, return_std=True)[1]):
        raise Wrong(f"std of {first}, y {name}, points {second}")
    given_y = into(y[: len(new)]) if len(y) >= len(new) else None
    if given_y is not None:
        logs = [
            one.predictive_log_density(p, v) for one, p, v in ((found, points, given_y), (right, new, y[: len(new)]))
        ]
        if not np.array_equal(logs[0], logs[1]):
            raise Wrong(f"log densities of y {name}: {logs[0]!r} for {logs[1]!r}")
        score = found.score(points, given_y)
        if len(new) > 1 and not np.isclose(score, right.score(new, y[: len(new)]), rtol=1e-12, equal_nan=True):
            raise Wrong(f"score of y {name}")
    return RIGHT


def _columns(X: np.ndarray) -> dict[str, np.ndarray]:
    return {f"c{k}": column for k, column in enumerate(X.T)}


def _chunked(draw: Draw, X: np.ndarray) -> Any:
    table = pa.table(_columns(X))
    cut = draw.whole(1, max(len(X) - 1, 1))
    return pa.concat_tables([table[:cut], table[cut:]])


_TABLES: dict[str, Callable[[Draw, np.ndarray], Any]] = {
    "lists": lambda draw, X: X.tolist(),
    "tuples": lambda draw, X: tuple(tuple(row) for row in X.tolist()),
    "Fortran order": lambda draw, X: np.asfortranarray(X),
    "objects": lambda draw, X: X.astype(object),
    "big-endian": lambda draw, X: X.astype(">f8"),
    "strides": lambda draw, X: np.repeat(X, 2, axis=0)[::2],
    "torch": lambda draw, X: torch.from_numpy(X.copy()),
    "torch, transposed": lambda draw, X: torch.from_numpy(X.T.copy()).T,
    "torch with gradients": lambda draw, X: torch.from_numpy(X.copy()).requires_grad_(),
    "sparse rows": lambda draw, X: sparse.csr_array(X),
    "sparse columns": lambda draw, X: sparse.csc_matrix(X),
    "pandas names": lambda draw, X: pd.DataFrame(_columns(X), index=draw.rng.permutation(len(X))),
    "pandas nullable names": lambda draw, X: pd.DataFrame(_columns(X)).convert_dtypes(),
    "pandas Arrow names": lambda draw, X: pd.DataFrame(_columns(X)).astype("float64[pyarrow]"),
    "pandas without words": lambda draw, X: pd.DataFrame(X),
    "polars names": lambda draw, X: pl.DataFrame(_columns(X)),
    "polars chunked names": lambda draw, X: pl.concat([pl.DataFrame(_columns(X))[:1], pl.DataFrame(_columns(X))[1:]]),
    "Arrow names": lambda draw, X: pa.table(_columns(X)),
    "Arrow chunked names": _chunked,
}


def _of_y(y: np.ndarray) -> list[tuple[str, Callable[[np.ndarray], Any]]]:
    """Return containers for targets."""
    found: list[tuple[str, Callable[[np.ndarray], Any]]] = [
        ("array", lambda v: v),
        ("list", lambda v: v.tolist()),
        ("objects", lambda v: v.astype(object)),
    ]
    if y.ndim == 2:
        return [
            *found,
            ("pandas", lambda v: pd.DataFrame(v, columns=["u", "v"])),
            ("polars", lambda v: pl.DataFrame({"u": v[:, 0], "v": v[:, 1]})),
            ("torch", lambda v: torch.from_numpy(np.ascontiguousarray(v))),
        ]
    found += [
        ("pandas", lambda v: pd.Series(v, index=np.arange(len(v))[::-1])),
        ("pandas nullable", lambda v: pd.Series(v).convert_dtypes()),
        ("polars", lambda v: pl.Series("y", v.tolist())),
        ("Arrow", lambda v: pa.array(v.tolist())),
        ("Arrow chunked", lambda v: pa.chunked_array([v[:2].tolist(), v[2:].tolist()], pa.array(v.tolist()).type)),
    ]
    if y.dtype.kind != "U":
        found.append(("torch", lambda v: torch.from_numpy(np.ascontiguousarray(v))))
    return found


def _any_types(draw: Draw) -> str:
    """Check tables of texts, truth values, dates and missing cells, with ``encode="auto"``."""
    from gigagp import GPRegressor

    n = draw.whole(12, 40)
    size = draw.rng.normal(size=n)
    kinds = [draw.one_of(["number", "text", "truth", "day", "time", "whole"]) for _ in range(draw.whole(1, 3))]
    cells = {"size": size.tolist()} | {f"{kind}{k}": _cells(draw, kind, n) for k, kind in enumerate(kinds)}
    for name in list(cells):
        if name != "size" and draw.chance(0.3):  # missing cells
            at = draw.rng.integers(0, n, 2)
            cells[name] = [None if k in at else cell for k, cell in enumerate(cells[name])]
    y = np.sin(2 * size) + 0.1 * draw.rng.normal(size=n)
    first, second = (draw.one_of(list(_TYPED)) for _ in range(2))
    draw.note(f"{first} and {second}: { {name: column[:3] for name, column in cells.items()} }")
    answers = []
    for name in (first, second):
        table, some = _TYPED[name](cells), _TYPED[name]({key: column[:5] for key, column in cells.items()})
        gp = GPRegressor(encode="auto", optimizer=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers.append(gp.fit(table, y).predict(some, return_std=True))
    if not all(np.allclose(one, other, rtol=1e-9, atol=1e-9) for one, other in zip(*answers, strict=True)):
        raise Wrong(f"a table of any types as {first} and as {second}: {answers!r}")
    return RIGHT


def _cells(draw: Draw, kind: str, n: int) -> list[Any]:
    numbers = draw.rng.integers(0, 5, n)
    numbers[:5] = np.arange(5)
    if kind == "number":
        return [float(value) for value in draw.rng.normal(size=n)]
    if kind == "whole":
        return [int(value) for value in 7 * numbers]
    if kind == "text":
        return [_WORDS[k] for k in numbers]
    if kind == "truth":
        return [bool(k % 2) for k in numbers]
    step = datetime.timedelta(days=1) if kind == "day" else datetime.timedelta(hours=5, seconds=17)
    moments = [_FIRST_DAY + step * int(k) for k in draw.rng.permutation(3 * n)[:n]]
    return [moment.date() for moment in moments] if kind == "day" else moments


def _pandas(cells: dict[str, list[Any]]) -> Any:
    frame = pd.DataFrame(cells)
    for name in cells:
        if name.startswith(("day", "time")):
            frame[name] = pd.to_datetime(frame[name])
    return frame


#: A table of any types in a container, in which missing cells are None, NaN, NaT or null.
_TYPED: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": _pandas,
    "pandas, nullable": lambda cells: _pandas(cells).convert_dtypes(),
    "pandas, from Arrow": lambda cells: pa.table(cells).to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda cells: pl.DataFrame(cells),
    "Arrow": lambda cells: pa.table(cells),
    "Arrow, of views": lambda cells: pa.table(pl.DataFrame(cells).to_arrow()),
}
