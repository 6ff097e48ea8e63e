"""Figures of Yadav, Sheldon and Musco 2021, from the numbers of cells."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.papers.experiment import Results


def figure_1(plt: Any, results: Results) -> Any:
    """Draw the basis functions, and a draw as their sum."""
    figure, axes = plt.subplots(2, len(results), figsize=(4.5 * len(results), 4.5), squeeze=False, layout="constrained")
    for column, (row, cells) in enumerate(results):
        points, basis, weights = (np.array(cells[0][name]) for name in ("points", "basis", "weights"))
        for weight, values in zip(weights, basis, strict=True):
            if np.abs(values).max() > 0:
                axes[0, column].plot(points, weight * values, lw=0.8, alpha=0.6)
                axes[1, column].plot(points, values, lw=0.8)
        axes[0, column].plot(points, cells[0]["draw"], "k", lw=2)
        for node in range(2, 10):
            axes[0, column].axvline(node, color="k", lw=0.3, ls="--")
        axes[0, column].set(title=row.name, ylabel="a draw")
        axes[1, column].set(ylabel="basis functions", xlabel="x")
    return figure


def figure_3(plt: Any, results: Results) -> Any:
    """Draw the seconds of an iteration by the number of rows."""
    return _by_rows(plt, results, "_s", "CPU seconds an iteration", log=True)


def figure_6(plt: Any, results: Results) -> Any:
    """Draw the numbers of iterations by the number of rows."""
    return _by_rows(plt, results, "_steps", "iterations to 0.01", log=False)


def _by_rows(plt: Any, results: Results, ending: str, label: str, *, log: bool) -> Any:
    figure, axes = plt.subplots(
        1, len(results), figsize=(3.6 * len(results), 3.2), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (row, cells) in zip(axes[0], results, strict=True):
        for way, name in (("ski", "SKI"), ("grid", "GSGP")):
            values = np.array([cell[way + ending] for cell in cells], dtype=float)
            axis.plot(cells[0]["n"], values.mean(0), "o-", ms=3, label=name)
        axis.set(title=row.name, xlabel="rows", xscale="log", **({"yscale": "log"} if log else {}))
    axes[0, 0].set(ylabel=label)
    axes[0, 0].legend()
    return figure


def figure_4(plt: Any, results: Results) -> Any:
    """Draw errors by seconds."""
    names = [row.settings["task"] for row, _ in results if "kernel" not in row.settings]
    figure, axes = plt.subplots(
        1, max(len(names), 1), figsize=(3.6 * max(len(names), 1), 3.2), squeeze=False, layout="constrained"
    )
    for axis, task in zip(axes[0], names, strict=False):
        for row, cells in (one for one in results if one[0].settings["task"] == task):
            for way, name in (("ski", "SKI"), ("grid", "GSGP")):
                if f"{way}_s" in cells[0]:
                    seconds, errors = (
                        np.mean([cell[f"{way}_{part}"] for cell in cells], axis=0) for part in ("s", "error")
                    )
                    shown = errors > 0  # SKI on the largest grid is the reference
                    own = row.name if "kernel" in row.settings else name
                    axis.plot(seconds[shown], errors[shown], "o-", ms=3, label=own)
        axis.set(title=task, xlabel="CPU seconds", ylabel="error", xscale="log", yscale="log")
        axis.legend(fontsize=6)
    return figure


def volume(plt: Any, results: Results) -> Any:
    """Draw the seconds of each task by the number of nodes."""
    panels = (("set_up", "set-up"), ("mean", "mean"), ("logdet_0.1", "log det, 0.1"), ("logdet_0.01", "log det, 0.01"))
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3.2), layout="constrained")
    sets = dict.fromkeys(row.data for row, _ in results)
    for axis, (key, title) in zip(axes, panels, strict=True):
        for color, data in enumerate(sets):
            for way, ending, line, name in (
                ("paper", "ski", "--", "SKI"),
                ("paper", "grid", "-", "GSGP"),
                ("gigagp", "grid", ":", "gigagp's solver"),
            ):
                found = sorted(
                    (cells[0]["m"], np.mean([cell[f"{ending}_{key}_s"] for cell in cells]))
                    for row, cells in results
                    if row.data == data and row.settings["way"] == way and f"{ending}_{key}_s" in cells[0]
                )
                if found:
                    axis.plot(*zip(*found, strict=True), f"o{line}", color=f"C{color}", ms=3, label=f"{name}, {data}")
        axis.set(title=title, xlabel="nodes", xscale="log", yscale="log")
    axes[0].set(ylabel="CPU seconds")
    axes[1].legend(fontsize=5)
    return figure


def speed(results: Results) -> str:
    """Return how much longer an iteration of kernel interpolation takes."""
    parts = [
        f"m = {row.name}: {1 / np.mean([cell['last_ratio'] for cell in cells]):.3g} times at {cells[0]['n'][-1]:,} rows"
        for row, cells in results
    ]
    claim = "The paper: large speed-ups where m is far below n, and never slower. Ours, SKI's time over GSGP's: "
    return claim + "; ".join(parts) + "."


def same_iterates(results: Results) -> str:
    """Return how far the iterates of both ways differ."""
    worst = max(cell["difference"] for _, cells in results for cell in cells)
    return (
        "The paper: both ways have the same iterates. Ours differ by rounding: after 20 iterations, by at most"
        f" {worst:.0e} of the largest number in W'z."
    )


def counts(results: Results) -> str:
    """Return how far the numbers of iterations differ."""
    worst = max(cell["steps_difference"] for _, cells in results for cell in cells)
    most = max(cell["most_steps"] for _, cells in results for cell in cells)
    return f"The paper: the numbers are always close. Ours differ by at most {worst}, of up to {most}."


def tradeoff(results: Results) -> str:
    """Return whether both ways err alike, and what learning changes."""
    parts = []
    for row, cells in results:
        if "kernel" not in row.settings and "ski_error" in cells[0]:
            grid, ski = (np.array(cells[0][f"{way}_error"][:-1]) for way in ("grid", "ski"))
            if len(grid):
                worst = float(np.abs(grid / ski - 1).max())
                parts.append(f"{row.name}, {worst:.1%}")
    claim = "The paper: the same accuracy at equal m, in less time where m is below n."
    return (
        f"{claim} Largest relative difference of our errors between the two ways: {'; '.join(parts)}."
        if parts
        else claim
    )


def tasks(results: Results) -> str:
    """Return the speed-ups on the smallest grid of each set."""
    parts = []
    for data in dict.fromkeys(row.data for row, _ in results):
        own = [(cells[0]["m"], cells[0]) for row, cells in results if row.data == data and "mean_ratio" in cells[0]]
        if own:
            m, cell = min(own, key=lambda one: one[0])
            parts.append(
                f"{data} at m = {m:,}: mean {cell['mean_ratio']:.3g} times, log-determinant to 0.01"
                f" {cell['logdet_0.01_ratio']:.3g} times, set-up {cell['set_up_ratio']:.3g} times"
            )
    return "SKI's CPU seconds over GSGP's, ours: " + "; ".join(parts) + "." if parts else ""
