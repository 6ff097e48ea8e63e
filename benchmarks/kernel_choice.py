"""Compare the default kernel with ``kernel="choose"`` and ``kernel="average"`` on subsets of real tables.

    python benchmarks/kernel_choice.py --data ../shared/data --rows 200 500 --seeds 3
    python benchmarks/kernel_choice.py --data ../shared/data --rows 1500 --seeds 1 --tables pol bike
    python benchmarks/kernel_choice.py --data ../shared/data --rows 5000

Each fit has its own random training rows and up to 2,000 other rows for the scores; inputs and target are z-scored by
the training rows. "likeliest" is ``"choose"`` without its margin: the candidate that gains most. NLL is that of the
predicted distribution of an observation (of a mixture: of the mixture itself; ``normal`` is that of a normal
distribution with its moments). A loss or a win is a difference of more than 0.01 from the default. Results are added to
those in the JSON file, and replace equal cases.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit

UCI = ("pol", "elevators", "bike", "protein", "keggdirected", "kin40k", "parkinsons")
#: Tables of places (and times): the file, and the columns, of which the last is the target.
PLACES = {
    "elevation": ("elevation/us-prism.parquet", "longitude latitude elevation"),
    "precipitation": ("precipitation/january-2010.parquet", "longitude latitude day precipitation"),
    "radar": ("radar/klbb-2016-06-01.parquet", "latitude longitude altitude reflectivity"),
    "sound": ("sound/train.parquet", "x y"),
    "temperature": ("temperature/noaa-tmax-1990-93.parquet", "longitude latitude day tmax_fahrenheit"),
}
TABLES = (*UCI, *PLACES, "diabetes")
MODELS = ("default", "choose", "likeliest", "average")
_TEST_ROWS = 2000
#: Difference that counts as a loss or a win.
_DIFFERENCE = 0.01


def read(data: Path, table: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all rows of a table; bike comes without the two inputs whose sum is the target."""
    if table == "diabetes":  # comes with scikit-learn, and is not one of the tables that the settings were chosen on
        from sklearn.datasets import load_diabetes

        return load_diabetes(return_X_y=True)
    if table in UCI:
        rows = np.loadtxt(data / "uci" / table / "data.csv.gz", delimiter=",")
        return rows[:, : -3 if table == "bike" else -1], rows[:, -1]
    import pyarrow.parquet

    name, columns = PLACES[table]
    found = pyarrow.parquet.read_table(data / name)
    rows = np.stack([found[column].to_numpy().astype(float) for column in columns.split()], 1)
    rows = rows[np.isfinite(rows).all(1)]  # the radar has gaps
    return rows[:, :-1], rows[:, -1]


