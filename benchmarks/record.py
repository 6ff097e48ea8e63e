"""The exact Gaussian process of all rows of elevation on one machine, and what approximations of it cost.

    python benchmarks/record.py neighbours
    python benchmarks/record.py exact
    python benchmarks/record.py grid
    python benchmarks/record.py sparse
    python benchmarks/record.py compare --json benchmarks/results/record.json

`inference.Vecchia` learns the hyperparameters (``neighbours``, which comes first). ``exact`` solves for the targets and
64 posterior samples, each to a true relative residual of 0.01, with a checkpoint: a killed run goes on. ``grid`` has
the same hyperparameters, and ``sparse`` learns its own, in ten minutes. All predict the same test rows: 5,000 random
ones, and as many in blocks without rows. ``compare`` sets their answers beside the exact ones.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from maps import KERNELS, SIZES, Split, blocks, line, read_map, scores, write

import gigagp
from gigagp import GPRegressor, inference, solvers
from gigagp.solvers import krylov, preconditioners

_SIZES = SIZES["elevation"][:4]


def held_out(folder: Path, rows: int | None, n_test: int) -> Split:
    """Return the map without ``n_test`` rows: half of them in blocks of four sizes, the others at random."""
    X, y = read_map(folder, "elevation", rows)
    size = blocks(X, _SIZES, 0, n_test / 2 / len(y))
    left = np.flatnonzero(size < 0)
    chosen = np.random.default_rng(1).permutation(left)[: n_test - int((size >= 0).sum())]
    size = size + 1  # 0 stands for rows held out one by one
    size[left] = -1
    size[chosen] = 0
    test = size >= 0
    return Split(X[~test], y[~test], X[test], y[test], size[test])


class Log:
    """The clock, memory and residuals of a solve by conjugate gradients, written after each iteration."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        self._start, self._step = time.monotonic(), krylov.Recurrence.step
        self.sizes: torch.Tensor | None = None

    def __enter__(self) -> Log:
        log, step = self, self._step

        def logged(self: krylov.Recurrence, *arguments: Any) -> Any:
            found = step(self, *arguments)
            log.add(self.residual.double().norm(dim=0))
            return found

        krylov.Recurrence.step = logged  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        krylov.Recurrence.step = self._step  # type: ignore[method-assign]

    def add(self, norms: torch.Tensor) -> None:
        """Add an iteration. Relative residuals are of the targets, the basis of the mean, and the samples."""
        row = {
            "seconds": time.monotonic() - self._start,
            "cpu_seconds": time.process_time(),
            "peak_gib": peak_gib(),
            "relative_residuals": norms.tolist(),
        }
        self.rows.append(row)
        self.path.write_text(json.dumps(self.rows), encoding="utf-8")
        print(f"{row['seconds']:7.0f} s  {norms[0]:.4g}  {norms[1:].max():.4g}  {row['peak_gib']:.2f} GiB", flush=True)


def peak_gib() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def method(answer: str, samples: int) -> GPRegressor:
    """Return the estimator of an answer; its hyperparameters are set later, except where it learns them."""
    if answer == "neighbours":
        return GPRegressor(KERNELS["half"](), inference=inference.Vecchia())
    if answer == "sparse":
        return GPRegressor(KERNELS["half"](), inference=inference.SparseVariational(), time_budget="10min")
    if answer == "grid":
        return GPRegressor(inference=inference.Grid(), optimizer=None)
    # The mean residual of the samples has to be so much smaller for the largest of them to be 0.01.
    solver = solvers.ConjugateGradients(
        tolerance=0.01, probe_tolerance=0.006, preconditioner=preconditioners.Vecchia(n_neighbors=60, rank=100)
    )
    way = inference.Iterative(solver=solver, n_samples=samples)
    return GPRegressor(inference=way, optimizer=None, dtype="mixed", memory_budget="7GiB")


