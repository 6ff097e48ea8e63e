"""Reads the benchmark tables; `load.py` of the data folder has the format."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def read_split(
    folder: Path, table: str, split: int = 0, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test z-scored by the statistics of the split's whole training set.

    Parameters
    ----------
    folder : Path
        Where ``load.py`` lies.
    table : str
    split : int
    rows : int or None
        Random training rows (seed 0, in a random order); None: all, in the file's order.
    """
    if not (folder / "load.py").exists():
        msg = f"{folder} has no load.py; give the data folder with --data."
        raise SystemExit(msg)
    sys.path.insert(0, str(folder))
    from load import uci

    X, y, X_test, y_test = uci(table, split)
    if rows is not None and rows < len(y):
        chosen = np.random.default_rng(0).permutation(len(y))[:rows]
        X, y = X[chosen], y[chosen]
    return X, y, X_test, y_test
