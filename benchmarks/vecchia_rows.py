"""Time and memory of `inference.Vecchia` on many made rows: `fit`, `fit_table` from a file, and `partial_fit`.

    python benchmarks/vecchia_rows.py --rows 1000000 --json benchmarks/results/vecchia_rows.json

Rows are uniform in a square, with a smooth function and noise as targets; hyperparameters are given, so that every step
is one pass over the rows. Each job runs in a process of its own, which reports CPU seconds and the peak of its memory
beyond that of the rows it was given. ``rows x neighbours`` is the size of one array of neighbours and weights, which no
job should need.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

JOBS = ("fit", "fit_table", "partial_fit of 1 %")
NEIGHBOURS = 30


def rows(count: int, seed: int = 0) -> Any:
    """Return inputs and targets."""
    import numpy as np

    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 100.0, (count, 2))
    return X, np.sin(X[:, 0]) * np.cos(X[:, 1]) + 0.1 * rng.normal(size=count)


def peak() -> int:
    """Return the largest memory of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(job: str, count: int, folder: Path) -> dict[str, Any]:
    """Run one job and return its figures."""
    import numpy as np
    import torch

    from gigagp import GPRegressor, inference, kernels

    torch.set_num_threads(1)
    gp = GPRegressor(
        kernels.Matern(1.5, [1.0, 1.0], 0.5),
        inference.Vecchia(NEIGHBOURS),
        None,
        noise_variance=0.01,
        standardize=False,
    )
    gp.fit(*rows(2000))  # loads the libraries
    X, y = rows(count)
    new = X[:: max(1, count // 10_000)] + 0.01
    if job == "fit_table":
        np.save(folder / "rows.npy", np.concatenate([X, y[:, None]], 1))
        del X, y
    elif job != "fit":
        gp.fit(X, y)
        gp.predict(new)
    before, began, cpu = peak(), time.perf_counter(), time.process_time()
    if job == "fit":
        gp.fit(X, y)
    elif job == "fit_table":
        array = np.load(folder / "rows.npy", mmap_mode="r")
        gp.fit_table((array[:, :2], array[:, 2]))
    else:
        gp.partial_fit(*rows(count // 100, seed=1))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    began = time.process_time()
    mean = gp.predict(new)
    error = float(np.sqrt(np.mean((mean - np.sin(new[:, 0]) * np.cos(new[:, 1])) ** 2)))
    return {
        "job": job,
        "rows": count,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "predict_10000_cpu_seconds": time.process_time() - began,
        "peak_bytes": peak(),
        "peak_growth_bytes": peak() - before,
        "rows_x_neighbours_bytes": count * NEIGHBOURS * 12,
        "error": error,
    }


def main() -> None:
    """Run all jobs, print their figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help="run the first job here and print its figures as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.one:
            print(json.dumps(run(given.jobs[0], given.rows[0], Path(folder))))
            return
        found = []
        for count in given.rows:
            for job in given.jobs:
                command = [sys.executable, __file__, "--one", "--rows", str(count), "--jobs", job]
                text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append(json.loads(text.splitlines()[-1]))
                one = found[-1]
                print(
                    f"{job:20s} {count:12,} rows {one['cpu_seconds']:8.2f} CPU s, then predict "
                    f"{one['predict_10000_cpu_seconds']:6.2f} s; peak {one['peak_bytes'] / 2**20:8,.0f} MiB, of it "
                    f"{one['peak_growth_bytes'] / 2**20:8,.0f} MiB new; rows x neighbours "
                    f"{one['rows_x_neighbours_bytes'] / 2**20:8,.0f} MiB; error {one['error']:.4f}",
                    flush=True,
                )
    if given.json is not None:
        given.json.write_text(json.dumps({"command": " ".join(sys.argv), "jobs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