def run(arguments: argparse.Namespace) -> None:
    """Fit one answer, predict the test rows, and keep what was predicted."""
    folder: Path = arguments.folder
    folder.mkdir(exist_ok=True)
    data = held_out(arguments.data, arguments.rows, arguments.test_rows)
    began, used = time.monotonic(), time.process_time()
    gp = method(arguments.answer, arguments.samples)
    checkpoint = None
    if arguments.answer in ("grid", "exact"):
        learned = gigagp.load(folder / "neighbours.gp")
        gp.set_params(kernel=learned.kernel_, noise_variance=learned.noise_variance_)
    if arguments.answer == "exact":
        checkpoint = folder / "exact.checkpoint"
    with Log(folder / "exact.log.json") if arguments.answer == "exact" else nullcontext():
        gp.fit(data.X, data.y, checkpoint=checkpoint)
    fitted, fitted_cpu = time.monotonic() - began, time.process_time() - used
    began = time.monotonic()
    mean, std = gp.predict(data.X_test, return_std=True)  # of the latent function
    found: dict[str, Any] = {
        "rows": len(data.y),
        "threads": torch.get_num_threads(),
        "fit_seconds": fitted,
        "fit_cpu_seconds": fitted_cpu,
        "predict_seconds": time.monotonic() - began,
        "peak_gib": peak_gib(),
        "kernel": repr(gp.kernel_),
        "noise_variance": float(gp.noise_variance_),
        "engine": gp.engine_,
        "description": gp.describe(),
    }
    if arguments.answer == "exact":
        found["last_solve"] = {name: value for name, value in vars(gp.posterior_.final_solve).items()}
    if arguments.answer == "neighbours":
        gp.save(folder / "neighbours.gp")
    np.savez(folder / f"{arguments.answer}.npz", mean=mean, std=std)
    (folder / f"{arguments.answer}.json").write_text(json.dumps(found, default=str), encoding="utf-8")
    print(json.dumps(found, indent=1, default=str))


def compare(arguments: argparse.Namespace) -> None:
    """Score all answers, and compare their means and variances with the exact ones, by kind of test row."""
    folder: Path = arguments.folder
    data = held_out(arguments.data, arguments.rows, arguments.test_rows)
    exact = np.load(folder / "exact.npz")
    rows: list[dict[str, object]] = []
    for answer in ("exact", "neighbours", "grid", "sparse"):
        path = folder / f"{answer}.json"
        if not path.exists():
            continue
        told, kept = json.loads(path.read_text(encoding="utf-8")), np.load(path.with_suffix(".npz"))
        whole = np.sqrt(kept["std"] ** 2 + told["noise_variance"])
        found: dict[str, object] = {"answer": answer, **told, **scores(data.y_test, kept["mean"], whole, data.size)}
        parts: list[dict[str, object]] = []
        for number in range(data.size.max() + 1):
            part = data.size == number
            parts.append(
                {
                    "half_size_degrees": 0 if number == 0 else _SIZES[number - 1][0],
                    "rows": int(part.sum()),
                    "mean_from_exact_in_exact_std": float(
                        np.sqrt((((kept["mean"] - exact["mean"])[part] / exact["std"][part]) ** 2).mean())
                    ),
                    "variance_over_exact": float(np.median(kept["std"][part] ** 2 / exact["std"][part] ** 2)),
                }
            )
        found["beside_exact"] = parts
        if answer == "exact":
            found["log"] = json.loads((folder / "exact.log.json").read_text(encoding="utf-8"))
        rows.append(found)
        print(f"{answer:10} {line(found)}")
        for one in parts:
            print("          ", one)
    write(arguments.json, {"map": "elevation", "kernel": "half"}, rows)


def main() -> None:
    """Run one answer, or compare those that have been run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answer", choices=("neighbours", "exact", "grid", "sparse", "compare"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--folder", type=Path, default=Path("record"))
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--test-rows", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.answer == "compare":
        compare(arguments)
    else:
        run(arguments)


if __name__ == "__main__":
    main()
