"""Measure grid inference on real records and maps: errors, intervals and memory, compared with common alternatives.

    python benchmarks/grid_maps.py sound --data FOLDER                       # 8,000 and 60,000 nodes
    python benchmarks/grid_maps.py elevation --data FOLDER --size 600 300    # random tenth held out
    python benchmarks/grid_maps.py elevation --data FOLDER                   # nodes on the lattice of the data
    python benchmarks/grid_maps.py holes --data FOLDER                       # a window with 30 % cut out in ellipses

`sound` compares with the fixed hyperparameters of Yadav et al. 2021 (their Table 2 in both readings of "sigma", and the
values in their code), by log-likelihood on the same grid with the same probes. `elevation` and `holes` compare with
SciPy's nearest-neighbour and linear interpolation. All fits use `GPRegressor`. The first number of a line is the CPU
seconds of the fit; memory peaks are those of the whole process so far.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from gigagp import GPRegressor, inference, kernels, metrics, optimization
from gigagp.errors import GigaGPWarning

KERNELS = {
    "rbf": lambda: kernels.RBF(),
    "wave": lambda: kernels.RBF() * kernels.Cosine(),
    "matern": lambda: kernels.Matern(nu=1.5),
    "rq": lambda: kernels.RationalQuadratic(),
    "two": lambda: kernels.Matern(nu=1.5) + kernels.Matern(nu=1.5),
    "rough": lambda: kernels.Matern(nu=1.5) + kernels.Matern(nu=0.5),
}


def read(folder: Path, *files: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return X and y from Parquet files, whose last column is the target."""
    sys.path.insert(0, str(folder))
    from load import table

    found = []
    for file in files:
        columns = [column.to_numpy().astype(float) for column in table(file).columns]
        found.append((np.stack(columns[:-1], 1), columns[-1]))
    return found


