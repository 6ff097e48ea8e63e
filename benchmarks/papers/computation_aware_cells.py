"""Cells of Wenger et al. 2024."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks import computation_aware_table
from benchmarks.papers.experiment import Cell
from benchmarks.splits import read_split

from gigagp import GPRegressor, actions, inference, kernels, metrics
from gigagp.diagnostics import inducing_distance, latent_share
from gigagp.operators import KernelMatrix
from gigagp.optimization import LBFGS, Adam

#: At most so many points of a curve are kept.
POINTS = 200
_PAPER = actions.Learned("shuffled", initial="random")
_CG = actions.ConjugateGradients(1e-4)


def fit(cell: Cell) -> dict[str, Any]:
    """Run a row of Table 1: its scores after the last step and, where steps have a posterior, at the best one."""
    chosen = cell.settings
    data = table(cell)
    arguments = Namespace(**chosen, budget=None, seed=cell.split, verbose=0)
    row = computation_aware_table.settings(chosen["method"], cell.row.data, len(data[1]), arguments)
    if "rate" in chosen:
        row["optimizer"] = replace(row["optimizer"], learning_rate=chosen["rate"])
    if "stop" in chosen:
        policies = {"recomputed": Recomputed(), "absolute": actions.ConjugateGradients(absolute_tolerance=1e-4)}
        row["inference"] = inference.ComputationAware(chosen["actions"], policies[chosen["stop"]])
    found = computation_aware_table.run(data, row, arguments, every_step=chosen["every_step"])
    curves = {name: thinned(values) for name, values in found.items() if name.endswith("_by_step")}
    return {"best_nll": found["nll"], "best_rmse": found["rmse"], **found, **curves}


def stopping(cell: Cell) -> dict[str, Any]:
    """Fit as in Table 1, and return how many actions the last step has."""
    found = fit(cell)
    return {**found, "actions": int(found["solver"].split()[0])}


def table(cell: Cell) -> tuple[np.ndarray, ...]:
    """Return the row's table with the paper's number of inputs, where the setting ``inputs`` names it.

    With 21, parkinsons has motor_UPDRS as its last input. With 16, bike has its year once, not as inputs 1 and 5.
    """
    if cell.folder is not None and cell.settings.get("inputs") == 16:
        X, y, X_test, y_test = cell.table()
        return np.delete(X, 4, axis=1), y, np.delete(X_test, 4, axis=1), y_test
    if cell.folder is None or cell.settings.get("inputs") != 21:
        return cell.table()
    X, y, X_test, y_test = read_split(cell.folder, cell.row.data, cell.split)
    rows, folder = cell.settings["rows"], cell.folder / "uci"
    motor = np.loadtxt(folder / "parkinsons-raw" / "parkinsons_updrs.csv.gz", delimiter=",", skiprows=1)[:, 4]
    test = np.loadtxt(folder / "parkinsons" / "test_mask.csv.gz", delimiter=",")[:, cell.split] == 1
    motor = (motor - motor[~test].mean()) / motor[~test].std()
    chosen = slice(None) if rows is None else np.random.default_rng(0).permutation(len(y))[:rows]
    X, X_test = np.column_stack([X, motor[~test]])[chosen], np.column_stack([X_test, motor[test]])
    return X, y[chosen], X_test, y_test


class Recomputed(actions.ConjugateGradients):
    """CaGP-CG to 1e-4 by the residual of the authors' code: targets minus H v, in the precision of the matrix."""

    def next_action(self, sequence: Any) -> torch.Tensor | None:
        """Return the residual, or None where it has reached the tolerance."""
        dtype = sequence.matrix.dtype
        if sequence.count:
            product = sequence.matrix @ sequence.weights.to(dtype)
            sequence.residual = (sequence.targets.to(dtype) - product).to(torch.float64)
        reached = sequence.residual.norm() <= 1e-4 * sequence.targets.norm()
        return None if reached else super().next_action(sequence)


def thinned(values: list[Any]) -> list[Any]:
    """Return the first and the last value, and evenly spaced ones between them."""
    if len(values) <= POINTS:
        return values
    return [values[k] for k in np.linspace(0, len(values) - 1, POINTS).round().astype(int)]


