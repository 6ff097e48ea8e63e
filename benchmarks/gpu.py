"""Check that a GPU gives the right numbers, and how fast: one command for the day that one is at hand.

    python benchmarks/gpu.py                              # on the first card
    python benchmarks/gpu.py --device cpu --smoke         # small sizes on a processor: does the script run?

This script has never run on a GPU. It has two parts. *Parity*: each path that a device can take is compared with
float64 on the processor: products, entries and gradients of every engine, solves with every preconditioner,
conditionals and neighbours, and the predictions of fits at fixed hyperparameters. *Times*: products beside KeOps,
GPyTorch and plain torch (whichever are installed), a gradient, a training step, a pass of grid statistics, and a step
of computation-aware inference. A path that fails becomes a line of the table. The script ends with code 1 where parity
is missed or a path of gigagp fails.

Times are the least of several runs, each waited for (`torch.cuda.synchronize`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkout import commit
from torch import Tensor

from gigagp import GPRegressor, __version__, inference, kernels, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.vecchia.likelihood import pool_of
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.operators.grid.statistics import GridStatistics, RegularGrid
from gigagp.products import LowRankWeights, TorchTiles
from gigagp.products.measured_tiles import seconds
from gigagp.products.triton_tiles import TritonTiles

#: Largest error, as a share of the largest number, that counts as parity.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}
#: The same for tensor cores, which round the points, and for predictions, which rest on solves.
ROUNDED, PREDICTED = 5e-3, {torch.float64: 1e-5, torch.float32: 2e-3}
BUDGET = 2**30
#: Sizes of the parts, and those of ``--smoke``.
SIZES = {"parity": 3000, "fit": 1500, "products": 131_072, "step": 100_000, "grid": 2_000_000, "aware": 1_000_000}
SMOKE = {"parity": 120, "fit": 60, "products": 300, "step": 200, "grid": 500, "aware": 300}

Row = dict[str, Any]


def error_of(found: Any, expected: Any) -> float:
    """Return the largest error as a share of the largest number, over all tensors of two results."""
    if isinstance(expected, dict):
        size = max(float(one.abs().max()) for one in expected.values())
        return (
            max(float((found[k].double().cpu() - one.double().cpu()).abs().max()) for k, one in expected.items()) / size
        )
    return float((found.double().cpu() - expected.double().cpu()).abs().max() / expected.double().abs().max().cpu())


def tried(what: str, run: Callable[[], Row]) -> Row:
    """Return a row of the table, which is a failure where the path fails."""
    try:
        return {"what": what, **run()}
    except Exception as error:  # a path that fails is a finding
        lines = str(error).splitlines() or [""]
        return {"what": what, "failure": f"{type(error).__name__}: {lines[0][:150]}"}


def compared(what: str, run: Callable[[], Any], expected: Any, allowed: float) -> Row:
    """Return a row with the error of a path."""

    def found() -> Row:
        error = error_of(run(), expected)
        return {"error": error, "allowed": allowed, "ok": bool(error <= allowed)}

    return tried(what, found)


# Parity ---------------------------------------------------------------------------------------------------------------


def uneven(n: int, d: int) -> tuple[Tensor, Tensor]:
    """Return rows that are clumped, with a gap and with copies, and targets."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) * 0.3
    X[n // 2 :] += 3
    X[: n // 20] = X[n // 20 : 2 * (n // 20)]
    y = torch.sin(2 * X).sum(1) + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64)
    return X, y


def kernels_of_parity() -> dict[str, kernels.Kernel]:
    """Return kernels of every compiled profile, and one of each operation."""
    return {
        "RBF": kernels.RBF(),
        "Matern 1/2": kernels.Matern(0.5),
        "Matern 3/2": kernels.Matern(1.5),
        "Matern 5/2": kernels.Matern(2.5),
        "sum": kernels.RBF() + kernels.Matern(0.5),
        "product": kernels.Matern(2.5) * kernels.Linear(),
        "periodic": kernels.Periodic(),
    }


def engines_on(device: str) -> dict[str, Any]:
    """Return the engines that a device can run, by name."""
    found: dict[str, Any] = {"torch tiles": TorchTiles()}
    if device != "cpu" and TritonTiles.available():
        for distances in ("ieee", "bf16x3", "tf32"):
            found[f"triton, {distances}"] = TritonTiles(distances)  # type: ignore[arg-type]
    return found


def parity_of_engines(device: str, n: int) -> list[Row]:
    """Compare products, entries and gradients of every engine with torch tiles in float64 on the processor."""
    X, _ = uneven(n, 3)
    generator, rows = torch.Generator().manual_seed(1), []
    V, W = (torch.randn(n, 5, generator=generator, dtype=torch.float64).abs() for _ in range(2))
    for label, unbound in kernels_of_parity().items():
        kernel, plain = unbound.bind(3), TorchTiles()
        expected = {
            "product": plain.product(kernel, X, X, V, budget=BUDGET),
            "entries": plain.dense(kernel, X[:100], X, budget=BUDGET),
            "gradient": plain.gradient(kernel, X, X, LowRankWeights(V, W), symmetric=True, budget=BUDGET),
        }
        for name, engine in engines_on(device).items():
            for dtype in (torch.float64, torch.float32):
                P, A, B = (one.to(device=device, dtype=dtype) for one in (X, V, W))
                run: dict[str, Callable[[], Any]] = {
                    "product": lambda e=engine, k=kernel, P=P, A=A: e.product(k, P, P, A, budget=BUDGET),
                    "entries": lambda e=engine, k=kernel, P=P: e.dense(k, P[:100].contiguous(), P, budget=BUDGET),
                    "gradient": lambda e=engine, k=kernel, P=P, A=A, B=B: e.gradient(
                        k, P, P, LowRankWeights(A, B), symmetric=True, budget=BUDGET
                    ),
                }
                rounds = dtype == torch.float32 and name.endswith(("bf16x3", "tf32"))
                for job, call in run.items():
                    what = f"{job}, {label}, {name}, {str(dtype).removeprefix('torch.')}"
                    rows.append(compared(what, call, expected[job], ROUNDED if rounds else TOLERANCE[dtype]))
    return rows


def parity_of_parts(device: str, n: int) -> list[Row]:
    """Compare solves, neighbours and conditionals with dense algebra, or with the processor."""
    X, y = uneven(n, 2)
    kernel, rows = kernels.Matern(1.5).bind(2), []
    H = kernel.block(X, X).detach() + 0.1 * torch.eye(n, dtype=torch.float64)
    expected = torch.linalg.solve(H, y[:, None])
    there = KernelMatrix(kernel, X.to(device), 0.1, memory_budget=BUDGET)
    right = y[:, None].to(device)
    for name, preconditioner in (
        ("no preconditioner", None),
        ("PivotedCholesky", solvers.PivotedCholesky(30)),
        ("TwoLevel", solvers.TwoLevel(30, 40)),
        ("Vecchia", solvers.Vecchia(10)),
    ):
        solver = solvers.ConjugateGradients(tolerance=1e-8, preconditioner=preconditioner)
        call = lambda solver=solver: solver.solve(there, right).value  # noqa: E731
        rows.append(compared(f"conjugate gradients, {name}", call, expected, PREDICTED[torch.float64]))
    projections = solvers.AlternatingProjections(block_size=max(n // 10, 20), tolerance=1e-7)
    rows.append(compared("alternating projections", lambda: projections.solve(there, right).value, expected, 1e-4))
    model = Model(kernel, resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))

    def conditionals(where: str) -> Tensor:
        table = TrainingTable(X.to(where), y[:, None].to(where), model.mean, BUDGET)
        every = torch.arange(n, device=where)
        neighbours = NeighbourGraph(kernel, table.X, 10).earlier(every)
        return pool_of(model, table).conditionals(every, neighbours, table.Y).variance

    rows.append(compared("neighbours and conditionals", lambda: conditionals(device), conditionals("cpu"), 1e-8))
    return rows


def methods() -> dict[str, inference.Inference]:
    """Return every inference that runs on a device."""
    solver = solvers.ConjugateGradients(tolerance=1e-8)
    return {
        "Exact": inference.Exact(),
        "Iterative": inference.Iterative(solver=solver),
        "Vecchia": inference.Vecchia(n_neighbors=10),
        "ComputationAware": inference.ComputationAware(n_actions=20),
        "SparseVariational": inference.SparseVariational(n_inducing=20),
        "SparseVariational, minibatches": inference.SparseVariational(n_inducing=20, batch_size=30),
        "RandomFeatures": inference.RandomFeatures(),
        "QuadruplyStochastic": inference.QuadruplyStochastic(n_basis=200),
    }


def parity_of_fits(device: str, n: int) -> list[Row]:
    """Compare predictions at fixed hyperparameters with those of the processor."""
    X, y = (part.numpy() for part in uneven(n, 2))
    new, rows = torch.from_numpy(X[::7] + 0.01).numpy(), []

    def predictions(method: inference.Inference, where: str, dtype: str) -> Tensor:
        gp = GPRegressor(kernel=kernels.Matern(1.5), inference=method, optimizer=None, device=where, dtype=dtype)
        return torch.from_numpy(np.concatenate(gp.fit(X, y).predict(new, return_std=True)))

    for name, method in methods().items():
        expected = tried(name, lambda method=method: {"value": predictions(method, "cpu", "float64")})
        for dtype in (torch.float64, torch.float32):
            word = str(dtype).removeprefix("torch.")
            if word not in method.abilities.dtypes:
                continue
            call = lambda method=method, word=word: predictions(method, device, word)  # noqa: E731
            what = f"fit, {name}, {word}"
            rows.append(
                expected if "failure" in expected else compared(what, call, expected["value"], PREDICTED[dtype])
            )
    return rows


# Times ----------------------------------------------------------------------------------------------------------------


def timed(what: str, make: Callable[[], Callable[[], object]], device: str, runs: int = 3) -> Row:
    """Return a row with the least seconds of some runs after one that is not timed."""

    def found() -> Row:
        call, where = make(), torch.device(device)
        call()
        peak = 0
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        least = min(seconds(call, where) for _ in range(runs))
        if where.type == "cuda":
            peak = torch.cuda.max_memory_allocated(where)
        return {"seconds": least, "peak_bytes": peak}

    return tried(what, found)


def plain_torch(kernel: Any, X: Tensor, V: Tensor) -> Callable[[], Tensor]:
    """Return a product as one would write it: blocks of `torch.cdist`."""
    Z, root, variance = X / kernel.value("lengthscale", X), 3**0.5, float(kernel.value("variance"))
    rows = max(1, 2**27 // len(X))

    def call() -> Tensor:
        blocks = ((root * torch.cdist(Z[k : k + rows], Z)) for k in range(0, len(X), rows))
        return torch.cat([(variance * (1 + t) * torch.exp(-t)) @ V for t in blocks])

    return call


def of_others(name: str, kernel: Any, X: Tensor, V: Tensor) -> Callable[[], object]:
    """Return the product of another package, which need not be installed."""
    call: Callable[[], object] = getattr(importlib.import_module("gpu_products"), name)(kernel, X, V)
    return call


def products(device: str, n: int) -> list[Row]:
    """Time products and a gradient, ours beside those of others."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, 10, generator=generator).to(device)
    kernel, rows = kernels.Matern(1.5, 3.0).bind(10), []
    for s in (1, 17, 65):
        V = torch.randn(n, s, generator=generator).to(device)
        contenders: dict[str, Callable[[], Callable[[], object]]] = {
            name: lambda engine=engine, V=V: lambda: engine.product(kernel, X, X, V, budget=BUDGET)
            for name, engine in engines_on(device).items()
        }
        chosen = KernelMatrix(kernel, X, 0.1, memory_budget=BUDGET, storage="tiles")
        contenders["the engine that is chosen"] = lambda chosen=chosen, V=V: lambda: chosen @ V
        contenders["plain torch"] = lambda V=V: plain_torch(kernel, X, V)
        if device != "cpu":
            contenders["KeOps"] = lambda V=V: of_others("keops", kernel, X, V)
            contenders["GPyTorch with KeOps"] = lambda V=V: of_others("gpytorch_with_keops", kernel, X, V)
        rows += [timed(f"product, s = {s}, {name}", make, device) for name, make in contenders.items()]
    left, right = (torch.randn(n, 17, generator=generator).to(device) for _ in range(2))
    matrix = KernelMatrix(kernel, X, 0.1, memory_budget=BUDGET, storage="tiles")
    rows.append(timed("gradient, s = 17", lambda: lambda: matrix.gradient(left, right), device))
    return rows


def steps(device: str, sizes: dict[str, int]) -> list[Row]:
    """Time a training step, a grid pass and a computation-aware step."""

    def table(n: int, dtype: torch.dtype) -> tuple[TrainingTable, Model]:
        generator = torch.Generator().manual_seed(0)
        X = torch.rand(n, 3, generator=generator, dtype=torch.float64) * 3
        Y = torch.sin(3 * X).sum(1, keepdim=True) + 0.3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
        model = Model(kernels.Matern(1.5).bind(3), resolve_mean("constant"), torch.tensor(0.1, dtype=torch.float64))
        return TrainingTable(X.to(device, dtype), Y.to(device, dtype), model.mean, 4 * BUDGET), model

    def step(method: inference.Inference, n: int, dtype: torch.dtype) -> Callable[[], object]:
        data, model = table(n, dtype)
        objective = method.objective(data, torch.Generator().manual_seed(0))
        start = objective.start(model)
        return lambda: objective.evaluate(start)

    def grid() -> Callable[[], object]:
        data, _ = table(sizes["grid"], torch.float64)
        shape = RegularGrid.around((0, 0, 0), (3, 3, 3), (24, 24, 24) if sizes["grid"] > 10_000 else (6, 6, 6))
        return lambda: GridStatistics.from_rows(shape, data.X.cpu(), data.Y.cpu(), 2, seed=0)

    actions = 512 if sizes["aware"] > 10_000 else 20
    return [
        timed(
            f"training step of Iterative, n = {sizes['step']:,}, float32",
            lambda: step(inference.Iterative(), sizes["step"], torch.float32),
            device,
            1,
        ),
        timed(f"grid pass on the processor, n = {sizes['grid']:,}", grid, device, 1),
        timed(
            f"step of ComputationAware, n = {sizes['aware']:,}, {actions} actions, float32",
            lambda: step(inference.ComputationAware(n_actions=actions), sizes["aware"], torch.float32),
            device,
            1,
        ),
    ]


def line(row: Row) -> str:
    """Return a row as text."""
    if "failure" in row:
        return f"{row['what']:70s} FAILED {row['failure']}"
    if "error" in row:
        return f"{row['what']:70s} error {row['error']:.1e} of {row['allowed']:.0e} {'' if row['ok'] else 'MISSED'}"
    return f"{row['what']:70s} {row['seconds']:.4g} s, {row['peak_bytes'] / 2**30:.2f} GiB"


def main() -> None:
    """Check, measure, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    device, sizes = arguments.device, SMOKE if arguments.smoke else SIZES
    sys.path.insert(0, str(Path(__file__).parent))
    if device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = False
    card = torch.cuda.get_device_name(device) if device.startswith("cuda") else "a processor"
    print(f"{card}; gigagp {__version__}, torch {torch.__version__}")
    found: dict[str, list[Row]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that are too small
        for part, run in {
            "parity of engines": lambda: parity_of_engines(device, sizes["parity"]),
            "parity of parts": lambda: parity_of_parts(device, sizes["parity"]),
            "parity of fits": lambda: parity_of_fits(device, sizes["fit"]),
            "products": lambda: products(device, sizes["products"]),
            "steps": lambda: steps(device, sizes),
        }.items():
            print(f"\n{part}")
            found[part] = run()
            for row in found[part]:
                print(line(row), flush=True)
    parity = [row for part, rows in found.items() if part.startswith("parity") for row in rows]
    missed = [row["what"] for row in parity if not row.get("ok")]
    others = [row for part, rows in found.items() if not part.startswith("parity") for row in rows]
    failed = [row["what"] for row in others if not row.get("failure", "ModuleNotFound").startswith("ModuleNotFound")]
    print(
        f"\n{len(parity) - len(missed)} of {len(parity)} comparisons agree" + "".join(f"\n  not: {m}" for m in missed)
    )
    if arguments.json is not None:
        settings = {"device": device, "smoke": arguments.smoke, "sizes": sizes, "torch": torch.__version__}
        result = {"commit": commit(), "card": card, "settings": settings, "parity": len(parity), **found}
        arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    if missed or failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
