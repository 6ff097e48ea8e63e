"""Maps with held-out rows: readers, splits at random and by blocks, and scores, for the benchmarks of maps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from checkout import commit

from gigagp import kernels, metrics

#: file, input columns, target column
FILES = {
    "elevation": ("elevation/us-prism.parquet", ("longitude", "latitude"), "elevation"),
    "temperature": ("temperature/noaa-tmax-1990-93.parquet", ("longitude", "latitude", "day"), "tmax_fahrenheit"),
    "precipitation": ("precipitation/january-2010.parquet", ("longitude", "latitude", "day"), "precipitation"),
}
#: Half-sizes of blocks, in degrees (and days): each size hides the same share of the rows.
SIZES = {
    "elevation": ((0.08,), (0.16,), (0.32,), (0.64,), (1.28,), (2.4,)),
    "temperature": ((0.3, 4.0), (1.0, 8.0), (2.0, 30.0), (4.0, 60.0), (1.0, 300.0)),
    "precipitation": ((0.5, 0.6), (1.0, 1.6), (2.0, 2.6), (4.0, 4.6), (0.6, 40.0)),
}
#: Kernels of the benchmarks by word.
KERNELS = {
    "matern": lambda: kernels.Matern(nu=1.5),
    "half": lambda: kernels.Matern(nu=0.5),
    "rough": lambda: kernels.Matern(nu=1.5) + kernels.Matern(nu=0.5),
}
#: Share of the rows that is held out.
SHARE = 0.1


@dataclass(frozen=True)
class Split:
    """Rows to learn from and rows to predict, in the data's own units.

    Attributes
    ----------
    X, y : ndarray of shape (n, d) and (n,)
    X_test, y_test : ndarray of shape (q, d) and (q,)
    size : ndarray of shape (q,)
        Which size of block (`SIZES`) hides each test row; 0 where rows are held out one by one.
    """

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    size: np.ndarray


def read_map(folder: Path, name: str, rows: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets; ``rows`` random ones of them (seed 0) if it is given."""
    sys.path.insert(0, str(folder))
    from load import table

    file, inputs, target = FILES[name]
    columns = table(file)
    X = np.stack([columns[one].to_numpy().astype(float) for one in inputs], 1)
    y = columns[target].to_numpy().astype(float)
    if rows is not None and rows < len(y):
        chosen = np.sort(np.random.default_rng(0).permutation(len(y))[:rows])
        X, y = X[chosen], y[chosen]
    return X, y


def split(folder: Path, name: str, how: str, rows: int | None = None, seed: int = 0, share: float = SHARE) -> Split:
    """Return a map without a share of its rows: random ones (``how="random"``), or those in blocks (``"blocks"``)."""
    X, y = read_map(folder, name, rows)
    size = np.full(len(y), -1)
    if how == "random":
        size[np.random.default_rng(seed).permutation(len(y))[: round(share * len(y))]] = 0
    else:
        size = blocks(X, SIZES[name], seed, share)
    test = size >= 0
    return Split(X[~test], y[~test], X[test], y[test], size[test])


def blocks(X: np.ndarray, sizes: tuple[tuple[float, ...], ...], seed: int, hidden_share: float = SHARE) -> np.ndarray:
    """Return which size of block hides each row, -1 for rows outside all blocks.

    Blocks are ellipses and rectangles in turn, turned and stretched up to twofold at random, around random rows; in
    time they are intervals. Each size hides its share of the rows, so there are many small blocks and few large ones.
    The last block of a size is left out where it would hide far more than that share.
    """
    rng, found = np.random.default_rng(seed), np.full(len(X), -1)
    order = np.argsort(X[:, 0])
    sorted_longitude, share = X[order, 0], hidden_share * len(X) / len(sizes)
    for number in range(len(sizes) - 1, -1, -1):  # large blocks first, while there is room
        half, hidden, tries = sizes[number], 0, 0
        while hidden < 0.95 * share and tries < 200_000:
            tries += 1
            centre = X[rng.integers(len(X))]
            turn, stretch, elliptic = rng.uniform(0, np.pi), 2 ** rng.uniform(-0.5, 0.5), tries % 2
            reach = 1.5 * np.sqrt(2) * half[0] / np.cos(np.radians(centre[1]))
            first, last = np.searchsorted(sorted_longitude, (centre[0] - reach, centre[0] + reach))
            near = order[first:last]
            offset = (X[near, :2] - centre[:2]) * (np.cos(np.radians(centre[1])), 1.0)  # both in degrees of latitude
            along = offset @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
            along = np.abs(along / (half[0] * stretch, half[0] / stretch))
            inside = (along**2).sum(1) <= 1 if elliptic else along.max(1) <= 1
            if len(half) > 1:
                inside &= np.abs(X[near, 2] - centre[2]) <= half[1]
            new = near[inside & (found[near] < 0)]
            if hidden + len(new) <= 1.3 * share:
                found[new] = number
                hidden += len(new)
    return found


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray, size: np.ndarray | None = None) -> dict[str, object]:
    """Return scores of predicted new measurements, also by the size of block."""
    found: dict[str, object] = {
        "rmse": metrics.rmse(y, mean),
        "crps": metrics.gaussian_crps(y, mean, std),
        "nll": metrics.gaussian_nll(y, mean, std),
        "coverage_95": metrics.coverage(y, mean, std),
    }
    if size is not None and size.max() > 0:
        found["by_size"] = [
            {"rows": int(part.sum()), **scores(y[part], mean[part], std[part])}
            for part in (size == number for number in range(size.max() + 1))
        ]
    return found


def line(found: dict[str, object]) -> str:
    """Return scores as text."""
    return (
        f"RMSE {found['rmse']:8.4g}  CRPS {found['crps']:8.4g}  NLL {found['nll']:7.4f}  "
        f"coverage {found['coverage_95']:.3f}"
    )


def cpu_seconds(call: Callable[[], object]) -> tuple[object, float]:
    """Return what a call returns and its CPU seconds."""
    start = time.process_time()
    return call(), time.process_time() - start


def write(path: Path | None, settings: dict[str, object], rows: list[dict[str, object]]) -> None:
    """Write results as JSON with the commit of this checkout; after every result, so that a stopped run keeps them."""
    if path is None:
        return
    kept = {name: str(value) for name, value in settings.items() if name not in ("json", "data")}
    path.write_text(json.dumps({"commit": commit(), "settings": kept, "rows": rows}, indent=1) + "\n", encoding="utf-8")
