"""Noise and scales that depend on the inputs, beside one noise variance for all rows.

    python benchmarks/varying_noise.py --data ../shared/data --json benchmarks/results/varying_noise.json

Each part is added to the file when it ends:

- ``motorcycle``: the helmet accelerations of Silverman (1985), 133 rows, five folds. They are in the package pydataset
  (``MASS/mcycle``), whose folder is given by ``--pydataset``; without it the part is left out.
- ``elevation_2000`` and more: random rows of the map, scored on 5,000 others, or a ninth as many if that is more, with
  coverage in every tenth of the predicted standard deviations. A third of the rows are sea, at exactly 0 m. Coverage is
  given without them too, in tenths of the others. Beyond 100,000 rows there are "constant" and "auto" alone.
- ``tables``: the twelve tables of `interval_coverage.py`, 500 rows at most, scored on 1,000 others.
- ``constant``: 100 made tables of 60 to 260 rows whose noise is constant, of one, two and five inputs: how often
  ``noise="auto"`` keeps it constant.

Scores are of new measurements: NLL in nats, CRPS and RMSE in the target's units (of tables in standard deviations of
the training targets), the share in 95 % intervals. CPU seconds are of the fit and the predictions in one thread.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tarfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from interval_coverage import TABLES, rows_of

from gigagp import GPRegressor, kernels, metrics

RULES = ("constant", "varying", "scaled", "auto")
LOCAL = (kernels.LocalVariance, kernels.ScaleMap)
_TEST_ROWS, _ROWS, _MOST_ROWS_OF_ALL_RULES = 1000, 500, 100_000


def scores(gp: GPRegressor, X: np.ndarray, y: np.ndarray, unit: float = 1.0) -> dict[str, Any]:
    """Return the scores of new rows, in a unit of the target."""
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    truth, mean, std = y / unit, mean / unit, std / unit
    inside = np.abs(truth - mean) < 1.959964 * std
    return {
        "nll": round(metrics.gaussian_nll(truth, mean, std), 4),
        "crps": round(metrics.gaussian_crps(truth, mean, std), 4),
        "rmse": round(metrics.rmse(truth, mean), 4),
        "coverage_95": round(float(inside.mean()), 4),
        "coverage_of_tenths": in_tenths(inside, std),
    }


def in_tenths(inside: np.ndarray, std: np.ndarray) -> list[float]:
    """Return the share of rows inside their intervals in every tenth of the predicted standard deviations."""
    return [round(float(part.mean()), 3) for part in np.array_split(inside[std.argsort()], 10)]


def fitted(
    rule: str,
    X: np.ndarray,
    y: np.ndarray,
    new: np.ndarray,
    target: np.ndarray,
    unit: float = 1.0,
    has_sea: bool = False,
) -> Any:
    """Return the scores of a rule, with what it has taken."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = GPRegressor(noise=rule).fit(X, y)
        found = scores(gp, new, target, unit)
        if has_sea:
            of_land = scores(gp, new[target != 0], target[target != 0], unit)
            found |= {f"{name}_of_land": of_land[name] for name in ("crps", "coverage_95", "coverage_of_tenths")}
    found["cpu_seconds"] = round(time.process_time() - began, 2)
    kernel = gp.kernel_
    has_scale = any(isinstance(leaf, LOCAL) for term in kernel.correlated_terms() for leaf in term)
    is_local = any(isinstance(leaf, LOCAL) for leaf in kernel.leaves())
    found["takes"] = "scaled" if has_scale else "varying" if is_local else "constant"
    return found


def mean_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of the scores of some splits."""
    names = [name for name in parts[0] if name not in ("coverage_of_tenths", "takes")]
    return {name: round(float(np.mean([part[name] for part in parts])), 4) for name in names} | {
        "takes": [part["takes"] for part in parts]
    }


def motorcycle(folder: Path) -> dict[str, Any]:
    """Return the scores of five folds."""
    with tarfile.open(folder / "resources.tar.gz") as file:
        member = next(one for one in file.getmembers() if one.name.endswith("MASS/mcycle.csv"))
        text = file.extractfile(member)
        assert text is not None
        rows = list(csv.reader(io.TextIOWrapper(text, encoding="utf-8")))[1:]
    table = np.array([[float(row[-2]), float(row[-1])] for row in rows])
    X, y, found = table[:, :1], table[:, 1], {}
    for rule in RULES:
        parts = []
        for fold in range(5):
            test = np.random.default_rng(0).permutation(len(y)) % 5 == fold
            parts.append(fitted(rule, X[~test], y[~test], X[test], y[test]))
        found[rule] = mean_of(parts)
    return found


def elevation(data: Path, n: int) -> dict[str, Any]:
    """Return the scores of random rows of the map."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(data / "elevation" / "us-prism.parquet")
    rows = np.column_stack([table[name].to_numpy() for name in ("longitude", "latitude", "elevation")])
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = rows[order[:n]], rows[order[n : n + max(5000, n // 9)]]
    rules = RULES if n <= _MOST_ROWS_OF_ALL_RULES else ("constant", "auto")
    given = train[:, :2], train[:, 2], test[:, :2], test[:, 2]
    return {rule: fitted(rule, *given, has_sea=True) for rule in rules}


def tables(data: Path) -> dict[str, Any]:
    """Return the scores of small tables under "constant" and "auto"."""
    found = {}
    for name, most in TABLES.items():
        X, y = rows_of(data, name)
        order = np.random.default_rng(0).permutation(len(y))
        n = min(most, _ROWS)
        train, test = order[:n], order[n : n + _TEST_ROWS]
        unit = float(y[train].std())
        found[name] = {
            rule: fitted(rule, X[train], y[train], X[test], y[test], unit) for rule in ("constant", "auto")
        } | {"rows": n}
        print(name, found[name], flush=True)
    return found


def constant() -> dict[str, Any]:
    """Return how often constant noise is kept where it is."""
    kept = {}
    for d in (1, 2, 5):
        count = 0
        for seed in range(100):
            draw = np.random.default_rng(seed)
            n = 60 + 2 * seed
            X = draw.uniform(0, 10, (n, d))
            y = np.sin(X[:, 0]) + 0.2 * draw.normal(size=n)
            gp = GPRegressor(kernels.Matern(1.5), noise="auto").fit(X, y)
            count += not any(isinstance(leaf, LOCAL) for leaf in gp.kernel_.leaves())
        kept[f"{d} inputs"] = count
    return {"tables": 100, "kept_constant": kept}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--pydataset", type=Path, help="the folder of pydataset with resources.tar.gz")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts", nargs="*", default=["motorcycle", "constant", "tables", "elevation_2000"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for part in arguments.parts:
        if part == "motorcycle":
            if arguments.pydataset is None:
                continue
            found = motorcycle(arguments.pydataset)
        elif part.startswith("elevation"):
            found = elevation(arguments.data, int(part.split("_")[1]))
        else:
            found = tables(arguments.data) if part == "tables" else constant()
        print(part, json.dumps(found), flush=True)
        if arguments.json is not None:
            path = arguments.json
            known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            known[part] = {"commit": commit(), **found}
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
