"""Cells of Lin et al. 2024."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks import iterative_table
from benchmarks.papers.experiment import Cell

from gigagp import GPRegressor, gradients, inference
from gigagp.kernels import Matern
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.optimization import Adam, SubsetStart

#: Training rows of the whole tables, from which block sizes are scaled down.
FULL_ROWS = {"pol": 13_500, "elevators": 14_940, "bike": 15_642, "protein": 41_157, "keggdirected": 43_945}


def settings_of(cell: Cell, rows: int, solver: str | None = None) -> dict[str, Any]:
    """Return the arguments of `GPRegressor` for a cell, with the paper's block and batch sizes scaled to the rows."""
    chosen = cell.settings
    share = rows / FULL_ROWS[cell.row.data]
    settings = iterative_table.settings_of(
        solver or chosen["solver"],
        chosen["estimator"],
        chosen["start"],
        steps=chosen["steps"],
        learning_rate=chosen.get("learning_rate", 0.1),
        tolerance=chosen["tolerance"],
        max_epochs=chosen["max_epochs"],
        n_probes=chosen["probes"],
        block_size=max(8, round(iterative_table.PAPER_BLOCKS.get(cell.row.data, 1000) * share)),
        batch_size=min(500, rows // 4),
    )
    return {**settings, "random_state": cell.split, "dtype": chosen.get("dtype", "float64")}


def fit(cell: Cell) -> dict[str, Any]:
    """Fit and score."""
    data = cell.table()
    return iterative_table.run(settings_of(cell, len(data[1])), data)


def fit_large(cell: Cell) -> dict[str, Any]:
    """Fit and score with the protocol for large tables: a start on neighbourhoods, then few epochs a step."""
    data, chosen = cell.table(), cell.settings
    settings = settings_of(cell, len(data[1]))
    settings["optimizer"] = SubsetStart(
        settings["optimizer"],
        n_centroids=chosen["centroids"],
        n_neighbours=chosen["neighbours"],
        optimizer=Adam(steps=chosen["start_steps"]),
    )
    found = iterative_table.run(settings, data)
    return {
        **found,
        "residual_targets": np.mean(found["residual_targets_by_step"]),
        "residual_probes": np.mean(found["residual_probes_by_step"]),
    }


def ablate(cell: Cell) -> dict[str, Any]:
    """Compare the hyperparameters of every step with those of exact gradients from the same start (Figs. 5 and 8)."""
    data, chosen = cell.table(), cell.settings
    settings = settings_of(cell, len(data[1]))
    if chosen["estimator"] == "pathwise":
        system = settings["inference"]
        gradient = gradients.Pathwise(chosen["probes"], 2000, prior=chosen["prior"], law=chosen["law"])
        settings["inference"] = replace(system, gradient=gradient)
    found = [iterative_table.run(one, data) for one in (settings, settings_of(cell, len(data[1]), "exact"))]
    paths = [log_path(one["hyperparameters_by_step"]) for one in found]
    ends = [likelihood(data, one["hyperparameters"]) for one in found]
    off = paths[0] - paths[1]
    return {
        "median_difference": np.median(np.abs(off)),
        "largest_difference": np.abs(off).max(),
        "last_difference": np.abs(off[-1]).max(),
        "nats_below": ends[1] - ends[0],
        "differences": off[:: max(1, len(off) // 20)].ravel(),
        "path": paths[0][:, np.abs(off).max(0).argsort()[-3:]],
        "exact_path": paths[1][:, np.abs(off).max(0).argsort()[-3:]],
    }


def likelihood(data: tuple[np.ndarray, ...], values: dict[str, Any]) -> float:
    """Return the exact log marginal likelihood of the training rows at given hyperparameters."""
    kernel = Matern(1.5, values["lengthscale"], values["variance"])
    noise = values["noise_variance"]
    gp = GPRegressor(kernel, inference.Exact(), None, "zero", noise, standardize=False)
    return gp.fit(*data[:2]).log_marginal_likelihood().value


def log_path(steps: list[dict[str, Any]]) -> np.ndarray:
    """Return the logarithms of the hyperparameters of every step, in the order of their names."""
    return np.log([np.concatenate([np.atleast_1d(step[name]) for name in sorted(step)]) for step in steps])


def distances(cell: Cell) -> dict[str, Any]:
    """Fit; compute by dense algebra how far the solves of every step start from their solutions (Figs. 3 and 6).

    Squared distances are ``(v - v0)' H (v - v0)``, the mean over probes. A cold solve starts at zero with new probes, a
    warm one at the solution of the step before, with the same probes.
    """
    data, chosen = cell.table(), cell.settings
    X = torch.from_numpy(data[0])
    settings = settings_of(cell, len(X))
    found = iterative_table.run(settings, data)
    generator = torch.Generator().manual_seed(cell.split)
    estimator = settings["inference"].gradient
    squared, top, precision, section = [], [], [], {}
    before = probes = None
    for step, values in enumerate(found["hyperparameters_by_step"]):
        kernel = Matern(1.5, values["lengthscale"], values["variance"]).bind(X.shape[1])
        model = Model(kernel, ZeroMean(), torch.tensor(values["noise_variance"], dtype=torch.float64))
        H = KernelMatrix(kernel, X, values["noise_variance"])
        if probes is None or chosen["start"] == "cold":
            probes = estimator.draw(model, X, generator)
        B = probes.right_hand_sides(model, H, 2**31)
        spectrum, vectors = torch.linalg.eigh(H.to_dense())
        solution = vectors @ ((vectors.T @ B) / spectrum[:, None])
        off = solution - before if before is not None and chosen["start"] == "warm" else solution
        squared.append(float((spectrum[:, None] * (vectors.T @ off) ** 2).sum(0).mean()))
        top.append(float(1 / spectrum[0]))
        precision.append(1 / values["noise_variance"])
        if step == min(20, chosen["steps"] - 1):  # figure 6 shows the 20th step
            section = {"eigenvalues": spectrum[-2:].flip(0), "start": -(vectors.T @ off)[-2:, 0].flip(0)}
        before = solution
    return {
        "rms_distance": float(np.sqrt(np.mean(squared))),
        "last_distance": float(np.sqrt(squared[-1])),
        "epochs": found["epochs"],
        "squared_distances": squared,
        "top_eigenvalue": top,
        "noise_precision": precision,
        "epochs_by_step": found["epochs_by_step"],
        "section": section,
        "rows": len(X),
    }
