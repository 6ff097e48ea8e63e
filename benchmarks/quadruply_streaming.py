"""Measure classification of a table in a folder of Parquet files that is larger than the memory budget.

    python benchmarks/quadruply_streaming.py --rows 10000 1000000 --out streaming.json
    python benchmarks/quadruply_streaming.py --rows 10000 1000000 --turns 40     # the cost of a step, in turns

The rows have 20 inputs, of which four matter, and labels with known probabilities, so that the accuracy can be compared
with the Bayes rate. Hyperparameters start at the result of a fit to 1,000 other rows. Every size runs in its own
process, so that peak memory is measured separately; the memory of imports is subtracted. Times are CPU seconds of one
thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

N_INPUTS, N_TEST = 20, 20_000


def probability(X: np.ndarray) -> np.ndarray:
    """Return the probability of the second class."""
    latent = 3 * np.sin(1.5 * X[:, 0]) * np.cos(X[:, 1]) + 1.5 * np.sin(X[:, 2] + X[:, 3])
    return 1 / (1 + np.exp(-latent))


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, labels and the probabilities from which the labels were drawn."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, N_INPUTS))
    p = probability(X)
    return X, np.where(rng.random(n) < p, "yes", "no"), p


def write(folder: Path, n: int, files: int) -> int:
    """Write a table that is sorted by its first input within every file; return its size in bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for k in range(files):
        X, y, _ = draw(n // files, k + 1)
        order = X[:, 0].argsort()
        columns: dict[str, Any] = {f"x{column}": X[order, column] for column in range(N_INPUTS)}
        pq.write_table(pa.table(columns | {"label": y[order]}), folder / f"{k:03}.parquet")
    return sum(file.stat().st_size for file in folder.iterdir())


def peak_bytes() -> int:
    """Return the peak memory of this process in bytes; `getrusage` would include that of its parent."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    msg = "this needs Linux"
    raise OSError(msg)


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Fit the table of ``options.child`` and return scores and costs."""
    import torch

    from gigagp import GPClassifier, inference, kernels, optimization
    from gigagp.optimization.sparse_ascent import SparseRun

    torch.set_num_threads(1)
    import pyarrow.parquet  # noqa: F401

    imports = peak_bytes()
    spent: list[float] = []
    original = SparseRun._take_step

    def take_step(self: Any) -> bool:
        begun = time.process_time()
        found = original(self)
        spent.append(time.process_time() - begun)
        return found

    SparseRun._take_step = take_step  # type: ignore[method-assign]
    settings = inference.QuadruplyStochastic(
        n_basis=options.m, basis_batch=options.basis_batch, row_batch=options.row_batch
    )
    gp = GPClassifier(
        kernels.from_dict(json.loads(options.kernel)),
        settings,
        optimization.SparseAdam(steps=options.steps, hyper_learning_rate=options.hyper_rate),
        standardize=False,
        dtype="float32",
        memory_budget=options.budget,
    )
    begun = time.process_time()
    gp.fit_table(options.child, "label")
    cpu = time.process_time() - begun
    peak = peak_bytes()
    X, y, p = draw(N_TEST, 0)
    import pandas as pd

    found = gp.predict_proba(pd.DataFrame(X, columns=gp.feature_names_in_))[:, 1]
    right = (found > 0.5) == (y == "yes")
    confidence = np.maximum(found, 1 - found)
    bins = np.minimum(((confidence - 0.5) * 20).astype(int), 9)
    gaps = [abs(right[bins == b].mean() - confidence[bins == b].mean()) * np.mean(bins == b) for b in np.unique(bins)]
    return {
        "rows": gp.latent_.posterior_.n_rows,
        "accuracy": float(right.mean()),
        "bayes": float(((p > 0.5) == (y == "yes")).mean()),
        "error_of_probability": float(np.abs(found - p).mean()),
        "calibration_error": float(sum(gaps)),
        "standard_error": float(np.sqrt(right.mean() * (1 - right.mean()) / N_TEST)),
        "cpu_seconds": cpu,
        "steps": len(spent),
        "ms_a_step": 1e3 * float(np.mean(spent)),
        "ms_a_step_median": 1e3 * float(np.median(spent)),
        "peak_mib": peak / 2**20,
        "beyond_imports_mib": (peak - imports) / 2**20,
    }


def start() -> dict[str, Any]:
    """Return the kernel learned from 1,000 rows, and the CPU seconds of that fit."""
    import torch

    from gigagp import GPClassifier, kernels

    torch.set_num_threads(1)
    X, y, _ = draw(1000, 10**6)
    begun = time.process_time()
    gp = GPClassifier(kernels.RBF(3.0), standardize=False).fit(X, y)
    return {"kernel": gp.latent_.kernel_.to_dict(), "cpu_seconds": time.process_time() - begun}


def turns(options: argparse.Namespace, tables: dict[int, Path]) -> None:
    """Print the CPU time of a step for every size, including window reads; sizes take turns of 50 steps."""
    from contextlib import ExitStack

    import torch

    from gigagp import inference, kernels, optimization
    from gigagp.inference.contract.streaming import StreamJob
    from gigagp.model.likelihoods import Logistic
    from gigagp.model.means import ZeroMean
    from gigagp.model.model import Model
    from gigagp.optimization import History
    from gigagp.optimization.sparse_ascent import SparseRun
    from gigagp.optimization.trace import Trace
    from gigagp.runtime.memory import resolve_budget
    from gigagp.runtime.progress import NoProgress
    from gigagp.tables.files.labels import Labels
    from gigagp.tables.rows.source import RowSource

    torch.set_num_threads(1)
    settings = inference.QuadruplyStochastic(
        n_basis=options.m, basis_batch=options.basis_batch, row_batch=options.row_batch
    )
    budget = resolve_budget(options.budget, torch.device("cpu"))
    with ExitStack() as resources:
        runs: dict[int, Any] = {}
        for n, path in tables.items():
            source = RowSource(path, "label", labels=Labels())
            model = Model(kernels.RBF(3.0).bind(N_INPUTS), ZeroMean(), torch.tensor(0.1, dtype=torch.float64))
            job = StreamJob(
                source, model, True, budget, likelihood=Logistic(), dtype=torch.float32, resources=resources
            )
            objective = settings.stream(job, torch.Generator().manual_seed(0)).objective
            ascent = optimization.SparseAdam(steps=10**6, hyper_start=1.0)
            runs[n] = SparseRun(ascent, objective, model, Trace(History(), NoProgress())), []
        for _ in range(options.turns):
            for run, times in runs.values():
                begun = time.process_time()
                for _ in range(50):
                    run.step += 1
                    run._take_step()
                times.append((time.process_time() - begun) / 50)
    for n, (run, times) in runs.items():
        held = "in the memory" if type(run.objective).__name__ == "QuadruplyStochasticObjective" else "streamed"
        mean, median = 1e3 * np.mean(times), 1e3 * np.median(times)
        print(f"n = {n:9,} ({held}): {mean:6.2f} ms per step, median of {len(times)} turns {median:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--m", type=int, default=10_000, help="number of basis functions")
    parser.add_argument("--basis-batch", type=int, default=2000)
    parser.add_argument("--row-batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--hyper-rate", type=float, default=0.0, help="learning rate of the hyperparameters")
    parser.add_argument("--turns", type=int, default=0, help="number of turns of 50 steps, which replace the fits")
    parser.add_argument("--budget", default="128MiB")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kernel", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(child(options)))
        return
    print({name: value for name, value in vars(options).items() if name not in ("child", "kernel", "out")})
    if options.turns:
        with tempfile.TemporaryDirectory() as scratch:
            for n in options.rows:
                write(Path(scratch) / str(n), n, options.files)
            turns(options, {n: Path(scratch) / str(n) for n in options.rows})
        return
    found, begin = [], start()
    print(f"start: {begin['cpu_seconds']:.1f} CPU seconds, {begin['kernel']}", flush=True)
    for n in options.rows:
        with tempfile.TemporaryDirectory() as scratch:
            size = write(Path(scratch) / "table", n, options.files)
            arguments = [sys.executable, __file__, "--child", str(Path(scratch) / "table"), "--budget", options.budget]
            arguments += ["--m", str(options.m), "--basis-batch", str(options.basis_batch)]
            arguments += ["--row-batch", str(options.row_batch), "--steps", str(options.steps)]
            arguments += ["--hyper-rate", str(options.hyper_rate)]
            arguments += ["--kernel", json.dumps(begin["kernel"])]
            done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=dict(os.environ))
            if done.returncode:
                sys.exit(done.stderr)
            found.append({"file_mib": size / 2**20, **json.loads(done.stdout.splitlines()[-1])})
        print(json.dumps(found[-1]), flush=True)
    if options.out:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        options.out.write_text(json.dumps({"settings": plain, "rows": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