def split(X: np.ndarray, y: np.ndarray, table: str, rows: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return z-scored X, y, X_test, y_test; the rows of sound are from a window, in which they are dense."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    if table == "sound":
        order = rng.integers(len(y) - 2 * rows) + rng.permutation(2 * rows)
    train, test = order[:rows], order[rows : rows + _TEST_ROWS]
    centre, spread = X[train].mean(0), X[train].std(0)
    spread[spread == 0] = 1.0
    inputs = (X - centre) / spread
    targets = (y - y[train].mean()) / (y[train].std() or 1.0)
    return inputs[train], targets[train], inputs[test], targets[test]


def fit(model: str, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray) -> dict[str, Any]:
    """Return the scores of a fit, its CPU seconds, and what was tried."""
    from gigagp import GPRegressor
    from gigagp.estimators.choices import kernel_trials
    from gigagp.estimators.metrics import gaussian_nll, rmse

    margins = kernel_trials.MARGIN, kernel_trials.ERRORS
    if model == "likeliest":
        kernel_trials.MARGIN, kernel_trials.ERRORS = 0.0, 0.0
    began = time.process_time()
    try:
        gp = GPRegressor({"default": None, "likeliest": "choose"}.get(model, model)).fit(X, y)
    finally:
        kernel_trials.MARGIN, kernel_trials.ERRORS = margins
    seconds = time.process_time() - began
    points = torch.from_numpy(gp.scaling_.inputs(X_test))
    mixture, unit = gp.posterior_.marginals(points, include_noise=True), gp.scaling_.y_scale[0]
    std = mixture.variances.sqrt().numpy() * unit
    means = gp.scaling_.original(mixture.means.numpy().transpose(1, 2, 0))[:, 0].T
    logs = -0.5 * ((y_test - means) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    density = np.logaddexp.reduce(logs + np.log(mixture.weights.numpy())[:, None], 0)
    mean, spread = gp.predict(X_test, return_std=True, include_noise=True)
    found = {
        "cpu_seconds": seconds,
        "nll": -float(density.mean()),
        "normal": gaussian_nll(y_test, mean, spread),
        "rmse": rmse(y_test, mean),
        "noise_variance": gp.noise_variance_,
    }
    return found | ({} if gp.kernel_choice_ is None else {"tried": gp.kernel_choice_.to_plain()["tried"]})


def summary(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return losses, wins and mean differences from the default, by model and number of rows."""
    found = []
    for rows in (*sorted({one["rows"] for one in fits}), None):
        cases = [one for one in fits if rows in (None, one["rows"])]
        for model in MODELS[1:]:
            cases = [one for one in cases if model in one]
            if not cases:
                continue
            deltas = [one[model]["nll"] - one["default"]["nll"] for one in cases]
            errors = [one[model]["rmse"] / one["default"]["rmse"] - 1 for one in cases]
            found.append(
                {
                    "rows": rows or "all",
                    "model": model,
                    "fits": len(cases),
                    "losses": sum(delta > _DIFFERENCE for delta in deltas),
                    "wins": sum(delta < -_DIFFERENCE for delta in deltas),
                    "mean_nll": statistics.fmean(deltas),
                    "worst_nll": max(deltas),
                    "mean_rmse_percent": 100 * statistics.fmean(errors),
                    "worst_rmse_percent": 100 * max(errors),
                    "cpu_ratio": sum(one[model]["cpu_seconds"] for one in cases)
                    / sum(one["default"]["cpu_seconds"] for one in cases),
                    "cpu_seconds": statistics.fmean(one[model]["cpu_seconds"] for one in cases),
                }
            )
    return found


def main() -> None:
    """Run the fits and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--rows", nargs="+", type=int, default=[200, 500])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    from gigagp.estimators.choices.kernel_rules import AVERAGED_ROWS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    at = commit()
    known = arguments.json is not None and arguments.json.exists()
    fits = json.loads(arguments.json.read_text(encoding="utf-8"))["fits"] if known else []
    for table in arguments.tables:
        X, y = read(arguments.data, table)
        for rows in arguments.rows:
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                if rows > 0.8 * len(y):
                    continue
                case = {"table": table, "rows": rows, "seed": seed}
                parts = split(X, y, table, rows, seed)
                result: dict[str, Any] = {**case, "inputs": X.shape[1], "commit": at}
                models = MODELS if rows <= AVERAGED_ROWS else MODELS[:2]
                for model in models:
                    same = model == "likeliest" and _is_its_own_choice(result["choose"]["tried"])
                    result[model] = result["choose"] if same else fit(model, *parts)
                fits = [one for one in fits if any(one[name] != case[name] for name in case)] + [result]
                shown = "  ".join(f"{model} {result[model]['nll']:.3f} {result[model]['rmse']:.3f}" for model in models)
                print(f"{table:14s} {rows:5d} {seed}  {shown}", flush=True)
        if arguments.json is not None:
            fits.sort(key=lambda one: (one["rows"], one["table"], one["seed"]))
            arguments.json.write_text(json.dumps({"summary": summary(fits), "fits": fits}, indent=1), encoding="utf-8")
    for one in summary(fits):
        print(json.dumps(one), file=sys.stdout)


def _is_its_own_choice(tried: list[dict[str, Any]]) -> bool:
    """Whether the candidate with the most evidence was chosen."""
    best = max((one for one in tried if not one["refusal"]), key=lambda one: one["gain"])
    return best["weight"] == 1.0


if __name__ == "__main__":
    main()
