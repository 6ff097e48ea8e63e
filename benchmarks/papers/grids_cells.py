"""Cells of Yadav, Sheldon and Musco 2021."""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks import grid_maps, grid_pass, grid_problems, grid_scaling
from benchmarks.papers.experiment import Cell

from gigagp import inference, kernels
from gigagp.operators.grid import GridKernel
from gigagp.operators.grid.statistics import RegularGrid

#: Preconditioners and tolerances of the means of a stream; errors are relative to the first.
_STREAM_WAYS = (("long_waves", 1e-1), ("none", 1e-2))


def functions(cell: Cell) -> dict[str, Any]:
    """Return the basis functions of a grid in one dimension, a draw, and how far its covariance is from w'K_G w."""
    chosen = cell.settings
    grid = RegularGrid((0.0,), (1.0,), (12,), chosen["interpolation"])
    kernel = GridKernel(kernels.RBF(lengthscale=1.5).bind(1), grid)
    reach = grid.scheme.reach  # nodes on either side of a point's cell
    points = torch.linspace(2.0, 9.0, 141, dtype=torch.float64)[:, None]
    basis = grid.interpolate(points, torch.eye(grid.size, dtype=torch.float64))
    draws = kernel.sample(chosen["draws"], torch.Generator().manual_seed(cell.split))
    values = basis @ draws
    some = slice(None, None, 20)
    covariance = values[some] @ values[some].T / chosen["draws"]
    exact = basis[some] @ kernel.to_dense() @ basis[some].T
    scale = exact.diagonal().sqrt()
    errors = (covariance - exact).abs() / torch.outer(scale, scale) * math.sqrt(chosen["draws"])
    return {
        "functions_at_a_point": int((basis.abs() > 1e-12).sum(1).max()),
        "neighbours": 2 * reach + 1,
        "sum_error": float((basis.sum(1) - 1).abs().max()),
        "covariance_errors": float(errors.max()),
        "points": points[:, 0],
        "basis": basis.T,
        "weights": draws[:, 0],
        "draw": values[:, 0],
    }


def iterations(cell: Cell) -> dict[str, Any]:
    """Return the seconds of an iteration and the bytes of both ways (Table 1)."""
    chosen = cell.settings
    problem = grid_problems.problem_of(chosen["set"], cell.folder, tuple(chosen["shape"]))
    found = grid_scaling.compare(problem, chosen["repeats"], peers=False, gram=chosen.get("gram", "stencil"))
    return {name: value for name, value in found.items() if name != "set"}


def sine(cell: Cell) -> dict[str, Any]:
    """Return seconds of an iteration, and numbers of iterations, by the number of rows (Figures 3 and 6)."""
    chosen = cell.settings
    sizes = {"n": lambda n: n, "n / 16": lambda n: n // 16, "sqrt(n)": math.isqrt}
    found: dict[str, list[Any]] = {}
    for power in chosen["powers"]:
        problem = grid_problems.sine(2**power, sizes[chosen["nodes"]](2**power), cell.split)
        row = grid_scaling.compare(problem, chosen["repeats"], peers=False)
        row |= grid_scaling.iterations_of(problem, 0.01)
        for name in ("n", "m", "grid_s", "ski_s", "grid_pass_s", "ski_set_up_s", "time_ratio", "difference"):
            found.setdefault(name, []).append(row[name])
        for name in ("grid_steps", "ski_steps"):
            found.setdefault(name, []).append(row[name])
    steps = [abs(a - b) for a, b in zip(found["grid_steps"], found["ski_steps"], strict=True)]
    numbers: dict[str, Any] = {"first_ratio": found["time_ratio"][0], "last_ratio": found["time_ratio"][-1]}
    numbers |= {"most_steps": max(found["ski_steps"]), "steps_difference": max(steps)}
    return numbers | {"largest_difference": max(found["difference"]), **found}


def sound(cell: Cell) -> dict[str, Any]:
    """Return errors and seconds of a task by the number of nodes, for both ways or for a fit (Figure 4)."""
    chosen = cell.settings
    nodes, at = chosen["nodes"], chosen["shown"]
    if "kernel" in chosen:
        return _fits(cell, nodes, at)
    rows = grid_scaling.sound_rows(
        cell.folder, [chosen["task"]], nodes, chosen["columns"], chosen["rank"], chosen["probes"], cell.split
    )
    found: dict[str, Any] = {"m": nodes}
    for way in ("grid", "ski"):
        own = {row["m"]: row for row in rows if row["way"] == way and row["task"] == chosen["task"]}
        if not own:  # the low-rank covariance is the package's own; kernel interpolation is its reference
            continue
        found |= {f"{way}_s": [own[m]["seconds"] for m in nodes], f"{way}_error": [own[m]["error"] for m in nodes]}
        found |= {f"{way}_s_shown": own[at]["seconds"], f"{way}_error_shown": own[at]["error"]}
    if "ski_s" in found:
        found["ratio_shown"] = found["ski_s_shown"] / found["grid_s_shown"]
    return found


def _fits(cell: Cell, nodes: list[int], at: int) -> dict[str, Any]:
    """Return what `sound` does, for learned hyperparameters."""
    X, y = grid_problems.rows_of("sound", cell.folder)
    X_test, y_test = (X[::7], y[::7]) if cell.folder is None else grid_maps.read(cell.folder, "sound/test.parquet")[0]
    seconds, errors = [], []
    for m in nodes:
        kernel = grid_maps.KERNELS[cell.settings["kernel"]]()
        gp, found = grid_maps.fitted(X, y, inference=inference.Grid(size=m), kernel=kernel, random_state=cell.split)
        seconds.append(found["fit_cpu_s"])
        errors.append(float(np.abs(y_test - gp.predict(X_test)).mean() / np.abs(y_test).mean()))
    shown = nodes.index(at)
    return {
        "m": nodes,
        "grid_s": seconds,
        "grid_error": errors,
        "grid_s_shown": seconds[shown],
        "grid_error_shown": errors[shown],
        "kernel": found["kernel"],
    }


def tasks(cell: Cell) -> dict[str, Any]:
    """Return seconds of set-up, mean and log-determinants on one grid (Figures 5 and 7)."""
    chosen = cell.settings
    problem = grid_problems.problem_of(chosen["set"], cell.folder, tuple(chosen["shape"]))
    problem = replace(grid_problems.at_most(problem, chosen["rows"]), noise=chosen["noise"])
    if chosen["way"] == "gigagp":
        return grid_scaling.preconditioned_times(problem, chosen["probes"])
    return grid_scaling.inference_times(problem, chosen["probes"], chosen["ski_probes"])


def stream(cell: Cell) -> dict[str, Any]:
    """Return the seconds of a pass over made rows that are never held, and of a mean (end of section 5)."""
    chosen = cell.settings
    arguments = Namespace(rows=chosen["rows"], shape=tuple(chosen["shape"]), probes=0)
    found = grid_pass.stream(arguments, _STREAM_WAYS)
    by_long_waves, plain = found["means"]
    return {
        "set_up_s": found["own_seconds"],
        "mean_s": plain["cpu_s"],
        "steps": plain["steps"],
        "mean_error": plain["error"],
        "long_waves_mean_s": by_long_waves["cpu_s"],
        "long_waves_steps": by_long_waves["steps"],
        "nodes": found["nodes"],
        "peak_GiB": found["peak_GiB"],
    }
