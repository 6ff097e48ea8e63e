"""Groups beside a smooth function: wages of persons in five folds, and a made table of two crossed groups.

``python benchmarks/groups.py wages`` fits each fold of ``shared/data/groups`` and prints the mean squared error and the
seconds of a core. ``python benchmarks/groups.py crossed --rows 1000000 --levels 100000 10000`` makes a table, fits it
and compares the learned variances with those it was made with.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from checkout import commit

from gigagp import GPRegressor, inference, kernels

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data" / "groups"


def wages(folder: Path, neighbours: int, out: Path) -> list[dict[str, float]]:
    """Return error and time of each fold; results are written after each.

    Persons are levels with a slope in time, five columns are inputs of a smooth function, and all but the persons have
    a slope.
    """
    import pandas

    table = pandas.read_csv(folder / "wages.csv.gz")
    folds = np.load(folder / "wages-train-folds.npz")
    y = table.pop("ln_wage").to_numpy()
    X = table.to_numpy(dtype=float)
    person, year = (table.columns.get_loc(name) for name in ("idcode", "t"))
    smooth = [table.columns.get_loc(name) for name in ("age", "ttl_exp", "tenure", "hours", "t")]
    kernel = kernels.Matern(columns=smooth) + kernels.Group(person, slopes=[year])
    found = []
    for name in folds.files:
        train = np.zeros(len(y), dtype=bool)
        train[folds[name] - 1] = True  # row numbers from 1
        started = time.process_time()
        gp = GPRegressor(kernel, mean="linear", inference=inference.Vecchia(neighbours)).fit(X[train], y[train])
        mean, std = gp.predict(X[~train], return_std=True, include_noise=True)
        seconds = time.process_time() - started
        error = y[~train] - mean
        found.append(
            {
                "mean_squared_error": float(np.mean(error**2)),
                "negative_log_density": float(
                    np.mean(0.5 * (error / std) ** 2 + np.log(std) + 0.5 * np.log(2 * np.pi))
                ),
                "inside_95": float(np.mean(np.abs(error) <= 1.959964 * std)),
                "cpu_seconds": seconds,
                "gradients": len(gp.history_),
            }
        )
        print(name, found[-1], flush=True)
        keep(out, neighbours, {"folds": found})
    return found


def crossed(n_rows: int, levels: tuple[int, int], neighbours: int, seed: int) -> dict[str, object]:
    """Return learned and true variances of two crossed groups beside a smooth function of two inputs."""
    rng = np.random.default_rng(seed)
    true = {"first": 0.5, "second": 0.3, "noise": 0.25}
    X = np.column_stack([rng.uniform(0, 1, (n_rows, 2)), *(rng.integers(0, count, n_rows) for count in levels)])
    smooth = np.sin(6 * X[:, 0]) * np.cos(4 * X[:, 1]) + np.sin(9 * X[:, 0] + 5 * X[:, 1])
    effects = [rng.normal(0, true[name] ** 0.5, count) for name, count in zip(("first", "second"), levels, strict=True)]
    signal = smooth + sum(effect[X[:, 2 + k].astype(int)] for k, effect in enumerate(effects))
    y = signal + rng.normal(0, true["noise"] ** 0.5, n_rows)
    started, wall = time.process_time(), time.monotonic()
    gp = GPRegressor(kernels.Matern(nu=2.5), groups=[2, 3], inference=inference.Vecchia(neighbours)).fit(X, y)
    fitted = time.process_time() - started
    learned = gp.kernel_.parameters()
    ratio = {
        "first": float(learned["1.variance"]) / true["first"],
        "second": float(learned["2.variance"]) / true["second"],
        "noise": float(gp.noise_variance_) / true["noise"],
    }
    some = rng.choice(n_rows, 1000, replace=False)
    mean = gp.predict(X[some])
    return {
        "rows": n_rows,
        "levels": list(levels),
        "learned_over_true": ratio,
        "learned_over_drawn": {
            name: ratio[name] * true[name] / float(np.var(effect))
            for name, effect in zip(("first", "second"), effects, strict=True)
        },
        "root_mean_squared_error_of_the_mean": float(np.sqrt(np.mean((mean - signal[some]) ** 2))),
        "fit_cpu_seconds": fitted,
        "cpu_seconds": time.process_time() - started,
        "wall_seconds": time.monotonic() - wall,
        "gradients": len(gp.history_),
        "kernel": repr(gp.kernel_),
    }


def keep(out: Path, neighbours: int, found: dict[str, object]) -> None:
    """Write results with the commit of this checkout."""
    kept = {"commit": commit(), "neighbours": neighbours, **found}
    out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run one of the two benchmarks and write its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["wages", "crossed"])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--levels", type=int, nargs=2, default=[100_000, 10_000])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options.what == "wages":
            wages(options.data, options.neighbours, options.out or RESULTS / "groups_wages.json")
        else:
            found = crossed(options.rows, tuple(options.levels), options.neighbours, options.seed)
            print(found)
            keep(options.out or RESULTS / "groups_crossed.json", options.neighbours, found)


if __name__ == "__main__":
    main()
