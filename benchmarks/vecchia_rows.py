"""Time and memory of `inference.Vecchia` on many made rows: `fit`, `fit_table` from a file, and `partial_fit`.

    python benchmarks/vecchia_rows.py --rows 1000000 --json benchmarks/results/vecchia_rows.json
    python benchmarks/vecchia_rows.py --rows 10000000 --jobs learn "learn in 512 MiB"

Rows are uniform in a square, with a smooth function and noise as targets. Hyperparameters are given, so that every step
is one pass over the rows, but for the jobs that learn them from a file: with room for all rows, and with a memory
budget of 512 MiB, which holds two million of them. Each job runs in a process of its own, which reports CPU seconds and
the peak of its memory beyond that of the rows it was given. ``rows x neighbours`` is the size of one array of
neighbours and weights, which no job should need.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

JOBS = ("fit", "fit_table", "partial_fit of 1 %", "learn", "learn in 512 MiB")
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
    warnings.simplefilter("ignore")  # says that not all rows are held
    kernel, vecchia = kernels.Matern(1.5, [1.0, 1.0], 0.5), inference.Vecchia(NEIGHBOURS)
    gp = GPRegressor(kernel, vecchia, None, noise_variance=0.01, standardize=False)
    if job.startswith("learn"):
        gp = GPRegressor(kernels.Matern(1.5), vecchia, memory_budget="512MiB" if "512" in job else None)
    gp.fit(*rows(2000))  # loads the libraries
    X, y = rows(count)
    new = X[:: max(1, count // 10_000)] + 0.01
    from_file = job == "fit_table" or job.startswith("learn")
    if from_file:
        np.save(folder / "rows.npy", np.concatenate([X, y[:, None]], 1))
        del X, y
    elif job != "fit":
        gp.fit(X, y)
        gp.predict(new)
    before, began, cpu = peak(), time.perf_counter(), time.process_time()
    if job == "fit":
        gp.fit(X, y)
    elif from_file:
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
        "rows_held": gp.posterior_.n_rows,
        "lengthscale": gp.kernel_.lengthscale.tolist(),
        "variance": float(gp.kernel_.variance),
        "noise_variance": gp.noise_variance_,
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
    parser.add_argument("--json", type=Path, help="file of figures; those of the same jobs are replaced")
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
                    f"{one['rows_x_neighbours_bytes'] / 2**20:8,.0f} MiB; error {one['error']:.4f}, "
                    f"noise {one['noise_variance']:.5f}, {one['rows_held']:,} rows held",
                    flush=True,
                )
    if given.json is not None:
        new = {(one["job"], one["rows"]) for one in found}
        known = json.loads(given.json.read_text(encoding="utf-8"))["jobs"] if given.json.exists() else []
        kept = [one for one in known if (one["job"], one["rows"]) not in new]
        given.json.write_text(
            json.dumps({"command": " ".join(sys.argv), "jobs": kept + found}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
