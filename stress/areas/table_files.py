"""Tables in intact and damaged files, and from other sources, for `fit_table`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn import damage
from stress.drawn.rows import draw_rows
from stress.drawn.settings import draw_kernel
from stress.oracle.answers import as_answered, check_regressor
from stress.outcome import RIGHT, Lost, Wrong
from stress.scratch import check_nothing_left, scratch


def run(draw: Draw) -> str:
    """Run one case of the tables' area."""
    import gigagp
    from gigagp import inference

    rows = draw_rows(draw, inputs=3)
    kind = draw.one_of(list(_WRITERS))
    draw.note(f"fit_table from {kind}")
    whole = True
    with scratch() as folder:
        source, target = _WRITERS[kind](draw, folder, rows.X, rows.y)
        if isinstance(source, Path) and source.is_file() and draw.chance(0.25):
            whole = False
            draw.note(damage.damage(draw, source))
        settings = {
            "kernel": draw_kernel(draw) if draw.chance(0.4) else None,
            "inference": draw.weighted(
                {
                    "auto": 0.1,
                    inference.Grid(size=draw.one_of([7, 12]), n_samples=8): 0.55,
                    inference.Vecchia(n_neighbors=draw.one_of([3, 512])): 0.15,
                    inference.QuadruplyStochastic(n_basis=20): 0.2,
                }
            ),
            "optimizer": draw.weighted({None: 0.7, "auto": 0.3}),
            "mean": draw.one_of(["constant", "zero", "linear"]),
        }
        options = {"chunk_rows": draw.one_of([1, 7, 2**20])}
        if isinstance(source, Path) and draw.chance(0.2):
            options["checkpoint"] = folder / "fit.checkpoint"
        draw.note((settings, options))
        estimator = gigagp.GPRegressor(**settings)
        left = {path.name for path in folder.iterdir()} | {"fit.checkpoint"}
        content = source.read_bytes() if isinstance(source, Path) and source.is_file() else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                estimator.fit_table(source, target, **options)
            finally:
                check_nothing_left(folder, left, "by fit_table")
                if content is not None and source.read_bytes() != content:
                    raise Lost("fit_table changed its source")
        if not whole:
            return RIGHT
        if not rows.is_finite:
            raise Wrong(f"accepted what has no meaning: {kind} with a cell that is not finite")
        said = [one for one in caught if issubclass(one.category, gigagp.errors.GigaGPWarning)]
        check_regressor(
            estimator, rows.X, as_answered(estimator, rows.X, rows.y), draw, warned=bool(said), folder=folder
        )
    return RIGHT


def _named(X: np.ndarray, y: np.ndarray) -> tuple[dict[str, np.ndarray], list[str]]:
    targets = {
        f"y{place}": column for place, column in enumerate(y.reshape(len(y), y.shape[1] if y.ndim == 2 else 1).T)
    }
    return {f"x{place}": column for place, column in enumerate(X.T)} | targets, list(targets)


def _csv(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    columns, targets = _named(X, y)
    header = ",".join(columns)
    end = draw.one_of(["\n", "\r\n"])
    lines = [",".join(repr(float(cell)) for cell in row) for row in zip(*columns.values(), strict=True)]
    text = end.join([header, *lines]) + (end if draw.chance(0.8) else "")
    path = folder / "table.csv"
    path.write_bytes(draw.one_of([b"", b"\xef\xbb\xbf"]) + text.encode())
    return path, targets


def _parquet(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    columns, targets = _named(X, y)
    parquet.write_table(pa.table(columns), folder / "table.parquet", row_group_size=draw.one_of([3, 1000]))
    return folder / "table.parquet", targets


def _folder(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    columns, targets = _named(X, y)
    table, cut = pa.table(columns), draw.whole(0, len(X))
    (folder / "parts").mkdir()
    parquet.write_table(table[:cut], folder / "parts" / "a.parquet")
    parquet.write_table(table[cut:], folder / "parts" / "b.parquet")
    return folder / "parts", targets


def _npy(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    both = np.concatenate([X, y if y.ndim == 2 else y[:, None]], 1)
    np.save(folder / "table.npy", np.asfortranarray(both) if draw.chance(0.3) else both)
    count = both.shape[1] - X.shape[1]
    return folder / "table.npy", [f"column{X.shape[1] + place + 1}" for place in range(count)]


def _npz(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    columns, targets = _named(X, y)
    np.savez(folder / "table.npz", **columns)
    return folder / "table.npz", targets


def _arrow(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import pyarrow as pa
    from pyarrow import feather

    columns, targets = _named(X, y)
    path = folder / draw.one_of(["table.arrow", "table.feather"])
    feather.write_feather(pa.table(columns), str(path))
    return path, targets


def _frame(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import pandas as pd

    columns, targets = _named(X, y)
    return pd.DataFrame(columns), targets


def _table(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    import pyarrow as pa

    columns, targets = _named(X, y)
    return pa.table(columns), targets


def _pair(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    return (X, y), None


def _chunks(draw: Draw, folder: Path, X: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    cut = draw.whole(0, len(X))
    return lambda: iter([(X[:cut], y[:cut]), (X[cut:], y[cut:])]), None


_WRITERS: dict[str, Callable[[Draw, Path, np.ndarray, np.ndarray], tuple[Any, Any]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "folder": _folder,
    "npy": _npy,
    "npz": _npz,
    "arrow": _arrow,
    "data frame": _frame,
    "arrow table": _table,
    "pair": _pair,
    "callable": _chunks,
}
