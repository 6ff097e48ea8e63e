"""Cells of Potapczynski et al. 2021."""

from __future__ import annotations

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np
from benchmarks import truncation_figures, truncation_table
from benchmarks.papers.experiment import Cell
from benchmarks.splits import read_shuffled

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import GigaGPError, SolverWarning
from gigagp.estimators.metrics import gaussian_nll, rmse

#: Options of `truncation_table.Setting` that all cells share.
_SHARED = {"feature_step": 100, "probes": 10, "rank": 5, "dtype": "float64", "frequencies": None}
#: Rows up to which losses and predictions are exact.
_EXACT_ROWS = 12_000


def data_of(cell: Cell) -> tuple[np.ndarray, ...]:
    """Return the paper's kind of split: 64 % for training and 20 % for tests, at random."""
    if cell.folder is None:
        return cell.table()
    return read_shuffled(cell.folder, cell.row.data, cell.split, cell.settings["rows"])


def setting_of(cell: Cell, n_rows: int) -> truncation_table.Setting:
    """Return the settings of a fit; what the cell does not set is the paper's."""
    options = argparse.Namespace(**{**_SHARED, **cell.settings})
    return truncation_table.Setting.of(cell.settings["method"], cell.row.data, cell.split, n_rows, options)


def fit(cell: Cell) -> dict[str, Any]:
    """Fit, score, and trace the exact loss where the setting ``curves`` asks for it."""
    data = data_of(cell)
    if cell.settings["method"] == "default":
        return _default(data, cell.split)
    setting = setting_of(cell, len(data[1]))
    found = truncation_table.run(setting, data, _EXACT_ROWS, cell.settings.get("curves", 0), 0)
    del found["parameters"]
    # a method may make the loss worse on its way, or never reach a place where it is defined
    curve = np.asarray(found.pop("curve")).reshape(-1, 2)
    return {**found, "minutes": found["seconds"] / 60, "curve_steps": curve[:, 0], "curve_losses": curve[:, 1]}


def _default(data: tuple[np.ndarray, ...], seed: int) -> dict[str, Any]:
    """Fit the package's default, with its own kernel."""
    X, y, X_test, y_test = data
    started = time.perf_counter()
    gp = GPRegressor(kernels.Matern(nu=1.5), random_state=seed).fit(X, y)
    minutes = (time.perf_counter() - started) / 60
    mean, std = gp.predict(X_test, return_std=True, include_noise=True)
    return {
        "rmse": rmse(y_test, mean),
        "nll": gaussian_nll(y_test, mean, std),
        "minutes": minutes,
        "inference": str(gp.posterior_.kind),
    }


def terms(cell: Cell) -> dict[str, Any]:
    """Estimate both terms of the loss at the exact optimum, at several lengths (Figure 1)."""
    X, y, _, _ = data_of(cell)
    method, n_draws = cell.settings["method"], cell.settings["draws"]
    found = truncation_figures.terms_against_length(X, y, n_draws, [method])
    rows = np.asarray(found[method])
    numbers: dict[str, Any] = {"lengths": rows[:, 0]}
    for place, name in ((1, "fit"), (3, "determinant")):
        errors, spread = rows[:, place] - found["exact"][place // 2], rows[:, place + 1]
        numbers |= {f"{name}_errors": errors, f"{name}_deviations": spread}
        numbers |= {f"{name}_first": errors[0], f"{name}_last": errors[-1]}
        noisy = spread > 1e-9 * abs(found["exact"][place // 2])
        scores = errors[noisy] * math.sqrt(n_draws) / spread[noisy]
        numbers[f"{name}_score"] = float(np.abs(scores).max()) if noisy.any() else None
    return numbers


def recover(cell: Cell) -> dict[str, Any]:
    """Learn the lengthscale of a toy function at several lengths (Figure 2)."""
    method = cell.settings["method"]
    rows = np.asarray(truncation_figures.recovered_lengthscales(cell.settings["steps"], [method])[method])
    return {"lengths": rows[:, 0], "ratios": rows[:, 1], "first": rows[0, 1], "last": rows[-1, 1]}


def wander(cell: Cell) -> dict[str, Any]:
    """Learn one lengthscale and the noise, or compute the exact loss on a grid of both (Figure 3)."""
    X, y, _, _ = data_of(cell)
    if cell.settings["method"] == "surface":
        return surface(X, y, cell.settings["nodes"])
    setting = setting_of(cell, len(y))
    gp = GPRegressor(
        kernels.RBF(truncation_table.START, 1.0, ard=False, fixed=("variance",)),
        setting.inference(),
        setting.optimizer(),
        noise_variance=truncation_table.START,
        mean="zero",
        standardize=False,
        random_state=cell.split,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolverWarning)
        gp.fit(X, y)
    path = np.array(
        [
            [float(np.squeeze(step.hyperparameters["lengthscale"])), float(step.hyperparameters["noise_variance"])]
            for step in gp.history_
        ]
    )
    lengthscale, noise = np.exp(np.log(path[-max(len(path) // 10, 1) :]).mean(0))
    return {
        "lengthscales": path[:, 0],
        "noises": path[:, 1],
        "lengthscale": lengthscale,
        "noise": noise,
        "loss": exact_loss(X, y, lengthscale, noise),
    }


def exact_loss(X: np.ndarray, y: np.ndarray, lengthscale: float, noise: float) -> float:
    """Return the exact negative log marginal likelihood per row."""
    kernel = kernels.RBF(lengthscale, 1.0, ard=False)
    gp = GPRegressor(kernel, inference.Exact(), None, noise_variance=noise, mean="zero", standardize=False)
    return -gp.fit(X, y).log_marginal_likelihood().value / len(y)


def surface(X: np.ndarray, y: np.ndarray, nodes: int) -> dict[str, Any]:
    """Return the exact loss on a grid of lengthscales and noise variances, NaN where it cannot be computed."""
    lengthscales, noises = np.geomspace(0.2, 4.0, nodes), np.geomspace(1e-3, 1.0, nodes)
    losses = np.full((nodes, nodes), np.nan)
    for i, noise in enumerate(noises):
        for k, lengthscale in enumerate(lengthscales):
            try:
                losses[i, k] = exact_loss(X, y, lengthscale, noise)
            except GigaGPError:
                continue
    i, k = np.unravel_index(np.nanargmin(losses), losses.shape)
    best = {"lengthscale": lengthscales[k], "noise": noises[i], "loss": losses[i, k]}
    return {"grid_lengthscales": lengthscales, "grid_noises": noises, "losses": losses, **best}
