"""Maps by default: ``GPRegressor()`` and ``geo.Kriging()`` beside the plain kernels that they had before.

    python benchmarks/default_maps.py --json benchmarks/results/default_maps.json
    python benchmarks/default_maps.py --maps meuse --methods kriging

Heaton is the simulated image of a competition of spatial methods (Heaton et al. 2019,
doi 10.1007/s13253-018-00348-w), whose clouds are predicted. Of 100,000 elevations, blocks of six sizes are left out
(`maps.blocks`). Meuse has the logarithm of zinc, in ten random folds. Seconds are CPU seconds of one thread. Results
replace equal cells of the JSON file.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import maps
import numpy as np
import torch
from checkout import commit

from gigagp import GPRegressor, geo, kernels

#: X, y, X_test, y_test
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
DEGREES = "EPSG:4326"


def read(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of this folder as places and measurements, NaN where these are to be predicted."""
    import pandas as pd

    if name == "heaton":
        table = pd.read_parquet(data / "heaton" / "simulated.parquet")
        return table[["Lon", "Lat"]].to_numpy(float), table[["MaskTemp", "TrueTemp"]].to_numpy(float)
    table = pd.read_parquet(data / "geostatistics" / "meuse.parquet")
    return table[["x", "y"]].to_numpy(float), np.log(table["zinc"].to_numpy(float))


def splits(data: Path, name: str) -> Iterator[Split]:
    """Iterate over rows to fit and rows to predict."""
    if name == "elevation blocks":
        found = maps.split(data, "elevation", "blocks", 100_000)
        yield found.X, found.y, found.X_test, found.y_test
        return
    X, y = read(data, name)
    if name == "heaton":
        known, wanted = np.isfinite(y[:, 0]), ~np.isfinite(y[:, 0]) & np.isfinite(y[:, 1])
        yield X[known], y[known, 0], X[wanted], y[wanted, 1]
        return
    order = np.random.default_rng(0).permutation(len(y))
    for test in np.array_split(order, 10):
        train = np.setdiff1d(order, test)
        yield X[train], y[train], X[test], y[test]


MAPS = {"heaton": DEGREES, "elevation blocks": DEGREES, "meuse": None}
METHODS: dict[str, Callable[[str | None], Any]] = {
    "regressor": lambda crs: GPRegressor(verbose=0),
    "kriging": lambda crs: geo.Kriging(GPRegressor(verbose=0), crs=crs),
    "plain regressor": lambda crs: GPRegressor(kernels.Matern(nu=1.5), verbose=0),
    "plain kriging": lambda crs: geo.Kriging(
        GPRegressor(kernels.Matern(metric="haversine") if crs else kernels.Matern(ard=False), verbose=0), crs=crs
    ),
}


def measure(data: Path, name: str, method: str) -> dict[str, Any]:
    """Return the scores over all splits, and the CPU seconds of all fits."""
    answers, seconds, chosen = [], 0.0, ""
    for X, y, X_test, y_test in splits(data, name):
        start = time.process_time()
        model = METHODS[method](MAPS[name]).fit(X, y)
        seconds += time.process_time() - start
        mean, std = model.predict(X_test, return_std=True, include_noise=True)
        answers.append((y_test, mean, std))
        gp = model if isinstance(model, GPRegressor) else model.gp
        chosen = repr(gp.kernel_)
    scores = maps.scores(*(np.concatenate(part) for part in zip(*answers, strict=True)))
    return {"rows": len(X), **scores, "fit_cpu_s": seconds, "last_kernel": chosen}


def main() -> None:
    """Measure every cell, and write the JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    at, file = commit(), options.json
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"] if file is not None and file.exists() else []
    GPRegressor(verbose=0).fit(np.arange(50.0)[:, None], np.sin(np.arange(50.0)))  # what a first fit takes once
    for name in options.maps:
        for method in options.methods:
            cell = {"map": name, "method": method}
            row = {**cell, "commit": at, **measure(options.data, name, method)}
            print(f"{name:17s} {method:16s} {maps.line(row)}  {row['fit_cpu_s']:6.1f} CPU s", flush=True)
            cells = [one for one in cells if any(one[key] != cell[key] for key in cell)] + [row]
            if file is not None:
                file.write_text(json.dumps({"cells": cells}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
