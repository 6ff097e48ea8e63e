"""Readers of the benchmark tables; `load.py` in the data folder defines the format."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def read_split(
    folder: Path, table: str, split: int = 0, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test, z-scored by the statistics of the split's whole training set.

    Parameters
    ----------
    folder : Path
        Folder that contains ``load.py``.
    table : str
    split : int
    rows : int or None
        Number of random training rows (seed 0, in random order); None: all, in the file's order.
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


def read_shuffled(
    folder: Path, table: str, seed: int = 0, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return X, y, X_test, y_test of a random split: 64 % for training, 16 % for validation (left out), 20 % for tests.

    The split is that of Potapczynski et al. 2021, with the scaling of its code, but with statistics of the training
    rows alone: inputs scaled to [-1, 1], targets z-scored, constant columns dropped.

    Parameters
    ----------
    folder, table
        As for `read_split`.
    seed : int
        Seed of the split.
    rows : int or None
        Number of training rows, taken from the start of the shuffled ones; None: all.
    """
    X, y, X_test, y_test = read_split_as_it_is(folder, table)
    X, y = np.concatenate([X, X_test]), np.concatenate([y, y_test])
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[: round(0.64 * len(y))], order[round(0.8 * len(y)) :]
    train = train[:rows]
    kept = X[train].var(0) > 1e-10
    low, high = X[train][:, kept].min(0), X[train][:, kept].max(0)
    centre, spread = y[train].mean(), y[train].std()
    scaled, targets = 2 * (X[:, kept] - low) / (high - low) - 1, (y - centre) / spread
    return scaled[train], targets[train], scaled[test], targets[test]


def read_split_as_it_is(folder: Path, table: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the first standard split in the table's own units."""
    if not (folder / "load.py").exists():
        msg = f"{folder} has no load.py; give the data folder with --data."
        raise SystemExit(msg)
    sys.path.insert(0, str(folder))
    from load import uci

    return uci(table, 0, scale=False)
