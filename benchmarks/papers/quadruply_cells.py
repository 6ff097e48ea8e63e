"""Cells of Evans and Nair 2020."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
from benchmarks import quadruply_table
from benchmarks.papers.experiment import Cell

from gigagp import GPRegressor, inference, kernels, optimization

#: Support rows of the controls of Fig. 1.
RANKS = (10, 30, 100, 300, 1000)


def fit(cell: Cell) -> dict[str, Any]:
    """Fit a row of Table 2 or 3 and score it on the test rows."""
    chosen = cell.settings
    arguments = Namespace(
        m=chosen["functions"],
        basis_batch=chosen["basis_batch"],
        row_batch=chosen["row_batch"],
        support=chosen["support"],
        steps=chosen["steps"],
        svgp=chosen["svgp_steps"],
        hyper_rows=chosen["start"],
        rate=0.01,
        hyper_rate=0.0,
        start_rows=None,
        no_anchor=False,
        scale=chosen.get("scale", 1.0),
        device="auto",
    )
    found = quadruply_table.fit_of(chosen["method"], cell.table(), arguments)
    return {name: value for name, value in found.items() if name not in ("way", "removed")}


def control(cell: Cell) -> dict[str, Any]:
    """Return the variance with a control variate of each rank, as a share of that without."""
    chosen, (X, y, *_) = cell.settings, cell.table()
    ranks = [rank for rank in RANKS if rank <= len(y)]
    found = quadruply_table.control_variances(
        X, y, ranks, chosen["functions"], min(chosen["basis_batch"], chosen["functions"]), chosen["repeats"]
    )
    mine = [row for row in found if row["weights"] == chosen["weights"]]
    key = "variance_fitted" if chosen["multiple"] == "best" else "variance"
    at = {f"at_{row['rank']}": row[key] for row in mine}
    return {"ranks": ranks, "variances": [row[key] for row in mine], "errors": [row["error"] for row in mine], **at}


def toy(cell: Cell) -> dict[str, Any]:
    """Return mean and standard deviation of a fit of 20 points of a noisy sinc, beside the exact ones (Fig. 2)."""
    chosen = cell.settings
    random = np.random.default_rng(cell.split)
    x = np.sort(random.uniform(-5, 5, 20))[:, None]
    y = np.sinc(x[:, 0] / np.pi) + 0.1 * random.normal(size=20)
    shared: dict[str, Any] = {"optimizer": None, "noise_variance": 0.01, "mean": "zero", "standardize": False}
    exact = GPRegressor(kernels.RBF(1.0), inference.Exact(), **shared).fit(x, y)
    grid = np.linspace(-10, 10, 201)[:, None]
    exact_mean, exact_std = exact.predict(grid, return_std=True)
    if chosen["columns"] == "exact":
        mean, std = exact_mean, exact_std
    else:
        settings = inference.QuadruplyStochastic(
            20, "inducing", n_columns=0 if chosen["columns"] == "none" else None, augment=chosen["augment"]
        )
        mean, std = GPRegressor(kernels.RBF(1.0), settings, **shared).fit(x, y).predict(grid, return_std=True)
    inside = (grid[:, 0] >= x.min()) & (grid[:, 0] <= x.max())
    return {
        "mean_difference": np.abs(mean - exact_mean).max(),
        "std_inside": np.median(std[inside] / exact_std[inside]),
        "std_beyond": std[np.abs(grid[:, 0] - (x.max() + 1)).argmin()],
        "std_far": std[-1],
        "grid": grid[:, 0],
        "mean": mean,
        "std": std,
        "x": x[:, 0],
        "y": y,
    }


def relevance(cell: Cell) -> dict[str, Any]:
    """Return the relevance vectors of a noisy sinc (Fig. 3)."""
    found = quadruply_table.relevance_of(cell.settings["way"], cell.settings["steps"], cell.settings["n"])
    return {name: value for name, value in found.items() if name != "way"}


def cost(cell: Cell) -> dict[str, Any]:
    """Return the milliseconds of a step for very different numbers of functions (Table 1: they do not matter)."""
    chosen = cell.settings
    optimizer = optimization.SparseAdaGrad(steps=10**6, hyper_start=1.0)
    runs = {}
    for m in chosen["sizes"]:
        settings: dict[str, Any] = {"row_batch": 256, "basis_batch": min(1000, m), "start_rows": 0, "anchor": False}
        columns = chosen["columns"]
        settings["n_columns"] = m if columns == "all" else min(columns, m)
        if columns:
            settings["column_batch"] = min(chosen["column_batch"], settings["n_columns"])
        runs[m] = quadruply_table.begun_run(chosen["n"], m, settings, optimizer)
    times = quadruply_table.times_of_steps(runs, chosen["repeats"])
    first = np.array(times[chosen["sizes"][0]])
    return {
        "functions": list(times),
        "milliseconds": [1e3 * float(np.median(some)) for some in times.values()],
        "first_milliseconds": 1e3 * float(np.median(first)),
        "last_over_first": float(np.median(np.array(times[chosen["sizes"][-1]]) / first)),
        "fastest_last_over_first": min(times[chosen["sizes"][-1]]) / min(first),
    }