def peak() -> float:
    """Return the peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fitted(X: np.ndarray, y: np.ndarray, **settings: object) -> tuple[GPRegressor, dict[str, object]]:
    """Return a fit with its CPU seconds, hyperparameters and warnings."""
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GigaGPWarning)
        gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings).fit(X, y)
    found = {
        "fit_cpu_s": time.process_time() - start,
        "kernel": repr(gp.kernel_),
        "noise_variance": gp.noise_variance_,
        "steps_on_all_rows": sum(step.stage == "all rows" for step in gp.history_),
        "solver": gp.solver_,
        "last_solve_steps": 0 if gp.posterior_.final_solve is None else gp.posterior_.final_solve.iterations,
        "warnings": [str(one.message) for one in caught if issubclass(one.category, GigaGPWarning)],
    }
    return gp, found


def scores(gp: GPRegressor, X: np.ndarray, y: np.ndarray, n_parts: int = 8) -> dict[str, float]:
    """Return scores for predictions of new measurements."""
    parts = [gp.predict(part, return_std=True, include_noise=True) for part in np.array_split(X, n_parts)]
    mean, std = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        "rmse": metrics.rmse(y, mean),
        "mae": float(np.abs(y - mean).mean()),
        "crps": metrics.gaussian_crps(y, mean, std),
        "nll": metrics.gaussian_nll(y, mean, std),
        "coverage_95": metrics.coverage(y, mean, std),
    }


def sound(arguments: argparse.Namespace) -> list[dict[str, object]]:
    (X, y), (X_test, y_test) = read(arguments.data, "sound/train.parquet", "sound/test.parquet")
    unit, scale, amplitude = X.std(), y.std(), float(np.abs(y_test).mean())

    def given(lengthscale: float, variance: float, noise: float) -> dict[str, object]:
        kernel = kernels.RBF(lengthscale=lengthscale / unit, variance=variance / scale**2)
        return {"kernel": kernel, "noise_variance": noise / scale**2, "optimizer": None}

    ways = {
        "paper, sigma a deviation": given(10.895, 0.002, 0.009**2),
        "paper, sigma a variance": given(10.895, 0.002, 0.009),
        "authors' code": given(10.8959, 0.0026, 0.01**2),
        "fitted RBF": {"kernel": KERNELS["rbf"]()},
        "fitted RBF * Cosine": {"kernel": KERNELS["wave"]()},
    }
    rows = []
    for size in arguments.size or (8000, 60000):
        for name, settings in ways.items():
            gp, found = fitted(X, y, inference=inference.Grid(size=size), **settings)
            likelihood = gp.posterior_.log_marginal_likelihood(torch.Generator().manual_seed(0))
            own = scores(gp, X_test, y_test, 1)
            row = {"way": name, "nodes": size, "smae": own["mae"] / amplitude, **own, **found}
            row |= {"log_likelihood": likelihood.value, "standard_error": likelihood.standard_error}
            rows.append(row)
            print(
                f"m = {size:6,d}  {name:24s} {found['fit_cpu_s']:6.1f} s  SMAE {row['smae']:.4f}  coverage "
                f"{own['coverage_95']:.3f}  log-likelihood {likelihood.value:12,.0f} +- {likelihood.standard_error:.0f}"
                f"   peak {peak():.2f} GiB",
                flush=True,
            )
    return rows


def baselines(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> list[dict[str, object]]:
    """Return the errors of SciPy's interpolations, with nearest instead of linear outside the rows' convex hull."""
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

    rows, start = [], time.process_time()
    nearest = NearestNDInterpolator(X, y)(X_test)
    middle = time.process_time()
    linear = LinearNDInterpolator(X, y)(X_test)
    within = np.isfinite(linear)
    end = time.process_time()
    for name, found, seconds in (
        ("scipy nearest", nearest, middle - start),
        ("scipy linear", np.where(within, linear, nearest), end - middle),
    ):
        row = {"way": name, "fit_cpu_s": seconds, "rmse": metrics.rmse(y_test, found)}
        row |= {"mae": float(np.abs(y_test - found).mean()), "outside_hull": int((~within).sum())}
        row["rmse_inside_hull"] = metrics.rmse(y_test[within], found[within])
        rows.append(row)
        print(f"{name:24s} {seconds:6.1f} s  RMSE {row['rmse']:7.2f}  MAE {row['mae']:7.2f}", flush=True)
    return rows


def grid_fit(
    arguments: argparse.Namespace, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, size: object
) -> dict[str, object]:
    optimizer = optimization.Auto(polish_steps=arguments.polish_steps)
    settings = inference.Grid(
        size=size, n_probes=arguments.probes, n_samples=arguments.samples, final_tolerance=arguments.tolerance
    )
    gp, found = fitted(
        X,
        y,
        inference=settings,
        kernel=KERNELS[arguments.kernel](),
        optimizer=optimizer,
        mean=arguments.mean,
        memory_budget=arguments.budget,
    )
    own = scores(gp, X_test, y_test)
    row = {"way": f"grid {arguments.kernel}", "size": size, **own, **found, "peak_GiB": peak()}
    print(
        f"{row['way']:12s} {gp.engine_.split(' nodes')[0].removeprefix('grid of '):11s} {found['fit_cpu_s']:6.1f} s  "
        f"RMSE {own['rmse']:7.2f}  MAE {own['mae']:7.2f}  CRPS {own['crps']:7.2f}  coverage {own['coverage_95']:.3f}  "
        f"peak {peak():.2f} GiB\n    {found['kernel']}, noise {found['noise_variance']:.3g}; {found['solver']}, "
        f"{found['last_solve_steps']} steps, {found['steps_on_all_rows']} gradients {found['warnings'] or ''}",
        flush=True,
    )
    return row


def elevation(arguments: argparse.Namespace) -> list[dict[str, object]]:
    ((X, y),) = read(arguments.data, "elevation/us-prism.parquet")
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: len(y) // 10], order[len(y) // 10 :]
    lattice = tuple(len(np.unique(X[:, k].round(4))) + 4 for k in range(2))  # a margin of two cells on each side
    size = tuple(arguments.size) if arguments.size else lattice
    row = grid_fit(arguments, X[train], y[train], X[test], y[test], size)  # runs first, to measure its own memory peak
    return [row, *([] if arguments.alone else baselines(X[train], y[train], X[test], y[test]))]


def holes(arguments: argparse.Namespace) -> list[dict[str, object]]:
    ((X, y),) = read(arguments.data, "elevation/us-prism.parquet")
    steps = (X[:, k].max() - X[:, k].min() for k in range(2))
    step = [extent / (len(np.unique(X[:, k].round(4))) - 1) for k, extent in enumerate(steps)]
    cell = np.stack([np.round((X[:, k] + 120) / step[k] if k == 0 else (X[:, k] - 33) / step[k]) for k in range(2)], 1)
    window = (cell >= 0).all(1) & (cell[:, 0] < 400) & (cell[:, 1] < 240)
    X, y, cell = X[window], y[window], cell[window]
    rng, out = np.random.default_rng(arguments.seed), np.zeros(len(y), dtype=bool)
    while out.mean() < 0.3:
        centre, radius, turn = rng.random(2) * (400, 240), rng.uniform(8, 35, 2), rng.uniform(0, np.pi)
        along = (cell - centre) @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        out |= ((along / radius) ** 2).sum(1) <= 1
    print(f"{len(y):,} rows, {out.sum():,} of them in holes, standard deviation {y.std():.0f} m", flush=True)
    train, test = ~out, out
    size = tuple(arguments.size) if arguments.size else (404, 244)
    row = grid_fit(arguments, X[train], y[train], X[test], y[test], size)
    return [row, *([] if arguments.alone else baselines(X[train], y[train], X[test], y[test]))]


def main() -> None:
    """Run the requested task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("sound", "elevation", "holes"))
    parser.add_argument("--data", type=Path, required=True, help="folder with load.py and the Parquet files")
    parser.add_argument("--size", type=int, nargs="+", help="nodes per input (sound: one fit for each number)")
    parser.add_argument("--kernel", choices=KERNELS, default="rq", help="kernel of the maps")
    parser.add_argument("--mean", default="constant", choices=("zero", "constant", "linear"))
    parser.add_argument("--probes", type=int, default=8, help="number of probes of the gradient")
    parser.add_argument("--samples", type=int, default=16, help="number of samples for variances")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="tolerance of the last solve")
    parser.add_argument("--polish-steps", type=int, default=10, help="largest number of gradients on all rows")
    parser.add_argument("--budget", default="4GiB")
    parser.add_argument("--seed", type=int, default=0, help="seed of the holes")
    parser.add_argument("--alone", action="store_true", help="without SciPy's interpolations")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = {"sound": sound, "elevation": elevation, "holes": holes}[arguments.task](arguments)
    if arguments.json:
        settings = {name: str(value) for name, value in vars(arguments).items() if name not in ("json", "data")}
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