def draw_targets(X: np.ndarray, kernel: kernels.Kernel, noise: float, seed: int) -> np.ndarray:
    """Return a noisy sample of the prior."""
    points = torch.from_numpy(X)
    covariance = kernel.bind(X.shape[1]).block(points, points) + (noise + 1e-10) * torch.eye(len(X))
    normal = torch.randn(len(X), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (torch.linalg.cholesky(covariance) @ normal).numpy()


def model(method: str, count: int, steps: int, kernel: kernels.Kernel | None = None, loss: str = "elbo") -> GPRegressor:
    """Return an estimator for one of the paper's methods on a toy, or for gigagp's own actions ("clusters")."""
    chosen: dict[str, Any] = {
        "exact": inference.Exact(),
        "SVGP": inference.SparseVariational(count, batch_size=1024),
        "CaGP-CG": inference.ComputationAware(count, _CG, loss),  # type: ignore[arg-type]
        "CaGP-Opt": inference.ComputationAware(count, _PAPER, loss),  # type: ignore[arg-type]
        "random": inference.ComputationAware(count, actions.Random(structure="blocks")),
        "clusters": inference.ComputationAware(count),
    }
    optimizer = LBFGS(max(1, min(steps, 50))) if method == "exact" else Adam(0.1, max(1, steps), final_share=0.1)
    return GPRegressor(kernel, chosen[method], optimizer if steps else None, "zero", 0.5, standardize=False)


def posterior(cell: Cell) -> dict[str, Any]:
    """Fit 120 rows in one dimension with a gap between -0.8 and 0.6 (Fig. 1)."""
    random = np.random.default_rng(cell.split)
    x = np.concatenate([random.uniform(-3, -0.8, 60), random.uniform(0.6, 3, 60)])[:, None]
    y = draw_targets(x, kernels.Matern(1.5, 0.6, 1.0), 0.02, seed=3 + cell.split)
    grid = np.linspace(-4, 4, 200)[:, None]
    chosen = cell.settings
    gp = model(chosen["method"], 8, chosen["steps"], kernels.Matern(1.5, 1.0, 1.0)).fit(x, y)
    mean, latent = gp.predict(grid, return_std=True)
    points = gp.posterior_.inducing_points.ravel() if chosen["method"] == "SVGP" else []
    return {
        "noise": gp.noise_variance_,
        "gap": latent[np.abs(grid[:, 0] + 0.1).argmin()],
        "lengthscale": gp.kernel_.parameters()["lengthscale"].mean(),
        "x": x[:, 0],
        "y": y,
        "grid": grid[:, 0],
        "mean": mean,
        "latent": latent,
        "inducing_points": points,
    }


def spans(cell: Cell) -> dict[str, Any]:
    """Fit 400 rows on a square; compare the actions with the top eigenvectors as learning goes on (Fig. 2)."""
    random = np.random.default_rng(1 + cell.split)
    x = random.uniform(-1, 1, (400, 2))
    y = draw_targets(x, kernels.Matern(1.5, 0.5, 1.0), 0.05, seed=1 + cell.split)
    chosen = cell.settings
    schedule = [step for step in (1, 2, 5, 10, 20, 50, 100, 150) if step <= chosen["steps"]]
    distances: list[float] = []
    for step in schedule:
        gp = model(chosen["method"], 20, step).fit(x, y)
        H = KernelMatrix(gp.kernel_, gp.posterior_.X, gp.noise_variance_).to_dense()
        top = torch.linalg.eigh(H).eigenvectors[:, -20:].flip(1)
        S = gp.posterior_.actions.dense()
        distances.append(actions.grassmann_distance(S, top))
    shown = {"actions": S[:, :5].T, "eigenvectors": top[:, :5].T, "points": gp.posterior_.X}
    shown = {name: np.round(values.numpy(), 4) for name, values in shown.items()}
    return {"first": distances[0], "last": distances[-1], "steps": schedule, "distances": distances, **shown}


def losses(cell: Cell) -> dict[str, Any]:
    """Learn 160 rows with the ELBO or the likelihood of the projected data (Figs. S1 and S2)."""
    random = np.random.default_rng(cell.split)
    x = random.uniform(0, 1, (360, 1))
    y = draw_targets(x, kernels.Matern(1.5, 0.1, 1.0), 0.05, seed=cell.split)
    chosen = cell.settings
    gp = model(chosen["method"], 10, chosen["steps"], kernels.Matern(1.5, 0.5, 1.0), chosen["loss"])
    gp.fit(x[:160], y[:160], validation=(x[160:], y[160:]))
    nll = [-step.validation_log_likelihood for step in gp.history_ if step.validation_log_likelihood is not None]
    noise = [step.hyperparameters["noise_variance"] for step in gp.history_]
    return {"nll": nll[-1], "noise": gp.noise_variance_, "nll_by_step": nll, "noise_by_step": noise}


def inducing(cell: Cell) -> dict[str, Any]:
    """Measure inducing points of 500 rows in a cube: distance to the rows, share of the latent variance (Fig. S3)."""
    d = cell.settings["inputs"]
    random = np.random.default_rng(d + 100 * cell.split)
    x = random.uniform(0, 1, (500, d))
    truth = kernels.Matern(1.5, 1.0, 1.0).bind(d)
    y = draw_targets(x, truth, 0.1, seed=d + 100 * cell.split)
    sparse = model("SVGP", 64, cell.settings["steps"]).fit(x, y)
    exact = model("exact", 64, 0, truth).set_params(noise_variance=0.1).fit(x, y)
    Z, X = sparse.posterior_.inducing_points, torch.from_numpy(x)
    drawn = torch.from_numpy(random.uniform(0, 1, (64, d)))
    return {
        "inputs": d,
        "distance": inducing_distance(sparse.kernel_, Z, X),
        "random_distance": inducing_distance(sparse.kernel_, drawn, X),
        "share": latent_share(sparse.posterior_, Z),
        "exact_share": latent_share(exact.posterior_, Z.to(X)),
        "noise": sparse.noise_variance_,
    }


def coverage(cell: Cell) -> dict[str, Any]:
    """Compute the coverage error of 95 % intervals after increasing numbers of steps (Fig. 4)."""
    X, y, X_test, y_test = cell.table()
    chosen = cell.settings
    count = chosen["inducing"] if chosen["method"] == "SVGP" else chosen["actions"]
    schedule = sorted({max(1, round(chosen["steps"] * share)) for share in (0.02, 0.1, 0.25, 0.5, 1.0)})
    found = []
    for step in schedule:
        gp = model(chosen["method"], count, step).fit(X, y)
        mean, std = gp.predict(X_test, return_std=True, include_noise=True)
        found.append(metrics.coverage_error(y_test, mean, std))
    return {"first": found[0], "last": found[-1], "steps": schedule, "errors": found}
