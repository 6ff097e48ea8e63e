"""Products and training steps in one, two and four processes of one thread each, beside a process without others.

    python benchmarks/distributed.py --json benchmarks/results/distributed.json

For each number of processes: the CPU seconds of the slowest process (the least of three runs, or one run of steps with
solves), its wall-clock seconds, the bytes that it receives, and the efficiency. This is the CPU seconds of a process
without others over those of all processes, were they all as slow as the slowest. CPU seconds leave out waiting, but not
what sending and receiving cost, so that they can be compared where other programs use the same cores.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import write

from gigagp import inference, kernels, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.objective import VecchiaObjective
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.operators import kernel_matrix
from gigagp.runtime import processes

#: Columns of a product with targets, a constant mean and 16 probe vectors.
COLUMNS = 18


def jobs(n: int, d: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Return what is measured, with the number of runs."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64) * 3
    Y = torch.sin(3 * X).sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    left, right = (torch.randn(n, COLUMNS, generator=generator, dtype=torch.float64) for _ in range(2))
    model = Model(kernels.Matern(1.5).bind(d), resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))
    table = TrainingTable(X, Y, model.mean, 2**30)
    H = kernel_matrix(model.kernel, X, 0.1, memory_budget=2**30, storage="tiles")
    neighbours = VecchiaObjective(table, 30, None, n)
    solver = solvers.ConjugateGradients(tolerance=0.01, preconditioner=solvers.Vecchia(30))
    iterative = inference.Iterative(solver=solver).objective(table, torch.Generator().manual_seed(0))
    aware = inference.ComputationAware(n_actions=256).objective(table, torch.Generator().manual_seed(0))
    with_actions = aware.start(model)
    # A step has hyperparameters of its own: at the last ones the regression would be known.
    models = itertools.cycle([model, replace(model, noise_variance=1.1 * model.noise_variance)])
    return {
        "product": (lambda: H @ left, 3),
        "gradient": (lambda: H.gradient(left, right), 3),
        "neighbours, search": (lambda: neighbours.refresh(model), 1),
        "neighbours, step": (lambda: neighbours.evaluate(next(models)), 3),
        "iterative, step": (lambda: iterative.evaluate(model), 1),
        "computation-aware, step": (lambda: aware.evaluate(with_actions), 1),
    }


def measure(n: int, d: int, chosen: list[str] | None) -> dict[str, dict[str, float]]:
    """Return the CPU seconds, wall-clock seconds and received bytes of each job in this process."""
    received = 0
    broadcast = processes.Processes._broadcast

    def counted(self: processes.Processes, values: torch.Tensor, rank: int) -> None:
        nonlocal received
        received += 0 if rank == self.rank else values.numel() * values.element_size()
        broadcast(self, values, rank)

    processes.Processes._broadcast = counted  # type: ignore[method-assign]
    found = {}
    for name, (run, repeats) in jobs(n, d).items():
        if chosen and name not in chosen:
            continue
        times = []
        for _ in range(repeats):
            before, cpu, wall = received, time.process_time(), time.perf_counter()
            run()
            times.append((time.process_time() - cpu, time.perf_counter() - wall, received - before))
        cpu_s, wall_s, bytes_in = (min(column) for column in zip(*times, strict=True))
        found[name] = {"cpu_s": cpu_s, "wall_s": wall_s, "received_bytes": float(bytes_in)}
    return found


def work(arguments: argparse.Namespace) -> None:
    """Measure in one of the processes, and write what it found."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, count, folder = arguments.rank, arguments.count, arguments.folder
    meet = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=count, timeout=timedelta(minutes=30))
    with processes.joined(True):
        found = measure(arguments.rows, arguments.inputs, arguments.jobs)
    (folder / str(rank)).write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def together(count: int, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the figures of the slowest of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rows", str(arguments.rows), "--inputs", str(arguments.inputs), "--count", str(count)]
        options += ["--folder", folder, *(["--jobs", *arguments.jobs] if arguments.jobs else [])]
        command = [sys.executable, __file__, *options, "--rank"]
        running = [subprocess.Popen([*command, str(rank)]) for rank in range(count)]
        if any([one.wait() for one in running]):
            sys.exit("a process failed")
        results = [json.loads((Path(folder) / str(rank)).read_text(encoding="utf-8")) for rank in range(count)]
    return {name: {key: max(one[name][key] for one in results) for key in results[0][name]} for name in results[0]}


def main() -> None:
    """Measure each number of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--inputs", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--jobs", nargs="+", default=None)
    parser.add_argument("--json", type=Path, default=None)
    for name, kind in (("--rank", int), ("--count", int), ("--folder", Path)):
        parser.add_argument(name, type=kind, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments)
        return
    torch.set_num_threads(1)
    alone = measure(arguments.rows, arguments.inputs, arguments.jobs)
    found: list[dict[str, object]] = [
        {"job": name, "processes": 0, "efficiency": 1.0, **figures} for name, figures in alone.items()
    ]
    for count in arguments.processes:
        for name, figures in together(count, arguments).items():
            efficiency = alone[name]["cpu_s"] / (count * figures["cpu_s"])
            found.append({"job": name, "processes": count, "efficiency": efficiency, **figures})
    for one in found:
        print(
            f"{one['job']:24s} {one['processes']} processes: {one['cpu_s']:7.2f} CPU s, {one['wall_s']:7.2f} s, "
            f"{one['received_bytes']:.3g} bytes, efficiency {one['efficiency']:.2f}",
            flush=True,
        )
    settings = {k: v for k, v in vars(arguments).items() if k not in ("rank", "count", "folder")}
    write(arguments.json, settings, found)


if __name__ == "__main__":
    main()
