"""Figures of Evans and Nair 2020, from the numbers of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.papers.experiment import Results


def figure_1(plt: Any, results: Results) -> Any:
    """Draw the variance with a control variate by its rank, as a share of that without."""
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for row, cells in results:
        shares, errors = (np.array(cells[0][name], dtype=float) for name in ("variances", "errors"))
        axis.errorbar(cells[0]["ranks"], shares, yerr=errors, fmt="o-", ms=3, label=row.name)
    axis.axhline(1, color="k", lw=0.8, ls=":")
    axis.set(xlabel="rank of the control variate", ylabel="variance over that without", xscale="log", yscale="log")
    axis.legend()
    return figure


def figure_2(plt: Any, results: Results) -> Any:
    """Draw means with two standard deviations."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(3.2 * len(results), 3), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (row, cells) in zip(axes[0], results, strict=True):
        _band(axis, cells[0])
        axis.set_title(row.name, fontsize=9)
    return figure


def figure_3(plt: Any, results: Results) -> Any:
    """Draw the functions of relevance vector machines, and where their vectors are."""
    figure, axes = plt.subplots(
        1, len(results), figsize=(3.6 * len(results), 3), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (row, cells) in zip(axes[0], results, strict=True):
        _band(axis, cells[0])
        vectors = np.array(cells[0]["vectors"])
        axis.plot(vectors, np.full(len(vectors), -0.5), "C3^", ms=4)
        axis.set_title(f"{row.name}: {cells[0]['kept']} kept", fontsize=8)
    return figure


def _band(axis: Any, cell: dict[str, Any]) -> None:
    grid, mean, std = (np.array(cell[name]) for name in ("grid", "mean", "std"))
    axis.plot(cell["x"], cell["y"], "k.", ms=2)
    axis.fill_between(grid, mean - 2 * std, mean + 2 * std, alpha=0.3, color="C0", lw=0)
    axis.plot(grid, mean, color="C0")


def flatness(results: Results) -> str:
    """Return how the time of a step grows with the number of functions."""
    parts = [
        f"{row.name}, {cells[0]['last_over_first']:.2f} times as long with {cells[0]['functions'][-1]:,} functions as"
        f" with {cells[0]['functions'][0]:,}"
        for row, cells in results
    ]
    return "The paper: the cost of a step does not depend on the number of functions. Ours: " + "; ".join(parts) + "."


def removed(results: Results) -> str:
    """Return how much variance the controls leave."""
    parts = [f"{row.name}, {cells[0]['at_300']:.3f}" for row, cells in results if "at_300" in cells[0]]
    claim = "The paper: a control of rank 300 leaves about a tenth of the variance."
    return f"{claim} Ours at rank 300: {'; '.join(parts)}." if parts else claim


def kept(results: Results) -> str:
    """Return how many vectors each way keeps."""
    parts = [f"{row.name} {cells[0]['kept']}" for row, cells in results]
    return "Of 500 rows the paper keeps 13. Ours: " + "; ".join(parts) + "."
